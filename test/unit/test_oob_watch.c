/* SPDX-License-Identifier: Apache-2.0
 * The watch thread of any plugin, and what it reads from oob connections. Many of them: test_oob_watch_many. Time
 * limits are tested with the ib plugin: test_ib_silence. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include "test/unit/oob_watch_rig.h"

static int open_fds(void) {
  int count = 0;
  for (int fd = 0; fd < 256; fd++) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

/* Threads of ours, and (may be NULL) the processor time in ns that the last of them took. */
static int threads(uint64_t *ns) {
  int count = 0;
  DIR *dir = opendir("/proc/self/task");
  for (struct dirent *e; dir && (e = readdir(dir));) {
    char path[300], text[64] = "";
    snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", e->d_name);
    FILE *f = fopen(path, "r");
    if (!f) continue;
    bool ours = fgets(text, sizeof text, f) && strncmp(text, "toy-watch", 9) == 0;
    fclose(f);
    count += ours;
    snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", e->d_name);
    if (!ours || !ns || !(f = fopen(path, "r"))) continue;
    if (fscanf(f, "%" SCNu64, ns) != 1) *ns = 0;
    fclose(f);
  }
  if (dir) closedir(dir);
  return count;
}

/* ---- the thread ---- */

TEST(start_and_stop) {
  int fds = open_fds();
  CHECK_INT(threads(NULL), 0);
  for (int i = 0; i < 100; i++) {
    CHECK_OK(rail_watch_begin(&watch));
    CHECK_OK(rail_watch_begin(&watch));
    if (i % 2) add(&watch, &comm, true, 7);
    if (i == 7) UNTIL(threads(NULL) == 1); /* it gets its name a moment later */
    rail_watch_end(&watch);
    if (i % 2) end(&watch, &comm);
    rail_watch_end(&watch);
    CHECK_INT(open_fds(), fds);
  }
  UNTIL(threads(NULL) == 0); /* a thread that was joined is in /proc a moment longer */
}

/* Nothing is outstanding: a tick a second at most. */
TEST(sleeps) {
  uint64_t before = 0, after = 0;
  warn_ms = 10000;
  begin_one(true);
  poll(NULL, 0, 50);
  UNTIL(threads(&before) == 1);
  poll(NULL, 0, 400);
  CHECK_INT(threads(&after), 1);
  CHECK_MSG(after - before < 5000000, "it ran for %" PRIu64 " ns", after - before);
  end_one();
  warn_ms = 0;
}

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
  rail_watch_end(&watch);
  add(&watch, &comms[0], true, 7); /* another context is open */
  end(&watch, &comms[0]);
  rail_watch_end(&watch);
  rail_watch_end(&watch); /* once too often */
  CHECK_INT(open_fds(), fds);
}

/* ---- oob connections ---- */

TEST(frames_become_events) {
  begin_one(false);
  send_frame(&comm, RAIL_OOB_GOODBYE, 0);
  UNTIL(atomic_load(&comm.events) & RAIL_OOB_PEER_CLOSED);
  CHECK(!(atomic_load(&comm.events) & RAIL_OOB_PEER_LOST));
  end(&watch, &comm);
  add(&watch, &comm, true, 7);
  rail_sock_close(&comm.peer); /* without GOODBYE */
  UNTIL(atomic_load(&comm.events) & RAIL_OOB_PEER_LOST);
  end_one();
}

/* A message whose field at `at` is another is none. */
TEST(garbage) {
  static const struct { size_t at; uint8_t value; } bad[] = {
    {0, 'X'}, {4, 1}, {6, 0}, {6, 5}, {7, 1}, {8, 31}, {11, 1}, {12, 1}, {24, 1}, {31, 0x80}};
  CHECK_OK(rail_watch_begin(&watch));
  for (size_t i = 0; i < RAIL_COUNT_OF(bad); i++) {
    uint8_t wire[RAIL_OOB_FRAME_SIZE];
    add(&watch, &comm, true, 7);
    log_forget();
    rail_oob_frame_encode(&protocol, &(struct rail_oob_frame){RAIL_OOB_PING, 5}, wire);
    wire[bad[i].at] = bad[i].value;
    CHECK_INT(write(comm.peer, wire, sizeof wire), sizeof wire);
    UNTIL(atomic_load(&comm.events));
    CHECK_INT(atomic_load(&comm.events), RAIL_OOB_PEER_LOST);
    /* The line is written afterwards. */
    UNTIL(log_said("invalid frame on the oob connection") && log_said("10.0.0.2:4711"));
    end(&watch, &comm);
  }
  add(&watch, &comm, true, 7);
  send_frame(&comm, RAIL_OOB_PONG, 1); /* an answer that was not asked for */
  UNTIL(atomic_load(&comm.events) == RAIL_OOB_PEER_LOST);
  end_one();
}

TEST(ping_is_answered) {
  uint64_t number = 0;
  uint8_t wire[RAIL_OOB_FRAME_SIZE];
  begin_one(true);
  for (uint64_t i = 7; i < 12; i++) {
    send_frame(&comm, RAIL_OOB_PING, i << 40);
    CHECK_INT(frame_within(&comm, WAIT_MS, &number), RAIL_OOB_PONG);
    CHECK(number == i << 40);
  }
  rail_oob_frame_encode(&protocol, &(struct rail_oob_frame){RAIL_OOB_PING, 3}, wire); /* bytewise */
  for (size_t i = 0; i < sizeof wire; i++) {
    CHECK_INT(write(comm.peer, wire + i, 1), 1);
    if (i % 8 == 0) poll(NULL, 0, 1);
  }
  CHECK_INT(frame_within(&comm, WAIT_MS, &number), RAIL_OOB_PONG);
  CHECK_INT(number, 3);
  CHECK_INT(atomic_load(&comm.events), 0);
  end_one();
}

/* A peer that sends PINGs and does not read: one PONG is due, not one per PING. */
TEST(a_peer_that_does_not_read) {
  int pongs = 0, small = 4096;
  uint64_t number = 0, last = 0;
  begin_one(true);
  CHECK_OK(setsockopt(comm.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
  for (uint64_t i = 1; i <= 2000; i++) {
    struct pollfd p = {.fd = comm.peer, .events = POLLOUT};
    CHECK_INT(poll(&p, 1, WAIT_MS), 1);
    send_frame(&comm, RAIL_OOB_PING, i);
  }
  while (last < 2000 && frame_within(&comm, WAIT_MS, &number) == RAIL_OOB_PONG) {
    CHECK(number > last);
    last = number;
    pongs++;
  }
  CHECK_INT(last, 2000);
  CHECK_INT(frame_within(&comm, 100, &number), -1);
  CHECK_MSG(pongs < 500, "%d answers were kept for a peer that read none", pongs);
  CHECK_INT(atomic_load(&comm.events), 0);
  end_one();
}

TEST(what_remove_sends) {
  begin_one(false);
  rail_watch_remove(&watch, &comm.handle, true);
  CHECK_INT(next_frame(&comm), RAIL_OOB_GOODBYE);
  CHECK_INT(next_frame(&comm), 0);
  end(&watch, &comm);
  add(&watch, &comm, false, 7);
  rail_watch_remove(&watch, &comm.handle, false); /* without GOODBYE */
  rail_sock_close(&comm.fd);
  CHECK_INT(next_frame(&comm), 0);
  end_one();
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
  static struct comm told, timed, gone, late, last, never;
  CHECK_OK(rail_watch_begin(&watch));
  CHECK(!rail_watch_linger(&watch, &never.handle, 1, false, destroy)); /* not watched: it is still the caller's */
  add(&watch, &told, false, 7);
  add(&watch, &gone, false, 7);
  add(&watch, &timed, false, 7);
  add(&watch, &late, true, 7);
  add(&watch, &last, false, 7);
  CHECK(rail_watch_linger(&watch, &told.handle, 600000, false, destroy) && !told.handle);
  CHECK_INT(next_frame(&told), RAIL_OOB_GOODBYE);
  CHECK_INT(atomic_load(&told.destroyed), 0);
  send_frame(&told, RAIL_OOB_DRAINED, 0);
  UNTIL(atomic_load(&told.destroyed) == 1);
  CHECK(rail_watch_linger(&watch, &gone.handle, 600000, false, destroy));
  rail_sock_close(&gone.peer);
  UNTIL(atomic_load(&gone.destroyed) == 1);
  CHECK(rail_watch_linger(&watch, &timed.handle, 30, false, destroy));
  UNTIL(atomic_load(&timed.destroyed) == 1);
  uint64_t begun = rail_now_ns();
  CHECK(rail_watch_linger(&watch, &late.handle, 30, true, destroy));
  CHECK(next_frame(&late) == RAIL_OOB_GOODBYE && rail_now_ns() - begun >= 30 * 1000000ull);
  CHECK(rail_watch_linger(&watch, &last.handle, 30, false, destroy));
  rail_watch_end(&watch); /* waits for it */
  CHECK(atomic_load(&late.destroyed) == 1 && atomic_load(&last.destroyed) == 1);
  rail_sock_close(&told.peer);
  rail_sock_close(&timed.peer);
  rail_sock_close(&late.peer);
  rail_sock_close(&last.peer);
}

static void see(void *arg_comm, void *arg) {
  struct comm *c = arg_comm;
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
  add(&watch, &comm, true, 7);
  send_frame(&comm, RAIL_OOB_PING, 1);
  CHECK_INT(next_frame(&comm), RAIL_OOB_PONG);
  CHECK_INT(atomic_load(&read_bytes), 6);
  end_one();
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
  CHECK_INT(rail_watch_add(&watch, &(struct rail_watch_args){.comm = &comm, .fd = -1, .peer = "10.0.0.2:4711",
                                                             .device = "toy0", .handle = &comm.handle}),
            RAIL_SYSTEM_ERROR);
  CHECK(!comm.handle && log_said("cannot be watched: Bad file descriptor"));
  rail_watch_end(&watch);
  CHECK_INT(open_fds(), fds);
}

TEST(never_closed) {
  log_forget();
  begin_one(true);
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
  static struct comm closed;
  int status;
  CHECK_OK(rail_watch_begin(&watch));
  CHECK_OK(rail_watch_begin(&second));
  add(&watch, &comm, true, 7);
  add(&second, &closed, false, 7);
  CHECK(rail_watch_linger(&second, &closed.handle, 600000, false, destroy));
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
  end_one();
  CHECK_INT(atomic_load(&closed.destroyed), 0);
  rail_sock_close(&closed.peer);
  rail_watch_end(&second);
  CHECK_INT(atomic_load(&closed.destroyed), 1);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {
    TEST_CASE(start_and_stop), TEST_CASE(sleeps), TEST_CASE(add_and_remove), TEST_CASE(frames_become_events),
    TEST_CASE(garbage), TEST_CASE(ping_is_answered), TEST_CASE(a_peer_that_does_not_read),
    TEST_CASE(what_remove_sends), TEST_CASE(silent_processes), TEST_CASE(lingering),
    TEST_CASE(each_of_two), TEST_CASE(another_descriptor), TEST_CASE(begin_fails), TEST_CASE(never_closed),
    TEST_CASE(fork_leaves_the_parent_alone),
  };
  rail_log_set_sink(log_capture);
  return tap_main(argc, argv, cases, sizeof cases / sizeof cases[0]);
}
