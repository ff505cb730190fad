/* SPDX-License-Identifier: Apache-2.0
 *
 * What host code and a kernel on a GPU share: a launch, and the jobs that its blocks run. One launch is one kernel of
 * `nblocks` blocks; block j runs job j, which is what a program is on the host (rt_program.h): a schedule run over its
 * connections; then the jobs that `next` names.
 *
 * All of it, and the connections with all they point to, is memory that host and device address alike. The host fills a
 * launch in once. Before each run it adds 1 to `run`; when every job's `ran` is equal to it, the run is over and all it
 * wrote can be seen. Steps are read from the connections at a job's start and written back at its end, so a launch can
 * be run again and again as it is.
 *
 * Jobs of a launch wait for each other, and for what other ranks' jobs do, so all its
 * blocks must be on the GPU at once.
 */
#ifndef RT_DEVICE_H
#define RT_DEVICE_H

#include "core/host/rt_conn.h"
#include "core/host/rt_reduce.h"
#include "core/host/rt_sched.h"

#define RT_DEVICE_KERNEL "rd_collective" /* its name in the image; the one argument is a struct rt_device_launch * */
#define RT_DEVICE_THREADS 512            /* of a block on a GPU; anything else is a multiple of 32, too */
#define RT_DEVICE_FEW_THREADS 256        /* where with more the blocks of a launch would not all be there at once */

enum rt_device_state {
  RT_DEVICE_IDLE,     /* never run */
  RT_DEVICE_DONE,
  RT_DEVICE_MISMATCH, /* a step came that our own call does not ask for */
  RT_DEVICE_ABORTED,  /* by the abort word, or since a job that it waited for had not ended well */
};

struct rt_device_job {
  struct rt_sched sched;
  int proto;              /* enum rt_proto, or RD_LL128; towards a proxy always RT_SIMPLE */
  int type, op;           /* enum rt_type, enum rt_redop; op < 0: nothing is reduced */
  int next;               /* the job that the block runs after this one; 0: none, since job 0 is a block's first */
  union rt_scalar scalar; /* where the operation has one */
  const void *deferred;   /* RT_PREMULSUM: the factor, of the type, to be read when the job runs; or NULL */
  struct rt_conn *recv[RT_PEERS], *send[RT_PEERS]; /* NULL where the schedule has none */
  /* The job of the launch that must have left the connection first; or -1. */
  int recv_after[RT_PEERS], send_after[RT_PEERS];
  uint64_t call;          /* rt_sched_call: what both ends of a connection must agree on */

  /* Written by the block. */
  uint32_t state;         /* enum rt_device_state */
  uint32_t from;          /* when RT_DEVICE_MISMATCH: the number of the connection that it came by, */
  uint64_t got, expected; /* and the bytes */
  uint64_t ran;           /* the launch's `run` that is over; the last word that is stored */
};

struct rt_device_launch {
  uint64_t run;          /* 0 before the first */
  const uint32_t *abort; /* not 0: every wait ends */
  int nblocks;
  struct rt_device_job job[];
};

#endif
