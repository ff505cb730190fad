/* SPDX-License-Identifier: Apache-2.0
 *
 * Replay filter: which HELLOs a listener has received, so that a recorded one
 * of a peer with the key cannot be sent again. Random ids, and which of 32
 * streams under each. Not thread-safe: the caller's lock.
 */
#ifndef RAIL_REPLAY_H
#define RAIL_REPLAY_H

#include <stdint.h>

#define RAIL_REPLAY_ID 16
#define RAIL_REPLAY_MAX 4096   /* ids of one listener */
#define RAIL_REPLAY_STREAMS 32 /* under each */

struct rail_replay_entry {
  uint8_t id[RAIL_REPLAY_ID];
  uint32_t streams; /* one bit each; 0: free entry */
};
/* All zero: empty. */
struct rail_replay {
  struct rail_replay_entry *entries;
  uint32_t cap, count;
};

enum rail_replay_result {
  RAIL_REPLAY_NEW,  /* noted */
  RAIL_REPLAY_SEEN, /* it was noted before: a replay */
  RAIL_REPLAY_FULL, /* RAIL_REPLAY_MAX ids, or no memory: not noted, so it must be refused */
};

/* Notes `stream` (0..31) of `id`. Only for what is authentic: others could fill the table. */
enum rail_replay_result rail_replay_note(struct rail_replay *replay, const uint8_t id[RAIL_REPLAY_ID],
                                         unsigned int stream);
/* Empty again. */
void rail_replay_free(struct rail_replay *replay);

#endif
