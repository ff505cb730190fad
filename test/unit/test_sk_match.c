/* SPDX-License-Identifier: Apache-2.0
 * The matching rule of the socket plugin: per tag, first come first served,
 * whatever else waits in the table; and that two sides which see the same two
 * sequences pair them alike. */
#include "plugin/socket/sk_match.h"

#include "common/base/compiler.h"
#include "test/harness/tap.h"

struct item { struct sk_match_node node; int number; };

static struct item *take(struct sk_match *m, uint32_t tag) {
  struct sk_match_node *n = sk_match_take(m, tag);
  return n ? rail_container_of(n, struct item, node) : NULL;
}

TEST(empty) {
  struct sk_match m;
  sk_match_init(&m);
  CHECK(!sk_match_take(&m, 0));
  CHECK(!sk_match_take(&m, 0xffffffffu));
  CHECK(!sk_match_next(&m, 0, NULL));
  CHECK_INT(m.count, 0);
}

TEST(one_tag_is_a_queue) {
  struct sk_match m;
  struct item items[100];
  sk_match_init(&m);
  for (int i = 0; i < 100; i++) {
    items[i] = (struct item){.node.tag = 7, .number = i};
    sk_match_put(&m, &items[i].node);
  }
  CHECK_INT(m.count, 100);
  for (int i = 0; i < 100; i++) CHECK_INT(take(&m, 7)->number, i);
  CHECK(!take(&m, 7));
  CHECK_INT(m.count, 0);
}

/* Tags that share a bucket, and the ends of the queue taken out in each way. */
TEST(tags_of_one_bucket) {
  enum { A = 3, B = 3 + SK_MATCH_BUCKETS, C = 3 + 2 * SK_MATCH_BUCKETS };
  static const uint32_t tags[] = {A, B, C, B, A, C};
  struct sk_match m;
  struct item items[6];
  sk_match_init(&m);
  for (int i = 0; i < 6; i++) {
    items[i] = (struct item){.node.tag = tags[i], .number = i};
    sk_match_put(&m, &items[i].node);
  }
  CHECK(!take(&m, 3 + 3 * SK_MATCH_BUCKETS));
  CHECK_INT(take(&m, C)->number, 2);
  CHECK_INT(take(&m, C)->number, 5); /* the last one of the bucket: appending must still work */
  items[5].number = 50;
  sk_match_put(&m, &items[5].node);
  CHECK_INT(take(&m, A)->number, 0);
  CHECK_INT(take(&m, B)->number, 1);
  CHECK_INT(take(&m, B)->number, 3);
  CHECK_INT(take(&m, A)->number, 4);
  CHECK_INT(take(&m, C)->number, 50);
  CHECK_INT(m.count, 0);
}

TEST(walk) {
  struct sk_match m;
  struct item items[6];
  int expect = 0;
  sk_match_init(&m);
  for (int i = 0; i < 6; i++) {
    items[i] = (struct item){.node.tag = (i & 1) ? 5u : 5u + SK_MATCH_BUCKETS, .number = i};
    sk_match_put(&m, &items[i].node);
  }
  for (struct sk_match_node *n = sk_match_next(&m, 5, NULL); n; n = sk_match_next(&m, 5, n)) {
    CHECK_INT(rail_container_of(n, struct item, node)->number, 2 * expect + 1);
    expect++;
  }
  CHECK_INT(expect, 3);
}

/* One side of a connection: pairs its own things with the other's, in the order it learns of them. */
struct side { struct sk_match mine, theirs; int pair_of_mine[1000]; };

static void learn(struct side *s, struct item *it, bool own) {
  struct item *other = take(own ? &s->theirs : &s->mine, it->node.tag);
  if (!other) sk_match_put(own ? &s->mine : &s->theirs, &it->node);
  else if (own) s->pair_of_mine[it->number] = other->number;
  else s->pair_of_mine[other->number] = it->number;
}

TEST(both_sides_agree) {
  enum { N = 1000 };
  static struct item send_a[N], slot_a[N], send_b[N], slot_b[N];
  static struct side a, b; /* a sends, b receives */
  uint32_t x = 12345;
  for (int round = 0; round < 50; round++) {
    int counts_a[2] = {0, 0}, counts_b[2] = {0, 0}, tags[2][N];
    for (int i = 0; i < N; i++) { /* the same tags on both sides, each in its own order */
      x = x * 1664525 + 1013904223;
      tags[0][i] = tags[1][i] = (int)((x >> 16) % 40) * 8;
    }
    for (int i = N - 1; i > 0; i--) {
      x = x * 1664525 + 1013904223;
      int k = (int)((x >> 8) % (uint32_t)(i + 1)), t = tags[1][i];
      tags[1][i] = tags[1][k];
      tags[1][k] = t;
    }
    sk_match_init(&a.mine), sk_match_init(&a.theirs), sk_match_init(&b.mine), sk_match_init(&b.theirs);
    for (int i = 0; i < N; i++) {
      send_a[i] = send_b[i] = (struct item){.node.tag = (uint32_t)tags[0][i], .number = i};
      slot_a[i] = slot_b[i] = (struct item){.node.tag = (uint32_t)tags[1][i], .number = i};
    }
    /* Each side sees the two sequences interleaved differently. */
    while (counts_a[0] + counts_a[1] < 2 * N) {
      x = x * 1664525 + 1013904223;
      int w = counts_a[0] == N ? 1 : counts_a[1] == N ? 0 : (int)(x >> 31);
      learn(&a, w ? &slot_a[counts_a[1]] : &send_a[counts_a[0]], !w);
      counts_a[w]++;
    }
    while (counts_b[0] + counts_b[1] < 2 * N) {
      x = x * 1664525 + 1013904223;
      int w = counts_b[0] == N ? 1 : counts_b[1] == N ? 0 : (int)(x >> 31);
      learn(&b, w ? &slot_b[counts_b[1]] : &send_b[counts_b[0]], w);
      counts_b[w]++;
    }
    for (int i = 0; i < N; i++) CHECK_INT(b.pair_of_mine[a.pair_of_mine[i]], i);
  }
}

TEST_MAIN(TEST_CASE(empty), TEST_CASE(one_tag_is_a_queue), TEST_CASE(tags_of_one_bucket), TEST_CASE(walk),
          TEST_CASE(both_sides_agree))
