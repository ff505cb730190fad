/* SPDX-License-Identifier: Apache-2.0
 * A receiving connection and a sender in the test's hands: messages that come before their buffers, in pieces, over
 * several streams; which buffers and credit the sender is granted.
 * TEST-SAN: asan */
#include "test/unit/sk_data.h"

#define FILL 0xee

static uint8_t bytes[8][32 * 1024];

/* Buffer i of `sizes[i]` bytes for tag tags[i]; mhandles may be NULL. */
static void *irecv(const struct data *d, int n, const size_t *sizes, const int *tags, void **mhandles) {
  void *data[8], *request;
  for (int i = 0; i < n; i++) {
    data[i] = bytes[i];
    memset(bytes[i], FILL, sizeof bytes[i]);
  }
  ENSURE_INT(sk_irecv(d->comm, n, data, sizes, tags, mhandles, NULL, &request), RAIL_OK);
  ENSURE(request, "no request");
  return request;
}
static void *irecv_one(const struct data *d, size_t size, int tag) {
  return irecv(d, 1, &size, &(int){tag}, NULL);
}

static void check_buffer(int i, uint32_t seq, size_t size) {
  data_check_bytes(bytes[i], seq, 0, size);
  for (size_t at = size; at < sizeof bytes[i]; at++) ENSURE(bytes[i][at] == FILL, "byte %zu was written", at);
}

static void say_message(const struct data *d, uint32_t seq, size_t size, uint32_t tag, unsigned int flags) {
  data_send(d, 0, SK_FRAME_MSG, flags, seq, size, (uint32_t)size, tag);
  if (size) data_send_bytes(d, 0, seq, 0, size);
}

/* The next CONTROL frame with its entries, at most 8. */
static struct sk_frame hear_control(const struct data *d, struct sk_entry *entries) {
  struct sk_frame f = data_recv(d, 0);
  ENSURE_INT(f.type, SK_FRAME_CONTROL);
  ENSURE(f.len <= 8 * sizeof *entries, "%u bytes of entries", f.len);
  data_recv_bytes(d, 0, entries, f.len);
  return f;
}

/* ---- early messages --------------------------------------------------------- */

TEST(a_receive_is_posted_while_its_message_comes_in) {
  struct data d;
  data_begin(&d, SK_RECEIVER, 1, 0);
  data_open(&d);
  for (size_t there = 0; there <= 600; there += 300) { /* so many of 600 bytes have come when the receive is posted */
    uint32_t seq = (uint32_t)there / 300;
    data_send(&d, 0, SK_FRAME_MSG, 0, seq, 600, 600, 4);
    if (there) data_send_bytes(&d, 0, seq, 0, there);
    data_settle(&d);
    void *request = irecv_one(&d, 1000, 4);
    int size = -1;
    if (there < 600) {
      CHECK(!data_test(request, &size));
      data_send_bytes(&d, 0, seq, there, 600 - there);
    }
    data_wait(request, &size);
    CHECK_INT(size, 600);
    check_buffer(0, seq, 600);
  }
  data_close(&d);
}

/* Some of a message is on its way over the other stream when its buffer is posted. */
TEST(an_early_message_in_two_frames) {
  struct data d;
  data_begin(&d, SK_RECEIVER, 2, 0);
  data_open(&d);
  data_send(&d, 0, SK_FRAME_MSG, 0, 0, 600, 200, 4);
  data_send_bytes(&d, 0, 0, 0, 200);
  data_settle(&d);
  void *request = irecv_one(&d, 1000, 4);
  int size = -1;
  CHECK(!data_test(request, &size));
  data_send(&d, 1, SK_FRAME_DATA, 0, 0, 200, 400, 4);
  data_send_bytes(&d, 1, 0, 200, 400);
  data_wait(request, &size);
  CHECK_INT(size, 600);
  check_buffer(0, 0, 600);
  data_close(&d);
}

/* Its announcement has no bytes, and comes last. */
TEST(a_message_whose_bytes_come_over_other_streams) {
  struct data d;
  data_begin(&d, SK_RECEIVER, 3, 0);
  data_open(&d);
  void *request = irecv_one(&d, 9000, 4);
  int size = -1;
  for (unsigned int i = 1; i < 3; i++) {
    data_send(&d, i, SK_FRAME_DATA, 0, 0, (i - 1) * 4000, 4000, 4);
    data_send_bytes(&d, i, 0, (i - 1) * 4000, 4000);
  }
  data_settle(&d);
  CHECK(!data_test(request, &size));
  data_send(&d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, 8000, 0, 4);
  data_wait(request, &size);
  CHECK_INT(size, 8000);
  check_buffer(0, 0, 8000);
  data_close(&d);
}

/* Tests with nothing to do: reads in all, and the end of another stream is found all the same. */
TEST(streams_without_chunks_to_come_are_rarely_read) {
  struct data d;
  data_begin(&d, SK_RECEIVER, 4, 0);
  data_open(&d);
  void *request = irecv_one(&d, 100, 4);
  data_settle(&d); /* its reports are made */
  uint64_t before = rail_stats_get(&d.comm->traffic.calls);
  for (int i = 0; i < 2 * SK_READ_OTHERS_CALLS; i++) CHECK(!data_test(request, NULL));
  CHECK_INT(rail_stats_get(&d.comm->traffic.calls) - before, 2 * (SK_READ_OTHERS_CALLS + 3));
  data_end(&d, 3);
  for (int i = 0; i < SK_READ_OTHERS_CALLS; i++) CHECK(!data_test(request, NULL));
  CHECK(d.comm->streams[3].eof);
  say_message(&d, 0, 50, 4, 0);
  data_wait(request, NULL);
  check_buffer(0, 0, 50);
  data_close(&d);
}

/* ---- grouped receives --------------------------------------------------------- */

TEST(eight_buffers_their_sizes_and_registrations) {
  static const size_t capacities[8] = {100, 200, 300, 400, 500, 600, 700, 800};
  static const int tags[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  void *mrs[8];
  int sizes[8];
  struct data d;
  data_begin(&d, SK_RECEIVER, 1, 0);
  data_open(&d);
  for (int i = 0; i < 8; i++) CHECK_OK(sk_reg_mr(d.comm, bytes[i], sizeof bytes[i], RAIL_PTR_HOST, &mrs[i]));
  void *request = irecv(&d, 8, capacities, tags, mrs);
  for (uint32_t i = 0; i < 8; i++) say_message(&d, i, 10 * i, 8 - i, 0); /* the last buffer's comes first */
  data_wait(request, sizes);
  for (int i = 0; i < 8; i++) {
    CHECK_INT(sizes[i], 10 * (7 - i));
    check_buffer(i, (uint32_t)(7 - i), (size_t)sizes[i]);
  }
  for (int i = 0; i < 8; i++) CHECK_OK(sk_dereg_mr(d.comm, mrs[i]));
  CHECK_MSG(!sk_comm_is_stopped(d.comm), "deregMr took a registration for one in use");
  data_close(&d);
}

TEST(registrations_are_given_back_in_any_order) {
  static const int orders[][4] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 0, 3, 2}, {2, 1, 3, 0}, {1, 2, 0, 3}};
  for (unsigned int k = 0; k < RAIL_COUNT_OF(orders); k++) {
    struct data d;
    void *mrs[4];
    data_begin(&d, SK_RECEIVER, 1, 0);
    data_open(&d);
    for (int i = 0; i < 4; i++) CHECK_OK(sk_reg_mr(d.comm, bytes[i], sizeof bytes[i], RAIL_PTR_HOST, &mrs[i]));
    for (int i = 0; i < 4; i++) {
      unsigned int left = 0;
      CHECK_OK(sk_dereg_mr(d.comm, mrs[orders[k][i]]));
      for (const struct sk_mr *mr = LIST_FIRST(&d.comm->mrs); mr && left < 5; mr = LIST_NEXT(mr, next), left++)
        CHECK(*mr->next.le_prev == mr && mr->memory.comm == d.comm);
      CHECK_INT(left, 3 - i);
    }
    data_close(&d);
  }
}

/* Of another connection, begun before its range, and beyond its end. */
TEST(a_buffer_outside_its_registration_is_refused) {
  struct data d, other;
  void *mr, *foreign, *request;
  data_begin(&d, SK_RECEIVER, 1, 0);
  data_open(&d);
  data_begin(&other, SK_RECEIVER, 1, 0);
  data_open(&other);
  CHECK_OK(sk_reg_mr(d.comm, bytes[1], 100, RAIL_PTR_HOST, &mr));
  CHECK_OK(sk_reg_mr(other.comm, bytes[1], 100, RAIL_PTR_HOST, &foreign));
  const struct { uint8_t *data; size_t size; void *mr; rail_result_t result; } cases[] = {
      {bytes[1], 100, mr, RAIL_OK},
      {bytes[1] + 100, 0, mr, RAIL_OK},
      {bytes[1], 100, foreign, RAIL_BAD_ARGUMENT},
      {bytes[1] - 1, 10, mr, RAIL_BAD_ARGUMENT},
      {bytes[1] + 91, 10, mr, RAIL_BAD_ARGUMENT},
  };
  for (size_t i = 0; i < RAIL_COUNT_OF(cases); i++) {
    void *data = cases[i].data, *mhandle = cases[i].mr;
    CHECK_INT(sk_irecv(d.comm, 1, &data, &cases[i].size, &(int){7}, &mhandle, NULL, &request), cases[i].result);
  }
  data_close(&other);
  data_close(&d);
}

/* ---- grants to the sender ---------------------------------------------------- */

TEST(only_buffers_above_the_eager_size_are_granted) {
  struct sk_entry entries[8];
  struct data d;
  data_begin(&d, SK_RECEIVER, 1, 0);
  data_open(&d);
  void *at_limit = irecv_one(&d, EAGER, 1);
  data_recv_nothing(&d, 0);
  void *above = irecv_one(&d, EAGER + 1, 2);
  data_settle(&d);
  CHECK_MSG(data_is_readable(&d, 0), "a buffer above the eager size is not granted soon");
  struct sk_frame f = hear_control(&d, entries);
  CHECK_INT(f.len, 2 * sizeof entries[0]); /* in posting order, the small one before the last large one, too */
  CHECK_INT(le32toh(entries[0].key), 1);
  CHECK_INT(le32toh(entries[1].key), 2);
  CHECK_INT(le64toh(entries[1].value), EAGER + 1);
  say_message(&d, 0, 8, 1, SK_FRAME_GRANTED);
  say_message(&d, 1, 8, 2, SK_FRAME_GRANTED);
  data_wait(at_limit, NULL);
  data_wait(above, NULL);
  data_close(&d);
}

/* The buffer that an early message took is not granted afterwards: the sender would pair it with its next send. */
TEST(a_buffer_that_has_its_message_is_not_granted) {
  struct sk_entry entries[8];
  struct data d;
  data_begin(&d, SK_RECEIVER, 1, 0);
  data_open(&d);
  void *small = irecv_one(&d, 100, 1);
  say_message(&d, 0, 100, 1, 0);
  data_settle(&d); /* it is done, and its request not given back */
  void *large = irecv_one(&d, EAGER + 1, 2);
  struct sk_frame f = hear_control(&d, entries);
  CHECK_INT(f.len, sizeof entries[0]);
  CHECK_INT(le32toh(entries[0].key), 2);
  CHECK_INT(f.seq, 1);
  CHECK_INT(f.tag, 1); /* credit of one message, with its bytes */
  CHECK_INT(f.size, sk_credit_of(100));
  say_message(&d, 1, 8, 2, SK_FRAME_GRANTED);
  data_wait(small, NULL);
  data_wait(large, NULL);
  data_close(&d);
}

/* As many messages as there is credit for, again and again: each time the sender hears of what is free before it has
 * none left, and not of anything twice. */
TEST(credit_comes_back_before_it_is_used_up) {
  struct sk_entry entries[8];
  struct data d;
  data_begin(&d, SK_RECEIVER, 1, 0);
  d.args.eager_count = 8;
  data_open(&d);
  uint32_t seq = 0, told = 0, frames = 0;
  while (seq < 64) {
    CHECK_MSG(seq - told <= 8, "credit is used up at message %u", seq);
    if (seq - told == 8) {
      struct sk_frame f = hear_control(&d, entries);
      CHECK_MSG(f.tag > told && f.tag <= seq, "credit of %u messages; %u were sent, %u known", f.tag, seq, told);
      CHECK_INT(f.size, f.tag * sk_credit_of(64));
      told = f.tag;
      frames++;
      continue;
    }
    void *request = irecv_one(&d, 64, 0);
    say_message(&d, seq++, 64, 0, 0);
    data_wait(request, NULL);
  }
  CHECK_MSG(frames <= 32, "%u frames for 64 messages", frames);
  data_close(&d);
}

/* Messages that lie in memory out of the order in which they are taken: credit comes back with those at the front. */
TEST(credit_of_messages_taken_in_another_order) {
  static const size_t sizes[] = {1000, 10, 3000, 100};
  struct data d;
  data_begin(&d, SK_RECEIVER, 1, 0);
  data_open(&d);
  for (uint32_t i = 0; i < 4; i++) say_message(&d, i, sizes[i], i, 0);
  data_settle(&d);
  const struct sk_unexpected *early = &data_receiver(&d)->unexpected;
  static const uint32_t order[] = {1, 2, 0, 3}, count[] = {0, 0, 3, 4};
  for (int i = 0; i < 4; i++) {
    uint64_t freed = 0;
    for (uint32_t k = 0; k < count[i]; k++) freed += sk_credit_of(sizes[k]);
    data_wait(irecv_one(&d, sizes[order[i]], (int)order[i]), NULL);
    check_buffer(0, order[i], sizes[order[i]]);
    CHECK_INT(early->count_freed, count[i]);
    CHECK_INT(early->bytes_freed, freed);
  }
  data_close(&d);
}

/* ---- close ------------------------------------------------------------------------- */

/* Byte by byte a small socket is soon full: each takes a buffer of its own. Returns how many it took. */
static uint32_t fill_socket(int fd, const uint8_t *from) {
  uint32_t n = 0;
  while (send(fd, from ? from + n : (const uint8_t *)"x", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) n++;
  return n;
}

/* Grants that the socket took in part are finished after close: the peer reads a whole frame. */
TEST(a_report_that_is_half_written_at_close) {
  uint8_t frame[SK_HEAD + 2 * sizeof(struct sk_entry)], garbage[4096];
  struct sk_frame f;
  struct data d;
  data_begin(&d, SK_RECEIVER, 1, 0);
  int fd = d.args.fds[0], end = d.ends[0];
  ENSURE(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int)) == 0, "no small socket");
  data_open(&d);
  struct sk_stream *s = &d.comm->streams[0];
  fill_socket(fd, NULL);
  irecv_one(&d, EAGER + 1, 7);
  data_settle(&d);
  CHECK_INT(s->out_bytes, SK_HEAD + sizeof(struct sk_entry));
  while (recv(end, garbage, sizeof garbage, MSG_DONTWAIT) > 0) continue;
  uint32_t n = fill_socket(fd, s->stage + s->stage_head);
  CHECK_MSG(n > 0 && n < SK_HEAD, "the socket took %u bytes", n);
  sk_stream_wrote(s, n);
  d.ends[0] = -1;
  CHECK_OK(sk_close_recv(d.comm));
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  for (size_t done = 0; done < SK_HEAD + sizeof(struct sk_entry); rail_linger_reap()) {
    CHECK_MSG(!rail_deadline_passed(deadline), "%zu bytes came", done);
    ssize_t more = recv(end, frame + done, sizeof frame - done, MSG_DONTWAIT);
    CHECK_MSG(more != 0, "the stream ends after %zu bytes", done);
    if (more > 0) done += (size_t)more;
    CHECK(done <= SK_HEAD + sizeof(struct sk_entry));
  }
  CHECK(sk_frame_decode(frame, &f) && f.type == SK_FRAME_CONTROL && f.len == sizeof(struct sk_entry));
  rail_linger_reap();
  CHECK_MSG(recv(end, frame, 1, MSG_DONTWAIT) == 0, "the stream does not end behind the frame");
  rail_sock_close(&end);
  sk_close_all();
  rail_log_set_sink(NULL);
}

/* ---- nonsense from the peer --------------------------------------------------------- */

static void refuses(void (*say)(const struct data *d), const char *words) {
  struct data d;
  data_begin(&d, SK_RECEIVER, 1, 0);
  data_open(&d);
  void *request = irecv_one(&d, 10000, 1);
  data_settle(&d);
  say(&d);
  CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
  CHECK_MSG(log_said(words), "not said: %s", words);
  check_buffer(0, 0, 0);
  data_close(&d);
}

static void reserved_bytes(const struct data *d) {
  uint8_t head[SK_HEAD];
  sk_frame_encode(head, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, 8, 8, 1);
  head[SK_HEAD - 1] = 1;
  data_write(d, 0, head, sizeof head);
}
static void no_header(const struct data *d) {
  const uint8_t head[SK_HEAD] = {SK_FRAME_MSG, [SK_HEAD - 1] = 1};
  data_write(d, 0, head, sizeof head);
}
static void more_than_it_has(const struct data *d) {
  data_send(d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, 8, 9, 1);
  data_send_bytes(d, 0, 0, 0, 9);
}
static void one_byte_behind(const struct data *d) {
  data_send(d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, 9000, 0, 1);
  data_send(d, 0, SK_FRAME_DATA, 0, 0, 8001, 1000, 1);
}
static void beyond_its_end(const struct data *d) {
  data_send(d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, 9000, 0, 1);
  data_send(d, 0, SK_FRAME_DATA, 0, 0, 9001, 1, 1);
}
static void beyond_all(const struct data *d) {
  data_send(d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, 9000, 0, 1);
  data_send(d, 0, SK_FRAME_DATA, 0, 0, UINT64_MAX - 9, 100, 1);
}
static void without_bytes(const struct data *d) {
  data_send(d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, 9000, 0, 1);
  data_send(d, 0, SK_FRAME_DATA, 0, 0, 0, 0, 1);
}
static void not_announced(const struct data *d) { data_send(d, 0, SK_FRAME_DATA, 0, 0, 0, 8, 1); }
static void one_too_late(const struct data *d) { data_send(d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 1, 8, 8, 1); }
static void one_without_credit(const struct data *d) { data_send(d, 0, SK_FRAME_MSG, 0, 0, EAGER + 1, 0, 2); }
static void a_grant_that_was_not_given(const struct data *d) {
  data_send(d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, 8, 8, 2);
}

TEST(frames_that_cannot_be) {
  refuses(reserved_bytes, "protocol error: a frame header whose reserved bytes are not zero, on stream 0");
  refuses(no_header, "protocol error: no frame header where one must be, on stream 0");
  refuses(more_than_it_has, "of a wrong size");
  refuses(one_byte_behind, "data outside its message");
  refuses(beyond_its_end, "data outside its message");
  refuses(beyond_all, "data outside its message");
  refuses(without_bytes, "data outside its message");
  refuses(not_announced, "data of a message that was not announced");
  refuses(one_too_late, "an announcement out of order");
  refuses(one_without_credit, "a message without grant beyond the agreed limits");
  refuses(a_grant_that_was_not_given, "a message whose buffer was not granted");
}

TEST_MAIN(TEST_CASE(a_receive_is_posted_while_its_message_comes_in), TEST_CASE(an_early_message_in_two_frames),
          TEST_CASE(a_message_whose_bytes_come_over_other_streams),
          TEST_CASE(streams_without_chunks_to_come_are_rarely_read),
          TEST_CASE(eight_buffers_their_sizes_and_registrations),
          TEST_CASE(only_buffers_above_the_eager_size_are_granted),
          TEST_CASE(a_buffer_that_has_its_message_is_not_granted), TEST_CASE(credit_comes_back_before_it_is_used_up),
          TEST_CASE(credit_of_messages_taken_in_another_order), TEST_CASE(registrations_are_given_back_in_any_order),
          TEST_CASE(a_buffer_outside_its_registration_is_refused),
          TEST_CASE(a_report_that_is_half_written_at_close), TEST_CASE(frames_that_cannot_be))
