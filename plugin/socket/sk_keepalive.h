/* SPDX-License-Identifier: Apache-2.0
 *
 * Is a connection alive? What the watch thread does with one comm at a tick: it moves it if its caller stays away,
 * warns when nothing moves, asks the peer for a sign of life (PING), and gives up on a peer that is silent for too
 * long: its host after RAIL_SOCKET_DEADLINE (sk_stream_host_silence), its process, while the host answers, after
 * RAIL_SOCKET_PEER_TIMEOUT.
 *
 * Progress is bytes in or out of the kernel other than PING and PONG. A sign of life is any byte that came in, or
 * progress: bytes go out for longer than a moment only if the peer's process reads them.
 */
#ifndef SK_KEEPALIVE_H
#define SK_KEEPALIVE_H

#include <stdbool.h>
#include <stdint.h>

#define SK_TICK_MS 250 /* half of the shortest limit's default, RAIL_SOCKET_RAIL_TIMEOUT; four wake-ups a second */

struct pollfd;
struct sk_comm;

/* Times are the watch thread's: nanoseconds in which it ran, so that a process that was stopped for a minute does not
 * hold that against its peers. */
struct sk_keepalive {
  uint32_t idle, skip;                  /* ticks without events or requests, up to a few; ticks to let pass */
  uint64_t in, out, useful, useful_out; /* bytes, as of the last check; useful: without PING and PONG */
  uint64_t last_recv;    /* when a byte last came in */
  uint64_t idle_until;   /* until when nothing was outstanding, here or in the kernel */
  bool unacked;          /* bytes went out that the peer's host may not have yet */
  uint64_t since;        /* when what is outstanding last made progress, or began */
  uint64_t last_sign;    /* the last sign of life, or the same */
  uint64_t progress_at;  /* CLOCK_MONOTONIC; 0: never */
  uint64_t pinged;       /* time of the latest PING after `since`; 0: none sent */
  uint64_t first_ping;   /* time of the first PING after `last_sign`; 0: none sent */
  uint64_t warn_at;      /* age at which the next warning is due */
  uint64_t host_checked; /* when it was last checked whether the peer's host answers */
  uint64_t host_silence; /* for how long it had not: of several streams the longest time, with FAILOVER the shortest */
  bool silent;           /* the peer's silence was reported */
  uint64_t was_silent;   /* for how long, when it ended; 0: that was logged */
};

enum sk_keepalive_need {
  SK_KEEPALIVE_NONE, /* another thread moves it, or it has ended */
  SK_KEEPALIVE_POLL, /* run it if a socket of it can be read */
  SK_KEEPALIVE_RUN,
};

/* Under the lock of the list of comms; no system call. Sockets to poll, at most SK_MAX_STREAMS, go to fds and *nfds. */
enum sk_keepalive_need sk_keepalive_check(struct sk_comm *comm, uint64_t now, struct pollfd *fds, uint32_t *nfds);
/* Without that lock, while sk_watch_remove would wait. Takes the comm if no other thread has it. */
void sk_keepalive_run(struct sk_comm *comm, uint64_t now);

#endif
