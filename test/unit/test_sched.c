/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * Proves: the schedules are right. All ranks are run symbolically: an element is a name and the set of ranks that
 * contributed to it, a step is a list of elements in a FIFO of bounded depth. Every step that one end
 * sends the other end expects, with its size; every output element is written once, with every rank's
 * contribution in it once; the post-operation happens once; in place gives the same. PAT's, of up to 511 ranks,
 * and an exchange take log2(ranks) steps, each rank sending at most one in a step and receiving one; its connections
 * are as many.
 * Arithmetic of one thread: nothing for the thread sanitizer.
 */
#include "core/host/rt_sched.h"

#include "common/base/compiler.h"
#include "core/plan/rt_tree.h"
#include "test/harness/tap.h"

#define MAX_RANKS 511
#define RING_RANKS 9
#define MAX_DEPTH 8

/* Which element it is in the collective's own numbering, whose contributions it holds, how often it was finished. */
struct element {
  uint32_t name;
  uint8_t finished, written;
  uint64_t ranks; /* the sum of their marks */
};

struct message {
  struct element *e;
  uint64_t n;
  int time; /* in which step it was sent */
};
struct fifo {
  struct message m[MAX_DEPTH];
  int first, used;
};

struct job {
  enum rt_coll coll;
  int nranks, root, depth, parts;
  int tree;  /* of an RT_TREE */
  int steps; /* that it takes, and peers that a rank has, at most; 0: not compared */
  bool in_place;
  size_t esize;
  uint64_t count, chunk;
  const int *order; /* ranks in their places in the ring; all else that is called rank here is a place */
};

struct world {
  const struct job *job;
  struct element *send[MAX_RANKS], *recv[MAX_RANKS]; /* the same memory when in place */
  struct element *work[MAX_RANKS];
  uint64_t nsend, nrecv, nwork; /* elements of each */
  struct fifo **fifo;           /* from, to; NULL: not used yet */
  int time[MAX_RANKS];          /* step that the rank has come to */
};

/* Where a schedule is told that its buffers are. */
#define SEND_AT ((const char *)(1ull << 40))
#define RECV_AT ((char *)(2ull << 40))
#define WORK_AT ((char *)(3ull << 40))

static const char *text(const struct job *j) {
  static char t[160];
  snprintf(t, sizeof t, "coll %d, %d ranks, root %d, count %llu, chunk %llu, esize %zu, depth %d, %d parts%s",
           (int)j->coll, j->nranks, j->root, (unsigned long long)j->count, (unsigned long long)j->chunk, j->esize,
           j->depth, j->parts, j->in_place ? ", in place" : "");
  return t;
}

/* ---- who is connected ---- */

static bool is_pat(enum rt_coll coll) { return coll >= RT_PAT_ALLGATHER && coll <= RT_PAT_REDUCE; }

/* The collective that a schedule is a form of. */
static enum rt_coll form_of(enum rt_coll coll) {
  static const enum rt_coll of[] = {RT_ALLGATHER, RT_REDUCE_SCATTER, RT_BROADCAST, RT_REDUCE};
  return is_pat(coll) ? of[coll - RT_PAT_ALLGATHER] : coll;
}

static int peer(const struct job *j, int rank, int number, bool sends) {
  CHECK_MSG(number < (j->coll == RT_TREE ? RT_PEERS : RAIL_MAX(rt_sched_rounds(j->nranks), 1)), "%s: connection %d",
            text(j), number);
  if (is_pat(j->coll)) return (rank + (sends ? 1 << number : j->nranks - (1 << number))) % j->nranks;
  if (j->coll == RT_EXCHANGE) return rank ^ 1 << number;
  const struct rt_tree t = rt_tree_of(j->tree, rank, j->nranks);
  if (j->coll != RT_TREE) return (rank + (sends ? 1 : j->nranks - 1)) % j->nranks;
  const int p = number == RT_PARENT ? t.parent : t.child[number];
  CHECK_MSG(p >= 0, "%s: rank %d has no peer %d", text(j), rank, number);
  return p;
}

static struct rt_tree_node place(const struct job *j, int rank) {
  const struct rt_tree t = rt_tree_of(j->tree, rank, j->nranks);
  return (struct rt_tree_node){.children = (uint8_t)((t.child[0] >= 0) + (t.child[1] >= 0)),
                               .has_parent = t.parent >= 0,
                               .depth = (uint16_t)t.depth};
}

/* ---- what goes in, what must come out ---- */

static int who(const struct job *j, int place) { return j->order ? j->order[place] : place; }

static bool has_recv(const struct job *j, int rank) { return form_of(j->coll) != RT_REDUCE || rank == j->root; }

/* A bit of its own; of many ranks a number of which no two sums are equal, but by a chance of 2^-64. */
static uint64_t mark(const struct job *j, int rank) {
  uint64_t x = ((uint64_t)rank + 1) * 0x9e3779b97f4a7c15ull;
  if (j->nranks <= 64) return 1ull << rank;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

static struct element input(const struct job *j, int rank, uint64_t i) {
  struct element e = {.name = (uint32_t)i, .ranks = mark(j, who(j, rank))};
  if (form_of(j->coll) == RT_ALLGATHER) e.name = (uint32_t)((uint64_t)who(j, rank) * j->count + i);
  return e;
}

static struct element output(const struct job *j, int rank, uint64_t i) {
  const enum rt_coll coll = form_of(j->coll);
  struct element e = {.name = (uint32_t)i, .finished = 1, .written = 1};
  if (coll == RT_REDUCE_SCATTER) e.name = (uint32_t)((uint64_t)who(j, rank) * j->count + i);
  if (j->coll == RT_TREE && j->nranks > 1 && place(j, rank).children == 2) e.written = 2; /* the sum of some, too */
  if (j->coll == RT_EXCHANGE) e.written = (uint8_t)RAIL_MAX(rt_sched_rounds(j->nranks), 1);
  if (coll == RT_ALLGATHER || coll == RT_BROADCAST) {
    e.ranks = mark(j, coll == RT_BROADCAST ? who(j, j->root) : (int)(i / j->count));
    e.finished = 0;
  } else {
    for (int r = 0; r < j->nranks; r++) e.ranks += mark(j, r);
  }
  return e;
}

/* ---- one action ---- */

/* The elements that a rank has there. */
static struct element *at(const struct world *w, int rank, const char *p, uint64_t n) {
  struct element *const bases[] = {w->send[rank], w->recv[rank], w->work[rank]};
  const uint64_t sizes[] = {w->nsend, w->nrecv, w->nwork}, where = (uint64_t)(uintptr_t)p >> 40;
  CHECK_MSG(where >= 1 && where <= 3, "%s: in no buffer", text(w->job));
  struct element *base = bases[where - 1];
  const uint64_t size = sizes[where - 1], byte = (uint64_t)(uintptr_t)p & ((1ull << 40) - 1);
  CHECK_MSG(byte % w->job->esize == 0, "%s: not at an element", text(w->job));
  CHECK_MSG(byte / w->job->esize + n <= size, "%s: %llu elements at %llu of a buffer of %llu", text(w->job),
            (unsigned long long)n, (unsigned long long)(byte / w->job->esize), (unsigned long long)size);
  return base + byte / w->job->esize;
}

static struct element combine(const struct world *w, struct element in, struct element local) {
  CHECK_MSG(in.name == local.name, "%s: element %u reduced with element %u", text(w->job), in.name, local.name);
  CHECK_MSG(w->job->nranks > 64 || (in.ranks & local.ranks) == 0, "%s: a rank counted twice (%llx and %llx)",
            text(w->job), (unsigned long long)in.ranks, (unsigned long long)local.ranks);
  CHECK_MSG(!in.finished && !local.finished, "%s: a finished element reduced again", text(w->job));
  in.ranks += local.ranks;
  return in;
}

static struct fifo *fifo(struct world *w, int from, int to) {
  struct fifo **f = &w->fifo[from * w->job->nranks + to];
  if (!*f) *f = calloc(1, sizeof **f);
  return *f;
}

/* False: it would have to wait. */
static bool act(struct world *w, int rank, const struct rt_action *a) {
  const struct job *j = w->job;
  const bool reduces = form_of(j->coll) != RT_ALLGATHER && form_of(j->coll) != RT_BROADCAST;
  struct fifo *in = a->recv ? fifo(w, peer(j, rank, a->from, false), rank) : NULL;
  struct fifo *out = a->send ? fifo(w, rank, peer(j, rank, a->to, true)) : NULL;
  if ((in && in->used == 0) || (out && out->used == j->depth)) return false;
  struct message got = {0};
  if (a->recv) {
    got = in->m[in->first];
    in->first = (in->first + 1) % MAX_DEPTH;
    in->used--;
    CHECK_MSG(got.n == a->n, "%s: rank %d got a step of %llu, expects %llu", text(j), rank, (unsigned long long)got.n,
              (unsigned long long)a->n);
    if (w->time[rank] < got.time) w->time[rank] = got.time;
  }
  CHECK_MSG(a->n <= j->chunk, "%s: a step of %llu", text(j), (unsigned long long)a->n);
  CHECK_MSG(a->recv || a->src, "%s: rank %d: an action without input", text(j), rank);
  struct element *result = calloc(a->n ? a->n : 1, sizeof *result);
  const struct element *local = NULL;
  CHECK_MSG(!(a->reduce || !a->recv) || a->src, "%s: rank %d: an action without local input", text(j), rank);
  if (a->src && (a->reduce || !a->recv)) local = at(w, rank, a->src, a->n);
  /* The pre-operation is for inputs, and once for each. */
  CHECK_MSG(!local || !reduces || a->partial == (a->src >= RECV_AT), "%s: rank %d: an input, or not?", text(j), rank);
  struct element *dst = a->dst ? at(w, rank, a->dst, a->n) : NULL;
  CHECK_MSG(!a->dst || a->dst >= RECV_AT, "%s: rank %d writes its input", text(j), rank);
  for (uint64_t i = 0; i < a->n; i++) {
    struct element e = got.e ? (a->reduce ? combine(w, got.e[i], local[i]) : got.e[i]) : local[i];
    if (a->last && reduces) e.finished++;
    result[i] = e;
    if (!dst) continue;
    uint8_t written = dst[i].written;
    dst[i] = e;
    dst[i].written = a->dst < WORK_AT ? (uint8_t)(written + 1) : 0;
  }
  free(got.e);
  if (a->send) {
    for (uint64_t i = 0; i < a->n; i++) result[i].written = 0;
    out->m[(out->first + out->used++) % MAX_DEPTH] = (struct message){result, a->n, ++w->time[rank]};
  } else {
    free(result);
  }
  return true;
}

/* ---- a whole collective ---- */

static void run_part(struct world *w, uint64_t lo, uint64_t len) {
  const struct job *j = w->job;
  static struct rt_sched s[MAX_RANKS];
  uint64_t next[MAX_RANKS] = {0}, total[MAX_RANKS];
  for (int r = 0; r < j->nranks; r++) {
    s[r] = (struct rt_sched){.coll = j->coll,
                             .rank = r,
                             .nranks = j->nranks,
                             .root = j->root,
                             .order = j->order,
                             .esize = j->esize,
                             .send = SEND_AT,
                             .recv = has_recv(j, r) ? RECV_AT : NULL,
                             .work = WORK_AT,
                             .count = j->count,
                             .lo = lo,
                             .len = len,
                             .chunk = j->chunk,
                             .tree = place(j, r)};
    w->nwork = rt_sched_work(&s[r]) / j->esize;
    w->work[r] = calloc(w->nwork + 1, sizeof *w->work[r]);
    total[r] = rt_sched_actions(&s[r]);
    CHECK_MSG(total[r] > 0 || len == 0, "%s: no actions", text(j));
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < j->nranks; r++) {
      if (next[r] == total[r]) continue;
      struct rt_action a;
      rt_sched_action(&s[r], next[r], &a);
      if (!act(w, r, &a)) continue;
      next[r]++;
      moved = true;
    }
  }
  for (int r = 0; r < j->nranks; r++) {
    CHECK_MSG(next[r] == total[r], "%s: rank %d hangs at action %llu of %llu", text(j), r, (unsigned long long)next[r],
              (unsigned long long)total[r]);
    for (int to = 0; to < j->nranks; to++) {
      const struct fifo *f = w->fifo[r * j->nranks + to];
      CHECK_MSG(!f || f->used == 0, "%s: rank %d sent a step that nobody takes", text(j), r);
    }
    free(w->work[r]);
  }
}

static void make_buffers(struct world *w) {
  const struct job *j = w->job;
  uint64_t n = (uint64_t)j->nranks;
  const enum rt_coll coll = form_of(j->coll);
  w->nsend = coll == RT_REDUCE_SCATTER ? n * j->count : j->count;
  w->nrecv = coll == RT_ALLGATHER ? n * j->count : j->count;
  w->fifo = calloc(n * n, sizeof *w->fifo);
  for (int r = 0; r < j->nranks; r++) {
    struct element *s = calloc(w->nsend + w->nrecv + 1, sizeof *s);
    w->send[r] = s;
    w->recv[r] = s + w->nsend;
    if (j->in_place) { /* as NCCL defines it for the two collectives with blocks */
      if (coll == RT_ALLGATHER) {
        w->recv[r] = s;
        w->send[r] = s + (uint64_t)who(j, r) * j->count;
      } else {
        w->recv[r] = coll == RT_REDUCE_SCATTER ? s + (uint64_t)who(j, r) * j->count : s;
      }
    }
    for (uint64_t i = 0; i < w->nsend; i++) w->send[r][i] = input(j, r, i);
  }
}

/* The links that are used must be so few, too; 0: any number. */
static void check_links(const struct world *w, int most) {
  const int n = w->job->nranks;
  for (int r = 0; most && r < n; r++) {
    int out = 0, in = 0;
    for (int other = 0; other < n; other++) out += !!w->fifo[r * n + other], in += !!w->fifo[other * n + r];
    CHECK_MSG(out <= most && in <= most, "%s: rank %d sends to %d ranks, receives from %d", text(w->job), r, out, in);
  }
}

static void run_job(const struct job *j) {
  static struct world w;
  w = (struct world){.job = j};
  make_buffers(&w);
  uint64_t part = (j->count + (uint64_t)j->parts - 1) / (uint64_t)j->parts;
  for (uint64_t lo = 0; lo < j->count; lo += part) run_part(&w, lo, j->count - lo < part ? j->count - lo : part);
  for (int r = 0; r < j->nranks; r++) {
    struct element *base = w.send[r] < w.recv[r] ? w.send[r] : w.recv[r];
    for (uint64_t i = 0; has_recv(j, r) && i < w.nrecv; i++) {
      struct element e = w.recv[r][i], want = output(j, r, i);
      CHECK_MSG(e.name == want.name && e.ranks == want.ranks && e.finished == want.finished &&
                    e.written == want.written,
                "%s: rank %d, element %llu is {%u, ranks %llx, finished %d, written %d}, expected {%u, %llx, %d, %d}",
                text(j), r, (unsigned long long)i, e.name, (unsigned long long)e.ranks, e.finished, e.written,
                want.name, (unsigned long long)want.ranks, want.finished, want.written);
    }
    free(base);
    CHECK_MSG(j->steps == 0 || w.time[r] <= j->steps, "%s: rank %d ends after %d steps", text(j), r, w.time[r]);
  }
  check_links(&w, j->steps);
  for (int i = 0; i < j->nranks * j->nranks; i++) free(w.fifo[i]);
  free(w.fifo);
}

/* Slots that a schedule needs at least: interleaved loops have 2n-1 steps under way when a rank wants to take one and
 * give one. */
static int least_depth(enum rt_coll coll, int n) { return coll == RT_ALLREDUCE && n > 1 && n <= 4 ? 2 * n : 2; }

static void all_shapes(enum rt_coll coll, bool roots) {
  for (int n = is_pat(coll) ? 2 : 1; n <= RING_RANKS; n++) {
    if (coll == RT_EXCHANGE && n & (n - 1)) continue;
    const uint64_t counts[] = {0, 1, 2, (uint64_t)n - 1, (uint64_t)n, (uint64_t)n + 1, 61, 64, 127, 1009};
    const uint64_t chunks[] = {1, 3, 16, 64, 100, 100000};
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++)
      for (size_t k = 0; k < sizeof chunks / sizeof chunks[0]; k++)
        for (int root = 0; root < (roots ? n : 1); root++)
          for (int variant = 0; variant < 6; variant++) {
            if (counts[c] > 200 && chunks[k] < 16) continue;
            if (is_pat(coll) && (c + k) % 2) continue; /* they are many */
            const size_t esizes[] = {1, 2, 4, 8, 8, 1};
            struct job j = {.coll = coll,
                            .nranks = n,
                            .root = root,
                            .depth = variant % 2 ? MAX_DEPTH : least_depth(coll, n),
                            .parts = variant % 3 + 1,
                            .tree = variant / 2 % 2,
                            .in_place = variant >= 3,
                            .esize = esizes[variant],
                            .count = counts[c],
                            .chunk = chunks[k]};
            run_job(&j);
          }
  }
}

TEST(allreduce) { all_shapes(RT_ALLREDUCE, false); }
TEST(tree) { all_shapes(RT_TREE, false); }
TEST(exchange) { all_shapes(RT_EXCHANGE, false); }
TEST(reduce_scatter) { all_shapes(RT_REDUCE_SCATTER, false); }
TEST(allgather) { all_shapes(RT_ALLGATHER, false); }
TEST(broadcast) { all_shapes(RT_BROADCAST, true); }
TEST(reduce) { all_shapes(RT_REDUCE, true); }

TEST(pat_allgather) { all_shapes(RT_PAT_ALLGATHER, false); }
TEST(pat_reduce_scatter) { all_shapes(RT_PAT_REDUCE_SCATTER, false); }
TEST(pat_broadcast) { all_shapes(RT_PAT_BROADCAST, true); }
TEST(pat_reduce) { all_shapes(RT_PAT_REDUCE, true); }

static void pat_of(int n, int root) {
  for (enum rt_coll coll = RT_PAT_ALLGATHER; coll <= RT_PAT_REDUCE; coll++) {
    struct job j = {.coll = coll, .nranks = n, .root = root, .depth = 1, .parts = 1, .esize = 4, .count = 3,
                    .chunk = 3 * (uint64_t)n, .steps = rt_sched_rounds(n)};
    run_job(&j);
  }
}

TEST(pat_takes_log2_steps_of_any_number_of_ranks) {
  for (int n = 2; n <= 40; n++)
    for (int root = 0; root < n; root += 1 + n / 3) pat_of(n, root);
  pat_of(129, 100);
  pat_of(MAX_RANKS, 333);
  for (int n = 1, log = 0; n <= 10000; n++) {
    log += n > 1 << log;
    CHECK_INT(rt_sched_rounds(n), log);
  }
}

TEST(exchange_takes_log2_steps_of_a_power_of_two_of_ranks) {
  for (int n = 2, rounds = 1; n <= 256; n *= 2, rounds++) {
    struct job j = {.coll = RT_EXCHANGE, .nranks = n, .depth = 1, .parts = 1, .esize = 4, .count = 3, .chunk = 3,
                    .steps = rounds};
    run_job(&j);
  }
}

/* A step holds as many of a round's elements as fit. */
TEST(pat_with_many_steps_a_round) {
  struct job j = {.nranks = 37, .root = 5, .depth = 1, .parts = 2, .esize = 4, .count = 19};
  for (enum rt_coll coll = RT_PAT_ALLGATHER; coll <= RT_PAT_REDUCE; coll++)
    for (j.chunk = 1; j.chunk <= 200; j.chunk = j.chunk * 3 + 1) {
      j.coll = coll;
      run_job(&j);
    }
}

TEST(any_order_of_ranks) {
  static const int order[] = {0, 3, 1, 4, 2};
  struct job j = {.nranks = 5, .depth = 2, .parts = 2, .esize = 4, .count = 61, .chunk = 16, .order = order};
  for (int coll = 0; coll <= RT_PAT_REDUCE; coll++)
    for (j.root = 0; j.root < 5 && (coll <= RT_REDUCE || is_pat((enum rt_coll)coll)); j.root++)
      for (int in_place = 0; in_place < 2; in_place++) {
        j.coll = (enum rt_coll)coll;
        j.in_place = in_place;
        run_job(&j);
      }
}

TEST(large_counts) {
  struct job j = {.nranks = 4, .depth = MAX_DEPTH, .parts = 3, .esize = 4, .count = 100003, .chunk = 4096};
  for (int coll = 0; coll <= RT_PAT_REDUCE; coll++) {
    j.coll = (enum rt_coll)coll;
    if (coll <= RT_REDUCE || coll == RT_EXCHANGE || is_pat(j.coll)) run_job(&j);
  }
}

/* Send and receive: as many steps of the same sizes on both ends; nothing is one step of nothing. */
TEST(point_to_point) {
  static char memory[1];
  const uint64_t counts[] = {0, 1, 7, 8, 9, 1009}, chunks[] = {1, 8, 1000};
  for (size_t c = 0; c < 6; c++)
    for (size_t k = 0; k < 3; k++) {
      struct rt_sched s = {.coll = RT_SEND,
                           .nranks = 2,
                           .rank = 0,
                           .root = 1,
                           .esize = 4,
                           .send = memory,
                           .count = counts[c],
                           .len = counts[c],
                           .chunk = chunks[k]};
      struct rt_sched r = {.coll = RT_RECV,
                           .nranks = 2,
                           .rank = 1,
                           .root = 0,
                           .esize = 4,
                           .recv = memory,
                           .count = counts[c],
                           .len = counts[c],
                           .chunk = chunks[k]};
      uint64_t n = rt_sched_actions(&s), sum = 0;
      CHECK_INT(rt_sched_actions(&r), n);
      CHECK(n >= 1);
      for (uint64_t i = 0; i < n; i++) {
        struct rt_action a, b;
        rt_sched_action(&s, i, &a);
        rt_sched_action(&r, i, &b);
        CHECK(a.send && !a.recv && b.recv && !b.send && !b.reduce);
        CHECK_INT(a.n, b.n);
        CHECK(a.src == memory + sum * 4 && b.dst == memory + sum * 4);
        sum += a.n;
      }
      CHECK_INT(sum, counts[c]);
    }
}

/* Past 2^31 and 2^32 elements nothing is cut short. */
TEST(huge_counts_add_up) {
  const uint64_t count = (1ull << 33) + 12345;
  for (int rank = 0; rank < 3; rank++) {
    struct rt_sched s = {.coll = RT_ALLREDUCE,
                         .nranks = 3,
                         .rank = rank,
                         .esize = 1,
                         .send = (const char *)(1ull << 40),
                         .recv = (char *)(1ull << 42),
                         .count = count,
                         .len = count,
                         .chunk = 1 << 19};
    uint64_t n = rt_sched_actions(&s), written = 0, end = 0;
    for (uint64_t i = 0; i < n; i++) {
      struct rt_action a;
      rt_sched_action(&s, i, &a);
      if (!a.dst) continue;
      written += a.n;
      uint64_t to = (uint64_t)(a.dst - s.recv) + a.n;
      if (to > end) end = to;
    }
    CHECK_INT(written, count);
    CHECK_INT(end, count);
  }
}

TEST_MAIN(TEST_CASE(allreduce), TEST_CASE(tree), TEST_CASE(exchange), TEST_CASE(reduce_scatter), TEST_CASE(allgather),
          TEST_CASE(broadcast), TEST_CASE(reduce), TEST_CASE(pat_allgather), TEST_CASE(pat_reduce_scatter),
          TEST_CASE(pat_broadcast), TEST_CASE(pat_reduce),
          TEST_CASE(exchange_takes_log2_steps_of_a_power_of_two_of_ranks),
          TEST_CASE(pat_takes_log2_steps_of_any_number_of_ranks),
          TEST_CASE(pat_with_many_steps_a_round), TEST_CASE(any_order_of_ranks), TEST_CASE(large_counts),
          TEST_CASE(point_to_point), TEST_CASE(huge_counts_add_up))
