/* SPDX-License-Identifier: Apache-2.0
 *
 * What a stream writes: its queue is taken apart in pieces of every size, as a
 * socket may take it, and put together again. The bytes must be those that were
 * queued, and each frame's waiter must hear of it at its last byte: not one
 * earlier, not one later.
 */
#include "plugin/socket/sk_stream.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "kit/kit_ensure.h"
#include "test/harness/tap.h"

#define MAX_BYTES (4u << 20)
#define MAX_FRAMES SK_OUT_FRAMES

/* What is to come out, and where each frame ends in it. */
static struct {
  struct sk_stream s;
  struct sk_traffic traffic;
  uint8_t *all;    /* expected */
  uint8_t *source; /* of payloads that stay where they are */
  size_t size, out; /* queued; written */
  size_t end[MAX_FRAMES];
  sk_completion pending[MAX_FRAMES];
  bool watched[MAX_FRAMES];
  uint32_t frames;
} x;

static void begin(void) {
  uint8_t *all = x.all, *source = x.source;
  memset(&x, 0, sizeof x);
  x.all = all ? all : malloc(MAX_BYTES);
  x.source = source ? source : malloc(MAX_BYTES);
  CHECK(x.all && x.source);
  for (size_t i = 0; i < MAX_BYTES && !source; i++) x.source[i] = (uint8_t)(i * 131 + (i >> 9));
  CHECK_OK(sk_stream_init(&x.s, -1, 0, 4096, &x.traffic));
}

static void end(void) { sk_stream_destroy(&x.s); }

/* A frame of `staged` bytes beside others, and `len` that stay at `source`. */
static void queue(uint32_t staged, uint32_t len, bool watched) {
  uint8_t *head = sk_stream_queue(&x.s, staged, len ? x.source + x.size : NULL, len,
                                  watched ? &x.pending[x.frames] : NULL);
  for (uint32_t i = 0; i < staged; i++) head[i] = x.all[x.size + i] = (uint8_t)(0x80 ^ (x.size + i));
  if (len) memcpy(x.all + x.size + staged, x.source + x.size, len);
  x.size += staged + (size_t)len;
  x.end[x.frames] = x.size;
  x.watched[x.frames] = watched;
  atomic_store(&x.pending[x.frames++], 2); /* one that a test would wait for besides */
}

static void check_pending(void) {
  uint32_t open = 0;
  for (uint32_t i = 0; i < x.frames; i++) {
    CHECK_INT(x.pending[i], x.watched[i] && x.out >= x.end[i] ? 1 : 2);
    open += x.out < x.end[i];
  }
  CHECK_INT(x.s.out_count, open);
  CHECK_INT(x.s.out_bytes, x.size - x.out);
  CHECK_INT(x.traffic.out, x.out);
  if (!open) CHECK(x.s.stage_head == 0 && x.s.stage_tail == 0);
}

/* Takes at most `limit` bytes off the queue, as a socket would. */
static size_t take(size_t limit, int max_iov) {
  struct iovec iov[SK_OUT_IOV];
  size_t asked, sum = 0, taken = 0;
  int n = sk_stream_out_iov(&x.s, iov, max_iov, &asked, UINT32_MAX);
  CHECK(n <= max_iov && (n > 0 || !x.s.out_count));
  for (int i = 0; i < n; i++) {
    CHECK(iov[i].iov_len > 0);
    size_t part = iov[i].iov_len < limit - taken ? iov[i].iov_len : limit - taken;
    CHECK_MSG(memcmp(iov[i].iov_base, x.all + x.out + taken, part) == 0, "piece %d of %d, %zu bytes after %zu", i, n,
              part, x.out + taken);
    sum += iov[i].iov_len;
    taken += part;
  }
  CHECK_INT(sum, asked);
  sk_stream_wrote(&x.s, taken);
  x.out += taken;
  check_pending();
  return taken;
}

static void mixed_queue(void) {
  begin();
  queue(SK_HEAD, 0, true);
  queue(SK_HEAD + 100, 0, true);
  queue(SK_HEAD, 700, true);
  queue(SK_HEAD, 0, false);
  queue(SK_HEAD, 1, true);
  queue(SK_HEAD, 513, false);
  queue(SK_HEAD + 512, 0, true);
  queue(SK_HEAD, 600, true);
}

/* Cut in two at every byte; and all in steps of every size up to one beyond the longest frame. */
TEST(every_cut) {
  mixed_queue();
  size_t size = x.size;
  end();
  for (size_t cut = 0; cut <= size; cut++) {
    mixed_queue();
    size_t rest = size;
    if (cut) CHECK_INT(take(cut, SK_OUT_IOV), cut);
    rest -= cut;
    if (rest) CHECK_INT(take(rest, SK_OUT_IOV), rest);
    end();
  }
}

TEST(every_step) {
  for (size_t step = 1; step <= SK_HEAD + 700 + 1; step++) {
    mixed_queue();
    for (size_t n = 0; x.out < x.size; n++) {
      CHECK(take(step, SK_OUT_IOV) > 0);
      CHECK(n < 10000);
    }
    CHECK_INT(x.s.out_count, 0);
    end();
  }
}

/* However few pieces a call may have, nothing is left out. */
TEST(few_pieces) {
  for (int max = 3; max <= 12; max++) {
    mixed_queue();
    while (x.out < x.size) CHECK(take(SIZE_MAX, max) > 0);
    end();
  }
}

/* Small frames, however many, are one piece; a payload of its own divides them. */
TEST(small_frames_are_one_piece) {
  struct iovec iov[SK_OUT_IOV];
  size_t asked;
  begin();
  for (int i = 0; i < 100; i++) queue(SK_HEAD + (uint32_t)i, 0, true);
  CHECK_INT(sk_stream_out_iov(&x.s, iov, SK_OUT_IOV, &asked, UINT32_MAX), 1);
  CHECK_INT(asked, x.size);
  take(1000, SK_OUT_IOV);
  CHECK_INT(sk_stream_out_iov(&x.s, iov, SK_OUT_IOV, &asked, UINT32_MAX), 1);
  queue(SK_HEAD, 5000, true);
  queue(SK_HEAD, 0, true);
  queue(30, 0, true);
  CHECK_INT(sk_stream_out_iov(&x.s, iov, SK_OUT_IOV, &asked, UINT32_MAX), 3);
  CHECK(iov[1].iov_len == 5000 && (const uint8_t *)iov[1].iov_base >= x.source);
  while (x.out < x.size) take(SIZE_MAX, SK_OUT_IOV);
  end();
}

/* One call moves about a megabyte of payload, however large the frames. */
TEST(large_payloads_come_in_parts) {
  begin();
  queue(SK_HEAD, 5 << 18, true);
  queue(SK_HEAD, 3 << 18, true);
  queue(SK_HEAD, 0, true);
  while (x.out < x.size) CHECK(take(SIZE_MAX, SK_OUT_IOV) <= SK_IO_BYTES + 2 * SK_HEAD);
  end();
}

/* Random queues that are added to while they go out, beyond the end of the ring of frames and to the end of stage. */
TEST(random_traffic) {
  struct kit_rng rng;
  kit_rng_start(&rng);
  for (int round = 0; round < 60; round++) {
    begin();
    while (x.frames < MAX_FRAMES && x.size < MAX_BYTES / 2) {
      for (uint32_t k = kit_rng_below(&rng, 12); k > 0 && x.frames < MAX_FRAMES && x.size < MAX_BYTES / 2; k--) {
        if (!sk_stream_has_room(&x.s)) break;
        uint32_t kind = kit_rng_below(&rng, 4);
        queue(SK_HEAD + (kind == 0 ? kit_rng_below(&rng, SK_COPY_BYTES + 1) : 0),
              kind == 1 ? 1 + kit_rng_below(&rng, 60000) : 0, kind != 3);
      }
      for (uint32_t k = kit_rng_below(&rng, 4); k > 0 && x.s.out_count; k--)
        take(kit_rng_below(&rng, 3) ? 1 + kit_rng_below(&rng, 300) : SIZE_MAX,
             3 + (int)kit_rng_below(&rng, SK_OUT_IOV - 2));
    }
    while (x.out < x.size) take(SIZE_MAX, SK_OUT_IOV);
    end();
  }
}

/* With no room for frames with payload there still is some for those of control. */
TEST(room_for_control) {
  for (uint32_t staged = SK_HEAD; staged <= SK_HEAD + SK_COPY_BYTES; staged += SK_COPY_BYTES) {
    begin();
    while (sk_stream_has_room(&x.s)) queue(staged, 0, true);
    CHECK(x.frames > 32);
    for (int i = 0; i < SK_OUT_RESERVE; i++) {
      CHECK(sk_stream_can_queue(&x.s));
      queue(SK_HEAD, 0, false);
    }
    CHECK(x.s.stage_tail <= SK_STAGE && x.s.out_count <= SK_OUT_FRAMES);
    while (x.out < x.size) take(SIZE_MAX, SK_OUT_IOV);
    end();
  }
}

/* What goes before a payload that goes another way. */
TEST(below_a_size) {
  struct iovec iov[SK_OUT_IOV];
  size_t asked;
  begin();
  queue(SK_HEAD, 99, true);
  queue(SK_HEAD, 0, true);
  queue(SK_HEAD, 100, true);
  queue(SK_HEAD, 5, true);
  int n = sk_stream_out_iov(&x.s, iov, SK_OUT_IOV, &asked, 100);
  CHECK_INT(n, 3); /* header; 99; two headers beside each other */
  CHECK_INT(asked, SK_HEAD + 99 + SK_HEAD + SK_HEAD);
  take(SK_HEAD + 99 + SK_HEAD + 10, SK_OUT_IOV);
  CHECK_INT(sk_stream_out_iov(&x.s, iov, SK_OUT_IOV, &asked, 100), 1);
  CHECK_INT(asked, SK_HEAD - 10);
  take(SK_HEAD - 10, SK_OUT_IOV);
  CHECK_INT(sk_stream_out_iov(&x.s, iov, SK_OUT_IOV, &asked, 100), 0);
  CHECK_INT(asked, 0);
  take(40, SK_OUT_IOV); /* by copy after all */
  CHECK_INT(sk_stream_out_iov(&x.s, iov, SK_OUT_IOV, &asked, 100), 0);
  CHECK_INT(sk_stream_out_iov(&x.s, iov, SK_OUT_IOV, &asked, 101), 3);
  while (x.out < x.size) take(SIZE_MAX, SK_OUT_IOV);
  end();
}

/* flush on a socket whose other end reads in its own time. */
TEST(through_a_socket) {
  static uint8_t got[MAX_BYTES];
  int fd[2];
  size_t read_in = 0;
  begin();
  CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd));
  x.s.fd = fd[0];
  for (int i = 0; i < 40; i++) queue(SK_HEAD + (uint32_t)i, (uint32_t)(i % 4) * 30000, true);
  bool full = false;
  while (read_in < x.size) {
    uint64_t bytes = 0;
    rail_result_t result = sk_stream_flush(&x.s, &bytes);
    CHECK(result == RAIL_OK || result == RAIL_IN_PROGRESS);
    if (result == RAIL_IN_PROGRESS) full = true;
    x.out += bytes;
    check_pending();
    ssize_t n = read(fd[1], got + read_in, 7777);
    CHECK(n > 0);
    read_in += (size_t)n;
  }
  CHECK(full && x.out == x.size);
  CHECK(memcmp(got, x.all, x.size) == 0);
  uint64_t bytes = 0;
  queue(SK_HEAD, 0, true);
  close(fd[1]);
  CHECK_INT(sk_stream_flush(&x.s, &bytes), RAIL_REMOTE_ERROR);
  CHECK(x.s.out_errno == EPIPE || x.s.out_errno == ECONNRESET);
  CHECK_INT(sk_stream_flush(&x.s, &bytes), RAIL_REMOTE_ERROR);
  CHECK_INT(x.pending[40], 2); /* never written: not reported as written */
  end();
}

/* The peer hears of a stream that cannot be written any more, though the connection may be well. */
TEST(a_failed_stream_ends_for_the_peer) {
  int fd[2];
  char byte;
  begin();
  CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd));
  x.s.fd = fd[0];
  sk_stream_out_failed(&x.s, 0);
  CHECK_INT(x.s.out_errno, EPIPE);
  CHECK_INT(recv(fd[1], &byte, 1, 0), 0);
  CHECK_INT(send(fd[1], "x", 1, MSG_NOSIGNAL), 1); /* what it has to say can still be read */
  close(fd[1]);
  end();
}

/* What is queued, as one block, is these bytes, the first `done` of which have left. */
static void check_queue(const uint8_t *wanted, size_t size, size_t done) {
  uint8_t *bytes;
  size_t n;
  CHECK(sk_stream_copy_queue(&x.s, &bytes, &n));
  CHECK_INT(n, size);
  CHECK(!size || memcmp(bytes, wanted, size) == 0);
  CHECK_INT(x.s.out_done, done);
  CHECK_INT(x.s.out_bytes, size - done);
  free(bytes);
}

/* At a close frames whose memory may go are dropped. What stays, and what is queued behind it, keeps its bytes. */
TEST(frames_that_somebody_waits_for_are_dropped) {
  for (size_t first = 0; first < 40; first++) { /* of which so many bytes have left */
    uint8_t wanted[200];
    size_t n = 0;
    begin();
    for (uint32_t i = 0; i < 6; i++) {
      size_t at = x.size;
      queue(32, i == 0 || i == 3 ? 8 : 0, i % 2);
      if (i % 2 == 0) {
        memcpy(wanted + n, x.all + at, x.size - at);
        n += x.size - at;
      }
    }
    sk_stream_wrote(&x.s, first);
    CHECK(sk_stream_drop_awaited(&x.s));
    check_queue(wanted, n, first);
    memset(sk_stream_queue(&x.s, 32, NULL, 0, NULL), 7, 32);
    memset(wanted + n, 7, 32);
    check_queue(wanted, n + 32, first);
    for (uint32_t i = 0; i < x.frames; i++) CHECK_INT(x.pending[i], 2);
    end();
  }
}

TEST(a_frame_that_was_cut_ends_the_queue) {
  for (int awaited = 0; awaited < 2; awaited++) {
    begin();
    queue(32, 100, true);
    queue(32, 0, false);
    sk_stream_wrote(&x.s, 50);
    CHECK(!(awaited ? sk_stream_drop_awaited(&x.s) : sk_stream_drop_queue(&x.s)));
    check_queue(NULL, 0, 0);
    CHECK(x.s.stage_head == 0 && x.s.stage_tail == 0);
    end();
  }
}

TEST_MAIN(TEST_CASE(frames_that_somebody_waits_for_are_dropped), TEST_CASE(a_frame_that_was_cut_ends_the_queue),
          TEST_CASE(every_cut), TEST_CASE(every_step), TEST_CASE(few_pieces), TEST_CASE(small_frames_are_one_piece),
          TEST_CASE(large_payloads_come_in_parts), TEST_CASE(random_traffic), TEST_CASE(room_for_control),
          TEST_CASE(below_a_size), TEST_CASE(through_a_socket), TEST_CASE(a_failed_stream_ends_for_the_peer))
