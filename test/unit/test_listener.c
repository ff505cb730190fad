/* SPDX-License-Identifier: Apache-2.0
 * Pending connections of a listener. Its owner wants a HELLO with the payload "please"; it keeps the sockets of those
 * and refuses the others. */
#include "common/conn/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "test/harness/log_lines.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 10000
/* What a client sends; more text may follow it. */
#define GOOD "+"
#define RUDE "-" /* a HELLO that the owner refuses */
#define PART "<" /* the first 4 bytes of a HELLO */
enum { PAYLOAD = 16, HELLO = sizeof(struct rail_hello_wire) + PAYLOAD + RAIL_MAC_SIZE, KEPT = 8, NO_MANNERS = 33 };

/* ---- an owner ---------------------------------------------------------------- */

struct owner {
  struct rail_listener listener;
  int kept[KEPT], nkept;
  unsigned int index; /* of the latest */
  union rail_addr peer;
  int dropped, refused;
};

static const char *reason_text(unsigned int reason) { return reason == NO_MANNERS ? "no manners" : NULL; }

static struct rail_key key = {.plugin = "RailTest", .param = "NO_KEY"};
static const struct rail_protocol protocol = {.plugin = "RailTest", .tag = "RTT", .version = 7, .key = &key,
                                              .hello_payload = PAYLOAD, .reason_text = reason_text};
static struct rail_ports ports = {.plugin = "RailTest", .range_param = "PORTS", .bind_param = "BIND"};

static unsigned int on_hello(void *owner, const struct rail_pending *conn, const struct rail_hello *hello) {
  struct owner *h = owner;
  CHECK_INT(conn->have, HELLO);
  CHECK_INT((uintptr_t)conn->bytes % 16, 0);
  if (strcmp((const char *)hello->payload, "please") != 0 || h->nkept == KEPT) return NO_MANNERS;
  h->kept[h->nkept++] = conn->fd;
  h->index = conn->index;
  h->peer = conn->peer;
  return RAIL_REASON_NONE;
}

static void count(void *owner, enum rail_listener_event event) {
  struct owner *h = owner;
  if (event == RAIL_LISTENER_REFUSED) h->refused++;
  else h->dropped++;
}

static const struct rail_listener_ops ops = {.protocol = &protocol, .on_hello = on_hello, .count = count};

static void owner_open(struct owner *h, uint64_t hello_ms) {
  *h = (struct owner){.nkept = 0};
  CHECK_OK(rail_listener_init(&h->listener, &ops, h, "lo0+lo1", hello_ms));
  for (unsigned int i = 0; i < 2; i++) {
    union rail_addr addr = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + i)}};
    CHECK_OK(rail_listener_add(&h->listener, &ports, "lo", &addr));
  }
  rail_log_set_sink(log_capture);
  log_forget();
}

static void owner_close(struct owner *h) {
  while (h->nkept) rail_sock_close(&h->kept[--h->nkept]);
  rail_listener_close(&h->listener);
  rail_log_set_sink(NULL);
}

/* ---- clients ------------------------------------------------------------------ */

static void make_hello(const struct owner *h, const char *payload, uint8_t bytes[HELLO]) {
  struct rail_hello hello = {.streams = 1};
  memcpy(hello.payload, payload, strlen(payload));
  CHECK_OK(rail_hello_encode(&protocol, &h->listener.handle, &hello, bytes));
}

/* On a busy machine a connection may be accepted before its first bytes are there, and then counts as silent. */
static void wait_until_acknowledged(int fd) {
  int left = 1;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (ioctl(fd, SIOCOUTQ, &left) == 0 && left > 0) {
    CHECK_MSG(!rail_deadline_passed(deadline), "%d bytes are not acknowledged", left);
    sched_yield();
  }
}

static int dial(const struct owner *h, unsigned int index, const char *what) {
  uint8_t bytes[HELLO + 64];
  size_t size = 0, done = 0;
  int fd;
  if (*what == *GOOD || *what == *RUDE || *what == *PART) {
    make_hello(h, *what == *GOOD ? "please" : "now", bytes);
    size = *what == *PART ? 4 : HELLO;
    what++;
  }
  memcpy(bytes + size, what, strlen(what)); /* no string */ // NOLINT(bugprone-not-null-terminated-result)
  size += strlen(what);
  CHECK_OK(rail_sock_connect_all(&h->listener.handle.addrs[index], NULL, rail_deadline_in_ms(TIMEOUT_MS), NULL, &fd));
  CHECK_OK(rail_sock_send_some(fd, bytes, size, &done));
  wait_until_acknowledged(fd);
  return fd;
}

/* Polls until `so_many` are kept, refused or dropped and in the table. */
static void poll_until(struct owner *h, int so_many) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  do {
    CHECK_OK(rail_listener_poll(&h->listener));
    CHECK_MSG(!rail_deadline_passed(deadline), "nobody came");
    sched_yield();
  } while (h->nkept + h->dropped + h->refused + (int)h->listener.pending.count < so_many);
}

static void poll_until_out(struct owner *h, int turned_away) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (h->dropped + h->refused < turned_away) {
    CHECK_OK(rail_listener_poll(&h->listener));
    CHECK_MSG(!rail_deadline_passed(deadline), "nobody was refused or dropped");
    sched_yield();
  }
}

/* What came until the end of the stream, which must not be a reset; closes fd. */
static size_t last_bytes(int fd, char *text, size_t size) {
  size_t done = 0;
  int reset = -1;
  socklen_t len = sizeof reset;
  rail_result_t result;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while ((result = rail_sock_recv_some(fd, text, size, &done)) == RAIL_IN_PROGRESS && !rail_deadline_passed(deadline))
    sched_yield();
  CHECK(result == RAIL_REMOTE_ERROR && errno == 0);
  CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &reset, &len) == 0);
  CHECK_INT(reset, 0); /* here the bytes came before one, elsewhere it may overtake them */
  rail_sock_close(&fd);
  return done;
}

/* Lines are limited for all listeners of the process. */
static void wait_for_a_line(void) { usleep(110000); }

/* ---- those that are kept --------------------------------------------------------------- */

TEST(a_client_at_each_socket) {
  struct owner h;
  owner_open(&h, TIMEOUT_MS);
  for (unsigned int i = 0; i < 2; i++) {
    union rail_addr own;
    socklen_t len = sizeof own;
    int fd = dial(&h, i, GOOD);
    CHECK(getsockname(fd, &own.sa, &len) == 0);
    poll_until(&h, (int)i + 1);
    CHECK(h.nkept == (int)i + 1 && h.index == i && rail_addr_port(&h.peer) == rail_addr_port(&own));
    CHECK_INT(h.listener.pending.count, 0);
    CHECK_INT(h.listener.pending.epoll, -1); /* nobody had to be waited for */
    rail_sock_close(&fd);
  }
  CHECK_STR(log_lines, "");
  owner_close(&h);
}

TEST(a_hello_in_pieces_and_what_follows) {
  struct owner h;
  char more[5] = "";
  size_t done = 0;
  owner_open(&h, TIMEOUT_MS);
  int fd = dial(&h, 0, "");
  poll_until(&h, 1);
  uint8_t bytes[HELLO + 4];
  make_hello(&h, "please", bytes);
  memcpy(bytes + HELLO, "more", 4);
  for (size_t at = 0; at < HELLO; at += 4) {
    CHECK_INT(h.nkept, 0);
    CHECK(send(fd, bytes + at, at + 4 == HELLO ? 8 : 4, MSG_NOSIGNAL) > 0);
    for (int i = 0; i < 5; i++) CHECK_OK(rail_listener_poll(&h.listener));
  }
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!h.nkept && !rail_deadline_passed(deadline)) CHECK_OK(rail_listener_poll(&h.listener));
  CHECK_INT(h.nkept, 1);
  CHECK_OK(rail_sock_recv_some(h.kept[0], more, 4, &done)); /* what follows is the owner's to read */
  CHECK_STR(more, "more");
  CHECK_INT(h.dropped + h.refused, 0);
  rail_sock_close(&fd);
  owner_close(&h);
}

/* ---- those that are refused or dropped --------------------------------------------- */

TEST(a_refusal_arrives) {
  struct owner h;
  struct rail_message message;
  struct rail_session session;
  enum rail_reason reason;
  const char *why;
  char said[256] = "";
  owner_open(&h, TIMEOUT_MS);
  wait_for_a_line();
  int fd = dial(&h, 1, RUDE " and more than was asked for"); /* unread bytes must not make a reset of it */
  poll_until_out(&h, 1);
  CHECK(h.refused == 1 && h.dropped == 0);
  CHECK_INT(last_bytes(fd, said, sizeof said), rail_answer_size(&protocol));
  rail_session_init(&session, &protocol, true, &(struct rail_hello){.streams = 1});
  CHECK_OK(rail_message_decode(&session, said, &message, &reason, &why));
  CHECK(message.reason == NO_MANNERS && message.version == 7);
  CHECK(log_said("RailTest: accept on lo0+lo1: refused a connection from 127.0.0.1:"));
  CHECK(log_said(": no manners; still listening\n"));
  owner_close(&h);
}

static void check_dropped(const char *words, bool hang_up, const char *why) {
  struct owner h;
  char said[8] = "";
  owner_open(&h, TIMEOUT_MS);
  wait_for_a_line();
  int fd = dial(&h, 0, words);
  if (hang_up) CHECK(shutdown(fd, SHUT_WR) == 0);
  poll_until_out(&h, 1);
  CHECK_MSG(h.dropped == 1 && log_said(why), "%s: it said: %s", words, log_lines);
  CHECK_INT(last_bytes(fd, said, sizeof said), 0);
  owner_close(&h);
}

TEST(dropped_without_an_answer) {
  check_dropped("GET", false, "not a hello of this plugin");
  check_dropped("GET", true, "not a hello of this plugin");
  check_dropped("R", true, "it closed the connection before a whole hello");
  check_dropped("", true, "it closed the connection before a whole hello");
}

#define SILENCE_MS 500 /* both must have come before it is over, on a machine with other work, too */

TEST(silence_ends_at_the_deadline) {
  struct owner h;
  owner_open(&h, SILENCE_MS);
  wait_for_a_line();
  int silent = dial(&h, 0, "");
  uint64_t start = rail_now_ns();
  poll_until(&h, 1);
  int slow = dial(&h, 1, PART);
  poll_until(&h, 2);
  CHECK_INT(h.listener.pending.count, 2);
  poll_until_out(&h, 1);
  CHECK(rail_now_ns() - start >= SILENCE_MS * 1000000ull && log_said("it sent nothing within the time limit"));
  poll_until_out(&h, 2);
  rail_sock_close(&slow);
  wait_for_a_line();
  h.listener.pending.next_line = 0;
  slow = dial(&h, 1, PART);
  poll_until_out(&h, 3);
  CHECK(h.dropped == 3 && log_said("it sent only part of a hello within the time limit"));
  CHECK(log_said("(and 1 others since the last line)"));
  rail_sock_close(&silent);
  rail_sock_close(&slow);
  owner_close(&h);
}

TEST(drops_of_the_owner) {
  struct owner h;
  union rail_addr peer = {.in = {.sin_family = AF_INET}};
  owner_open(&h, TIMEOUT_MS);
  wait_for_a_line();
  rail_listener_log_drop(&h.listener, &peer, "it changed its mind");
  CHECK(log_said("RailTest: accept on lo0+lo1: dropped a connection from 0.0.0.0:0: it changed its mind"));
  owner_close(&h);
}

/* ---- crowds ---------------------------------------------------------------- */

TEST(a_table_has_an_end) {
  enum { CROWD = 1024 };
  struct owner h;
  struct rlimit limit;
  static int fds[CROWD + 2];
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  if (limit.rlim_max < 4 * CROWD + 100) tap_skip_case("fewer than %d open files allowed", 4 * CROWD + 100);
  struct rlimit more = {.rlim_cur = RAIL_MAX(limit.rlim_cur, 4 * CROWD + 100), .rlim_max = limit.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &more) == 0);
  owner_open(&h, TIMEOUT_MS * 10);
  wait_for_a_line();
  for (int i = 0; i < CROWD; i++) {
    fds[i] = dial(&h, 0, i == 0 ? PART : ""); /* the first has begun its HELLO: it is not evicted first */
    if (i % 64 == 0) poll_until(&h, i + 1);
  }
  poll_until(&h, CROWD);
  CHECK(h.listener.pending.count == CROWD && h.dropped == 0);
  fds[CROWD] = dial(&h, 0, GOOD); /* who has said everything needs no place */
  poll_until(&h, CROWD + 1);
  CHECK(h.nkept == 1 && h.dropped == 0);
  fds[CROWD + 1] = dial(&h, 0, ""); /* the one that is silent longest has to leave */
  poll_until_out(&h, 1);
  char none;
  CHECK(h.dropped == 1 && h.listener.pending.count == CROWD);
  CHECK(recv(fds[0], &none, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
  CHECK_INT(recv(fds[1], &none, 1, 0), 0);
  CHECK(log_said("too many pending connections"));
  for (int i = 0; i < CROWD + 2; i++) rail_sock_close(&fds[i]);
  owner_close(&h);
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* A quarter of the files, of all listeners together; each has two places whatever the others have. */
TEST(the_process_has_an_end) {
  enum { FILES = 256, CROWD = FILES / 4 };
  struct owner h[2];
  struct rlimit limit;
  int fds[CROWD + 8], n = 0;
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  struct rlimit few = {.rlim_cur = FILES, .rlim_max = limit.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  for (int i = 0; i < 2; i++) owner_open(&h[i], TIMEOUT_MS * 10);
  for (; n < CROWD + 2; n++) {
    fds[n] = dial(&h[0], 0, "");
    poll_until(&h[0], n + 1);
  }
  CHECK_INT(h[0].listener.pending.count, CROWD);
  CHECK_INT(h[0].dropped, 2);
  for (int i = 0; i < 3; i++) {
    fds[n++] = dial(&h[1], 0, "");
    poll_until(&h[1], i + 1);
  }
  CHECK(h[1].listener.pending.count == 2 && h[1].dropped == 1 && h[0].listener.pending.count == CROWD);
  for (int i = 0; i < n; i++) rail_sock_close(&fds[i]);
  for (int i = 0; i < 2; i++) owner_close(&h[i]);
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

/* Fewer than a quarter of the descriptors are free: silent connections are closed at once, a peer is accepted. */
TEST(few_files_left) {
  enum { FILES = 256 };
  struct owner h;
  struct rlimit limit;
  int own[FILES], n = 0;
  owner_open(&h, TIMEOUT_MS);
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  struct rlimit few = {.rlim_cur = FILES, .rlim_max = limit.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  while ((own[n++] = dup(0)) < FILES * 3 / 4) continue;
  int silent = dial(&h, 0, ""), fd = dial(&h, 0, GOOD);
  poll_until(&h, 2);
  CHECK(h.nkept == 1 && h.dropped == 1 && h.listener.pending.count == 0);
  while (n > 0) rail_sock_close(&own[--n]);
  rail_sock_close(&silent);
  rail_sock_close(&fd);
  owner_close(&h);
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

TEST(files_that_run_out) {
  struct owner h;
  struct rlimit limit, few;
  int silent[2];
  owner_open(&h, TIMEOUT_MS);
  wait_for_a_line();
  for (int i = 0; i < 2; i++) {
    silent[i] = dial(&h, 0, "");
    poll_until(&h, i + 1);
  }
  int fd = dial(&h, 0, GOOD);
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  few = (struct rlimit){.rlim_cur = (rlim_t)fd + 1, .rlim_max = limit.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!h.nkept && !rail_deadline_passed(deadline)) CHECK_OK(rail_listener_poll(&h.listener));
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK_MSG(h.nkept == 1 && h.dropped >= 1, "%d kept, %d dropped", h.nkept, h.dropped);
  CHECK(log_said("RailTest: accept on lo0+lo1: Too many open files; raise the limit"));
  for (int i = 0; i < 2; i++) rail_sock_close(&silent[i]);
  rail_sock_close(&fd);
  owner_close(&h);
}

/* Without one that could go, the connection waits outside until there are files again. */
TEST(files_that_run_out_with_none_pending) {
  struct owner h;
  struct rlimit limit, few;
  owner_open(&h, TIMEOUT_MS);
  wait_for_a_line();
  int fd = dial(&h, 0, GOOD);
  CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  few = (struct rlimit){.rlim_cur = (rlim_t)fd + 1, .rlim_max = limit.rlim_max};
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  for (int i = 0; i < 20; i++) CHECK_OK(rail_listener_poll(&h.listener));
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(h.nkept == 0 && log_said("RailTest: accept on lo0+lo1: Too many open files; raise the limit"));
  poll_until(&h, 1);
  CHECK_INT(h.nkept, 1);
  rail_sock_close(&fd);
  owner_close(&h);
}

/* Somebody else holds the socket, as a forked child does: it must not be read any more. */
TEST(a_dropped_one_is_not_read) {
  struct owner h;
  struct epoll_event event;
  owner_open(&h, TIMEOUT_MS);
  int fd = dial(&h, 0, PART), child;
  poll_until(&h, 1);
  CHECK(h.listener.pending.count == 1 && (child = dup(TAILQ_FIRST(&h.listener.pending.list)->fd)) >= 0);
  CHECK(send(fd, "and no version of a hello that is", 33, MSG_NOSIGNAL) == 33);
  poll_until_out(&h, 1);
  CHECK(send(fd, "more", 4, MSG_NOSIGNAL) == 4 || errno == EPIPE);
  CHECK_INT(epoll_wait(h.listener.pending.epoll, &event, 1, 0), 0);
  rail_sock_close(&child);
  rail_sock_close(&fd);
  owner_close(&h);
}

TEST(unlogged_ones_are_counted_once) {
  struct owner h;
  owner_open(&h, TIMEOUT_MS);
  wait_for_a_line();
  for (int i = 0; i < 4; i++) { /* a line, one without, a line for both, a line for itself */
    int fd = dial(&h, 0, "xxxx");
    if (i != 1) wait_for_a_line();
    if (i != 1) h.listener.pending.next_line = 0;
    if (i == 3) log_forget();
    poll_until_out(&h, i + 1);
    if (i == 2) CHECK(log_said("(and 1 others since the last line)"));
    rail_sock_close(&fd);
  }
  CHECK(log_said("dropped a connection") && !log_said("others since"));
  owner_close(&h);
}

TEST(a_socket_that_does_not_listen) {
  struct owner h;
  int listener;
  owner_open(&h, TIMEOUT_MS);
  listener = h.listener.fds[0];
  h.listener.fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); /* nobody listens on it */
  CHECK_INT(rail_listener_poll(&h.listener), RAIL_SYSTEM_ERROR);
  CHECK(log_said("RailTest: accept on lo0+lo1: Invalid argument"));
  rail_sock_close(&listener);
  owner_close(&h);
}

TEST(a_crowd_makes_few_lines) {
  enum { HOSTS = 20 };
  static struct owner h[HOSTS];
  for (int i = 0; i < HOSTS; i++) owner_open(&h[i], TIMEOUT_MS);
  uint64_t start = rail_now_ns();
  for (int k = 0; k < 5; k++)
    for (int i = 0; i < HOSTS; i++) {
      int fd = dial(&h[i], 0, "xxxx");
      poll_until_out(&h[i], k + 1);
      rail_sock_close(&fd);
    }
  int tenths = (int)((rail_now_ns() - start) / 100000000), lines = log_count("dropped a connection");
  CHECK_MSG(lines <= tenths + 2, "%d lines in %d tenths of a second", lines, tenths);
  usleep(1100000); /* the next line tells of those without one */
  int fd = dial(&h[0], 0, "xxxx");
  poll_until_out(&h[0], 6);
  rail_sock_close(&fd);
  CHECK(log_said("others since the last line"));
  for (int i = 0; i < HOSTS; i++) owner_close(&h[i]);
}

TEST(nothing_stays_open) {
  struct owner h;
  int before = kit_fd_count();
  owner_open(&h, TIMEOUT_MS);
  int fds[3] = {dial(&h, 0, ""), dial(&h, 1, PART), dial(&h, 0, GOOD)};
  poll_until(&h, 3);
  owner_close(&h);
  for (int i = 0; i < 3; i++) rail_sock_close(&fds[i]);
  CHECK_INT(kit_fd_count(), before);
}

TEST_MAIN(TEST_CASE(a_client_at_each_socket), TEST_CASE(a_hello_in_pieces_and_what_follows),
          TEST_CASE(a_refusal_arrives), TEST_CASE(dropped_without_an_answer), TEST_CASE(silence_ends_at_the_deadline),
          TEST_CASE(drops_of_the_owner), TEST_CASE(a_table_has_an_end), TEST_CASE(the_process_has_an_end),
          TEST_CASE(few_files_left), TEST_CASE(files_that_run_out), TEST_CASE(files_that_run_out_with_none_pending),
          TEST_CASE(a_dropped_one_is_not_read), TEST_CASE(unlogged_ones_are_counted_once),
          TEST_CASE(a_socket_that_does_not_listen), TEST_CASE(a_crowd_makes_few_lines), TEST_CASE(nothing_stays_open))
