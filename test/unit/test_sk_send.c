/* SPDX-License-Identifier: Apache-2.0
 * A sending connection and a receiver in the test's hands: credit, grants, the order of a tag, what streams carry.
 * TEST-SAN: asan */
#include <sys/resource.h>

#include "test/unit/sk_data.h"

#define SHARED (256 * 1024)
#define STUCK (512 * 1024)

static uint8_t bytes[1 << 20];

/* Of message seq, whose bytes follow from its number: sends are announced in the order of these calls. */
static void *isend_from(const struct data *d, uint32_t seq, uint8_t *at, size_t size, int tag) {
  void *request;
  data_fill(at, seq, 0, size);
  ENSURE_INT(sk_isend(d->comm, at, size, tag, NULL, NULL, &request), RAIL_OK);
  ENSURE(request, "no request");
  return request;
}
static void *isend(const struct data *d, uint32_t seq, size_t size, int tag) {
  ENSURE(size <= sizeof bytes / 16, "%zu bytes", size);
  return isend_from(d, seq, bytes + (size_t)seq % 16 * (sizeof bytes / 16), size, tag);
}

static void hear_message(const struct data *d, uint32_t seq, size_t size, uint32_t tag) {
  struct sk_frame f = data_recv_payload(d, 0);
  ENSURE_INT(f.type, SK_FRAME_MSG);
  ENSURE_INT(f.seq, seq);
  ENSURE_INT(f.size, size);
  ENSURE_INT(f.tag, tag);
}

static void grant(const struct data *d, uint32_t seen, uint64_t bytes_freed, uint32_t count, uint32_t tag,
                  uint64_t size) {
  data_send_control(d, 0, seen, bytes_freed, count, &(struct data_entry){SK_ENTRY_GRANT, tag, size}, 1);
}

/* ---- credit -------------------------------------------------------------- */

TEST(no_more_messages_than_the_credit_counts) {
  struct data d;
  void *requests[5];
  data_begin(&d, SK_SENDER, 1, 0);
  d.args.eager_count = 3;
  data_open(&d);
  for (uint32_t i = 0; i < 5; i++) requests[i] = isend(&d, i, 8, 0);
  for (uint32_t i = 0; i < 3; i++) hear_message(&d, i, 8, 0);
  data_recv_nothing(&d, 0);
  data_send_control(&d, 0, 1, sk_credit_of(8), 1, NULL, 0);
  hear_message(&d, 3, 8, 0);
  data_recv_nothing(&d, 0);
  data_send_control(&d, 0, 4, 2 * sk_credit_of(8), 2, NULL, 0);
  hear_message(&d, 4, 8, 0);
  for (int i = 0; i < 5; i++) data_wait(requests[i], NULL);
  data_close(&d);
}

TEST(no_more_bytes_than_the_credit_holds) {
  struct data d;
  void *requests[5];
  data_begin(&d, SK_SENDER, 1, 0);
  d.args.eager_bytes = 4 * (uint32_t)sk_credit_of(EAGER); /* four of the largest, to the byte */
  data_open(&d);
  for (uint32_t i = 0; i < 5; i++) requests[i] = isend(&d, i, EAGER, 0);
  for (uint32_t i = 0; i < 4; i++) hear_message(&d, i, EAGER, 0);
  data_recv_nothing(&d, 0);
  data_send_control(&d, 0, 4, sk_credit_of(EAGER), 1, NULL, 0);
  hear_message(&d, 4, EAGER, 0);
  for (int i = 0; i < 5; i++) data_wait(requests[i], NULL);
  data_close(&d);
}

/* ---- the order of a tag --------------------------------------------------- */

TEST(small_sends_do_not_overtake_a_large_one_of_their_tag) {
  struct data d;
  data_begin(&d, SK_SENDER, 1, 0);
  data_open(&d);
  void *large = isend(&d, 1, EAGER + 1, 7), *small = isend(&d, 2, 8, 7), *other = isend(&d, 0, 8, 5);
  hear_message(&d, 0, 8, 5);
  data_recv_nothing(&d, 0);
  data_send_control(&d, 0, 1, sk_credit_of(8), 1, NULL, 0); /* credit alone lets none of them go */
  data_recv_nothing(&d, 0);
  grant(&d, 1, sk_credit_of(8), 1, 7, EAGER + 1);
  hear_message(&d, 1, EAGER + 1, 7);
  hear_message(&d, 2, 8, 7);
  data_wait(other, NULL);
  data_wait(large, NULL);
  data_wait(small, NULL);
  data_close(&d);
}

TEST(sends_that_wait_for_credit_go_in_the_order_of_their_tag) {
  struct data d;
  void *requests[4];
  data_begin(&d, SK_SENDER, 1, 0);
  d.args.eager_count = 1;
  data_open(&d);
  for (uint32_t i = 0; i < 4; i++) requests[i] = isend(&d, i, 100 - i, 3);
  for (uint32_t i = 0; i < 4; i++) {
    hear_message(&d, i, 100 - i, 3);
    data_recv_nothing(&d, 0);
    data_send_control(&d, 0, i + 1, (i + 1) * sk_credit_of(100), i + 1, NULL, 0);
  }
  for (int i = 0; i < 4; i++) data_wait(requests[i], NULL);
  data_close(&d);
}

/* Grants are made before the receiver sees what went ahead: one that belongs to such a message must not be taken for
 * the next send's. Only what the receiver had seen when it wrote is out of the question. */
TEST(a_grant_belongs_to_the_message_that_was_under_way) {
  struct data d;
  data_begin(&d, SK_SENDER, 1, 0);
  data_open(&d);
  void *first = isend(&d, 0, 8, 1), *second = isend(&d, 1, 8, 1);
  hear_message(&d, 0, 8, 1);
  hear_message(&d, 1, 8, 1);
  grant(&d, 1, sk_credit_of(8), 1, 1, EAGER + 1); /* message 0 was seen, 1 was not: the buffer is for that one */
  data_settle(&d);
  void *large = isend(&d, 2, EAGER + 1, 1);
  data_recv_nothing(&d, 0);
  grant(&d, 2, 2 * sk_credit_of(8), 2, 1, EAGER + 1);
  hear_message(&d, 2, EAGER + 1, 1);
  data_wait(first, NULL);
  data_wait(second, NULL);
  data_wait(large, NULL);
  data_close(&d);
}

/* ---- streams --------------------------------------------------------------- */

/* Bytes of message seq that come over both streams, until all are here. */
static void hear_all(const struct data *d, uint32_t seq, size_t size) {
  size_t have = 0;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  struct sk_frame f = data_recv_payload(d, 0);
  ENSURE_INT(f.type, SK_FRAME_MSG);
  ENSURE_INT(f.seq, seq);
  for (have = f.len; have < size; have += f.len)
    for (unsigned int i = 0;; i = 1 - i) {
      (void)data_turn(d);
      ENSURE(!rail_deadline_passed(deadline), "%zu of %zu bytes came", have, size);
      if (!data_is_readable(d, i)) continue;
      f = data_recv_payload(d, i);
      ENSURE_INT(f.type, SK_FRAME_DATA);
      ENSURE_INT(f.seq, seq);
      break;
    }
  ENSURE_INT(have, size);
}

TEST(large_messages_one_after_the_other_over_two_streams) {
  struct data d;
  data_begin(&d, SK_SENDER, 2, 0);
  sk_params.chunk = 4096;
  data_open(&d);
  for (uint32_t seq = 0; seq < 4; seq++) {
    grant(&d, seq, 0, 0, 0, 30000);
    void *request = isend(&d, seq, 30000, 0);
    hear_all(&d, seq, 30000);
    data_wait(request, NULL);
  }
  data_close(&d);
}

/* Whatever its size: all of it goes along with its announcement. */
TEST(a_message_over_one_stream_is_one_frame) {
  struct data d;
  data_begin(&d, SK_SENDER, 1, 0);
  data_open(&d);
  for (uint32_t seq = 0; seq < 2; seq++) {
    const uint32_t size = SK_BULK_BYTES - 1 + seq;
    grant(&d, seq, 0, 0, 0, size);
    void *request = isend(&d, seq, size, 0);
    struct sk_frame f = data_recv_payload(&d, 0);
    CHECK_INT(f.type, SK_FRAME_MSG);
    CHECK_INT(f.size, size);
    CHECK_INT(f.len, size);
    data_wait(request, NULL);
    CHECK_INT(rail_stats_get(&d.comm->streams[0].counts.stream[SK_STREAM_CHUNKS]), seq + 1);
  }
  data_close(&d);
}

/* Cut in as many chunks as there are streams; the first goes with the announcement where its stream is free. */
TEST(a_large_message_has_a_chunk_for_each_stream) {
  struct data d;
  data_begin(&d, SK_SENDER, 4, 0);
  data_open(&d);
  grant(&d, 0, 0, 0, 0, SHARED);
  void *request = isend_from(&d, 0, bytes, SHARED, 0);
  struct sk_frame f = data_recv_payload(&d, 0);
  CHECK_INT(f.type, SK_FRAME_MSG);
  CHECK_INT(f.len, SHARED / 4);
  for (unsigned int i = 1; i < 4; i++) CHECK_INT(data_recv_payload(&d, i).len, SHARED / 4);
  data_wait(request, NULL);
  data_close(&d);
}

/* The main stream is stuck in the message before: the next one passes it by, all but its announcement. */
TEST(a_full_main_stream_delays_no_byte_of_another_message) {
  struct data d;
  data_begin(&d, SK_SENDER, 2, 0);
  for (int i = 0; i < 2; i++) { /* half of STUCK must be more than a socket takes, whatever the system's default is */
    ENSURE(setsockopt(d.args.fds[i], SOL_SOCKET, SO_SNDBUF, &(int){STUCK / 8}, sizeof(int)) == 0, "no SO_SNDBUF");
  }
  data_open(&d);
  for (int i = 0; i < 2; i++) grant(&d, 0, 0, 0, 0, STUCK);
  void *first = isend_from(&d, 0, bytes, STUCK, 0);
  void *second = isend_from(&d, 1, bytes + STUCK, STUCK, 0);
  struct sk_frame f;
  for (size_t have = 0; have < STUCK; have += f.seq == 1 ? f.len : 0) {
    f = data_recv_payload(&d, 1);
    CHECK_INT(f.type, SK_FRAME_DATA);
  }
  f = data_recv_payload(&d, 0);
  CHECK_INT(f.type, SK_FRAME_MSG);
  CHECK(f.len > 0 && f.seq == 0);
  f = data_recv(&d, 0);
  CHECK_INT(f.type, SK_FRAME_MSG);
  CHECK(f.len == 0 && f.seq == 1 && f.size == STUCK);
  data_wait(first, NULL);
  data_wait(second, NULL);
  data_close(&d);
}

/* A peer that refuses the last stream must not have read a message on another. */
TEST(nothing_is_written_before_all_streams_are_welcome) {
  struct data d;
  data_begin(&d, SK_SENDER, 3, 0);
  data_create(&d);
  void *request = isend(&d, 0, 8, 0);
  for (unsigned int i = 0; i < 3; i++) {
    for (unsigned int k = 0; k < 3; k++) data_recv_nothing(&d, k);
    CHECK(!data_test(request, NULL));
    data_welcome(&d, i);
    if (i == 0) data_send(&d, 0, SK_FRAME_PING, 0, 0, 0, 0, 0); /* nor an answer to this */
  }
  data_wait(request, NULL);
  CHECK_INT(data_recv(&d, 0).type, SK_FRAME_MSG);
  data_close(&d);
}

/* Its streams end at close without a byte. */
static void close_and_hear_nothing(struct data *d) {
  int ends[2] = {d->ends[0], d->ends[1]};
  uint8_t byte;
  d->ends[0] = d->ends[1] = -1;
  data_close(d);
  for (unsigned int i = 0; i < 2; i++) {
    CHECK_MSG(recv(ends[i], &byte, 1, MSG_DONTWAIT) == 0, "stream %u has a byte, or has not ended", i);
    rail_sock_close(&ends[i]);
  }
}

/* A refusal fails every send, in whichever call, and still nothing is written. */
TEST(a_refusal_fails_all_sends) {
  struct data d;
  struct sk_answer_bytes refusal = sk_make_welcome(0);
  void *requests[2];
  data_begin(&d, SK_SENDER, 2, 0);
  data_create(&d);
  for (int i = 0; i < 2; i++) requests[i] = isend(&d, i, 8, 0);
  refusal.answer.reason = htole16(RAIL_REASON_VERSION);
  refusal.head.version = htole16(3);
  data_welcome(&d, 0);
  data_write(&d, 1, &refusal, sizeof refusal);
  for (int i = 0; i < 2; i++) CHECK_INT(data_failure(requests[i]), RAIL_REMOTE_ERROR);
  CHECK(log_said("the peer refused stream 1: another protocol version; install the same release on both sides "
                 "(its protocol version 3, ours 4)"));
  for (unsigned int i = 0; i < 2; i++) CHECK(!data_is_readable(&d, i));
  close_and_hear_nothing(&d);
}

/* Nor is the sender's own error, of a message that is larger than its buffer, before the last answer. */
TEST(an_error_waits_for_the_answers) {
  struct data d;
  data_begin(&d, SK_SENDER, 2, 0);
  data_create(&d);
  data_welcome(&d, 0);
  grant(&d, 0, 0, 0, 0, 8);
  void *request = isend(&d, 0, EAGER + 1, 0);
  CHECK_INT(data_failure(request), RAIL_BAD_USAGE);
  CHECK_INT(d.comm->streams[0].out_count, 1);
  close_and_hear_nothing(&d);
}

TEST(the_peer_goes_away_while_sends_wait) {
  for (unsigned int i = 0; i < 3; i++) { /* it has answered on all streams, or on all but the one that ends */
    struct data d;
    data_begin(&d, SK_SENDER, 3, 0);
    data_create(&d);
    for (unsigned int k = 0; k < 3; k++)
      if (i == 0 || k != i) data_welcome(&d, k);
    void *request = isend(&d, 0, EAGER + 1, 0);
    data_settle(&d);
    data_end(&d, i);
    data_failure(request);
    CHECK(log_said(i ? "before it answered the handshake" : "closed the connection with requests outstanding"));
    data_close(&d);
  }
}

/* The peer says why, then reads no more: its reason counts, not that its stream is broken. */
TEST(the_last_word_of_a_peer_that_reads_no_more) {
  struct data d;
  const struct sk_error why = {.message_size = htole64(77), .capacity = htole64(66)};
  data_begin(&d, SK_SENDER, 1, 0);
  data_open(&d);
  data_settle(&d);
  data_send(&d, 0, SK_FRAME_ERROR, 0, 0, RAIL_BAD_USAGE, sizeof why, 9);
  data_write(&d, 0, &why, sizeof why);
  data_end(&d, 0);
  void *request = isend(&d, 0, 8, 0);
  CHECK_INT(data_failure(request), RAIL_BAD_USAGE);
  CHECK(log_said("a message of 77 bytes with tag 9 meets a receive buffer of 66 bytes"));
  data_close(&d);
}

/* ---- registrations, close ---------------------------------------------------- */

TEST(a_registration_is_free_when_its_sends_are_done) {
  struct data d;
  void *mr, *requests[2];
  data_begin(&d, SK_SENDER, 1, 0);
  data_open(&d);
  CHECK_OK(sk_reg_mr(d.comm, bytes, sizeof bytes, RAIL_PTR_HOST, &mr));
  for (int i = 0; i < 2; i++) CHECK_OK(sk_isend(d.comm, bytes, 8, 0, mr, NULL, &requests[i]));
  for (int i = 0; i < 2; i++) data_wait(requests[i], NULL);
  CHECK_OK(sk_dereg_mr(d.comm, mr));
  CHECK_MSG(!sk_comm_is_stopped(d.comm), "deregMr took the registration for one in use");
  data_close(&d);
}

/* A message that is half written at close is cut off, and nothing follows it: that would be taken for its bytes. */
TEST(nothing_follows_a_message_that_was_cut_off) {
  struct data d;
  size_t size = sizeof bytes / 16, sent, received = 0;
  data_begin(&d, SK_SENDER, 1, 0);
  data_open(&d);
  const struct sk_stream *s = &d.comm->streams[0];
  for (uint32_t seq = 0; seq < 15 && !s->out_count; seq++) {
    grant(&d, 0, 0, 0, 0, size);
    data_settle(&d);
    isend(&d, seq, size, 0);
  }
  CHECK_MSG(s->out_count && s->out_done, "the socket took all of it");
  ENSURE(sk_comm_try_own(d.comm), "another thread moves it");
  sk_progress_ping(d.comm); /* a frame of no user's, behind it */
  sk_comm_disown(d.comm);
  sent = rail_stats_get(&d.comm->traffic.out);
  int end = d.ends[0];
  d.ends[0] = -1;
  static uint8_t got[64 * 1024];
  ssize_t n;
  while ((n = recv(end, got, sizeof got, MSG_DONTWAIT)) > 0) received += (size_t)n; /* now there is room */
  CHECK_INT(received, sent);
  data_close(&d);
  CHECK_MSG(recv(end, got, sizeof got, MSG_DONTWAIT) == 0, "something follows");
  rail_sock_close(&end);
}

/* The same in the middle of a header, which what follows must not complete. */
TEST(nothing_follows_a_header_that_was_cut_off) {
  struct data d;
  uint8_t got[4096];
  ssize_t n;
  data_begin(&d, SK_SENDER, 1, 0);
  data_open(&d);
  data_settle(&d);
  struct sk_stream *s = &d.comm->streams[0];
  while (send(s->fd, "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) continue; /* it is full */
  isend(&d, 0, 8, 0);
  ENSURE(sk_comm_try_own(d.comm), "another thread moves it");
  sk_progress_ping(d.comm);
  sk_comm_disown(d.comm);
  CHECK_INT(s->out_count, 2);
  while (recv(d.ends[0], got, sizeof got, MSG_DONTWAIT) > 0) continue;
  CHECK_INT(send(s->fd, s->stage + s->stage_head, 10, MSG_NOSIGNAL), 10); /* now it has taken 10 bytes */
  sk_stream_wrote(s, 10);
  int end = d.ends[0];
  d.ends[0] = -1;
  data_close(&d);
  size_t received = 0;
  while ((n = recv(end, got, sizeof got, MSG_DONTWAIT)) > 0) received += (size_t)n;
  CHECK_INT(received, 10);
  rail_sock_close(&end);
}

/* Close shuts all streams down at once, and closes the sockets when the peer has shut them down, too. */
TEST(all_streams_end_at_close) {
  struct data d;
  uint8_t byte;
  data_begin(&d, SK_SENDER, 3, 0);
  data_open(&d);
  data_settle(&d);
  CHECK_OK(sk_close_send(d.comm));
  for (unsigned int i = 0; i < 3; i++)
    CHECK_MSG(recv(d.ends[i], &byte, 1, MSG_DONTWAIT) == 0, "stream %u has not ended", i);
  for (int i = 0; i < 3; i++) {
    CHECK(rail_linger_any());
    rail_linger_reap();
  }
  for (unsigned int i = 0; i < 3; i++) data_end(&d, i);
  rail_linger_reap();
  CHECK(!rail_linger_any());
  sk_close_all();
  rail_log_set_sink(NULL);
}

/* So many closed connections whose peers never close: the oldest are given up, with their sockets. */
TEST(a_bounded_number_of_closed_connections_waits) {
  enum { BOUND = 1024, MORE = 4 };
  static int ends[BOUND + MORE];
  struct rlimit limit;
  ENSURE(getrlimit(RLIMIT_NOFILE, &limit) == 0, "no limit");
  if (limit.rlim_max < 3 * BOUND) tap_skip_case("at most %llu files may be open", (unsigned long long)limit.rlim_max);
  limit.rlim_cur = limit.rlim_max;
  ENSURE(setrlimit(RLIMIT_NOFILE, &limit) == 0, "no limit");
  for (int i = 0; i < BOUND + MORE; i++) {
    struct data d;
    data_begin(&d, SK_SENDER, 1, 0);
    data_create(&d);
    ends[i] = d.ends[0];
    CHECK_OK(sk_close_send(d.comm));
  }
  int gone = 0;
  for (int i = 0; i < BOUND + MORE; i++) gone += send(ends[i], "x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0;
  CHECK_MSG(gone >= MORE, "%d of %d are gone", gone, BOUND + MORE); /* on a slow machine others' grace time is over */
  for (int i = 0; i < BOUND + MORE; i++) rail_sock_close(&ends[i]);
  sk_close_all();
  CHECK(!rail_linger_any());
  rail_log_set_sink(NULL);
}

/* ---- nonsense from the peer ------------------------------------------------ */

/* Another stream is read until its answer is here, with whatever stands behind that. */
TEST(control_frames_come_over_the_first_stream) {
  struct data d;
  data_begin(&d, SK_SENDER, 2, 0);
  data_create(&d);
  void *request = isend(&d, 0, EAGER + 1, 0);
  data_welcome(&d, 0);
  data_welcome(&d, 1);
  data_send_control(&d, 1, 0, 0, 0, &(struct data_entry){SK_ENTRY_GRANT, 0, EAGER + 1}, 1);
  CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
  CHECK(log_said("protocol error: a control frame on stream 1"));
  data_close(&d);
}

TEST(a_control_frame_that_is_too_long_is_an_error) {
  struct data d;
  data_begin(&d, SK_SENDER, 1, 0);
  data_open(&d);
  void *request = isend(&d, 0, EAGER + 1, 0);
  data_send(&d, 0, SK_FRAME_CONTROL, 0, 0, 0, (SK_MAX_ENTRIES + 1) * (uint32_t)sizeof(struct sk_entry), 0);
  CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
  CHECK(log_said("protocol error: a control frame of 8208 bytes"));
  data_close(&d);
}

TEST_MAIN(TEST_CASE(no_more_messages_than_the_credit_counts), TEST_CASE(no_more_bytes_than_the_credit_holds),
          TEST_CASE(small_sends_do_not_overtake_a_large_one_of_their_tag),
          TEST_CASE(sends_that_wait_for_credit_go_in_the_order_of_their_tag),
          TEST_CASE(a_grant_belongs_to_the_message_that_was_under_way),
          TEST_CASE(large_messages_one_after_the_other_over_two_streams),
          TEST_CASE(a_message_over_one_stream_is_one_frame),
          TEST_CASE(a_large_message_has_a_chunk_for_each_stream),
          TEST_CASE(a_full_main_stream_delays_no_byte_of_another_message),
          TEST_CASE(nothing_is_written_before_all_streams_are_welcome),
          TEST_CASE(a_refusal_fails_all_sends), TEST_CASE(an_error_waits_for_the_answers),
          TEST_CASE(the_peer_goes_away_while_sends_wait),
          TEST_CASE(the_last_word_of_a_peer_that_reads_no_more),
          TEST_CASE(a_registration_is_free_when_its_sends_are_done),
          TEST_CASE(nothing_follows_a_message_that_was_cut_off),
          TEST_CASE(nothing_follows_a_header_that_was_cut_off),
          TEST_CASE(all_streams_end_at_close), TEST_CASE(a_bounded_number_of_closed_connections_waits),
          TEST_CASE(control_frames_come_over_the_first_stream),
          TEST_CASE(a_control_frame_that_is_too_long_is_an_error))
