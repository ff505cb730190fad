/* SPDX-License-Identifier: Apache-2.0
 *
 * A host program: runs one schedule over its connections, which are one to receive from and one to
 * send to, or a tree's, PAT's or an exchange's. It is what one block of NCCL's kernel is on a GPU.
 * It never waits: rt_program_poll does what can be done now and returns, so one
 * host thread runs the programs of all channels and peers in turn. It touches connections, user
 * buffers, and nothing else.
 */
#ifndef RT_PROGRAM_H
#define RT_PROGRAM_H

#include "core/host/rt_conn.h"
#include "core/host/rt_reduce.h"
#include "core/host/rt_sched.h"

/* A registered range of user memory that the proxy may send from and receive into, without a copy. */
struct rt_direct {
  const char *base;
  size_t size;
  void *mhandle;
};

enum rt_program_state { RT_PROGRAM_WAIT, RT_PROGRAM_PROGRESS, RT_PROGRAM_DONE, RT_PROGRAM_MISMATCH };

struct rt_program {
  struct rt_sched sched;
  enum rt_proto proto;
  const struct rt_reduce_fns *fns; /* NULL: nothing is reduced */
  union rt_scalar scalar;
  struct rt_conn *recv[RT_LINKS], *send[RT_LINKS]; /* NULL where the schedule has none */
  /* Only for recv[0] and send[0]; the steps of trees and PAT all go through the slots. */
  struct rt_direct send_direct[2]; /* the input; the output, where it is sent on */
  struct rt_direct recv_direct;    /* the receive buffer */

  uint64_t call; /* rt_sched_call */
  int nlinks;    /* of recv and send: none is behind them */
  uint64_t recv_ticket[RT_LINKS], send_ticket[RT_LINKS]; /* see rt_conn.next_ticket */

  /* Progress. */
  enum { RT_PHASE_TICKET, RT_PHASE_RUN, RT_PHASE_DRAIN, RT_PHASE_DONE } phase;
  uint64_t i, n;              /* the current action, the number of actions */
  uint64_t grant_i[RT_LINKS]; /* first action whose receive by that connection may not have been granted */
  uint64_t ll_line;           /* LL: lines of the incoming step seen so far */
  uint64_t ll_idle;           /* LL: polls that found too few lines */
  uint64_t direct_steps;      /* send.step after the last step sent from user memory */
  uint64_t got, expected;     /* bytes, when RT_PROGRAM_MISMATCH */
  /* When RT_PROGRAM_WAIT: the connection whose peer has to act; NULL: an earlier program has to finish with a
   * connection. When RT_PROGRAM_MISMATCH: the connection of the wrong step. */
  const struct rt_conn *blocked;
};

/* Steps that the program will send and receive on each connection, for the proxy's operations. */
void rt_program_count_steps(const struct rt_program *prog, uint64_t nsend[RT_LINKS], uint64_t nrecv[RT_LINKS]);

/* Sets `call` and what follows it; the caller fills in the rest before. Takes a ticket of each connection. */
void rt_program_init(struct rt_program *prog);

enum rt_program_state rt_program_poll(struct rt_program *prog);

/* Payload bytes one step can carry in `slot` bytes. */
uint64_t rt_proto_payload(enum rt_proto proto, uint64_t slot);
/* Bytes on the FIFO of a step with `payload` bytes. */
uint64_t rt_proto_bytes(enum rt_proto proto, uint64_t payload);

#endif
