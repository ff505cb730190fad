/* SPDX-License-Identifier: Apache-2.0
 *
 * One TCP connection of a comm: a ring of frames on their way out, a buffer of
 * bytes that came in. Knows sockets and headers, not messages.
 *
 * Out: frames leave in order. A frame is a header and a payload that stays
 * where it is; all that is queued goes out in one system call.
 *
 * In: bytes arrive in `buf`. Once a header has told where a payload belongs,
 * the rest of it is received straight there, together with the beginning of
 * what follows.
 */
#ifndef SK_STREAM_H
#define SK_STREAM_H

#include "plugin/socket/sk_frame.h"
#include "plugin/socket/sk_wire.h"

#define SK_OUT_FRAMES 32
#define SK_BULK_PAYLOAD (16u * 1024) /* from here on a payload is worth a receive of its own */
#define SK_IO_BYTES ((size_t)1 << 20) /* most that one system call moves: a copy of 0.1 to 0.3 ms */

struct sk_out {
  uint8_t head[sizeof(struct sk_frame_wire)];
  const uint8_t *data;
  uint32_t len;
  uint32_t *unwritten; /* counted down when the frame is in the kernel; NULL: the data is the comm's own */
};

struct sk_stream {
  int fd;
  uint16_t index;
  int dev;
  bool welcomed; /* the acceptor's answer was read (always true on the receiving side) */
  bool eof;      /* nothing more comes in */
  int in_errno;  /* why, if not by a proper end */
  int out_errno; /* nothing more goes out, because of this */

  struct sk_out out[SK_OUT_FRAMES];
  uint32_t out_first, out_count;
  size_t out_done; /* bytes of the first frame that are in the kernel */

  uint8_t *buf;
  uint32_t cap, head, tail; /* buf[head..tail) is unread */
  uint32_t ahead;           /* how far to read past a payload: all of buf, or one header between large ones */
  uint8_t *to;              /* where the current payload's next byte goes */
  uint32_t left;            /* bytes of it still to come */
  uint32_t len;             /* bytes of it in all */
  void *owner;              /* of the current payload: the comm's business */
};

rail_result_t sk_stream_init(struct sk_stream *s, int fd, unsigned int index, int dev, uint32_t buffer);
void sk_stream_destroy(struct sk_stream *s); /* closes; safe on a half-built or destroyed one */

static inline bool sk_stream_can_queue(const struct sk_stream *s) { return s->out_count < SK_OUT_FRAMES; }
static inline struct sk_out *sk_stream_queue(struct sk_stream *s) {
  return &s->out[(s->out_first + s->out_count++) % SK_OUT_FRAMES];
}

/* Writes what is queued, at most about SK_IO_BYTES. RAIL_OK: the socket took all
 * of it (out_count tells whether more is queued); RAIL_IN_PROGRESS: the socket is
 * full; RAIL_REMOTE_ERROR: the stream is dead, see out_errno. *bytes grows by what moved. */
rail_result_t sk_stream_flush(struct sk_stream *s, uint64_t *bytes);

/* One receive. RAIL_OK with *bytes grown and *more telling whether the socket
 * is likely to hold more; RAIL_IN_PROGRESS; RAIL_REMOTE_ERROR with eof (and in_errno) set. */
rail_result_t sk_stream_fill(struct sk_stream *s, uint64_t *bytes, bool *more);

/* Says where the payload that follows the header just read belongs (len may be 0). */
static inline void sk_stream_expect(struct sk_stream *s, uint8_t *to, uint32_t len, void *owner) {
  s->to = to;
  s->left = s->len = len;
  s->owner = owner;
  s->ahead = len >= SK_BULK_PAYLOAD ? (uint32_t)sizeof(struct sk_frame_wire) : s->cap;
}

/* Moves buffered bytes of the current payload to their place; true when it is complete. */
bool sk_stream_take_payload(struct sk_stream *s);

static inline uint32_t sk_stream_have(const struct sk_stream *s) { return s->tail - s->head; }

#endif
