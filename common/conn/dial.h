/* SPDX-License-Identifier: Apache-2.0
 *
 * One outgoing TCP connection: connect, retry, send the first message. Never
 * waits, logs only trace lines, and has no deadline: the caller calls
 * rail_dial_step again for as long as it is willing to wait. A plugin with one
 * TCP connection per comm uses connector.h, which dials, sends HELLO
 * and reads ANSWER, each within its limit; one with several has a dial for
 * each and one deadline for all of them (run_dials in the socket plugin).
 *
 * A connection that is refused or finds no route is tried again after 1 ms,
 * then with doubling pauses of at most 200 ms: peers start in any order.
 *
 * One thread at a time. The dial owns dial->fd until the caller takes it.
 */
#ifndef RAIL_DIAL_H
#define RAIL_DIAL_H

#include "common/base/sock.h"

enum rail_dial_state {
  RAIL_DIAL_WAIT,  /* not begun, or refused and waiting for retry_at */
  RAIL_DIAL_TCP,   /* the kernel is connecting; the peer's kernel speaks next */
  RAIL_DIAL_HELLO, /* connected; the first message is being written */
  RAIL_DIAL_DONE,  /* it is written; ANSWER comes when the peer accepts */
  RAIL_DIAL_STATES
};

/* What the socket is bound to. Binding to the interface itself (SO_BINDTODEVICE) keeps routing from leading two rails
 * over one; where that is not permitted the source address alone tells them apart. */
enum rail_dial_bind {
  RAIL_BIND_ADDR,       /* one rail, or the peer is on this machine */
  RAIL_BIND_DEVICE_TRY, /* to the device too, in every second attempt */
  RAIL_BIND_DEVICE,
};

/* Where a connection begins. Pointers are kept: what they point at must outlive the dial. */
struct rail_dial_args {
  const char *plugin;          /* "RailSocket", for trace lines */
  const char *interface;       /* "eth0" */
  const union rail_addr *addr; /* the interface's; source of the connection where it can be one for that peer */
  enum rail_dial_bind bind;
  int traffic_class; /* handed to set_options */
  /* What a socket must have before it connects (buffer sizes, traffic class); NULL: nothing. */
  void (*set_options)(int fd, int traffic_class);
  int stream; /* of its comm, for trace lines; -1: the only one */
};

struct rail_dial {
  struct rail_dial_args args; /* `bind` is RAIL_BIND_ADDR if the peer turned out to be on this machine */
  union rail_addr peer;       /* a link-local one has this machine's scope */
  enum rail_dial_state state;
  bool device_bound; /* this attempt is */
  int fd;            /* -1: none. When DONE the caller may take it, and leave -1 */
  uint64_t started;  /* this attempt */
  uint64_t retry_at;
  uint32_t backoff_ms, attempts;
  int last_errno; /* of the latest failed attempt; 0: none failed */
  size_t sent;    /* bytes of the message */
};

/* Not begun. May be called again, for another connection, once the fd is closed or taken. */
void rail_dial_init(struct rail_dial *dial, const struct rail_dial_args *args, const union rail_addr *peer);

/* Goes on as far as it can now. RAIL_OK: the message is written, dial->fd is connected. RAIL_IN_PROGRESS: call again
 * later. Else a failure that a later try would meet again, see last_errno; its socket is closed. The message is the
 * same at each call until then; it is not kept. */
rail_result_t rail_dial_step(struct rail_dial *dial, const void *message, size_t size);

/* The peer dropped the connection that was made, before it sent anything; the caller has closed its fd. The next step
 * connects again, after a while that doubles each time. `err`: why, for last_errno. */
void rail_dial_again(struct rail_dial *dial, int err);

void rail_dial_close(struct rail_dial *dial);

#endif
