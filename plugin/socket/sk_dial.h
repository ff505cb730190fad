/* SPDX-License-Identifier: Apache-2.0
 *
 * One stream's way to its peer: common/conn/dial.h with a HELLO to say. connect
 * runs one for each stream, a lost stream one of its own.
 */
#ifndef SK_DIAL_H
#define SK_DIAL_H

#include "common/conn/dial.h"
#include "plugin/socket/sk_device.h"
#include "plugin/socket/sk_wire.h"

struct sk_leg {
  struct rail_dial dial;
  const struct sk_device *path; /* one interface */
  struct sk_hello_wire hello;
};

/* Not begun; its hello is the caller's to fill. */
void sk_leg_init(struct sk_leg *leg, const struct sk_device *path, const union rail_addr *peer, unsigned int stream,
                 int traffic_class, enum rail_dial_bind bind);

/* rail_dial_step: RAIL_OK when HELLO is written. */
rail_result_t sk_leg_step(struct sk_leg *leg);
void sk_leg_close(struct sk_leg *leg);

#endif
