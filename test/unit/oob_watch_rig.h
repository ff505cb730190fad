/* SPDX-License-Identifier: Apache-2.0
 * A small plugin without a data path, whose connections a watch thread has: it lingers or not, and has a descriptor
 * besides its connections. */
#ifndef OOB_WATCH_RIG_H
#define OOB_WATCH_RIG_H

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "common/base/sock.h"
#include "common/conn/watch.h"
#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

#define WAIT_MS 20000 /* for what comes at once, on a machine that may stand still */
#define UNTIL(cond)                                                                     \
  do {                                                                                  \
    uint64_t end_ = rail_deadline_in_ms(WAIT_MS);                                       \
    while (!(cond) && !rail_deadline_passed(end_)) poll(NULL, 0, 1);                    \
    CHECK_MSG(cond, "%s: not within %d ms; logged:\n%s", #cond, WAIT_MS, log_lines);    \
  } while (0)

/* ---- the plugin ---- */

struct comm {
  int fd, peer;
  struct rail_watched *handle;
  _Atomic uint32_t events, outstanding;
  _Atomic bool silent, later; /* later: what next says */
  _Atomic int looks;          /* calls of next */
  _Atomic int destroyed, abandoned, seen;
};

static int64_t warn_ms, peer_ms;
static _Atomic int read_bytes;
static _Atomic uint64_t asked; /* calls of work */
static int extra_fd = -1, add_errno;
static bool extra_again = true;

static const struct rail_protocol protocol = {.plugin = "RailToy", .tag = "RTY", .version = 3};

static struct rail_oob_work work(const void *arg) {
  const struct comm *comm = arg;
  atomic_fetch_add(&asked, 1);
  return (struct rail_oob_work){.outstanding = atomic_load(&comm->outstanding)};
}
static void event(void *arg, uint32_t events) { atomic_fetch_or(&((struct comm *)arg)->events, events); }
static void silent(void *arg, bool is) { atomic_store(&((struct comm *)arg)->silent, is); }
static enum rail_oob_next next(void *arg, struct rail_oob_frame *frame) {
  struct comm *comm = arg;
  (void)frame;
  atomic_fetch_add(&comm->looks, 1);
  return atomic_load(&comm->later) ? RAIL_OOB_LATER : RAIL_OOB_NOTHING;
}
static const struct rail_oob_ops oob_ops = {.protocol = &protocol, .work = work, .event = event, .silent = silent,
                                            .next = next};

static void load_limits(struct rail_oob_limits *limits) {
  *limits = (struct rail_oob_limits){.peer_ms = peer_ms, .warn_ms = warn_ms, .deadline_param = "TOY_DEADLINE",
                                     .peer_param = "TOY_PEER"};
}

static bool on_extra(void *arg) {
  uint64_t count = 0;
  if (read(*(const int *)arg, &count, sizeof count) == sizeof count) atomic_fetch_add(&read_bytes, (int)count);
  return extra_again;
}

static bool add_fds(struct rail_watch *watch) {
  static struct rail_watch_fd source;
  errno = add_errno;
  if (add_errno) return false;
  if (extra_fd < 0) return true;
  source = (struct rail_watch_fd){.fd = extra_fd, .readable = on_extra, .arg = &extra_fd};
  return rail_watch_add_fd(watch, &source);
}

static struct rail_watch watch, second;

static void abandon(void *arg) {
  struct comm *comm = arg;
  atomic_fetch_add(&comm->abandoned, 1);
  rail_watch_remove(&watch, &comm->handle, true);
  rail_sock_close(&comm->fd);
}
static void forked(void *arg) { rail_sock_close(&((struct comm *)arg)->fd); }
__attribute__((unused)) static void destroy(void *arg) {
  struct comm *comm = arg;
  rail_sock_close(&comm->fd);
  atomic_fetch_add(&comm->destroyed, 1);
}

static const struct rail_watch_ops ops = {.plugin = "RailToy", .thread_name = "toy-watch", .oob = &oob_ops,
                                          .load_limits = load_limits, .add_fds = add_fds, .abandon = abandon,
                                          .forked = forked};
static struct rail_watch watch = {.ops = &ops}, second __attribute__((unused)) = {.ops = &ops};

/* ---- helpers ---- */

static void add(struct rail_watch *to, struct comm *comm, bool sender, uint64_t process) {
  int fds[2];
  CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds));
  *comm = (struct comm){.fd = fds[0], .peer = fds[1]};
  CHECK_OK(rail_watch_add(to, &(struct rail_watch_args){.comm = comm, .fd = comm->fd, .sender = sender,
                                                       .peer = "10.0.0.2:4711", .device = "toy0",
                                                       .peer_process = process, .handle = &comm->handle}));
  CHECK(comm->handle);
}

__attribute__((unused)) static void end(struct rail_watch *of, struct comm *comm) {
  rail_watch_remove(of, &comm->handle, true);
  CHECK(!comm->handle);
  rail_sock_close(&comm->fd);
  rail_sock_close(&comm->peer);
}

/* Most cases have one comm, of one context. */
static struct comm comm;

__attribute__((unused)) static void begin_one(bool sender) {
  CHECK_OK(rail_watch_begin(&watch));
  add(&watch, &comm, sender, 7);
}

__attribute__((unused)) static void end_one(void) {
  end(&watch, &comm);
  rail_watch_end(&watch);
}

__attribute__((unused)) static void send_frame(const struct comm *c, enum rail_oob_frame_type type, uint64_t number) {
  uint8_t wire[RAIL_OOB_FRAME_SIZE];
  rail_oob_frame_encode(&protocol, &(struct rail_oob_frame){type, number}, wire);
  CHECK_INT(write(c->peer, wire, sizeof wire), sizeof wire);
}

/* Its type; 0: the end; -1: none within `ms`. */
static int frame_within(const struct comm *c, int ms, uint64_t *number) {
  uint8_t wire[RAIL_OOB_FRAME_SIZE];
  struct rail_oob_frame frame;
  struct pollfd p = {.fd = c->peer, .events = POLLIN};
  if (poll(&p, 1, ms) != 1) return -1;
  ssize_t n = read(c->peer, wire, sizeof wire);
  if (n <= 0) return 0;
  CHECK_INT(n, sizeof wire);
  CHECK(rail_oob_frame_decode(&protocol, wire, &frame));
  *number = frame.number;
  return (int)frame.type;
}
__attribute__((unused)) static int next_frame(const struct comm *c) {
  uint64_t number;
  return frame_within(c, WAIT_MS, &number);
}

#endif
