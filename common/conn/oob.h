/* SPDX-License-Identifier: Apache-2.0
 *
 * The oob (out-of-band) connection of a comm in use: the TCP connection of the handshake, beside a data path that TCP
 * does not carry (verbs, libfabric). Frames in and out without waiting, keepalive, and for how long the peer has been
 * silent. A thread of the plugin's serves all of them:
 *
 *   handed out    rail_oob_init, with the socket of the handshake
 *   epoll         rail_oob_read when it is readable, rail_oob_write always; EPOLLOUT while write returns true; neither
 *                 while `closed` or `net_down`
 *   each tick     rail_oob_tick; rail_oob_report where rail_oob_is_report_due; rail_oob_tick_ns says how often
 *   close         rail_oob_goodbye; a sender whose peer has closed is drained (rail_oob_is_draining, rail_oob_drain)
 *
 * It reports through ops->event: bits of the comm's `pending_work`, which the data path reads. It posts nothing and
 * never calls the data path. One thread at a time: the plugin's lock. None of its functions waits.
 *
 * `now` is a clock that counts only time in which that thread ran: a peer is not blamed for silence that this process
 * slept through.
 */
#ifndef RAIL_OOB_H
#define RAIL_OOB_H

#include "common/conn/protocol.h"

/* ---- frames: 32 bytes each. Pure. ---------------------------------------- */

enum rail_oob_frame_type { /* on the wire */
  RAIL_OOB_PING = 1,    /* asks whether the peer's process runs */
  RAIL_OOB_PONG = 2,    /* it runs; `number` is the PING's */
  RAIL_OOB_GOODBYE = 3, /* closed by its caller; only DRAINED may follow. `number`: requests that it gives up */
  RAIL_OOB_DRAINED = 4, /* a sender's, after the receiver's GOODBYE: everything it sent is acknowledged */
  RAIL_OOB_PLUGIN = 16, /* this and above: a plugin's own (rail_oob_ops) */
  RAIL_OOB_PLUGIN_LAST = 31,
};

#define RAIL_OOB_FRAME_SIZE 32

/* On the wire: little-endian. */
struct rail_oob_frame_wire {
  uint8_t magic[4]; /* the protocol's tag and 'P' */
  uint16_t version, type;
  uint32_t length; /* of all of it */
  uint32_t zero;
  uint64_t number;
  uint64_t zero2;
};
_Static_assert(sizeof(struct rail_oob_frame_wire) == RAIL_OOB_FRAME_SIZE, "wire size");

struct rail_oob_frame {
  enum rail_oob_frame_type type;
  uint64_t number;
};

void rail_oob_frame_encode(const struct rail_protocol *protocol, const struct rail_oob_frame *frame,
                           uint8_t wire[RAIL_OOB_FRAME_SIZE]);
/* False: not a frame of this protocol. */
bool rail_oob_frame_decode(const struct rail_protocol *protocol, const uint8_t wire[RAIL_OOB_FRAME_SIZE],
                           struct rail_oob_frame *frame);

/* ---- one oob connection in use -------------------------------------------- */

/* Events: bits of a comm's `pending_work`, of which the lower 16 are the plugin's own. All but STALLED and PEER_GAVE_UP
 * are fault bits: they end the connection. */
#define RAIL_OOB_PEER_CLOSED (1u << 16) /* the peer sent GOODBYE */
#define RAIL_OOB_PEER_GONE (1u << 17)   /* and then the connection ended */
#define RAIL_OOB_PEER_LOST (1u << 18)   /* it ended without GOODBYE: the peer's process or host is dead */
#define RAIL_OOB_PEER_SILENT (1u << 19) /* the peer's process answers no PING, though its host acknowledges: stopped */
#define RAIL_OOB_HOST_SILENT (1u << 20) /* the peer's host acknowledges nothing */
#define RAIL_OOB_STALLED (1u << 21)     /* no activity for a third of deadline_ms, though the caller waits */
#define RAIL_OOB_PEER_GAVE_UP (1u << 22) /* with PEER_CLOSED: requests of the peer's were outstanding */

/* What ops->next says. */
enum rail_oob_next {
  RAIL_OOB_NOTHING, /* until rail_watch_send_frames, the next frame that comes, or the next tick */
  RAIL_OOB_LATER,   /* the data path is about to decide it, and wakes nobody: ask again within milliseconds */
  RAIL_OOB_FRAME,   /* it is written into *frame */
};

/* What the data path does; any counters that grow. */
struct rail_oob_work {
  uint32_t outstanding; /* requests */
  uint64_t activity;    /* changes whenever anything is posted or completes */
  uint64_t waits;       /* changes when the caller asks again for what the peer has not granted */
};

struct rail_oob_ops {
  const struct rail_protocol *protocol;
  struct rail_oob_work (*work)(const void *comm);
  void (*event)(void *comm, uint32_t events);
  void (*silent)(void *comm, bool silent); /* the peer has not answered a PING; it answers again */
  void (*heard)(void *comm); /* something came from the peer's process; NULL: nothing to do */
  /* Frames of the plugin's own; both NULL: there are none. They may follow the GOODBYE of a receiver, which lingers. */
  bool (*frame)(void *comm, const struct rail_oob_frame *frame); /* one has come; false: it is invalid */
  enum rail_oob_next (*next)(void *comm, struct rail_oob_frame *frame); /* is one due? */
};

/* Milliseconds, 0: never; and the parameters that set them, for log lines. */
struct rail_oob_limits {
  int64_t deadline_ms, peer_ms, warn_ms; /* for the peer's host, for its process, until a silence is reported */
  int64_t tick_ms; /* between ticks where the three above are 0, for an ops->next that looks at the time; 0: no ticks.
                    * Where one is not, they decide it: 1 s at most */
  const char *deadline_param, *peer_param;
};

/* Everything here is kept. */
struct rail_oob_args {
  const struct rail_oob_ops *ops;
  const struct rail_oob_limits *limits;
  void *comm; /* handed to the ops */
  bool sender;
  const char *peer, *device; /* for log lines */
};

enum rail_oob_reported {
  RAIL_OOB_UNREPORTED,
  RAIL_OOB_REPORTED,
  RAIL_OOB_REPORTED_BY_ANOTHER /* connection with the same process */
};

struct rail_oob {
  struct rail_oob_args args;
  int fd;           /* not its own */
  bool closed;      /* by the peer, or the peer is lost: nothing more to read or write */
  bool net_down;    /* the network of the oob connection is down; transfers, over another network, may go on */
  bool goodbye;     /* GOODBYE is sent, or due */
  bool peer_closed; /* GOODBYE was received; a sender must still send DRAINED */
  int write_errno;  /* of the write that failed */
  uint8_t in[RAIL_OOB_FRAME_SIZE], out[RAIL_OOB_FRAME_SIZE];
  size_t received, sent; /* bytes of them; `out` is in use while `sending` */
  bool sending, ping_due, pong_due, goodbye_due, drained_due;
  bool drained;        /* DRAINED is sent, or in `out` */
  bool ask_again;      /* ops->next said LATER */
  uint64_t ping, pong; /* their numbers */
  /* On the thread's clock. The first three also restart while requests complete or none is outstanding. */
  uint64_t last_heard;    /* bytes came from the peer's process */
  uint64_t last_host_ack; /* the peer's host acknowledged bytes */
  uint64_t last_activity; /* work->activity changed, or STALLED was reported */
  uint64_t last_ping;
  uint32_t unanswered;             /* PINGs since last_heard */
  uint64_t activity, waits;        /* work's, at the last tick with activity, at the last tick */
  enum rail_oob_reported reported; /* this silence; until the peer answers */
};

void rail_oob_init(struct rail_oob *oob, const struct rail_oob_args *args, int fd, uint64_t now);

/* Reads and handles what is there. */
void rail_oob_read(struct rail_oob *oob, uint64_t now);
/* Writes what is due. True: the socket is full; call again when it is writable. */
bool rail_oob_write(struct rail_oob *oob);
/* Makes a PING due, and writes as much as the socket takes: the peer's thread wakes, and its ops->heard is called. */
void rail_oob_ping(struct rail_oob *oob);
/* Makes GOODBYE due, the last frame but DRAINED, and writes as much as the socket takes. */
void rail_oob_goodbye(struct rail_oob *oob);

/* Once a tick. While requests are outstanding or the caller asks again: a silent peer is sent PINGs, and is an event
 * after limits->peer_ms (its process) or deadline_ms (its host). For each third of deadline_ms without activity STALLED
 * is reported, whether the peer answers or not. */
void rail_oob_tick(struct rail_oob *oob, uint64_t now);
/* Has the peer been silent for limits->warn_ms, without a report? */
bool rail_oob_is_report_due(const struct rail_oob *oob, uint64_t now);
/* One line: who is silent, and for how long. */
void rail_oob_report(struct rail_oob *oob, uint64_t now);
/* Nanoseconds between ticks; 0: none is needed. */
uint64_t rail_oob_tick_ns(const struct rail_oob_limits *limits);

/* Is this a sender whose peer has closed, and which waits for its last completions? */
bool rail_oob_is_draining(const struct rail_oob *oob);
/* Makes DRAINED due when they have arrived. */
void rail_oob_drain(struct rail_oob *oob);

#endif
