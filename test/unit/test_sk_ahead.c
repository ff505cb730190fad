/* SPDX-License-Identifier: Apache-2.0
 * Large messages that come ahead of their receive: they wait in the kernel for their buffer, and in memory when that is
 * in the way of anything else. The sender is in the test's hands.
 * TEST-SAN: asan */
#include <poll.h>

#include "test/unit/sk_data.h"

#define SIZE (20 * 1024u) /* a message that may wait: above SK_BULK_BYTES */
#define SMALL (4 * 1024u) /* of the ring, with what is kept beside it */
#define AHEAD (64 * 1024u)
#define FILL 0xee

static uint8_t bytes[2][AHEAD];

static void begin_with(struct data *d, unsigned int nstreams, uint32_t features, uint32_t eager_bytes) {
  data_begin(d, SK_RECEIVER, nstreams, features);
  d->args.eager_size = AHEAD;
  d->args.eager_count = 256;
  d->args.eager_bytes = eager_bytes;
  data_open(d);
}
static void begin(struct data *d) { begin_with(d, 1, SK_FEATURE_AHEAD, SK_MIN_EAGER_BYTES(AHEAD)); }

static void *irecv(const struct data *d, int buffer, size_t size, int tag) {
  void *data = bytes[buffer], *request;
  memset(data, FILL, AHEAD);
  ENSURE_INT(sk_irecv(d->comm, 1, &data, &size, &tag, NULL, NULL, &request), RAIL_OK);
  ENSURE(request, "no request");
  return request;
}

static void say_message(const struct data *d, uint32_t seq, uint32_t size, uint32_t tag) {
  data_send(d, 0, SK_FRAME_MSG, 0, seq, size, size, tag);
  data_send_bytes(d, 0, seq, 0, size);
}

/* The request has this message. */
static void check_received(void *request, int buffer, uint32_t seq, int size) {
  int got = -1;
  data_wait(request, &got);
  CHECK_INT(got, size);
  data_check_bytes(bytes[buffer], seq, 0, (size_t)size);
  CHECK_INT(bytes[buffer][size], FILL);
}

/* How many messages lie in the ring. */
static uint32_t kept(const struct data *d) { return data_receiver(d)->unexpected.table.count; }

/* The first message is here, and was not touched. */
static void check_waits(const struct data *d) {
  data_settle(d);
  CHECK_MSG(data_receiver(d)->unread == SK_UNREAD_MESSAGE && kept(d) == 0, "a message was read that nobody waits for");
}

/* ---- in the kernel ------------------------------------------------------------- */

TEST(a_message_waits_for_its_buffer) {
  struct data d;
  begin(&d);
  for (uint32_t seq = 0; seq < 5; seq++) {
    say_message(&d, seq, SIZE, 4);
    check_waits(&d);
    void *request = irecv(&d, 0, AHEAD - 1, 4);
    CHECK(atomic_load(&d.comm->deferred)); /* with an engine: the first test reads it */
    check_received(request, 0, seq, SIZE);
    CHECK_INT(data_receiver(&d)->unexpected.count_freed, seq + 1);
    CHECK_INT(data_receiver(&d)->unexpected.bytes_freed, (seq + 1) * sk_credit_of(SIZE));
  }
  CHECK_INT(data_receiver(&d)->unexpected.tail, 0); /* the ring was not used */
  data_close(&d);
}

/* More than the stream's buffer takes: the rest stays in the socket. */
TEST(a_socket_is_not_emptied) {
  struct data d;
  begin(&d);
  void *first = irecv(&d, 0, AHEAD, 4);
  for (uint32_t seq = 0; seq < 3; seq++) say_message(&d, seq, AHEAD - 1, 4);
  check_received(first, 0, 0, AHEAD - 1);
  check_waits(&d);
  uint64_t in = rail_stats_get(&d.comm->traffic.in);
  data_settle(&d);
  CHECK_INT(rail_stats_get(&d.comm->traffic.in), in);
  CHECK_MSG(in < 2 * AHEAD + SK_HEAD, "%llu bytes were read for one receive", (unsigned long long)in);
  for (uint32_t seq = 1; seq < 3; seq++) check_received(irecv(&d, 1, AHEAD, 4), 1, seq, AHEAD - 1);
  data_close(&d);
}

/* A small one is not worth a read of its own. */
TEST(a_small_message_is_taken_in) {
  struct data d;
  begin(&d);
  say_message(&d, 0, SK_BULK_BYTES - 1, 4);
  data_settle(&d);
  CHECK_INT(kept(&d), 1);
  check_received(irecv(&d, 0, AHEAD, 4), 0, 0, SK_BULK_BYTES - 1);
  data_close(&d);
}

/* Many small ones stay in the socket when enough of them were read, until there is room again. */
TEST(many_small_messages_are_left) {
  enum { KEPT = SK_KEPT_BYTES / SMALL, ALL = KEPT + 20 };
  struct data d;
  begin_with(&d, 1, SK_FEATURE_AHEAD, 2 * SK_KEPT_BYTES);
  ENSURE_INT(sk_credit_of(SMALL - 128), SMALL);
  for (uint32_t seq = 0; seq < ALL; seq++) {
    say_message(&d, seq, SMALL - 128, 4);
    data_settle(&d);
    CHECK_INT(kept(&d), RAIL_MIN(seq + 1, KEPT));
  }
  CHECK(data_receiver(&d)->unread == SK_UNREAD_MESSAGE);
  for (uint32_t seq = 0; seq < ALL; seq++) {
    check_received(irecv(&d, 0, AHEAD, 4), 0, seq, SMALL - 128);
    data_settle(&d);
    CHECK_MSG(kept(&d) <= KEPT, "%u messages lie in the ring", kept(&d));
  }
  data_close(&d);
}

TEST(a_receive_that_another_owner_must_start) {
  struct data d;
  begin(&d);
  say_message(&d, 0, SIZE, 4);
  check_waits(&d);
  ENSURE(sk_comm_try_own(d.comm), "another thread moves it");
  void *request = irecv(&d, 0, AHEAD, 4);
  sk_comm_disown(d.comm);
  check_received(request, 0, 0, SIZE);
  data_close(&d);
}

TEST(a_buffer_that_is_too_small) {
  struct data d;
  begin(&d);
  say_message(&d, 0, SIZE, 4);
  check_waits(&d);
  void *request = irecv(&d, 0, SIZE - 1, 4);
  CHECK_INT(data_failure(request), RAIL_BAD_USAGE);
  CHECK_INT(bytes[0][0], FILL);
  struct sk_frame f = data_recv(&d, 0);
  CHECK_INT(f.type, SK_FRAME_ERROR);
  CHECK_INT(f.size, RAIL_BAD_USAGE);
  CHECK_INT(f.tag, 4);
  data_close(&d);
}

/* The sender learns of its credit and of the end. */
TEST(a_message_that_is_never_received) {
  struct data d;
  uint8_t head[SK_HEAD];
  begin(&d);
  say_message(&d, 0, 100, 4);
  say_message(&d, 1, SIZE, 4);
  void *request = irecv(&d, 0, AHEAD, 4);
  check_received(request, 0, 0, 100);
  check_waits(&d);
  int end = d.ends[0];
  d.ends[0] = -1;
  CHECK_OK(sk_close_recv(d.comm));
  CHECK_INT(recv(end, head, sizeof head, 0), sizeof head); /* the socket blocks not, and all is here */
  struct sk_frame f;
  CHECK(sk_frame_decode(head, &f) && f.type == SK_FRAME_CONTROL && f.tag == 1 && f.seq == 1);
  CHECK_INT(recv(end, head, sizeof head, 0), 0);
  rail_sock_close(&end);
  sk_close_all();
  rail_log_set_sink(NULL);
}

/* ---- in the way ------------------------------------------------------------------ */

TEST(a_message_with_another_tag_is_behind) {
  struct data d;
  begin(&d);
  say_message(&d, 0, SIZE, 4);
  say_message(&d, 1, 2 * SIZE, 4);
  say_message(&d, 2, 100, 5);
  check_waits(&d);
  check_received(irecv(&d, 0, AHEAD, 5), 0, 2, 100);
  CHECK_INT(kept(&d), 2);
  for (uint32_t seq = 0; seq < 2; seq++) check_received(irecv(&d, 0, AHEAD, 4), 0, seq, (int)((seq + 1) * SIZE));
  data_close(&d);
}

/* Its receive is posted, and its bytes come in two frames: the rest is behind the next message. */
TEST(the_rest_of_a_message_is_behind) {
  struct data d;
  begin(&d);
  void *request = irecv(&d, 0, AHEAD, 4);
  data_send(&d, 0, SK_FRAME_MSG, 0, 0, 2 * SIZE, SIZE, 4);
  data_send_bytes(&d, 0, 0, 0, SIZE);
  say_message(&d, 1, SIZE, 4);
  data_send(&d, 0, SK_FRAME_DATA, 0, 0, SIZE, SIZE, 4);
  data_send_bytes(&d, 0, 0, SIZE, SIZE);
  check_received(request, 0, 0, 2 * SIZE);
  check_received(irecv(&d, 0, AHEAD, 4), 0, 1, SIZE);
  data_close(&d);
}

static uint64_t now = 1000000000000ull;

static enum sk_keepalive_need check(const struct data *d) {
  struct pollfd fds[SK_MAX_STREAMS];
  uint32_t nfds;
  return sk_keepalive_check(d->comm, now += SK_TICK_MS * 1000000ull, fds, &nfds);
}

/* The watch thread looks behind it: at a tick in which nothing has come. */
static void tick(const struct data *d) {
  (void)check(d);
  CHECK_INT(check(d), SK_KEEPALIVE_RUN);
  sk_keepalive_run(d->comm, now);
}

TEST(a_ping_is_behind) {
  struct data d;
  begin(&d);
  say_message(&d, 0, SIZE, 4);
  data_send(&d, 0, SK_FRAME_PING, 0, 0, 0, 0, 0);
  check_waits(&d);
  CHECK(!data_is_readable(&d, 0));
  tick(&d);
  CHECK_INT(data_recv(&d, 0).type, SK_FRAME_PONG);
  CHECK_INT(kept(&d), 1);
  say_message(&d, 1, SIZE, 4);
  data_settle(&d);
  CHECK_INT(kept(&d), 1); /* the next one waits again */
  for (uint32_t seq = 0; seq < 2; seq++) check_received(irecv(&d, 0, AHEAD, 4), 0, seq, SIZE);
  data_close(&d);
}

/* Nor is a tick left out meanwhile, when the watch thread could not own the connection, or after it has moved it. */
TEST(each_tick_looks_for_a_ping) {
  struct data d;
  begin(&d);
  for (int i = 0; i < 3; i++) CHECK_INT(check(&d), SK_KEEPALIVE_POLL);
  data_send(&d, 0, SK_FRAME_PING, 0, 0, 0, 0, 0);
  sk_keepalive_run(d.comm, now);
  CHECK_INT(data_recv(&d, 0).type, SK_FRAME_PONG);
  CHECK_INT(check(&d), SK_KEEPALIVE_POLL);
  say_message(&d, 0, SIZE, 4);
  check_waits(&d);
  (void)check(&d);
  for (int i = 0; i < 8; i++) CHECK_INT(check(&d), SK_KEEPALIVE_RUN);
  check_received(irecv(&d, 0, AHEAD, 4), 0, 0, SIZE);
  data_close(&d);
}

TEST(an_error_is_behind) {
  static const struct sk_error none;
  struct data d;
  begin(&d);
  say_message(&d, 0, SIZE, 4);
  data_send(&d, 0, SK_FRAME_ERROR, 0, 1, RAIL_BAD_USAGE, sizeof none, 4);
  data_write(&d, 0, &none, sizeof none);
  check_waits(&d);
  tick(&d);
  CHECK(sk_comm_error(d.comm) != RAIL_OK);
  data_close(&d);
}

TEST(the_end_is_behind) {
  struct data d;
  begin(&d);
  say_message(&d, 0, SIZE, 4);
  data_end(&d, 0);
  check_waits(&d);
  void *its_own = irecv(&d, 0, AHEAD, 4), *another = irecv(&d, 1, AHEAD, 4);
  CHECK_INT(data_failure(another), RAIL_REMOTE_ERROR);
  check_received(its_own, 0, 0, SIZE);
  data_close(&d);

  begin(&d);
  say_message(&d, 0, SIZE, 4);
  data_end(&d, 0);
  check_waits(&d);
  CHECK_INT(data_failure(irecv(&d, 0, AHEAD, 5)), RAIL_REMOTE_ERROR);
  data_close(&d);
}

/* With an engine each call asks for another one until one has found the end, whose event came while the message waited:
 * also one that reads less than there was, as when a call has done enough. */
TEST(the_end_is_behind_the_rest) {
  struct data d;
  begin(&d);
  data_send(&d, 0, SK_FRAME_MSG, 0, 0, SIZE, SIZE, 4);
  data_send_bytes(&d, 0, 0, 0, SIZE / 2);
  check_waits(&d);
  CHECK(!d.comm->more);
  void *request = irecv(&d, 0, AHEAD, 4);
  for (uint32_t at = SIZE / 2; at < SIZE; at += SIZE / 4) {
    data_send_bytes(&d, 0, 0, at, SIZE / 4);
    CHECK_OK(data_turn(&d));
    CHECK(d.comm->more && !d.comm->ended);
  }
  data_end(&d, 0);
  CHECK_OK(data_turn(&d));
  CHECK(!d.comm->more && d.comm->ended);
  check_received(request, 0, 0, SIZE);
  data_close(&d);
}

/* With several streams none may wait for one that nobody reads; and the sending side may want all as it was. */
TEST(only_one_stream_with_the_feature_leaves_anything_unread) {
  static const struct { unsigned int nstreams; uint32_t features; } cases[] = {
    {1, 0}, {2, 0}, {2, SK_FEATURE_FAILOVER}, {2, SK_FEATURE_AHEAD}};
  for (size_t i = 0; i < RAIL_COUNT_OF(cases); i++) {
    struct data d;
    begin_with(&d, cases[i].nstreams, cases[i].features, SK_MIN_EAGER_BYTES(AHEAD));
    say_message(&d, 0, SIZE, 4);
    data_settle(&d);
    CHECK_INT(kept(&d), 1);
    check_received(irecv(&d, 0, AHEAD, 4), 0, 0, SIZE);
    data_close(&d);
  }
}

/* ---- nonsense --------------------------------------------------------------------- */

TEST(a_grant_that_was_not_given) {
  struct data d;
  begin(&d);
  data_send(&d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, SIZE, SIZE, 4);
  while (data_turn(&d) == RAIL_OK) continue;
  CHECK(log_said("a message whose buffer was not granted"));
  data_close(&d);
}

TEST(a_message_beyond_the_limits) {
  struct data d;
  begin(&d);
  data_send(&d, 0, SK_FRAME_MSG, 0, 0, AHEAD + 1, AHEAD + 1, 4);
  check_waits(&d);
  CHECK_INT(data_failure(irecv(&d, 0, AHEAD, 4)), RAIL_REMOTE_ERROR);
  CHECK(log_said("a message without grant beyond the agreed limits"));
  data_close(&d);
}

TEST_MAIN(TEST_CASE(a_message_waits_for_its_buffer), TEST_CASE(a_socket_is_not_emptied),
          TEST_CASE(a_small_message_is_taken_in), TEST_CASE(many_small_messages_are_left),
          TEST_CASE(a_receive_that_another_owner_must_start),
          TEST_CASE(a_buffer_that_is_too_small), TEST_CASE(a_message_that_is_never_received),
          TEST_CASE(a_message_with_another_tag_is_behind), TEST_CASE(the_rest_of_a_message_is_behind),
          TEST_CASE(a_ping_is_behind), TEST_CASE(each_tick_looks_for_a_ping), TEST_CASE(an_error_is_behind),
          TEST_CASE(the_end_is_behind), TEST_CASE(the_end_is_behind_the_rest),
          TEST_CASE(only_one_stream_with_the_feature_leaves_anything_unread), TEST_CASE(a_grant_that_was_not_given),
          TEST_CASE(a_message_beyond_the_limits))
