/* SPDX-License-Identifier: Apache-2.0
 * The watch thread of any plugin: a small one without a data path, which lingers or not and has a descriptor besides its
 * connections. Silence, garbage, sleep and time limits are tested with the ib plugin: test_ib_watch, test_ib_silence. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
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
  _Atomic bool silent;
  _Atomic int destroyed, abandoned, seen;
};

static int64_t warn_ms, peer_ms;
static _Atomic int read_bytes;
static int extra_fd = -1, add_errno;
static bool extra_again = true;

static const struct rail_protocol protocol = {.plugin = "RailToy", .tag = "RTY", .version = 1};

static struct rail_oob_work work(const void *arg) {
  const struct comm *comm = arg;
  return (struct rail_oob_work){.outstanding = atomic_load(&comm->outstanding)};
}
static void event(void *arg, uint32_t events) {
  struct comm *comm = arg;
  atomic_fetch_or(&comm->events, events);
}
static void silent(void *arg, bool is) {
  struct comm *comm = arg;
  atomic_store(&comm->silent, is);
}
static const struct rail_oob_ops oob_ops = {.protocol = &protocol, .work = work, .event = event, .silent = silent};

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
static void forked(void *arg) {
  struct comm *comm = arg;
  rail_sock_close(&comm->fd);
}
static void destroy(void *arg) {
  struct comm *comm = arg;
  rail_sock_close(&comm->fd);
  atomic_fetch_add(&comm->destroyed, 1);
}

static const struct rail_watch_ops ops = {.plugin = "RailToy", .thread_name = "toy-watch", .oob = &oob_ops,
                                          .load_limits = load_limits, .add_fds = add_fds, .abandon = abandon,
                                          .forked = forked};
static struct rail_watch watch = {.ops = &ops}, second = {.ops = &ops};

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

static void end(struct rail_watch *of, struct comm *comm) {
  rail_watch_remove(of, &comm->handle, true);
  CHECK(!comm->handle);
  rail_sock_close(&comm->fd);
  rail_sock_close(&comm->peer);
}

static void send_frame(const struct comm *comm, enum rail_oob_frame_type type, uint64_t number) {
  uint8_t wire[RAIL_OOB_FRAME_SIZE];
  rail_oob_frame_encode(&protocol, &(struct rail_oob_frame){type, number}, wire);
  CHECK_INT(write(comm->peer, wire, sizeof wire), sizeof wire);
}

/* Its type; 0: the end. */
static int next_frame(const struct comm *comm) {
  uint8_t wire[RAIL_OOB_FRAME_SIZE];
  struct rail_oob_frame frame;
  struct pollfd p = {.fd = comm->peer, .events = POLLIN};
  CHECK_INT(poll(&p, 1, WAIT_MS), 1);
  ssize_t n = read(comm->peer, wire, sizeof wire);
  if (n <= 0) return 0;
  CHECK_INT(n, sizeof wire);
  CHECK(rail_oob_frame_decode(&protocol, wire, &frame));
  return (int)frame.type;
}

static int open_fds(void) {
  int count = 0;
  for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

/* ---- cases ---- */

/* Of a comm that is removed the thread touches nothing: its memory is overwritten at once. */
TEST(add_and_remove) {
  static struct comm comms[8];
  int fds = open_fds();
  CHECK_OK(rail_watch_begin(&watch));
  CHECK_OK(rail_watch_begin(&watch));
  for (int round = 0; round < 200; round++) {
    for (int i = 0; i < 8; i++) add(&watch, &comms[i], i & 1, 7);
    for (int i = 0; i < 8; i++) send_frame(&comms[i], RAIL_OOB_PING, 1);
    if (round % 50 == 0) CHECK_INT(next_frame(&comms[3]), RAIL_OOB_PONG);
    for (int i = 0; i < 8; i++) {
      end(&watch, &comms[i]);
      memset(&comms[i], 0xee, sizeof comms[i]);
    }
  }
  struct rail_watched *none = NULL;
  rail_watch_remove(&watch, &none, true);
  rail_watch_end(&watch);
  add(&watch, &comms[0], true, 7); /* another context is open */
  end(&watch, &comms[0]);
  rail_watch_end(&watch);
  rail_watch_end(&watch); /* once too often */
  CHECK_INT(open_fds(), fds);
}

TEST(frames_become_events) {
  static struct comm comm;
  CHECK_OK(rail_watch_begin(&watch));
  add(&watch, &comm, false, 7);
  send_frame(&comm, RAIL_OOB_GOODBYE, 0);
  UNTIL(atomic_load(&comm.events) & RAIL_OOB_PEER_CLOSED);
  CHECK(!(atomic_load(&comm.events) & RAIL_OOB_PEER_LOST));
  end(&watch, &comm);
  add(&watch, &comm, true, 7);
  rail_sock_close(&comm.peer); /* without GOODBYE */
  UNTIL(atomic_load(&comm.events) & RAIL_OOB_PEER_LOST);
  end(&watch, &comm);
  rail_watch_end(&watch);
}

TEST(what_remove_sends) {
  static struct comm comm;
  CHECK_OK(rail_watch_begin(&watch));
  add(&watch, &comm, false, 7);
  rail_watch_remove(&watch, &comm.handle, true);
  CHECK_INT(next_frame(&comm), RAIL_OOB_GOODBYE);
  CHECK_INT(next_frame(&comm), 0);
  end(&watch, &comm);
  add(&watch, &comm, false, 7);
  rail_watch_remove(&watch, &comm.handle, false); /* without GOODBYE */
  rail_sock_close(&comm.fd);
  CHECK_INT(next_frame(&comm), 0);
  end(&watch, &comm);
  rail_watch_end(&watch);
}

/* One process is reported once, two are reported twice; neither is an event before its limit. */
TEST(silent_processes) {
  static struct comm comms[6];
  warn_ms = 100;
  log_forget();
  CHECK_OK(rail_watch_begin(&watch));
  poll(NULL, 0, 50); /* most likely it sleeps then, without ticks */
  for (uint64_t i = 0; i < 6; i++) {
    add(&watch, &comms[i], true, i < 3 ? 7 : 8);
    atomic_store(&comms[i].outstanding, 1);
  }
  UNTIL(log_warnings() >= 2);
  for (int i = 0; i < 6; i++) UNTIL(atomic_load(&comms[i].silent));
  poll(NULL, 0, 200);
  CHECK_INT(log_warnings(), 2);
  for (int i = 0; i < 6; i++) {
    CHECK_INT(atomic_load(&comms[i].events), 0);
    end(&watch, &comms[i]);
  }
  rail_watch_end(&watch);
  warn_ms = 0;
}

TEST(lingering) {
  static struct comm told, timed, gone, last, never;
  CHECK_OK(rail_watch_begin(&watch));
  CHECK(!rail_watch_linger(&watch, &never.handle, 1, destroy)); /* not watched: it is still the caller's */
  add(&watch, &told, false, 7);
  add(&watch, &gone, false, 7);
  add(&watch, &timed, false, 7);
  add(&watch, &last, false, 7);
  CHECK(rail_watch_linger(&watch, &told.handle, 600000, destroy) && !told.handle);
  CHECK_INT(next_frame(&told), RAIL_OOB_GOODBYE);
  CHECK_INT(atomic_load(&told.destroyed), 0);
  send_frame(&told, RAIL_OOB_DRAINED, 0);
  UNTIL(atomic_load(&told.destroyed) == 1);
  CHECK(rail_watch_linger(&watch, &gone.handle, 600000, destroy));
  rail_sock_close(&gone.peer);
  UNTIL(atomic_load(&gone.destroyed) == 1);
  CHECK(rail_watch_linger(&watch, &timed.handle, 30, destroy));
  UNTIL(atomic_load(&timed.destroyed) == 1);
  CHECK(rail_watch_linger(&watch, &last.handle, 30, destroy));
  rail_watch_end(&watch); /* waits for it */
  CHECK_INT(atomic_load(&last.destroyed), 1);
  rail_sock_close(&told.peer);
  rail_sock_close(&timed.peer);
  rail_sock_close(&last.peer);
}

static void see(void *comm, void *arg) {
  struct comm *c = comm;
  atomic_fetch_add(&c->seen, *(const int *)arg);
}

/* Those that two watches have are apart. */
TEST(each_of_two) {
  static struct comm comms[3];
  int one = 1, two = 2;
  CHECK_OK(rail_watch_begin(&watch));
  CHECK_OK(rail_watch_begin(&second));
  add(&watch, &comms[0], true, 7);
  add(&watch, &comms[1], true, 7);
  add(&second, &comms[2], true, 7);
  rail_watch_each(&watch, see, &one);
  rail_watch_each(&second, see, &two);
  CHECK(comms[0].seen == 1 && comms[1].seen == 1 && comms[2].seen == 2);
  end(&watch, &comms[0]);
  end(&watch, &comms[1]);
  rail_watch_end(&watch);
  send_frame(&comms[2], RAIL_OOB_PING, 1);
  CHECK_INT(next_frame(&comms[2]), RAIL_OOB_PONG);
  end(&second, &comms[2]);
  rail_watch_end(&second);
}

TEST(another_descriptor) {
  uint64_t count = 3;
  int fds = open_fds();
  extra_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  CHECK_OK(rail_watch_begin(&watch));
  CHECK_INT(write(extra_fd, &count, sizeof count), sizeof count);
  UNTIL(atomic_load(&read_bytes) == 3);
  rail_watch_end(&watch);
  extra_again = false; /* the thread asks no more, and does not spin */
  CHECK_OK(rail_watch_begin(&watch));
  CHECK_INT(write(extra_fd, &count, sizeof count), sizeof count);
  UNTIL(atomic_load(&read_bytes) == 6);
  CHECK_INT(write(extra_fd, &count, sizeof count), sizeof count);
  static struct comm comm;
  add(&watch, &comm, true, 7);
  send_frame(&comm, RAIL_OOB_PING, 1);
  CHECK_INT(next_frame(&comm), RAIL_OOB_PONG);
  CHECK_INT(atomic_load(&read_bytes), 6);
  end(&watch, &comm);
  rail_watch_end(&watch);
  extra_again = true;
  rail_sock_close(&extra_fd);
  CHECK_INT(open_fds(), fds);
}

TEST(begin_fails) {
  int fds = open_fds();
  add_errno = ENOSPC;
  log_forget();
  CHECK_INT(rail_watch_begin(&watch), RAIL_SYSTEM_ERROR);
  CHECK(log_said("RailToy: init: no thread to watch connections: No space left on device"));
  rail_watch_end(&watch);
  CHECK_INT(open_fds(), fds);
  add_errno = 0;
  CHECK_OK(rail_watch_begin(&watch));
  static struct comm comm;
  CHECK_INT(rail_watch_add(&watch, &(struct rail_watch_args){.comm = &comm, .fd = -1, .peer = "10.0.0.2:4711",
                                                             .device = "toy0", .handle = &comm.handle}),
            RAIL_SYSTEM_ERROR);
  CHECK(!comm.handle && log_said("cannot be watched: Bad file descriptor"));
  rail_watch_end(&watch);
  CHECK_INT(open_fds(), fds);
}

TEST(never_closed) {
  static struct comm comm;
  log_forget();
  CHECK_OK(rail_watch_begin(&watch));
  add(&watch, &comm, true, 7);
  rail_watch_end(&watch);
  CHECK_INT(atomic_load(&comm.abandoned), 1);
  CHECK(log_said("RailToy: finalize: connection with 10.0.0.2:4711 over toy0 was never closed"));
  CHECK_INT(next_frame(&comm), RAIL_OOB_GOODBYE);
  CHECK_INT(next_frame(&comm), 0);
  CHECK(comm.fd < 0 && !comm.handle);
  rail_watch_remove(&watch, &comm.handle, true); /* a late close */
  rail_sock_close(&comm.peer);
}

/* The child has nothing; the parent goes on. */
TEST(fork_leaves_the_parent_alone) {
  static struct comm comm, closed;
  int status;
  CHECK_OK(rail_watch_begin(&watch));
  CHECK_OK(rail_watch_begin(&second));
  add(&watch, &comm, true, 7);
  add(&second, &closed, false, 7);
  CHECK(rail_watch_linger(&second, &closed.handle, 600000, destroy));
  CHECK_INT(next_frame(&closed), RAIL_OOB_GOODBYE);
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    bool ok = comm.fd < 0 && !comm.handle && closed.fd < 0;
    rail_watch_remove(&watch, &comm.handle, true);
    rail_watch_end(&watch);
    _exit(ok ? 0 : 1);
  }
  CHECK_INT(waitpid(pid, &status, 0), pid);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  send_frame(&comm, RAIL_OOB_PING, 1);
  CHECK_INT(next_frame(&comm), RAIL_OOB_PONG); /* and nothing before it */
  CHECK_INT(atomic_load(&comm.events), 0);
  end(&watch, &comm);
  rail_watch_end(&watch);
  CHECK_INT(atomic_load(&closed.destroyed), 0);
  rail_sock_close(&closed.peer);
  rail_watch_end(&second);
  CHECK_INT(atomic_load(&closed.destroyed), 1);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(add_and_remove),
    TEST_CASE(frames_become_events),
    TEST_CASE(what_remove_sends),
    TEST_CASE(silent_processes),
    TEST_CASE(lingering),
    TEST_CASE(each_of_two),
    TEST_CASE(another_descriptor),
    TEST_CASE(begin_fails),
    TEST_CASE(never_closed),
    TEST_CASE(fork_leaves_the_parent_alone),
  };
  rail_log_set_sink(log_capture);
  return tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
