/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * Proves: both ends of a pair, and so both its directions, are of one round; every pair has one; an all-to-all of 2 to
 * 600 ranks has no round of more blocks than there is room for, and none that is empty; what fits is not cut. */
#include "core/plan/rt_round.h"

#include <string.h>

#include "test/harness/tap.h"

#define MOST 600
#define LEAST_ROOM 5 /* for two to send to, two to receive from, and a copy */

/* Blocks of each round of an all-to-all, as `rank` has them. */
static void count_blocks(int rank, int n, int width, int *blocks) {
  int nrounds = rt_round_count(n, width);
  memset(blocks, 0, MOST * sizeof *blocks);
  for (int peer = 0; peer < n; peer++) {
    int round = rt_round_of(rank, peer, n, width);
    CHECK_MSG(round >= 0 && round < nrounds, "%d ranks: %d and %d have round %d of %d", n, rank, peer, round, nrounds);
    CHECK_INT(rt_round_of(peer, rank, n, width), round);
    if (round >= 0 && round < MOST) blocks[round] += peer == rank ? 1 : 2;
  }
}

static void check(int n, int room) {
  int blocks[MOST], width = rt_round_width(n, room), ranks[] = {0, 1, n / 2, n - 1};
  for (int i = 0; i < 4; i++) {
    count_blocks(ranks[i], n, width, blocks);
    CHECK_INT(rt_round_of(ranks[i], ranks[i], n, width), 0);
    for (int round = 0; round < rt_round_count(n, width); round++)
      CHECK_MSG(blocks[round] > 0 && blocks[round] <= room, "%d ranks, room for %d: round %d has %d blocks", n, room,
                round, blocks[round]);
  }
}

TEST(no_round_is_too_large) {
  static const int rooms[] = {LEAST_ROOM, 6, 8, 9, 13, 33, 66, 132, 148};
  for (int n = 2; n <= MOST; n++)
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) check(n, rooms[i]);
}

TEST(near_ranks_come_first) {
  CHECK_INT(rt_round_of(0, 1, 100, 8), 0);
  CHECK_INT(rt_round_of(0, 99, 100, 8), 0);
  CHECK_INT(rt_round_of(0, 8, 100, 8), 0);
  CHECK_INT(rt_round_of(0, 9, 100, 8), 1);
  CHECK_INT(rt_round_of(95, 4, 100, 8), 1);
  CHECK_INT(rt_round_of(0, 50, 100, 8), 6);
  CHECK_INT(rt_round_count(100, 8), 7);
}

TEST(what_fits_is_not_cut) {
  CHECK_INT(rt_round_width(66, 132), 0);
  CHECK_INT(rt_round_width(67, 132), 32);
  CHECK_INT(rt_round_width(600, 0), 0); /* a rank has no GPU */
  CHECK_INT(rt_round_width(16, 1), 1);
  CHECK_INT(rt_round_count(66, 0), 1);
  CHECK_INT(rt_round_of(0, 30, 66, 0), 0);
}

TEST_MAIN(TEST_CASE(no_round_is_too_large), TEST_CASE(near_ranks_come_first), TEST_CASE(what_fits_is_not_cut))
