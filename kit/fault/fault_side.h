/* SPDX-License-Identifier: Apache-2.0
 *
 * One side of a misfortune, between the files of its role: fault_side.c tells
 * the story from the start to the report, fault_meet.c makes the connections,
 * fault_stream.c lets data flow while it happens.
 */
#ifndef RAIL_KIT_FAULT_SIDE_H
#define RAIL_KIT_FAULT_SIDE_H

#include "kit/fault/fault_hand.h"
#include "kit/fault/fault_plan.h"
#include "kit/fault/fault_told.h"
#include "kit/kit_net.h"
#include "kit/kit_side.h"
#include "kit/kit_tcp.h"
#include "kit/kit_traffic.h"

#define KIT_FAULT_COMMS 64
#define KIT_FAULT_SOCKETS 256

struct kit_faulty {
  struct kit_side *side;
  int rank, peer;
  struct kit_fault_plan plan;
  struct kit_told told;
  struct kit_hand *hand;
  struct kit_net net;
  struct kit_traffic_plan traffic;
  struct kit_tcp_socket before[KIT_FAULT_SOCKETS]; /* what was there before the plugin */
  int nbefore;
  void *listen[KIT_FAULT_COMMS], *comm[KIT_FAULT_COMMS];
  struct kit_flow flow[KIT_FAULT_COMMS];
  int nflows;
  bool dereg_done;
  char peer_said; /* about its connections: '?' nothing yet, 'y'es, 'n'o */
  uint64_t start_ns, event_ns; /* event_ns 0: not agreed yet */
  int64_t waited_ns;           /* for a core, when that was last looked at */
};

/* A thing happens to this side, too? */
bool kit_faulty_is_victim(const struct kit_faulty *f);
bool kit_faulty_sends(const struct kit_faulty *f, int connection);
/* The first error is what the report is about. */
void kit_faulty_error(struct kit_faulty *f, int code, const char *call);
/* A call, or a turn of calls, has begun then and ended now; *longest is the longest so far. */
void kit_faulty_timed(struct kit_faulty *f, uint64_t before_ns, int64_t *longest);
/* Agrees on the moment with the other side, and orders the hand. */
void kit_faulty_agree(struct kit_faulty *f);

/* init, listen, connect, accept, regMr. False: it ended in an error, here or on the other side, or in no connection. */
bool kit_faulty_meet(struct kit_faulty *f);
/* Lets data flow until all is said. */
void kit_faulty_stream(struct kit_faulty *f);

#endif
