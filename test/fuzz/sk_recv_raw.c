/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * A receiving connection with buffers posted, and nothing but bytes on its
 * streams. Input: with failover or not, then pieces, each "stream, length, bytes".
 */
#include <stdlib.h>

#include "common/base/clock.h"
#include "plugin/socket/sk_wire.h"
#include "test/fuzz/lib/comm.h"

#define REQUESTS 6
#define SOON_MS 5000

static const size_t sizes[REQUESTS] = {0, 8, 100, 4096, 20000, 70000};

void fuzz_one(const uint8_t *data, size_t size) {
  static struct fuzz_comm c;
  struct fuzz_in in = {data, size};
  uint8_t *buffers[REQUESTS];
  void *requests[REQUESTS];
  uint8_t shape_head = fuzz_u8(&in);
  struct fuzz_shape shape = fuzz_shape((uint8_t)((shape_head & 8) | 1), 1024, 4);
  fuzz_open_recv(&c, &shape);
  for (int i = 0; i < REQUESTS; i++) {
    buffers[i] = fuzz_guarded(sizes[i]);
    void *at = buffers[i];
    int tag = i % 3;
    FUZZ_CHECK(sk_irecv(c.comm, 1, &at, &sizes[i], &tag, NULL, NULL, &requests[i]) == RAIL_OK && requests[i]);
  }
  bool over = false;
  uint64_t deadline = rail_deadline_in_ms(SOON_MS);
  while (!over) {
    uint8_t head = fuzz_u8(&in);
    size_t piece = head >> 1;
    const uint8_t *bytes = fuzz_take(&in, &piece);
    if (piece) fuzz_queue(&c, head & 1, bytes, piece);
    fuzz_deliver_all(&c);
    if (!in.left)
      for (unsigned int i = 0; i < 2; i++) fuzz_end_stream(&c, i);
    over = !in.left;
    for (int i = 0; i < REQUESTS; i++) {
      int done = 0, got = -1;
      if (!requests[i]) continue;
      rail_result_t result = sk_test(requests[i], &done, &got);
      FUZZ_CHECK(result == RAIL_OK || !done);
      if (done) FUZZ_CHECK(got >= 0 && (size_t)got <= sizes[i]);
      if (done || result != RAIL_OK) requests[i] = NULL;
      else over = false;
    }
    FUZZ_CHECK(!rail_deadline_passed(deadline));
  }
  fuzz_close_comm(&c);
  for (int i = 0; i < REQUESTS; i++) fuzz_guarded_free(buffers[i], sizes[i]);
}

static void put_piece(struct fuzz_out *out, unsigned int stream, const void *bytes, size_t size) {
  fuzz_put8(out, stream | (unsigned int)size << 1);
  fuzz_put(out, bytes, size);
}

static void put_frame(struct fuzz_out *out, unsigned int stream, unsigned int type, uint32_t seq, uint64_t size,
                      uint32_t len, uint32_t tag) {
  uint8_t head[SK_HEAD], payload[100];
  fuzz_frame(head, type, 0, seq, size, len, tag);
  memset(payload, 'x', sizeof payload);
  put_piece(out, stream, head, sizeof head);
  if (len) put_piece(out, stream, payload, RAIL_MIN(len, sizeof payload));
}

void fuzz_make_seeds(void) {
  struct fuzz_out out = {.size = 0};
  fuzz_put8(&out, 0);
  put_frame(&out, 0, SK_FRAME_MSG, 0, 0, 0, 0);
  put_frame(&out, 0, SK_FRAME_MSG, 1, 8, 8, 1);
  put_frame(&out, 0, SK_FRAME_MSG, 2, 100, 60, 2);
  put_frame(&out, 1, SK_FRAME_DATA, 2, 60, 40, 0);
  put_frame(&out, 0, SK_FRAME_MSG, 3, 64, 64, 7); /* nobody waits for this tag */
  fuzz_seed("messages", out.bytes, out.size);
  out.size = 0;
  fuzz_put8(&out, 8);
  put_frame(&out, 0, SK_FRAME_MSG, 0, 300, 100, 1);
  put_frame(&out, 0, SK_FRAME_ERROR, 0, RAIL_BAD_USAGE, 16, 1);
  fuzz_seed("too-large", out.bytes, out.size);
}
