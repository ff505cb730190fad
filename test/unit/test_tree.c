/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves: for every number of ranks from 1 to 64 both trees are trees over all ranks, as shallow as promised, and no
 * rank is inside both; and programs that go by them, or by the exchange, add up right over connections in plain memory:
 * all types and operators, both protocols, with and without proxies, in place and not, every rank with the same bits.
 */
#include "core/plan/rt_tree.h"

#include "core/host/rt_prims.h"
#include "core/host/rt_program.h"
#include "core/host/rt_reduce_copy.h"
#include "core/host/rt_types.h"
#include "test/device/link.h"
#include "test/harness/elements.h"
#include "test/harness/tap.h"

#define MAX_RANKS 64

/* ---- shapes ---- */

static int ranks_below(int tree, int rank, int n) {
  const struct rt_tree t = rt_tree_of(tree, rank, n);
  int sum = 1;
  for (int c = 0; c < 2; c++)
    if (t.child[c] >= 0) sum += ranks_below(tree, t.child[c], n);
  return sum;
}

static void check_edges(int tree, int rank, int n) {
  const struct rt_tree t = rt_tree_of(tree, rank, n);
  CHECK_MSG(t.depth <= rt_tree_depth(n), "tree %d of %d: rank %d is %d deep", tree, n, rank, t.depth);
  CHECK_MSG((t.parent < 0) == (t.depth == 0), "tree %d of %d: rank %d: parent %d, depth %d", tree, n, rank, t.parent,
            t.depth);
  CHECK_MSG(t.child[0] >= 0 || t.child[1] < 0, "tree %d of %d: rank %d has a second child only", tree, n, rank);
  for (int c = 0; c < 2; c++) {
    if (t.child[c] < 0) continue;
    const struct rt_tree below = rt_tree_of(tree, t.child[c], n);
    CHECK_MSG(t.child[c] < n && below.parent == rank && below.depth == t.depth + 1,
              "tree %d of %d: rank %d has child %d, whose parent is %d", tree, n, rank, t.child[c], below.parent);
  }
  if (t.child[1] >= 0)
    CHECK_MSG(ranks_below(tree, t.child[0], n) >= ranks_below(tree, t.child[1], n),
              "tree %d of %d: rank %d: more ranks below its second child", tree, n, rank);
  if (t.parent >= 0) {
    const struct rt_tree above = rt_tree_of(tree, t.parent, n);
    CHECK_MSG(above.child[0] == rank || above.child[1] == rank, "tree %d of %d: rank %d is no child of %d", tree, n,
              rank, t.parent);
  }
}

TEST(every_rank_is_in_both_trees_once) {
  for (int n = 1; n <= MAX_RANKS; n++)
    for (int tree = 0; tree < RT_TREES; tree++) {
      int root = -1;
      for (int r = 0; r < n; r++) {
        check_edges(tree, r, n);
        if (rt_tree_of(tree, r, n).parent >= 0) continue;
        CHECK_MSG(root < 0, "tree %d of %d has the roots %d and %d", tree, n, root, r);
        root = r;
      }
      CHECK(root >= 0);
      CHECK_INT(ranks_below(tree, root, n), n); /* so there is no circle beside it */
    }
}

TEST(nobody_is_inside_both) {
  for (int n = 2; n <= MAX_RANKS; n++)
    for (int r = 0; r < n; r++)
      CHECK_MSG(rt_tree_of(0, r, n).child[0] < 0 || rt_tree_of(1, r, n).child[0] < 0, "rank %d of %d", r, n);
}

TEST(depth_is_the_logarithm) {
  for (int n = 1, log2 = 0; n <= MAX_RANKS; n++) {
    log2 += n >= 2 << log2;
    CHECK_INT(rt_tree_depth(n), log2);
  }
}

/* ---- programs ---- */

#define PROGRAM_RANKS 9
#define SLOT 256u
#define POLLS 200000
#define MOST 700u /* elements */

struct shape {
  enum rt_coll coll; /* RT_TREE or RT_EXCHANGE */
  int n, tree, type, op;
  enum rt_proto proto;
  uint64_t count;
  bool proxied, in_place;
};

struct world {
  const struct shape *s;
  struct link *link[PROGRAM_RANKS][PROGRAM_RANKS]; /* from, to; where there is an edge */
  struct rt_program program[PROGRAM_RANKS];
  _Alignas(64) char in[PROGRAM_RANKS][8 * MOST], out[PROGRAM_RANKS][8 * MOST + 8];
};

static const char *text(const struct shape *s) {
  static char t[160];
  snprintf(t, sizeof t, "%s of %d ranks, tree %d, %s, op %d, %s, count %llu%s%s",
           s->coll == RT_TREE ? "tree" : "exchange", s->n, s->tree, rt_type_name(s->type), s->op,
           s->proto == RT_LL ? "LL" : "Simple", (unsigned long long)s->count, s->proxied ? ", proxied" : "",
           s->in_place ? ", in place" : "");
  return t;
}

static struct link *link_at(struct world *w, int from, int to) {
  if (w->link[from][to]) return w->link[from][to];
  struct link *l = w->link[from][to] = malloc(sizeof *l);
  link_init(l, aligned_alloc(128, link_bytes(SLOT, w->s->proxied)), SLOT, w->s->proxied, 0);
  return l;
}

/* Small numbers, whose sums and products all types hold exactly. */
static int input_of(const struct shape *s, int rank, uint64_t i) {
  const int x = (int)((i * 7 + (uint64_t)rank * 3) % 5);
  if (s->op == RT_PROD) return x == 0 && (uint64_t)rank == i % (uint64_t)s->n ? 2 : 1;
  return x % 2;
}

/* The independent reference, without a tree: PREMULSUM's factor is 2. */
static int expected(const struct shape *s, uint64_t i) {
  int sum = 0, prod = 1, max = 0, min = 9;
  for (int r = 0; r < s->n; r++) {
    const int x = input_of(s, r, i);
    sum += x;
    prod *= x;
    max = x > max ? x : max;
    min = x < min ? x : min;
  }
  switch (s->op) {
    case RT_SUM: return sum;
    case RT_PROD: return prod;
    case RT_MAX: return max;
    case RT_MIN: return min;
    case RT_AVG: return sum / s->n; /* of integers */
    default: return 2 * sum;
  }
}

static void connect(struct world *w, int r, int link, int peer) {
  w->program[r].recv[link] = &link_at(w, peer, r)->recv;
  w->program[r].send[link] = &link_at(w, r, peer)->send;
}

static void connect_exchange(struct world *w, int r) {
  for (int k = 0; k < rt_sched_rounds(w->s->n); k++) connect(w, r, k, r ^ 1 << k);
}

static void connect_tree(struct world *w, int r) {
  const struct rt_tree t = rt_tree_of(w->s->tree, r, w->s->n);
  const int peers[RT_PEERS] = {t.child[0], t.child[1], t.parent};
  for (int p = 0; p < RT_PEERS; p++)
    if (peers[p] >= 0) connect(w, r, p, peers[p]);
  w->program[r].sched.tree = (struct rt_tree_node){.children = (uint8_t)((t.child[0] >= 0) + (t.child[1] >= 0)),
                                                   .has_parent = t.parent >= 0,
                                                   .depth = (uint16_t)t.depth};
}

static void make_program(struct world *w, int r) {
  const struct shape *s = w->s;
  const size_t esize = rt_type_size(s->type);
  char two[8];
  struct rt_program *k = &w->program[r];
  memset(k, 0, sizeof *k);
  k->proto = s->proto;
  k->fns = rt_reduce_lookup(s->type, s->op);
  element_put(two, s->type, 2);
  if (s->op == RT_AVG) rt_scalar_avg(&k->scalar, s->type, s->n);
  if (s->op == RT_PREMULSUM) rt_scalar_premul(&k->scalar, s->type, two);
  k->sched = (struct rt_sched){.coll = s->coll,
                               .rank = r,
                               .nranks = s->n,
                               .esize = esize,
                               .send = s->in_place ? w->out[r] : w->in[r],
                               .recv = w->out[r],
                               .count = s->count,
                               .len = s->count,
                               .chunk = rt_proto_payload(s->proto, SLOT) / esize};
  if (s->coll == RT_EXCHANGE)
    connect_exchange(w, r);
  else
    connect_tree(w, r);
  rt_program_init(k);
}

static void move_all(struct world *w) {
  for (int from = 0; from < w->s->n; from++)
    for (int to = 0; to < w->s->n; to++) {
      struct link *l = w->link[from][to];
      if (!l) continue;
      link_move(l, w->s->proto);
      CHECK_MSG(!l->broken, "%s: %s", text(w->s), l->broken);
    }
}

static void poll_all(struct world *w) {
  bool done[PROGRAM_RANKS] = {0};
  for (int left = w->s->n, polls = 0; left > 0; polls++) {
    CHECK_MSG(polls < POLLS, "%s: no end", text(w->s));
    for (int r = 0; r < w->s->n; r++) {
      if (done[r]) continue;
      const enum rt_program_state state = rt_program_poll(&w->program[r]);
      CHECK_MSG(state != RT_PROGRAM_MISMATCH, "%s: rank %d: a mismatch", text(w->s), r);
      if (state == RT_PROGRAM_DONE) done[r] = true, left--;
    }
    move_all(w);
  }
}

static void close_links(struct world *w) {
  for (int from = 0; from < w->s->n; from++)
    for (int to = 0; to < w->s->n; to++) {
      struct link *l = w->link[from][to];
      if (!l) continue;
      CHECK_MSG(!l->proxied || l->recv.granted == l->recv.step, "%s: a step was granted that nobody sends", text(w->s));
      free(l->at_send.buff[0]);
      free(l);
    }
}

static void run_shape(const struct shape *s) {
  struct world *w = aligned_alloc(64, (sizeof *w + 63) / 64 * 64);
  const size_t esize = rt_type_size(s->type), bytes = (size_t)s->count * esize;
  memset(w, 0, sizeof *w);
  w->s = s;
  for (int r = 0; r < s->n; r++) {
    for (uint64_t i = 0; i < s->count; i++) {
      element_put(w->in[r] + i * esize, s->type, input_of(s, r, i));
      if (s->in_place) element_put(w->out[r] + i * esize, s->type, input_of(s, r, i));
    }
    memset(w->out[r] + bytes, 0x5a, 8);
  }
  for (int again = 0; again < 1 + !s->in_place; again++) { /* counters go on from call to call */
    for (int r = 0; r < s->n; r++) make_program(w, r);
    poll_all(w);
  }
  for (int r = 0; r < s->n; r++) {
    for (uint64_t i = 0; i < s->count && !(s->op == RT_AVG && !rt_type_is_integer(s->type)); i++) {
      char want[8];
      element_put(want, s->type, expected(s, i));
      CHECK_MSG(memcmp(w->out[r] + i * esize, want, esize) == 0, "%s: rank %d, element %llu: %#llx", text(s), r,
                (unsigned long long)i, (unsigned long long)element_bits(w->out[r] + i * esize, s->type));
    }
    CHECK_MSG(memcmp(w->out[r], w->out[0], bytes) == 0, "%s: ranks 0 and %d differ", text(s), r);
    for (int i = 0; i < 8; i++) CHECK_MSG(w->out[r][bytes + (size_t)i] == 0x5a, "%s: beyond the end", text(s));
  }
  close_links(w);
  free(w);
}

static bool is_possible(enum rt_coll coll, int n) { return coll == RT_TREE || (n & (n - 1)) == 0; }

static void add_up(enum rt_coll coll) {
  const uint64_t counts[] = {0, 1, 2, 31, 33, 64, 129, MOST};
  for (int n = 1; n <= PROGRAM_RANKS; n++)
    for (size_t c = 0; is_possible(coll, n) && c < sizeof counts / sizeof *counts; c++)
      for (int how = 0; how < 16; how++)
        run_shape(&(struct shape){.coll = coll,
                                  .n = n,
                                  .tree = how & 1,
                                  .type = RT_INT32,
                                  .op = RT_SUM,
                                  .proto = how & 2 ? RT_LL : RT_SIMPLE,
                                  .count = counts[c],
                                  .proxied = how & 4,
                                  .in_place = how & 8});
}
TEST(trees_add_up) { add_up(RT_TREE); }
TEST(exchanges_add_up) { add_up(RT_EXCHANGE); }

static void all_types(enum rt_coll coll) {
  for (int type = 0; type < RT_TYPE_COUNT; type++)
    for (int op = 0; op < RT_OP_COUNT; op++)
      for (int n = 2; n <= 8; n++) {
        if (!is_possible(coll, n)) continue;
        run_shape(&(struct shape){.coll = coll,
                                  .n = n,
                                  .tree = (type + op + n) % 2,
                                  .type = type,
                                  .op = op,
                                  .proto = (op + n) % 2 ? RT_LL : RT_SIMPLE,
                                  .count = 61,
                                  .proxied = n % 3 == 0 || n == 4,
                                  .in_place = (type + n) % 2});
      }
}
TEST(types_and_operators_of_trees) { all_types(RT_TREE); }
TEST(types_and_operators_of_exchanges) { all_types(RT_EXCHANGE); }

TEST_MAIN(TEST_CASE(every_rank_is_in_both_trees_once), TEST_CASE(nobody_is_inside_both),
          TEST_CASE(depth_is_the_logarithm), TEST_CASE(trees_add_up), TEST_CASE(exchanges_add_up),
          TEST_CASE(types_and_operators_of_trees), TEST_CASE(types_and_operators_of_exchanges))
