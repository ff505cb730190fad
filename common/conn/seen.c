/* SPDX-License-Identifier: Apache-2.0
 * A table of ids by open addressing, at most half full. */
#include "common/conn/seen.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Its place, or the free one where it would be. Ids are random, and here those
 * of peers that have the key: no need to mix them. */
static struct rail_seen_entry *place_of(const struct rail_seen *seen, const uint8_t *id) {
  uint32_t at;
  memcpy(&at, id, sizeof at);
  for (at &= seen->cap - 1;; at = (at + 1) & (seen->cap - 1)) {
    struct rail_seen_entry *e = &seen->entries[at];
    if (!e->indices || memcmp(e->id, id, sizeof e->id) == 0) return e;
  }
}

static bool grow(struct rail_seen *seen) {
  struct rail_seen bigger = {.cap = seen->cap ? 2 * seen->cap : 8, .count = seen->count};
  bigger.entries = calloc(bigger.cap, sizeof *bigger.entries);
  if (!bigger.entries) return false;
  for (uint32_t i = 0; i < seen->cap; i++)
    if (seen->entries[i].indices) *place_of(&bigger, seen->entries[i].id) = seen->entries[i];
  free(seen->entries);
  *seen = bigger;
  return true;
}

enum rail_seen_result rail_seen_note(struct rail_seen *seen, const uint8_t id[RAIL_SEEN_ID], unsigned int index) {
  if (2 * seen->count >= seen->cap && !grow(seen)) return RAIL_SEEN_FULL;
  struct rail_seen_entry *e = place_of(seen, id);
  if (e->indices & (1u << index)) return RAIL_SEEN_BEFORE;
  if (!e->indices) {
    if (seen->count == RAIL_SEEN_MAX) return RAIL_SEEN_FULL;
    seen->count++;
    memcpy(e->id, id, sizeof e->id);
  }
  e->indices |= 1u << index;
  return RAIL_SEEN_NEW;
}

void rail_seen_free(struct rail_seen *seen) {
  free(seen->entries);
  *seen = (struct rail_seen){0};
}
