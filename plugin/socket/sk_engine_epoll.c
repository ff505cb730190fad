/* SPDX-License-Identifier: Apache-2.0
 *
 * The engine that waits for readiness. Edges, not levels: a socket that became
 * ready says so once, so a comm must be moved until its sockets would block.
 *
 * Whose read came back short knows that the socket is empty, and whose write
 * did, that it is full; either way the next change makes a new edge. Except
 * for the end of a stream, which may have come together with the last bytes and
 * made one edge with them: after it, reading goes on until it is seen.
 */
#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "plugin/socket/sk_engine_impl.h"

#define EVENTS_AT_ONCE 64

static rail_result_t open_epoll(struct sk_worker *w) {
  struct epoll_event event = {.events = EPOLLIN | EPOLLET}; /* each write to it is an edge: it need not be read */
  w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  if (w->epoll_fd < 0) return RAIL_SYSTEM_ERROR;
  if (epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, w->wake_fd, &event) == 0) return RAIL_OK;
  int err = errno;
  close(w->epoll_fd);
  errno = err;
  return RAIL_SYSTEM_ERROR;
}

/* Also after fork: the set itself is the parent's. */
static void close_epoll(struct sk_worker *w) { close(w->epoll_fd); }

static bool add_stream(struct sk_seat *seat, struct sk_stream *s) {
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = seat};
  return epoll_ctl(seat->worker->epoll_fd, EPOLL_CTL_ADD, s->fd, &event) == 0;
}

/* Not left to close: a descriptor inherited by a child of fork would keep it in the set. */
static void drop_stream(struct sk_seat *seat, struct sk_comm *comm, struct sk_stream *s) {
  (void)comm;
  struct epoll_event event = {0};
  if (s->fd >= 0) epoll_ctl(seat->worker->epoll_fd, EPOLL_CTL_DEL, s->fd, &event);
}

static void drop(struct sk_seat *seat, struct sk_comm *comm) {
  for (uint32_t i = 0; i < comm->nstreams; i++) drop_stream(seat, comm, &comm->streams[i]);
}

static bool wants(const struct sk_comm *comm) { return comm->more; }

static unsigned int wait_epoll(struct sk_worker *w, bool sleep) {
  struct epoll_event events[EVENTS_AT_ONCE];
  int n = epoll_wait(w->epoll_fd, events, EVENTS_AT_ONCE, sleep ? -1 : 0);
  for (int i = 0; i < n; i++) {
    struct sk_seat *seat = events[i].data.ptr;
    if (!seat) continue; /* it has woken us, which was all */
    if (events[i].events & ~(uint32_t)EPOLLOUT) seat->readable = true;
    if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) seat->ended = true;
    sk_worker_enqueue(seat);
  }
  return n > 0 ? (unsigned int)n : 0;
}

static bool run(struct sk_seat *seat, struct sk_comm *comm) {
  bool readable = seat->readable;
  seat->readable = false;
  sk_progress_event(comm, readable);
  if (comm->more || !seat->ended) {
    seat->readable |= comm->more;
    return comm->more;
  }
  seat->ended = false;
  seat->readable = true;
  return true;
}

const struct sk_engine_ops sk_engine_epoll = {.name = "epoll",
                                              .open = open_epoll,
                                              .close = close_epoll,
                                              .forked = close_epoll,
                                              .add_stream = add_stream,
                                              .drop_stream = drop_stream,
                                              .drop = drop,
                                              .wants = wants,
                                              .wait = wait_epoll,
                                              .run = run};
