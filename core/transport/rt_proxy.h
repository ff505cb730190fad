/* SPDX-License-Identifier: Apache-2.0
 *
 * The proxy moves the steps of NET connections between slots and the plugin.
 *
 * Connectors that have operations are active and form a circular list; each has a list of its operations, in order. A
 * pass gives the first operation of every active connector one progress call.
 *
 * Passes are made either by a proxy thread, asleep while there are no operations, or, where cores are too few for a
 * second thread per rank, by the thread that runs the host programs, whenever it would otherwise wait (RAIL_PROXY).
 * Only one thread makes a pass at a time; the others do not wait for it.
 */
#ifndef RT_PROXY_H
#define RT_PROXY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/transport/rt_transport.h"

/* nsteps steps of one protocol on one connector. Lives in the caller's plan, or launch. */
struct rt_proxy_op {
  struct rt_connector *connector;
  enum rt_proto proto;
  uint64_t nsteps;
  uint64_t base;     /* the connector's step number at the start */
  uint64_t posted;   /* steps handed to the plugin */
  uint64_t done;     /* steps it has finished */
  uint64_t received; /* of a receive: steps that have come, and at most wait for a flush */
  void *requests[RT_STEPS];
  bool started;
  atomic_bool finished;
  struct rt_proxy_op *next; /* behind it on the same connector; before it among the incoming */
};

struct rt_proxy {
  struct ncclComm *comm;
  bool threaded;
  pthread_t thread;
  bool thread_running;
  atomic_flag in_pass;         /* a pass is being made */
  struct rt_connector *active; /* circular list, of the thread that runs the pass */
  _Atomic(struct rt_proxy_op *) incoming; /* submitted, not yet seen by a pass; the newest first */
  atomic_int unfinished;
  pthread_mutex_t lock; /* for the thread's sleep; guards stop */
  pthread_cond_t wake;
  atomic_bool asleep;
  bool stop;
};

rail_result_t rt_proxy_init(struct rt_proxy *p, struct ncclComm *comm, bool threaded);
/* Stops the thread. Operations that are unfinished stay so. Accepts a zeroed struct. */
void rt_proxy_destroy(struct rt_proxy *p);

void rt_proxy_submit(struct rt_proxy *p, struct rt_proxy_op *op);
/* One pass, unless another thread is making one. True when something moved. */
bool rt_proxy_pass(struct rt_proxy *p);
/* After the communicator failed: returns when no pass is under way; none will start again. */
void rt_proxy_quiesce(struct rt_proxy *p);

#endif
