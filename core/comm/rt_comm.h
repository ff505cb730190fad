/* SPDX-License-Identifier: Apache-2.0
 *
 * The communicator: what one rank knows of its group.
 *
 * Lifetime: made by rt_comm_init (collective), used, ended by rt_comm_free.
 * Failure is one-way: the first error, from here or from another rank, is kept
 * with its text, logged once by whoever decided it, told to all other ranks, and ends every wait.
 * Nothing is taken down by a failure but what rt_comm_free takes down later.
 */
#ifndef RT_COMM_H
#define RT_COMM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/bootstrap/rt_bootstrap.h"
#include "core/comm/rt_peer.h"
#include "core/gpu/rt_fd_receiver.h"
#include "core/gpu/rt_gpu.h"
#include "core/host/rt_reduce.h"
#include "core/plan/rt_queue.h"
#include "core/plan/rt_tree.h"
#include "core/plan/rt_tune.h"
#include "core/topo/rt_ring.h"
#include "core/transport/rt_net_devices.h"
#include "core/transport/rt_proxy.h"
#include "core/transport/rt_transport.h"
#include "loader/netload.h"
#include "rail/railyard.h"

#define RT_MAX_CHANNELS 16
#define RT_COMM_MAGIC 0x7261696c636f6d6dull

/* Connectors of one channel, or of its second tree, made on first use; index is the peer's rank. */
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
  bool cheap_reg; /* registering user memory for one operation pays off */
};

/* A buffer of ncclCommRegister. */
struct rt_reg_buffer {
  void *base;
  size_t size;
  struct rt_reg_buffer *next;
};

/* In pages of its own: a kernel on a device looks at `failed`. */
struct ncclComm {
  uint64_t magic;
  int rank, nranks, local_rank, local_size;
  int device;
  enum rt_memory_kind memory; /* of its calls' buffers: the first call with some decides */
  int gpu_at_birth; /* the device that was current when it was made; -1: none */
  struct rt_fd_receiver fd_receiver;
  bool shares_process; /* with another of its ranks: rt_gate.h */
  uint64_t collectives; /* plans with one: their number is the same on all ranks */
  struct rt_peer *peers; /* nranks */
  struct rt_bootstrap *bootstrap;
  struct rt_channel channels[RT_MAX_CHANNELS * RT_TREES]; /* behind those of nchannels: of their second trees */
  int nchannels;
  int room, round_width; /* rt_peers_room, rt_round_width */
  struct rt_ring ring;
  struct rt_tuning tuning;
  struct rt_net net;
  struct rt_proxy proxy;
  struct rt_queue queue;
  struct rt_gpu gpu;
  ncclConfig_t config;
  char net_name_wanted[64], name[64];
  uint32_t splits; /* ncclCommSplit calls so far */
  struct rt_premul *premuls;
  int npremuls;
  struct rt_reg_buffer *reg_buffers;
  pthread_mutex_t reg_lock;

  int *survivors; /* of a shrink under way: the parent's ranks that stay */

  atomic_int failed;     /* first result that is not success; ends every wait, a device's kernels' too */
  atomic_bool revoked;   /* by ncclCommRevoke: `failed` as well, but its bootstrap may be used on */
  atomic_int abort_flag; /* what the bootstrap's waits look at */
  pthread_mutex_t error_lock;
  char error[512];
  atomic_int users;      /* calls that other threads may have inside: abort waits for them */
  atomic_int init_state; /* ncclInProgress while a non-blocking init runs */
  pthread_t init_thread;
  bool init_thread_running, finalized;
  char transports_text[96];
  struct ncclComm *next_abandoned;
};

struct rt_init_args {
  char id[RT_UNIQUE_ID_BYTES];
  int rank, nranks, device; /* device -1: the rank on this host */
  ncclConfig_t config;
  /* A split: the ranks of parent that name the same color, in the order of key; id, rank and nranks follow from that.
   */
  struct ncclComm *parent;
  int color, key;
  uint32_t serial; /* which split of parent this is */
  /* A shrink instead: nranks ranks of parent, in their order; rt_comm_alloc keeps a copy. */
  const int *survivors;
  /* An id whose rendezvous this rank ends when all have met elsewhere. */
  bool has_spare;
  char spare[RT_UNIQUE_ID_BYTES];
};

/* An empty communicator, which rt_comm_free accepts. NULL without memory. */
struct ncclComm *rt_comm_alloc(const struct rt_init_args *args);
/* Collective. The communicator stays half built on failure: free it. A rank without a color
 * gets RAIL_OK and nranks 0. */
rail_result_t rt_comm_init(struct ncclComm *comm, const struct rt_init_args *args);
void rt_comm_free(struct ncclComm *comm);

/* rt_comm_fail.c. The first call decides; later ones are ignored. Logs, keeps the text, tells the other ranks. */
void rt_comm_fail(struct ncclComm *comm, rail_result_t result, const char *fmt, ...) RAIL_PRINTF(3, 4);
/* Ends every wait of this rank as a failure does, but tells nobody and leaves the bootstrap alone. */
void rt_comm_revoke(struct ncclComm *comm);
/* rt_bootstrap_args.on_failure: the bootstrap found a rank dead, or received another rank's error. It has logged that
 * and told the other ranks. */
void rt_comm_bootstrap_failed(void *comm, rail_result_t result, const char *why);
static inline bool rt_comm_failed(struct ncclComm *comm) {
  return atomic_load_explicit(&comm->failed, memory_order_acquire) != 0;
}

/* So many of `channels` are in use. */
static inline int rt_comm_lanes(const struct ncclComm *comm) { return comm->nchannels * RT_TREES; }
/* The connector, allocated on first use; NULL without memory. */
struct rt_connector *rt_comm_connector(struct ncclComm *comm, int channel, int peer, bool is_send);

#endif
