/* SPDX-License-Identifier: Apache-2.0
 *
 * The oob connection of a connection in use, as the watch thread (ib_watch.c) serves it: frames in and out without
 * waiting, keepalive, and for how long the peer has been silent. All functions but the pure ones are called under the
 * watch thread's lock; none waits.
 */
#ifndef IB_KEEPALIVE_H
#define IB_KEEPALIVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- frames: what an oob connection in use carries, 32 bytes each. Pure. ---- */

enum ib_frame_type { /* on the wire */
  IB_FRAME_PING = 1,    /* asks whether the peer's process runs */
  IB_FRAME_PONG = 2,    /* it runs; `number` is the PING's */
  IB_FRAME_GOODBYE = 3, /* closed by its caller; only DRAINED may follow */
  IB_FRAME_DRAINED = 4, /* a sender's, after the receiver's GOODBYE: everything it sent is acknowledged */
};

#define IB_FRAME_SIZE 32
#define IB_FRAME_MAGIC 0x50424952u
#define IB_FRAME_VERSION 2u

/* On the wire: little-endian. */
struct ib_frame_wire {
  uint32_t magic;
  uint16_t version, type;
  uint32_t length; /* of all of it */
  uint32_t zero;
  uint64_t number;
  uint64_t zero2;
};
_Static_assert(sizeof(struct ib_frame_wire) == IB_FRAME_SIZE, "wire size");

struct ib_frame {
  enum ib_frame_type type;
  uint64_t number;
};

void ib_frame_encode(const struct ib_frame *frame, uint8_t wire[IB_FRAME_SIZE]);
/* False: not a frame of this protocol. */
bool ib_frame_decode(const uint8_t wire[IB_FRAME_SIZE], struct ib_frame *frame);

/* ---- one oob connection in use ------------------------------------------------ */

struct ib_comm;

enum ib_reported { IB_UNREPORTED, IB_REPORTED, IB_REPORTED_BY_ANOTHER /* connection with the same process */ };

struct ib_keepalive {
  int fd;
  bool closed;      /* by the peer, or the peer is lost: nothing more to read or write */
  bool net_down;    /* the network of the oob connection is down; RDMA, over another network, may go on */
  bool goodbye;     /* GOODBYE is sent, or due */
  bool peer_closed; /* GOODBYE was received; a sender still owes DRAINED */
  int write_errno;  /* of the write that failed */
  uint8_t in[IB_FRAME_SIZE], out[IB_FRAME_SIZE];
  size_t received, sent; /* bytes of them; `out` is in use while `sending` */
  bool sending, ping_due, pong_due, goodbye_due, drained_due;
  bool drained;        /* DRAINED is sent, or in `out` */
  uint64_t ping, pong; /* their numbers */
  /* On the watch thread's clock, which counts only time in which the thread ran. The first three also restart while
   * requests complete or none is outstanding. */
  uint64_t last_heard;    /* bytes came from the peer's process */
  uint64_t last_host_ack; /* the peer's host acknowledged bytes */
  uint64_t last_activity; /* a counter of the comm changed, or IB_COMM_STALLED was set */
  uint64_t last_ping;
  uint32_t unanswered;       /* PINGs since last_heard */
  uint64_t activity;         /* sum of the comm's counters at the last tick with activity */
  uint64_t tag_waits;        /* sends that found no buffer, at the last tick */
  enum ib_reported reported; /* this silence; until the peer is heard */
};

/* The socket's options are set. */
void ib_keepalive_init(struct ib_keepalive *k, int fd, uint64_t now);

/* Reads and handles what is there; the results are in the comm's health. */
void ib_keepalive_read(struct ib_keepalive *k, struct ib_comm *comm, uint64_t now);
/* Writes what is due. True: the socket is full; call again when it is writable. */
bool ib_keepalive_write(struct ib_keepalive *k, struct ib_comm *comm);
/* Makes GOODBYE due, the last frame but DRAINED, and writes as much as the socket takes. */
void ib_keepalive_goodbye(struct ib_keepalive *k, struct ib_comm *comm);

/* Once a tick. While requests are outstanding or sends wait for a buffer: a silent peer is sent PINGs, and is an error
 * after RAIL_IB_PEER_TIMEOUT (its process) or RAIL_IB_DEADLINE (its host). For each third of RAIL_IB_DEADLINE without
 * activity IB_COMM_STALLED is set, whether the peer answers or not. */
void ib_keepalive_tick(struct ib_keepalive *k, struct ib_comm *comm, uint64_t now);
/* Has the peer been silent for RAIL_IB_PEER_WARN, without a report? */
bool ib_keepalive_is_report_due(const struct ib_keepalive *k, uint64_t now);
/* One line: who is silent, and for how long. */
void ib_keepalive_report(struct ib_keepalive *k, const struct ib_comm *comm, uint64_t now);
/* Nanoseconds between ticks; 0: none is needed. */
uint64_t ib_keepalive_tick_ns(void);

/* Is this a sender whose peer has closed, and which waits for its last completions? */
bool ib_keepalive_is_draining(const struct ib_keepalive *k);
/* Makes DRAINED due when they have arrived. */
void ib_keepalive_drain(struct ib_keepalive *k, const struct ib_comm *comm);

#endif
