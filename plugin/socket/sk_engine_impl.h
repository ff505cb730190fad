/* SPDX-License-Identifier: Apache-2.0
 * What the engines have in common: threads, seats, the list of those with work. */
#ifndef SK_ENGINE_IMPL_H
#define SK_ENGINE_IMPL_H

#include <pthread.h>
#include <semaphore.h>

#include "plugin/socket/sk_engine.h"

struct sk_worker;
struct sk_uring;
struct sk_uring_seat;

/* A comm's place at a thread. Memory that stays until the thread ends, so that an event or a kick that comes late finds
 * the seat empty, or with another comm, which is then looked at for nothing. */
struct sk_seat {
  struct sk_worker *worker;
  _Atomic(struct sk_comm *) comm; /* NULL: free */
  _Atomic uint32_t busy;          /* the thread is looking; who empties the seat waits for it */
  _Atomic uint32_t kicked;        /* it is in the worker's list of kicked ones */
  struct sk_seat *kick_next;
  struct sk_seat *all_next, *free_next; /* under the engine's lock */

  /* The thread's. */
  struct sk_seat *run_next;
  bool queued;   /* it is in the list of those with work */
  bool readable; /* a socket has said so since it last ran */
  bool ended;    /* a socket has said that nothing more comes: a short read is not the last one */
  struct sk_uring_seat *uring;
};

struct sk_engine_ops {
  const char *name;
  /* Called by the thread, first and last. An error carries errno and is not logged. */
  rail_result_t (*open)(struct sk_worker *w);
  void (*close)(struct sk_worker *w);
  void (*forked)(struct sk_worker *w); /* in a child, where the thread is not */
  void (*free_seat)(struct sk_seat *seat); /* its own part; may be NULL */
  /* Called by the owner, in any thread; the seat has its comm. */
  bool (*add_stream)(struct sk_seat *seat, struct sk_stream *s);
  void (*drop_stream)(struct sk_seat *seat, struct sk_comm *comm, struct sk_stream *s);
  /* The comm's owner for ever takes it away: the kernel must not touch its memory any more. */
  void (*drop)(struct sk_seat *seat, struct sk_comm *comm);
  /* The owner's: from here on the streams are read and written directly; NULL where they always are. */
  void (*settle)(struct sk_seat *seat, struct sk_comm *comm);
  bool (*wants)(const struct sk_comm *comm);
  /* The thread's: puts seats with news into the list; how many events. With `sleep` waits for one. */
  unsigned int (*wait)(struct sk_worker *w, bool sleep);
  /* The thread's, for any seat with news; may be NULL. */
  void (*attend)(struct sk_seat *seat);
  /* The thread's, as the comm's owner; true: at once again. */
  bool (*run)(struct sk_seat *seat, struct sk_comm *comm);
};

struct sk_worker {
  const struct sk_engine_ops *ops;
  pthread_t thread;
  sem_t opened;
  rail_result_t result; /* of open */
  int error;            /* and its errno */
  int wake_fd;          /* an eventfd */
  _Atomic uint32_t sleeping, quit;
  _Atomic(struct sk_seat *) kicked;

  uint32_t comms; /* under the engine's lock, as are the two lists */
  struct sk_seat *seats, *free_seats;

  /* The thread's. */
  struct sk_seat *run, **run_end;
  uint64_t gap_ns, spin_ns; /* how long nothing happens, on average; how long it is worth to spin for it */
  int epoll_fd;
  struct sk_uring *uring;
};

extern const struct sk_engine_ops sk_engine_epoll, sk_engine_uring;

/* The thread's: there is something to do for this seat. */
void sk_worker_enqueue(struct sk_seat *seat);
/* Anybody's. */
void sk_seat_kick(struct sk_seat *seat);

#endif
