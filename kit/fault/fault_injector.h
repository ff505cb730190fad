/* SPDX-License-Identifier: Apache-2.0
 *
 * The fault injector: a child that a process starts before it loads the
 * plugin, and that does to it what cannot be done from within: kills it, stops
 * it, interrupts its threads, runs foreign clients, takes its network away. It
 * does so at an agreed time, whatever the process is doing then, on whichever
 * host that is.
 */
#ifndef RAIL_KIT_FAULT_INJECTOR_H
#define RAIL_KIT_FAULT_INJECTOR_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "kit/fault/fault_net.h"

#define KIT_INJECTOR_PORTS 32
#define KIT_INJECTED_SIGNAL SIGUSR2

struct kit_injector_order {
  uint64_t act, how, count, seed; /* as in kit_fault_plan */
  uint64_t at_ns, last_ms;        /* rail_now_ns() */
  struct kit_fault_port link;     /* of this process */
  int32_t rank, nports;
  struct { struct sockaddr_storage addr; socklen_t size; } port[KIT_INJECTOR_PORTS];
};

struct kit_injector;

/* Fails the check when no child can be started. */
struct kit_injector *kit_injector_start(void);
void kit_injector_send(struct kit_injector *injector, const struct kit_injector_order *order);
/* Ends what it is doing now, undoing what can be undone. */
void kit_injector_stop(struct kit_injector *injector);
/* Foreign clients that have connected, and signals sent, so far. */
int kit_injector_clients(const struct kit_injector *injector);
int kit_injector_signals(const struct kit_injector *injector);
/* Ends the child as well. */
void kit_injector_end(struct kit_injector *injector);

#endif
