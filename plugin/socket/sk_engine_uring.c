/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine that gives reads and writes to io_uring: at most one of each per
 * stream, those of many streams in one system call. A read waits in the kernel
 * until there is something to read.
 *
 * What is under way ("in flight") belongs to the kernel, with the memory that
 * it names. The thread alone launches, and alone puts what has come of it into
 * the stream, as the comm's owner; meanwhile other owners queue frames and
 * parse, and write by themselves where nothing is in flight. Who must have the
 * memory back (close, dereg_mr, a stream that is lost) owns the comm, so that
 * nothing new is launched, and has the thread cancel.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/socket/sk_engine_impl.h"

#ifdef RAIL_HAVE_URING
#include <liburing.h>
#include <poll.h>

#define SQ_ENTRIES 256
#define CQ_ENTRIES 4096
#define NEEDED (IORING_FEAT_NODROP | IORING_FEAT_FAST_POLL | IORING_FEAT_EXT_ARG)
#define ABOUT_CANCEL 0 /* user_data of what is not a struct flight_op */
#define ABOUT_WAKE 1
#define PATIENCE_MS 1000 /* for a cancel; then the socket is shut down, and after as long again it is said */

struct flight_op {
  struct sk_seat *seat;
  _Atomic uint32_t *state; /* enum sk_flight_state */
  struct msghdr msg;
  int32_t result;
  bool reads;
};

struct flight_stream {
  struct sk_flight flight;
  struct flight_op in, out;
  size_t direct; /* bytes of the read that go to their place */
  struct iovec in_iov[2], out_iov[SK_OUT_IOV];
};

/* Made when first needed, kept as long as the seat. */
struct sk_uring_seat {
  _Atomic uint32_t cancel; /* somebody waits for all that is in flight */
  _Atomic(struct flight_stream *) streams[SK_MAX_STREAMS];
};

static struct flight_stream *flight_of(const struct sk_seat *seat, uint32_t index) {
  return atomic_load_explicit(&seat->uring->streams[index], memory_order_acquire);
}

struct sk_uring {
  struct io_uring ring;
};

/* ---- the ring ----------------------------------------------------------- */

static struct io_uring_sqe *get_sqe(struct sk_worker *w) {
  struct io_uring_sqe *sqe = io_uring_get_sqe(&w->uring->ring);
  if (rail_likely(sqe != NULL)) return sqe;
  io_uring_submit(&w->uring->ring);
  return io_uring_get_sqe(&w->uring->ring);
}

/* The eventfd is polled, not read: each write to it makes a completion. */
static bool watch_wake_fd(struct sk_worker *w) {
  struct io_uring_sqe *sqe = get_sqe(w);
  if (!sqe) return false;
  io_uring_prep_poll_multishot(sqe, w->wake_fd, POLLIN);
  io_uring_sqe_set_data64(sqe, ABOUT_WAKE);
  return true;
}

static int make_ring(struct io_uring *ring) {
  static const unsigned int wishes[] = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
    IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0};
  int err = 0;
  for (unsigned int i = 0; i < RAIL_COUNT_OF(wishes); i++) {
    struct io_uring_params p = {.flags = wishes[i] | IORING_SETUP_CQSIZE, .cq_entries = CQ_ENTRIES};
    err = -io_uring_queue_init_params(SQ_ENTRIES, ring, &p);
    if (err == EINVAL) continue; /* an older kernel */
    if (err || (p.features & NEEDED) == NEEDED) return err;
    io_uring_queue_exit(ring);
    return ENOSYS;
  }
  return err;
}

static rail_result_t open_uring(struct sk_worker *w) {
  w->uring = calloc(1, sizeof *w->uring);
  int err = w->uring ? make_ring(&w->uring->ring) : ENOMEM;
  if (err) {
    free(w->uring);
    w->uring = NULL;
    errno = err;
    return RAIL_SYSTEM_ERROR;
  }
  (void)io_uring_ring_dontfork(&w->uring->ring);
  watch_wake_fd(w); /* there is room */
  return RAIL_OK;
}

static void on_completion(struct sk_worker *w, const struct io_uring_cqe *cqe) {
  if (cqe->user_data == ABOUT_CANCEL) return;
  if (cqe->user_data == ABOUT_WAKE) {
    if (!(cqe->flags & IORING_CQE_F_MORE)) watch_wake_fd(w);
    return;
  }
  struct flight_op *op = (struct flight_op *)(uintptr_t)cqe->user_data;
  op->result = cqe->res;
  if (op->reads) op->seat->readable = true;
  sk_worker_enqueue(op->seat);
  atomic_store_explicit(op->state, SK_FLIGHT_DOWN, memory_order_release); /* last: who waits for it may free the seat */
}

static unsigned int reap(struct sk_worker *w) {
  unsigned int n = 0;
  struct io_uring_cqe *cqe;
  while (io_uring_peek_cqe(&w->uring->ring, &cqe) == 0) {
    struct io_uring_cqe copy = *cqe;
    io_uring_cqe_seen(&w->uring->ring, cqe);
    on_completion(w, &copy);
    n++;
  }
  return n;
}

static unsigned int wait_uring(struct sk_worker *w, bool sleep) {
  struct io_uring *ring = &w->uring->ring;
  const unsigned int news = IORING_SQ_CQ_OVERFLOW | IORING_SQ_TASKRUN;
  if (sleep) io_uring_submit_and_wait(ring, 1);
  else if (io_uring_sq_ready(ring) || (IO_URING_READ_ONCE(*ring->sq.kflags) & news))
    io_uring_submit_and_get_events(ring);
  return reap(w);
}

/* ---- what has come of it --------------------------------------------------- */

/* Nothing has happened, and it may be tried again. */
static bool is_nothing(int32_t result) { return result == -EAGAIN || result == -EINTR || result == -ECANCELED; }

static bool land_in(struct sk_stream *s, struct flight_stream *f) {
  if (atomic_load_explicit(&f->flight.in, memory_order_acquire) != SK_FLIGHT_DOWN) return false;
  int32_t result = f->in.result;
  atomic_store_explicit(&f->flight.in, SK_FLIGHT_NONE, memory_order_relaxed);
  if (is_nothing(result)) return false;
  if (result > 0) {
    sk_stream_got(s, (size_t)result, f->direct);
    return true;
  }
  s->eof = true;
  s->in_errno = -result;
  return false;
}

static void land_out(struct sk_stream *s, struct flight_stream *f) {
  if (atomic_load_explicit(&f->flight.out, memory_order_acquire) != SK_FLIGHT_DOWN) return;
  int32_t result = f->out.result;
  atomic_store_explicit(&f->flight.out, SK_FLIGHT_NONE, memory_order_relaxed);
  if (result >= 0) sk_stream_wrote(s, (size_t)result);
  else if (!is_nothing(result)) sk_stream_out_failed(s, -result);
}

/* True if bytes came in. */
static bool land_all(struct sk_seat *seat, struct sk_comm *comm) {
  bool got = false;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (!s->flight) continue;
    land_out(s, flight_of(seat, i));
    got |= land_in(s, flight_of(seat, i));
  }
  return got;
}

/* ---- launching -------------------------------------------------------------- */

static bool launch(struct sk_worker *w, int fd, struct flight_op *op, struct iovec *iov, int niov) {
  struct io_uring_sqe *sqe = get_sqe(w);
  if (rail_unlikely(!sqe)) return false;
  op->msg = (struct msghdr){.msg_iov = iov, .msg_iovlen = (size_t)niov};
  if (op->reads) io_uring_prep_recvmsg(sqe, fd, &op->msg, 0);
  else io_uring_prep_sendmsg(sqe, fd, &op->msg, MSG_NOSIGNAL);
  io_uring_sqe_set_data(sqe, op);
  atomic_store_explicit(op->state, SK_FLIGHT_UP, memory_order_relaxed);
  return true;
}

static bool launch_stream(struct sk_seat *seat, const struct sk_comm *comm, struct sk_stream *s) {
  struct flight_stream *f = flight_of(seat, s->index);
  bool good = true;
  size_t bytes;
  if (s->out_count && !s->out_errno && !comm->hold &&
      atomic_load_explicit(&f->flight.out, memory_order_relaxed) == SK_FLIGHT_NONE)
    good = launch(seat->worker, s->fd, &f->out, f->out_iov, sk_stream_out_iov(s, f->out_iov, SK_OUT_IOV, &bytes));
  if (!s->eof && sk_comm_error(comm) == RAIL_OK &&
      atomic_load_explicit(&f->flight.in, memory_order_relaxed) == SK_FLIGHT_NONE) {
    int niov = sk_stream_in_iov(s, f->in_iov, &bytes);
    f->direct = s->left ? f->in_iov[0].iov_len : 0;
    if (niov) good &= launch(seat->worker, s->fd, &f->in, f->in_iov, niov);
  }
  return good;
}

static bool run(struct sk_seat *seat, struct sk_comm *comm) {
  bool readable = seat->readable, again = land_all(seat, comm) && comm->rails;
  seat->readable = false;
  /* Whatever is queued meanwhile shall leave with the next submission, not by a system call of its own. */
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (comm->streams[i].flight) comm->streams[i].flight->held = true;
  sk_progress_event(comm, readable);
  again |= comm->more;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (!s->flight) continue;
    s->flight->held = false;
    again |= !launch_stream(seat, comm, s);
  }
  return again;
}

/* Something is queued that is not in flight. What lies there to be read always has the thread coming. */
static bool wants(const struct sk_comm *comm) {
  if (comm->more) return true;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    const struct sk_stream *s = &comm->streams[i];
    if (s->flight && s->out_count && !s->out_errno && !comm->hold &&
        atomic_load_explicit(&s->flight->out, memory_order_relaxed) == SK_FLIGHT_NONE)
      return true;
  }
  return false;
}

/* ---- taking it back ----------------------------------------------------------- */

static bool is_up(const struct sk_seat *seat) {
  for (uint32_t i = 0; i < SK_MAX_STREAMS; i++) {
    const struct flight_stream *f = flight_of(seat, i);
    if (f && (atomic_load_explicit(&f->flight.in, memory_order_acquire) == SK_FLIGHT_UP ||
              atomic_load_explicit(&f->flight.out, memory_order_acquire) == SK_FLIGHT_UP))
      return true;
  }
  return false;
}

static void cancel_op(struct sk_worker *w, struct flight_op *op) {
  if (atomic_load_explicit(op->state, memory_order_relaxed) != SK_FLIGHT_UP) return;
  struct io_uring_sqe *sqe = get_sqe(w);
  if (!sqe) return; /* the socket will be shut down */
  io_uring_prep_cancel(sqe, op, 0);
  io_uring_sqe_set_data64(sqe, ABOUT_CANCEL);
}

static void cancel_seat(struct sk_seat *seat) {
  for (uint32_t i = 0; i < SK_MAX_STREAMS; i++) {
    struct flight_stream *f = flight_of(seat, i);
    if (!f) continue;
    cancel_op(seat->worker, &f->in);
    cancel_op(seat->worker, &f->out);
  }
}

static void attend(struct sk_seat *seat) {
  if (seat->uring && atomic_exchange(&seat->uring->cancel, 0)) cancel_seat(seat);
}

/* The thread's own way. */
static void step_here(struct sk_worker *w) {
  struct __kernel_timespec ms = {.tv_nsec = 1000000};
  struct io_uring_cqe *cqe;
  (void)io_uring_submit_and_wait_timeout(&w->uring->ring, &cqe, 1, &ms, NULL);
  reap(w);
}

/* The owner's: nothing of the comm is in flight any more. The kernel answers a cancel at once. */
static void recall(struct sk_seat *seat, const struct sk_comm *comm) {
  bool here = pthread_equal(pthread_self(), seat->worker->thread), shut = false;
  uint64_t deadline = rail_deadline_in_ms(PATIENCE_MS);
  if (!is_up(seat)) return;
  if (here) {
    cancel_seat(seat);
  } else {
    atomic_store(&seat->uring->cancel, 1);
    sk_seat_kick(seat);
  }
  while (is_up(seat)) {
    if (here) step_here(seat->worker);
    else sched_yield();
    if (!rail_deadline_passed(deadline)) continue;
    if (shut) {
      RAIL_WARN("RailSocket: the kernel does not give back the memory of a connection over %s", comm->device_name);
      return;
    }
    for (uint32_t i = 0; i < comm->nstreams; i++)
      if (comm->streams[i].fd >= 0) shutdown(comm->streams[i].fd, SHUT_RDWR);
    shut = true;
    deadline = rail_deadline_in_ms(PATIENCE_MS);
  }
}

static bool add_stream(struct sk_seat *seat, struct sk_stream *s) {
  if (!seat->uring) seat->uring = calloc(1, sizeof *seat->uring);
  if (!seat->uring) return false;
  struct flight_stream *f = flight_of(seat, s->index);
  if (!f) {
    f = calloc(1, sizeof *f);
    if (!f) return false;
    f->in = (struct flight_op){.seat = seat, .state = &f->flight.in, .reads = true};
    f->out = (struct flight_op){.seat = seat, .state = &f->flight.out};
    atomic_store_explicit(&seat->uring->streams[s->index], f, memory_order_release);
  }
  free(s->zerocopy); /* SENDMSG copies; two ways out of one stream would have to be kept apart */
  s->zerocopy = NULL;
  s->flight = &f->flight;
  return true;
}

/* What has come of its last read and write is not looked at any more. The other streams' are launched again. */
static void drop_stream(struct sk_seat *seat, struct sk_comm *comm, struct sk_stream *s) {
  if (!s->flight) return;
  recall(seat, comm);
  atomic_store(&s->flight->in, SK_FLIGHT_NONE);
  atomic_store(&s->flight->out, SK_FLIGHT_NONE);
  s->flight = NULL;
}

static void drop(struct sk_seat *seat, struct sk_comm *comm) {
  recall(seat, comm);
  land_all(seat, comm);
  for (uint32_t i = 0; i < comm->nstreams; i++) comm->streams[i].flight = NULL;
}

/* ---- the end ------------------------------------------------------------------- */

static void close_uring(struct sk_worker *w) {
  uint64_t deadline = rail_deadline_in_ms(PATIENCE_MS);
  for (struct sk_seat *seat = w->seats; seat; seat = seat->all_next) { /* only where nobody closed or finalized */
    if (seat->uring) cancel_seat(seat);
    while (seat->uring && is_up(seat) && !rail_deadline_passed(deadline)) step_here(w);
  }
  io_uring_queue_exit(&w->uring->ring);
  free(w->uring);
  w->uring = NULL;
}

static void free_seat(struct sk_seat *seat) {
  for (uint32_t i = 0; seat->uring && i < SK_MAX_STREAMS; i++) free(flight_of(seat, i));
  free(seat->uring);
}

static void forked(struct sk_worker *w) { close(w->uring->ring.ring_fd); }

#else /* built without liburing */

static rail_result_t open_uring(struct sk_worker *w) {
  (void)w;
  errno = ENOSYS;
  return RAIL_SYSTEM_ERROR;
}

#endif

const struct sk_engine_ops sk_engine_uring = {.name = "uring",
                                              .open = open_uring,
#ifdef RAIL_HAVE_URING
                                              .close = close_uring,
                                              .forked = forked,
                                              .free_seat = free_seat,
                                              .add_stream = add_stream,
                                              .drop_stream = drop_stream,
                                              .drop = drop,
                                              .settle = drop,
                                              .wants = wants,
                                              .wait = wait_uring,
                                              .attend = attend,
                                              .run = run
#endif
};
