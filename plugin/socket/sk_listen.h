/* SPDX-License-Identifier: Apache-2.0
 * A listener: what the caller holds of a reception. */
#ifndef SK_LISTEN_H
#define SK_LISTEN_H

#include "plugin/socket/sk_calls.h"
#include "plugin/socket/sk_reception.h"

#define SK_LISTEN_MAGIC 0x4e534c53u

struct sk_listen {
  uint32_t magic;
  struct rail_net_listener in_ctx;
  int dev;
  struct sk_reception *reception;
};

#endif
