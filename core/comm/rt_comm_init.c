/* SPDX-License-Identifier: Apache-2.0
 * A communicator is made with all other ranks, in the caller's thread, a rail-init or a rail-group thread. rt_comm_init
 * comes first; what it calls follows, in the order in which it is called. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/log.h"
#include "common/base/sock.h"
#include "core/comm/rt_comm.h"
#include "core/comm/rt_param.h"
#include "core/gpu/rt_export.h"
#include "core/topo/rt_topo.h"

static rail_result_t open_bootstrap(struct ncclComm *comm, struct rt_init_args *args);
static rail_result_t exchange_peers(struct ncclComm *comm);
static rail_result_t open_ring(struct ncclComm *comm);
static void choose_tuning(struct ncclComm *comm);
static void log_ring(const struct ncclComm *comm);
static bool proxy_threaded(struct ncclComm *comm);

rail_result_t rt_comm_init(struct ncclComm *comm, struct rt_init_args *args) {
  rail_result_t opened = open_bootstrap(comm, args);
  rt_init_end(args);
  RAIL_TRY(opened);
  if (comm->nranks == 0) return RAIL_OK;
  RAIL_TRY(exchange_peers(comm));
  RAIL_TRY(open_ring(comm));
  choose_tuning(comm);
  if (comm->rank == 0) log_ring(comm);
  for (int c = 0; c < rt_comm_all_channels(comm); c++) {
    comm->channels[c].send = calloc((size_t)comm->nranks, sizeof(struct rt_connector *));
    comm->channels[c].recv = calloc((size_t)comm->nranks, sizeof(struct rt_connector *));
    if (!comm->channels[c].send || !comm->channels[c].recv) return RAIL_SYSTEM_ERROR;
  }
  RAIL_TRY(rt_proxy_init(&comm->proxy, comm, proxy_threaded(comm)));
  RAIL_TRY(rt_queue_init(&comm->queue, comm));
  RAIL_INFO(RAIL_SUB_INIT, "rank %d of %d ready: %d on this host, %d channels, proxy %s", comm->rank, comm->nranks,
            comm->local_size, comm->nchannels, comm->proxy.threaded ? "thread" : "inline");
  return RAIL_OK;
}

/* ---- the other ranks: a bootstrap, and what each says of itself ------------------- */

/* A new bootstrap, from a unique id or among ranks of the parent: those with the same color, or the survivors. */
static rail_result_t open_bootstrap(struct ncclComm *comm, struct rt_init_args *args) {
  const struct rt_params *p = rt_params();
  int *ranks = comm->survivors;
  bool shrink = ranks != NULL;
  rail_result_t r = RAIL_OK;
  comm->survivors = NULL;
  char id[RT_UNIQUE_ID_BYTES];
  memcpy(id, args->id, sizeof id);
  if (args->grow) {
    r = rt_comm_exchange_grow_id(comm, args, id);
    rt_init_release_parent(args); /* the new ranks may be long in coming */
  } else if (args->parent && !shrink) {
    r = rt_comm_exchange_colors(comm, args, &ranks);
  }
  if (r != RAIL_OK || comm->nranks == 0) {
    free(ranks);
    return r;
  }
  struct rt_bootstrap_args b = {
      .rank = comm->rank,
      .nranks = comm->nranks,
      .timeout_ms = (uint64_t)p->bootstrap_timeout_ms,
      .heartbeat_ms = (uint64_t)p->heartbeat_ms,
      .heartbeat_timeout_ms = (uint64_t)p->heartbeat_timeout_ms,
      .abort_flag = &comm->abort_flag,
      .on_failure = rt_comm_bootstrap_failed,
      .arg = comm,
  };
  struct rt_bootstrap *bootstrap = NULL;
  if (args->parent && shrink)
    r = rt_bootstrap_shrink(args->parent->bootstrap, ranks, &b, &bootstrap);
  else if (args->parent)
    r = rt_bootstrap_split(args->parent->bootstrap, ranks, args->serial, &b, &bootstrap);
  else
    r = rt_bootstrap_open(id, &b, &bootstrap);
  if (r == RAIL_OK) args->has_id = false;
  /* ncclCommAbort may read it in another thread while this one makes the communicator. */
  __atomic_store_n(&comm->bootstrap, bootstrap, __ATOMIC_RELEASE);
  free(ranks);
  return r;
}

/* Every rank gets the records of all: where they run, and their settings. */
static rail_result_t exchange_peers(struct ncclComm *comm) {
  comm->peers = calloc((size_t)comm->nranks, sizeof *comm->peers);
  if (!comm->peers) return RAIL_SYSTEM_ERROR;
  struct rt_peer *me = &comm->peers[comm->rank];
  rt_peer_describe(me);
  me->rank = comm->rank;
  RAIL_TRY(rail_random_bytes(&me->nonce, sizeof me->nonce));
  rt_topo_detect(comm->device, &me->gpu);
  me->has_gpu = comm->initial_gpu >= 0;
  if (me->has_gpu) me->multiprocessors = rt_gpu_multiprocessors(comm->initial_gpu);
  if (me->has_gpu && me->p2p_level != RT_LOC) me->export_types = rt_export_open(comm->initial_gpu, &comm->fd_receiver);
  memcpy(me->fd_receiver, comm->fd_receiver.name, sizeof me->fd_receiver);
  me->min_ctas = comm->config.minCTAs;
  me->max_ctas = comm->config.maxCTAs;
  RAIL_TRY(rt_bootstrap_allgather(comm->bootstrap, comm->peers, sizeof *comm->peers));
  for (int r = 0; r < comm->nranks; r++) {
    const struct rt_peer *peer = &comm->peers[r];
    char why[RT_WHY];
    rail_result_t result = rt_peer_check(me, peer, why);
    if (result != RAIL_OK) {
      rt_comm_fail(comm, result, "%s", why); /* reported to all ranks */
      return result;
    }
    comm->shares_process |= r != comm->rank && rt_peer_same_process(me, peer);
    if (peer->host_hash == me->host_hash) {
      comm->local_size++;
      if (r < comm->rank) comm->local_rank++;
    }
  }
  if (comm->device < 0) comm->device = comm->local_rank;
  comm->oversubscribed = rt_host_is_oversubscribed(comm->peers, comm->nranks, comm->rank);
  return RAIL_OK;
}

/* ---- the ring, and choices: the same on all ranks --------------------------------- */

static rail_result_t find_ring_order(const struct ncclComm *comm, int *order) {
  struct rt_topo_rank *ranks = calloc((size_t)comm->nranks, sizeof *ranks);
  if (!ranks) return RAIL_SYSTEM_ERROR;
  for (int r = 0; r < comm->nranks; r++)
    ranks[r] = (struct rt_topo_rank){comm->peers[r].host_hash, &comm->peers[r].gpu};
  rail_result_t result = rt_topo_ring(ranks, comm->nranks, order);
  free(ranks);
  return result;
}

/* The order of the rings: the same on all ranks. */
static rail_result_t open_ring(struct ncclComm *comm) {
  struct rt_ring *ring = &comm->ring;
  ring->size = RAIL_ROUND_UP((size_t)comm->nranks * sizeof *ring->order, (size_t)RT_PAGE);
  int *order = mmap(NULL, ring->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (order == MAP_FAILED) return RAIL_SYSTEM_ERROR;
  ring->order = order;
  RAIL_TRY(find_ring_order(comm, order));
  ring->index = rt_ring_index_of(comm, comm->rank);
  bool same = true;
  for (int i = 0; i < comm->nranks; i++) same &= order[i] == i;
  if (same) {
    munmap(order, ring->size);
    ring->order = NULL;
  }
  return RAIL_OK;
}

/* Algorithms and channels: the same on all ranks. */
static void choose_tuning(struct ncclComm *comm) {
  const struct rt_peer *me = &comm->peers[comm->rank];
  struct rt_tuning *t = &comm->tuning;
  *t = rt_tuning_of(rt_params(), me->algos, me->protos);
  t->crowded = rt_peers_are_crowded(comm->peers, comm->nranks);
  t->all_direct = true;
  for (int i = 0; i < comm->nranks; i++) {
    const struct rt_peer *a = &comm->peers[rt_ring_rank_at(comm, i)];
    const struct rt_peer *b = &comm->peers[rt_ring_rank_at(comm, i + 1)];
    t->all_direct &= rt_transport_direct(rt_transport_choose(a, b));
  }
  int n = (int)rt_params()->nchannels;
  if (n == 0 && t->all_direct) n = t->blocks = rt_peers_blocks(comm->peers, comm->nranks);
  t->nchannels = comm->nchannels = RAIL_MIN(rt_peers_channels(comm->peers, comm->nranks, n), RT_MAX_CHANNELS);
}

/* In NCCL's format; of very many ranks the first. */
static void log_ring(const struct ncclComm *comm) {
  char text[512];
  size_t used = 0;
  for (int i = 0; i < comm->nranks && used + 16 < sizeof text; i++)
    used += (size_t)snprintf(text + used, sizeof text - used, " %d", rt_ring_rank_at(comm, i));
  for (int c = 0; c < comm->nchannels; c++)
    RAIL_INFO(RAIL_SUB_GRAPH, "Channel %02d/%02d :%s", c, comm->nchannels, text);
}

/* ---- the proxy -------------------------------------------------------------------- */

/* A second thread per rank helps only where it has a core. */
static bool proxy_threaded(struct ncclComm *comm) {
  switch (rt_params()->proxy) {
    case RT_PROXY_THREAD: return true;
    case RT_PROXY_INLINE: return false;
    default: break;
  }
  return rt_peer_count_cores(&comm->peers[comm->rank]) >= 2 * comm->local_size;
}
