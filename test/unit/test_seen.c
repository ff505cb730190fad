/* SPDX-License-Identifier: Apache-2.0
 * The memory against replays. */
#include "common/conn/seen.h"

#include "test/harness/tap.h"

TEST(what_was_heard) {
  struct rail_seen seen = {0};
  uint8_t id[RAIL_SEEN_ID] = {0};
  for (uint32_t i = 0; i < RAIL_SEEN_MAX; i++) {
    uint32_t hash = i * 0x9e3779b9u % 512; /* many collisions */
    memcpy(id, &hash, 4);
    memcpy(id + 8, &i, 4);
    CHECK_INT(rail_seen_note(&seen, id, i % 32), RAIL_SEEN_NEW);
    CHECK_INT(rail_seen_note(&seen, id, i % 32), RAIL_SEEN_BEFORE);
    CHECK_INT(rail_seen_note(&seen, id, (i + 1) % 32), RAIL_SEEN_NEW);
  }
  id[15] = 1;
  CHECK_INT(rail_seen_note(&seen, id, 0), RAIL_SEEN_FULL);
  id[15] = 0;
  CHECK_INT(rail_seen_note(&seen, id, (RAIL_SEEN_MAX - 1) % 32), RAIL_SEEN_BEFORE);
  CHECK_INT(rail_seen_note(&seen, id, (RAIL_SEEN_MAX + 1) % 32), RAIL_SEEN_NEW); /* another index needs no place */
  rail_seen_free(&seen);
  CHECK_INT(rail_seen_note(&seen, id, 0), RAIL_SEEN_NEW);
  rail_seen_free(&seen);
}

TEST_MAIN(TEST_CASE(what_was_heard))
