/* SPDX-License-Identifier: Apache-2.0
 *
 * Large payloads without a copy into the kernel (MSG_ZEROCOPY). The kernel then
 * reads the caller's pages until the peer has acknowledged them, and says on the
 * socket's error queue when it is through with each call, by number. Every call
 * is one more thing that its send waits for (sk_pending).
 *
 * Headers lie in `stage`, which is written again at once: they are copied, in a
 * call of their own that ends where a large payload begins.
 *
 * - What the kernel copied after all (loopback, veth, a path without
 *   scatter-gather) costs more this way than the plain one: the stream stops it
 *   at the first notification that says so.
 * - Where the kernel has no room to note another call (ENOBUFS: optmem_max,
 *   RLIMIT_MEMLOCK), that call copies.
 * - Not with FAILOVER. There a send is done when the peer has counted its
 *   frames, whichever stream brought them; what a stalled or lost stream still
 *   holds would have to be waited for after others have delivered it.
 */
#ifndef SK_ZEROCOPY_H
#define SK_ZEROCOPY_H

#include "plugin/socket/sk_comm.h"

#define SK_ZEROCOPY_CALLS 64             /* of a stream that the kernel is not through with; more are copied */
#define SK_ZEROCOPY_MIN (16 * 1024)      /* smaller payloads never: noting pages costs more than copying them */
#define SK_ZEROCOPY_AUTO (256 * 1024)    /* where there is a real device */

struct sk_zerocopy {
  uint32_t from;                         /* payloads of this size and more */
  bool copied;                           /* it was in vain: no more of it */
  uint32_t first, next;                  /* numbers of calls, as the kernel counts them: not over, not made */
  sk_pending *calls[SK_ZEROCOPY_CALLS];  /* by number, who waits; NULL: over */
};

/* Turns it on for the streams for which it is worth while (RAIL_SOCKET_ZEROCOPY). What cannot have it goes without. */
void sk_zerocopy_init(struct sk_comm *comm, const struct sk_comm_args *args);

/* The stream has another socket now; over the one before nothing was sent. */
void sk_zerocopy_reconnected(struct sk_stream *s);

static inline bool sk_zerocopy_is_on(const struct sk_stream *s) {
  return s->zerocopy && !s->zerocopy->copied && s->zerocopy->next - s->zerocopy->first < SK_ZEROCOPY_CALLS;
}

/* What sk_stream_flush does, for a stream where it is on. */
rail_result_t sk_zerocopy_flush(struct sk_stream *s, uint64_t *bytes);

/* Reads what the kernel says; for streams with s->zerocopy. */
void sk_zerocopy_reap(struct sk_stream *s);
/* It is through with calls lo to hi. */
void sk_zerocopy_over(struct sk_zerocopy *zc, uint32_t lo, uint32_t hi);

/* For who owns the comm for ever: after return the kernel reads no byte of the caller's memory. What the peer does not
 * take in the next few milliseconds is thrown away and the stream reset. */
void sk_zerocopy_end(struct sk_comm *comm);

#endif
