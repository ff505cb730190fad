/* SPDX-License-Identifier: Apache-2.0
 *
 * One TCP connection of a comm: frames on their way out, bytes that came in, and what the kernel knows of the peer's
 * host. It handles sockets and headers, not messages.
 *
 * Out: frames leave in order. Headers and short payloads are copied side by side into `stage`; a long payload stays
 * where it is. All that is queued goes out in one system call, many small messages in one piece.
 *
 * In: bytes arrive in `buf`. Once a header says where a payload belongs, the rest of it is received straight there,
 * together with the beginning of what follows.
 */
#ifndef SK_STREAM_H
#define SK_STREAM_H

#include <stdatomic.h>
#include <sys/uio.h>

#include "common/base/compiler.h"
#include "plugin/socket/sk_engine.h"
#include "plugin/socket/sk_stats.h"
#include "plugin/socket/sk_tls.h"
#include "plugin/socket/sk_wire.h"

#define SK_HEAD ((uint32_t)sizeof(struct sk_frame))
#define SK_OUT_FRAMES 256
#define SK_OUT_IOV 64
#define SK_STAGE (32u * 1024)
#define SK_COPY_BYTES 512 /* payloads up to here are copied beside their header: an I/O vector entry costs more */
#define SK_OUT_RESERVE 4  /* control frames that find room even when those with payload find none */
/* From here on a payload is bulk: worth a system call of its own, because a copy takes as long. Less is small. */
#define SK_BULK_BYTES (16u * 1024)
#define SK_IO_BYTES ((size_t)1 << 20) /* most that one system call moves: a copy of 0.1 to 0.3 ms */
/* When a call has moved so much in a direction it makes no more system calls after one for each stream. With the
 * default chunks it returns in one or two milliseconds. */
#define SK_CALL_BYTES (2 * SK_IO_BYTES)

/* A completion counter: how many events are still to come. A request is done at 0 (sk_request.completion); a queued
 * frame names the counter of who waits for it to be in the kernel, which may also be its path (sk_path.queued) or the
 * memory of CONTROL (sk_recv_comm.control_unsent). Written by the comm's owner alone; a thread that reads 0 sees all
 * that was written before, and from then on a request is the caller's: the owner touches it no more. */
typedef _Atomic uint32_t sk_completion;

static inline void sk_completion_add(sk_completion *completion) {
  atomic_store_explicit(completion, atomic_load_explicit(completion, memory_order_relaxed) + 1, memory_order_relaxed);
}
static inline void sk_completion_drop(sk_completion *completion) {
  atomic_store_explicit(completion, atomic_load_explicit(completion, memory_order_relaxed) - 1, memory_order_release);
}

/* A queued frame. */
struct sk_out {
  const uint8_t *data; /* payload that stays where it is */
  uint32_t len;
  uint32_t staged;     /* bytes in stage that go before it */
  sk_completion *completion; /* of who waits for all of it to be in the kernel; NULL: nobody does */
};

/* Counted by the comm's owner, read by the watch thread: bytes in and out of the kernel; PING and PONG frames, which
 * are no progress; system calls. */
struct sk_traffic {
  uint64_t in, out, keepalives_in, keepalives_out, calls;
};

/* ---- zero copy ---------------------------------------------------------
 *
 * Payloads of `from` bytes and more without a copy into the kernel (MSG_ZEROCOPY). The kernel then reads the caller's
 * pages until the peer has acknowledged them, and reports on the socket's error queue when it has finished with each
 * call, by number. Every call is one more thing that its send waits for (sk_completion). Headers lie in `stage`, which
 * is written again at once: they are copied, in a call of their own that ends where such a payload begins.
 *
 * - What the kernel copied after all (loopback, veth, a path without scatter-gather) costs more this way than the plain
 *   one: the stream stops it at the first notification that says so.
 * - Where the kernel has no room to note another call (ENOBUFS: optmem_max, RLIMIT_MEMLOCK), that call copies.
 * - Not with FAILOVER. There a send is done when the peer has counted its frames, whichever stream brought them; a
 *   stalled or lost stream could still hold pages that others have delivered.
 */
#define SK_ZEROCOPY_CALLS 64          /* of a stream that the kernel has not finished; more are copied */
#define SK_ZEROCOPY_MIN (16 * 1024)   /* smaller payloads never: noting pages costs more than copying them */
#define SK_ZEROCOPY_AUTO (256 * 1024) /* where there is a real device */

struct sk_zerocopy {
  uint32_t from;                        /* payloads of this size and more */
  bool copied;                          /* the kernel copies anyway: no more of it */
  uint32_t first, next;                 /* numbers of calls, as the kernel counts them: not finished, not made */
  sk_completion *calls[SK_ZEROCOPY_CALLS]; /* by number, of who waits; NULL: finished */
};

/* ---- the peer's host -----------------------------------------------------
 *
 * A peer whose process is stopped still has a kernel that acknowledges what arrives and answers window probes; a host
 * that is down, or cut off, does not. TCP_INFO tells the two apart. Times are those of the caller's `now`, in ns.
 */
struct sk_host {       /* what this side knows of the kernel at the other end */
  uint64_t idle_at;    /* when our kernel was last seen to wait for no answer */
  uint64_t unanswered; /* since when it waits, counted from the last answer; 0: it does not */
  uint64_t acked;      /* bytes, as of the latest call */
  uint32_t retransmits_at_start; /* retransmissions and probes when that was noticed; more: at least two packets went
                                  * unanswered */
  bool has_unacked;    /* bytes that the peer's host does not have, as of the latest call */
};

/* `welcomed` and `established`, with the state of the path (sk_failover.h), which without FAILOVER is always UP:
 *
 *   -         -            UP     sender: waits for ANSWER; without a socket, until HELLO goes again
 *   welcomed  -            UP     in TLS' handshake
 *   welcomed  established  UP     carries frames
 *   welcomed  established  else   lost, without a socket, maybe before its ANSWER or in its handshake
 *
 * A receiver's streams begin as welcomed, and without TLS as established. */
struct sk_stream {
  int fd;
  uint16_t index;
  bool welcomed;    /* the acceptor's welcome was read (always true on the receiving side) */
  bool established; /* and with TLS its handshake is over: frames may follow */
  bool eof;         /* nothing more comes in */
  int in_errno;     /* why, if not by a proper end */
  int out_errno;    /* nothing more goes out, because of this */

  struct sk_out out[SK_OUT_FRAMES];
  uint32_t out_first, out_count;
  uint32_t out_done;  /* bytes of the first frame that are in the kernel */
  uint64_t out_bytes; /* queued and not in the kernel */
  uint8_t *stage;
  uint32_t stage_head, stage_tail; /* of the frames that are queued */
  struct sk_zerocopy *zerocopy;    /* NULL: payloads are copied into the kernel */
  struct sk_tls *tls; /* NULL: bytes go and come as they are. Else nothing is written that is not encrypted */

  uint8_t *buf;
  uint32_t cap, head, tail; /* buf[head..tail) is unread */
  uint32_t read_past;       /* how far to read past a payload: all of buf, or one header between bulk ones */
  uint8_t *to;              /* where the current payload's next byte goes */
  uint32_t left;            /* bytes of it still to come */
  uint32_t len;             /* bytes of it in all */
  void *target;             /* of the current payload: a struct sk_target */
  struct sk_traffic *traffic; /* all streams of a comm count in one place */
  struct sk_host host;
  struct sk_stream_counts counts;
};

rail_result_t sk_stream_init(struct sk_stream *s, int fd, unsigned int index, uint32_t buffer,
                             struct sk_traffic *traffic);
void sk_stream_destroy(struct sk_stream *s); /* closes; safe on a half-built or destroyed one */

/* Why it broke: TLS' own words, or those of this errno. */
RAIL_COLD const char *sk_stream_error_text(const struct sk_stream *s, int err);

/* What the kernel does for every stream of both sides: keepalive, how rarely it repeats what is not answered,
 * RAIL_SOCKET_USER_TIMEOUT, and, for one of several, how much it takes ahead. Forgets what was known of the host. */
void sk_stream_set_options(struct sk_stream *s, uint32_t nstreams);
/* What one of several streams may take ahead of what TCP has sent: what lies in the buffer of a slow one cannot go over
 * the others. */
#define SK_MOST_UNSENT (256 * 1024u)
void sk_stream_limit_unsent(const struct sk_stream *s, uint32_t bytes);
/* The same for one whose comm is closed: nobody waits any more, so the kernel need not do so for ever. */
void sk_stream_set_closed(struct sk_stream *s);
/* Bytes queued here, or in the socket and not acknowledged by the peer's. A system call. */
uint64_t sk_stream_held(const struct sk_stream *s);
/* The least round trip of the last minutes; very long while the kernel knows none. A system call. */
uint64_t sk_stream_min_rtt_ns(const struct sk_stream *s);

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
                                       sk_completion *completion) {
  s->out[(s->out_first + s->out_count++) % SK_OUT_FRAMES] =
    (struct sk_out){.data = data, .len = len, .staged = staged, .completion = completion};
  uint8_t *at = s->stage + s->stage_tail;
  s->stage_tail += staged;
  s->out_bytes += staged + (uint64_t)len;
  return at;
}

/* A frame without payload, queued, or sent now if the socket takes it. Best effort: none where there is no room. LOST
 * and JOIN are about a `stream`; PING and PONG have zeros. */
void sk_stream_queue_frame(struct sk_stream *s, enum sk_frame_type type, uint32_t frames, uint64_t generation,
                           uint32_t stream);
void sk_stream_send_frame(struct sk_stream *s, enum sk_frame_type type, uint32_t frames, uint64_t generation,
                          uint32_t stream);

/* The next bytes to go, at most about SK_IO_BYTES and `max` pieces; *asked is their sum. Stops at the next payload of
 * `below` bytes and more. */
int sk_stream_out_iov(const struct sk_stream *s, struct iovec *iov, int max, size_t *asked, uint32_t below);
/* `moved` of them are in the kernel. */
void sk_stream_wrote(struct sk_stream *s, size_t moved);
/* Nothing more can be written. */
void sk_stream_out_failed(struct sk_stream *s, int err);

/* Nothing is queued any more. False: a frame was cut in half. */
bool sk_stream_drop_queue(struct sk_stream *s);
/* The frames that somebody waits for (`completion`) are not. False: one was cut in half, and no frame is. */
bool sk_stream_drop_awaited(struct sk_stream *s);
/* A copy of what is queued, of which out_done bytes have left: malloc'd; NULL: nothing is. False: out of memory. */
bool sk_stream_copy_queue(const struct sk_stream *s, uint8_t **bytes, size_t *size);

/* Writes what is queued, once. RAIL_OK: the socket took all that it was offered (out_count tells whether more is
 * queued); RAIL_IN_PROGRESS: the socket is full; RAIL_REMOTE_ERROR: the stream is dead, see out_errno. *bytes grows by
 * what moved. */
rail_result_t sk_stream_flush(struct sk_stream *s, uint64_t *bytes);
static inline bool sk_zerocopy_is_on(const struct sk_stream *s) {
  return s->zerocopy && !s->zerocopy->copied && s->zerocopy->next - s->zerocopy->first < SK_ZEROCOPY_CALLS;
}
/* So much is queued that several threads pay, and the kernel copies it. */
static inline bool sk_stream_shares_write(const struct sk_stream *s) {
  return s->out_bytes > SK_ENGINE_INLINE_BYTES && !s->out_errno && !sk_zerocopy_is_on(s);
}
/* For streams of which sk_stream_shares_write is true: one write each, by the engine's threads together
 * (sk_engine_share). Results and *bytes are those of sk_stream_flush. */
void sk_streams_write_shared(struct sk_stream *const streams[], uint32_t n, rail_result_t results[], uint64_t *bytes);
/* Writes what is queued on these streams, until each is empty, full or dead. */
void sk_streams_flush(struct sk_stream *streams, uint32_t n);

/* Turns zero copy on if it is worth while for a stream over this interface (RAIL_SOCKET_ZEROCOPY), or tries to. */
void sk_zerocopy_init(struct sk_stream *s, const char *interface);
/* The stream has another socket; nothing was sent over the one before. */
void sk_zerocopy_reconnected(struct sk_stream *s);
/* Reads what the kernel reports; for streams with s->zerocopy. */
void sk_zerocopy_reap(struct sk_stream *s);
/* The kernel has finished calls lo to hi. */
void sk_zerocopy_finished(struct sk_zerocopy *zc, uint32_t lo, uint32_t hi);
/* For a comm that is stopped: after return the kernel reads no byte of the caller's memory. What the peer does not take
 * in the next few milliseconds is thrown away and the stream reset. */
void sk_zerocopy_end(struct sk_stream *streams, uint32_t n, const char *device_name);

/* ---- in --------------------------------------------------------------- */

/* One receive. RAIL_OK with *bytes grown and *more telling whether the socket is likely to hold more; RAIL_IN_PROGRESS;
 * RAIL_REMOTE_ERROR with eof (and in_errno) set. */
rail_result_t sk_stream_fill(struct sk_stream *s, uint64_t *bytes, bool *more);

/* So much of a payload is to come. */
static inline bool sk_stream_shares_fill(const struct sk_stream *s) {
  return s->left > SK_ENGINE_INLINE_BYTES && !s->eof && s->fd >= 0;
}
/* For streams of which sk_stream_shares_fill is true: one receive each, by the engine's threads together. */
void sk_streams_fill_shared(struct sk_stream *const streams[], uint32_t n, rail_result_t results[], uint64_t *bytes,
                            bool more[]);

/* Where the payload that follows the header just read belongs (len may be 0). */
static inline void sk_stream_expect(struct sk_stream *s, uint8_t *to, uint32_t len, void *target) {
  s->to = to;
  s->left = s->len = len;
  s->target = target;
  s->read_past = len >= SK_BULK_BYTES ? SK_HEAD : s->cap;
}

/* Moves buffered bytes of the current payload to their place; true when it is complete. */
bool sk_stream_take_payload(struct sk_stream *s);

static inline uint32_t sk_stream_have(const struct sk_stream *s) { return s->tail - s->head; }

/* For how long the host at the other end has left unanswered what our kernel sent it (data, retransmissions, window
 * probes); 0: it answers, or it was asked less than twice. Counted from `idle_until` at the earliest, until when the
 * stream is known to have been idle. */
uint64_t sk_stream_host_silence(struct sk_stream *s, uint64_t now, uint64_t idle_until);

#endif
