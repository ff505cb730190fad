/* SPDX-License-Identifier: Apache-2.0
 *
 * One TCP connection of a comm: frames on their way out, a buffer of bytes that
 * came in. Knows sockets and headers, not messages.
 *
 * Out: frames leave in order. What is small, headers and short payloads, is
 * copied side by side into `stage`; a long payload stays where it is. All that
 * is queued goes out in one system call, many small messages in one piece.
 *
 * In: bytes arrive in `buf`. Once a header has told where a payload belongs,
 * the rest of it is received straight there, together with the beginning of
 * what follows.
 */
#ifndef SK_STREAM_H
#define SK_STREAM_H

#include <stdatomic.h>

#include "common/base/compiler.h"
#include "plugin/socket/sk_count.h"
#include "plugin/socket/sk_frame.h"
#include "plugin/socket/sk_host.h"
#include "plugin/socket/sk_wire.h"

#define SK_HEAD ((uint32_t)sizeof(struct sk_frame))
#define SK_OUT_FRAMES 256
#define SK_OUT_IOV 64
#define SK_STAGE (32u * 1024)
#define SK_COPY_BYTES 512 /* payloads up to here are copied beside their header: less than a piece of its own costs */
#define SK_OUT_RESERVE 4  /* frames of control that find room even when those with payload find none */
#define SK_BULK_PAYLOAD (16u * 1024) /* from here on a payload is worth a receive of its own */
#define SK_IO_BYTES ((size_t)1 << 20) /* most that one system call moves: a copy of 0.1 to 0.3 ms */

/* How many things must still happen before a request is done. Written by the comm's owner alone; whoever sees 0 sees
 * all that was written before, and from then on the request is the caller's: the owner touches it no more. */
typedef _Atomic uint32_t sk_pending;

static inline void sk_pending_add(sk_pending *pending) {
  atomic_store_explicit(pending, atomic_load_explicit(pending, memory_order_relaxed) + 1, memory_order_relaxed);
}
static inline void sk_pending_drop(sk_pending *pending) {
  atomic_store_explicit(pending, atomic_load_explicit(pending, memory_order_relaxed) - 1, memory_order_release);
}

struct sk_out {
  const uint8_t *data; /* payload that stays where it is */
  uint32_t len;
  uint32_t staged;     /* bytes in stage that go before it */
  sk_pending *pending; /* dropped when all of it is in the kernel; NULL: nobody waits */
};

/* Counted by the comm's owner, read by the watch thread: bytes in and out of the kernel; of them PING and PONG, which
 * are no progress, in frames; system calls. */
struct sk_moved {
  uint64_t in, out, words_in, words_out, calls;
};

struct sk_zerocopy;

struct sk_stream {
  int fd;
  uint16_t index;
  bool welcomed; /* the acceptor's answer was read (always true on the receiving side) */
  bool eof;      /* nothing more comes in */
  int in_errno;  /* why, if not by a proper end */
  int out_errno; /* nothing more goes out, because of this */

  struct sk_out out[SK_OUT_FRAMES];
  uint32_t out_first, out_count;
  uint32_t out_done;  /* bytes of the first frame that are in the kernel */
  uint64_t out_bytes; /* queued and not in the kernel */
  uint8_t *stage;
  uint32_t stage_head, stage_tail; /* of the frames that are queued */
  struct sk_zerocopy *zerocopy;    /* NULL: payloads are copied into the kernel */

  uint8_t *buf;
  uint32_t cap, head, tail; /* buf[head..tail) is unread */
  uint32_t ahead;           /* how far to read past a payload: all of buf, or one header between large ones */
  uint8_t *to;              /* where the current payload's next byte goes */
  uint32_t left;            /* bytes of it still to come */
  uint32_t len;             /* bytes of it in all */
  void *owner;              /* of the current payload: the comm's business */
  struct sk_moved *moved;   /* all streams of a comm count in one place */
  struct sk_host host;
  struct sk_stream_counts counts;
};

rail_result_t sk_stream_init(struct sk_stream *s, int fd, unsigned int index, uint32_t buffer, struct sk_moved *moved);
void sk_stream_destroy(struct sk_stream *s); /* closes; safe on a half-built or destroyed one */

/* ---- out -------------------------------------------------------------- */

/* Is there room for a header, and for one with a payload? */
static inline bool sk_stream_can_queue(const struct sk_stream *s) {
  return s->out_count < SK_OUT_FRAMES && SK_STAGE - s->stage_tail >= SK_HEAD;
}
static inline bool sk_stream_has_room(const struct sk_stream *s) {
  return s->out_count < SK_OUT_FRAMES - SK_OUT_RESERVE &&
         SK_STAGE - s->stage_tail >= SK_HEAD * (1 + SK_OUT_RESERVE) + SK_COPY_BYTES;
}

/* Queues a frame: `staged` bytes, which the caller writes where the return value points, and `len` at `data`. */
static inline uint8_t *sk_stream_queue(struct sk_stream *s, uint32_t staged, const void *data, uint32_t len,
                                       sk_pending *pending) {
  s->out[(s->out_first + s->out_count++) % SK_OUT_FRAMES] =
    (struct sk_out){.data = data, .len = len, .staged = staged, .pending = pending};
  uint8_t *at = s->stage + s->stage_tail;
  s->stage_tail += staged;
  s->out_bytes += staged + (uint64_t)len;
  return at;
}

/* The next bytes to go, at most about SK_IO_BYTES and `max` pieces; *asked is their sum. */
int sk_stream_out_iov(const struct sk_stream *s, struct iovec *iov, int max, size_t *asked);
/* The same, up to the next payload of `below` bytes and more, which is left out. */
int sk_stream_out_iov_below(const struct sk_stream *s, struct iovec *iov, int max, size_t *asked, uint32_t below);
/* `moved` of them are in the kernel. */
void sk_stream_wrote(struct sk_stream *s, size_t moved);
/* Nothing more can be written. */
void sk_stream_out_failed(struct sk_stream *s, int err);

/* Writes what is queued, once. RAIL_OK: the socket took all that it was offered
 * (out_count tells whether more is queued); RAIL_IN_PROGRESS: the socket is
 * full; RAIL_REMOTE_ERROR: the stream is dead, see out_errno. *bytes grows by what moved. */
rail_result_t sk_stream_flush(struct sk_stream *s, uint64_t *bytes);

/* ---- in --------------------------------------------------------------- */

/* Where the next bytes go; 0 when the buffer is full of what cannot be used yet. */
int sk_stream_in_iov(struct sk_stream *s, struct iovec iov[2], size_t *want);
/* `moved` bytes came; the first `direct` bytes of the vector were the payload's place. */
void sk_stream_got(struct sk_stream *s, size_t moved, size_t direct);

/* One receive. RAIL_OK with *bytes grown and *more telling whether the socket
 * is likely to hold more; RAIL_IN_PROGRESS; RAIL_REMOTE_ERROR with eof (and in_errno) set. */
rail_result_t sk_stream_fill(struct sk_stream *s, uint64_t *bytes, bool *more);

/* Says where the payload that follows the header just read belongs (len may be 0). */
static inline void sk_stream_expect(struct sk_stream *s, uint8_t *to, uint32_t len, void *owner) {
  s->to = to;
  s->left = s->len = len;
  s->owner = owner;
  s->ahead = len >= SK_BULK_PAYLOAD ? SK_HEAD : s->cap;
}

/* Moves buffered bytes of the current payload to their place; true when it is complete. */
bool sk_stream_take_payload(struct sk_stream *s);

static inline uint32_t sk_stream_have(const struct sk_stream *s) { return s->tail - s->head; }

#endif
