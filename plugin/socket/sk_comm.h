/* SPDX-License-Identifier: Apache-2.0
 *
 * Connected objects: what both sides of a connection share.
 *
 * Threads. A comm has one owner at a time: the thread that took `owner` moves its streams, matches, and completes
 * requests. It may leave system calls of single streams to other threads of the engine, and waits for them
 * (sk_engine_share). Only close and dereg_mr block on ownership. Any other caller queues its request in `submitted`,
 * where the owner, or the caller's next test, finds it. Owners are the caller's progress thread (in isend, irecv,
 * test), the engine's threads and the watch thread.
 *
 * The caller's progress thread takes requests from the pool, fills them in and returns them. Between being submitted
 * and being done (`completion` 0) a request is the owner's. Memory is registered and connections are closed by the
 * caller's service thread (common/net/net_ops.h); `stop` makes it the owner for the rest of the comm's life.
 *
 * Calls go downwards only, in the order that docs/design/socket.md lists.
 */
#ifndef SK_COMM_H
#define SK_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>

#include "common/base/compiler.h"
#include "common/conn/first_error.h"
#include "common/net/net_memory.h"
#include "common/net/net_ops.h"
#include "plugin/socket/sk_device.h"
#include "plugin/socket/sk_engine.h"
#include "plugin/socket/sk_stream.h"
#include "plugin/socket/sk_wire.h"

#define SK_SEND_MAGIC RAIL_OBJECT_MAGIC(SK_TAG, 'S')
#define SK_RECV_MAGIC RAIL_OBJECT_MAGIC(SK_TAG, 'R')
#define SK_REQ_SEND RAIL_OBJECT_MAGIC(SK_TAG, 's')
#define SK_REQ_RECV RAIL_OBJECT_MAGIC(SK_TAG, 'r')
#define SK_REQ_FREE RAIL_OBJECT_MAGIC(SK_TAG, 'e')

#define SK_MAX_SENDS (RAIL_NET_MAX_REQUESTS * SK_MAX_GROUP)
#define SK_MAX_RECVS RAIL_NET_MAX_REQUESTS
#define SK_MANY_CALLS (UINT32_MAX / 2) /* for a count of calls: past every limit, and it still counts up */

enum sk_side { SK_SENDER, SK_RECEIVER };

struct pollfd;
struct rail_net_ctx;
struct rail_net_ctx_link;
struct sk_comm;
struct sk_reconnect;
struct sk_accepted_comm;
struct sk_path;
struct sk_profile;

/* TCP needs no registration: a request may come without one (NULL). */
struct sk_mr {
  struct rail_net_memory memory;
  LIST_ENTRY(sk_mr) next; /* in sk_comm.mrs */
};

/* What struct sk_send and struct sk_recv begin with; the magic tells them apart, and from one that was returned. */
struct sk_request {
  uint32_t magic;
  /* A send's frames that are not in the kernel (with FAILOVER: have not arrived), and 1 until all are made; zero-copy
   * calls that the kernel has not finished. A receive's buffers. */
  sk_completion completion;
  struct sk_comm *comm;
  SLIST_ENTRY(sk_request) next_free;
};
/* Of a comm, with memory inside it: a request is freed by the test that reports it done, in the caller's progress
 * thread, and one that no test has reported done with the comm, by the thread that closes it. */
SLIST_HEAD(sk_request_pool, sk_request);

/* Requests that found the comm owned; one producer, the caller's progress thread. Never full: the pools are smaller. */
#define SK_SUBMIT_SLOTS 256
_Static_assert(SK_MAX_SENDS <= SK_SUBMIT_SLOTS, "all of a comm's requests may be submitted at once");
struct sk_submitted {
  _Atomic uint32_t tail; /* the caller's */
  _Atomic uint32_t head; /* the owner's */
  struct sk_request *slots[SK_SUBMIT_SLOTS];
};

/* What the watch thread knows of a comm. Times are that thread's: nanoseconds in which it ran, so that a process that
 * was stopped for a minute does not hold that against its peers. */
struct sk_keepalive {
  uint32_t idle, skip;                  /* ticks without events or requests, up to a few; ticks to let pass */
  uint64_t in, out, useful, useful_out; /* bytes, as of the last check; useful: without PING and PONG */
  uint64_t last_recv;    /* when a byte last came in */
  uint64_t idle_until;   /* until when nothing was outstanding, here or in the kernel */
  bool unacked;          /* bytes went out that the peer's host may not have yet */
  uint64_t since;        /* when what is outstanding last made progress, or began */
  uint64_t last_sign;    /* the last sign of life, or the same */
  uint64_t progress_at;  /* CLOCK_MONOTONIC; 0: never */
  uint64_t pinged;       /* time of the latest PING after `since`; 0: none sent */
  uint64_t first_ping;   /* time of the first PING after `last_sign`; 0: none sent */
  uint64_t warn_at;      /* age at which the next warning is due */
  uint64_t host_checked; /* when it was last checked whether the peer's host answers */
  uint64_t host_silence; /* for how long it had not: of several streams the longest time, with FAILOVER the shortest */
  bool silent;           /* the peer's silence was reported */
  uint64_t was_silent;   /* for how long, when it ended; 0: that was logged */
};

struct sk_comm {
  uint32_t magic;
  enum sk_side side;
  const char *device_name;
  union rail_addr peer;
  LIST_ENTRY(sk_comm) next; /* in sk_watch.c's list; under its lock */
  bool listed;
  struct sk_keepalive keepalive; /* the watch thread's */
  struct sk_traffic traffic;
  struct sk_comm_counts counts;
  _Atomic uint32_t in_use;  /* requests that the caller has; written by its progress thread alone */
  pthread_mutex_t mrs_lock; /* NCCL's service thread registers; a caller that does so from two must not crash */
  LIST_HEAD(, sk_mr) mrs;   /* under it */
  struct sk_profile *profile; /* the caller's progress thread's; NULL: no profiler */
  bool detached; /* its sockets were taken away; only the close call is left */

  _Atomic uint32_t owner; /* 1 while a thread moves it; after sk_comm_stop to the end */
  _Atomic uint32_t stop;  /* 1: close, or a dereg_mr that may not wait, has begun */
  struct rail_first_error error; /* once set, the comm does nothing but return it and send ERROR */
  struct sk_submitted submitted;
  struct sk_poll_ctx *engine; /* that moves it, by sk_progress_engine; NULL: only the caller's calls do */
  _Atomic uint32_t deferred; /* something was kept until the caller tests; read with an engine only */
  uint32_t idle_polls;       /* with an engine: the caller's tests in a row that found nothing done */
  rail_result_t (*progress)(struct sk_comm *comm); /* sk_progress, for isend: calls go downwards only (above) */

  /* The owner's. */
  uint32_t not_established; /* sender: streams that never were; nothing is written before it is 0 */
  uint32_t pongs;     /* sent in this call of sk_progress */
  bool more;          /* the latest sk_progress ended because it had done enough */
  bool ended;         /* a stream that is read has ended */
  bool shares_reads;  /* receiver: in this call of sk_progress other threads of the engine take a part in receiving */
  uint32_t nstreams;
  struct sk_stream *streams;
  struct sk_error error_payload;
  uint32_t features;  /* agreed: SK_FEATURE_* */
  struct rail_session sessions[SK_MAX_STREAMS]; /* of each stream's HELLO and ANSWER; the stream's key is made of it */
  struct sk_reconnect *reconnect;    /* sender: until all streams are established, with FAILOVER to the end */
  struct sk_accepted_comm *accepted; /* receiver with FAILOVER */
  struct sk_path *paths;    /* one per stream with the feature FAILOVER, else NULL: sk_has_failover */
  uint32_t main_stream;     /* index; see sk_main_stream */
};

/* What the handshake agreed on, with the connected sockets; the comm takes the sockets over, also when it fails. */
struct sk_comm_args {
  enum sk_side side;
  const struct sk_device *device; /* what the caller named, maybe a fused one */
  const struct rail_net_ctx *ctx;
  uint8_t comm_id[RAIL_COMM_ID_SIZE];
  unsigned int nstreams;
  int fds[SK_MAX_STREAMS];
  const struct sk_device *nics[SK_MAX_STREAMS]; /* the one interface each stream runs over, here */
  union rail_addr peers[SK_MAX_STREAMS];         /* and its other end */
  uint32_t eager_size, eager_count, eager_bytes; /* the sender's limits, from its HELLO */
  uint32_t features;                             /* agreed: SK_FEATURE_* */
  /* How a stream is connected again; the comm's from here on. */
  struct sk_reconnect *reconnect;    /* sender */
  struct sk_accepted_comm *accepted; /* receiver with FAILOVER */
  struct rail_session sessions[SK_MAX_STREAMS]; /* of each stream's HELLO; a receiver's with its ANSWER, too */
};

/* ---- sk_comm.c: open and close ------------------------------------------ */

rail_result_t sk_send_create(const struct sk_comm_args *args, void **send_comm);
rail_result_t sk_recv_create(const struct sk_comm_args *args, void **recv_comm);
rail_result_t sk_close_send(void *send_comm);
rail_result_t sk_close_recv(void *recv_comm);
/* The last finalize, after the watch thread: takes every comm's sockets away and waits, at most
 * RAIL_SOCKET_CLOSE_TIMEOUT, for what was written to arrive. */
void sk_close_all(void);

/* The caller's service thread's: after return it owns the comm to its end; no byte of any request's memory is touched.
 * Short, because no owner blocks. */
void sk_comm_stop(struct sk_comm *comm);

/* ---- sk_error.c: the first error ------------------------------------------ */

/* The first failure: logs why, once, and makes it stick. Returns the result. */
RAIL_COLD rail_result_t sk_comm_fail(struct sk_comm *comm, rail_result_t result, const char *fmt, ...)
    RAIL_PRINTF(3, 4);
/* A stream broke or ended: the same. */
RAIL_COLD rail_result_t sk_comm_fail_lost(struct sk_comm *comm, const struct sk_stream *s);
/* Size over capacity, on either side: tells the peer over `s`, best effort, and fails. */
RAIL_COLD rail_result_t sk_comm_fail_size(struct sk_comm *comm, struct sk_stream *s, uint32_t seq, uint32_t tag,
                                          uint64_t size, uint64_t capacity);
/* After a failure: writes what is queued, ERROR last; nothing if that must wait for streams to be established. */
void sk_comm_send_error(struct sk_comm *comm);
/* Frame ERROR: the peer's last message before its side failed. */
RAIL_COLD rail_result_t sk_error_on_frame(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame);
/* Says why these bytes cannot be used. RAIL_BAD_ARGUMENT. */
RAIL_COLD rail_result_t sk_refuse_buffer(const char *call, const struct sk_comm *comm, const struct sk_mr *mr,
                                         const void *data, size_t size);

static inline rail_result_t sk_comm_error(const struct sk_comm *comm) {
  return rail_first_error(&comm->error);
}

/* A caller's pointer; NULL after one line if it is no open comm. Magic 0: of either side. */
static inline struct sk_comm *sk_comm_of(void *arg, uint32_t magic, const char *call) {
  return rail_net_comm_of("RailSocket", arg, SK_SEND_MAGIC, SK_RECV_MAGIC, magic, call);
}

/* May streams be lost while others go on? */
static inline bool sk_has_failover(const struct sk_comm *comm) { return comm->paths != NULL; }

/* Announcements with payload, and control frames, go over this one: stream 0, until FAILOVER chooses another
 * (sk_failover.h). */
static inline struct sk_stream *sk_main_stream(const struct sk_comm *comm) {
  return &comm->streams[comm->main_stream];
}

/* ---- ownership ------------------------------------------------------------ */

/* Never waits. */
static inline bool sk_comm_try_own(struct sk_comm *comm) {
  return !atomic_load_explicit(&comm->owner, memory_order_relaxed) &&
         !atomic_exchange_explicit(&comm->owner, 1, memory_order_acquire);
}
static inline void sk_comm_disown(struct sk_comm *comm) {
  bool notify = comm->engine && rail_unlikely(comm->more); /* no event of a socket will report what is left */
  atomic_store_explicit(&comm->owner, 0, memory_order_release);
  if (notify) sk_engine_notify(comm->engine);
}
static inline bool sk_comm_is_stopped(const struct sk_comm *comm) {
  return atomic_load_explicit(&comm->stop, memory_order_relaxed) != 0;
}

/* For a caller that cannot own the comm now. The engine is notified after the request is in the ring, and takes the
 * notification off its list before it looks into the ring: so a request is found even if another thread owned the comm
 * meanwhile. */
static inline void sk_comm_submit(struct sk_comm *comm, struct sk_request *request) {
  uint32_t tail = atomic_load_explicit(&comm->submitted.tail, memory_order_relaxed);
  comm->submitted.slots[tail % SK_SUBMIT_SLOTS] = request;
  atomic_store_explicit(&comm->submitted.tail, tail + 1, memory_order_release);
  if (comm->engine) sk_engine_notify(comm->engine);
}
/* The owner's: the oldest of them, or NULL. */
static inline struct sk_request *sk_comm_submitted(struct sk_comm *comm) {
  uint32_t head = atomic_load_explicit(&comm->submitted.head, memory_order_relaxed);
  if (rail_likely(head == atomic_load_explicit(&comm->submitted.tail, memory_order_acquire))) return NULL;
  struct sk_request *request = comm->submitted.slots[head % SK_SUBMIT_SLOTS];
  atomic_store_explicit(&comm->submitted.head, head + 1, memory_order_release);
  return request;
}

/* ---- requests --------------------------------------------------------------- */

/* Requests that the caller has not returned, done or not. */
static inline uint32_t sk_comm_in_use(const struct sk_comm *comm) {
  return atomic_load_explicit(&comm->in_use, memory_order_relaxed);
}

/* NULL: all are in use. */
static inline struct sk_request *sk_request_get(struct sk_request_pool *pool, uint32_t magic) {
  struct sk_request *r = SLIST_FIRST(pool);
  if (rail_unlikely(!r)) return NULL;
  SLIST_REMOVE_HEAD(pool, next_free);
  atomic_store_explicit(&r->comm->in_use, sk_comm_in_use(r->comm) + 1, memory_order_relaxed);
  r->magic = magic;
  return r;
}
static inline void sk_request_put(struct sk_request_pool *pool, struct sk_request *r) {
  r->magic = SK_REQ_FREE;
  SLIST_INSERT_HEAD(pool, r, next_free);
  atomic_store_explicit(&r->comm->in_use, sk_comm_in_use(r->comm) - 1, memory_order_relaxed);
}
static inline bool sk_request_is_done(const struct sk_request *r) {
  return atomic_load_explicit(&r->completion, memory_order_acquire) == 0;
}

/* May a request use these bytes? If not, sk_refuse_buffer says why (sk_error.c). */
static inline bool sk_buffer_is_good(const struct sk_comm *comm, const struct sk_mr *mr, const void *data,
                                     size_t size) {
  if (size > RAIL_NET_MAX_BYTES || (!data && size)) return false;
  return !mr || rail_net_memory_covers(&mr->memory, comm, data, size);
}
static inline void sk_mr_hold(struct sk_mr *mr) {
  if (mr) rail_net_memory_hold(&mr->memory);
}
static inline void sk_mr_release(struct sk_mr *mr) {
  if (mr) rail_net_memory_release(&mr->memory);
}

/* ---- sk_progress.c ---------------------------------------------------------------- */

/* Starts what was submitted and moves what can be moved. For the owner. */
rail_result_t sk_progress(struct sk_comm *comm);
/* The same for a thread of the engine, `arg` being the comm. The thread does not call again before an event: reads also
 * what no request waits for if a socket is `readable`, and tells the peer all that it can use. */
enum sk_poll_result sk_progress_engine(void *arg, bool readable);
/* The same for the watch thread, where the caller does not test: reads and reports whether or not it seems due. */
rail_result_t sk_progress_watch(struct sk_comm *comm);
/* Sends PING: asks the peer for a sign of life. */
void sk_progress_ping(struct sk_comm *comm);
rail_result_t sk_test(void *request, int *done, int *sizes);

/* ---- sk_watch.c: the list of open comms, and the thread that watches them -------- */

/* One thread per process, from the first comm until the last context is finalized (or the plugin is unloaded). It wakes
 * every SK_TICK_MS, and never while there are no comms. All functions are thread-safe. A child of fork has no watch
 * thread and none of its parent's comms: their sockets are closed there, without sending anything, so that a child that
 * outlives its parent does not keep them open; a call that names such a comm finds it stopped. */
#define SK_TICK_MS 250 /* half of the shortest limit's default, RAIL_SOCKET_RAIL_TIMEOUT; four wake-ups a second */

/* From here on the thread may own the comm at times. */
void sk_watch_add(struct sk_comm *comm);
/* After return it does not touch it any more. Waits at most for one pass over this comm. */
void sk_watch_remove(struct sk_comm *comm);
/* Removes any comm and returns it, or NULL. Not while the thread runs. */
struct sk_comm *sk_watch_take(void);
/* Ends the thread; the next comm starts another. */
void sk_watch_end(void);

/* ---- sk_keepalive.c: what it does with one comm at a tick ------------------------ */

enum sk_keepalive_need {
  SK_KEEPALIVE_NONE, /* another thread moves it, or it has ended */
  SK_KEEPALIVE_POLL, /* run it if a socket of it can be read */
  SK_KEEPALIVE_RUN,
};

/* Under the lock of the list of comms; no system call. Sockets to poll, at most SK_MAX_STREAMS, go to fds and *nfds. */
enum sk_keepalive_need sk_keepalive_check(struct sk_comm *comm, uint64_t now, struct pollfd *fds, uint32_t *nfds);
/* Without that lock, while sk_watch_remove would wait. Takes the comm if no other thread has it. */
void sk_keepalive_run(struct sk_comm *comm, uint64_t now);

/* ---- the other calls of the vtable, NCCL's profiler ------------------------------------------------ */

/* sk_mr.c */
rail_result_t sk_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle);
rail_result_t sk_dereg_mr(void *comm, void *mhandle);

/* sk_send.c, sk_recv.c */
rail_result_t sk_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                       void **request);
rail_result_t sk_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **phandles, void **request);

/* sk_profile.c: events for NCCL's profiler. Sets comm->profile if the context has a callback. RAIL_SYSTEM_ERROR: out of
 * memory. Then for comms with a profile, in the caller's progress thread; `phandles`: one per buffer, or NULL. */
rail_result_t sk_profile_init(struct sk_comm *comm, const struct sk_comm_args *args);
void sk_profile_start(struct sk_request *r, void *const *phandles);
void sk_profile_stop(struct sk_request *r);

#endif
