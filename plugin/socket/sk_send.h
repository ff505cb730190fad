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

struct sk_send_comm {
  struct sk_comm base;
  struct sk_request_pool pool;
  struct sk_match waiting; /* sends without grant */
  struct sk_match grants;  /* grants without send */
  struct sk_match_node *free_grants;
  struct sk_send *ready, **ready_end; /* to be announced, in this order */
  struct sk_send *bulk, **bulk_end;   /* announced, with bytes that are in no frame yet */
  uint32_t next_seq;
  uint32_t first_len; /* most bytes that the announcing frame carries */
  uint32_t chunk;     /* and a later one */
  uint32_t next_stream;
  uint32_t eager_size, eager_count;
  uint32_t eager_used; /* sends that went ahead of their grant */
  uint32_t held_back;  /* entries of `waiting` that did not */
  struct sk_send sends[SK_MAX_SENDS];
  struct sk_grant grant_store[SK_MAX_SLOTS];
};

/* Makes frames of what is ready and writes what the sockets take, within a
 * bound. RAIL_REMOTE_ERROR: a stream is dead. */
rail_result_t sk_send_pump(struct sk_send_comm *sc);

/* The peer posted a buffer. */
rail_result_t sk_send_on_grant(struct sk_send_comm *sc, uint32_t tag, uint64_t size);

/* Is there anything that test might wait for? */
bool sk_send_is_idle(const struct sk_send_comm *sc);

/* Hands a finished request back. */
void sk_send_finish(struct sk_send_comm *sc, struct sk_send *send, int *sizes);

#endif
