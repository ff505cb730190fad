/* SPDX-License-Identifier: Apache-2.0
 * Connections whose peer says what it must not, says it in pieces, or goes away in the middle; and what a connection
 * still says and waits for when it is closed.
 * TEST-SAN: asan
 * TEST-LIMIT: 60 */
#include <errno.h>

#include "test/unit/sk_data.h"

static uint8_t bytes[1 << 20];

static void *isend(const struct data *d, uint32_t seq, size_t size, int tag) {
  void *request = NULL;
  data_fill(bytes, seq, 0, size);
  ENSURE_INT(sk_isend(d->comm, bytes, size, tag, NULL, NULL, &request), RAIL_OK);
  ENSURE(request, "no request");
  return request;
}

static void *irecv(const struct data *d, void *to, size_t size, int tag) {
  void *request;
  ENSURE_INT(sk_irecv(d->comm, 1, &to, &size, &tag, NULL, NULL, &request), RAIL_OK);
  ENSURE(request, "no request");
  return request;
}

/* ---- ERROR ------------------------------------------------------------------ */

/* Cut anywhere, it is one report, when all of it is here. */
TEST(an_error_in_two_pieces) {
  const struct sk_error body = {.message_size = htole64(77), .capacity = htole64(66)};
  for (int side = SK_SENDER; side <= SK_RECEIVER; side++)
    for (size_t cut = 1; cut < SK_HEAD + sizeof body; cut++) {
      struct data d;
      uint8_t frame[SK_HEAD + sizeof body];
      data_begin(&d, (enum sk_side)side, 1, 0);
      data_open(&d);
      data_settle(&d);
      sk_frame_encode(frame, SK_FRAME_ERROR, 0, 0, RAIL_BAD_USAGE, sizeof body, 9);
      memcpy(frame + SK_HEAD, &body, sizeof body);
      void *request = side == SK_SENDER ? isend(&d, 0, EAGER + 1, 0) : irecv(&d, bytes, 10, 0);
      data_write(&d, 0, frame, cut);
      data_settle(&d);
      CHECK(!data_test(request, NULL));
      data_write(&d, 0, frame + cut, sizeof frame - cut);
      CHECK_INT(data_failure(request), RAIL_BAD_USAGE);
      CHECK(log_said("a message of 77 bytes with tag 9 meets a receive buffer of 66 bytes"));
      data_close(&d);
    }
}

/* ---- CONTROL ---------------------------------------------------------------- */

/* One message of 8 bytes is under way. */
static void reports(uint32_t seen, uint64_t freed, uint32_t count, const char *why) {
  struct data d;
  data_begin(&d, SK_SENDER, 1, 0);
  data_open(&d);
  void *first = isend(&d, 0, 8, 1), *second = isend(&d, 1, EAGER + 1, 2);
  data_wait(first, NULL);
  data_send_control(&d, 0, seen, freed, count, NULL, 0);
  if (why) {
    CHECK_INT(data_failure(second), RAIL_REMOTE_ERROR);
    CHECK_MSG(log_said(why), "%s", log_lines);
  } else {
    data_settle(&d);
    CHECK(!data_test(second, NULL));
  }
  data_close(&d);
}

TEST(credit_that_was_not_used) {
  const uint64_t cost = sk_credit_of(8);
  reports(1, cost, 1, NULL);
  reports(1, 0, 0, NULL);
  reports(1, cost + 1, 1, "the peer reports messages that were not sent");
  reports(1, UINT64_MAX, 1, "the peer reports messages that were not sent");
  reports(1, cost, 2, "the peer reports messages that were not sent");
  reports(1, cost, UINT32_MAX, "the peer reports messages that were not sent");
  reports(2, cost, 1, "the peer reports messages that were not sent");
  reports(0, cost, 1, "the peer returns the credit of messages that it has not seen");
}

static void say_reset(const struct data *d, uint32_t seen, uint32_t grants, uint64_t size) {
  struct sk_entry entries[8];
  for (uint32_t i = 0; i < grants; i++)
    entries[i] = (struct sk_entry){.value = htole64(size), .key = htole32(1), .kind = htole32(SK_ENTRY_GRANT)};
  data_send(d, 0, SK_FRAME_CONTROL, SK_FRAME_RESET, seen, 0, grants * (uint32_t)sizeof entries[0], 0);
  if (grants) data_write(d, 0, entries, grants * sizeof entries[0]);
}

/* Messages announced on stream 0 since the last look at it. */
static int announced(const struct data *d) {
  struct sk_frame frame;
  uint8_t payload[1 << 16];
  int count = 0;
  data_settle(d);
  for (uint8_t byte; recv(d->ends[0], &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;) {
    frame = data_recv(d, 0);
    if (frame.len) data_recv_bytes(d, 0, payload, frame.len);
    count += frame.type == SK_FRAME_MSG;
  }
  return count;
}

/* The stream that carried the grants was lost: all of them are void, and those that follow are for every posted buffer,
 * those of messages included that are under way and were not seen. */
TEST(a_reset_while_granted_sends_are_under_way) {
  enum { SIZE = EAGER + 1, GRANTED = 2, SENDS = 5 };
  struct data d;
  data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  for (int i = 0; i < GRANTED + 1; i++)
    data_send_control(&d, 0, 0, 0, 0, &(struct data_entry){SK_ENTRY_GRANT, 1, SIZE}, 1);
  for (uint32_t i = 0; i < GRANTED; i++) isend(&d, i, SIZE, 1);
  CHECK_INT(announced(&d), GRANTED); /* and one grant is left */
  say_reset(&d, 0, GRANTED, SIZE);   /* they were not seen, so both are theirs; the third is void */
  CHECK_INT(announced(&d), 0);
  for (uint32_t i = GRANTED; i < SENDS; i++) isend(&d, i, SIZE, 1);
  CHECK_INT(announced(&d), 0);
  say_reset(&d, 1, 3, SIZE); /* message 0 was seen and has its buffer: one is message 1's, two are free */
  CHECK_INT(announced(&d), 2);
  say_reset(&d, 4, 1, SIZE); /* all that went were seen */
  CHECK_INT(announced(&d), 1);
  data_close(&d);
}

/* ---- payloads ---------------------------------------------------------------- */

static void data_chunk(const struct data *d, unsigned int stream, uint64_t from, uint32_t size) {
  data_send(d, stream, SK_FRAME_DATA, 0, 0, from, size, 1);
  data_send_bytes(d, stream, 0, from, size);
}

/* Three chunks of a message of 9000 bytes, behind its first 3000, that add up. */
static void three_chunks(const uint64_t at[3], bool right) {
  struct data d;
  static uint8_t to[9000];
  data_begin(&d, SK_RECEIVER, 2, 0);
  data_open(&d);
  void *request = irecv(&d, to, sizeof to, 1);
  data_send(&d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, sizeof to, 3000, 1);
  data_send_bytes(&d, 0, 0, 0, 3000);
  for (unsigned int i = 0; i < 3; i++) data_chunk(&d, i % 2, at[i], 2000);
  if (right) {
    data_wait(request, NULL);
    data_check_bytes(to, 0, 0, sizeof to);
  } else {
    CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
    CHECK(log_said("the chunks of message 0, 9000 bytes, overlap and leave a hole"));
  }
  data_close(&d);
}

TEST(chunks_that_overlap) {
  three_chunks((const uint64_t[]){7000, 3000, 5000}, true);
  three_chunks((const uint64_t[]){3000, 5000, 5000}, false);
  three_chunks((const uint64_t[]){3000, 5000, 3000}, false);
  three_chunks((const uint64_t[]){2999, 5000, 7000}, false);
  three_chunks((const uint64_t[]){0, 5000, 7000}, false);
  three_chunks((const uint64_t[]){3000, 5001, 6999}, false);
}

/* What it had begun will never be whole, whatever the other streams still bring. */
TEST(a_stream_that_ends_in_the_middle_of_a_payload) {
  for (unsigned int which = 0; which < 3; which++) {
    struct data d;
    static uint8_t to[9000];
    data_begin(&d, SK_RECEIVER, 3, 0);
    data_open(&d);
    void *request = irecv(&d, to, sizeof to, 1);
    data_send(&d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, sizeof to, 3000, 1);
    data_send_bytes(&d, 0, 0, 0, which == 0 ? 1000 : 3000);
    for (unsigned int i = 1; i < 3; i++) {
      data_send(&d, i, SK_FRAME_DATA, 0, 0, 3000 * i, 3000, 1);
      data_send_bytes(&d, i, 0, 3000 * i, which == i ? 1000 : 3000);
    }
    data_settle(&d);
    CHECK(!data_test(request, NULL));
    data_end(&d, which);
    CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
    CHECK(log_said("the peer closed the connection with requests outstanding"));
    data_close(&d);
  }
}

/* One of several streams breaks and the others go on. What it still had of a message does not come any more; where
 * nothing is missing it is no failure. */
TEST(a_stream_that_breaks_between_two_payloads) {
  for (int missing = 0; missing < 2; missing++) {
    struct data d;
    static uint8_t to[6000];
    data_begin(&d, SK_RECEIVER, 2, 0);
    /* A socket that is closed with something unread makes the other end break instead of end. */
    ENSURE(write(d.args.fds[1], "", 1) == 1, "nothing is written");
    data_open(&d);
    void *request = irecv(&d, to, sizeof to, 1);
    data_send(&d, 0, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, sizeof to, 3000, 1);
    data_send_bytes(&d, 0, 0, 0, 3000);
    data_chunk(&d, 1, 3000, missing ? 1000 : 3000);
    data_settle(&d);
    data_end(&d, 1);
    if (missing) {
      CHECK_INT(data_failure(request), RAIL_REMOTE_ERROR);
      CHECK(log_said("stream 1 broke: Connection reset by peer"));
    } else {
      data_settle(&d);
      CHECK_INT(d.comm->streams[1].in_errno, ECONNRESET);
      data_wait(request, NULL);
    }
    data_close(&d);
  }
}

/* With several streams no line of 128 bytes lies in two chunks, whatever RAIL_SOCKET_CHUNK is. */
TEST(chunks_begin_at_multiples_of_128) {
  enum { SIZE = 1 << 20 };
  struct data d;
  data_begin(&d, SK_SENDER, 2, 0);
  sk_params.chunk = 65536 + 77;
  data_open(&d);
  data_send_control(&d, 0, 0, 0, 0, &(struct data_entry){SK_ENTRY_GRANT, 1, SIZE}, 1);
  void *request = isend(&d, 0, SIZE, 1);
  for (size_t have = 0; have < SIZE;)
    for (unsigned int i = 0; i < 2; i++) {
      uint8_t byte;
      (void)data_turn(&d);
      if (recv(d.ends[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0) continue;
      struct sk_frame f = data_recv_payload(&d, i);
      CHECK_INT(f.type == SK_FRAME_DATA ? f.size % 128 : 0, 0);
      have += f.len;
    }
  data_wait(request, NULL);
  data_close(&d);
}

/* ---- PING -------------------------------------------------------------------- */

static int pongs(const struct data *d) {
  uint8_t head[SK_HEAD];
  struct sk_frame frame;
  int count = 0;
  while (recv(d->ends[0], head, sizeof head, MSG_DONTWAIT) == (ssize_t)sizeof head)
    count += sk_frame_decode(head, &frame) && frame.type == SK_FRAME_PONG;
  return count;
}

TEST(a_flood_of_pings) {
  enum { FLOOD = 1000, AT_ONCE = 4 };
  static uint8_t flood[FLOOD][SK_HEAD];
  for (int i = 0; i < FLOOD; i++) sk_frame_encode(flood[i], SK_FRAME_PING, 0, 0, 0, 0, 0);
  for (int side = SK_SENDER; side <= SK_RECEIVER; side++) {
    struct data d;
    data_begin(&d, (enum sk_side)side, 1, 0);
    data_open(&d);
    data_settle(&d);
    (void)pongs(&d);
    data_send(&d, 0, SK_FRAME_PING, 0, 0, 0, 0, 0);
    CHECK_INT(data_turn(&d), RAIL_OK);
    CHECK_INT(pongs(&d), 1);
    data_write(&d, 0, flood, sizeof flood);
    CHECK_INT(data_turn(&d), RAIL_OK);
    CHECK_INT(pongs(&d), AT_ONCE);
    data_settle(&d);
    CHECK(pongs(&d) <= 20 * AT_ONCE);
    data_close(&d);
  }
}

/* ---- the end ----------------------------------------------------------------- */

/* Over two devices the receiver has all there is and closes. The stream that its reports go over is dead, and nobody
 * knows: the other one must say what has arrived, over both. */
TEST(a_receiver_closes_and_its_first_stream_is_dead) {
  struct data d;
  static uint8_t to[2][100];
  data_begin(&d, SK_RECEIVER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  for (uint32_t i = 0; i < 2; i++) {
    void *request = irecv(&d, to[i], sizeof to[i], 1);
    data_send(&d, 0, SK_FRAME_MSG, 0, i, sizeof to[i], sizeof to[i], 1);
    data_send_bytes(&d, 0, i, 0, sizeof to[i]);
    data_send(&d, 1, SK_FRAME_MSG, 0, i, sizeof to[i], 0, 1);
    data_wait(request, NULL);
  }
  data_settle(&d);
  CHECK_INT(sk_close_recv(d.comm), RAIL_OK);
  uint64_t frames[2] = {0}, seen = 0;
  struct sk_frame f;
  uint8_t head[SK_HEAD];
  while (recv(d.ends[1], head, sizeof head, MSG_DONTWAIT) == (ssize_t)sizeof head) { /* nothing is read of stream 0 */
    CHECK(sk_frame_decode(head, &f) && f.type == SK_FRAME_CONTROL);
    seen = f.seq;
    for (uint32_t n = f.len / (uint32_t)sizeof(struct sk_entry); n > 0; n--) {
      struct sk_entry entry;
      CHECK(recv(d.ends[1], &entry, sizeof entry, MSG_DONTWAIT) == (ssize_t)sizeof entry);
      if (le32toh(entry.kind) == SK_ENTRY_FRAMES) frames[le32toh(entry.key) & 1] = le64toh(entry.value);
    }
  }
  CHECK(seen == 2 && frames[0] == 2 && frames[1] == 2);
  for (unsigned int i = 0; i < 2; i++) data_end(&d, i);
  sk_close_all();
  rail_log_set_sink(NULL);
}

/* And its sender: such a report is enough, though the first stream says nothing more. */
TEST(a_report_over_the_second_stream) {
  struct data d;
  data_begin(&d, SK_SENDER, 2, SK_FEATURE_FAILOVER);
  data_open(&d);
  void *request = isend(&d, 0, 100, 1);
  data_settle(&d);
  CHECK(!data_test(request, NULL));
  const struct data_entry counts[] = {{SK_ENTRY_FRAMES, 0, 1}, {SK_ENTRY_FRAMES, 1, 1}};
  data_send_control(&d, 1, 1, 0, 0, counts, 2);
  data_end(&d, 1);
  data_wait(request, NULL);
  data_close(&d);
}

/* How long the last finalize waits for a peer that reads nothing, in ms. */
static int final_wait(size_t size, bool outstanding) {
  struct data d;
  data_begin(&d, SK_SENDER, 1, 0);
  sk_params.close_ms = 2500;
  data_open(&d);
  data_send_control(&d, 0, 0, 0, 0, &(struct data_entry){SK_ENTRY_GRANT, 1, sizeof bytes}, 1);
  data_settle(&d);
  void *request = isend(&d, 0, size, 1);
  if (outstanding) CHECK(!data_test(request, NULL));
  else data_wait(request, NULL);
  CHECK_INT(sk_close_send(d.comm), RAIL_OK);
  uint64_t start = rail_now_ns();
  sk_close_all();
  int took = (int)((rail_now_ns() - start) / 1000000);
  data_end(&d, 0);
  rail_log_set_sink(NULL);
  return took;
}

/* Unsent bytes that nobody was promised have a second, and make no line; those of a send that was done have
 * RAIL_SOCKET_CLOSE_TIMEOUT, and a line says that they may be lost. */
TEST(finalize_with_unsent_bytes) {
  int took = final_wait(sizeof bytes, true);
  CHECK_MSG(took >= 900 && took < 2300, "finalize took %d ms", took);
  CHECK_STR(log_lines, "");
  took = final_wait(1000, false);
  CHECK_MSG(took >= 2400, "finalize took %d ms", took);
  CHECK(log_said("that were sent have not arrived"));
}

TEST_MAIN(TEST_CASE(an_error_in_two_pieces), TEST_CASE(credit_that_was_not_used),
          TEST_CASE(a_reset_while_granted_sends_are_under_way), TEST_CASE(chunks_that_overlap),
          TEST_CASE(a_stream_that_ends_in_the_middle_of_a_payload),
          TEST_CASE(a_stream_that_breaks_between_two_payloads), TEST_CASE(chunks_begin_at_multiples_of_128),
          TEST_CASE(a_flood_of_pings), TEST_CASE(a_receiver_closes_and_its_first_stream_is_dead),
          TEST_CASE(a_report_over_the_second_stream), TEST_CASE(finalize_with_unsent_bytes))
