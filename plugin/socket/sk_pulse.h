/* SPDX-License-Identifier: Apache-2.0
 *
 * Is a connection alive? What the watch thread does with one comm at a tick:
 * it serves it if its caller stays away, warns when nothing moves, asks the
 * peer for a sign of life, and gives up on a peer that is silent for too long:
 * its host after RAIL_SOCKET_DEADLINE (sk_host.h), its process, while the host
 * answers, after RAIL_SOCKET_PEER_TIMEOUT.
 *
 * Progress is bytes in or out of the kernel other than PING and PONG. A sign of
 * life is any byte that came in, or progress: bytes go out for longer than a
 * moment only if the peer's process reads them.
 */
#ifndef SK_PULSE_H
#define SK_PULSE_H

#include <stdbool.h>
#include <stdint.h>

#define SK_TICK_MS 250

struct pollfd;
struct sk_comm;

/* Times are the watch thread's: nanoseconds that it was awake to see, so that a process that was stopped for a minute
 * does not hold that against its peers. */
struct sk_pulse {
  uint32_t idle, skip;             /* ticks without news or requests, up to a few; ticks to let pass */
  uint64_t in, out, useful, useful_out; /* bytes, as of the last look; useful: without words */
  uint64_t heard;                  /* when a byte last came in */
  uint64_t idle_until;             /* until when nothing was outstanding, here or in the kernel */
  bool unsettled;                  /* bytes went out that the peer's host may not have yet */
  uint64_t since;                  /* when what is outstanding last made progress, or began */
  uint64_t life;                   /* the last sign of life, or the same */
  uint64_t progress_at;            /* CLOCK_MONOTONIC; 0: never */
  uint64_t pinged;                 /* when, since `since`; 0: not */
  uint64_t asked;                  /* the first of these since `life`; 0: none */
  uint64_t warn_at;                /* age at which the next warning is due */
  uint64_t host_silence;           /* of the peer's host, as of the last look */
  bool silent;                     /* the peer's silence was reported */
  uint64_t was_silent;             /* for how long, when it ended; 0: that was said */
};

enum sk_glance {
  SK_GLANCE_REST, /* somebody moves it, or it has ended */
  SK_GLANCE_POLL, /* look if a socket of it can be read */
  SK_GLANCE_LOOK, /* look */
};

/* Under the lock of the list of comms; no system call. Sockets to poll, at most SK_MAX_STREAMS, go to fds and *nfds. */
enum sk_glance sk_pulse_glance(struct sk_comm *comm, uint64_t now, struct pollfd *fds, uint32_t *nfds);
/* Without that lock, while sk_watch_remove would wait. Takes the comm if nobody else has it. */
void sk_pulse_look(struct sk_comm *comm, uint64_t now);

#endif
