/* SPDX-License-Identifier: Apache-2.0
 * Copying properties between versions, in both directions. Fields have the
 * same names in every version's structure, so a macro serves them all. */
#ifndef RAIL_NET_PROPS_H
#define RAIL_NET_PROPS_H

#include "rail/net.h"

/* What v6 has, and thus everybody. */
#define RAIL_NET_COPY_V6_PROPS(to, from)     \
  do {                                       \
    (to)->name = (from)->name;               \
    (to)->pci_path = (from)->pci_path;       \
    (to)->guid = (from)->guid;               \
    (to)->ptr_support = (from)->ptr_support; \
    (to)->speed = (from)->speed;             \
    (to)->port = (from)->port;               \
    (to)->latency = (from)->latency;         \
    (to)->max_comms = (from)->max_comms;     \
    (to)->max_recvs = (from)->max_recvs;     \
  } while (0)

#define RAIL_NET_COPY_V7_PROPS(to, from)                   \
  do {                                                     \
    RAIL_NET_COPY_V6_PROPS(to, from);                      \
    (to)->net_device_type = (from)->net_device_type;       \
    (to)->net_device_version = (from)->net_device_version; \
  } while (0)

#define RAIL_NET_COPY_V8_PROPS(to, from)         \
  do {                                           \
    RAIL_NET_COPY_V7_PROPS(to, from);            \
    (to)->reg_is_global = (from)->reg_is_global; \
  } while (0)

/* All of v9 but vprops, whose arrays differ in length. */
#define RAIL_NET_COPY_V9_PROPS(to, from)           \
  do {                                             \
    RAIL_NET_COPY_V8_PROPS(to, from);              \
    (to)->force_flush = (from)->force_flush;       \
    (to)->max_p2p_bytes = (from)->max_p2p_bytes;   \
    (to)->max_coll_bytes = (from)->max_coll_bytes; \
  } while (0)

#endif
