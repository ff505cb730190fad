/* SPDX-License-Identifier: Apache-2.0
 *
 * The communicator: one rank's state in its group.
 *
 * Lifetime: made by rt_comm_init (collective), used, ended by rt_comm_free.
 * A failure is final: the first error, found here or on another rank, is kept
 * with its text, logged once where it was found, reported to all other ranks, and ends every wait.
 * It frees nothing; rt_comm_free does.
 */
#ifndef RT_COMM_H
#define RT_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/queue.h>

#include "core/bootstrap/rt_bootstrap.h"
#include "core/comm/rt_peer.h"
#include "core/gpu/rt_fd_receiver.h"
#include "core/gpu/rt_gpu.h"
#include "core/host/rt_reduce.h"
#include "core/plan/rt_queue.h"
#include "core/plan/rt_small.h"
#include "core/plan/rt_tree.h"
#include "core/plan/rt_tune.h"
#include "core/transport/rt_net_devices.h"
#include "core/transport/rt_proxy.h"
#include "core/transport/rt_transport.h"
#include "loader/netload.h"
#include "rail/railyard.h"

#define RT_MAX_CHANNELS 16
#define RT_COMM_MAGIC 0x7261696c636f6d6dull

/* Connectors of one channel, or of its second tree, by the peer's rank; made on first use. */
struct rt_channel {
  struct rt_connector **send, **recv;
};

/* An operator of ncclRedOpCreatePreMulSum. */
struct rt_premul {
  bool used, deferred; /* deferred: read *scalar when the collective runs */
  ncclDataType_t type;
  const void *scalar;
  unsigned char value[8];
};

/* The network plugin as this communicator uses it; opened when a connection needs it. */
struct rt_net {
  struct rail_net *plugin;
  void *ctx;
  struct rt_net_devices devices;
  bool reg_timed, cheap_reg; /* registering user memory for one operation was timed, and pays off */
};

/* The order in which the communicator's rings go through its ranks. In pages of its own: a device's kernels read it. */
struct rt_ring {
  int *order;  /* the rank at each ring index; NULL: the index is the rank */
  size_t size; /* of order's pages */
  int index;   /* this rank's */
};

/* OPEN: it takes calls. SUSPENDED: its connections are taken down until ncclCommResume. */
enum rt_comm_state { RT_COMM_OPEN, RT_COMM_SUSPENDED, RT_COMM_FINALIZED };

/* What rt_tune returned for the last call, and all that this depends on and that may change. */
struct rt_last_choice {
  bool valid, on_device; /* rt_tuning's on_device */
  enum rt_coll coll;
  ncclDataType_t type;
  uint64_t count;
  struct rt_choice choice;
};

/* In pages of its own: a device's kernels read `failed`. */
struct ncclComm {
  uint64_t magic;
  int rank, nranks, local_rank, local_size;
  bool oversubscribed; /* this host has more ranks than cores for them: a rank that waits yields at once */
  int device;
  enum rt_memory_kind memory; /* of its calls' buffers: the first call with some decides */
  int initial_gpu; /* the device that was current when it was made; -1: none */
  struct rt_fd_receiver fd_receiver;
  bool shares_process; /* with another of its ranks: rt_launch_lock.h */
  uint64_t collectives; /* plans with one: their number is the same on all ranks */
  uint64_t calls;       /* collectives with data: the same on all ranks */
  struct rt_peer *peers; /* nranks */
  struct rt_bootstrap *bootstrap;
  struct rt_channel channels[RT_MAX_CHANNELS * RT_TREES]; /* nchannels of them, then as many for second trees */
  int nchannels;
  struct rt_ring ring;
  struct rt_tuning tuning;
  struct rt_last_choice last_choice;
  struct rt_net net;
  struct rt_proxy proxy;
  struct rt_queue queue;
  _Atomic(struct rt_plan *) spare_plan; /* memory for the next plan, or NULL: rt_plan_alloc */
  struct rt_small small;
  struct rt_gpu gpu;
  ncclConfig_t config;
  char requested_net[64], name[64];
  uint32_t children; /* ncclCommSplit and ncclCommGrow calls so far; the same on all ranks */
  bool has_grow_id; /* of ncclCommGetUniqueId, for the next ncclCommGrow */
  char grow_id[RT_UNIQUE_ID_BYTES];
  struct rt_premul *premuls;
  int npremuls;
  LIST_HEAD(rt_reg_buffers, rt_reg_buffer) reg_buffers; /* of ncclCommRegister: rt_reg.h */
  pthread_mutex_t reg_lock;

  int *survivors; /* until the bootstrap of a shrink is open: the parent's ranks that stay */

  atomic_int failed;     /* first result that is not success; ends every wait, a device's kernels' too */
  atomic_bool revoked;   /* by ncclCommRevoke: `failed` as well, but its bootstrap may be used on */
  atomic_int abort_flag; /* ends the bootstrap's waits */
  pthread_mutex_t error_lock;
  char error[512];
  unsigned long failed_at; /* rt_error_moment; both are set before `failed` */
  atomic_int users;      /* calls in other threads that use it: destroy and abort wait for them */
  atomic_bool ending;    /* a thread is in the call that will free it */
  atomic_int init_state; /* ncclInProgress while a non-blocking init runs */
  pthread_t init_thread;
  bool init_thread_running;
  _Atomic enum rt_comm_state state;
  char transports_text[96];
  struct ncclComm *next_abandoned;
};

struct rt_init_args {
  char id[RT_UNIQUE_ID_BYTES];
  int rank, nranks, device; /* device -1: the rank on this host */
  ncclConfig_t config;
  /* A split: the parent's ranks with the same color, in the order of key; id, rank and nranks are not used. */
  struct ncclComm *parent;
  bool parent_held; /* counted among the parent's users */
  int color, key;
  uint32_t serial; /* which of parent's children this is: taken in the call, so that all ranks agree */
  /* A grow instead: nranks is the new size, rank the parent's. has_id: this rank has made the id, and its rendezvous
   * waits until the communicator's bootstrap is open. */
  bool grow, has_id;
  /* A shrink instead: nranks ranks of parent, in their order; rt_comm_alloc keeps a copy. */
  const int *survivors;
  /* An id whose rendezvous this rank started and ends, because the ranks use another one. */
  bool has_spare;
  char spare[RT_UNIQUE_ID_BYTES];
};

/* ---- a communicator's life: rt_comm.c, rt_comm_init.c ---- */

/* An empty communicator, which rt_comm_free accepts. NULL without memory. */
struct ncclComm *rt_comm_alloc(const struct rt_init_args *args);
/* Collective. The communicator stays half built on failure: free it. A rank without a color
 * gets RAIL_OK and nranks 0. The parent is released as soon as it is not needed. */
rail_result_t rt_comm_init(struct ncclComm *comm, struct rt_init_args *args);
void rt_comm_free(struct ncclComm *comm);

/* ---- made from a parent: rt_comm_parent.c ---- */

/* An abort of the parent waits until the making of the communicator does not use it any more. */
void rt_init_hold_parent(struct rt_init_args *args);
void rt_init_release_parent(struct rt_init_args *args);
/* Whatever became of the communicator: releases the parent, and ends the rendezvous of an id that was not used. */
void rt_init_end(struct rt_init_args *args);
/* Ends the rendezvous of the id of ncclCommGetUniqueId, if there is one. */
void rt_comm_drop_id(struct ncclComm *comm);
/* Collective over args->parent. *ranks (to be freed) lists the parent's ranks that have this rank's color, in their
 * new order; comm->rank and nranks become the new numbering, nranks 0 for a rank without a color. */
rail_result_t rt_comm_exchange_colors(struct ncclComm *comm, const struct rt_init_args *args, int **ranks);
/* Collective over args->parent. `id` is the one that a rank of it has made. */
rail_result_t rt_comm_exchange_grow_id(const struct ncclComm *comm, const struct rt_init_args *args,
                                       char id[RT_UNIQUE_ID_BYTES]);

/* ---- failures: rt_comm_fail.c ---- */

/* Records the error, logs it and reports it to the other ranks. Only the first call has an effect. */
void rt_comm_fail(struct ncclComm *comm, rail_result_t result, const char *fmt, ...) RAIL_PRINTF(3, 4);
/* The same without a line, for an error that rt_error has logged. */
void rt_comm_fail_logged(struct ncclComm *comm, rail_result_t result, const char *text);
/* The failure when two ranks' calls differ: `got` bytes came from rank `peer`. */
RAIL_COLD void rt_comm_fail_mismatch(struct ncclComm *comm, int peer, uint64_t got, uint64_t expected);
/* Ends every wait of this rank as a failure does, but does not report it, and the bootstrap stays usable. */
void rt_comm_revoke(struct ncclComm *comm);
/* rt_bootstrap_args.on_failure: the bootstrap has found a rank dead, or received another rank's error, which it has
 * logged and reported. */
void rt_comm_bootstrap_failed(void *comm, rail_result_t result, const char *why);
static inline bool rt_comm_failed(const struct ncclComm *comm) {
  return atomic_load_explicit(&comm->failed, memory_order_acquire) != 0;
}

/* ---- channels and connections ---- */

/* How many of `channels` are in use. */
static inline int rt_comm_all_channels(const struct ncclComm *comm) { return comm->nchannels * RT_TREES; }
/* What this rank has allocated, of the kind of memory that the communicator works on: for its connections, and else. */
struct rt_comm_memory {
  uint64_t connections, rest;
};
struct rt_comm_memory rt_comm_count_memory(const struct ncclComm *comm);
/* Takes down all connections; the next operations make new ones. Nothing is enqueued, and no graph has a plan. False:
 * kernels of other communicators went on running, see rt_launch_lock.h. */
bool rt_comm_drop_connections(struct ncclComm *comm);

/* The connector, allocated on first use; NULL without memory. */
struct rt_connector *rt_comm_connector(struct ncclComm *comm, int channel, int peer, bool is_send);

/* `index` may be -1 or nranks: the ring is closed. */
static inline int rt_ring_rank_at(const struct ncclComm *comm, int index) {
  int i = (index + comm->nranks) % comm->nranks;
  return comm->ring.order ? comm->ring.order[i] : i;
}

static inline int rt_ring_index_of(const struct ncclComm *comm, int rank) {
  int index = comm->ring.order ? 0 : rank;
  while (rt_ring_rank_at(comm, index) != rank) index++;
  return index;
}

#endif
