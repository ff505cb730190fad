/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * A sending connection with sends outstanding, and nothing but bytes on the
 * way back. Input: with failover or not, then pieces, each "stream, length,
 * bytes".
 */
#include <stdlib.h>

#include "common/base/clock.h"
#include "plugin/socket/sk_wire.h"
#include "test/fuzz/lib/comm.h"
#include "test/unit/sk_hello.h"

#define REQUESTS 6
#define SOON_MS 5000

static const size_t sizes[REQUESTS] = {0, 8, 100, 4096, 20000, 70000};

void fuzz_one(const uint8_t *data, size_t size) {
  static struct fuzz_comm c;
  struct fuzz_in in = {data, size};
  uint8_t *buffers[REQUESTS];
  void *requests[REQUESTS];
  uint8_t shape_head = fuzz_u8(&in);
  struct fuzz_shape shape = fuzz_shape((uint8_t)((shape_head & 8) | 1), 1024, 2);
  fuzz_open_send(&c, &shape);
  for (int i = 0; i < REQUESTS; i++) {
    buffers[i] = fuzz_guarded(sizes[i]);
    FUZZ_CHECK(sk_isend(c.comm, buffers[i], sizes[i], i % 3, NULL, NULL, &requests[i]) == RAIL_OK && requests[i]);
  }
  bool over = false;
  uint64_t deadline = rail_deadline_in_ms(SOON_MS);
  while (!over) {
    uint8_t head = fuzz_u8(&in);
    size_t piece = head >> 1;
    const uint8_t *bytes = fuzz_take(&in, &piece);
    if (piece) fuzz_queue(&c, head & 1, bytes, piece);
    fuzz_deliver_all(&c);
    for (unsigned int i = 0; i < 2; i++) {
      if (c.ends[i] >= 0) fuzz_drain(c.ends[i]);
      if (!in.left) fuzz_end_stream(&c, i);
    }
    over = !in.left;
    for (int i = 0; i < REQUESTS; i++) {
      int done = 0, got = -1;
      if (!requests[i]) continue;
      rail_result_t result = sk_test(requests[i], &done, &got);
      FUZZ_CHECK(result == RAIL_OK || !done);
      if (done) FUZZ_CHECK((size_t)got == sizes[i]);
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

void fuzz_make_seeds(void) {
  struct fuzz_out out = {.size = 0};
  const struct sk_answer_bytes answer = sk_make_welcome(0);
  struct {
    uint8_t head[SK_HEAD];
    struct {
      uint64_t capacity;
      uint32_t tag, kind;
    } entries[3];
  } grants = {.entries = {{htole64(4096), htole32(0), 0},
                          {htole64(20000), htole32(1), 0},
                          {htole64(70000), htole32(2), 0}}};
  fuzz_put8(&out, 0);
  for (unsigned int i = 0; i < 2; i++) put_piece(&out, i, &answer, sizeof answer);
  fuzz_frame(grants.head, 3, 0, 0, 0, sizeof grants.entries, 0);
  for (unsigned int i = 0; i < 2; i++) put_piece(&out, 0, &grants, sizeof grants);
  fuzz_seed("grants", out.bytes, out.size);

  /* As many as a sender keeps: 51 times 5, then 1, for a tag that nobody sends with. */
  struct {
    uint8_t head[SK_HEAD];
    struct {
      uint64_t capacity;
      uint32_t tag, kind;
    } entries[5];
  } five;
  memset(&five, 0, sizeof five);
  for (unsigned int i = 0; i < 5; i++) five.entries[i].tag = htole32(9);
  out.size = 0;
  fuzz_put8(&out, 0);
  put_piece(&out, 0, &answer, sizeof answer);
  for (unsigned int left = 256, n; left; left -= n) {
    n = RAIL_MIN(left, 5u);
    fuzz_frame(five.head, 3, 0, 0, 0, n * 16, 0);
    put_piece(&out, 0, &five, SK_HEAD + 16 * n);
  }
  fuzz_seed("grants-full", out.bytes, out.size);

  uint8_t error[SK_HEAD + 16] = "";
  out.size = 0;
  fuzz_put8(&out, 0);
  put_piece(&out, 0, &answer, sizeof answer);
  fuzz_frame(error, SK_FRAME_ERROR, 0, 1, RAIL_BAD_USAGE, 16, 2);
  put_piece(&out, 0, error, sizeof error);
  fuzz_seed("error", out.bytes, out.size);
}
