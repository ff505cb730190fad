/* SPDX-License-Identifier: Apache-2.0
 * TEST-PRELOAD: rail-fault
 *
 * The close of an encrypted connection without memory for the frames that are queued: the stream does not end as if
 * they had gone. The peer is a TLS acceptor in the test's hands. */
#include "kit/preload/preload.h"
#include "test/unit/sk_data.h"
#include "test/unit/sk_tls.h"

static struct sk_tls *open_peer(struct data *d) {
  struct sk_tls *peer = sk_tls_new(false);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  data_begin(d, SK_SENDER, 1, SK_FEATURE_TLS);
  data_open(d);
  data_settle(d);
  ENSURE_INT(sk_tls_begin_stream(peer, d->ends[0], &d->comm->sessions[0]), RAIL_OK);
  while (sk_tls_handshake(peer) != RAIL_OK || !d->comm->streams[0].established) {
    ENSURE_INT(data_turn(d), RAIL_OK);
    ENSURE(!rail_deadline_passed(deadline), "the handshake does not end");
  }
  return peer;
}

/* Reads to the end of the stream; its errno. */
static int read_to_end(struct sk_tls *peer, int fd) {
  uint8_t bytes[4096];
  size_t n;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (sk_tls_recvv(peer, fd, &(struct iovec){bytes, sizeof bytes}, 1, &n) != RAIL_REMOTE_ERROR) {
    rail_linger_reap();
    ENSURE(!rail_deadline_passed(deadline), "the stream does not end");
  }
  return errno;
}

/* The close asks for memory once for itself, then for the frames. */
static int errno_at_end(long failing_call) {
  struct data d;
  struct sk_tls *peer = open_peer(&d);
  struct sk_stream *s = &d.comm->streams[0];
  while (s->out_count < 3) sk_stream_send_frame(s, SK_FRAME_PONG, 0, 0, 0); /* until the socket is full */
  kit_fail_arm(failing_call, KIT_FAIL_ALLOC);
  ENSURE_INT(sk_close_send(d.comm), RAIL_OK);
  kit_fail_disarm();
  ENSURE((kit_fail_hit() != NULL) == (failing_call != 0), "other calls failed");
  int err = read_to_end(peer, d.ends[0]);
  sk_tls_free(peer);
  data_end(&d, 0);
  sk_close_all();
  return err;
}

TEST(no_memory_for_the_last_frames) {
  CHECK(tls_prepare() && kit_fail_loaded());
  CHECK_INT(errno_at_end(0), 0);
  CHECK_INT(errno_at_end(2), ECONNRESET);
}

TEST_MAIN(TEST_CASE(no_memory_for_the_last_frames))
