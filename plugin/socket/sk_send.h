/* SPDX-License-Identifier: Apache-2.0
 * The sending side of a connection: what sk_send.c and the progress loop share. */
#ifndef SK_SEND_H
#define SK_SEND_H

#include "plugin/socket/sk_request.h"

/* A receive buffer that the peer has posted and no send has claimed yet. */
struct sk_grant {
  struct sk_match_node node; /* in `grants`, or in the free list */
  uint64_t size;
};

/* A message that went ahead, as long as the peer may not have seen it: a grant
 * that was made before it arrived is for its buffer. */
struct sk_flying {
  struct sk_match_node node; /* in `flying` until its grant has come */
  uint32_t seq;
  bool met;
};

/* What a message may cost that goes ahead of its buffer. Cumulative counts: a lost or late report harms nothing. */
struct sk_credit {
  uint64_t bytes_used, bytes_freed;
  uint32_t count_used, count_freed;
};

struct sk_send_comm {
  struct sk_comm base;
  struct sk_request_pool pool;  /* the caller's, like these: */
  uint32_t burst, latest_burst; /* sends since the latest test; between the two tests before */

  struct sk_match waiting; /* sends without grant */
  struct sk_match grants;  /* grants without send */
  struct sk_match_node *free_grants;
  struct sk_match flying;         /* by tag, and in the order in which they left: */
  struct sk_flying *flying_store; /* a ring */
  uint32_t flying_first, flying_count, flying_cap;
  struct sk_credit credit;
  uint32_t eager_size, eager_count, eager_bytes;

  struct sk_send *ready, **ready_end; /* to be announced, in this order */
  struct sk_send *bulk, **bulk_end;   /* announced, with bytes that are in no frame yet */
  struct sk_send *unaccepted;         /* all in frames, but the peer has not accepted the connection */
  uint32_t next_seq;
  uint32_t seen;  /* messages that the peer had seen when it last said so */
  uint32_t chunk; /* most bytes of one frame */
  uint32_t next_stream;
  struct sk_send *unsettled, *unsettled_last; /* with FAILOVER: announced and not counted as arrived, in order */
  uint32_t unsettled_count;
  struct sk_send *empty, *empty_last; /* those of them that have no bytes */
  uint32_t unread; /* pumps since the control stream was last read */
  struct sk_send sends[SK_MAX_SENDS];
  struct sk_grant grant_store[SK_MAX_SLOTS];
};

/* Starts what was submitted while somebody else owned the comm. */
void sk_send_drain(struct sk_send_comm *sc);

/* Makes frames of what is ready and writes what the sockets take, within a
 * bound. RAIL_REMOTE_ERROR: a stream is dead. */
rail_result_t sk_send_pump(struct sk_send_comm *sc);

/* The peer reports: what it has seen and its credit; then its new buffers, one by one; then that is all. */
rail_result_t sk_send_on_control(struct sk_send_comm *sc, const struct sk_frame *frame);
rail_result_t sk_send_on_grant(struct sk_send_comm *sc, uint32_t tag, uint64_t size);
void sk_send_after_control(struct sk_send_comm *sc);
void sk_send_reset_grants(struct sk_send_comm *sc);

/* The acceptor's answer for this stream is here, and it is yes. */
void sk_send_welcomed(struct sk_send_comm *sc, struct sk_stream *s);

/* Is there nothing that test might wait for? */
bool sk_send_is_idle(const struct sk_send_comm *sc);
/* Is it time to see what the peer has to say? */
bool sk_send_should_read(const struct sk_send_comm *sc);
void sk_send_read_soon(struct sk_send_comm *sc); /* yes */

/* The caller tests a request: what it sends before that is a burst. */
void sk_send_tested(struct sk_send_comm *sc);
/* Hands a finished request back; the caller's. */
void sk_send_finish(struct sk_send_comm *sc, struct sk_send *send, int *sizes);

/* The memory beyond the shared part. */
void sk_send_release(struct sk_send_comm *sc);

#endif
