/* SPDX-License-Identifier: Apache-2.0
 *
 * PAT: all-gather and reduce-scatter by binomial trees, one for each rank and all at the same time. A block is what its
 * owner sends to all (all-gather), or what all send to its owner (reduce-scatter). Its distance is the owner's rank
 * less this one's, modulo the ranks. It comes from, or goes to, the rank that is nearer to the owner by the distance's
 * lowest bit. So there are two peers for each bit.
 *
 * A round is all blocks whose distances differ by multiples of a stride and have the same lowest bit. Each rank sends
 * those of a round to one peer and receives as many from the other, in slots of one or more blocks. NCCL's proxies
 * count the slots of each connection in advance; the order of rounds, and of blocks in a slot, is the kernels' own
 * business.
 */
#include <stdlib.h>

#include "ghost/nccl/gh_coll.h"

enum { MAX_BITS = 31 };

struct pat {
  struct gh_block *b;
  const struct gh_part *part;
  bool gathers;
  int slot_blocks;     /* at most */
  int width, stride;   /* width x stride: the ranks, rounded up to a power of two */
  int64_t at, n;       /* the chunk: elements of each block */
  char *sums;          /* reduce-scatter: of the chunk, for each distance */
  char *slot;          /* blocks on their way into a slot or out of it */
  struct gh_prims peers[MAX_BITS];
};

/* NCCL's PAT scales no sums. */
bool gh_pat_can(const struct gh_function *f) {
  return f->algo == GH_PAT && f->proto == GH_SIMPLE &&
         (f->coll == GH_ALLGATHER ||
          (f->coll == GH_REDUCESCATTER && f->op != GH_PREMULSUM && f->op != GH_SUMPOSTDIV));
}

/* Small blocks share a slot; a round then has as many slots as a connection has, if there are so many ranks. The
 * proxies' count is right only by these numbers. */
static void set_rounds(struct pat *t) {
  int64_t block = t->part->n, chunk = t->part->chunk;
  int half = t->b->nranks / 2, all = 1;
  t->slot_blocks = 1;
  while (t->slot_blocks < half && chunk / (block * t->slot_blocks) >= 2) t->slot_blocks *= 2;
  t->width = t->slot_blocks;
  for (int slots = 1; slots < GH_STEPS && t->width < half; slots *= 2) t->width *= 2;
  while (all < t->b->nranks) all *= 2;
  t->stride = all / t->width;
}

static size_t block_bytes(const struct pat *t) { return (size_t)t->n * t->part->esize; }

static char *block_at(const struct pat *t, int distance) {
  int owner = (t->b->rank + distance) % t->b->nranks;
  if (!t->gathers) return t->sums + (size_t)distance * block_bytes(t);
  return t->part->out + (owner * t->part->count + t->at) * (int64_t)t->part->esize;
}

/* ---- a round ---- */

/* Distances first, first + step, …: n of them, whose lowest bit is `bit`. */
struct slot {
  int first, step, n, bit;
};

static bool send_slot(struct pat *t, const struct slot *s) {
  size_t size = block_bytes(t);
  struct gh_move m = {.from = t->slot, .send = true, .n = s->n * t->n};
  for (int i = 0; i < s->n; i++) {
    int distance = s->first + i * s->step;
    memcpy(t->slot + (size_t)i * size, block_at(t, t->gathers ? distance - (1 << s->bit) : distance), size);
  }
  return gh_prims_move(&t->peers[s->bit], &m);
}

static bool recv_slot(struct pat *t, const struct slot *s) {
  size_t size = block_bytes(t);
  struct gh_move m = {.to = t->slot, .recv = true, .n = s->n * t->n};
  if (!gh_prims_move(&t->peers[s->bit], &m)) return false;
  for (int i = 0; i < s->n; i++) {
    int distance = s->first + i * s->step;
    const char *block = t->slot + (size_t)i * size;
    char *to = block_at(t, t->gathers ? distance : distance - (1 << s->bit));
    if (t->gathers) memcpy(to, block, size);
    else gh_reduce(&t->part->reduction, to, to, block, (size_t)t->n);
  }
  return true;
}

/* Distances first, first + stride, …: n of them, or fewer where there are fewer ranks. All slots are sent before the
 * first is received: they fit into a connection. */
static bool run_round(struct pat *t, int first, int stride, int n) {
  int blocks = t->slot_blocks < n ? t->slot_blocks : n, slots = n / blocks;
  for (int receives = 0; receives < 2; receives++)
    for (int i = 0; i < slots; i++) {
      struct slot s = {.first = first + stride * i * (t->gathers ? blocks : 1),
                       .step = stride * (t->gathers ? 1 : slots), .bit = __builtin_ctz((unsigned)first)};
      while (s.n < blocks && s.first + s.n * s.step < t->b->nranks) s.n++;
      if (s.n > 0 && !(receives ? recv_slot : send_slot)(t, &s)) return false;
    }
  return true;
}

/* ---- a chunk: rounds in such an order that a rank has what it sends ---- */

/* The distances of a multiple of the stride: those whose lowest bit is that of so many strides. */
static bool run_top(struct pat *t, int strides) {
  return run_round(t, strides * t->stride, 2 * strides * t->stride, t->width / strides / 2);
}

static bool gather(struct pat *t) {
  bool good = true;
  char *mine = block_at(t, 0);
  const char *from = t->part->in + t->at * (int64_t)t->part->esize;
  if (mine != from) memcpy(mine, from, block_bytes(t));
  for (int i = t->width / 2; good && i > 0; i /= 2) good = run_top(t, i);
  for (int i = 1; good && i < t->stride; i++) good = run_round(t, i, t->stride, t->width);
  return good;
}

static bool reduce_scatter(struct pat *t) {
  const struct gh_part *p = t->part;
  bool good = true;
  for (int i = 0; i < t->b->nranks; i++) {
    int owner = (t->b->rank + i) % t->b->nranks;
    memcpy(block_at(t, i), p->in + (owner * p->count + t->at) * (int64_t)p->esize, block_bytes(t));
  }
  for (int i = t->stride - 1; good && i > 0; i--) good = run_round(t, i, t->stride, t->width);
  for (int i = 1; good && i < t->width; i *= 2) good = run_top(t, i);
  if (good) memcpy(p->out + t->at * (int64_t)p->esize, block_at(t, 0), block_bytes(t));
  return good;
}

/* ---- all ---- */

static bool open_peers(struct pat *t, int bit) {
  int n = t->b->nranks, nearer = (t->b->rank + (1 << bit)) % n, farther = (t->b->rank + n - (1 << bit)) % n;
  struct gh_prims_setup s = {.reduction = t->part->reduction, .proto = GH_SIMPLE, .slices = 1, .steps = 1,
                             .recv = {t->gathers ? nearer : farther, -1}, .send = {t->gathers ? farther : nearer, -1}};
  return gh_prims_open(&t->peers[bit], t->b, &s);
}

bool gh_pat_run(struct gh_block *b, const struct gh_part *part) {
  struct pat t = {.b = b, .part = part, .gathers = part->f->coll == GH_ALLGATHER};
  int64_t chunk = part->chunk < part->n ? part->chunk : part->n;
  bool good = true;
  int bits = 0;
  if (part->n == 0) return true;
  set_rounds(&t);
  t.slot = malloc((size_t)chunk * part->esize * (size_t)t.slot_blocks);
  t.sums = t.gathers ? NULL : malloc((size_t)chunk * part->esize * (size_t)b->nranks);
  if (!t.slot || (!t.gathers && !t.sums)) good = gh_block_fail(b, "out of memory");
  while (good && 1ll << bits < b->nranks) good = open_peers(&t, bits++);
  for (int64_t done = 0; good && done < part->n; done += chunk) {
    t.at = part->at + done;
    t.n = chunk < part->n - done ? chunk : part->n - done;
    good = t.gathers ? gather(&t) : reduce_scatter(&t);
  }
  while (bits > 0) gh_prims_close(&t.peers[--bits]);
  free(t.slot);
  free(t.sums);
  return good;
}
