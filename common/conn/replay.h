/* SPDX-License-Identifier: Apache-2.0
 *
 * Replay filter: which HELLOs a listener has received, so that a recorded one
 * of a peer with the key cannot be sent again. Each HELLO is known by its mac,
 * which differs from that of every other one by a random nonce. So a connector
 * that was refused for a passing reason (busy, timeout) may try again with a
 * new HELLO. Not thread-safe: the caller's lock.
 */
#ifndef RAIL_REPLAY_H
#define RAIL_REPLAY_H

#include <stdint.h>

#define RAIL_REPLAY_ID 16     /* bytes of the mac that are kept */
#define RAIL_REPLAY_MAX 65536 /* HELLOs of one listener: 4,096 connections of 16 streams; 2 MiB */

/* All zero: empty. */
struct rail_replay {
  uint8_t (*ids)[RAIL_REPLAY_ID]; /* `cap` slots; all zero: a free one */
  uint32_t cap, count;
};

enum rail_replay_result {
  RAIL_REPLAY_NEW,  /* noted */
  RAIL_REPLAY_SEEN, /* it was noted before: a replay */
  RAIL_REPLAY_FULL, /* RAIL_REPLAY_MAX HELLOs, or no memory: not noted, so it must be refused */
};

/* Only for what is authentic: others could fill the table. */
enum rail_replay_result rail_replay_note(struct rail_replay *replay, const uint8_t id[RAIL_REPLAY_ID]);
/* Empty again. */
void rail_replay_free(struct rail_replay *replay);

#endif
