/* SPDX-License-Identifier: Apache-2.0
 *
 * One stream's way to its peer: connect, retry, say HELLO. Never waits, knows
 * no connection; connect runs one for each stream, a lost stream one of its own.
 */
#ifndef SK_DIAL_H
#define SK_DIAL_H

#include "plugin/socket/sk_device.h"
#include "plugin/socket/sk_wire.h"

enum sk_leg_state {
  SK_LEG_WAIT,  /* not begun, or refused and waiting for retry_at */
  SK_LEG_TCP,   /* the kernel is connecting; the peer's kernel speaks next */
  SK_LEG_HELLO, /* connected; our HELLO is being written */
  SK_LEG_DONE,  /* HELLO written; the answer comes whenever the peer calls accept */
  SK_LEG_STATES
};

/* Shall the socket be tied to its interface, so that routing cannot lead two rails over one? */
enum sk_leg_tie {
  SK_TIE_NONE, /* one rail, or not possible: the peer is on this machine, or was reached only without */
  SK_TIE_TRY,  /* alternates with attempts without */
  SK_TIE_ALWAYS,
};

struct sk_leg {
  enum sk_leg_state state;
  enum sk_leg_tie tie;
  bool tied; /* this attempt is */
  int fd;
  const struct sk_device *path; /* one interface */
  union rail_addr peer;
  int traffic_class; /* -1: the system's */
  uint64_t started;  /* this attempt */
  uint64_t retry_at;
  uint32_t backoff_ms, attempts;
  int last_errno; /* of the latest failed attempt */
  size_t sent;
  struct sk_hello_wire hello;
};

/* Not begun; its hello is the caller's to fill. */
void sk_leg_init(struct sk_leg *leg, const struct sk_device *path, const union rail_addr *peer, int traffic_class,
                 enum sk_leg_tie tie);

/* As far as it goes now. RAIL_OK: HELLO is written. RAIL_IN_PROGRESS: later. Else a failure that time does not cure,
 * see last_errno; refused and unreachable peers are retried for ever. */
rail_result_t sk_leg_step(struct sk_leg *leg);
void sk_leg_close(struct sk_leg *leg);

#endif
