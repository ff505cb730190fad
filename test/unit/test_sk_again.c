/* SPDX-License-Identifier: Apache-2.0
 * A sender of several devices whose streams come back, or are lost before all are answered. The peer's ends are in the
 * test's hands; in the last cases the acceptor that answers is a real one.
 * TEST-SAN: asan */
#include <errno.h>
#include <fcntl.h>

#include "test/unit/sk_at_acceptor.h"

static int listen_here(union rail_addr *addr) {
  socklen_t size = sizeof *addr;
  *addr = (union rail_addr){.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  ENSURE(fd >= 0 && bind(fd, &addr->sa, sizeof addr->in) == 0 && listen(fd, 4) == 0, "no listener");
  ENSURE(getsockname(fd, &addr->sa, &size) == 0, "no address");
  return fd;
}

/* A sender of two streams that are connected again at `listener`; before data_create. */
static void data_begin_again(struct data *d, int *listener, uint32_t features) {
  union rail_addr addr;
  struct sk_dial dials[2];
  const struct sk_limits limits = {.features = features};
  *listener = listen_here(&addr);
  data_begin(d, SK_SENDER, 2, features);
  const struct rail_handle handle = {.param = 1, .naddrs = 1, .addrs = {addr}};
  data_device.addr = (union rail_addr){.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  for (unsigned int i = 0; i < 2; i++) {
    sk_dial_init(&dials[i], &data_device, &addr, i, -1, RAIL_BIND_ADDR);
    dials[i].hello = (struct rail_hello){.stream = i, .streams = 2};
  }
  d->args.reconnect = sk_reconnect_new(&handle, &limits, dials, 2);
}

static void data_begin_returning(struct data *d, int *listener) { data_begin_again(d, listener, SK_FEATURE_FAILOVER); }

/* The acceptor's part: the next connection's HELLO, which is of this stream and has these flags, is read and answered.
 * False: there is none, or it was given up before it had said all of it. */
static bool answer_hello(struct data *d, int listener, unsigned int stream, uint32_t flags) {
  struct sk_hello_bytes hello;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  size_t done = 0;
  rail_result_t result;
  int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) return false;
  data_end(d, stream);
  d->ends[stream] = fd;
  while ((result = rail_sock_recv_some(fd, &hello, sizeof hello, &done)) == RAIL_IN_PROGRESS) {
    data_tick(d);
    ENSURE(!rail_deadline_passed(deadline), "no HELLO");
  }
  if (result != RAIL_OK) return false;
  ENSURE_INT(le16toh(hello.head.stream), stream);
  ENSURE_INT(le32toh(hello.head.flags), flags);
  data_welcome(d, stream);
  return true;
}

static void take_hello(struct data *d, int listener, unsigned int stream, uint32_t flags) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  data_end(d, stream);
  while (!answer_hello(d, listener, stream, flags)) {
    (void)data_turn(d);
    data_tick(d);
    ENSURE(!rail_deadline_passed(deadline), "nobody connects");
  }
}

/* Until the stream is up: a sender that was slow may have given up the attempt that is answered, for another. */
static void take_back(struct data *d, int listener, unsigned int stream) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  take_hello(d, listener, stream, RAIL_HELLO_RECONNECT);
  while (d->comm->paths[stream].state != SK_PATH_UP) {
    data_tick(d);
    (void)answer_hello(d, listener, stream, RAIL_HELLO_RECONNECT);
    ENSURE(!rail_deadline_passed(deadline), "stream %u does not come back", stream);
  }
  struct sk_frame f = data_recv(d, stream);
  ENSURE(f.type == SK_FRAME_JOIN && f.tag == stream && f.size == 1, "no JOIN of generation 1");
}

/* Announcements come first on a stream that has come back: those of all messages that are under way. */
TEST(a_stream_that_comes_back_announces_what_is_under_way) {
  struct data d;
  int listener;
  data_begin_returning(&d, &listener);
  data_open(&d);
  void *a = isend(&d, 0, 8, 3), *b = isend(&d, 1, 0, 4);
  for (unsigned int i = 0; i < 2; i++) {
    data_expect(&d, i, SK_FRAME_MSG, 0, 8);
    data_expect(&d, i, SK_FRAME_MSG, 1, 0);
  }
  data_end(&d, 1);
  data_send(&d, 0, SK_FRAME_LOST, 0, 2, 0, 0, 1);
  data_settle(&d);
  take_back(&d, listener, 1);
  for (uint32_t seq = 0; seq < 2; seq++) {
    struct sk_frame f = data_recv(&d, 1);
    CHECK_INT(f.type, SK_FRAME_MSG);
    CHECK_INT(f.seq, seq);
    CHECK_INT(f.len, 0);
    CHECK_INT(f.tag, 3 + seq);
  }
  const struct data_entry counts[] = {data_frames_of(0, 0, 2), data_frames_of(1, 1, 2)};
  data_send_control(&d, 1, 2, 0, 0, counts, 2); /* over the stream that is new */
  data_wait(a, NULL);
  data_wait(b, NULL);
  data_close(&d);
  rail_sock_close(&listener);
}

/* The receiver has lost a stream whose answer is not here: nothing waits for that any more. */
TEST(a_stream_lost_before_its_answer) {
  struct data d;
  const struct data_entry count = data_frames_of(0, 0, 1);
  data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER);
  data_create(&d);
  data_welcome(&d, 0);
  void *request = isend(&d, 0, 8, 0);
  data_send(&d, 0, SK_FRAME_LOST, 0, 0, 0, 0, 1);
  data_settle(&d);
  CHECK(!d.comm->not_established && d.comm->streams[1].fd < 0);
  data_expect(&d, 0, SK_FRAME_MSG, 0, 8);
  data_send_control(&d, 0, 1, sk_credit_of(8), 1, &count, 1);
  data_wait(request, NULL);
  data_close(&d);
}

/* The sender has given it up itself, be it the main stream or not; then it comes back. */
TEST(a_stream_given_up_before_its_answer) {
  for (unsigned int lost = 0; lost < 2; lost++) {
    struct data d;
    unsigned int other = 1 - lost;
    int listener;
    const struct data_entry count = data_frames_of(other, 0, lost ? 1 : 2);
    data_begin_returning(&d, &listener);
    data_create(&d);
    data_welcome(&d, other);
    void *request = isend(&d, 0, 8, 0);
    data_settle(&d);
    sk_stream_out_failed(&d.comm->streams[lost], EPIPE);
    data_expect(&d, other, SK_FRAME_MSG, 0, 8);
    struct sk_frame f = data_recv(&d, other);
    CHECK(f.type == SK_FRAME_LOST && f.tag == lost && f.size == 0);
    CHECK(!d.comm->not_established && d.comm->streams[lost].fd < 0);
    CHECK_INT(d.comm->paths[lost].state, SK_PATH_AWAITING_COUNT);
    data_send(&d, other, SK_FRAME_LOST, 0, 0, 0, 0, lost);
    if (!lost) data_expect(&d, other, SK_FRAME_DATA, 0, 0); /* its bytes went with the announcement on stream 0 */
    data_send_control(&d, other, 1, sk_credit_of(8), 1, &count, 1);
    data_wait(request, NULL);
    take_back(&d, listener, lost);
    data_close(&d);
    rail_sock_close(&listener);
  }
}

/* Before the first answer the acceptor may not have the stream's HELLO, without which it never accepts: that goes
 * again. */
static void break_stream_before_any_answer(int64_t connect_ms) {
  struct data d;
  int listener;
  data_begin_returning(&d, &listener);
  data_create(&d);
  sk_params.connect_ms = connect_ms;
  (void)isend(&d, 0, 8, 0);
  sk_stream_out_failed(&d.comm->streams[1], EPIPE);
  data_settle(&d);
  take_hello(&d, listener, 1, 0);
  data_welcome(&d, 0);
  for (unsigned int i = 0; i < 2; i++) data_expect(&d, i, SK_FRAME_MSG, 0, 8);
  CHECK_INT(d.comm->paths[1].state, SK_PATH_UP);
  data_close(&d);
  rail_sock_close(&listener);
}
TEST(a_stream_that_breaks_before_any_answer) {
  const int64_t limit = sk_params.connect_ms;
  break_stream_before_any_answer(0); /* no limit */
  break_stream_before_any_answer(limit ? limit : 30000);
}

/* So it is not given up for its interface's sake either, which may be up again in time. */
TEST(an_interface_that_is_down_before_the_first_answer) {
  static const struct sk_device down = {.name = "lo", .nrails = 1};
  struct data d;
  int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (home < 0 || unshare(CLONE_NEWNET) != 0) tap_skip_case("no network namespace may be made: %s", strerror(errno));
  data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER); /* its sockets stay in there, where no interface is up */
  ENSURE(setns(home, CLONE_NEWNET) == 0, "no way back: %s", strerror(errno));
  rail_sock_close(&home);
  d.args.nics[1] = &down;
  data_create(&d);
  data_tick(&d);
  CHECK_INT(d.comm->paths[1].state, SK_PATH_UP);
  data_welcome(&d, 0);
  data_settle(&d);
  data_tick(&d);
  CHECK_INT(d.comm->paths[1].state, SK_PATH_AWAITING_COUNT);
  CHECK(log_said("the interface is down"));
  CHECK_INT(data_recv(&d, 0).type, SK_FRAME_LOST);
  data_close(&d);
}

/* A HELLO is under way again when the first answer shows that the acceptor had the one before: it is given up, for one
 * with RECONNECT. */
TEST(a_hello_that_goes_again_for_nothing) {
  struct data d;
  int listener, fill[2] = {-1, -1};
  union rail_addr addr;
  socklen_t size = sizeof addr;
  data_begin_returning(&d, &listener);
  ENSURE(listen(listener, 0) == 0 && getsockname(listener, &addr.sa, &size) == 0, "no listener");
  for (int i = 0; i < 2; i++) { /* room for one: the next SYN is dropped, and repeated after a second */
    fill[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    (void)connect(fill[i], &addr.sa, sizeof addr.in);
  }
  data_create(&d);
  (void)isend(&d, 0, 8, 0);
  data_end(&d, 1);
  data_settle(&d);
  CHECK(d.comm->streams[1].fd < 0);
  data_welcome(&d, 0);
  data_expect(&d, 0, SK_FRAME_MSG, 0, 8);
  CHECK_INT(data_recv(&d, 0).type, SK_FRAME_LOST);
  data_send(&d, 0, SK_FRAME_LOST, 0, 0, 0, 0, 1);
  data_settle(&d);
  CHECK_INT(d.comm->paths[1].state, SK_PATH_DOWN);
  data_tick(&d);
  for (int i = 0; i < 2; i++) rail_sock_close(&fill[i]);
  int filler = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
  rail_sock_close(&filler);
  take_back(&d, listener, 1);
  data_close(&d);
  rail_sock_close(&listener);
}

/* Without FAILOVER the acceptor reads no HELLO of a connection any more that it has accepted: to say it again would be
 * in vain. */
TEST(a_stream_cut_after_another_was_answered) {
  struct data d;
  int listener;
  data_begin_again(&d, &listener, 0);
  data_create(&d);
  data_welcome(&d, 0);
  void *request = isend(&d, 0, 8, 0);
  data_settle(&d);
  data_end(&d, 1);
  CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
  CHECK_MSG(log_said("stream 1 was cut (the peer closed it) after the peer had accepted"), "it said: %s", log_lines);
  int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
  CHECK_MSG(fd < 0, "HELLO goes again");
  data_close(&d);
  rail_sock_close(&listener);
}

/* Nor does a loss make the sender write before all others are established. */
TEST(a_stream_lost_before_the_last_answer) {
  struct data d;
  data_begin(&d, SK_SENDER, 3, SK_FEATURE_FAILOVER);
  data_create(&d);
  for (unsigned int i = 0; i < 2; i++) data_welcome(&d, i);
  (void)isend(&d, 0, 8, 0);
  data_settle(&d);
  sk_stream_out_failed(&d.comm->streams[1], EPIPE);
  data_recv_nothing(&d, 0);
  CHECK_INT(d.comm->paths[1].state, SK_PATH_AWAITING_COUNT);
  data_tick(&d);
  data_recv_nothing(&d, 0);
  data_welcome(&d, 2);
  data_settle(&d);
  data_expect(&d, 0, SK_FRAME_MSG, 0, 8);
  CHECK_INT(data_recv(&d, 0).type, SK_FRAME_LOST);
  data_recv_nothing(&d, 0);
  data_close(&d);
}

/* Not even when it closes before that. */
TEST(a_loss_and_a_close_before_the_last_answer) {
  struct data d;
  uint8_t byte;
  data_begin(&d, SK_SENDER, 3, SK_FEATURE_FAILOVER);
  data_create(&d);
  for (unsigned int i = 0; i < 2; i++) data_welcome(&d, i);
  data_settle(&d);
  (void)isend(&d, 0, 8, 0);
  data_settle(&d);
  sk_stream_out_failed(&d.comm->streams[1], EPIPE);
  data_settle(&d);
  CHECK_INT(d.comm->streams[0].out_count, 2); /* the message and LOST */
  int end = d.ends[0];
  d.ends[0] = -1;
  data_close(&d);
  CHECK_MSG(recv(end, &byte, 1, MSG_DONTWAIT) == 0, "stream 0 has a byte, or has not ended");
  rail_sock_close(&end);
}

/* ---- a real acceptor at the other end -------------------------------------- */

/* The connection breaks in the network: the sender says HELLO again on another, before it has read any answer. */
static void break_before_any_answer(const struct data *d) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  sk_stream_out_failed(&d->comm->streams[1], EPIPE);
  do {
    ENSURE_INT(data_turn(d), RAIL_OK);
    ENSURE(!rail_deadline_passed(deadline), "no HELLO goes again");
  } while (d->comm->streams[1].fd < 0 || d->comm->streams[1].out_errno);
}

/* The acceptor has the HELLO that was cut: the one that goes again takes its place, and no stream is lost. */
TEST(a_hello_that_goes_again_before_accept) {
  struct data d;
  struct sk_acceptor *acceptor = data_begin_at_acceptor(&d, SK_FEATURE_FAILOVER);
  data_create(&d);
  const struct sk_half_open_comm *p = have_all(acceptor);
  in_port_t cut = p->streams[1].peer.in.sin_port;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  (void)isend(&d, 0, 8, 0);
  break_before_any_answer(&d);
  while (p->streams[1].peer.in.sin_port == cut) {
    (void)data_turn(&d);
    CHECK_OK(sk_acceptor_poll(acceptor));
    CHECK_MSG(!rail_deadline_passed(deadline), "it does not take the place of the one before: %s", log_lines);
  }
  struct sk_accepted_comm *accepted = accept_at(&d, acceptor);
  for (unsigned int i = 0; i < 2; i++) data_expect(&d, i, SK_FRAME_MSG, 0, 8);
  CHECK_INT(d.comm->paths[1].state, SK_PATH_UP);
  data_close(&d);
  sk_accepted_free(accepted);
  sk_acceptor_close(acceptor);
}

/* The acceptor takes the stream that was cut before it reads the HELLO that goes again. That one is refused at once,
 * with a listener and without; the stream is lost, and comes back. */
TEST(a_hello_that_goes_again_after_accept) {
  for (int closed = 0; closed < 2; closed++) {
    struct data d;
    unsigned int stream;
    int fd;
    struct sk_tls *tls;
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
    struct sk_acceptor *acceptor = data_begin_at_acceptor(&d, SK_FEATURE_FAILOVER);
    data_create(&d);
    (void)have_all(acceptor);
    (void)isend(&d, 0, 8, 0);
    break_before_any_answer(&d);
    struct sk_accepted_comm *accepted = accept_at(&d, acceptor);
    if (closed) sk_acceptor_close(acceptor);
    while (d.comm->paths[1].state == SK_PATH_UP) {
      CHECK_INT(sk_accepted_take(accepted, &stream, &fd, &tls), RAIL_IN_PROGRESS);
      CHECK_OK(data_turn(&d));
      CHECK_MSG(!rail_deadline_passed(deadline), "the stream is not given up: %s", log_lines);
    }
    CHECK(TAILQ_EMPTY(&acceptor->half_open));
    data_expect(&d, 0, SK_FRAME_MSG, 0, 8);
    CHECK_INT(data_recv(&d, 0).type, SK_FRAME_LOST);
    data_send(&d, 0, SK_FRAME_LOST, 0, 0, 0, 0, 1);
    data_settle(&d);
    while (d.comm->paths[1].state != SK_PATH_UP) {
      data_tick(&d);
      if (sk_accepted_take(accepted, &stream, &fd, &tls) == RAIL_OK) {
        data_end(&d, 1);
        d.ends[1] = fd;
      }
      CHECK_MSG(!rail_deadline_passed(deadline), "the stream does not come back: %s", log_lines);
    }
    CHECK_INT(data_recv(&d, 1).type, SK_FRAME_JOIN);
    data_close(&d);
    sk_accepted_free(accepted);
    if (!closed) sk_acceptor_close(acceptor);
  }
}

TEST_MAIN(TEST_CASE(a_stream_that_comes_back_announces_what_is_under_way), TEST_CASE(a_stream_lost_before_its_answer),
          TEST_CASE(a_stream_given_up_before_its_answer), TEST_CASE(a_stream_that_breaks_before_any_answer),
          TEST_CASE(an_interface_that_is_down_before_the_first_answer), TEST_CASE(a_hello_that_goes_again_for_nothing),
          TEST_CASE(a_stream_lost_before_the_last_answer), TEST_CASE(a_loss_and_a_close_before_the_last_answer),
          TEST_CASE(a_hello_that_goes_again_before_accept), TEST_CASE(a_hello_that_goes_again_after_accept),
          TEST_CASE(a_stream_cut_after_another_was_answered))
