/* SPDX-License-Identifier: Apache-2.0
 * The receiving side of a connection: what sk_recv.c and the progress loop share. */
#ifndef SK_RECV_H
#define SK_RECV_H

#include "plugin/socket/sk_early.h"
#include "plugin/socket/sk_request.h"

#define SK_SEQ_BUCKETS SK_MAX_SLOTS

struct sk_recv_comm {
  struct sk_comm base;
  struct sk_request_pool pool; /* the caller's */

  struct sk_match posted; /* slots without message */
  struct sk_early early;  /* messages without slot */
  uint32_t next_seq;      /* of the next MSG */
  uint32_t partial;       /* matched slots with bytes to come */
  struct sk_sink *by_seq[SK_SEQ_BUCKETS]; /* those whose bytes come in more than one frame */
  uint64_t secret;        /* random; what makes the marks of their pieces */

  /* Slots whose buffers the sender does not know of, in posting order. They
   * are told when a large one is among them, or when credit runs low. */
  struct sk_slot *ungranted, *ungranted_last;
  uint32_t ungranted_count, wanted;
  bool rush;       /* the sender's last message had waited for its grant */
  bool finished;   /* with FAILOVER: the sender must hear of it before the caller does, who may not come back */
  bool again;      /* all that was reported must be reported again */
  uint32_t idle;   /* progress calls in a row that found nothing */
  uint64_t recent; /* bytes that the one before the latest found */
  sk_pending control_unwritten; /* frames of wire_entries not yet in the kernel: 0 or 1 */
  struct sk_entry wire_entries[SK_MAX_SLOTS + SK_MAX_STREAMS];
  struct sk_entry farewell[SK_MAX_STREAMS]; /* with FAILOVER, at the end */

  struct sk_recv recvs[SK_MAX_RECVS];
};


/* A header of a stream; says where its payload goes. RAIL_IN_PROGRESS: it
 * belongs to a message that stream 0 has not announced yet. */
rail_result_t sk_recv_on_frame(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame *frame);
/* Its payload is complete. */
rail_result_t sk_recv_on_payload(struct sk_recv_comm *rc, struct sk_stream *s);

/* Starts what was submitted while somebody else owned the comm. */
void sk_recv_drain(struct sk_recv_comm *rc);

/* With FAILOVER, the stream is lost: what it has brought of a payload will come again. */
void sk_recv_forget_partial(struct sk_recv_comm *rc, struct sk_stream *s);

/* sk_report.c. A stream that cannot be written any more is found out by reading it. */
void sk_recv_want_grant(struct sk_recv_comm *rc, struct sk_slot *slot);
void sk_recv_forget_grant(struct sk_recv_comm *rc, struct sk_slot *slot);
void sk_recv_report_posted(struct sk_recv_comm *rc);          /* irecv posted buffers */
void sk_recv_report(struct sk_recv_comm *rc, uint64_t bytes); /* a progress call has read so much */
void sk_recv_report_quiet(struct sk_recv_comm *rc, bool stuck); /* nothing else to do, maybe for long */
void sk_recv_report_all(struct sk_recv_comm *rc);             /* before the end */
void sk_recv_report_again(struct sk_recv_comm *rc);           /* the stream that carried the reports is lost */

/* Hands a finished request back; the caller's. */
void sk_recv_finish(struct sk_recv_comm *rc, struct sk_recv *recv, int *sizes);

/* The memory beyond the shared part. */
void sk_recv_release(struct sk_recv_comm *rc);

#endif
