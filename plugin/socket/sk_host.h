/* SPDX-License-Identifier: Apache-2.0
 *
 * Does the peer's host answer? A peer whose process is stopped still has a kernel that acknowledges what arrives and
 * answers window probes; a host that is down, or cut off, does not. TCP_INFO tells the two apart.
 */
#ifndef SK_HOST_H
#define SK_HOST_H

#include <stdbool.h>
#include <stdint.h>

/* Of one stream, zeroed at first; the owner's. Times are those of the caller's `now`, in ns. */
struct sk_host {
  uint64_t settled;    /* when our kernel was last seen to wait for no answer */
  uint64_t unanswered; /* since when it waits, counted from the last answer; 0: it does not */
  uint64_t acked;      /* bytes, as of the latest call */
  uint32_t asked;      /* what it had sent for that when this was noticed; more: at least two went unanswered */
  bool has_unacked;    /* bytes that the peer's host does not have, as of the latest call */
};

/* For how long the host at the other end of `fd` has left unanswered what our kernel sent it (data, retransmissions,
 * window probes); 0: it answers, or it was asked less than twice. The question is not older than `idle_until`, until
 * when the stream is known to have been idle. */
uint64_t sk_host_silence(struct sk_host *host, int fd, uint64_t now, uint64_t idle_until);

/* The kernel's share, for every stream of both sides: keepalive, how rarely it repeats what is not answered, and
 * RAIL_SOCKET_USER_TIMEOUT. */
void sk_host_set_options(int fd);

#endif
