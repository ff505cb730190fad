/* SPDX-License-Identifier: Apache-2.0
 * A set of pending connections with a limit of its own, whose owner sleeps, as the bootstrap's does: it wants 4 bytes,
 * and keeps the sockets of those who sent them. What is the same for a listener is in test_listener. */
#include "common/conn/pending.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "test/harness/log_lines.h"
#include "test/harness/program.h"

#define LIMIT_MS 20000 /* of each wait */
enum { PLACES = 3, KEPT = 8 };

struct owner {
  struct rail_pending_set set;
  union rail_addr addr;
  int listener, kept[KEPT], nkept, dropped;
};

static bool keep(void *owner, struct rail_pending *conn) {
  struct owner *o = owner;
  rail_result_t result = rail_pending_read(conn, 4);
  if (result == RAIL_IN_PROGRESS) return false;
  CHECK(result == RAIL_OK && o->nkept < KEPT);
  o->kept[o->nkept++] = rail_pending_remove(&o->set, conn);
  return true;
}

static void count(void *owner) { ((struct owner *)owner)->dropped++; }

static void owner_open(struct owner *o, uint64_t hello_ms) {
  static const struct rail_pending_ops ops = {.read = keep, .dropped = count};
  *o = (struct owner){.addr = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}}};
  o->set = (struct rail_pending_set){.ops = &ops, .owner = o, .module = "test", .name = "a port", .size = 4,
                                     .max = PLACES, .hello_ms = hello_ms};
  rail_pending_init(&o->set);
  CHECK_OK(rail_sock_listen(&o->addr, 64, &o->listener));
  CHECK(rail_pending_watch(&o->set, o->listener));
  usleep(110000); /* lines are limited for all sets of the process */
  rail_log_set_sink(log_capture);
  log_forget();
}

static void owner_close(struct owner *o) {
  while (o->nkept) rail_sock_close(&o->kept[--o->nkept]);
  rail_pending_close(&o->set);
  rail_sock_close(&o->listener);
  rail_log_set_sink(NULL);
}

/* What was sent is in the peer's socket. */
static void wait_until_arrived(int fd) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(LIMIT_MS));
  int left = 1;
  while (ioctl(fd, SIOCOUTQ, &left) == 0 && left > 0) CHECK(!rail_deadline_passed(deadline));
  CHECK_INT(left, 0);
}

static int dial(const struct owner *o, const char *bytes) {
  int fd;
  size_t done = 0;
  CHECK_OK(rail_sock_connect_all(&o->addr, NULL, rail_deadline_in_ms(LIMIT_MS), NULL, &fd));
  CHECK_OK(rail_sock_send_some(fd, bytes, strlen(bytes), &done));
  wait_until_arrived(fd);
  return fd;
}

/* Sleeps as an owner does, until so many connections were kept, dropped or are in the set. */
static void run_until(struct owner *o, int so_many) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(LIMIT_MS));
  while (o->nkept + o->dropped + (int)o->set.count < so_many) {
    struct pollfd epoll = {.fd = o->set.epoll, .events = POLLIN};
    uint64_t due = rail_pending_deadline(&o->set);
    (void)poll(&epoll, 1, rail_deadline_left_ms(due ? due : deadline));
    CHECK_OK(rail_pending_poll(&o->set, &o->listener, 1));
    CHECK_MSG(!rail_deadline_passed(deadline), "%d kept, %d dropped", o->nkept, o->dropped);
  }
}

#define POLL_WHILE(o, condition)                                         \
  do {                                                                   \
    uint64_t until = rail_deadline_in_ms(kit_patience_ms(LIMIT_MS));     \
    while (condition) {                                                  \
      CHECK_OK(rail_pending_poll(&(o)->set, &(o)->listener, 1));         \
      CHECK_MSG(!rail_deadline_passed(until), "still: %s", #condition);  \
    }                                                                    \
  } while (0)

static bool is_closed(int fd) {
  char byte;
  return recv(fd, &byte, 1, MSG_DONTWAIT) == 0;
}

/* As if it had come so much earlier. */
static void make_older(struct rail_pending *conn, uint64_t ms) { conn->deadline -= ms * 1000000; }

/* One that has sent everything needs no place; of those that have not, the one that was silent longest goes. */
TEST(a_set_has_so_many_places) {
  struct owner o;
  int fds[PLACES + 1], talking;
  owner_open(&o, kit_patience_ms(LIMIT_MS));
  for (int i = 0; i < PLACES; i++) {
    fds[i] = dial(&o, i == 0 ? "ab" : "");
    run_until(&o, i + 1);
    if (i == 0) POLL_WHILE(&o, TAILQ_FIRST(&o.set.list)->have == 0);
  }
  talking = dial(&o, "abcd");
  run_until(&o, PLACES + 1);
  POLL_WHILE(&o, o.nkept == 0 && o.dropped == 0);
  CHECK_INT(o.nkept, 1);
  CHECK_INT(o.dropped, 0);
  make_older(TAILQ_NEXT(TAILQ_FIRST(&o.set.list), next), 2000);
  fds[PLACES] = dial(&o, "");
  run_until(&o, PLACES + 2);
  CHECK(o.dropped == 1 && o.set.count == PLACES);
  CHECK(!is_closed(fds[0]) && is_closed(fds[1]) && !is_closed(fds[2]) && !is_closed(fds[PLACES]));
  CHECK(log_said("test: accept on a port: dropped a connection from 127.0.0.1:"));
  for (int i = 0; i <= PLACES; i++) rail_sock_close(&fds[i]);
  rail_sock_close(&talking);
  owner_close(&o);
}

/* Clients that send a byte and wait do not keep out one that is only late: the oldest goes. */
TEST(a_late_one_has_its_place) {
  struct owner o;
  int fds[PLACES], late;
  size_t done = 0;
  owner_open(&o, kit_patience_ms(LIMIT_MS));
  for (int i = 0; i < PLACES; i++) {
    fds[i] = dial(&o, "a");
    run_until(&o, i + 1);
    POLL_WHILE(&o, TAILQ_LAST(&o.set.list, rail_pending_list)->have == 0);
  }
  late = dial(&o, "");
  run_until(&o, PLACES + 1);
  CHECK(o.dropped == 1 && is_closed(fds[0]) && !is_closed(late));
  CHECK_OK(rail_sock_send_some(late, "abcd", 4, &done));
  POLL_WHILE(&o, o.nkept == 0);
  for (int i = 0; i < PLACES; i++) rail_sock_close(&fds[i]);
  rail_sock_close(&late);
  owner_close(&o);
}

/* What they sent is there, but has not been read when others come. */
TEST(who_has_spoken_is_not_dropped) {
  struct owner o;
  int fds[PLACES], others[PLACES + 1];
  owner_open(&o, kit_patience_ms(LIMIT_MS));
  for (int i = 0; i < PLACES; i++) fds[i] = dial(&o, "");
  run_until(&o, PLACES);
  for (int i = 0; i < PLACES; i++) {
    size_t done = 0;
    make_older(TAILQ_FIRST(&o.set.list), 2000);
    CHECK_OK(rail_sock_send_some(fds[i], "abcd", 4, &done));
    wait_until_arrived(fds[i]);
  }
  for (int i = 0; i <= PLACES; i++) others[i] = dial(&o, "");
  run_until(&o, 2 * PLACES + 1);
  POLL_WHILE(&o, o.nkept < PLACES && o.dropped < 2);
  CHECK(o.nkept == PLACES && o.dropped == 1);
  for (int i = 0; i < PLACES; i++) rail_sock_close(&fds[i]);
  for (int i = 0; i <= PLACES; i++) rail_sock_close(&others[i]);
  owner_close(&o);
}

TEST(an_owner_sleeps_until_the_deadline) {
  struct owner o;
  owner_open(&o, 50);
  CHECK_INT(rail_pending_deadline(&o.set), 0);
  int fd = dial(&o, "abc");
  run_until(&o, 1);
  CHECK(o.dropped || rail_pending_deadline(&o.set) == TAILQ_FIRST(&o.set.list)->deadline);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(LIMIT_MS));
  while (!o.dropped && !rail_deadline_passed(deadline)) {
    CHECK(poll(NULL, 0, rail_deadline_left_ms(rail_pending_deadline(&o.set))) == 0);
    CHECK_OK(rail_pending_poll(&o.set, &o.listener, 1));
  }
  CHECK(o.dropped == 1 && o.set.count == 0 && rail_pending_deadline(&o.set) == 0);
  rail_sock_close(&fd);
  owner_close(&o);
}

/* With no file to accept with and none that could be closed, the owner is not woken without end; later it is. */
TEST(a_shortage_of_files_pauses_the_listener) {
  struct owner o;
  struct rlimit limit;
  owner_open(&o, kit_patience_ms(LIMIT_MS));
  int fd = dial(&o, "abcd");
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  struct rlimit few = {.rlim_cur = (rlim_t)fd + 1, .rlim_max = limit.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  struct pollfd epoll = {.fd = o.set.epoll, .events = POLLIN};
  CHECK_INT(poll(&epoll, 1, (int)kit_patience_ms(LIMIT_MS)), 1);
  CHECK_OK(rail_pending_poll(&o.set, &o.listener, 1));
  CHECK_INT(poll(&epoll, 1, 0), 0);
  CHECK(rail_pending_deadline(&o.set) != 0);
  CHECK(log_said("test: accept on a port: Too many open files; raise the limit"));
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  run_until(&o, 1);
  POLL_WHILE(&o, o.nkept == 0);
  rail_sock_close(&fd);
  owner_close(&o);
}

TEST_MAIN(TEST_CASE(a_set_has_so_many_places), TEST_CASE(a_late_one_has_its_place),
          TEST_CASE(who_has_spoken_is_not_dropped), TEST_CASE(an_owner_sleeps_until_the_deadline),
          TEST_CASE(a_shortage_of_files_pauses_the_listener))
