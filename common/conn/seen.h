/* SPDX-License-Identifier: Apache-2.0
 *
 * What a listener has heard: a memory that keeps a recorded message of a peer
 * with the key from being played back. Random ids, and which of 32 indices
 * under each. Not thread-safe: the caller's lock.
 */
#ifndef RAIL_SEEN_H
#define RAIL_SEEN_H

#include <stdint.h>

#define RAIL_SEEN_ID 16
#define RAIL_SEEN_MAX 4096 /* ids of one listener */

struct rail_seen_entry {
  uint8_t id[RAIL_SEEN_ID];
  uint32_t indices; /* one bit each; 0: free place */
};
/* All zero: empty. */
struct rail_seen {
  struct rail_seen_entry *entries;
  uint32_t cap, count;
};

enum rail_seen_result {
  RAIL_SEEN_NEW,    /* noted */
  RAIL_SEEN_BEFORE, /* it was noted before: a replay */
  RAIL_SEEN_FULL,   /* RAIL_SEEN_MAX ids, or no memory: not noted, so it must be refused */
};

/* Notes `index` (0..31) of `id`. Only for what is authentic: strangers could fill it. */
enum rail_seen_result rail_seen_note(struct rail_seen *seen, const uint8_t id[RAIL_SEEN_ID], unsigned int index);
/* Empty again. */
void rail_seen_free(struct rail_seen *seen);

#endif
