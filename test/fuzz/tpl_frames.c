/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * The template's communicators, with requests outstanding and nothing but bytes from the peer. Input: which side, then
 * pieces, each "length, bytes"; between two of them everything is posted and tested that can be.
 */
#include <unistd.h>

#include "test/fuzz/lib/fuzz.h"
#include "test/unit/tpl_open.h"

#define BUFFERS 6
#define GROUP 3 /* buffers of a receive; a send has one */

static const size_t sizes[BUFFERS] = {0, 8, 100, 4096, 20000, 70000};
static const int tags[BUFFERS] = {0, 1, 2, 0, 1, 2};
struct bed {
  bool sends;
  void *comm;
  int peer; /* the other end's socket */
  void *buffers[BUFFERS];
  void *requests[BUFFERS]; /* of a receive: its first buffer's */
  bool over[BUFFERS];
};

static void bed_open(struct bed *b, bool sends) {
  int fds[2];
  memset(b, 0, sizeof *b);
  b->sends = sends;
  fuzz_quiet();
  fuzz_socketpair(fds);
  b->peer = fds[1];
  b->comm = sends ? tpl_open_send(fds[0], fds[1]) : tpl_open_recv(fds[0]);
  FUZZ_CHECK(b->comm);
  for (int i = 0; i < BUFFERS; i++) b->buffers[i] = fuzz_guarded(sizes[i]);
}

/* One pass over the requests; true: each has ended, or cannot begin because the connection has. */
static bool bed_step(struct bed *b) {
  bool over = true;
  int group = b->sends ? 1 : GROUP;
  for (int i = 0; i < BUFFERS; i += group) {
    int done = 0, got[GROUP] = {-1, -1, -1};
    rail_result_t result = RAIL_OK;
    if (!b->over[i] && !b->requests[i])
      result = b->sends ? tpl_isend(b->comm, b->buffers[i], sizes[i], tags[i], NULL, NULL, &b->requests[i])
                        : tpl_irecv(b->comm, GROUP, &b->buffers[i], &sizes[i], &tags[i], NULL, NULL, &b->requests[i]);
    if (result == RAIL_OK && b->requests[i]) result = tpl_test(b->requests[i], &done, got);
    FUZZ_CHECK(result == RAIL_OK || !done);
    for (int k = 0; done && k < group; k++) FUZZ_CHECK(got[k] >= 0 && (size_t)got[k] <= sizes[i + k]);
    if (done || result != RAIL_OK) {
      b->requests[i] = NULL;
      b->over[i] = true;
    }
    over &= b->over[i];
  }
  return over;
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  struct bed b;
  bed_open(&b, fuzz_u8(&in) & 1);
  bed_step(&b);
  while (in.left) {
    size_t piece = fuzz_u8(&in);
    const uint8_t *bytes = fuzz_take(&in, &piece);
    fuzz_write(b.peer, bytes, piece);
    bed_step(&b);
    fuzz_drain(b.peer);
  }
  close(b.peer); /* from here on all that is left must fail */
  for (int i = 0; !bed_step(&b); i++) FUZZ_CHECK(i < 100);
  FUZZ_CHECK((b.sends ? tpl_close_send : tpl_close_recv)(b.comm) == RAIL_OK);
  for (int i = 0; i < BUFFERS; i++) fuzz_guarded_free(b.buffers[i], sizes[i]);
}

static void put_frame(struct fuzz_out *out, unsigned int type, unsigned int slot, unsigned int buffer, int tag,
                      uint64_t size, size_t payload) {
  const struct tpl_frame frame = {.type = type, .slot = slot, .buffer = buffer, .tag = tag, .size = size};
  uint8_t bytes[TPL_FRAME_SIZE + 200] = {0};
  tpl_frame_encode(&frame, bytes);
  fuzz_put8(out, (unsigned int)(TPL_FRAME_SIZE + payload));
  fuzz_put(out, bytes, TPL_FRAME_SIZE + payload);
}

void fuzz_make_seeds(void) {
  struct fuzz_out out = {.size = 0};
  fuzz_put8(&out, 0);
  put_frame(&out, TPL_DATA, 0, 1, 0, 8, 8);
  put_frame(&out, TPL_DATA, 0, 0, 0, 0, 0);
  put_frame(&out, TPL_DATA, 1, 0, 0, 100, 100);
  put_frame(&out, TPL_DATA, 0, 2, 0, 90, 60);
  put_frame(&out, TPL_DATA, 1, 1, 0, 8, 8); /* within the message before */
  fuzz_seed("messages", out.bytes, out.size);
  out.size = 0;
  fuzz_put8(&out, 0);
  put_frame(&out, TPL_DATA, 0, 1, 0, 9, 9);
  fuzz_seed("too-large", out.bytes, out.size);
  out.size = 0;
  fuzz_put8(&out, 1);
  put_frame(&out, TPL_GRANT, 0, 0, 0, 0, 0);
  put_frame(&out, TPL_GRANT, 0, 1, 1, 8, 0);
  put_frame(&out, TPL_DONE, 0, 0, 0, 0, 0);
  put_frame(&out, TPL_GRANT, 0, 0, 2, 100, 0);
  put_frame(&out, TPL_DONE, 0, 1, 0, 0, 0);
  fuzz_seed("grants", out.bytes, out.size);
  out.size = 0;
  fuzz_put8(&out, 1);
  put_frame(&out, TPL_GRANT, 0, 0, 1, 4, 0);
  fuzz_seed("too-small", out.bytes, out.size);
}
