/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets of closed comms that still deliver: closing without waiting and without losing what the peer still reads.
 *
 * close(2) on a socket with unread bytes, or bytes that come in afterwards, makes the kernel reset the connection and
 * forget what it has not yet delivered. So a closed comm's sockets are shut down for writing and stay in a list, where
 * late bytes are read and dropped, until the peer has done the same, or all that we sent has arrived and a grace time
 * is over. The list is worked on in passing: by later closes, listens and accepts, by the watch thread, and by the last
 * finalize, which waits for it, within a bound: RAIL_SOCKET_CLOSE_TIMEOUT where a caller has tested all its sends done.
 * A peer that reads late also posts buffers late, and its report of them would meet a closed socket: a reset, and what
 * lay in our kernel is lost.
 */
#ifndef SK_CLOSE_H
#define SK_CLOSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "common/base/sock.h"
#include "plugin/socket/sk_wire.h"

/* One comm's sockets. */
struct sk_linger {
  STAILQ_ENTRY(sk_linger) next;
  uint64_t born;
  bool reported_sent; /* the caller has tested all its sends done, without an error */
  union rail_addr peer;
  uint32_t nfds;
  int fds[SK_MAX_STREAMS];
  uint32_t tail_fd; /* of control bytes that their socket did not take at once: */
  size_t tail_size, tail_done;
  uint8_t *tail;
};

/* Allocated, with all descriptors filled in; the list's from here on. */
void sk_close_add(struct sk_linger *l);
/* A few steps of what closed connections still have to do; called in passing. */
void sk_close_reap(void);
/* Is there anything to do? */
bool sk_close_is_lingering(void);
/* The last finalize, which began at `since`: waits, then drops all. */
void sk_close_wait(uint64_t since);

/* Around fork (sk_watch.c): a child keeps nothing of the list. */
void sk_close_before_fork(void);
void sk_close_after_fork(bool child);

#endif
