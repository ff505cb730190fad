/* SPDX-License-Identifier: Apache-2.0
 *
 * One process during a fault. fault_process.c takes it from the start over the
 * connections to the report, fault_traffic.c transfers data while it happens.
 */
#ifndef RAIL_KIT_FAULT_PROCESS_H
#define RAIL_KIT_FAULT_PROCESS_H

#include "kit/fault/fault_injector.h"
#include "kit/fault/fault_plan.h"
#include "kit/kit_net.h"
#include "kit/kit_process.h"
#include "kit/kit_tcp.h"
#include "kit/kit_traffic.h"

#define KIT_FAULT_COMMS 64
#define KIT_FAULT_SOCKETS 256

struct kit_fault_state {
  struct kit_process *self;
  int rank, peer;
  struct kit_fault_plan plan;
  struct kit_fault_record record;
  struct kit_injector *injector;
  struct kit_net net;
  struct kit_traffic_plan traffic;
  struct kit_tcp_socket before[KIT_FAULT_SOCKETS]; /* what was there before the plugin */
  int nbefore;
  void *listen[KIT_FAULT_COMMS], *comm[KIT_FAULT_COMMS];
  struct kit_flow flow[KIT_FAULT_COMMS];
  int nflows;
  bool dereg_done;
  char peer_result; /* about its connections: '?' nothing yet, 'y'es, 'n'o */
  uint64_t start_ns, event_ns; /* event_ns 0: not agreed yet */
  uint64_t looked_ns;          /* when that was last looked at: */
  int64_t waited_ns;           /* for a core */
};

/* Does the fault happen to this process, too? */
bool kit_fault_state_is_victim(const struct kit_fault_state *f);
bool kit_fault_state_sends(const struct kit_fault_state *f, int connection);
/* The first error is what the report is about. */
void kit_fault_note_error(struct kit_fault_state *f, int code, const char *call);
/* The time now: a call, or a turn of calls, begins. */
uint64_t kit_fault_begin(struct kit_fault_state *f);
/* It began at before_ns and ends now; *longest is the longest so far. */
void kit_fault_note_duration(struct kit_fault_state *f, uint64_t before_ns, int64_t *longest);
/* Sends the fault injector an order. */
void kit_fault_order(struct kit_fault_state *f, uint64_t at_ns, uint64_t last_ms);
/* Agrees on the time of the fault with the peer, and orders the injector. */
void kit_fault_agree_on_time(struct kit_fault_state *f);
/* Transfers data until all is reported. */
void kit_fault_run_traffic(struct kit_fault_state *f);

#endif
