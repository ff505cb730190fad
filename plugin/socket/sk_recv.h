/* SPDX-License-Identifier: Apache-2.0
 * The receiving side of a connection. */
#ifndef SK_RECV_H
#define SK_RECV_H

#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_match.h"

#define SK_SEQ_BUCKETS SK_MAX_BUFFERS
#define SK_KEPT_BYTES (256 * 1024u) /* of unexpected messages: more are not read while nobody needs it */
#define SK_READ_OTHERS_CALLS 64 /* then the other streams are read, too, though nothing is expected over them */

/* Where the bytes of one announced message go: a posted buffer, or a place in the ring of unexpected ones. */
struct sk_target {
  LIST_ENTRY(sk_target) by_seq; /* of those with bytes to come in other frames */
  uint8_t *data;
  uint64_t size;     /* of the message */
  uint64_t announced_bytes; /* bytes whose headers were seen */
  uint64_t received;
  uint64_t coverage_sum; /* of the chunks that are here: shows whether they overlap (add_chunk) */
  uint32_t seq;
  bool unexpected;   /* part of a struct sk_bounce, else of a struct sk_recv_buffer */
  bool in_chunks;    /* its bytes come in DATA frames: it is in by_seq */
};
LIST_HEAD(sk_target_list, sk_target);

/* One buffer of an irecv. */
struct sk_recv_buffer {
  struct sk_target target;
  struct sk_match_node node; /* in `posted` until matched */
  struct sk_recv *recv;
  TAILQ_ENTRY(sk_recv_buffer) ungranted; /* until granted or matched */
  uint64_t capacity;
  bool is_ungranted, needs_grant; /* it is in that list; its message may be above the eager size */
  struct sk_mr *mr;
};

struct sk_recv {
  struct sk_request base;
  uint32_t n;
  struct sk_recv_buffer buffers[SK_MAX_GROUP];
};

/* ---- unexpected messages ---------------------------------------------------
 *
 * Messages without a receive buffer yet, unless they are left unread (may_leave_unread), lie in a ring of bounce
 * buffers, each behind a record that describes it, until an irecv takes them. The credit keeps the ring from
 * overflowing: the sender counts what it sends eagerly, this side counts what has become free again and reports it;
 * both count a message as sk_credit_of(size), so the ring holds whatever the credit lets through.
 */
struct sk_bounce {
  struct sk_target target;
  struct sk_match_node node;     /* in the table until a buffer claims it */
  struct sk_recv_buffer *buffer; /* that claimed it before all of it was here */
  uint32_t cost;
  bool free;
};

struct sk_unexpected {
  struct sk_match table; /* messages without buffer, by tag */
  uint8_t *ring;
  uint64_t head, tail;   /* live part, in bytes since the ring was empty */
  uint32_t eager_size;   /* bytes of the largest message that comes without a grant */
  uint32_t eager_bytes, eager_count; /* the credit in all */
  uint64_t bytes_used, bytes_freed, bytes_reported; /* spent by the sender; free again; and it knows */
  uint32_t count_used, count_freed, count_reported;
};

rail_result_t sk_unexpected_init(struct sk_unexpected *u, uint32_t eager_size, uint32_t eager_count,
                                 uint32_t eager_bytes);
void sk_unexpected_release(struct sk_unexpected *u);

/* An eager message is here. False: more than the sender may. */
bool sk_unexpected_charge(struct sk_unexpected *u, uint64_t size);
/* It found its buffer at once. */
void sk_unexpected_pass(struct sk_unexpected *u, uint64_t size);
/* It did not: a place for it, in the table. */
struct sk_bounce *sk_unexpected_put(struct sk_unexpected *u, uint32_t tag, uint32_t seq, uint32_t size);
/* The oldest with this tag, out of the table, or NULL. */
struct sk_bounce *sk_unexpected_take(struct sk_unexpected *u, uint32_t tag);
/* Its bytes were copied into their buffer. */
void sk_unexpected_free(struct sk_unexpected *u, struct sk_bounce *bounce);

/* The sender can hardly send eagerly any more. */
static inline bool sk_unexpected_is_low(const struct sk_unexpected *u) {
  return u->eager_bytes - (u->bytes_used - u->bytes_reported) < 2 * sk_credit_of(u->eager_size) ||
         u->eager_count - (u->count_used - u->count_reported) < 2;
}
/* A good part is free again and the sender does not know. */
static inline bool sk_unexpected_should_report(const struct sk_unexpected *u) {
  return u->bytes_freed - u->bytes_reported > u->eager_bytes / 4 ||
         u->count_freed - u->count_reported > u->eager_count / 4 ||
         (u->count_freed != u->count_reported && sk_unexpected_is_low(u));
}

/* ---- the comm ----------------------------------------------------------------- */

/* What a progress call has left in the kernel (may_leave_unread). Sockets report edges: no event tells of it again. So
 * irecv, whose buffer may be for the message, and progress_recv, which has read it but perhaps not what came behind it,
 * set comm->more: call again, until a call finds the socket empty. */
enum sk_unread {
  SK_UNREAD_NONE,
  SK_UNREAD_MESSAGE, /* a message whose buffer is not posted, and all behind it */
  SK_UNREAD_REST,    /* that message was read. What came behind it, perhaps the stream's end, may not have been */
};

struct sk_recv_comm {
  struct sk_comm base;
  struct sk_request_pool pool; /* the caller's */

  struct sk_match posted;          /* buffers without message */
  struct sk_unexpected unexpected; /* messages without buffer */
  uint32_t next_seq;               /* of the next MSG */
  uint32_t incomplete;             /* announced messages with bytes to come, for a buffer or for the ring */
  uint32_t chunked_count;          /* messages in by_seq */
  struct sk_target_list by_seq[SK_SEQ_BUCKETS]; /* those whose bytes come in DATA frames */
  uint64_t hash_key; /* random; of the hash that checks how their chunks fit (add_chunk) */

  /* sk_grant.c: buffers that the sender does not know of, in posting order. They are granted when one among them needs
   * it (needs_grant), or when credit runs low. */
  TAILQ_HEAD(, sk_recv_buffer) ungranted;
  uint32_t ungranted_count, ungranted_needed;
  uint32_t calls_since_others; /* progress calls since streams other than the first were last read */
  bool sender_waited;  /* the sender's last message had waited for its grant */
  enum sk_unread unread; /* after the last progress call */
  /*                   is true                                            until
   * can_leave_unread  one stream, and both sides have AHEAD              the end
   * read_all          the watch thread's progress call: nothing may be   the end of that call
   *                   left unread
   * completed         a buffer is filled. With FAILOVER the sender must  a report
   *                   learn it before the caller, who may not call again
   * report_all        what was reported went over a stream that is lost  a report, of everything */
  bool can_leave_unread, read_all, completed, report_all;
  uint32_t idle_calls; /* progress calls in a row that found nothing */
  uint64_t bytes_to_ack; /* read by the latest call that found some; 0 once ack_small_messages has looked at them */
  sk_completion control_unsent; /* frames of wire_entries not yet in the kernel: 0 or 1 */
  struct sk_entry wire_entries[SK_MAX_BUFFERS + SK_MAX_STREAMS];
  struct sk_entry last_entries[SK_MAX_STREAMS]; /* with FAILOVER, at the end */

  struct sk_recv recvs[SK_MAX_RECVS];
};

/* The part of a new comm that is the receiver's, and the memory beyond the shared part. */
rail_result_t sk_recv_init(struct sk_recv_comm *rc, const struct sk_comm_args *args);
void sk_recv_release(struct sk_recv_comm *rc);

/* Starts what was submitted while another thread owned the comm. */
void sk_recv_start_submitted(struct sk_recv_comm *rc);
/* Frames MSG and DATA. RAIL_IN_PROGRESS: a message that waits for its buffer; data of a message that stream 0 has not
 * announced yet. */
rail_result_t sk_recv_on_msg(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame);
rail_result_t sk_recv_on_data(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame);
/* The payload of such a frame is complete. */
rail_result_t sk_recv_on_payload(struct sk_recv_comm *rc, struct sk_stream *s);
/* With FAILOVER, the stream is lost: what has come over it of a payload will come again. */
void sk_recv_forget_partial(struct sk_recv_comm *rc, struct sk_stream *s);
/* Does something come, or may something have come, over the streams that do not announce? Counts a call. Without
 * FAILOVER nothing comes over them but chunks of messages, which stream 0 announces; their end is looked for now and
 * then. */
static inline bool sk_recv_should_read_others(struct sk_recv_comm *rc) {
  const bool expects = rc->chunked_count || sk_has_failover(&rc->base);
  if (!expects && ++rc->calls_since_others < SK_READ_OTHERS_CALLS) return false;
  rc->calls_since_others = 0;
  return true;
}
static inline void sk_recv_read_soon(struct sk_recv_comm *rc) { rc->calls_since_others = SK_READ_OTHERS_CALLS; }

/* Gives a request that is done back to the pool; for the caller's thread. */
void sk_recv_finish(struct sk_recv_comm *rc, struct sk_recv *recv, int *sizes);

/* ---- sk_grant.c: reports to the sender -------------------------------------------------------------------------
 *
 * A stream that cannot be written any more is noticed by reading it. */

void sk_grant_add(struct sk_recv_comm *rc, struct sk_recv_buffer *buffer);
void sk_grant_remove(struct sk_recv_comm *rc, struct sk_recv_buffer *buffer);
/* Who calls      when                                                     reports what
 * irecv          it has posted buffers                                    needed grants if the sender has none left
 * progress       it has read `bytes`, or nothing                          what the sender may be waiting for
 * engine, test   nothing else is to be done; `stuck`: maybe for long      needed grants; with `stuck` all
 * sk_comm_stop   with FAILOVER: nothing more is received                  counts, over all streams
 * close          before the end                                           credit, grants and counts
 * failover       the stream that carried the reports is lost              everything once more */
void sk_grant_report_after_irecv(struct sk_recv_comm *rc);
void sk_grant_report_after_read(struct sk_recv_comm *rc, uint64_t bytes);
void sk_grant_report_when_idle(struct sk_recv_comm *rc, bool stuck);
void sk_grant_report_at_stop(struct sk_recv_comm *rc);
void sk_grant_report_at_close(struct sk_recv_comm *rc);
void sk_grant_report_after_loss(struct sk_recv_comm *rc);

#endif
