/* SPDX-License-Identifier: Apache-2.0
 * A table of ids by open addressing, at most half full. */
#include "common/conn/replay.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t free_slot[RAIL_REPLAY_ID];

static bool is_free(const uint8_t *slot) { return memcmp(slot, free_slot, RAIL_REPLAY_ID) == 0; }

/* The id's slot, or the free one where it would be. Ids are macs: no need to hash them. */
static uint8_t *slot_of(const struct rail_replay *replay, const uint8_t *id) {
  uint32_t at;
  memcpy(&at, id, sizeof at);
  for (at &= replay->cap - 1;; at = (at + 1) & (replay->cap - 1)) {
    uint8_t *slot = replay->ids[at];
    if (is_free(slot) || memcmp(slot, id, RAIL_REPLAY_ID) == 0) return slot;
  }
}

static bool grow(struct rail_replay *replay) {
  struct rail_replay bigger = {.cap = replay->cap ? 2 * replay->cap : 8, .count = replay->count};
  bigger.ids = calloc(bigger.cap, sizeof *bigger.ids);
  if (!bigger.ids) return false;
  for (uint32_t i = 0; i < replay->cap; i++)
    if (!is_free(replay->ids[i])) memcpy(slot_of(&bigger, replay->ids[i]), replay->ids[i], RAIL_REPLAY_ID);
  free(replay->ids);
  *replay = bigger;
  return true;
}

enum rail_replay_result rail_replay_note(struct rail_replay *replay, const uint8_t id[RAIL_REPLAY_ID]) {
  if (is_free(id)) return RAIL_REPLAY_SEEN; /* no mac is all zeros */
  if (2 * replay->count >= replay->cap && replay->count < RAIL_REPLAY_MAX && !grow(replay)) return RAIL_REPLAY_FULL;
  uint8_t *slot = slot_of(replay, id);
  if (!is_free(slot)) return RAIL_REPLAY_SEEN;
  if (replay->count == RAIL_REPLAY_MAX) return RAIL_REPLAY_FULL;
  replay->count++;
  memcpy(slot, id, RAIL_REPLAY_ID);
  return RAIL_REPLAY_NEW;
}

void rail_replay_free(struct rail_replay *replay) {
  free(replay->ids);
  *replay = (struct rail_replay){0};
}
