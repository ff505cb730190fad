/* SPDX-License-Identifier: Apache-2.0
 * The replay filter. */
#include "common/conn/replay.h"

#include "test/harness/tap.h"

TEST(what_was_received) {
  struct rail_replay replay = {0};
  uint8_t id[RAIL_REPLAY_ID] = {0};
  for (uint32_t i = 0; i < RAIL_REPLAY_MAX; i++) {
    uint32_t hash = i * 0x9e3779b9u % 512; /* many collisions */
    memcpy(id, &hash, 4);
    memcpy(id + 8, &i, 4);
    CHECK_INT(rail_replay_note(&replay, id, i % 32), RAIL_REPLAY_NEW);
    CHECK_INT(rail_replay_note(&replay, id, i % 32), RAIL_REPLAY_SEEN);
    CHECK_INT(rail_replay_note(&replay, id, (i + 1) % 32), RAIL_REPLAY_NEW);
  }
  id[15] = 1;
  CHECK_INT(rail_replay_note(&replay, id, 0), RAIL_REPLAY_FULL);
  id[15] = 0;
  CHECK_INT(rail_replay_note(&replay, id, (RAIL_REPLAY_MAX - 1) % 32), RAIL_REPLAY_SEEN);
  CHECK_INT(rail_replay_note(&replay, id, (RAIL_REPLAY_MAX + 1) % 32), RAIL_REPLAY_NEW); /* a known id */
  rail_replay_free(&replay);
  CHECK_INT(rail_replay_note(&replay, id, 0), RAIL_REPLAY_NEW);
  rail_replay_free(&replay);
}

TEST_MAIN(TEST_CASE(what_was_received))
