/* SPDX-License-Identifier: Apache-2.0
 * The receiving side of a connection: what sk_recv.c and the progress loop share. */
#ifndef SK_RECV_H
#define SK_RECV_H

#include "plugin/socket/sk_request.h"

#define SK_SEQ_BUCKETS SK_MAX_SLOTS
#define SK_PENDING_GRANTS SK_MAX_GRANTS

/* A small message that came before its buffer was posted. */
struct sk_bounce {
  struct sk_match_node node; /* in `early`, or in the free list */
  struct sk_slot *slot;      /* that claimed it before all of it was here */
  uint8_t *data;
  uint32_t size;
  uint32_t seq;
};

struct sk_recv_comm {
  struct sk_comm base;
  struct sk_request_pool pool;
  struct sk_match posted; /* slots without message */
  struct sk_match early;  /* messages without slot */
  struct sk_match_node *free_bounces;
  struct sk_bounce *bounces;
  uint8_t *bounce_memory;     /* eager_count pieces of eager_size; touched only when used */
  struct sk_bounce *filling;  /* whose payload stream 0 is reading */
  uint32_t next_seq;          /* of the next MSG */
  uint32_t partial;           /* matched slots with bytes to come */
  struct sk_slot *by_seq[SK_SEQ_BUCKETS]; /* those whose bytes come in more than one frame */
  uint32_t eager_size;

  /* Grants are collected and sent together, off the critical path, but before
   * their receive is reported done: the caller may not come back after that,
   * and the sender waits for them. */
  uint32_t pending_grants;
  uint32_t grants_queued, grants_framed; /* in all */
  uint32_t grants_unwritten; /* frames of wire_grants not yet in the kernel: 0 or 1 */
  struct sk_grant_wire grants[SK_PENDING_GRANTS];
  struct sk_grant_wire wire_grants[SK_PENDING_GRANTS];

  struct sk_recv recvs[SK_MAX_RECVS];
};

/* A header of a stream; says where its payload goes. RAIL_IN_PROGRESS: it
 * belongs to a message that stream 0 has not announced yet. */
rail_result_t sk_recv_on_frame(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame_wire *frame);
/* Its payload is complete. */
rail_result_t sk_recv_on_payload(struct sk_recv_comm *rc, struct sk_stream *s);

/* Sends the collected grants. RAIL_REMOTE_ERROR: stream 0 cannot be written any more. */
rail_result_t sk_recv_flush_grants(struct sk_recv_comm *rc);

void sk_recv_finish(struct sk_recv_comm *rc, struct sk_recv *recv, int *sizes);

/* The memory beyond the shared part. */
void sk_recv_release(struct sk_recv_comm *rc);

#endif
