/* SPDX-License-Identifier: Apache-2.0
 * Connections that outlive the loss of a stream, with the peer's ends in the test's hands: what is counted, what goes
 * again over which stream, and what is sent twice. How a stream comes back is in test_sk_again.c.
 * TEST-SAN: asan */
#include "test/unit/sk_data.h"

#define MESSAGE 60000
#define CHUNK 4096

static uint8_t bytes[4][64 * 1024];

static void *isend(const struct data *d, uint32_t seq, size_t size, int tag) {
  return data_isend(d, bytes[seq % 4], seq, size, tag);
}

static void *irecv(const struct data *d, size_t size, int tag) {
  void *request, *data = bytes[0];
  memset(bytes[0], 0, sizeof bytes[0]);
  ENSURE_INT(sk_irecv(d->comm, 1, &data, &size, &tag, NULL, NULL, &request), RAIL_OK);
  ENSURE(request, "no request");
  return request;
}

/* The next frame that is none of the receiver's reports. */
static struct sk_frame recv_no_report(const struct data *d, unsigned int stream) {
  for (;;) {
    struct sk_frame f = data_recv(d, stream);
    uint8_t entries[64 * sizeof(struct sk_entry)];
    if (f.type != SK_FRAME_CONTROL) return f;
    data_recv_bytes(d, stream, entries, f.len);
  }
}

/* ---- sender: counts --------------------------------------------------------- */

TEST(an_older_report_may_come_later) {
  struct data d;
  data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  void *a = isend(&d, 0, 8, 0), *b = isend(&d, 1, 8, 0);
  data_settle(&d);
  data_send_control(&d, 0, 2, 2 * sk_credit_of(8), 2, &(struct data_entry){SK_ENTRY_FRAMES, 0, 2}, 1);
  data_settle(&d);
  data_send_control(&d, 1, 1, sk_credit_of(8), 1, NULL, 0); /* it was written first */
  data_wait(a, NULL);
  data_wait(b, NULL);
  data_settle(&d);
  data_close(&d);
}

/* It grants nothing: the sender has forgotten the message that its grant was for. */
TEST(an_older_report_grants_nothing) {
  const struct data_entry arrived = {SK_ENTRY_FRAMES, 0, 1}, late = {SK_ENTRY_GRANT, 5, 8};
  struct data d;
  data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  void *first = isend(&d, 0, 8, 5);
  data_settle(&d);
  data_send_control(&d, 0, 1, sk_credit_of(8), 1, &arrived, 1);
  data_wait(first, NULL);
  void *second = isend(&d, 1, MESSAGE, 5); /* more than the buffer that was granted to the first one */
  data_send_control(&d, 1, 0, 0, 0, &late, 1);
  for (int i = 0; i < 20; i++) CHECK(!data_test(second, NULL));
  CHECK_INT(sk_comm_error(d.comm), RAIL_OK);
  data_close(&d);
}

TEST(counts_of_another_generation_do_not_count) {
  struct data d;
  data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  void *request = isend(&d, 0, 8, 0);
  const struct data_entry wrong[] = {data_frames_of(0, 1, 1), data_frames_of(0, 0xffffff, 1)},
                          right = data_frames_of(0, 0, 1);
  data_send_control(&d, 0, 1, sk_credit_of(8), 1, wrong, 2);
  for (int i = 0; i < 20; i++) CHECK(!data_test(request, NULL));
  data_send_control(&d, 0, 1, sk_credit_of(8), 1, &right, 1);
  data_wait(request, NULL);
  data_close(&d);
}

/* Frames that lie in the plugin, because the socket is full, cannot have arrived. */
TEST(frames_that_were_not_written_do_not_arrive) {
  struct data d;
  data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  void *request = NULL;
  for (uint32_t seq = 0; seq < 16; seq++) { /* far more than the two sockets hold */
    data_send_control(&d, 0, 0, 0, 0, &(struct data_entry){SK_ENTRY_GRANT, 0, sizeof bytes[0]}, 1);
    data_settle(&d);
    request = isend(&d, seq, sizeof bytes[0], 0);
  }
  data_settle(&d);
  const struct sk_path *rail = &d.comm->paths[0];
  uint32_t written = rail->count - atomic_load(&rail->queued);
  CHECK_MSG(atomic_load(&rail->queued) > 0, "the sockets took all of it");
  const struct data_entry entry = data_frames_of(0, 0, written + 1);
  data_send_control(&d, 0, 0, 0, 0, &entry, 1);
  CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
  CHECK(log_said("the peer counts 1 frames that were not sent"));
  data_close(&d);
}

/* A message without bytes has arrived when it was seen, and not before; nor is a later one forgotten that was sent when
 * the end of the list of those under way had arrived. */
TEST(empty_messages_arrive_when_they_are_seen) {
  struct data d;
  const struct data_entry one = data_frames_of(0, 0, 2);
  data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  void *empty = isend(&d, 0, 0, 0), *small = isend(&d, 1, 8, 0);
  data_send_control(&d, 0, 0, 0, 0, &one, 1); /* both announcements on stream 0, and the small one's bytes */
  data_wait(small, NULL);
  for (int i = 0; i < 20; i++) CHECK(!data_test(empty, NULL));
  void *last = isend(&d, 2, 8, 0);
  data_send_control(&d, 0, 1, 0, 0, NULL, 0);
  data_wait(empty, NULL);
  for (int i = 0; i < 20; i++) CHECK(!data_test(last, NULL));
  for (unsigned int i = 0; i < 2; i++) /* a stream that is closed with all of it read ends properly: it is not lost */
    for (uint32_t seq = 0; seq < 3; seq++) data_expect(&d, i, SK_FRAME_MSG, seq, seq ? 8 : 0);
  data_end(&d, 0);
  data_end(&d, 1);
  CHECK_INT(data_failure(last), RAIL_REMOTE_ERROR);
  data_close(&d);
}

/* A stream keeps a record of each frame until it is counted. When that is full nothing more is announced. */
TEST(no_more_frames_than_can_be_kept) {
  struct data d;
  data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  uint32_t sent = 0;
  for (; sent < SK_PATH_FRAMES; sent++) { /* the receiver sees all and counts no frame */
    void *request = isend(&d, sent, 0, 0);
    for (unsigned int i = 0; i < 2; i++) data_expect(&d, i, SK_FRAME_MSG, sent, 0);
    data_send_control(&d, 0, sent + 1, (sent + 1) * sk_credit_of(0), sent + 1, NULL, 0);
    data_wait(request, NULL);
  }
  void *request = isend(&d, sent, 0, 0);
  for (unsigned int i = 0; i < 2; i++) data_recv_nothing(&d, i);
  const struct data_entry counts[] = {data_frames_of(0, 0, 1), data_frames_of(1, 0, 1)};
  data_send_control(&d, 0, sent, sent * sk_credit_of(0), sent, counts, 1);
  for (unsigned int i = 0; i < 2; i++) data_recv_nothing(&d, i); /* stream 1 has no room yet */
  data_send_control(&d, 0, sent, sent * sk_credit_of(0), sent, &counts[1], 1);
  for (unsigned int i = 0; i < 2; i++) data_expect(&d, i, SK_FRAME_MSG, sent, 0);
  data_send_control(&d, 0, sent + 1, (sent + 1) * sk_credit_of(0), sent + 1, NULL, 0);
  data_wait(request, NULL);
  data_close(&d);
}

/* What is under way is kept in a table that has room for all sends, however few may go ahead of their buffers. After
 * the loss of its grants a sender pairs the new ones with what is under way first. */
TEST(more_granted_messages_under_way_than_may_go_ahead) {
  enum { N = 20 };
  struct data d;
  void *requests[N], *last;
  struct sk_entry reset[N];
  data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER);
  d.args.eager_count = 2;
  data_open(&d);
  for (uint32_t seq = 0; seq < N; seq++) {
    data_send_control(&d, 0, 0, 0, 0, &(struct data_entry){SK_ENTRY_GRANT, 3, 8}, 1);
    data_settle(&d);
    requests[seq] = isend(&d, seq, 8, 3);
    data_expect(&d, 0, SK_FRAME_MSG, seq, 8);
    reset[seq] = (struct sk_entry){.value = htole64(8), .key = htole32(3), .kind = htole32(SK_ENTRY_GRANT)};
  }
  data_send(&d, 0, SK_FRAME_CONTROL, SK_FRAME_RESET, 0, 0, sizeof reset, 0);
  data_write(&d, 0, reset, sizeof reset);
  data_settle(&d);
  last = isend(&d, N, EAGER + 1, 3); /* all of those buffers have their message */
  data_recv_nothing(&d, 0);
  const struct data_entry entries[] = {data_frames_of(0, 0, N), {SK_ENTRY_GRANT, 3, EAGER + 1}};
  data_send_control(&d, 0, N, 0, 0, entries, 2);
  for (int i = 0; i < N; i++) data_wait(requests[i], NULL);
  data_expect(&d, 0, SK_FRAME_MSG, N, EAGER + 1);
  data_send_control(&d, 0, N + 1, 0, 0, &(struct data_entry){SK_ENTRY_FRAMES, 0, N + 1}, 1);
  data_wait(last, NULL);
  data_close(&d);
}

/* A peer that counts what has arrived, grants new buffers for it, and never reports what it has seen: the table of
 * messages under way must not overflow. */
TEST(grants_without_a_report) {
  const struct data_entry grant = {SK_ENTRY_GRANT, 5, 8};
  struct data d;
  void *request = NULL;
  data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  for (uint32_t seq = 0; seq <= SK_MAX_SENDS; seq++) { /* the first one goes ahead of its buffer */
    if (seq) data_send_control(&d, 0, 0, 0, 0, &grant, 1);
    data_settle(&d);
    request = isend(&d, seq, 8, seq ? 5 : 3);
    for (unsigned int i = 0; i < 2; i++) data_expect(&d, i, SK_FRAME_MSG, seq, 8);
    const struct data_entry arrived = data_frames_of(0, 0, seq + 1);
    data_send_control(&d, 0, 0, 0, 0, &arrived, 1);
    data_wait(request, NULL);
  }
  CHECK_INT(sk_comm_error(d.comm), RAIL_OK); /* so many may be under way */
  data_send_control(&d, 0, 0, 0, 0, &grant, 1);
  data_settle(&d);
  request = isend(&d, SK_MAX_SENDS + 1, 8, 5);
  CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
  CHECK(log_said("without a report of what it has seen"));
  data_close(&d);
}

/* ---- sender: loss -------------------------------------------------------------- */

struct received {
  uint32_t n;
  struct sk_frame frames[64];
};

/* A granted message of MESSAGE bytes in chunks over two streams, all of it read. */
static void *send_chunks(const struct data *d, struct received received[2]) {
  data_send_control(d, 0, 0, 0, 0, &(struct data_entry){SK_ENTRY_GRANT, 0, MESSAGE}, 1);
  data_settle(d);
  void *request = isend(d, 0, MESSAGE, 0);
  received[0].n = received[1].n = 0;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  for (uint64_t have = 0; have < MESSAGE;)
    for (unsigned int i = 0; i < 2; i++) {
      (void)data_turn(d);
      ENSURE(!rail_deadline_passed(deadline), "%llu bytes came", (unsigned long long)have);
      if (!data_is_readable(d, i)) continue;
      ENSURE(received[i].n < 64, "too many frames");
      struct sk_frame f = received[i].frames[received[i].n++] = data_recv_payload(d, i);
      have += f.len;
    }
  return request;
}

TEST(what_a_lost_stream_had_not_delivered_goes_again) {
  for (unsigned int arrived = 0; arrived < 4; arrived++) { /* frames of stream 1, its announcement among them */
    struct data d;
    struct received received[2];
    data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER);
    sk_params.chunk = CHUNK;
    data_open(&d);
    void *request = send_chunks(&d, received);
    CHECK_MSG(received[1].n > 4, "%u frames on stream 1", received[1].n);
    data_sender(&d)->shares.limit[0] = SK_LEAST_LIMIT;
    data_end(&d, 1);
    data_send(&d, 0, SK_FRAME_LOST, 0, arrived, 0, 0, 1);
    for (uint32_t i = RAIL_MAX(arrived, 1); i < received[1].n; i++) { /* in their order, none left out, none twice */
      struct sk_frame again = data_recv_payload(&d, 0);
      CHECK_INT(again.type, SK_FRAME_DATA);
      CHECK_INT(again.size, received[1].frames[i].size);
      CHECK_INT(again.len, received[1].frames[i].len);
      received[0].n++;
    }
    data_recv_nothing(&d, 0);
    CHECK_INT(data_sender(&d)->shares.limit[0], 0); /* the streams that are left carry all */
    CHECK(!data_test(request, NULL));
    const struct data_entry all = data_frames_of(0, 0, received[0].n);
    data_send_control(&d, 0, 1, 0, 0, &all, 1);
    data_wait(request, NULL);
    data_close(&d);
  }
}

TEST(the_last_stream_is_not_given_up) {
  struct data d;
  data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  void *request = isend(&d, 0, 8, 0);
  data_send(&d, 0, SK_FRAME_LOST, 0, 0, 0, 0, 1);
  data_settle(&d);
  data_send(&d, 0, SK_FRAME_LOST, 0, 0, 0, 0, 0);
  CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
  data_close(&d);
}

/* ---- receiver --------------------------------------------------------------------- */

/* The main stream is lost with a grant that may not have arrived: it is given again, as all that is known. */
TEST(grants_are_given_again) {
  struct data d;
  struct sk_entry entry;
  data_begin(&d, SK_RECEIVER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  void *request = irecv(&d, MESSAGE, 5);
  struct sk_frame f = data_recv(&d, 0);
  CHECK(f.type == SK_FRAME_CONTROL && !(f.flags & SK_FRAME_RESET));
  data_send(&d, 1, SK_FRAME_LOST, 0, 0, 0, 0, 0);
  f = data_recv(&d, 1);
  CHECK(f.type == SK_FRAME_LOST && f.tag == 0 && f.seq == 0);
  f = data_recv(&d, 1);
  CHECK_INT(f.type, SK_FRAME_CONTROL);
  CHECK_INT(f.flags, SK_FRAME_RESET);
  CHECK(f.len >= sizeof entry);
  data_recv_bytes(&d, 1, &entry, sizeof entry);
  CHECK_INT(le32toh(entry.kind), SK_ENTRY_GRANT);
  CHECK_INT(le32toh(entry.key), 5);
  CHECK_INT(le64toh(entry.value), MESSAGE);
  CHECK(!data_test(request, NULL));
  data_close(&d);
}

/* A frame that was cut off by the loss of its stream comes again, whole. Announcements count as frames. */
TEST(a_chunk_that_was_cut_off_comes_again) {
  struct data d;
  int size;
  data_begin(&d, SK_RECEIVER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  void *request = irecv(&d, MESSAGE, 5);
  for (unsigned int i = 0; i < 2; i++) data_send(&d, i, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, MESSAGE, 0, 5);
  data_send(&d, 0, SK_FRAME_DATA, 0, 0, 0, 40000, 5);
  data_send_bytes(&d, 0, 0, 0, 40000);
  data_settle(&d);
  data_send(&d, 1, SK_FRAME_DATA, 0, 0, 40000, MESSAGE - 40000, 5);
  data_send_bytes(&d, 1, 0, 40000, 7000);
  data_settle(&d);
  data_end(&d, 1);
  data_send(&d, 0, SK_FRAME_LOST, 0, 0, 0, 0, 1);
  struct sk_frame f = recv_no_report(&d, 0);
  CHECK_INT(f.type, SK_FRAME_LOST);
  CHECK_INT(f.tag, 1);
  CHECK_INT(f.seq, 1); /* its announcement; not the chunk */
  data_send(&d, 0, SK_FRAME_DATA, 0, 0, 40000, MESSAGE - 40000, 5);
  data_send_bytes(&d, 0, 0, 40000, MESSAGE - 40000);
  data_wait(request, &size);
  CHECK_INT(size, MESSAGE);
  data_check_bytes(bytes[0], 0, 0, MESSAGE);
  data_close(&d);
}

/* Before it closes a receiver says once more how much of a lost stream had arrived. */
TEST(counts_of_lost_streams_are_the_last_word) {
  struct data d;
  data_begin(&d, SK_RECEIVER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  data_send(&d, 1, SK_FRAME_MSG, 0, 0, 0, 0, 5);
  data_settle(&d);
  data_send(&d, 0, SK_FRAME_LOST, 0, 0, 0, 0, 1);
  struct sk_frame f = recv_no_report(&d, 0);
  CHECK(f.type == SK_FRAME_LOST && f.tag == 1 && f.seq == 1);
  int end = d.ends[0];
  d.ends[0] = -1;
  data_close(&d);
  bool sent = false;
  uint8_t head[SK_HEAD], entries[SK_MAX_ENTRIES];
  while (recv(end, head, sizeof head, MSG_DONTWAIT) == (ssize_t)sizeof head && sk_frame_decode(head, &f)) {
    sent |= f.type == SK_FRAME_LOST && f.tag == 1 && f.seq == 1;
    if (f.len) ENSURE(f.len <= sizeof entries && recv(end, entries, f.len, MSG_DONTWAIT) == f.len, "half a frame");
  }
  CHECK_MSG(sent, "the count of the lost stream was not sent again");
  rail_sock_close(&end);
}

/* So it does when memory in use is taken from it: the stream that reports go over may be dead, and its sender must hear
 * over the other one what has arrived. */
TEST(counts_are_said_when_memory_in_use_is_taken) {
  struct data d;
  void *mr, *request, *data = bytes[0];
  size_t size = 8;
  int tag = 6;
  data_begin(&d, SK_RECEIVER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  CHECK_OK(sk_reg_mr(d.comm, bytes, sizeof bytes, RAIL_PTR_HOST, &mr));
  CHECK_OK(sk_irecv(d.comm, 1, &data, &size, &tag, &mr, NULL, &request));
  data_send(&d, 1, SK_FRAME_MSG, 0, 0, 0, 0, 5);
  data_settle(&d);
  CHECK_OK(sk_dereg_mr(d.comm, mr));
  CHECK_MSG(sk_comm_is_stopped(d.comm), "the receive does not use the memory");
  struct sk_frame f;
  struct sk_entry entries[SK_MAX_ENTRIES];
  uint8_t head[SK_HEAD];
  bool said = false;
  while (recv(d.ends[1], head, sizeof head, MSG_DONTWAIT) == (ssize_t)sizeof head && sk_frame_decode(head, &f)) {
    CHECK_INT(f.type, SK_FRAME_CONTROL);
    CHECK(f.len <= sizeof entries && recv(d.ends[1], entries, f.len, MSG_DONTWAIT) == (ssize_t)f.len);
    for (uint32_t i = 0; i < f.len / sizeof entries[0]; i++)
      said |= le32toh(entries[i].kind) == SK_ENTRY_FRAMES && le32toh(entries[i].key) == 1 &&
              le64toh(entries[i].value) == 1;
  }
  CHECK_MSG(said, "the count of stream 1 was not sent over it");
  data_close(&d);
}

/* A stream came back and was lost again before its JOIN: nothing of that generation has arrived. */
TEST(a_generation_of_which_nothing_came) {
  struct data d;
  data_begin(&d, SK_RECEIVER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  data_send(&d, 1, SK_FRAME_MSG, 0, 0, 0, 0, 5);
  data_settle(&d);
  for (uint32_t generation = 0; generation < 3; generation++) {
    data_send(&d, 0, SK_FRAME_LOST, 0, 0, generation, 0, 1);
    struct sk_frame f = recv_no_report(&d, 0);
    CHECK_INT(f.type, SK_FRAME_LOST);
    CHECK_INT(f.size, generation);
    CHECK_INT(f.seq, generation ? 0 : 1);
  }
  data_close(&d);
}

TEST_MAIN(TEST_CASE(an_older_report_may_come_later), TEST_CASE(an_older_report_grants_nothing),
          TEST_CASE(counts_of_another_generation_do_not_count),
          TEST_CASE(frames_that_were_not_written_do_not_arrive), TEST_CASE(empty_messages_arrive_when_they_are_seen),
          TEST_CASE(no_more_frames_than_can_be_kept), TEST_CASE(more_granted_messages_under_way_than_may_go_ahead),
          TEST_CASE(grants_without_a_report),
          TEST_CASE(what_a_lost_stream_had_not_delivered_goes_again), TEST_CASE(the_last_stream_is_not_given_up),
          TEST_CASE(grants_are_given_again), TEST_CASE(a_chunk_that_was_cut_off_comes_again),
          TEST_CASE(counts_of_lost_streams_are_the_last_word),
          TEST_CASE(counts_are_said_when_memory_in_use_is_taken), TEST_CASE(a_generation_of_which_nothing_came))
