/* SPDX-License-Identifier: Apache-2.0
 *
 * The hand: a process that a side starts before it loads the plugin, and that
 * does to it what cannot be done from within: kills it, stops it, interrupts
 * its threads, sends strangers, takes its network away. It does so at an
 * agreed time, whatever the side is doing then; on whichever host the side is.
 */
#ifndef RAIL_KIT_FAULT_HAND_H
#define RAIL_KIT_FAULT_HAND_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "kit/fault/fault_net.h"

#define KIT_HAND_PORTS 32
#define KIT_STORM_SIGNAL SIGUSR2

struct kit_hand_order {
  uint64_t act, how, count, seed; /* as in kit_fault_plan */
  uint64_t at_ns, last_ms;        /* rail_now_ns() */
  struct kit_fault_port link;     /* of this side */
  int32_t rank, nports;
  struct { struct sockaddr_storage addr; socklen_t size; } port[KIT_HAND_PORTS];
};

struct kit_hand;

/* Fails the side when there is no process to be had. */
struct kit_hand *kit_hand_start(void);
void kit_hand_do(struct kit_hand *hand, const struct kit_hand_order *order);
/* Ends what it is doing now, undoing what can be undone. */
void kit_hand_stop(struct kit_hand *hand);
/* Strangers whose connection has come about, and signals sent, so far. */
int kit_hand_strangers(const struct kit_hand *hand);
int kit_hand_signals(const struct kit_hand *hand);
/* The same, and the process ends. */
void kit_hand_end(struct kit_hand *hand);

#endif
