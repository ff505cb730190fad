/* SPDX-License-Identifier: Apache-2.0
 * Connections over one and several rails, and streams that are lost and come back. */
#include <errno.h>

#include "test/unit/sk_handshake.h"

static uint32_t host_of(const union rail_addr *addr) { return ntohl(addr->in.sin_addr.s_addr); }

static union rail_addr local_of(int fd) {
  union rail_addr addr;
  socklen_t len = sizeof addr;
  ENSURE(getsockname(fd, &addr.sa, &len) == 0, "getsockname failed");
  return addr;
}

static void check_common(unsigned int nstreams, uint32_t features) {
  ENSURE_INT(hs_sent.nstreams, nstreams);
  ENSURE_INT(hs_received.nstreams, nstreams);
  bool ahead = nstreams == 1;
  ENSURE_INT(hs_sent.features, features | (ahead ? SK_FEATURE_AHEAD : 0));
  ENSURE_INT(hs_received.features, hs_sent.features);
  ENSURE(memcmp(hs_sent.comm_id, hs_received.comm_id, RAIL_COMM_ID_SIZE) == 0, "two comm ids");
  ENSURE(hs_sent.reconnect && !hs_received.accepted == !features, "reconnecting does not follow from the features");
  ENSURE_INT(hs_received.eager_size, ahead ? sk_params.ahead : sk_params.eager);
  ENSURE_INT(hs_sent.eager_size, hs_received.eager_size);
  ENSURE_INT(hs_received.eager_count, sk_params.eager_count);
  ENSURE_INT(hs_received.eager_bytes, ahead ? sk_params.eager_bytes : 1 << 20);
  ENSURE_INT(hs_sent.eager_bytes, hs_received.eager_bytes);
  ENSURE_INT(hs_sent.side, SK_SENDER);
  ENSURE_INT(hs_received.side, SK_RECEIVER);
  for (unsigned int i = 0; i < nstreams; i++) {
    ENSURE_INT(hs_answer(i), RAIL_REASON_NONE);
    hs_linked(hs_sent.fds[i], hs_received.fds[i]);
    union rail_addr out = local_of(hs_sent.fds[i]), in = local_of(hs_received.fds[i]);
    ENSURE_INT(host_of(&out), host_of(&hs_sent.nics[i]->addr));
    ENSURE_INT(host_of(&in), host_of(&hs_received.nics[i]->addr));
    ENSURE(memcmp(&in.in, &hs_sent.peers[i].in, 8) == 0, "stream %u went elsewhere", i);
    ENSURE(memcmp(&out.in, &hs_received.peers[i].in, 8) == 0, "stream %u came from elsewhere", i);
  }
}

TEST(one_rail) {
  struct hs h;
  hs_begin(&h);
  hs_pair(&h, DEV_A, DEV_A);
  check_common(1, 0);
  CHECK(hs_sent.nics[0] == &hs_dev[DEV_A] && hs_received.device == &hs_dev[DEV_A]);
  CHECK(log_said("listening on lo0 at 127.0.0.1:") && log_said("connected from 127.0.0.1:"));
  CHECK(log_said("accepted 127."));
  hs_end(&h);
}

TEST(two_rails_with_two_streams_each) {
  struct hs h;
  hs_begin(&h);
  sk_params.streams = 2;
  hs_pair(&h, DEV_BOTH, DEV_BOTH);
  check_common(4, SK_FEATURE_FAILOVER);
  for (int i = 0; i < 4; i++) {
    CHECK(hs_sent.nics[i] == &hs_dev[i % 2]);
    CHECK(hs_received.nics[i] == &hs_dev[i % 2]);
  }
  CHECK(hs_sent.device == &hs_dev[DEV_BOTH]);
  CHECK(log_said("with failover"));
  hs_end(&h);
}

TEST(rails_on_one_side_only) {
  struct hs h;
  for (int fused_sends = 0; fused_sends < 2; fused_sends++) {
    hs_begin(&h);
    hs_pair(&h, fused_sends ? DEV_B : DEV_BOTH, fused_sends ? DEV_BOTH : DEV_B);
    check_common(2, SK_FEATURE_FAILOVER);
    struct sk_comm_args *fused = fused_sends ? &hs_sent : &hs_received;
    struct sk_comm_args *plain = fused_sends ? &hs_received : &hs_sent;
    for (int i = 0; i < 2; i++) CHECK(fused->nics[i] == &hs_dev[i] && plain->nics[i] == &hs_dev[DEV_B]);
    hs_end(&h);
  }
}

TEST(sixteen_streams_at_most) {
  struct hs h;
  hs_begin(&h);
  sk_params.streams = SK_MAX_STREAMS;
  hs_pair(&h, DEV_BOTH, DEV_A);
  check_common(SK_MAX_STREAMS, SK_FEATURE_FAILOVER);
  hs_end(&h);
}

TEST(a_hello_in_pieces) {
  struct hs h;
  hs_begin(&h);
  hs_listen(&h, DEV_A);
  struct sk_hello_bytes w = sk_make_hello(&h.decoded, (struct rail_hello){.streams = 1},
                                          (struct sk_limits){.eager_bytes = SK_MAX_EAGER_BYTES}, 0);
  int fd = hs_client(&h, 0, NULL);
  for (size_t at = 0; at < sizeof w; at += 20) {
    for (int i = 0; i < 5; i++) hs_accept_none(&h); /* it waits inside for the rest */
    CHECK(send(fd, (uint8_t *)&w + at, 20, MSG_NOSIGNAL) == 20);
  }
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!hs_accept_step(&h)) CHECK(!rail_deadline_passed(deadline));
  CHECK_INT(hs_received.eager_bytes, SK_MAX_EAGER_BYTES);
  rail_sock_close(&fd);
  hs_end(&h);
}

/* ---- one connection after the other --------------------------------------- */

/* A connection waits for accept however long: its peer has done its part. */
TEST(accepted_after_the_handshake_time) {
  struct hs h;
  struct sk_comm_args first;
  char handle[RAIL_NET_HANDLE_SIZE];
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  hs_begin(&h);
  sk_params.handshake_ms = 50;
  hs_listen(&h, DEV_A);
  memcpy(handle, h.handle, sizeof handle);
  while (!hs_connect_step(&h, DEV_A)) CHECK(!rail_deadline_passed(deadline));
  first = hs_sent;
  memcpy(h.handle, handle, sizeof handle);
  while (!hs_connect_step(&h, DEV_A)) CHECK(!rail_deadline_passed(deadline));
  while (!hs_accept_step(&h)) CHECK(!rail_deadline_passed(deadline)); /* the other one is complete here by now */
  hs_close(&hs_received);
  usleep(2 * 50 * 1000);
  while (!hs_accept_step(&h))
    CHECK_MSG(!log_said("within the time limit") && !rail_deadline_passed(deadline), "it was sent away");
  hs_close(&first);
  hs_end(&h);
}

TEST(a_handle_connects_again) {
  struct hs h;
  struct rail_handle again;
  const char *why;
  hs_begin(&h);
  hs_pair(&h, DEV_A, DEV_A);
  CHECK_MSG(rail_handle_decode(&sk_protocol, h.handle, &again, &why), "%s", why);
  CHECK_MSG(again.attempt == 0, "the handle names attempt %llu, which is over", (unsigned long long)again.attempt);
  hs_end(&h);
}

/* Reads the welcome from `fd`, which it returns. */
static int skip_answer(int fd) {
  struct sk_answer_bytes answer;
  ENSURE_INT(hs_read(fd, &answer, sizeof answer), sizeof answer);
  ENSURE_INT(le16toh(answer.answer.reason), RAIL_REASON_NONE);
  return fd;
}

/* Its streams that came are answered, so it is refused, not dropped. */
TEST(streams_that_do_not_come) {
  struct hs h;
  hs_begin(&h);
  sk_params.streams = 2;
  hs_listen(&h, DEV_A);
  sk_params.handshake_ms = 50;
  const struct sk_limits limits = {.eager_bytes = SK_MAX_EAGER_BYTES};
  const struct sk_hello_bytes w = sk_make_hello(&h.decoded, (struct rail_hello){.streams = 2}, limits, 0);
  CHECK_INT(hs_reason(hs_client(&h, 0, &w), hs_accept_none, &h), RAIL_REASON_TIMEOUT);
  CHECK_MSG(log_said("refused a connection from") && log_said("not all of its streams arrived within the time limit"),
            "%s", log_lines);
  hs_end(&h);
}

/* The latest HELLO counts, whichever the streams that are there, if it is of the same connection. */
TEST(a_stream_that_is_there_already) {
  struct hs h;
  const struct sk_limits limits = {.eager_bytes = SK_MAX_EAGER_BYTES}, others = {.eager_bytes = SK_MAX_EAGER_BYTES / 2};
  struct sk_hello_bytes w;
  char byte;
  hs_begin(&h);
  sk_params.streams = 2;
  hs_listen(&h, DEV_A);
  w = sk_make_hello(&h.decoded, (struct rail_hello){.streams = 2}, limits, 0);
  int first = hs_client(&h, 0, &w);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (TAILQ_EMPTY(&h.listen->acceptor->half_open)) {
    hs_accept_none(&h);
    CHECK(!rail_deadline_passed(deadline));
  }
  w = sk_make_hello(&h.decoded, (struct rail_hello){.streams = 2}, others, 0);
  CHECK_INT(hs_reason(hs_client(&h, 0, &w), hs_accept_none, &h), SK_REASON_LIMITS);
  CHECK_MSG(recv(first, &byte, 1, MSG_DONTWAIT) < 0, "a HELLO that was refused has closed the first one's socket");
  w = sk_make_hello(&h.decoded, (struct rail_hello){.streams = 2}, limits, 0);
  int again = hs_client(&h, 0, &w);
  CHECK_INT(hs_reason(first, hs_accept_none, &h), HS_DROPPED);
  CHECK_INT(TAILQ_FIRST(&h.listen->acceptor->half_open)->have, 1);
  w = sk_make_hello(&h.decoded, (struct rail_hello){.stream = 1, .streams = 2}, limits, 0);
  int second = hs_client(&h, 0, &w);
  while (!hs_accept_step(&h)) CHECK(!rail_deadline_passed(deadline));
  hs_linked(hs_received.fds[0], skip_answer(again));
  hs_linked(hs_received.fds[1], skip_answer(second));
  hs_close(&hs_received);
  rail_sock_close(&again);
  rail_sock_close(&second);
  hs_end(&h);
}

/* ---- streams that come back --------------------------------------------- */

static void lose(unsigned int i) {
  rail_sock_close(&hs_sent.fds[i]);
  rail_sock_close(&hs_received.fds[i]);
}

static void bring_back(unsigned int i) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  unsigned int stream = 99;
  while (hs_sent.fds[i] < 0 || hs_received.fds[i] < 0) {
    if (hs_sent.fds[i] < 0) {
      rail_result_t result = sk_reconnect_lost(hs_sent.reconnect, i, &hs_sent.fds[i], &hs_tls);
      ENSURE(result == RAIL_OK || result == RAIL_IN_PROGRESS, "dial returned %d: %s", result, log_lines);
    }
    if (hs_received.fds[i] < 0 &&
        sk_accepted_take(hs_received.accepted, &stream, &hs_received.fds[i], &hs_tls) == RAIL_OK)
      ENSURE_INT(stream, i);
    ENSURE(!rail_deadline_passed(deadline), "stream %u did not come back", i);
    sched_yield();
  }
  hs_linked(hs_sent.fds[i], hs_received.fds[i]);
  hs_linked(hs_received.fds[i], hs_sent.fds[i]);
  ENSURE_INT(host_of(&(union rail_addr){.in = local_of(hs_sent.fds[i]).in}), host_of(&hs_sent.nics[i]->addr));
}

TEST(a_lost_stream_comes_back) {
  struct hs h;
  hs_begin(&h);
  hs_pair(&h, DEV_BOTH, DEV_BOTH);
  hs_close_listen(&h);
  for (unsigned int i = 0; i < 2; i++) CHECK_INT(hs_answer(i), 0);
  for (int round = 0; round < 4; round++) {
    lose((unsigned int)round % 2);
    bring_back((unsigned int)round % 2);
  }
  lose(0);
  lose(1);
  bring_back(1);
  bring_back(0);
  hs_end(&h);
}

TEST(other_clients_at_the_kept_sockets) {
  struct hs h;
  hs_begin(&h);
  hs_pair(&h, DEV_BOTH, DEV_BOTH);
  hs_close_listen(&h);
  int silent[20];
  for (int i = 0; i < 20; i++) silent[i] = hs_client(&h, (unsigned int)i % 2, NULL);
  for (int i = 0; i < 10; i++) CHECK(send(silent[i], "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL) == 18);
  lose(1);
  bring_back(1);
  for (int i = 0; i < 20; i++) rail_sock_close(&silent[i]);
  hs_end(&h);
}

/* The HELLO with which stream `i` of the open connection would come back. */
static struct sk_hello_bytes reconnect_hello(const struct hs *h, unsigned int i, uint64_t counter) {
  struct rail_hello hello = {.stream = i, .streams = hs_sent.nstreams, .reconnect = true};
  const struct sk_limits limits = {.features = hs_sent.features, .eager_size = hs_sent.eager_size,
                                   .eager_count = hs_sent.eager_count, .eager_bytes = hs_sent.eager_bytes};
  memcpy(hello.comm_id, hs_sent.comm_id, sizeof hello.comm_id);
  return sk_make_hello(&h->decoded, hello, limits, counter);
}

TEST(who_may_not_come_back) {
  struct hs h;
  struct sk_hello_bytes w;
  hs_begin(&h);
  hs_pair(&h, DEV_BOTH, DEV_BOTH);
  w = reconnect_hello(&h, 0, 0), w.head.flags = 0; /* not RECONNECT: it begins no connection of its own */
  CHECK_INT(hs_reason(hs_client(&h, 0, &w), hs_accept_none, &h), SK_REASON_DUPLICATE);
  CHECK(TAILQ_EMPTY(&h.listen->acceptor->half_open));
  hs_close_listen(&h);
  CHECK_INT(hs_reason(hs_client(&h, 0, &w), hs_take_none, NULL), SK_REASON_DUPLICATE);
  w = reconnect_hello(&h, 0, 1), w.head.comm_id[0] ^= 1;
  CHECK_INT(hs_reason(hs_client(&h, 0, &w), hs_take_none, NULL), RAIL_REASON_GONE);
  w = reconnect_hello(&h, 0, 1), w.head.streams = htole16(3);
  CHECK_INT(hs_reason(hs_client(&h, 0, &w), hs_take_none, NULL), SK_REASON_STREAMS);
  w = reconnect_hello(&h, 0, 1), w.limits.eager_count ^= htole32(1);
  CHECK_INT(hs_reason(hs_client(&h, 0, &w), hs_take_none, NULL), SK_REASON_LIMITS);
  w = reconnect_hello(&h, 0, 1), w.head.secret[3] ^= 1;
  CHECK_INT(hs_reason(hs_client(&h, 0, &w), hs_take_none, NULL), RAIL_REASON_SECRET);
  w = reconnect_hello(&h, 0, 0);
  CHECK_INT(hs_reason(hs_client(&h, 0, &w), hs_take_none, NULL), RAIL_REASON_REPLAY);
  w = reconnect_hello(&h, 0, 0), w.head.flags = 0, w.head.comm_id[0] ^= 1; /* a new connection, after closeListen */
  CHECK_INT(hs_reason(hs_client(&h, 0, &w), hs_take_none, NULL), RAIL_REASON_GONE);
  lose(0);
  bring_back(0);
  w = reconnect_hello(&h, 0, 1); /* the same again */
  CHECK_INT(hs_reason(hs_client(&h, 0, &w), hs_take_none, NULL), RAIL_REASON_REPLAY);
  hs_end(&h);
}

/* The answer to these bytes of a HELLO, as far as it came. */
static struct sk_answer_bytes answer_to(struct hs *h, const struct sk_hello_bytes *hello, size_t size) {
  struct sk_answer_bytes answer = {.features = 0};
  size_t sent = 0, done = 0;
  int fd = hs_client(h, 0, NULL);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  CHECK_OK(rail_sock_send_some(fd, hello, size, &sent));
  while (rail_sock_recv_some(fd, &answer, sizeof answer, &done) == RAIL_IN_PROGRESS) {
    hs_accept_none(h);
    CHECK(!rail_deadline_passed(deadline));
  }
  rail_sock_close(&fd);
  return answer;
}

/* The acceptor's version is sent only to peers that have the secret. */
TEST(another_version) {
  struct hs h;
  struct sk_hello_bytes w;
  hs_begin(&h);
  hs_listen(&h, DEV_A);
  usleep(150000); /* lines are at most ten a second */
  w = sk_make_hello(&h.decoded, (struct rail_hello){.streams = 1}, (struct sk_limits){0}, 0);
  w.head.version = htole16(3);
  (void)answer_to(&h, &w, sizeof w);
  CHECK_MSG(log_said("another protocol version; install the same release on both sides (3, ours 4)"), "%s", log_lines);
  for (int secret = 0; secret < 2; secret++)
    for (int version = 1; version <= SK_WIRE_VERSION + 1; version++)
      for (int whole = 0; whole < 2; whole++) {
        w = sk_make_hello(&h.decoded, (struct rail_hello){.streams = 1}, (struct sk_limits){0}, 0);
        w.head.version = htole16((uint16_t)version);
        w.head.secret[5] ^= !secret;
        if (version == SK_WIRE_VERSION && !whole) continue;
        struct sk_answer_bytes answer = answer_to(&h, &w, whole ? sizeof w : RAIL_HELLO_PREFIX);
        CHECK(memcmp(answer.head.magic, "RSKM", 4) == 0);
        CHECK_INT(le16toh(answer.head.version), secret ? SK_WIRE_VERSION : 0);
        if (!secret) CHECK_INT(le16toh(answer.answer.reason), RAIL_REASON_SECRET);
        else if (version != SK_WIRE_VERSION) CHECK_INT(le16toh(answer.answer.reason), RAIL_REASON_VERSION);
      }
  hs_end(&h);
}

/* Closing the connection closes a reconnected stream that was not yet taken. */
TEST(back_when_the_connection_closes) {
  struct hs h;
  char byte;
  hs_begin(&h);
  hs_pair(&h, DEV_BOTH, DEV_BOTH);
  lose(1);
  struct sk_hello_bytes w = reconnect_hello(&h, 1, 1);
  int fd = hs_client(&h, 1, &w);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  for (int i = 0; i < 50; i++) { /* accept reads its HELLO, and is not the one to take it */
    hs_accept_none(&h);
    usleep(1000);
  }
  hs_close(&hs_received);
  while (recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
    CHECK_MSG(!rail_deadline_passed(deadline), "its socket is still open");
  rail_sock_close(&fd);
  hs_end(&h);
}

TEST(lost_before_it_was_accepted) {
  struct hs h;
  hs_begin(&h);
  hs_listen(&h, DEV_BOTH);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!hs_connect_step(&h, DEV_BOTH)) CHECK(!rail_deadline_passed(deadline));
  struct sk_acceptor *acceptor = h.listen->acceptor;
  pthread_mutex_lock(&acceptor->lock); /* all streams are here, and not handed out */
  while (TAILQ_EMPTY(&acceptor->half_open) || TAILQ_FIRST(&acceptor->half_open)->have < 2)
    CHECK_OK(sk_acceptor_poll(acceptor));
  struct sk_hello_bytes w = reconnect_hello(&h, 0, 1);
  int fd = hs_client(&h, 0, &w);
  for (int i = 0; i < 100; i++) CHECK_OK(sk_acceptor_poll(acceptor));
  pthread_mutex_unlock(&acceptor->lock);
  CHECK(hs_accept_step(&h));
  hs_close_listen(&h);
  CHECK_INT(hs_reason(fd, hs_take_none, NULL), RAIL_REASON_BUSY);
  lose(0);
  bring_back(0);
  hs_end(&h);
}

TEST(a_connection_that_is_gone) {
  struct hs h;
  int fd;
  hs_begin(&h);
  hs_pair(&h, DEV_BOTH, DEV_BOTH);
  lose(0);
  sk_accepted_free(hs_received.accepted);
  hs_received.accepted = NULL;
  /* The listener is still there and says so. */
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  rail_result_t result;
  while ((result = sk_reconnect_lost(hs_sent.reconnect, 0, &fd, &hs_tls)) == RAIL_IN_PROGRESS) {
    hs_accept_none(&h);
    CHECK(!rail_deadline_passed(deadline));
  }
  CHECK_INT(result, RAIL_REMOTE_ERROR);
  CHECK(log_said("is not taken back") && fd < 0);
  CHECK_INT(sk_reconnect_lost(hs_sent.reconnect, 0, &fd, &hs_tls), RAIL_REMOTE_ERROR);
  /* Without it there is nobody, which time may cure. */
  hs_close_listen(&h);
  lose(1);
  for (int i = 0; i < 50; i++) CHECK_INT(sk_reconnect_lost(hs_sent.reconnect, 1, &fd, &hs_tls), RAIL_IN_PROGRESS);
  hs_end(&h);
}

TEST(sockets_close_with_the_last_that_needs_them) {
  struct hs h;
  int before = kit_fd_count();
  hs_begin(&h);
  hs_pair(&h, DEV_BOTH, DEV_BOTH);
  hs_close_listen(&h);
  CHECK_INT(kit_fd_count(), before + 2 * 2 + 2);
  int silent = hs_client(&h, 0, NULL);
  hs_take_none(NULL);
  hs_end(&h);
  rail_sock_close(&silent);
  CHECK_INT(kit_fd_count(), before);
}

/* ---- two threads at one acceptor ------------------------------------------- */

struct reconnecting { struct sk_comm_args *sent, *received; _Atomic int *done; };

/* Streams of one connection are lost and come back, as the thread that looks after it would do it. */
static void lose_and_reconnect(void *arg) {
  struct reconnecting *c = arg;
  for (unsigned int round = 0; round < (unsigned int)kit_scaled(20); round++) {
    unsigned int i = round % 2, stream = 99;
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
    rail_sock_close(&c->sent->fds[i]);
    rail_sock_close(&c->received->fds[i]);
    while (c->sent->fds[i] < 0 || c->received->fds[i] < 0) {
      if (c->sent->fds[i] < 0) (void)sk_reconnect_lost(c->sent->reconnect, i, &c->sent->fds[i], &hs_tls);
      if (c->received->fds[i] < 0)
        (void)sk_accepted_take(c->received->accepted, &stream, &c->received->fds[i], &hs_tls);
      ENSURE(!rail_deadline_passed(deadline), "stream %u did not come back", i);
    }
    ENSURE_INT(stream, i);
    hs_linked(c->sent->fds[i], c->received->fds[i]);
  }
  *c->done = 1;
}

struct accepting { struct hs *h; _Atomic int *done; };

static void accept_more(void *arg) {
  struct accepting *c = arg;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  for (int count = 0; count < kit_scaled(20) || !*c->done; count++) {
    bool connected = false, accepted = false;
    while (!connected || !accepted) {
      if (!connected) connected = hs_connect_step(c->h, DEV_BOTH);
      if (!accepted) accepted = hs_accept_step(c->h);
      ENSURE(!rail_deadline_passed(deadline), "no connection");
    }
    hs_linked(hs_sent.fds[1], hs_received.fds[1]);
    hs_close(&hs_sent);
    hs_close(&hs_received);
  }
}

struct job { void (*fn)(void *arg); void *arg; };

static void run_job(void *arg) {
  struct job *job = arg;
  job->fn(job->arg);
}

TEST(streams_come_back_while_others_are_accepted) {
  struct hs h;
  _Atomic int done = 0;
  hs_begin(&h);
  hs_pair(&h, DEV_BOTH, DEV_BOTH);
  for (unsigned int i = 0; i < 2; i++) CHECK_INT(hs_answer(i), 0);
  struct sk_comm_args sent = hs_sent, received = hs_received;
  struct reconnecting home = {&sent, &received, &done};
  struct accepting new = {&h, &done};
  struct job jobs[] = {{lose_and_reconnect, &home}, {accept_more, &new}};
  rail_log_set_sink(NULL); /* log_capture is for one thread */
  kit_run_threads(2, run_job, jobs, sizeof jobs[0]);
  hs_close(&sent);
  hs_close(&received);
  hs_end(&h);
}

TEST_MAIN(TEST_CASE(one_rail), TEST_CASE(two_rails_with_two_streams_each), TEST_CASE(rails_on_one_side_only),
          TEST_CASE(sixteen_streams_at_most), TEST_CASE(a_hello_in_pieces),
          TEST_CASE(accepted_after_the_handshake_time), TEST_CASE(a_handle_connects_again),
          TEST_CASE(streams_that_do_not_come), TEST_CASE(a_stream_that_is_there_already),
          TEST_CASE(back_when_the_connection_closes),
          TEST_CASE(a_lost_stream_comes_back),
          TEST_CASE(other_clients_at_the_kept_sockets), TEST_CASE(who_may_not_come_back),
          TEST_CASE(another_version),
          TEST_CASE(lost_before_it_was_accepted), TEST_CASE(a_connection_that_is_gone),
          TEST_CASE(sockets_close_with_the_last_that_needs_them),
          TEST_CASE(streams_come_back_while_others_are_accepted))
