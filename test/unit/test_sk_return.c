/* SPDX-License-Identifier: Apache-2.0
 * A receiver whose lost stream comes back: what it repeats, and over which stream its control frames go.
 * TEST-SAN: asan */
#include "plugin/socket/sk_connect.h"
#include "test/unit/sk_data.h"

#define MESSAGE 60000

static uint8_t bytes[MESSAGE];

static void *irecv(const struct data *d) {
  void *request, *data = bytes;
  const size_t size = MESSAGE;
  const int tag = 5;
  memset(bytes, 0, sizeof bytes);
  ENSURE_INT(sk_irecv(d->comm, 1, &data, &size, &tag, NULL, NULL, &request), RAIL_OK);
  ENSURE(request, "no request");
  return request;
}

/* A receiver whose streams may come back. */
struct returning {
  struct data d;
  struct sk_acceptor *acceptor;
  struct sk_limits limits;
};

static void returning_open(struct returning *r) {
  data_begin(&r->d, SK_RECEIVER, 2, SK_FEATURE_FAILOVER);
  data_device.addr = (union rail_addr){.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  ENSURE_INT(sk_acceptor_open(&data_device, -1, &r->acceptor), RAIL_OK);
  r->limits = (struct sk_limits){.eager_size = r->d.args.eager_size, .eager_count = r->d.args.eager_count,
                                 .eager_bytes = r->d.args.eager_bytes, .features = SK_FEATURE_FAILOVER};
  r->d.args.accepted =
    sk_accepted_new(r->acceptor, &(struct sk_half_open_comm){.nstreams = 2, .limits = r->limits});
  data_open(&r->d);
}

static void returning_close(struct returning *r) {
  data_close(&r->d);
  sk_acceptor_close(r->acceptor);
}

/* The stream is lost; the peer gives it up, and connects it again. */
static void lose_and_return(struct returning *r, uint32_t stream) {
  struct data *d = &r->d;
  struct sk_answer_bytes answer;
  uint64_t deadline = rail_deadline_in_ms(TIMEOUT_MS);
  size_t done = 0;
  data_end(d, stream);
  data_send(d, 1 - stream, SK_FRAME_LOST, 0, 0, 0, 0, stream);
  data_settle(d);
  int *end = &d->ends[stream];
  ENSURE_INT(rail_sock_connect_all(&r->acceptor->listener.handle.addrs[0], NULL, deadline, NULL, end), RAIL_OK);
  const struct rail_hello hello = {.stream = stream, .streams = 2, .reconnect = true};
  const struct sk_hello_bytes bytes_of_hello = sk_make_hello(&r->acceptor->listener.handle, hello, r->limits, 1);
  data_write(d, stream, &bytes_of_hello, sizeof bytes_of_hello);
  while (rail_sock_recv_some(*end, &answer, sizeof answer, &done) == RAIL_IN_PROGRESS) {
    data_tick(d);
    ENSURE(!rail_deadline_passed(deadline), "no answer");
  }
  ENSURE_INT(le16toh(answer.answer.reason), RAIL_REASON_NONE);
  data_send(d, stream, SK_FRAME_JOIN, 0, 0, 1, 0, stream);
}

/* Stream 1 is lost in the middle of a payload, comes back, and repeats nothing that it sent before. */
TEST(a_stream_comes_back_after_half_a_payload) {
  struct returning r;
  struct data *d = &r.d;
  returning_open(&r);
  void *request = irecv(d);
  for (unsigned int i = 0; i < 2; i++) data_send(d, i, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, MESSAGE, 0, 5);
  data_settle(d);
  data_send(d, 1, SK_FRAME_DATA, 0, 0, 0, MESSAGE, 5);
  data_send_bytes(d, 1, 0, 0, 7000);
  data_settle(d);
  lose_and_return(&r, 1);
  data_send(d, 1, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, MESSAGE, 0, 5);
  data_send(d, 1, SK_FRAME_DATA, 0, 0, 0, MESSAGE, 5);
  data_send_bytes(d, 1, 0, 0, MESSAGE);
  data_wait(request, NULL);
  data_check_bytes(bytes, 0, 0, MESSAGE);
  returning_close(&r);
}

/* Reads that stream up to the first CONTROL frame with a grant, which is of the one buffer that is posted. */
static void expect_grant(const struct data *d, unsigned int stream) {
  struct sk_entry entry, grant = {.kind = htole32(SK_ENTRY_FRAMES)};
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (le32toh(grant.kind) != SK_ENTRY_GRANT) {
    const struct sk_frame frame = data_recv(d, stream);
    ENSURE(!rail_deadline_passed(deadline), "no grant comes over stream %u", stream);
    for (uint32_t at = 0; frame.type == SK_FRAME_CONTROL && at < frame.len; at += (uint32_t)sizeof entry) {
      data_recv_bytes(d, stream, &entry, sizeof entry);
      if (le32toh(entry.kind) == SK_ENTRY_GRANT) grant = entry;
    }
  }
  CHECK_INT(le32toh(grant.key), 5);
  CHECK_INT(le64toh(grant.value), MESSAGE);
}

/* Grants of one tag must not overtake each other: they go over stream 1 since stream 0 was lost, and stay there. */
TEST(grants_stay_on_their_stream_when_another_comes_back) {
  struct returning r;
  struct data *d = &r.d;
  returning_open(&r);
  lose_and_return(&r, 0);
  data_settle(d);
  CHECK_INT(d->comm->paths[0].state, SK_PATH_UP);
  void *request = irecv(d);
  data_settle(d);
  uint8_t byte;
  CHECK_INT(recv(d->ends[0], &byte, 1, MSG_DONTWAIT), -1);
  expect_grant(d, 1);
  for (unsigned int i = 0; i < 2; i++) data_send(d, i, SK_FRAME_MSG, SK_FRAME_GRANTED, 0, MESSAGE, 0, 5);
  data_send(d, 0, SK_FRAME_DATA, 0, 0, 0, MESSAGE, 5);
  data_send_bytes(d, 0, 0, 0, MESSAGE);
  data_wait(request, NULL);
  returning_close(&r);
}

/* A peer that connects a stream again all the time: a tick takes no more than the connection has streams. */
TEST(a_flood_of_returns) {
  enum { FLOOD = 300 };
  static int fds[FLOOD];
  struct returning r;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  returning_open(&r);
  const struct rail_handle *handle = &r.acceptor->listener.handle;
  for (uint64_t i = 0; i < FLOOD; i++) {
    const struct rail_hello hello = {.stream = 1, .streams = 2, .reconnect = true};
    const struct sk_hello_bytes hello_bytes = sk_make_hello(handle, hello, r.limits, i + 1);
    size_t done = 0;
    ENSURE_INT(rail_sock_connect_all(&handle->addrs[0], NULL, deadline, NULL, &fds[i]), RAIL_OK);
    ENSURE_INT(rail_sock_send_some(fds[i], &hello_bytes, sizeof hello_bytes, &done), RAIL_OK);
  }
  const uint64_t *lost = &r.d.comm->streams[1].counts.stream[SK_STREAM_LOST];
  uint64_t before = rail_stats_get(lost);
  data_tick(&r.d);
  CHECK_INT(sk_comm_error(r.d.comm), RAIL_OK);
  CHECK(rail_stats_get(lost) > before); /* it was there before: each time that one is lost */
  CHECK(rail_stats_get(lost) - before <= 2);
  for (int i = 0; i < FLOOD; i++) rail_sock_close(&fds[i]);
  returning_close(&r);
}

TEST_MAIN(TEST_CASE(a_stream_comes_back_after_half_a_payload),
          TEST_CASE(grants_stay_on_their_stream_when_another_comes_back), TEST_CASE(a_flood_of_returns))
