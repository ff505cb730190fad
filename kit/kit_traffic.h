/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages whose sizes and contents follow from a seed, streamed over one
 * connection of any plugin and checked byte for byte on arrival.
 *
 * Both ends compute the same plan, so they need exchange nothing but the seed.
 * The contents of message m are a stretch of one pseudo-random text that
 * begins at a place chosen by (seed, connection, m): sending needs no
 * generator, checking is one comparison at the speed of memory, and a piece
 * that is missing, stale, doubled or of another message differs.
 *
 * A sender ends by END messages, which fill up the block of 8 that they begin
 * in, so that every grouped receive is complete.
 *
 * A flow is used by one thread. It calls the plugin as NCCL's progress thread
 * does: posts while there is room, tests what is outstanding, never waits.
 */
#ifndef RAIL_KIT_TRAFFIC_H
#define RAIL_KIT_TRAFFIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "loader/netload.h"

#define KIT_TRAFFIC_BLOCK 8 /* no grouped receive crosses a multiple of it */

enum kit_traffic_mix { KIT_TRAFFIC_FIXED, KIT_TRAFFIC_SMALL, KIT_TRAFFIC_MIXED, KIT_TRAFFIC_LARGE };

struct kit_traffic_plan {
  uint64_t seed;
  enum kit_traffic_mix mix; /* FIXED: max bytes; SMALL: 0 … 4 KiB; MIXED: any magnitude; LARGE: max/2 … max */
  size_t max;
  int group;     /* buffers of a receive at most, 1 … 8 */
  int window;    /* requests outstanding at most */
  bool oldest_only; /* tests only the oldest request, as NCCL does on comms that carry one chain of receives (maxRecvs
                       is 1); else all of them, in changing order */
  bool direct;   /* send out of the text itself: no copy, but then a send that is "done" too early goes unseen */
  uint8_t *text; /* the shared pseudo-random text, from kit_traffic_prepare */
  size_t text_size;
};

/* False with a word on stderr when memory is lacking. */
bool kit_traffic_prepare(struct kit_traffic_plan *plan);
void kit_traffic_release(struct kit_traffic_plan *plan);

struct kit_traffic_slot {
  void *request;
  bool filled;    /* its message is in the buffer, waiting for isend to take it */
  uint64_t first; /* message number */
  int n;          /* messages, 1 for a send */
  uint8_t *data;  /* n buffers, flow->stride apart */
};

struct kit_flow {
  const struct kit_traffic_plan *plan;
  struct rail_net *net;
  void *comm, *mh;
  bool sends;
  uint32_t conn;
  uint8_t *memory;
  size_t memory_size, stride;
  struct kit_traffic_slot *slots;
  uint64_t next;                /* message to post */
  uint64_t end;                 /* first END message; UINT64_MAX: not known yet */
  bool hold;                    /* post nothing new */
  bool finished;                /* everything up to END is done */
  rail_result_t error;          /* the first; nothing is posted or tested from then on */
  const char *error_call;       /* where it came from */
  uint64_t bytes, messages;     /* done, END not counted */
  uint64_t wrong;               /* messages with a wrong size, byte, or a byte beyond their end */
  char why[200];                /* about the first wrong one */
  /* The oldest message that is not done, since when it is the oldest, the longest that any was, and when that ended:
   * a message that is stuck counts, even if later ones overtake it. */
  uint64_t head, head_ns, pause_ns, pause_end_ns;
  bool newest_first;
};

/* Allocates and registers. The comm stays the caller's. */
rail_result_t kit_flow_open(struct kit_flow *f, const struct kit_traffic_plan *plan, struct rail_net *net, void *comm,
                            bool sends, uint32_t conn);
/* Posts and tests once. Returns how many requests were finished. */
int kit_flow_step(struct kit_flow *f);
/* The sender's last message is the one before the next. */
void kit_flow_end(struct kit_flow *f);
/* Asks for every outstanding request once more, as NCCL may after an error. */
void kit_flow_test_after_error(struct kit_flow *f);
rail_result_t kit_flow_dereg(struct kit_flow *f);
/* After dereg or close: overwrites what was to be sent; remembers what was to be received. */
void kit_flow_scribble(struct kit_flow *f);
/* … and whether it is still so. */
bool kit_flow_untouched(const struct kit_flow *f);
void kit_flow_free(struct kit_flow *f);

#endif
