/* SPDX-License-Identifier: Apache-2.0
 *
 * One TCP way to a peer: connect, retry, say the first message. Never waits,
 * logs nothing but trace lines, knows no connection and no deadline: the
 * caller asks it to go on (rail_dial_step) for as long as it has patience.
 *
 * Who is refused or finds no route tries again after 1 ms, then ever more
 * rarely, at most 200 ms apart: peers start in any order.
 */
#ifndef RAIL_DIAL_H
#define RAIL_DIAL_H

#include "common/base/sock.h"

enum rail_dial_state {
  RAIL_DIAL_WAIT,  /* not begun, or refused and waiting for retry_at */
  RAIL_DIAL_TCP,   /* the kernel is connecting; the peer's kernel speaks next */
  RAIL_DIAL_HELLO, /* connected; the first message is being written */
  RAIL_DIAL_DONE,  /* it is written; the answer comes whenever the peer looks */
  RAIL_DIAL_STATES
};

/* Shall the socket be tied to its interface (SO_BINDTODEVICE), so that routing cannot lead two rails over one? Where
 * that is not permitted the source address alone tells them apart. */
enum rail_dial_tie {
  RAIL_TIE_NONE, /* one rail, or not possible: the peer is on this machine, or was reached only without */
  RAIL_TIE_TRY,  /* alternates with attempts without */
  RAIL_TIE_ALWAYS,
};

/* Where a way begins. Pointers are kept: what they point at must outlive the dial. */
struct rail_dial_from {
  const char *plugin;           /* "RailSocket", for trace lines */
  const char *interface;        /* "eth0" */
  const union rail_addr *addr;  /* the interface's; source of the connection where it can be one for that peer */
  enum rail_dial_tie tie;
  int traffic_class;            /* handed to set_options */
  /* What a socket must have before it connects (buffer sizes, traffic class); NULL: nothing. */
  void (*set_options)(int fd, int traffic_class);
  int number; /* of this way among those of its connection, for trace lines; -1: the only one */
};

struct rail_dial {
  struct rail_dial_from from; /* `tie` is NONE if the peer turned out to be on this machine */
  union rail_addr peer;       /* a link-local one has this machine's scope */
  enum rail_dial_state state;
  bool tied; /* this attempt is */
  int fd;    /* -1: none. When DONE the caller may take it, and leave -1 */
  uint64_t started; /* this attempt */
  uint64_t retry_at;
  uint32_t backoff_ms, attempts;
  int last_errno; /* of the latest failed attempt; 0: none failed */
  size_t sent;    /* bytes of the message */
};

/* Not begun. May be called again, for another way, once the fd is closed or taken. */
void rail_dial_init(struct rail_dial *dial, const struct rail_dial_from *from, const union rail_addr *peer);

/* As far as it goes now. RAIL_OK: the message is written, dial->fd is connected. RAIL_IN_PROGRESS: call again later.
 * Else a failure that time does not cure, see last_errno; its socket is closed, and another call would try again.
 * The message is the same at each call until then; it is not kept. */
rail_result_t rail_dial_step(struct rail_dial *dial, const void *message, size_t size);

/* The peer dropped the connection that was made, before it said anything; the caller has closed its fd. The next step
 * connects again, after a while that doubles each time. `err`: why, for last_errno. */
void rail_dial_again(struct rail_dial *dial, int err);

void rail_dial_close(struct rail_dial *dial);

#endif
