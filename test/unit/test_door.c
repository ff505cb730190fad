/* SPDX-License-Identifier: Apache-2.0
 * Strangers at the doors. The host of these doors wants "OPEN" and 12 more bytes; it keeps those that end in "please"
 * and answers the others. */
#include "common/conn/door.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "test/harness/log_lines.h"
#include "test/harness/program.h"

#define PATIENCE_MS 10000
#define GOOD "OPEN up, please!"
#define RUDE "OPEN up, now!!!!"
#define REPLY "say please"
enum { SIZE = 16, GUESTS = 8 };

/* ---- a host --------------------------------------------------------------- */

struct host {
  struct rail_doors doors;
  union rail_addr addrs[2];
  int guests[GUESTS], nguests;
  unsigned int door; /* of the latest guest */
  union rail_addr peer;
  int strangers, refused;
};

static bool plausible(void *arg, const struct rail_stranger *s, struct rail_refusal *refusal) {
  (void)arg;
  CHECK(s->have < SIZE);
  for (size_t i = s->have; i < SIZE; i++) CHECK_INT(s->message[i], 0);
  if (memcmp(s->message, GOOD, RAIL_MIN(s->have, 4)) == 0) return true;
  strcpy(refusal->why, "not a visitor");
  return false;
}

static bool whole(void *arg, const struct rail_stranger *s, struct rail_refusal *refusal) {
  struct host *h = arg;
  CHECK_INT(s->have, SIZE);
  CHECK_INT((uintptr_t)s->message % 16, 0);
  if (memcmp(s->message, GOOD, SIZE) == 0 && h->nguests < GUESTS) {
    h->guests[h->nguests++] = s->fd;
    h->door = s->door;
    h->peer = s->peer;
    return true;
  }
  strcpy(refusal->why, "no manners");
  strcpy((char *)refusal->reply, REPLY);
  refusal->reply_size = sizeof REPLY;
  return false;
}

static void count(void *arg, enum rail_door_event event) {
  struct host *h = arg;
  if (event == RAIL_DOOR_REFUSED) h->refused++;
  else h->strangers++;
}

static const struct rail_door_rules rules = {
  .plugin = "RailTest", .message_size = SIZE, .plausible = plausible, .whole = whole, .count = count};

static void host_open(struct host *h, uint64_t patience_ms) {
  *h = (struct host){.nguests = 0};
  rail_doors_init(&h->doors, &rules, h, "lo0+lo1", patience_ms);
  for (unsigned int i = 0; i < 2; i++) {
    int fd;
    h->addrs[i].in = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + i)};
    CHECK_OK(rail_sock_listen(&h->addrs[i], RAIL_DOOR_BACKLOG, &fd));
    rail_doors_add(&h->doors, fd);
  }
  rail_log_set_sink(log_capture);
  log_forget();
}

static void host_close(struct host *h) {
  while (h->nguests) rail_sock_close(&h->guests[--h->nguests]);
  rail_doors_close(&h->doors);
  rail_log_set_sink(NULL);
}

static int knock(const struct host *h, unsigned int door, const char *words) {
  int fd;
  size_t done = 0;
  CHECK_OK(rail_sock_connect_all(&h->addrs[door], NULL, rail_deadline_in_ms(PATIENCE_MS), NULL, &fd));
  CHECK_OK(rail_sock_send_some(fd, words, strlen(words), &done));
  return fd;
}

/* Looks until `so_many` are kept, turned away and in the table. */
static void look(struct host *h, int so_many) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(PATIENCE_MS));
  do {
    CHECK_OK(rail_doors_step(&h->doors));
    CHECK_MSG(!rail_deadline_passed(deadline), "nobody came");
    sched_yield();
  } while (h->nguests + h->strangers + h->refused + (int)h->doors.nstrangers < so_many);
}

static void look_until_out(struct host *h, int turned_away) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(PATIENCE_MS));
  while (h->strangers + h->refused < turned_away) {
    CHECK_OK(rail_doors_step(&h->doors));
    CHECK_MSG(!rail_deadline_passed(deadline), "nobody was turned away");
    sched_yield();
  }
}

/* What came until the end of the stream, which must not be a reset; closes fd. */
static size_t last_words(int fd, char *text, size_t size) {
  size_t done = 0;
  int reset = -1;
  socklen_t len = sizeof reset;
  CHECK_INT(rail_sock_recv_all(fd, text, size, rail_deadline_in_ms(PATIENCE_MS), NULL), RAIL_REMOTE_ERROR);
  CHECK_INT(errno, 0);
  CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &reset, &len) == 0);
  CHECK_INT(reset, 0); /* here the words came before one, elsewhere it may overtake them */
  while (done < size && text[done]) done++;
  rail_sock_close(&fd);
  return done;
}

/* Lines are limited for all doors of the process. */
static void wait_for_a_line(void) { usleep(110000); }

/* ---- guests --------------------------------------------------------------- */

TEST(a_guest_at_each_door) {
  struct host h;
  host_open(&h, PATIENCE_MS);
  for (unsigned int door = 0; door < 2; door++) {
    union rail_addr own;
    socklen_t len = sizeof own;
    int fd = knock(&h, door, GOOD);
    CHECK(getsockname(fd, &own.sa, &len) == 0);
    look(&h, (int)door + 1);
    CHECK(h.nguests == (int)door + 1 && h.door == door && rail_addr_port(&h.peer) == rail_addr_port(&own));
    CHECK_INT(h.doors.nstrangers, 0);
    CHECK_INT(h.doors.epoll, -1); /* nobody had to be waited for */
    rail_sock_close(&fd);
  }
  CHECK_STR(log_lines, "");
  host_close(&h);
}

TEST(a_message_in_pieces_and_what_follows) {
  struct host h;
  char more[5] = "";
  size_t done = 0;
  host_open(&h, PATIENCE_MS);
  int fd = knock(&h, 0, "");
  look(&h, 1);
  for (size_t at = 0; at < SIZE; at += 4) {
    CHECK_INT(h.nguests, 0);
    CHECK(send(fd, &(GOOD "more")[at], at == 12 ? 8 : 4, MSG_NOSIGNAL) > 0);
    for (int i = 0; i < 20; i++) CHECK_OK(rail_doors_step(&h.doors));
  }
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(PATIENCE_MS));
  while (!h.nguests && !rail_deadline_passed(deadline)) CHECK_OK(rail_doors_step(&h.doors));
  CHECK_INT(h.nguests, 1);
  CHECK_OK(rail_sock_recv_some(h.guests[0], more, 4, &done)); /* the guest's next words are the host's to read */
  CHECK_STR(more, "more");
  CHECK_INT(h.strangers + h.refused, 0);
  rail_sock_close(&fd);
  host_close(&h);
}

/* ---- those that are turned away --------------------------------------------- */

TEST(a_refusal_arrives) {
  struct host h;
  char said[64] = "";
  host_open(&h, PATIENCE_MS);
  wait_for_a_line();
  int fd = knock(&h, 1, RUDE " and more than was asked for"); /* unread bytes must not make a reset of it */
  look_until_out(&h, 1);
  CHECK(h.refused == 1 && h.strangers == 0);
  CHECK_INT(last_words(fd, said, sizeof said), sizeof REPLY - 1);
  CHECK_STR(said, REPLY);
  CHECK(log_said("RailTest: accept on lo0+lo1: dropped a connection from 127.0.0.1:"));
  CHECK(log_said(": no manners; still listening\n"));
  host_close(&h);
}

static void check_stranger(const char *words, bool hang_up, const char *why) {
  struct host h;
  char said[8] = "";
  host_open(&h, PATIENCE_MS);
  wait_for_a_line();
  int fd = knock(&h, 0, words);
  if (hang_up) CHECK(shutdown(fd, SHUT_WR) == 0);
  look_until_out(&h, 1);
  CHECK_MSG(h.strangers == 1 && log_said(why), "%s: it said: %s", words, log_lines);
  CHECK_INT(last_words(fd, said, sizeof said), 0);
  host_close(&h);
}

TEST(strangers) {
  check_stranger("GET", false, "not a visitor");
  check_stranger("GET", true, "not a visitor");
  check_stranger("O", true, "it closed the connection before a whole hello");
  check_stranger("", true, "it closed the connection before a whole hello");
}

#define SILENCE_MS 500 /* both must have come before it is over, on a machine with other work, too */

TEST(silence_ends_with_the_patience) {
  struct host h;
  host_open(&h, SILENCE_MS);
  wait_for_a_line();
  int silent = knock(&h, 0, "");
  uint64_t start = rail_now_ns();
  look(&h, 1);
  int slow = knock(&h, 1, "OPEN");
  look(&h, 2);
  CHECK_INT(h.doors.nstrangers, 2);
  look_until_out(&h, 1);
  CHECK(rail_now_ns() - start >= SILENCE_MS * 1000000ull && log_said("it said nothing within the time limit"));
  look_until_out(&h, 2);
  rail_sock_close(&slow);
  wait_for_a_line();
  h.doors.next_line = 0;
  slow = knock(&h, 1, "OPEN");
  look_until_out(&h, 3);
  CHECK(h.strangers == 3 && log_said("it said only part of a hello within the time limit"));
  CHECK(log_said("(and 1 others since the last line)"));
  rail_sock_close(&silent);
  rail_sock_close(&slow);
  host_close(&h);
}

TEST(later_ones_of_the_host) {
  struct host h;
  union rail_addr peer = {.in = {.sin_family = AF_INET}};
  host_open(&h, PATIENCE_MS);
  wait_for_a_line();
  rail_doors_log(&h.doors, &peer, "it changed its mind");
  CHECK(log_said("RailTest: accept on lo0+lo1: dropped a connection from 0.0.0.0:0: it changed its mind"));
  host_close(&h);
}

/* ---- crowds ---------------------------------------------------------------- */

TEST(a_table_has_an_end) {
  enum { CROWD = 1024 };
  struct host h;
  struct rlimit limit;
  static int fds[CROWD + 2];
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_max < 4 * CROWD + 100) tap_skip_case("fewer than %d open files allowed", 4 * CROWD + 100);
  struct rlimit more = {.rlim_cur = RAIL_MAX(limit.rlim_cur, 4 * CROWD + 100), .rlim_max = limit.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &more) == 0);
  host_open(&h, PATIENCE_MS * 10);
  wait_for_a_line();
  for (int i = 0; i < CROWD; i++) {
    fds[i] = knock(&h, 0, i == 0 ? "OPEN" : ""); /* the first has begun to speak: it is not the first to go */
    if (i % 64 == 0) look(&h, i + 1);
  }
  look(&h, CROWD);
  CHECK(h.doors.nstrangers == CROWD && h.strangers == 0);
  fds[CROWD] = knock(&h, 0, GOOD); /* who has said everything needs no place */
  look(&h, CROWD + 1);
  CHECK(h.nguests == 1 && h.strangers == 0);
  fds[CROWD + 1] = knock(&h, 0, ""); /* the one that is silent longest has to leave */
  look_until_out(&h, 1);
  char none;
  CHECK(h.strangers == 1 && h.doors.nstrangers == CROWD);
  CHECK(recv(fds[0], &none, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
  CHECK_INT(recv(fds[1], &none, 1, 0), 0);
  CHECK(log_said("too many half-open connections"));
  for (int i = 0; i < CROWD + 2; i++) rail_sock_close(&fds[i]);
  host_close(&h);
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* A quarter of the files, of all listeners together; each has two places whatever the others have. */
TEST(the_process_has_an_end) {
  enum { FILES = 256, CROWD = FILES / 4 };
  struct host h[2];
  struct rlimit limit;
  int fds[CROWD + 8], n = 0;
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  struct rlimit few = {.rlim_cur = FILES, .rlim_max = limit.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  for (int i = 0; i < 2; i++) host_open(&h[i], PATIENCE_MS * 10);
  for (; n < CROWD + 2; n++) {
    fds[n] = knock(&h[0], 0, "");
    look(&h[0], n + 1);
  }
  CHECK_INT(h[0].doors.nstrangers, CROWD);
  CHECK_INT(h[0].strangers, 2);
  for (int i = 0; i < 3; i++) {
    fds[n++] = knock(&h[1], 0, "");
    look(&h[1], i + 1);
  }
  CHECK(h[1].doors.nstrangers == 2 && h[1].strangers == 1 && h[0].doors.nstrangers == CROWD);
  for (int i = 0; i < n; i++) rail_sock_close(&fds[i]);
  for (int i = 0; i < 2; i++) host_close(&h[i]);
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* Fewer than a quarter of the files are free, whoever has them: silence gets no place at all, a peer does. */
TEST(few_files_left) {
  enum { FILES = 256 };
  struct host h;
  struct rlimit limit;
  int own[FILES], n = 0;
  host_open(&h, PATIENCE_MS);
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  struct rlimit few = {.rlim_cur = FILES, .rlim_max = limit.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  while ((own[n++] = dup(0)) < FILES * 3 / 4) continue;
  int silent = knock(&h, 0, ""), fd = knock(&h, 0, GOOD);
  look_until_out(&h, 1);
  CHECK(h.nguests == 1 && h.strangers == 1 && h.doors.nstrangers == 0);
  while (n > 0) rail_sock_close(&own[--n]);
  rail_sock_close(&silent);
  rail_sock_close(&fd);
  host_close(&h);
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

TEST(files_that_run_out) {
  struct host h;
  struct rlimit limit, few;
  int silent[2];
  host_open(&h, PATIENCE_MS);
  wait_for_a_line();
  for (int i = 0; i < 2; i++) {
    silent[i] = knock(&h, 0, "");
    look(&h, i + 1);
  }
  int fd = knock(&h, 0, GOOD);
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  few = (struct rlimit){.rlim_cur = (rlim_t)fd + 1, .rlim_max = limit.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(PATIENCE_MS));
  while (!h.nguests && !rail_deadline_passed(deadline)) CHECK_OK(rail_doors_step(&h.doors));
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK_MSG(h.nguests == 1 && h.strangers >= 1, "%d guests, %d turned away", h.nguests, h.strangers);
  CHECK(log_said("RailTest: accept on lo0+lo1: Too many open files; raise the limit"));
  for (int i = 0; i < 2; i++) rail_sock_close(&silent[i]);
  rail_sock_close(&fd);
  host_close(&h);
}

/* Without one that could go, the connection waits outside until there are files again. */
TEST(files_that_run_out_with_nobody_inside) {
  struct host h;
  struct rlimit limit, few;
  host_open(&h, PATIENCE_MS);
  wait_for_a_line();
  int fd = knock(&h, 0, GOOD);
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  few = (struct rlimit){.rlim_cur = (rlim_t)fd + 1, .rlim_max = limit.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  for (int i = 0; i < 20; i++) CHECK_OK(rail_doors_step(&h.doors));
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(h.nguests == 0 && log_said("RailTest: accept on lo0+lo1: Too many open files; raise the limit"));
  look(&h, 1);
  CHECK_INT(h.nguests, 1);
  rail_sock_close(&fd);
  host_close(&h);
}

/* Somebody else holds the socket, as a forked child does: it must not be heard any more. */
TEST(one_who_left_is_not_heard) {
  struct host h;
  struct epoll_event event;
  host_open(&h, PATIENCE_MS);
  int fd = knock(&h, 0, "OPEN"), child;
  look(&h, 1);
  CHECK(h.doors.nstrangers == 1 && (child = dup(h.doors.oldest->fd)) >= 0);
  CHECK(send(fd, " or not, at all", 15, MSG_NOSIGNAL) == 15);
  look_until_out(&h, 1);
  CHECK(send(fd, "more", 4, MSG_NOSIGNAL) == 4 || errno == EPIPE);
  CHECK_INT(epoll_wait(h.doors.epoll, &event, 1, 0), 0);
  rail_sock_close(&child);
  rail_sock_close(&fd);
  host_close(&h);
}

TEST(others_are_counted_once) {
  struct host h;
  host_open(&h, PATIENCE_MS);
  wait_for_a_line();
  for (int i = 0; i < 4; i++) { /* a line, one without, a line for both, a line for itself */
    int fd = knock(&h, 0, "xxxx");
    if (i != 1) wait_for_a_line();
    if (i != 1) h.doors.next_line = 0;
    if (i == 3) log_forget();
    look_until_out(&h, i + 1);
    if (i == 2) CHECK(log_said("(and 1 others since the last line)"));
    rail_sock_close(&fd);
  }
  CHECK(log_said("dropped a connection") && !log_said("others since"));
  host_close(&h);
}

TEST(a_door_that_is_none) {
  struct host h;
  int listener;
  host_open(&h, PATIENCE_MS);
  listener = h.doors.fds[0];
  h.doors.fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); /* nobody listens on it */
  CHECK_INT(rail_doors_step(&h.doors), RAIL_SYSTEM_ERROR);
  CHECK(log_said("RailTest: accept on lo0+lo1: Invalid argument"));
  rail_sock_close(&listener);
  host_close(&h);
}

TEST(a_crowd_makes_few_lines) {
  enum { HOSTS = 20 };
  static struct host h[HOSTS];
  for (int i = 0; i < HOSTS; i++) host_open(&h[i], PATIENCE_MS);
  uint64_t start = rail_now_ns();
  for (int k = 0; k < 5; k++)
    for (int i = 0; i < HOSTS; i++) {
      int fd = knock(&h[i], 0, "xxxx");
      look_until_out(&h[i], k + 1);
      rail_sock_close(&fd);
    }
  int tenths = (int)((rail_now_ns() - start) / 100000000), lines = log_count("dropped a connection");
  CHECK_MSG(lines <= tenths + 2, "%d lines in %d tenths of a second", lines, tenths);
  usleep(1100000); /* the next line tells of those without one */
  int fd = knock(&h[0], 0, "xxxx");
  look_until_out(&h[0], 6);
  rail_sock_close(&fd);
  CHECK(log_said("others since the last line"));
  for (int i = 0; i < HOSTS; i++) host_close(&h[i]);
}

TEST(nothing_stays_open) {
  struct host h;
  int before = kit_fd_count();
  host_open(&h, PATIENCE_MS);
  int fds[3] = {knock(&h, 0, ""), knock(&h, 1, "OP"), knock(&h, 0, GOOD)};
  look(&h, 3);
  host_close(&h);
  for (int i = 0; i < 3; i++) rail_sock_close(&fds[i]);
  CHECK_INT(kit_fd_count(), before);
}

TEST_MAIN(TEST_CASE(a_guest_at_each_door), TEST_CASE(a_message_in_pieces_and_what_follows),
          TEST_CASE(a_refusal_arrives), TEST_CASE(strangers), TEST_CASE(silence_ends_with_the_patience),
          TEST_CASE(later_ones_of_the_host), TEST_CASE(a_table_has_an_end), TEST_CASE(the_process_has_an_end),
          TEST_CASE(few_files_left), TEST_CASE(files_that_run_out), TEST_CASE(files_that_run_out_with_nobody_inside),
          TEST_CASE(one_who_left_is_not_heard), TEST_CASE(others_are_counted_once), TEST_CASE(a_door_that_is_none),
          TEST_CASE(a_crowd_makes_few_lines), TEST_CASE(nothing_stays_open))
