/* SPDX-License-Identifier: Apache-2.0
 *
 * A side channel in use: the watch thread's pending of a connection (ib_watch.c).
 * Messages in and out without waiting, and how long the peer has been silent.
 * All functions are called under the watch's lock; none waits.
 */
#ifndef IB_CHANNEL_H
#define IB_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "plugin/ib/ib_pulse.h"

struct ib_comm;

enum ib_reported { IB_UNREPORTED, IB_REPORTED, IB_REPORTED_BY_ANOTHER /* connection with the same process */ };

struct ib_channel {
  int fd;
  bool over;     /* the peer closed or is lost: nothing more to hear or say */
  bool cut;      /* the network between the two ends is gone, of which RDMA, over another, need not know */
  bool goodbye;  /* we said so, or are about to */
  bool peer_closed; /* the peer said so; a sender still has to tell it that nothing is unacknowledged */
  int broken;    /* errno of the write that failed */
  uint8_t in[IB_PULSE_SIZE], out[IB_PULSE_SIZE];
  size_t got, sent; /* of them; out is under way while `sending` */
  bool sending, ping_due, pong_due, goodbye_due, drained_due;
  bool drained; /* said so, or under way */
  uint64_t ping, pong; /* their numbers */
  /* The watch thread's time: nanoseconds that it was awake to see. */
  uint64_t life;   /* when anything was heard, or moved, or nothing was outstanding */
  uint64_t host;   /* when the peer's host last answered, or the same */
  uint64_t motion; /* when anything moved, or nothing was outstanding, or it was said that nothing moves */
  uint64_t asked;  /* when the last PING was sent */
  uint32_t unanswered; /* PINGs since anything was heard */
  uint64_t moved;  /* sum of the comm's counters then */
  uint64_t waits;  /* sends that found no buffer, at the last tick */
  enum ib_reported reported; /* of this silence; until something is heard */
};

/* The socket's options are set. */
void ib_channel_init(struct ib_channel *channel, int fd, uint64_t now);

/* Reads what is there. What it learns goes into the comm's health. */
void ib_channel_read(struct ib_channel *channel, struct ib_comm *comm, uint64_t now);
/* Writes what is due, as far as it goes. True: there is more, tell me when the socket takes it. */
bool ib_channel_write(struct ib_channel *channel, struct ib_comm *comm);
/* The last word, written as far as it goes by this call and ib_channel_write. */
void ib_channel_goodbye(struct ib_channel *channel, struct ib_comm *comm);

/* Once a tick: asks a peer that is silent while requests are outstanding or sends wait for a buffer, and gives it up:
 * its process after RAIL_IB_PEER_TIMEOUT, its host after RAIL_IB_DEADLINE. For each third of the latter in which
 * nothing moved it says so, peer or no peer (IB_COMM_STALLED). */
void ib_channel_tick(struct ib_channel *channel, struct ib_comm *comm, uint64_t now);
/* Has the peer been silent for long enough to be reported, and was not? */
bool ib_channel_is_report_due(const struct ib_channel *channel, uint64_t now);
/* One line: who is silent, and for how long. */
void ib_channel_report(struct ib_channel *channel, const struct ib_comm *comm, uint64_t now);
/* Nanoseconds between ticks; 0: none is needed. */
uint64_t ib_channel_tick_ns(void);

/* A sender whose peer has closed waits for its last completions. */
bool ib_channel_is_draining(const struct ib_channel *channel);
/* Tells the peer once they are here. */
void ib_channel_drain(struct ib_channel *channel, const struct ib_comm *comm);

#endif
