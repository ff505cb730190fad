/* SPDX-License-Identifier: Apache-2.0
 * The replay filter. */
#include "common/conn/replay.h"

#include <string.h>

#include "test/harness/tap.h"

static void make_id(uint8_t id[RAIL_REPLAY_ID], uint32_t i) {
  uint32_t hash = i * 0x9e3779b9u % 32768; /* many collisions */
  memset(id, 0, RAIL_REPLAY_ID);
  memcpy(id, &hash, 4);
  memcpy(id + 8, &i, 4);
  id[15] = 1;
}

TEST(what_was_received) {
  struct rail_replay replay = {0};
  uint8_t id[RAIL_REPLAY_ID], zero[RAIL_REPLAY_ID] = {0};
  for (uint32_t i = 0; i < RAIL_REPLAY_MAX; i++) {
    make_id(id, i);
    int first = rail_replay_note(&replay, id), second = rail_replay_note(&replay, id);
    if (first != RAIL_REPLAY_NEW || second != RAIL_REPLAY_SEEN) CHECK_INT(i, -1);
  }
  CHECK_INT(rail_replay_note(&replay, id), RAIL_REPLAY_SEEN); /* also when it is full */
  CHECK_INT(rail_replay_note(&replay, zero), RAIL_REPLAY_SEEN);
  id[15] = 2;
  CHECK_INT(rail_replay_note(&replay, id), RAIL_REPLAY_FULL);
  make_id(id, 0);
  CHECK_INT(rail_replay_note(&replay, id), RAIL_REPLAY_SEEN);
  rail_replay_free(&replay);
  CHECK_INT(rail_replay_note(&replay, id), RAIL_REPLAY_NEW);
  rail_replay_free(&replay);
}

TEST_MAIN(TEST_CASE(what_was_received))
