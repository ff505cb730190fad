/* SPDX-License-Identifier: Apache-2.0
 * Grouped receives: each send finds the buffer of its tag in the first unfinished group, sizes come in buffer order. */
#include <sched.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"

enum { ROOM = 8192, GROUPS = 8, GROUP_OPS = 1 + KIT_MAX_GROUP };

/* ---- groups that follow from tags, an order of sending and sizes ---- */

struct group {
  int n, tag[KIT_MAX_GROUP], order[KIT_MAX_GROUP]; /* order: which buffer the k-th send is for */
  size_t size[KIT_MAX_GROUP];
  uint64_t seed;
};

struct groups {
  struct kit_conn conn;
  uint8_t *out, *in; /* GROUPS × KIT_MAX_GROUP × ROOM */
};

static void groups_open(struct groups *g, struct kit_process *self) {
  kit_conn_open(&g->conn, self);
  kit_conn_needs_groups(&g->conn);
  g->out = kit_conn_high(&g->conn, GROUPS * KIT_MAX_GROUP * ROOM);
  g->in = kit_conn_high(&g->conn, GROUPS * KIT_MAX_GROUP * ROOM);
}

static uint8_t *buffer(uint8_t *base, int which, int b) { return base + (which * KIT_MAX_GROUP + b) * ROOM; }

/* Like the tags NCCL uses: ranks, any numbers, different within a group. */
static void random_tags(struct kit_rng *rng, int *tags, int n) {
  for (int i = 0; i < n; i++) tags[i] = (int)(kit_rng_below(rng, 10000) * 8 + (uint32_t)i);
  kit_rng_shuffle(rng, tags, n);
}

/* n buffers; the tags of `tags`, or random ones; any order of sending; sizes below `most`, some 0. */
static struct group group_random(struct kit_rng *rng, int n, const int *tags, uint32_t most) {
  struct group g = {.n = n, .seed = kit_rng_next(rng)};
  if (tags) memcpy(g.tag, tags, sizeof g.tag[0] * (size_t)n);
  else random_tags(rng, g.tag, n);
  for (int b = 0; b < n; b++) {
    g.order[b] = b;
    g.size[b] = kit_rng_below(rng, 5) ? kit_rng_below(rng, most) : 0;
  }
  kit_rng_shuffle(rng, g.order, n);
  return g;
}

/* Its receive, and its n sends. Returns n. */
static int group_make(const struct groups *all, const struct group *g, int which, struct kit_op *recv,
                      struct kit_op *send) {
  *recv = kit_conn_group(&all->conn);
  for (int b = 0; b < g->n; b++) {
    uint8_t *in = buffer(all->in, which, b);
    kit_conn_add(&all->conn, recv, in, ROOM, g->tag[b]);
    memset(in, 0xcc, ROOM);
  }
  for (int k = 0; k < g->n; k++) {
    int b = g->order[k];
    uint8_t *out = buffer(all->out, which, b);
    kit_pattern_fill(out, g->size[b], g->seed + (uint64_t)b);
    send[k] = kit_conn_send(&all->conn, out, g->size[b], g->tag[b]);
  }
  return g->n;
}

static void group_check(const struct groups *all, const struct group *g, int which, const struct kit_op *recv) {
  for (int b = 0; all->conn.receives && b < g->n; b++) {
    ENSURE(recv->sizes[b] == (int)g->size[b], "receive %d of %d buffers: sizes[%d] is %d, %zu bytes were sent with its "
           "tag %d: sizes come in the order of irecv's buffers", which, g->n, b, recv->sizes[b], g->size[b], g->tag[b]);
    ssize_t wrong = kit_pattern_check(recv->data[b], g->size[b], g->seed + (uint64_t)b);
    ENSURE(wrong < 0, "receive %d of %d buffers: buffer %d does not hold the message with its tag %d (%zu bytes, from "
           "byte %zd): the first unfinished receive's tags choose the buffer", which, g->n, b, g->tag[b], g->size[b],
           wrong);
    wrong = kit_bytes_check((uint8_t *)recv->data[b] + g->size[b], ROOM - g->size[b], 0xcc);
    ENSURE(wrong < 0, "receive %d of %d buffers: byte %zd behind the message of buffer %d was written", which, g->n,
           wrong, b);
  }
}

/* `count` groups, each receive followed by its sends, or all receives first. */
static void groups_run(struct groups *all, const struct group *g, int count, bool receives_first,
                       enum kit_ops_order order) {
  struct kit_op ops[GROUPS * GROUP_OPS];
  int at[GROUPS], n = receives_first ? count : 0;
  for (int i = 0; i < count; i++) {
    at[i] = receives_first ? i : n++;
    n += group_make(all, &g[i], i, &ops[at[i]], &ops[n]);
  }
  kit_conn_run(&all->conn, ops, n, order);
  for (int i = 0; i < count; i++) group_check(all, &g[i], i, &ops[at[i]]);
}

/* ---- the checks ---- */

static void every_count_every_rotation(struct kit_process *self) {
  static struct groups all;
  groups_open(&all, self);
  for (int count = 1; count <= all.conn.max_recvs; count++) {
    for (int turn = 0; turn < count; turn++) {
      struct group g = {.n = count, .seed = (uint64_t)count * 100 + (uint64_t)turn};
      for (int b = 0; b < count; b++) {
        g.tag[b] = 40 + b;
        g.size[b] = (size_t)b * 1000 + (size_t)turn;
        g.order[b] = (count - 1 - b + turn) % count;
      }
      groups_run(&all, &g, 1, true, KIT_OPS_OLDEST);
    }
  }
  kit_conn_close(&all.conn);
}

/* Every order of sending, of up to 4 buffers. */
static void permute(struct groups *all, struct group *g, int fixed) {
  if (fixed == g->n) {
    g->seed++;
    groups_run(all, g, 1, true, KIT_OPS_OLDEST);
    return;
  }
  for (int i = fixed; i < g->n; i++) {
    int t = g->order[fixed];
    g->order[fixed] = g->order[i];
    g->order[i] = t;
    permute(all, g, fixed + 1);
    g->order[i] = g->order[fixed];
    g->order[fixed] = t;
  }
}

static void every_order_of_tags(struct kit_process *self) {
  static struct groups all;
  groups_open(&all, self);
  int n = all.conn.max_recvs < 4 ? all.conn.max_recvs : 4;
  struct group g = {.n = n, .tag = {131071, 0, 7, 1000000}, .order = {0, 1, 2, 3}, .size = {1, 4096, 0, 700}};
  permute(&all, &g, 0);
  kit_conn_close(&all.conn);
}

static void the_group_shrinks(struct kit_process *self) { /* as members of a fused operation finish one by one */
  static struct groups all;
  struct group g[GROUPS];
  groups_open(&all, self);
  for (int round = 0; round < kit_scaled(20); round++) {
    int tags[KIT_MAX_GROUP], most = all.conn.max_recvs;
    random_tags(&all.conn.rng, tags, most);
    for (int i = 0; i < GROUPS; i++) g[i] = group_random(&all.conn.rng, most - i < 1 ? 1 : most - i, tags, ROOM + 1);
    groups_run(&all, g, GROUPS, false, KIT_OPS_OLDEST);
  }
  kit_conn_close(&all.conn);
}

/* All receives posted ahead of all sends; one set of tags in every group, so "the first unfinished group" decides which
 * buffer is meant. */
static void same_tags_in_many_groups(struct kit_process *self) {
  static struct groups all;
  struct group g[GROUPS];
  groups_open(&all, self);
  for (int round = 0; round < kit_scaled(30); round++) {
    int tags[KIT_MAX_GROUP];
    random_tags(&all.conn.rng, tags, all.conn.max_recvs);
    for (int i = 0; i < GROUPS; i++) g[i] = group_random(&all.conn.rng, all.conn.max_recvs, tags, 2000);
    groups_run(&all, g, GROUPS, true, KIT_OPS_SHUFFLED);
  }
  kit_conn_close(&all.conn);
}

static void three_hundred_random_groups(struct kit_process *self) {
  static struct groups all;
  struct group g[GROUPS];
  groups_open(&all, self);
  for (int left = kit_scaled(300); left > 0;) {
    int count = 1 + (int)kit_rng_below(&all.conn.rng, GROUPS);
    for (int i = 0; i < count; i++)
      g[i] = group_random(&all.conn.rng, 1 + (int)kit_rng_below(&all.conn.rng, (uint32_t)all.conn.max_recvs), NULL,
                          ROOM + 1);
    groups_run(&all, g, count, false, (enum kit_ops_order)kit_rng_below(&all.conn.rng, 4));
    left -= count;
  }
  kit_conn_close(&all.conn);
}

static void a_large_and_a_small(struct kit_process *self) { /* members of one group differ a millionfold */
  static const uint8_t small[3] = {'a', 'b', 'c'};
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  kit_conn_needs_groups(&conn);
  size_t big = (size_t)3 << 20;
  uint8_t *out = kit_conn_high(&conn, big), *in = kit_conn_high(&conn, big);
  uint8_t *small_out = kit_conn_high(&conn, 3), *small_in = kit_conn_high(&conn, 3);
  kit_pattern_fill(out, big, 1);
  memcpy(small_out, small, 3);
  for (int first = 0; first < 2; first++) {
    memset(in, 0, big);
    memset(small_in, 0, 3);
    struct kit_op ops[3] = {kit_conn_group(&conn)};
    kit_conn_add(&conn, &ops[0], in, big, 9);
    kit_conn_add(&conn, &ops[0], small_in, 3, 3);
    ops[1 + first] = kit_conn_send(&conn, out, big, 9);
    ops[2 - first] = kit_conn_send(&conn, small_out, 3, 3);
    kit_conn_run(&conn, ops, 3, KIT_OPS_OLDEST);
    if (!conn.receives) continue;
    ENSURE(ops[0].sizes[0] == (int)big && ops[0].sizes[1] == 3, "sizes are %d and %d, sent %zu and 3", ops[0].sizes[0],
           ops[0].sizes[1], big);
    ENSURE(kit_pattern_check(in, big, 1) < 0 && memcmp(small_in, small, 3) == 0,
           "3 MiB and 3 bytes of one group arrived wrong, the %s sent first", first ? "3 bytes" : "3 MiB");
  }
  kit_conn_close(&conn);
}

/* Done means all of it: one request for all n buffers. */
static void done_when_all_have_come(struct kit_process *self) {
  struct kit_conn conn;
  kit_conn_open(&conn, self);
  kit_conn_needs_groups(&conn);
  int n = conn.max_recvs;
  uint8_t *out = kit_conn_high(&conn, 1000), *in = kit_conn_high(&conn, (size_t)n * 1000);
  kit_pattern_fill(out, 1000, 3);
  for (int late = 0; late < n; late++) {
    struct kit_op ops[GROUP_OPS] = {kit_conn_group(&conn)};
    memset(in, 0, (size_t)n * 1000);
    for (int b = 0; b < n; b++) kit_conn_add(&conn, &ops[0], in + b * 1000, 1000, b);
    for (int b = 0; b < n; b++)
      ops[1 + (b < late ? b : b == late ? n - 1 : b - 1)] = kit_conn_send(&conn, out, 1000, b);
    uint64_t until = rail_deadline_in_ms(20);
    while (!rail_deadline_passed(until)) { /* all but the one of tag `late` */
      for (int i = 0; i < n; i++) {
        if (ops[i].done) continue;
        bool over = ops[i].req ? kit_op_test(conn.net, &ops[i]) : (kit_op_post(conn.net, &ops[i]), false);
        ENSURE(!ops[i].error, "%s ended with error %s", i ? "a send" : "the receive", kit_rc_text(ops[i].error));
        ENSURE(i > 0 || !over, "a receive of %d buffers is done though the send with tag %d was not posted yet", n,
             late);
      }
    }
    kit_conn_run(&conn, ops, 1 + n, KIT_OPS_FORWARD);
    for (int b = 0; b < n; b++)
      ENSURE(ops[0].sizes[b] == 1000 && kit_pattern_check(in + b * 1000, 1000, 3) < 0,
             "buffer %d of %d arrived wrong (%d bytes), the send with tag %d being late", b, n, ops[0].sizes[b], late);
  }
  kit_conn_close(&conn);
}

/* ---- operations that share a comm, as behind PXN ---- */

enum { SUBS = KIT_MAX_GROUP, STEPS = 40, DEPTH = 2 }; /* DEPTH: NCCL's 16 / nsubs, of 8 subs */

struct shared {
  struct kit_conn conn;
  int subs, steps[SUBS], posted[SUBS], done[SUBS]; /* sender: of each sub */
  struct kit_op op[SUBS][DEPTH];
  uint8_t *out, *in; /* SUBS × DEPTH × ROOM */
};

static uint64_t shared_seed(int sub, int step) { return (uint64_t)sub * 1000 + (uint64_t)step; }

static size_t shared_size(const struct shared *s, int sub, int step) {
  struct kit_rng rng = {.state = kit_process_job(s->conn.self)->seed + shared_seed(sub, step)};
  return kit_rng_below(&rng, 6) ? kit_rng_below(&rng, ROOM) : 0;
}

static uint8_t *shared_place(uint8_t *base, int sub, int step) { return base + (sub * DEPTH + step % DEPTH) * ROOM; }

/* A turn of one sub: its own oldest request is tested, its next step posted. Subs do not wait for each other. */
static bool sub_turn(struct shared *s, int sub) {
  bool moved = false;
  if (s->done[sub] < s->posted[sub]) {
    struct kit_op *op = &s->op[sub][s->done[sub] % DEPTH];
    if (kit_op_test(s->conn.net, op)) {
      s->done[sub]++;
      moved = true;
    }
    ENSURE(!op->error, "the send of step %d with tag %d ended with error %s", s->done[sub], 100 + sub,
           kit_rc_text(op->error));
  }
  if (s->posted[sub] < s->steps[sub] && s->posted[sub] < s->done[sub] + DEPTH) {
    int step = s->posted[sub];
    struct kit_op *op = &s->op[sub][step % DEPTH];
    uint8_t *out = shared_place(s->out, sub, step);
    kit_pattern_fill(out, shared_size(s, sub, step), shared_seed(sub, step));
    *op = kit_conn_send(&s->conn, out, shared_size(s, sub, step), 100 + sub);
    if (kit_op_post(s->conn.net, op)) {
      s->posted[sub]++;
      moved = true;
    }
    ENSURE(!op->error, "isend of step %d with tag %d returned %s: with no place in the first unfinished receive it "
           "gives NULL and is repeated", step, 100 + sub, kit_rc_text(op->error));
  }
  return moved;
}

static void shared_send(struct shared *s) {
  uint64_t idle = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  for (int left = 1; left > 0;) {
    bool moved = false;
    left = 0;
    for (int i = 0; i < 2 * s->subs; i++) moved |= sub_turn(s, (int)kit_rng_below(&s->conn.own_rng, (uint32_t)s->subs));
    for (int sub = 0; sub < s->subs; sub++) left += s->steps[sub] - s->done[sub];
    if (moved) idle = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    ENSURE(!rail_deadline_passed(idle), "%d sends of %d operations on one comm get nowhere", left, s->subs);
    sched_yield();
  }
}

/* The receive of step `step`: a buffer for each sub that has so many. */
static struct kit_op shared_group(const struct shared *s, int step) {
  struct kit_op op = kit_conn_group(&s->conn);
  for (int sub = 0; sub < s->subs; sub++)
    if (step < s->steps[sub]) kit_conn_add(&s->conn, &op, shared_place(s->in, sub, step), ROOM, 100 + sub);
  return op;
}

static void shared_arrived(const struct shared *s, const struct kit_op *op, int step) {
  for (int b = 0; b < op->n; b++) {
    int sub = op->tag[b] - 100;
    size_t size = shared_size(s, sub, step);
    ENSURE(op->sizes[b] == (int)size && kit_pattern_check(op->data[b], size, shared_seed(sub, step)) < 0,
           "step %d of the operation with tag %d arrived wrong: %d bytes, sent %zu; %d of %d operations on this comm "
           "are still running", step, op->tag[b], op->sizes[b], size, op->n, s->subs);
  }
}

static void shared_receive(struct shared *s) {
  struct kit_op ring[DEPTH];
  int last = 0, posted = 0;
  for (int sub = 0; sub < s->subs; sub++) last = s->steps[sub] > last ? s->steps[sub] : last;
  for (int done = 0; done < last; done++) {
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
    struct kit_op *oldest = &ring[done % DEPTH];
    do {
      if (posted < last && posted < done + DEPTH) {
        struct kit_op *op = &ring[posted % DEPTH];
        *op = shared_group(s, posted);
        posted += kit_op_post(s->conn.net, op);
        ENSURE(!op->error, "irecv of %d buffers returned %s", op->n, kit_rc_text(op->error));
      }
      if (posted > done) kit_op_test(s->conn.net, oldest);
      ENSURE(posted == done || !oldest->error, "receive %d ended with error %s", done, kit_rc_text(oldest->error));
      ENSURE(!rail_deadline_passed(deadline), "receive %d of %d is not done at the deadline", done, last);
      sched_yield();
    } while (posted == done || !oldest->done);
    shared_arrived(s, oldest, done);
  }
}

static void operations_share_a_comm(struct kit_process *self) {
  static struct shared s;
  kit_conn_open(&s.conn, self);
  kit_conn_needs_groups(&s.conn);
  s.subs = s.conn.max_recvs;
  s.out = kit_conn_high(&s.conn, SUBS * DEPTH * ROOM);
  s.in = kit_conn_high(&s.conn, SUBS * DEPTH * ROOM);
  for (int round = 0; round < kit_scaled(10); round++) {
    for (int sub = 0; sub < s.subs; sub++) {
      s.posted[sub] = s.done[sub] = 0;
      s.steps[sub] = 1 + (int)kit_rng_below(&s.conn.rng, STEPS);
    }
    if (s.conn.sends) shared_send(&s);
    else shared_receive(&s);
  }
  kit_conn_close(&s.conn);
}

#define NET "src/transport/net.cc:"
#define README "plugins/net/README.md:399-402; "

const struct kit_check kit_checks_grouped[] = {
    {"8.20", "grouped.every_count_every_rotation", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "Receives of 1 to maxRecvs buffers, sends in every rotation: tags find the buffers, sizes come in buffer "
             "order.",
     .source = README NET "1477-1592", .run = every_count_every_rotation},
    {"8.21", "grouped.every_order_of_tags", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "The sends of a group may come in any order; tags are any ranks.",
     .source = README NET "1414, 1575", .run = every_order_of_tags},
    {"8.22", "grouped.done_when_all_have_come", KIT_MUST, KIT_ONE, .limit_s = 40,
     .what = "A grouped receive is one request: done when the last of its messages is there.",
     .source = NET "1617-1641", .run = done_when_all_have_come},
    {"8.23", "grouped.the_group_shrinks", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "From one receive to the next the group loses members, as operations finish.",
     .source = NET "1528-1580", .run = the_group_shrinks},
    {"8.24", "grouped.same_tags_in_many_groups", KIT_MUST, KIT_ONE, .limit_s = 40,
     .what = "With several receives outstanding a tag means the first unfinished one that has it.",
     .source = README NET "1477-1513", .run = same_tags_in_many_groups},
    {"8.25", "grouped.three_hundred_random_groups", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "Random groups, tags, orders and sizes.",
     .source = README NET "1477-1592", .run = three_hundred_random_groups},
    {"8.26", "grouped.a_large_and_a_small", KIT_MUST, KIT_TWO, .limit_s = 40,
     .what = "3 MiB and 3 bytes fit in one group, whichever is sent first.",
     .source = NET "1567, 1572", .run = a_large_and_a_small},
    {"8.27", "grouped.operations_share_a_comm", KIT_MUST, KIT_TWO, .limit_s = 60,
     .what = "Up to maxRecvs operations send over one comm, each at its own pace and some a step ahead of the others.",
     .source = NET "862-878, 1048-1065, 1323, 1519", .run = operations_share_a_comm},
    {0},
};
