/* SPDX-License-Identifier: Apache-2.0
 *
 * Sockets of closed comms that still deliver: close without waiting and without losing what the peer still reads.
 *
 * close(2) on a socket with unread bytes, or bytes that come in afterwards, makes the kernel reset the connection and
 * forget what it has not yet delivered. So a closed comm's sockets are shut down for writing and stay in a list, where
 * late bytes are read and dropped, until the peer has done the same, or all that we sent has arrived and a grace time
 * is over. A peer that reads late also posts buffers late, and its report of them would meet a closed socket: a reset,
 * and what lay in our kernel is lost.
 *
 * One list per plugin. Use:
 *   close         a struct rail_linger with the comm's sockets, each shut down for writing unless it has a tail, to
 *                 rail_linger_add
 *   in passing    rail_linger_reap: from close, listen, accept and connect, or a thread of the plugin's
 *   last finalize rail_linger_wait: waits within a limit for what was reported as sent, then closes all
 *   fork          rail_linger_before_fork, rail_linger_after_fork, from pthread_atfork of a plugin with a thread;
 *                 a child keeps nothing of the list
 * Any thread; a lock of its own. Nothing but wait blocks.
 */
#ifndef RAIL_LINGER_H
#define RAIL_LINGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "common/base/sock.h"

#define RAIL_LINGER_FDS 16

/* Bytes that a socket did not take at once. */
struct rail_linger_tail {
  uint8_t *bytes; /* malloc'd; NULL: none */
  size_t size, done;
};

/* One comm's sockets. */
struct rail_linger {
  STAILQ_ENTRY(rail_linger) next;
  uint64_t added;
  const char *plugin;      /* "RailSocket", for the log line; kept */
  const char *close_param; /* the parameter that sets how long finalize waits; kept */
  int64_t peer_ms;         /* for a peer that reads nothing; 0: no limit */
  bool reported_sent; /* the caller has tested all its sends done, without an error: a loss is worth a line */
  union rail_addr peer;
  uint32_t nfds;
  int fds[RAIL_LINGER_FDS];
  struct rail_linger_tail tails[RAIL_LINGER_FDS]; /* of each socket; one with a tail is not shut down yet */
};

/* calloc'd and filled in, but for `next` and `added`; the list's from here on. */
void rail_linger_add(struct rail_linger *l);
/* A few steps of what closed comms still have to do. */
void rail_linger_reap(void);
/* Is there anything to do? */
bool rail_linger_any(void);
/* The last finalize, which began at `since`: waits for at most close_ms. */
void rail_linger_wait(uint64_t since, int64_t close_ms);

void rail_linger_before_fork(void);
void rail_linger_after_fork(bool child);

#endif
