/* SPDX-License-Identifier: Apache-2.0
 * Running a handshake's table of steps: both sides to their end, and what accept and connect do with a peer that is
 * silent, late, gone, refuses or sends something wrong. */
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/unit/setup_rig.h"

/* ---- accept -------------------------------------------------------------------------- */

/* The first case: the listener's lines are limited for the whole process. */
TEST(the_oldest_that_is_silent_is_evicted) {
  static const char line[] = "too many half-open connections, and this one has sent nothing after its hello";
  struct rail_handshake raw[MOST + 2];
  struct rig r;
  rig_open(&r);
  raw_begin(&raw[0], &r);
  raw_send(&raw[0], MESSAGE_OFFER, "offer");
  accept_until(&r, 1, A_READY);
  for (unsigned int i = 1; i < MOST; i++) {
    raw_begin(&raw[i], &r);
    accept_until(&r, i, A_OFFER);
  }
  raw_begin(&raw[MOST], &r);
  CHECK_INT(raw_verdict(&raw[1], &r), RAIL_REASON_NONE);
  CHECK_MSG(log_said(line), "%s", log_lines);
  CHECK(r.half_open.count == MOST && freed == 1);
  for (unsigned int i = 2; i <= MOST; i++) raw_send(&raw[i], MESSAGE_OFFER, "offer");
  accept_until(&r, MOST, A_READY);
  raw_begin(&raw[MOST + 1], &r);
  CHECK_INT(raw_verdict(&raw[MOST + 1], &r), RAIL_REASON_BUSY); /* nobody is silent */
  CHECK(r.half_open.count == MOST && freed == 1);
  for (unsigned int i = 0; i < MOST + 2; i++) rail_handshake_close(&raw[i]);
  rig_close(&r);
  CHECK_INT(freed, 1 + MOST);
}

/* What the listeners of a process have is missing for the others, but each may have one connection. */
TEST(listeners_share_a_limit) {
  struct rail_listener other = {.half_open = 0};
  const unsigned int max = (unsigned int)rail_listener_max_half_open();
  struct rail_handshake raw[3];
  char line[128];
  struct rig r;
  rig_open(&r);
  usleep(110000); /* another test's line may hold this one back for 100 ms */
  CHECK(rail_listener_reserve(&other, max));
  CHECK(!rail_listener_reserve(&other, 1));
  raw_begin(&raw[0], &r);
  raw_send(&raw[0], MESSAGE_OFFER, "offer");
  accept_until(&r, 1, A_READY);
  raw_begin(&raw[1], &r);
  CHECK_INT(raw_verdict(&raw[1], &r), RAIL_REASON_BUSY);
  snprintf(line, sizeof line, "in this process, %u sockets of at most %u (half of the files it may open, and 16384)",
           max + 1, max);
  CHECK_MSG(log_said(line), "%s", log_lines);
  rail_listener_release(&other, max);
  raw_begin(&raw[2], &r);
  accept_until(&r, 1, A_OFFER);
  CHECK_INT(r.half_open.count, 2);
  raw_send(&raw[0], MESSAGE_READY, "");
  side_free(accept_one(&r)); /* whose place is free again, like those of the ones that are closed now */
  for (int i = 0; i < 3; i++) rail_handshake_close(&raw[i]);
  rig_close(&r);
  CHECK(rail_listener_reserve(&other, 1) && rail_listener_reserve(&other, max - 1));
  CHECK(!rail_listener_reserve(&other, 1));
  rail_listener_release(&other, max);
}

TEST(both_come_through) {
  struct rig r;
  rig_open(&r);
  struct side *s = connect_begin(&r.listener.handle);
  connect_until(s, C_ANSWER);
  CHECK_INT(s->pieces, PIECES);
  accept_until(&r, 1, A_READY);
  CHECK_OK(connect_result(s));
  struct rail_setup *ready = accept_one(&r);
  CHECK(!ready->connector && side_of(ready)->pieces == PIECES && ready->state == RAIL_COUNT_OF(acceptor_rows));
  CHECK_INT(r.half_open.count, 0);
  int fds[] = {s->base.handshake.fd, ready->handshake.fd};
  s->base.handshake.fd = ready->handshake.fd = -1; /* taken: the structures' end leaves them open */
  side_free(&s->base);
  side_free(ready);
  char byte = 0;
  CHECK_INT(write(fds[0], "x", 1), 1);
  CHECK_OK(rail_sock_recv_all(fds[1], &byte, 1, rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS)), NULL));
  CHECK_INT(byte, 'x');
  for (int i = 0; i < 2; i++) rail_sock_close(&fds[i]);
  CHECK_INT(log_warnings(), 0);
  rig_close(&r);
}

/* When its time is over a call still runs one piece of one step, of one connection after the other. */
TEST(a_call_without_time) {
  struct rail_handshake raw[2];
  struct rail_setup *ready, *first = NULL, *second;
  struct rig r;
  rig_open(&r);
  for (unsigned int i = 0; i < 2; i++) {
    raw_begin(&raw[i], &r);
    accept_until(&r, i + 1, A_OFFER);
    if (i == 0) first = TAILQ_FIRST(&r.half_open.list);
  }
  TAILQ_FOREACH(second, &r.half_open.list, link)
    if (second != first) break;
  raw_send(&raw[1], MESSAGE_OFFER, "offer");
  for (uint64_t d = 0; second->state == A_OFFER; again(&d)) CHECK_OK(rail_half_open_next(&r.half_open, 0, &ready));
  for (unsigned int piece = 1; piece <= PIECES; piece++) {
    CHECK(second->state == A_WORK && second->piece == piece - 1);
    for (int call = 0; call < 2; call++) CHECK_OK(rail_half_open_next(&r.half_open, 0, &ready));
    CHECK_INT(side_of(second)->pieces, piece);
  }
  CHECK(second->state == A_WELCOME && second->piece == 0 && first->state == A_OFFER);
  for (int i = 0; i < 2; i++) rail_handshake_close(&raw[i]);
  rig_close(&r);
}

TEST(what_a_peer_does_wrong) {
  struct rig r;
  rig_open(&r);
  for (int what = 0; what < 3; what++) {
    struct rail_handshake raw;
    raw_begin(&raw, &r);
    if (what == 0) raw_send(&raw, MESSAGE_READY, "");
    if (what == 1) CHECK(write(raw.fd, "GET / HTTP/1.1\r\n\r\n", 18) == 18);
    if (what == 2) {
      raw_send(&raw, MESSAGE_OFFER, "offer");
      raw_send(&raw, MESSAGE_OFFER, "offer");
    }
    CHECK_INT(raw_verdict(&raw, &r), RAIL_REASON_MESSAGE);
    CHECK_INT(freed, what + 1);
    CHECK_INT(r.half_open.count, 0);
    rail_handshake_close(&raw);
  }
  CHECK(log_said("RailTest: accept of 127.0.0.1:"));
  CHECK(log_said("over dev0: it sent message 3 where message 2 was expected"));
  CHECK(log_said("over dev0: it sent message 2 where message 3 was expected"));
  comes_through(&r);
  rig_close(&r);
}

/* For plugins with one connection, which nobody takes up again. */
TEST(hellos_for_something_else) {
  static const struct rail_hello hellos[] = {{.streams = 2}, {.streams = 1, .reconnect = true}};
  struct rig r;
  rig_open(&r);
  for (size_t i = 0; i < RAIL_COUNT_OF(hellos); i++) {
    struct rail_handshake raw;
    raw_begin_with(&raw, &r, hellos[i]);
    CHECK_INT(raw_verdict(&raw, &r), RAIL_REASON_MESSAGE);
    CHECK_INT(r.half_open.count, 0);
    rail_handshake_close(&raw);
  }
  CHECK_INT(freed, 0); /* none was begun */
  comes_through(&r);
  rig_close(&r);
}

TEST(a_peer_that_is_gone) {
  struct rig r;
  rig_open(&r);
  for (int with_offer = 0; with_offer < 2; with_offer++) {
    struct rail_handshake raw;
    raw_begin(&raw, &r);
    if (with_offer) raw_send(&raw, MESSAGE_OFFER, "offer");
    accept_until(&r, 1, with_offer ? A_READY : A_OFFER);
    rail_handshake_close(&raw);
    for (uint64_t d = 0; r.half_open.count; again(&d)) accept_nobody(&r);
    CHECK_INT(freed, with_offer + 1);
  }
  CHECK(log_said("it closed the connection in the middle of the handshake") || log_said("Connection reset"));
  comes_through(&r);
  rig_close(&r);
}

/* Each is reported by its row, one without words by the row's name. */
TEST(a_peer_that_is_late) {
  struct rig r;
  rig_open(&r);
  for (int with_offer = 0; with_offer < 2; with_offer++) {
    struct rail_handshake raw;
    raw_begin(&raw, &r);
    if (with_offer) raw_send(&raw, MESSAGE_OFFER, "offer");
    accept_until(&r, 1, with_offer ? A_READY : A_OFFER);
    be_late(TAILQ_FIRST(&r.half_open.list));
    CHECK(rail_setup_is_late(TAILQ_FIRST(&r.half_open.list)));
    forgives = with_offer; /* the step that runs has set the time back */
    if (forgives) accept_nobody(&r);
    CHECK_INT(freed, with_offer);
    if (forgives) be_late(TAILQ_FIRST(&r.half_open.list));
    forgives = false;
    CHECK_INT(raw_verdict(&raw, &r), RAIL_REASON_TIMEOUT);
    CHECK_INT(r.half_open.count, 0);
    rail_handshake_close(&raw);
  }
  CHECK(log_said("not ready within 3600000 ms (TEST_TIMEOUT): waited for the peer's offer; does the peer's process"));
  CHECK(log_said("waited for recv ready;"));
  comes_through(&r);
  rig_close(&r);
}

/* Accept may take any time. */
TEST(an_unlimited_row_is_not_late) {
  struct rig r;
  rig_open(&r);
  struct side *s = connect_begin(&r.listener.handle);
  connect_until(s, C_ANSWER);
  be_late(&s->base);
  CHECK_INT(connect_once(s), RAIL_IN_PROGRESS);
  accept_until(&r, 1, A_READY);
  CHECK_OK(connect_result(s));
  side_free(accept_one(&r));
  side_free(&s->base);
  CHECK_INT(log_warnings(), 0);
  rig_close(&r);
}

/* What any peer would meet ends accept; the other connections stay. A peer's fault does not. */
TEST(an_error_that_ends_accept) {
  static const struct {
    unsigned int reason;
    bool ends;
  } cases[] = {{RAIL_REASON_FAILED, true}, {OWN_REASON, true}, {RAIL_REASON_GONE, false}, {RAIL_REASON_MAC, false}};
  for (size_t i = 0; i < RAIL_COUNT_OF(cases); i++) {
    struct rail_handshake raw[2];
    struct rail_setup *ready = NULL;
    rail_result_t result = RAIL_OK;
    struct rig r;
    rig_open(&r);
    raw_begin(&raw[0], &r);
    accept_until(&r, 1, A_OFFER);
    raw_begin(&raw[1], &r);
    raw_send(&raw[1], MESSAGE_OFFER, "offer");
    fail_with = cases[i].reason;
    for (uint64_t d = 0; !freed; again(&d)) {
      CHECK_INT(result, RAIL_OK);
      result = rig_accept(&r, &ready);
    }
    CHECK_INT(result, cases[i].ends ? RAIL_SYSTEM_ERROR : RAIL_OK);
    CHECK(log_said("over dev0: piece 0 went wrong"));
    CHECK_INT(raw_verdict(&raw[1], &r), cases[i].reason);
    fail_with = RAIL_REASON_NONE;
    raw_send(&raw[0], MESSAGE_OFFER, "offer");
    raw_send(&raw[0], MESSAGE_READY, "");
    side_free(accept_one(&r));
    CHECK_INT(freed, 2);
    for (int k = 0; k < 2; k++) rail_handshake_close(&raw[k]);
    rig_close(&r);
  }
}

/* A peer that refuses ends accept, unless it only says that it is gone. */
TEST(a_connector_that_refuses) {
  for (int gone = 0; gone < 2; gone++) {
    struct rail_handshake raw;
    struct rail_setup *ready;
    rail_result_t result = RAIL_OK;
    struct rig r;
    rig_open(&r);
    raw_begin(&raw, &r);
    rail_handshake_refuse(&raw, gone ? RAIL_REASON_GONE : RAIL_REASON_FAILED, NULL);
    for (uint64_t d = 0; !freed; again(&d)) {
      CHECK_INT(result, RAIL_OK);
      result = rig_accept(&r, &ready);
    }
    CHECK_INT(result, gone ? RAIL_OK : RAIL_REMOTE_ERROR);
    CHECK_MSG(log_said("over dev0: refused: "), "%s", log_lines);
    comes_through(&r);
    rig_close(&r);
  }
}

/* ---- connect -------------------------------------------------------------------------- */

TEST(an_acceptor_that_refuses) {
  static const struct {
    unsigned int reason;
    const char *payload, *line;
    unsigned int becomes;
  } cases[] = {
    {RAIL_REASON_GONE, "", ": refused: ", RAIL_REASON_GONE},
    {OWN_REASON, "enough", ": refused, and said enough", OWN_REASON},
    {OWN_REASON, "", ": it sent a refusal without a word", RAIL_REASON_MESSAGE},
  };
  for (size_t i = 0; i < RAIL_COUNT_OF(cases); i++) {
    struct rail_handle handle;
    uint8_t bytes[RAIL_ANSWER_MAX];
    char payload[8] = "";
    size_t done = 0;
    int listener;
    struct rig r;
    rig_open(&r);
    listen_raw(&handle, &listener);
    struct side *s = connect_begin(&handle);
    connect_until(s, C_ANSWER);
    int fd = accept_raw(listener);
    memcpy(payload, cases[i].payload, strlen(cases[i].payload));
    rail_refusal_encode(&protocol, cases[i].reason, payload, bytes);
    CHECK_OK(rail_sock_send_some(fd, bytes, rail_answer_size(&protocol), &done));
    CHECK_INT(connect_result(s), RAIL_REMOTE_ERROR);
    CHECK_INT(s->base.reason, cases[i].becomes);
    CHECK_INT(refusals, 1);
    CHECK_MSG(log_said("RailTest: connect to 127.0.0.1:") && log_said(cases[i].line), "%s", log_lines);
    CHECK_INT(log_warnings(), 1);
    side_free(&s->base);
    rail_sock_close(&fd);
    rail_sock_close(&listener);
    rig_close(&r);
  }
}

/* A connection that is dropped before the answer is dialled again: the steps behind dial run again, too. */
TEST(dropped_before_the_answer) {
  struct rail_handle handle;
  uint8_t bytes[RAIL_HELLO_MAX + 64];
  int listener;
  struct rig r;
  rig_open(&r);
  listen_raw(&handle, &listener);
  struct side *s = connect_begin(&handle);
  for (int i = 0; i < 3; i++) {
    connect_until(s, C_ANSWER);
    int fd = accept_raw(listener);
    size_t size = rail_hello_size(&protocol) + rail_message_size(5);
    CHECK(size <= sizeof bytes);
    CHECK_OK(rail_sock_recv_all(fd, bytes, size, rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS)), NULL));
    rail_sock_close(&fd);
    connect_until(s, C_DIAL);
  }
  CHECK_INT(s->pieces, PIECES);
  CHECK_INT(log_warnings(), 0);
  side_free(&s->base);
  rail_sock_close(&listener);
  rig_close(&r);
}

/* A listener whose queue is full takes no more connections: they stay half open. */
TEST(closed_while_it_dials) {
  struct side *s[4];
  struct rail_handle handle;
  int listener, n = 0, fd = -1;
  struct rig r;
  rig_open(&r);
  listen_raw(&handle, &listener);
  CHECK_OK(listen(listener, 0));
  while (fd < 0) {
    CHECK_MSG(n < 4, "all of them are connected");
    s[n] = connect_begin(&handle);
    CHECK_INT(connect_once(s[n]), RAIL_IN_PROGRESS);
    fd = s[n++]->base.dialing.dial.fd;
  }
  while (n) side_free(&s[--n]->base);
  CHECK(fcntl(fd, F_GETFD) < 0 && errno == EBADF);
  rail_sock_close(&listener);
  rig_close(&r);
}

TEST(a_process_has_one_id) {
  uint64_t id = rail_setup_process_id();
  int status;
  CHECK(id == rail_setup_process_id());
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) _exit(rail_setup_process_id() == id);
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_MAIN(TEST_CASE(the_oldest_that_is_silent_is_evicted), TEST_CASE(listeners_share_a_limit),
          TEST_CASE(both_come_through), TEST_CASE(a_call_without_time), TEST_CASE(what_a_peer_does_wrong),
          TEST_CASE(hellos_for_something_else), TEST_CASE(a_peer_that_is_gone), TEST_CASE(a_peer_that_is_late),
          TEST_CASE(an_unlimited_row_is_not_late), TEST_CASE(an_error_that_ends_accept),
          TEST_CASE(a_connector_that_refuses), TEST_CASE(an_acceptor_that_refuses),
          TEST_CASE(dropped_before_the_answer), TEST_CASE(closed_while_it_dials), TEST_CASE(a_process_has_one_id))
