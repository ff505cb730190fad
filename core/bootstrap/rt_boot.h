/* SPDX-License-Identifier: Apache-2.0
 *
 * Inside of a bootstrap, shared by rt_bootstrap.c (open, split, close),
 * rt_boot_msg.c (send, recv, allgather: the callers' threads) and rt_watch.c
 * (the service thread).
 *
 * Connections. The ring connections (to the next rank, from the previous one) carry
 * only heartbeats, aborts and goodbyes, both ways, and belong to the service thread
 * alone. Data goes over other connections, one way each: opened by the first send to
 * a peer, written by senders, read by the peer's service thread. So nobody ever waits
 * to say that something failed, and bulk data never delays a heartbeat.
 *
 * Life and death are told by the ring connections only. A data connection that ends means:
 * nothing more comes from this peer.
 *
 * Locks. `lock` guards the fields below it and is never held across a call that may
 * block. Each rt_out has a lock of its own, held by a sender for one whole message.
 * Order: an rt_out's lock before `lock`.
 */
#ifndef RT_BOOT_H
#define RT_BOOT_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/bootstrap/rt_boot_wire.h"
#include "core/bootstrap/rt_bootstrap.h"

#define RT_BOX_BUCKETS 256
#define RT_BOX_MAX_BYTES (256ull << 20) /* messages that nobody has asked for yet */
#define RT_WAIT_SLICE_MS 50             /* longest time that an abort flag stays unseen */

/* A message that arrived; filed by (peer, type, tag), first in first out. */
struct rt_message {
  struct rt_message *next;
  uint32_t peer, tag;
  uint16_t type;
  size_t size;
  unsigned char data[];
};

struct rt_bucket {
  struct rt_message *head, **tail;
};

/* Connection for sending to one peer. */
struct rt_out {
  pthread_mutex_t lock;
  int fd;        /* -1: not opened yet */
  bool welcomed; /* the peer has answered */
  bool broken;   /* a message went out in part; nothing can follow it */
};

struct rt_boot_conn;

/* The service thread's own; touched by nobody else once it runs. */
struct rt_watch {
  int epoll_fd;
  struct rt_boot_conn *conns;    /* all, doubly linked */
  struct rt_boot_conn *finished; /* closed in this round, freed at its end */
  struct rt_boot_conn *ring[2];  /* [0] to next, [1] from prev; NULL when ended */
  unsigned nstrangers, stranger_lines;
  uint64_t beat_at, accept_after;
  bool spread; /* the failure has been passed on */
};

struct rt_bootstrap {
  struct rt_bootstrap_args args;
  int rank, nranks;
  uint8_t secret[RT_SECRET_BYTES];
  union rail_addr *addrs; /* by rank; constant once open */
  struct rt_out *outs;    /* by rank */
  int listen_fd, event_fd;
  bool thread_on;
  pthread_t thread;
  struct rt_watch watch;
  _Atomic int failed; /* enum rail_result; written once, under lock, after `why` and `origin` */

  pthread_mutex_t lock;
  pthread_cond_t cond; /* something below changed */
  struct rt_bucket box[RT_BOX_BUCKETS];
  size_t box_bytes;
  uint8_t *gone; /* by rank: its data connection has ended */
  char why[RT_BOOT_MAX_TEXT];
  int origin;
  bool local; /* the failure is this rank's own abort */
  bool closing, prev_here;
  uint32_t gathers;
};

/* What may end a wait besides success and failure. */
struct rt_patience {
  uint64_t deadline;             /* 0: none */
  const _Atomic int *abort_flag; /* besides the bootstrap's own; may be NULL */
  bool outlives_failure;         /* the bootstrap's failure and own abort flag end nothing: its thread still serves */
};

/* rt_boot_msg.c. For messages of any type; errors that are new are logged. */
rail_result_t rt_boot_send(struct rt_bootstrap *b, enum rt_boot_type type, int peer, uint32_t tag, const void *data,
                           size_t size, const struct rt_patience *patience);
rail_result_t rt_boot_recv(struct rt_bootstrap *b, enum rt_boot_type type, int peer, uint32_t tag, void *data,
                           size_t size, const struct rt_patience *patience);
/* RAIL_OK, or why not to wait any longer; errno ETIMEDOUT or ECANCELED for the patience's own reasons. No lock needed.
 */
rail_result_t rt_boot_check(struct rt_bootstrap *b, const struct rt_patience *patience);
/* One slice of waiting for b->cond, lock held. RAIL_OK: look again. */
rail_result_t rt_boot_wait(struct rt_bootstrap *b, const struct rt_patience *patience);
/* Connects to a peer and introduces this rank; the error is logged. A welcome is still to come. */
rail_result_t rt_boot_connect(struct rt_bootstrap *b, int peer, enum rt_boot_link link,
                              const struct rt_patience *patience, int *fd);
/* Takes ownership of msg; lock held. */
void rt_boot_file(struct rt_bootstrap *b, struct rt_message *msg);
void rt_boot_box_free(struct rt_bootstrap *b);

/* rt_watch.c. next_fd is the ring connection to the next rank; taken over even on failure. */
rail_result_t rt_watch_start(struct rt_bootstrap *b, int next_fd);
/* Says goodbye, ends the thread, closes its connections. */
void rt_watch_stop(struct rt_bootstrap *b);
void rt_watch_wake(struct rt_bootstrap *b);

#endif
