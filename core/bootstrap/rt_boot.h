/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of a bootstrap. Its files, each of which calls only those above it:
 *
 *   rt_boot_message.c   send, recv, allgather: the callers' threads; messages not received yet
 *   rt_boot_conn.c      the bootstrap thread's connections: writing, failures, closing
 *   rt_boot_thread.c    the bootstrap thread: accepts, reads, heartbeats, notices dead neighbours
 *   rt_bootstrap.c      unique ids, open, split, abort, close
 *
 * Connections. The ring connections (to the next rank, from the previous one) carry
 * only heartbeats, aborts and goodbyes, both ways, and belong to the bootstrap thread
 * alone. Data goes over other connections, one way each: opened by the first send to
 * a peer, written by senders, read by the peer's bootstrap thread. So reporting a failure
 * never waits for data, and bulk data never delays a heartbeat.
 *
 * Only a ring connection that ends means that its peer died. A data connection that ends
 * means that no more messages come from its peer.
 *
 * Locks. `lock` guards the fields below it and is never held across a call that may
 * block. Each rt_boot_tx has a lock of its own, held by a sender for one whole message.
 * Order: an rt_boot_tx's lock before `lock`.
 */
#ifndef RT_BOOT_H
#define RT_BOOT_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "common/conn/pending.h"
#include "core/bootstrap/rt_boot_wire.h"
#include "core/bootstrap/rt_bootstrap.h"

#define RT_BOOT_BUCKETS 256
#define RT_BOOT_UNEXPECTED_MAX (256ull << 20) /* bytes of messages that arrived before their receive */
#define RT_BOOT_POLL_MS 50                    /* an abort flag is noticed this late at most */

/* A message that arrived and was not received yet; queued by (peer, type, tag), first in first out. */
struct rt_boot_message {
  STAILQ_ENTRY(rt_boot_message) link;
  uint32_t peer, tag;
  uint16_t type;
  size_t size;
  unsigned char data[];
};
STAILQ_HEAD(rt_boot_bucket, rt_boot_message);

/* Connection for sending to one peer. */
struct rt_boot_tx {
  pthread_mutex_t lock;
  int fd;        /* -1: not opened yet */
  bool accepted; /* the peer has answered the hello */
  bool broken;   /* a message went out in part; nothing can follow it */
};

enum rt_boot_conn_kind { RT_BOOT_CONN_RING, RT_BOOT_CONN_DATA };
enum { RT_BOOT_NEXT, RT_BOOT_PREV }; /* the two neighbours */

/* A connection to a rank that the bootstrap thread reads. */
struct rt_boot_conn {
  LIST_ENTRY(rt_boot_conn) link; /* in conns, then in closed */
  int fd;                        /* -1: closed */
  enum rt_boot_conn_kind kind;
  int neighbour;                 /* ring: RT_BOOT_NEXT or RT_BOOT_PREV */
  int peer;                      /* rank */

  /* what is being read */
  struct rt_boot_header head;
  size_t head_have, body_have;
  struct rt_boot_message *msg; /* data: the body goes here */
  struct rt_boot_abort abort;  /* ring: here */

  /* ring only */
  uint64_t last_rx_ns;
  uint64_t timeout_ms; /* the peer may be silent this long; 0 until its first heartbeat */
  bool goodbye;        /* the peer has said goodbye */
  unsigned char out[sizeof(struct rt_boot_abort) + 4 * sizeof(struct rt_boot_header)];
  size_t out_have, out_sent;
};
LIST_HEAD(rt_boot_conns, rt_boot_conn);

/* The bootstrap thread's own; nothing else touches it while the thread runs. */
struct rt_boot_thread {
  int epoll_fd;
  struct rt_boot_conns conns;
  struct rt_boot_conns closed;  /* freed after the events of this pass */
  struct rt_boot_conn *ring[2]; /* by neighbour; NULL when closed */
  uint64_t next_heartbeat;
  bool failure_sent;

  struct rail_pending_set pending; /* connections whose hello has not come yet */
  char name[32];                   /* of this rank, for lines about those */
};

struct rt_bootstrap {
  struct rt_bootstrap_args args;
  int rank, nranks;
  uint8_t secret[RT_SECRET_BYTES];
  union rail_addr *addrs; /* by rank; constant once open */
  struct rt_boot_tx *tx;  /* by rank */
  int listen_fd, event_fd;
  bool thread_started;
  pthread_t thread_id;
  struct rt_boot_thread thread;
  _Atomic int failed; /* enum rail_result; written once, under lock, after `why` and `origin` */

  pthread_mutex_t lock;
  pthread_cond_t cond; /* something below changed */
  struct rt_boot_bucket unexpected[RT_BOOT_BUCKETS];
  size_t unexpected_bytes;
  uint8_t *data_closed; /* by rank: its data connection has ended */
  char why[RT_BOOT_MAX_TEXT];
  int origin;
  bool aborted_here; /* the failure is this rank's own abort */
  bool closing, prev_connected;
  uint32_t gathers; /* allgathers so far, but for those of children */
};

/* What ends a wait besides its success. */
struct rt_boot_limits {
  uint64_t deadline;             /* 0: none */
  const _Atomic int *abort_flag; /* besides the bootstrap's own; may be NULL */
  bool ignore_failure; /* go on after the bootstrap has failed or its abort flag is set: its thread still serves */
  /* Of a public call that all ranks make: its name, and whose part a receive waits for. NULL: of none. */
  const char *call;
  int absent;
};

/* ---- rt_boot_message.c ---- */

/* Messages of any type; a new error is logged. */
rail_result_t rt_boot_send(struct rt_bootstrap *b, enum rt_boot_type type, int peer, uint32_t tag, const void *data,
                           size_t size, const struct rt_boot_limits *limits);
rail_result_t rt_boot_recv(struct rt_bootstrap *b, enum rt_boot_type type, int peer, uint32_t tag, void *data,
                           size_t size, const struct rt_boot_limits *limits);
/* Waits for b->cond for RT_BOOT_POLL_MS at most, lock held. RAIL_OK: check the condition again; else one of the limits
 * was reached, with errno ETIMEDOUT for the deadline and ECANCELED for an abort flag. */
rail_result_t rt_boot_wait(struct rt_bootstrap *b, const struct rt_boot_limits *limits);
/* Connects to a peer and sends the hello; the error is logged. A data connection's answer is still to come. */
rail_result_t rt_boot_connect(struct rt_bootstrap *b, int peer, enum rt_boot_link link,
                              const struct rt_boot_limits *limits, int *fd);
/* Queues a message for its receive and takes ownership of it; lock held. */
void rt_boot_message_put(struct rt_bootstrap *b, struct rt_boot_message *msg);
void rt_boot_messages_free(struct rt_bootstrap *b);

/* ---- rt_boot_conn.c: only for the bootstrap thread, or while it does not run ---- */

/* A connection to rank `peer`; takes fd over when it succeeds. NULL with errno. */
struct rt_boot_conn *rt_boot_conn_add(struct rt_bootstrap *b, int fd, enum rt_boot_conn_kind kind, int peer);
/* The memory lives until rt_boot_conn_free_closed, because an event of the same pass may still point to it. */
void rt_boot_conn_close(struct rt_bootstrap *b, struct rt_boot_conn *c);
void rt_boot_conn_free_closed(struct rt_bootstrap *b);

/* Ring connections. Send and heartbeat do nothing when c is NULL or the peer has said goodbye. */
void rt_boot_conn_flush(struct rt_bootstrap *b, struct rt_boot_conn *c);
void rt_boot_conn_send(struct rt_bootstrap *b, struct rt_boot_conn *c, enum rt_boot_type type, uint32_t tag,
                       const void *body, size_t size);
void rt_boot_conn_heartbeat(struct rt_bootstrap *b, struct rt_boot_conn *c);

/* Records a failure and passes it on to the neighbours other than `source`, from which it came (NULL: neither). Only
 * the first counts, and none while closing. */
void rt_boot_fail(struct rt_bootstrap *b, const struct rt_boot_conn *source, int origin, rail_result_t result,
                  const char *why);
void rt_boot_peer_failed(struct rt_bootstrap *b, const struct rt_boot_conn *c, const char *fmt, ...) RAIL_PRINTF(3, 4);
/* Sends the recorded failure to one neighbour; to both, but for `source`, unless that was done. */
void rt_boot_send_failure(struct rt_bootstrap *b, struct rt_boot_conn *c);
void rt_boot_send_failure_once(struct rt_bootstrap *b, const struct rt_boot_conn *source);

/* ---- rt_boot_thread.c ---- */

/* The set of pending connections, without one. */
void rt_boot_pending_init(struct rt_bootstrap *b);
/* next_fd is the ring connection to the next rank; taken over even on failure. */
rail_result_t rt_boot_thread_start(struct rt_bootstrap *b, int next_fd);
/* Says goodbye, ends the thread, closes its connections. */
void rt_boot_thread_stop(struct rt_bootstrap *b);
void rt_boot_thread_wake(struct rt_bootstrap *b);
/* Reads what has come and handles it; may close c. */
void rt_boot_conn_read(struct rt_bootstrap *b, struct rt_boot_conn *c);

#endif
