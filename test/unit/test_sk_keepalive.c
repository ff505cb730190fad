/* SPDX-License-Identifier: Apache-2.0
 * What the watch thread says and does about a peer that is silent, or alive and slow, tick by tick; its time is the
 * test's. The streams are no TCP, so there is no host that might not answer, but in the last case.
 * TEST-SAN: asan */
#include <linux/filter.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>

#include "test/unit/sk_data.h"

#define TICK_NS (SK_TICK_MS * 1000000ull)

static uint8_t bytes[2 * EAGER];
static uint64_t now = 1000000000000ull;

static void begin(struct data *d, void **request) {
  data_begin(d, SK_SENDER, 1, 0);
  data_open(d);
  data_settle(d);
  memset(bytes, 0, sizeof bytes);
  ENSURE_INT(sk_isend(d->comm, bytes, EAGER + 1, 1, NULL, NULL, request), RAIL_OK); /* which waits for its grant */
  sk_keepalive_run(d->comm, now);
}

/* The peer's side: what was sent is read; `lives`: each PING is answered. */
static void peer(const struct data *d, bool lives) {
  uint8_t head[SK_HEAD];
  struct sk_frame frame;
  while (recv(d->ends[0], head, sizeof head, MSG_DONTWAIT) == (ssize_t)sizeof head)
    if (lives && sk_frame_decode(head, &frame) && frame.type == SK_FRAME_PING)
      data_send(d, 0, SK_FRAME_PONG, 0, 0, 0, 0, 0);
}

static void pass(const struct data *d, unsigned int seconds, bool lives) {
  for (uint64_t until = now + seconds * 1000000000ull; now < until;) {
    now += TICK_NS;
    peer(d, lives);
    sk_keepalive_run(d->comm, now);
  }
}

TEST(a_process_that_is_silent) {
  struct data d;
  void *request;
  begin(&d, &request);
  pass(&d, 9, false);
  CHECK_INT(log_count("nothing has moved"), 0);
  pass(&d, 2, false);
  CHECK(log_said("sending to 0.0.0.0:0 over none: nothing has moved for 10.0 s: 1 sends of 4097 to 4097 bytes wait"));
  CHECK(log_said("no sign of life from the peer's process, though its host answers"));
  CHECK(log_said("an error after 300.0 s (RAIL_SOCKET_PEER_TIMEOUT)"));
  pass(&d, 287, false);
  CHECK_INT(log_count("nothing has moved"), 1);
  CHECK_INT(sk_comm_error(d.comm), RAIL_OK);
  pass(&d, 3, false);
  CHECK_INT(sk_comm_error(d.comm), RAIL_REMOTE_ERROR);
  CHECK(log_said("no sign of life from the peer's process for 300.0 s; last progress 300.0 s ago"));
  CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
  data_close(&d);
}

/* It has not accepted: both lines say so. */
TEST(a_process_that_does_not_accept) {
  struct data d;
  void *request;
  data_begin(&d, SK_SENDER, 1, 0);
  data_create(&d);
  ENSURE_INT(sk_isend(d.comm, bytes, 8, 1, NULL, NULL, &request), RAIL_OK);
  pass(&d, 11, false);
  CHECK(log_said("the peer's process, which has not accepted the connection, though its host answers"));
  pass(&d, 290, false);
  CHECK(log_said("the peer's process for 300.0 s, which has not accepted the connection; last progress"));
  CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
  data_close(&d);
}

TEST(for_ever_if_that_is_asked_for) {
  struct data d;
  void *request;
  begin(&d, &request);
  sk_params.peer_timeout_ms = 0;
  pass(&d, 3600, false);
  CHECK_INT(sk_comm_error(d.comm), RAIL_OK);
  CHECK(log_count("nothing has moved") == 1 && !log_said("an error after"));
  data_close(&d);
}

/* A peer that answers never times out; the line that it is alive is logged ever more rarely. */
TEST(a_peer_that_lives_and_posts_nothing) {
  struct data d;
  void *request;
  begin(&d, &request);
  pass(&d, 85, true);
  CHECK_INT(log_count("the peer is alive"), 4); /* at 10, 20, 40, 80 s */
  pass(&d, 600, true);
  CHECK_INT(sk_comm_error(d.comm), RAIL_OK);
  CHECK_INT(log_count("no sign of life"), 0);
  data_close(&d);
}

/* Alive for a while, then stopped: the silence is counted from its last sign of life. */
TEST(one_that_is_stopped_later) {
  struct data d;
  void *request;
  begin(&d, &request);
  pass(&d, 35, true);
  CHECK_INT(log_count("the peer is alive"), 2);
  log_forget();
  pass(&d, 8, false);
  CHECK_INT(log_count("no sign of life"), 0);
  pass(&d, 285, false);
  CHECK(log_count("no sign of life from the peer's process, though") == 1 && sk_comm_error(d.comm) == RAIL_OK);
  pass(&d, 10, false);
  CHECK_INT(sk_comm_error(d.comm), RAIL_REMOTE_ERROR);
  data_close(&d);
}

/* Said to be stalled, it moves, and pauses again: all is counted anew. */
TEST(it_moves_and_pauses_again) {
  struct data d;
  void *request;
  begin(&d, &request);
  for (int i = 0; i < 3; i++) {
    pass(&d, 200, false);
    CHECK_INT(log_count("nothing has moved for 10.0 s"), 1);
    CHECK_INT(log_count("nothing has moved"), 1);
    CHECK_INT(sk_comm_error(d.comm), RAIL_OK);
    log_forget();
    data_send_control(&d, 0, 0, 0, 0, NULL, 0);
    pass(&d, 1, false);
    CHECK_INT(log_count("the peer is back after 20"), 1);
    CHECK_INT(log_warnings(), 0);
    log_forget();
  }
  pass(&d, 305, false);
  CHECK_INT(sk_comm_error(d.comm), RAIL_REMOTE_ERROR);
  data_close(&d);
}

/* The same of one that lives: the next line comes after 10 s again, not after twice the longest. */
TEST(it_lives_and_moves_and_pauses_again) {
  struct data d;
  void *request;
  begin(&d, &request);
  for (int i = 0; i < 3; i++) {
    pass(&d, 45, true);
    CHECK_INT(log_count("the peer is alive"), 3);
    log_forget();
    data_send_control(&d, 0, 0, 0, 0, NULL, 0);
    pass(&d, 1, true);
  }
  data_close(&d);
}

/* Requests that end, and others that begin much later: what was outstanding before does not count. */
TEST(an_idle_time_is_no_silence) {
  struct data d;
  void *request;
  begin(&d, &request);
  data_send_control(&d, 0, 0, 0, 0, &(struct data_entry){SK_ENTRY_GRANT, 1, EAGER + 1}, 1);
  data_wait(request, NULL);
  pass(&d, 1000, false);
  CHECK_STR(log_lines, "");
  CHECK_INT(sk_isend(d.comm, bytes, EAGER + 1, 1, NULL, NULL, &request), RAIL_OK);
  pass(&d, 9, false);
  CHECK_STR(log_lines, "");
  pass(&d, 2, false);
  CHECK_INT(log_count("nothing has moved for 10."), 1);
  data_close(&d);
}

/* A message that announces itself alone, and one byte less than its bytes. */
TEST(what_has_come_of_a_message_is_not_to_come) {
  struct data d;
  void *request, *data = bytes;
  size_t size = sizeof bytes;
  int tag = 1;
  data_begin(&d, SK_RECEIVER, 1, 0);
  data_open(&d);
  ENSURE_INT(sk_irecv(d.comm, 1, &data, &size, &tag, NULL, NULL, &request), RAIL_OK);
  data_send(&d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, sizeof bytes, 0, 1);
  data_send(&d, 0, SK_FRAME_DATA, 0, 0, 0, sizeof bytes, 1);
  data_send_bytes(&d, 0, 0, 0, sizeof bytes - 1);
  data_settle(&d);
  sk_keepalive_run(d.comm, now);
  pass(&d, 11, false); /* a PONG would be taken for the byte */
  CHECK(log_said("1 messages are under way with 1 bytes to come"));
  data_close(&d);
}

/* Two connections to one host: one warning, and a line of information. */
TEST(one_warning_a_host) {
  struct data d[2];
  void *requests[2];
  for (int i = 0; i < 2; i++) begin(&d[i], &requests[i]);
  for (int k = 0; k < 4 * 60; k++) {
    now += TICK_NS;
    for (int i = 0; i < 2; i++) sk_keepalive_run(d[i].comm, now);
  }
  CHECK_INT(log_count("nothing has moved"), 2);
  CHECK_INT(log_warnings(), 1);
  for (int i = 0; i < 2; i++) data_close(&d[i]);
}

/* ---- one of several paths ------------------------------------------------------ */

/* The stream's socket becomes one end of a TCP connection over lo; before data_open. */
static void use_tcp(struct data *d, unsigned int stream) {
  union rail_addr at = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  int listener;
  data_end(d, stream);
  rail_sock_close(&d->args.fds[stream]);
  ENSURE_INT(rail_sock_listen(&at, 1, &listener), RAIL_OK);
  ENSURE_INT(rail_sock_connect_all(&at, NULL, deadline, NULL, &d->args.fds[stream]), RAIL_OK);
  ENSURE_INT(rail_sock_accept_all(listener, deadline, NULL, &d->ends[stream], NULL), RAIL_OK);
  rail_sock_close(&listener);
}

/* From here on no packet reaches the peer's end. */
static void cut_path(const struct data *d, unsigned int stream) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  struct sock_filter drop_all = BPF_STMT(BPF_RET | BPF_K, 0);
  const struct sock_fprog filter = {.len = 1, .filter = &drop_all};
  for (int unacked = 1; unacked;) { /* else it is sent again, and its acknowledgement never comes */
    ENSURE(ioctl(d->ends[stream], SIOCOUTQ, &unacked) == 0, "no TCP");
    ENSURE(!rail_deadline_passed(deadline), "the welcome is not acknowledged");
  }
  ENSURE(setsockopt(d->ends[stream], SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0, "no filter");
}

/* Stream 0 is read, and something comes in over it all the time. */
static void stream_0_works(const struct data *d) {
  uint8_t scratch[16384];
  while (recv(d->ends[0], scratch, sizeof scratch, MSG_DONTWAIT) > 0) continue;
  data_send(d, 0, SK_FRAME_PONG, 0, 0, 0, 0, 0);
}

/* Of two streams only one reaches the peer's host, as behind a switch with several links of which one is cut. The
 * kernel would give the other one up after 15 minutes. Time is real here, because it is the kernel's. */
TEST(one_of_two_paths_is_cut) {
  enum { SIZE = 4 << 20 };
  static uint8_t large[SIZE];
  struct data d;
  void *request;
  data_begin(&d, SK_SENDER, 2, 0);
  sk_params.deadline_ms = 1500;
  for (unsigned int i = 0; i < 2; i++) use_tcp(&d, i);
  data_open(&d);
  data_settle(&d);
  for (int i = 0; i < 100; i++) { /* a peer that answers may take any time */
    now += TICK_NS;
    stream_0_works(&d);
    sk_keepalive_run(d.comm, now);
  }
  CHECK_INT(sk_comm_error(d.comm), RAIL_OK);
  cut_path(&d, 1);
  data_send_control(&d, 0, 0, 0, 0, &(struct data_entry){SK_ENTRY_GRANT, 1, SIZE}, 1);
  data_settle(&d);
  ENSURE_INT(sk_isend(d.comm, large, SIZE, 1, NULL, NULL, &request), RAIL_OK);
  uint64_t since = rail_now_ns(), then = now, patience = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (sk_comm_error(d.comm) == RAIL_OK) {
    ENSURE(!rail_deadline_passed(patience), "nobody finds out");
    poll(NULL, 0, 20);
    stream_0_works(&d);
    (void)data_turn(&d);
    now = then + (rail_now_ns() - since);
    sk_keepalive_run(d.comm, now);
  }
  CHECK(now - then >= 1000 * 1000000ull);
  CHECK(log_said("the peer's host has not answered over stream 1 for"));
  CHECK(log_said("though it does over others; 1 messages are under way"));
  CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
  data_close(&d);
}

/* Without a deadline a host that does not answer is waited for, by the kernel, too: an idle stream, whose probes are
 * not answered, stays. Until it is closed. */
TEST(no_deadline_is_none_of_the_kernel_either) {
  struct data d;
  struct tcp_info info = {0};
  socklen_t size = sizeof info;
  data_begin(&d, SK_SENDER, 1, 0);
  sk_params.deadline_ms = 0;
  sk_params.keepalive_ms = 1000;
  use_tcp(&d, 0);
  data_open(&d);
  data_settle(&d);
  cut_path(&d, 0);
  int fd = dup(d.args.fds[0]);
  uint64_t patience = rail_deadline_in_ms(kit_patience_ms(3 * TIMEOUT_MS));
  while (info.tcpi_probes < 4) { /* it would be over after two */
    poll(NULL, 0, 50);
    (void)data_turn(&d);
    ENSURE(!d.comm->streams[0].eof, "given up: %s", strerror(d.comm->streams[0].in_errno));
    ENSURE(!rail_deadline_passed(patience), "%u probes", info.tcpi_probes);
    ENSURE(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0, "no TCP");
  }
  int timeout = 0;
  size = sizeof timeout;
  CHECK_INT(sk_close_send(d.comm), RAIL_OK);
  ENSURE(getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, &size) == 0, "no TCP");
  CHECK_INT(timeout, 15 * 60 * 1000);
  close(fd);
  sk_close_all();
  data_end(&d, 0);
  rail_log_set_sink(NULL);
}

TEST_MAIN(TEST_CASE(a_process_that_is_silent), TEST_CASE(a_process_that_does_not_accept),
          TEST_CASE(for_ever_if_that_is_asked_for),
          TEST_CASE(a_peer_that_lives_and_posts_nothing), TEST_CASE(one_that_is_stopped_later),
          TEST_CASE(it_moves_and_pauses_again), TEST_CASE(it_lives_and_moves_and_pauses_again),
          TEST_CASE(an_idle_time_is_no_silence), TEST_CASE(what_has_come_of_a_message_is_not_to_come),
          TEST_CASE(one_warning_a_host), TEST_CASE(one_of_two_paths_is_cut),
          TEST_CASE(no_deadline_is_none_of_the_kernel_either))
