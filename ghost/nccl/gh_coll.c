/* SPDX-License-Identifier: Apache-2.0
 * Collectives: what their work says; rings, and the tree of all-reduce. */
#include "ghost/nccl/gh_coll.h"

#include "ghost/driver/gh_driver.h"

/* Bytes of data that a chunk's size is counted in. */
static int64_t grain_of(int proto) { return proto == GH_LL ? 16 : proto == GH_LL128 ? 1920 : 512; }

/* The first and the last block have parts of their own size, those between have equal ones. */
static bool read_part(struct gh_block *b, const struct gh_function *f, const char *work, struct gh_part *p) {
  const struct gh_layout *l = b->layout;
  uint32_t flags = GH_FIELD(uint32_t, work, GH_COLL_FLAGS);
  int low = flags & 0xff, high = flags >> 8 & 0xff, between = high - low - 1;
  bool argument_is_pointer = flags >> 24 & 1, registered = flags >> 25 & 3;
  const uint64_t *counts = &GH_FIELD(uint64_t, work, l->coll_counts);
  uint64_t grains = GH_FIELD(uint64_t, work, l->coll_grains);
  int which = b->id == low ? 0 : b->id == high ? 2 : 1;
  *p = (struct gh_part){.f = f, .root = GH_FIELD(int, work, GH_COLL_ROOT), .esize = gh_type_size(f->type),
                     .in = GH_FIELD(const char *, work, l->coll_send), .out = GH_FIELD(char *, work, l->coll_recv)};
  if (registered)
    return gh_block_fail(b, "the buffers are registered, which ghost has no kernels for: NCCL_LOCAL_REGISTER=0");
  if (b->id < low || b->id > high) return gh_block_fail(b, "work of channels %d to %d", low, high);
  p->reduction = (struct gh_reduction){f->op, f->type, GH_FIELD(uint64_t, work, l->coll_argument)};
  if (argument_is_pointer) {
    const void *scalar = (const void *)(uintptr_t)p->reduction.argument;
    if (!gh_reachable(scalar, p->esize, b->context)) return gh_block_fail(b, "a scalar cannot be reached");
    p->reduction.argument = 0;
    memcpy(&p->reduction.argument, scalar, p->esize);
  }
  p->count = (int64_t)(counts[0] + counts[1] * (uint64_t)(between > 0 ? between : 0) + counts[2]);
  p->at = which == 0 ? 0 : (int64_t)(counts[0] + counts[1] * (uint64_t)(which == 2 ? between : b->id - low - 1));
  p->n = (int64_t)counts[which];
  p->chunk = (int64_t)(grains >> 21 * which & 0x1fffff) * (grain_of(f->proto) / (int64_t)p->esize);
  return p->chunk > 0 || p->n == 0 || gh_block_fail(b, "chunks without elements");
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Steps of a chunk, slices of these: as the host's proxies count them. */
static void set_proto(struct gh_prims_setup *s, const struct gh_function *f) {
  bool long_chunks = f->algo == GH_RING && f->proto == GH_SIMPLE && f->coll != GH_BROADCAST && f->coll != GH_REDUCE;
  s->proto = f->proto;
  s->slices = long_chunks ? 2 : 1;
  s->steps = long_chunks ? 2 : 1;
}

struct ring {
  int index, n, prev, next;
  const int *ranks; /* from this one on */
};

static bool open_ring(struct gh_block *b, const struct gh_part *part, struct ring *r, struct gh_prims *p) {
  *r = (struct ring){.index = GH_FIELD(int, b->channel, b->layout->channel_index),
                     .n = b->nranks,
                     .prev = GH_FIELD(int, b->channel, GH_CHANNEL_PREV),
                     .next = GH_FIELD(int, b->channel, GH_CHANNEL_NEXT),
                     .ranks = GH_FIELD(const int *, b->channel, GH_CHANNEL_RANKS)};
  struct gh_prims_setup s = {.reduction = part->reduction, .recv = {r->prev, -1}, .send = {r->next, -1}};
  set_proto(&s, part->f);
  return gh_prims_open(p, b, &s);
}

/* ---- rings ---- */

static bool all_reduce_ring(const struct gh_part *p, const struct ring *r, struct gh_prims *prims) {
  int64_t chunk = p->chunk, loop = r->n * p->chunk;
  for (int64_t done = 0; done < p->n; done += loop) {
    int64_t left = p->n - done, align = 16 / (int64_t)p->esize;
    if (left < loop) chunk = ((left + r->n - 1) / r->n + align - 1) / align * align;
    /* Round 0 sends; n - 1 rounds add, the last of which has the result; n - 1 rounds pass results on. */
    for (int round = 0; round < 2 * r->n - 1; round++) {
      int which = ((r->index - 1 - round) % r->n + r->n) % r->n;
      bool adds = round < r->n;
      int64_t at = p->at + done + which * chunk;
      struct gh_move m = {.recv = round > 0, .send = round < 2 * r->n - 2, .own = true, .last = round == r->n - 1,
                          .from = adds ? p->in + at * (int64_t)p->esize : NULL,
                          .to = round >= r->n - 1 ? p->out + at * (int64_t)p->esize : NULL,
                          .n = least(chunk, left - which * chunk)};
      if (!gh_prims_move(prims, &m)) return false;
    }
  }
  return true;
}

static bool reduce_scatter_ring(const struct gh_part *p, const struct ring *r, struct gh_prims *prims) {
  for (int64_t done = 0; done < p->n; done += p->chunk) {
    int64_t at = p->at + done;
    for (int round = 0; round < r->n; round++) {
      bool last = round == r->n - 1;
      int rank = last ? r->ranks[0] : r->ranks[r->n - 1 - round];
      struct gh_move m = {.from = p->in + (at + rank * p->count) * (int64_t)p->esize, .own = true, .recv = round > 0,
                          .send = !last, .last = last, .to = last ? p->out + at * (int64_t)p->esize : NULL,
                          .n = least(p->chunk, p->n - done)};
      if (!gh_prims_move(prims, &m)) return false;
    }
  }
  return true;
}

static bool all_gather_ring(const struct gh_part *p, const struct ring *r, struct gh_prims *prims) {
  for (int64_t done = 0; done < p->n; done += p->chunk) {
    int64_t at = p->at + done;
    for (int round = 0; round < r->n; round++) {
      int rank = round == 0 ? r->ranks[0] : r->ranks[r->n - round];
      char *to = p->out + (at + rank * p->count) * (int64_t)p->esize;
      const char *from = p->in + at * (int64_t)p->esize;
      struct gh_move m = {.from = round == 0 ? from : NULL, .own = true, .recv = round > 0, .send = round < r->n - 1,
                          .to = round == 0 && from == to ? NULL : to, .n = least(p->chunk, p->n - done)};
      if (!gh_prims_move(prims, &m)) return false;
    }
  }
  return true;
}

static bool broadcast_ring(const struct gh_part *p, const struct ring *r, struct gh_prims *prims) {
  bool root = r->ranks[0] == p->root, last = r->ranks[1] == p->root;
  for (int64_t done = 0; done < p->n; done += p->chunk) {
    int64_t at = (p->at + done) * (int64_t)p->esize;
    struct gh_move m = {.from = root ? p->in + at : NULL, .own = true, .recv = !root, .send = !last,
                        .to = root && p->in == p->out ? NULL : p->out + at, .n = least(p->chunk, p->n - done)};
    if (!gh_prims_move(prims, &m)) return false;
  }
  return true;
}

static bool reduce_ring(const struct gh_part *p, const struct ring *r, struct gh_prims *prims) {
  bool root = r->ranks[0] == p->root, first = r->ranks[r->n - 1] == p->root;
  for (int64_t done = 0; done < p->n; done += p->chunk) {
    int64_t at = (p->at + done) * (int64_t)p->esize;
    struct gh_move m = {.from = p->in + at, .own = true, .recv = !first, .send = !root, .last = root,
                        .to = root ? p->out + at : NULL, .n = least(p->chunk, p->n - done)};
    if (!gh_prims_move(prims, &m)) return false;
  }
  return true;
}

/* ---- the tree ---- */

struct branch {
  struct gh_block *b;
  const struct gh_part *part;
  struct gh_prims_setup setup;
  bool adds, stores, last;
};

/* All chunks in one direction: up, where each adds its own; or down; the root does both at once. */
static bool run_branch(void *arg) {
  const struct branch *a = arg;
  const struct gh_part *p = a->part;
  struct gh_prims prims;
  bool good = gh_prims_open(&prims, a->b, &a->setup);
  for (int64_t done = 0; good && done < p->n; done += p->chunk) {
    int64_t at = (p->at + done) * (int64_t)p->esize;
    struct gh_move m = {.from = a->adds ? p->in + at : NULL, .own = true, .to = a->stores ? p->out + at : NULL,
                        .recv = prims.nrecv > 0, .send = prims.nsend > 0, .last = a->last,
                        .n = least(p->chunk, p->n - done)};
    good = gh_prims_move(&prims, &m);
  }
  gh_prims_close(&prims);
  return good;
}

static bool all_reduce_tree(struct gh_block *b, const struct gh_part *p) {
  const int *down = &GH_FIELD(int, b->channel, b->layout->channel_down);
  int up = GH_FIELD(int, b->channel, b->layout->channel_up);
  struct branch rising = {.b = b, .part = p, .adds = true, .setup = {.reduction = p->reduction}}, falling = rising;
  set_proto(&rising.setup, p->f);
  for (int i = 0; i <= GH_TREE_ARITY; i++) {
    rising.setup.recv[i] = i < GH_TREE_ARITY ? down[i] : -1;
    rising.setup.send[i] = i == 0 ? up : -1;
  }
  if (up < 0) {
    memcpy(rising.setup.send, rising.setup.recv, sizeof rising.setup.send);
    rising.stores = rising.last = true;
    return run_branch(&rising);
  }
  falling.adds = false;
  falling.stores = true;
  falling.setup = rising.setup;
  memcpy(falling.setup.recv, rising.setup.send, sizeof falling.setup.recv);
  memcpy(falling.setup.send, rising.setup.recv, sizeof falling.setup.send);
  void *const both[] = {&rising, &falling};
  return gh_threads_run(b, run_branch, both, 2);
}

/* ---- which ---- */

static bool buffers_reachable(struct gh_block *b, const struct gh_part *p) {
  int64_t in = p->f->coll == GH_REDUCESCATTER ? p->count * b->nranks : p->count;
  int64_t out = p->f->coll == GH_ALLGATHER ? p->count * b->nranks : p->count;
  bool sends = p->f->coll != GH_BROADCAST || b->rank == p->root,
       receives = p->f->coll != GH_REDUCE || b->rank == p->root;
  if (sends && in && !gh_reachable(p->in, (size_t)in * p->esize, b->context))
    return gh_block_fail(b, "the send buffer %p is no %lld bytes of this device's memory", (const void *)p->in,
                         (long long)in * (long long)p->esize);
  if (receives && out && !gh_reachable(p->out, (size_t)out * p->esize, b->context))
    return gh_block_fail(b, "the receive buffer %p is no %lld bytes of this device's memory", (void *)p->out,
                         (long long)out * (long long)p->esize);
  return true;
}

bool gh_coll_run(struct gh_block *b, const struct gh_function *f, const char *work) {
  struct gh_part part;
  struct ring ring;
  struct gh_prims prims;
  char text[64];
  if (!read_part(b, f, work, &part) || !buffers_reachable(b, &part)) return false;
  if (f->coll == GH_ALLREDUCE && f->algo == GH_TREE) return all_reduce_tree(b, &part);
  if (gh_pat_can(f)) return gh_pat_run(b, &part);
  gh_function_text(f, text, sizeof text);
  if (f->algo != GH_RING) return gh_block_fail(b, "ghost has no kernel for %s", text);
  bool good = open_ring(b, &part, &ring, &prims);
  if (good) switch (f->coll) {
      case GH_ALLREDUCE: good = all_reduce_ring(&part, &ring, &prims); break;
      case GH_REDUCESCATTER: good = reduce_scatter_ring(&part, &ring, &prims); break;
      case GH_ALLGATHER: good = all_gather_ring(&part, &ring, &prims); break;
      case GH_BROADCAST: good = broadcast_ring(&part, &ring, &prims); break;
      case GH_REDUCE: good = reduce_ring(&part, &ring, &prims); break;
      default: good = gh_block_fail(b, "ghost has no kernel for %s", text);
    }
  gh_prims_close(&prims);
  return good;
}
