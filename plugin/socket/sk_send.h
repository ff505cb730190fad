/* SPDX-License-Identifier: Apache-2.0
 * The sending side of a connection. */
#ifndef SK_SEND_H
#define SK_SEND_H

#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_match.h"

/* ---- sk_share.c: how much of a message each of several streams takes ---- */

#define SK_LEAST_LIMIT (16 * 1024)    /* bytes: no limit of a slow stream is lower */
#define SK_LAST_CHUNK_MAX (16 * 1024) /* bytes: as much as is left of a message goes in one chunk, on any stream: two
                                       * smaller ones would cost a system call more on each side */
#define SK_SHARES_SAMPLE_NS 250000u   /* from sample to sample, at least: each is a system call for every stream */
#define SK_SHARES_PAUSE_NS 10000000u  /* and at most: the caller did something else */
#define SK_SHARES_PERIOD_NS 50000000u /* sampled time, before streams are compared */

struct sk_load {
  double held;  /* byte ns: what a stream held, by time */
  double busy;  /* ns in which it held something */
  double acked; /* bytes that the peer's kernel has acknowledged */
};

struct sk_shares {
  uint32_t nstreams;
  uint32_t max_chunk;  /* bytes: the largest chunk of any stream */
  bool under_way;      /* a stream may hold part of a message: it is time for samples */
  uint64_t sampled_at; /* ns */
  uint64_t period_ns;  /* sampled */
  uint32_t limit[SK_MAX_STREAMS]; /* bytes: the most that a slow stream holds; 0: it has no limit */
  uint32_t unsent[SK_MAX_STREAMS]; /* bytes: what its socket takes ahead of TCP; 0: not known */
  uint64_t acked[SK_MAX_STREAMS]; /* bytes: as of the latest sample */
  struct sk_load load[SK_MAX_STREAMS]; /* in this period */
};

void sk_shares_init(struct sk_shares *shares, uint32_t nstreams, uint32_t max_chunk);
/* A stream was lost or has come back: nothing is known of any. */
void sk_shares_renew(struct sk_shares *shares);
/* A message is announced, or a chunk of one taken, that several streams share. */
static inline void sk_shares_begin(struct sk_shares *shares) { shares->under_way = true; }
/* For whenever the connection is moved while `under_way`: notes what streams hold, if it is time to. */
void sk_shares_sample(struct sk_shares *shares, const struct sk_stream *streams, uint64_t now);
/* May this stream take a chunk now? At least one live stream always may: of one that may not, no event tells when it
 * may. */
bool sk_shares_may_take(const struct sk_shares *shares, const struct sk_stream *s);
/* Bytes of the next chunk that stream `index` takes of a message of `size`, of which `left` are in no frame yet. */
uint32_t sk_shares_chunk_size(const struct sk_shares *shares, uint32_t index, uint64_t size, uint64_t left);

/* ---- sk_send.c ------------------------------------------------------------------------ */

/* A send. Life: waiting (for a grant, or for credit) → matched (to be announced) → announced → done. */
struct sk_send {
  struct sk_request base;
  struct sk_match_node node;          /* in `waiting` */
  STAILQ_ENTRY(sk_send) next;         /* in `to_announce`, then in `partly_framed`, or in `zero_length` */
  TAILQ_ENTRY(sk_send) undelivered;
  const uint8_t *data;
  uint64_t size;
  uint64_t framed; /* bytes that are in frames */
  uint32_t seq;
  bool granted;
  struct sk_mr *mr;
};
STAILQ_HEAD(sk_send_list, sk_send);

/* A receive buffer that the peer has posted and no send has claimed yet. */
struct sk_grant {
  struct sk_match_node node; /* in `grants`, or in the free list */
  uint64_t size;
};

/* A message that the peer may not have seen yet: an eager one; with FAILOVER one that was granted, too. A grant that
 * was made before an eager one arrived is for that one's buffer. */
struct sk_in_flight {
  struct sk_match_node node; /* in `in_flight` while it has no grant */
  uint32_t seq;
  bool has_grant;
};

/* What eager messages may cost. Cumulative counts: a lost or late report harms nothing. */
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
  struct sk_match_list free_grants;
  struct sk_match in_flight;            /* by tag, and in the order in which they left: */
  struct sk_in_flight *in_flight_store; /* a ring */
  uint32_t in_flight_first, in_flight_count, in_flight_cap;
  struct sk_credit credit;
  uint32_t eager_size, eager_count, eager_bytes; /* the largest message without grant; the credit in all */

  struct sk_send_list to_announce; /* matched, in this order */
  struct sk_send_list partly_framed; /* announced, with bytes that are in no frame yet */
  uint32_t next_seq;
  uint32_t seen;  /* messages that the peer had seen when it wrote its latest report */
  uint32_t last_chunk_max; /* bytes: SK_LAST_CHUNK_MAX, or less if no chunk is that large; one stream: a frame */
  struct sk_shares shares; /* how it is cut into chunks if it is more */
  uint64_t spread_from;    /* bytes: messages from here on need not begin on the main stream */
  uint32_t next_stream;
  TAILQ_HEAD(, sk_send) undelivered; /* with FAILOVER: announced and not counted as arrived, in order */
  uint32_t undelivered_count;
  struct sk_send_list zero_length; /* those of them that have no bytes */
  uint32_t posts_since_read; /* calls of sk_send_post since control frames were last read */
  struct sk_send sends[SK_MAX_SENDS];
  struct sk_grant grant_store[SK_MAX_BUFFERS];
};

/* The part of a new comm that is the sender's, and the memory beyond the shared part. */
rail_result_t sk_send_init(struct sk_send_comm *sc, const struct sk_comm_args *args);
void sk_send_release(struct sk_send_comm *sc);

/* Starts what was submitted while another thread owned the comm. */
void sk_send_start_submitted(struct sk_send_comm *sc);
/* Announces what is matched, makes frames of it and writes what the sockets take, within a bound. RAIL_REMOTE_ERROR: a
 * stream is dead. */
rail_result_t sk_send_post(struct sk_send_comm *sc);

/* Frame CONTROL: what the peer has seen, its credit, its new buffers. */
rail_result_t sk_send_on_control(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame);
/* Are there messages that may go, and are not announced or not all in frames? */
static inline bool sk_send_has_unframed(const struct sk_send_comm *sc) {
  return !STAILQ_EMPTY(&sc->to_announce) || !STAILQ_EMPTY(&sc->partly_framed);
}
/* Is there nothing that test might wait for? */
bool sk_send_is_idle(const struct sk_send_comm *sc);
/* Is it time to read what the peer has sent? */
bool sk_send_should_read(const struct sk_send_comm *sc);
static inline void sk_send_read_soon(struct sk_send_comm *sc) { sc->posts_since_read = SK_MANY_CALLS; }

/* The caller tests a request: its sends before that were a burst. */
static inline void sk_send_tested(struct sk_send_comm *sc) {
  if (sc->burst) sc->latest_burst = sc->burst;
  sc->burst = 0;
}
/* Gives a request that is done back to the pool; for the caller's thread. */
void sk_send_finish(struct sk_send_comm *sc, struct sk_send *send, int *sizes);

#endif
