/* SPDX-License-Identifier: Apache-2.0
 * Grouped receives: each send finds the buffer of its tag in the first unfinished group, sizes come in buffer order.
 * TEST-LIMIT: 60 */
#include "test/harness/program.h"

enum { ROOM = 8192, GROUPS = 8 };
static uint8_t out_buf[GROUPS][KIT_MAX_GROUP][ROOM], in_buf[GROUPS][KIT_MAX_GROUP][ROOM];

static int open_grouped(struct kit_net *n, struct kit_pair *p) {
  struct rail_net_props_v12 props;
  kit_net_open(n);
  CHECK_OK(n->vt->get_properties(n->dev, &props));
  if (props.max_recvs < 2) tap_skip_case("the plugin has no grouped receives");
  kit_pair_open(n, p);
  return props.max_recvs;
}

static uint64_t seed_of(int round, int group, int tag) {
  return (uint64_t)round * 10000 + (uint64_t)(group * 100 + tag);
}

/* One group of `count` buffers with the given tags, and its sends in the order `perm`.
 * ops[0] is the receive, ops[1…count] the sends. */
static void group_make(struct kit_pair *p, struct kit_op *ops, int round, int g, int count, const int *tags,
                       const int *perm, const size_t *size) {
  ops[0] = (struct kit_op){.kind = KIT_OP_RECV, .comm = p->recv, .n = count};
  for (int b = 0; b < count; b++) {
    ops[0].data[b] = in_buf[g][b];
    ops[0].size[b] = ROOM;
    ops[0].tag[b] = tags[b];
    memset(in_buf[g][b], 0xcc, ROOM);
    kit_pattern_fill(out_buf[g][b], size[b], seed_of(round, g, tags[b]));
  }
  for (int k = 0; k < count; k++) {
    int b = perm[k];
    ops[1 + k] = kit_op_send(p->send, out_buf[g][b], size[b], tags[b]);
  }
}

static void group_check(const struct kit_op *recv, int round, int g, const size_t *size) {
  for (int b = 0; b < recv->n; b++) {
    CHECK_MSG(recv->sizes[b] == (int)size[b], "group %d of %d: sizes[%d] is %d, sent %zu", g, recv->n, b,
              recv->sizes[b], size[b]);
    ssize_t wrong = kit_pattern_check(in_buf[g][b], size[b], seed_of(round, g, recv->tag[b]));
    CHECK_MSG(wrong < 0, "group %d of %d: buffer %d (tag %d) does not hold its message, byte %zd", g, recv->n, b,
              recv->tag[b], wrong);
    CHECK(kit_bytes_check(in_buf[g][b] + size[b], ROOM - size[b], 0xcc) < 0);
  }
}

static void identity(int *perm, int n) { for (int i = 0; i < n; i++) perm[i] = i; }

/* Like the tags NCCL uses: ranks, any numbers, different within a group. */
static void make_tags(struct kit_rng *rng, int *tags, int n) {
  for (int i = 0; i < n; i++) tags[i] = (int)(kit_rng_below(rng, 1000) * 8 + (uint32_t)i);
  kit_rng_shuffle(rng, tags, n);
}

TEST(every_count_every_rotation) {
  struct kit_net n;
  struct kit_pair p;
  int most = open_grouped(&n, &p), round = 0;
  for (int count = 1; count <= most; count++) {
    for (int turn = 0; turn < count; turn++, round++) {
      int tags[KIT_MAX_GROUP], perm[KIT_MAX_GROUP];
      size_t size[KIT_MAX_GROUP] = {0};
      struct kit_op ops[1 + KIT_MAX_GROUP];
      for (int b = 0; b < count; b++) {
        tags[b] = 40 + b;
        size[b] = (size_t)b * 1000 + (size_t)turn;
        perm[b] = (count - 1 - b + turn) % count;
      }
      group_make(&p, ops, round, 0, count, tags, perm, size);
      kit_ops_run(&n, ops, 1 + count, (struct kit_ops_how){0});
      group_check(&ops[0], round, 0, size);
    }
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(the_group_shrinks) { /* as members of a fused operation finish one by one */
  struct kit_net n;
  struct kit_pair p;
  struct kit_rng rng;
  int most = open_grouped(&n, &p);
  kit_rng_start(&rng);
  for (int round = 0; round < kit_scaled(20); round++) {
    struct kit_op ops[GROUPS * (1 + KIT_MAX_GROUP)];
    size_t size[GROUPS][KIT_MAX_GROUP];
    int tags[KIT_MAX_GROUP], at[GROUPS], nops = 0;
    make_tags(&rng, tags, most);
    for (int g = 0; g < GROUPS; g++) {
      int count = most - g < 1 ? 1 : most - g, perm[KIT_MAX_GROUP];
      identity(perm, count);
      kit_rng_shuffle(&rng, perm, count);
      for (int b = 0; b < count; b++) size[g][b] = kit_rng_below(&rng, ROOM + 1);
      at[g] = nops;
      group_make(&p, ops + nops, round, g, count, tags, perm, size[g]);
      nops += 1 + count;
    }
    kit_ops_run(&n, ops, nops, (struct kit_ops_how){.order = KIT_OPS_SHUFFLED, .rng = &rng});
    for (int g = 0; g < GROUPS; g++) group_check(&ops[at[g]], round, g, size[g]);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

/* All receives posted ahead of all sends; the same tags in every group, so only
 * "the first unfinished group" says which buffer is meant. */
TEST(same_tags_in_many_groups) {
  struct kit_net n;
  struct kit_pair p;
  struct kit_rng rng;
  int most = open_grouped(&n, &p);
  kit_rng_start(&rng);
  for (int round = 0; round < kit_scaled(30); round++) {
    struct kit_op made[1 + KIT_MAX_GROUP], ops[GROUPS * (1 + KIT_MAX_GROUP)];
    size_t size[GROUPS][KIT_MAX_GROUP];
    int tags[KIT_MAX_GROUP], nsend = 0;
    make_tags(&rng, tags, most);
    for (int g = 0; g < GROUPS; g++) {
      int perm[KIT_MAX_GROUP];
      identity(perm, most);
      kit_rng_shuffle(&rng, perm, most);
      for (int b = 0; b < most; b++) size[g][b] = kit_rng_below(&rng, 2000);
      group_make(&p, made, round, g, most, tags, perm, size[g]);
      ops[g] = made[0];
      memcpy(ops + GROUPS + nsend, made + 1, sizeof made[0] * (size_t)most);
      nsend += most;
    }
    kit_ops_run(&n, ops, GROUPS + nsend, (struct kit_ops_how){.order = KIT_OPS_SHUFFLED, .rng = &rng});
    for (int g = 0; g < GROUPS; g++) group_check(&ops[g], round, g, size[g]);
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(three_hundred_random_groups) {
  struct kit_net n;
  struct kit_pair p;
  struct kit_rng rng;
  int most = open_grouped(&n, &p);
  kit_rng_start(&rng);
  int left = kit_scaled(300);
  for (int round = 0; left > 0; round++) {
    struct kit_op ops[GROUPS * (1 + KIT_MAX_GROUP)];
    size_t size[GROUPS][KIT_MAX_GROUP];
    int at[GROUPS], nops = 0, groups = 1 + (int)kit_rng_below(&rng, GROUPS);
    for (int g = 0; g < groups; g++) {
      int count = 1 + (int)kit_rng_below(&rng, (uint32_t)most), perm[KIT_MAX_GROUP], tags[KIT_MAX_GROUP];
      make_tags(&rng, tags, count);
      identity(perm, count);
      kit_rng_shuffle(&rng, perm, count);
      for (int b = 0; b < count; b++) size[g][b] = kit_rng_below(&rng, 4) ? kit_rng_below(&rng, ROOM + 1) : 0;
      at[g] = nops;
      group_make(&p, ops + nops, round, g, count, tags, perm, size[g]);
      nops += 1 + count;
    }
    kit_ops_run(&n, ops, nops, (struct kit_ops_how){.order = (enum kit_ops_order)kit_rng_below(&rng, 3), .rng = &rng});
    for (int g = 0; g < groups; g++) group_check(&ops[at[g]], round, g, size[g]);
    left -= groups;
  }
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(a_large_and_a_small) { /* members of one group differ a thousandfold */
  struct kit_net n;
  struct kit_pair p;
  open_grouped(&n, &p);
  size_t big = (size_t)3 << 20;
  struct kit_guarded out = kit_guard_high(big), in = kit_guard_high(big);
  kit_pattern_fill(out.data, big, 1);
  uint8_t small_out[3] = {1, 2, 3}, small_in[3] = {0};
  for (int first = 0; first < 2; first++) {
    memset(in.data, 0, big);
    memset(small_in, 0, sizeof small_in);
    struct kit_op ops[3] = {{.kind = KIT_OP_RECV, .comm = p.recv, .n = 2}};
    ops[0].data[0] = in.data, ops[0].size[0] = big, ops[0].tag[0] = 9;
    ops[0].data[1] = small_in, ops[0].size[1] = sizeof small_in, ops[0].tag[1] = 3;
    ops[1 + first] = kit_op_send(p.send, out.data, big, 9);
    ops[2 - first] = kit_op_send(p.send, small_out, sizeof small_out, 3);
    kit_ops_run(&n, ops, 3, (struct kit_ops_how){0});
    CHECK_INT(ops[0].sizes[0], big);
    CHECK_INT(ops[0].sizes[1], 3);
    CHECK(kit_pattern_check(in.data, big, 1) < 0);
    CHECK(memcmp(small_in, small_out, 3) == 0);
  }
  kit_guard_free(&out);
  kit_guard_free(&in);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST_MAIN(TEST_CASE(every_count_every_rotation), TEST_CASE(the_group_shrinks), TEST_CASE(same_tags_in_many_groups),
          TEST_CASE(three_hundred_random_groups), TEST_CASE(a_large_and_a_small))
