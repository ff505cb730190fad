/* SPDX-License-Identifier: Apache-2.0
 * A table of ids by open addressing, at most half full. */
#include "common/conn/replay.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Its entry, or the free one where it would be. Ids are random, and here those
 * of peers that have the key: no need to hash them. */
static struct rail_replay_entry *entry_of(const struct rail_replay *replay, const uint8_t *id) {
  uint32_t at;
  memcpy(&at, id, sizeof at);
  for (at &= replay->cap - 1;; at = (at + 1) & (replay->cap - 1)) {
    struct rail_replay_entry *e = &replay->entries[at];
    if (!e->streams || memcmp(e->id, id, sizeof e->id) == 0) return e;
  }
}

static bool grow(struct rail_replay *replay) {
  struct rail_replay bigger = {.cap = replay->cap ? 2 * replay->cap : 8, .count = replay->count};
  bigger.entries = calloc(bigger.cap, sizeof *bigger.entries);
  if (!bigger.entries) return false;
  for (uint32_t i = 0; i < replay->cap; i++)
    if (replay->entries[i].streams) *entry_of(&bigger, replay->entries[i].id) = replay->entries[i];
  free(replay->entries);
  *replay = bigger;
  return true;
}

enum rail_replay_result rail_replay_note(struct rail_replay *replay, const uint8_t id[RAIL_REPLAY_ID],
                                         unsigned int stream) {
  if (2 * replay->count >= replay->cap && !grow(replay)) return RAIL_REPLAY_FULL;
  struct rail_replay_entry *e = entry_of(replay, id);
  if (e->streams & (1u << stream)) return RAIL_REPLAY_SEEN;
  if (!e->streams) {
    if (replay->count == RAIL_REPLAY_MAX) return RAIL_REPLAY_FULL;
    replay->count++;
    memcpy(e->id, id, sizeof e->id);
  }
  e->streams |= 1u << stream;
  return RAIL_REPLAY_NEW;
}

void rail_replay_free(struct rail_replay *replay) {
  free(replay->entries);
  *replay = (struct rail_replay){0};
}
