/* SPDX-License-Identifier: Apache-2.0
 * A communicator from its allocation to its end: made with all other ranks, its connectors made, counted and dropped,
 * freed. The public calls use it; making runs in the caller's thread, a rail-init or a rail-group thread. */
#include "core/comm/rt_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/log.h"
#include "common/base/sock.h"
#include "core/comm/rt_error.h"
#include "core/comm/rt_param.h"
#include "core/comm/rt_reg.h"
#include "core/gpu/rt_device_plan.h"
#include "core/gpu/rt_export.h"
#include "core/gpu/rt_launch_lock.h"
#include "core/topo/rt_topo.h"

/* ---- making ---------------------------------------------------------------------- */

struct ncclComm *rt_comm_alloc(const struct rt_init_args *args) {
  struct ncclComm *comm = NULL;
  if (posix_memalign((void **)&comm, RT_PAGE, RAIL_ROUND_UP(sizeof *comm, (size_t)RT_PAGE)) != 0) return NULL;
  memset(comm, 0, sizeof *comm);
  comm->magic = RT_COMM_MAGIC;
  comm->rank = args->rank;
  comm->nranks = args->nranks;
  comm->device = args->device >= 0 ? args->device : rt_gpu_current();
  comm->initial_gpu = rt_gpu_current();
  if (comm->initial_gpu < 0 && args->parent) comm->initial_gpu = args->parent->initial_gpu;
  comm->config = args->config;
  /* Strings of the caller's config need not outlive the call. */
  if (args->config.netName) snprintf(comm->requested_net, sizeof comm->requested_net, "%s", args->config.netName);
  if (args->config.commName) snprintf(comm->name, sizeof comm->name, "%s", args->config.commName);
  comm->config.netName = comm->config.commName = NULL;
  if (args->survivors) {
    size_t size = (size_t)args->nranks * sizeof *comm->survivors;
    comm->survivors = malloc(size);
    if (!comm->survivors) {
      free(comm);
      return NULL;
    }
    memcpy(comm->survivors, args->survivors, size);
  }
  pthread_mutex_init(&comm->error_lock, NULL);
  pthread_mutex_init(&comm->reg_lock, NULL);
  return comm;
}

/* ---- what it is made from ---- */

void rt_init_hold_parent(struct rt_init_args *args) {
  if (!args->parent) return;
  atomic_fetch_add(&args->parent->users, 1);
  args->parent_held = true;
}

void rt_init_release_parent(struct rt_init_args *args) {
  if (args->parent_held) atomic_fetch_sub(&args->parent->users, 1);
  args->parent_held = false;
  args->parent = NULL;
}

static void cancel_id(const char id[RT_UNIQUE_ID_BYTES], int rank) {
  char why[200];
  snprintf(why, sizeof why,
           "rank %d, which made the unique id for ncclCommGrow, will not come: its call failed, or its communicator "
           "has ended; get another id",
           rank);
  rt_unique_id_cancel(id, why);
}

void rt_init_end(struct rt_init_args *args) {
  rt_init_release_parent(args);
  if (args->has_id) cancel_id(args->id, args->rank);
  args->has_id = false;
  if (args->has_spare) rt_unique_id_drop(args->spare);
  args->has_spare = false;
}

void rt_comm_drop_id(struct ncclComm *comm) {
  if (comm->has_grow_id) cancel_id(comm->grow_id, comm->rank);
  comm->has_grow_id = false;
}

/* ---- what the ranks of a parent tell each other ---- */

/* As rt_bootstrap_gather_for_child; an error names what ended the parent. */
static rail_result_t gather_in_parent(const struct ncclComm *comm, const struct rt_init_args *args, void *all,
                                      size_t each) {
  const struct ncclComm *parent = args->parent;
  const struct rt_bootstrap_child child = {.call = args->grow ? "ncclCommGrow" : "ncclCommSplit",
                                           .serial = args->serial, .abort_flag = &comm->abort_flag};
  rail_result_t r = rt_bootstrap_gather_for_child(parent->bootstrap, &child, all, each);
  char why[sizeof parent->error];
  if (r != RAIL_OK && rt_bootstrap_failure(parent->bootstrap, why, sizeof why) != RAIL_OK)
    rt_error(r, "the communicator from which this one was to be made has failed: %s", why);
  return r;
}

/* ---- splitting: which ranks belong to the new communicator ---- */

struct color_key { int32_t color, key, rank, pad; };

static int by_key(const void *a, const void *b) {
  const struct color_key *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Collective over args->parent. *ranks (to be freed) lists the parent's ranks that have this rank's color, in their
 * new order; comm->rank and nranks become the new numbering, nranks 0 for a rank without a color. */
static rail_result_t exchange_colors(struct ncclComm *comm, const struct rt_init_args *args, int **ranks) {
  struct ncclComm *parent = args->parent;
  struct color_key *all = calloc((size_t)parent->nranks, sizeof *all);
  *ranks = calloc((size_t)parent->nranks, sizeof **ranks);
  comm->rank = comm->nranks = 0;
  rail_result_t r = all && *ranks ? RAIL_OK : RAIL_SYSTEM_ERROR;
  if (r == RAIL_OK) {
    all[parent->rank] = (struct color_key){.color = args->color, .key = args->key, .rank = parent->rank};
    r = gather_in_parent(comm, args, all, sizeof *all);
  }
  if (r == RAIL_OK && args->color != NCCL_SPLIT_NOCOLOR) {
    int n = 0;
    for (int i = 0; i < parent->nranks; i++)
      if (all[i].color == args->color) all[n++] = all[i];
    qsort(all, (size_t)n, sizeof *all, by_key);
    for (int i = 0; i < n; i++) {
      (*ranks)[i] = all[i].rank;
      if (all[i].rank == parent->rank) comm->rank = i;
    }
    comm->nranks = n;
  }
  free(all);
  return r;
}

/* ---- growing: the ranks of the parent learn the id ---- */

/* Of each rank of the parent. */
struct grow_record {
  int32_t nranks, has_id;
  char id[RT_UNIQUE_ID_BYTES];
};

static rail_result_t choose_grow_id(const struct rt_init_args *args, const struct grow_record *all, char *id) {
  const struct ncclComm *parent = args->parent;
  int made_by = -1;
  for (int r = 0; r < parent->nranks; r++) {
    if (all[r].nranks != args->nranks) {
      rt_error(RAIL_BAD_USAGE,
               "ncclCommGrow: nRanks is %d on rank %d and %d on rank %d; it must be the same on all ranks",
               args->nranks, parent->rank, all[r].nranks, r);
      return RAIL_BAD_USAGE;
    }
    if (!all[r].has_id) continue;
    if (made_by >= 0) {
      rt_error(RAIL_BAD_USAGE,
               "ncclCommGrow: ranks %d and %d have both made an id (ncclCommGetUniqueId); one rank does", made_by, r);
      return RAIL_BAD_USAGE;
    }
    made_by = r;
  }
  if (made_by < 0) {
    rt_error(RAIL_BAD_USAGE, "ncclCommGrow: no rank of the communicator has made an id; one calls ncclCommGetUniqueId "
                             "first");
    return RAIL_BAD_USAGE;
  }
  memcpy(id, all[made_by].id, RT_UNIQUE_ID_BYTES);
  return RAIL_OK;
}

/* Collective over args->parent. `id` is the one that a rank of it has made. */
static rail_result_t exchange_grow_id(const struct ncclComm *comm, const struct rt_init_args *args,
                                      char id[RT_UNIQUE_ID_BYTES]) {
  const struct ncclComm *parent = args->parent;
  struct grow_record *all = calloc((size_t)parent->nranks, sizeof *all);
  if (!all) return RAIL_SYSTEM_ERROR;
  struct grow_record *mine = &all[parent->rank];
  mine->nranks = args->nranks;
  mine->has_id = args->has_id;
  if (args->has_id) memcpy(mine->id, args->id, sizeof mine->id);
  rail_result_t r = gather_in_parent(comm, args, all, sizeof *all);
  if (r == RAIL_OK) r = choose_grow_id(args, all, id);
  free(all);
  return r;
}

/* ---- meeting the other ranks ---- */

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
    r = exchange_grow_id(comm, args, id);
    rt_init_release_parent(args); /* the new ranks may be long in coming */
  } else if (args->parent && !shrink) {
    r = exchange_colors(comm, args, &ranks);
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

/* ---- the ring ---- */

static rail_result_t find_ring_order(const struct ncclComm *comm, int *order) {
  struct rt_topo_rank *ranks = calloc((size_t)comm->nranks, sizeof *ranks);
  if (!ranks) return RAIL_SYSTEM_ERROR;
  for (int r = 0; r < comm->nranks; r++)
    ranks[r] = (struct rt_topo_rank){comm->peers[r].host_hash, &comm->peers[r].gpu};
  rail_result_t result = rt_topo_ring(ranks, comm->nranks, order);
  free(ranks);
  return result;
}

static void close_ring(struct rt_ring *ring) {
  if (ring->order) munmap(ring->order, ring->size);
  ring->order = NULL;
}

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
  if (same) close_ring(ring);
  return RAIL_OK;
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

/* ---- choices that are the same on all ranks ---- */

static void choose_tuning(struct ncclComm *comm) {
  const struct rt_peer *me = &comm->peers[comm->rank];
  struct rt_tuning *t = &comm->tuning;
  *t = rt_tuning_of(rt_params(), me->algos, me->protos);
  t->crowded = rt_peers_are_crowded(comm->peers, comm->nranks);
  t->all_shm = true; /* no pair of neighbours has a proxy in between */
  for (int i = 0; i < comm->nranks; i++) {
    const struct rt_peer *a = &comm->peers[rt_ring_rank_at(comm, i)];
    const struct rt_peer *b = &comm->peers[rt_ring_rank_at(comm, i + 1)];
    t->all_shm &= rt_transport_direct(rt_transport_choose(a, b));
  }
  int n = (int)rt_params()->nchannels;
  if (n == 0 && t->all_shm) n = t->blocks = rt_peers_blocks(comm->peers, comm->nranks);
  t->nchannels = comm->nchannels = RAIL_MIN(rt_peers_channels(comm->peers, comm->nranks, n), RT_MAX_CHANNELS);
}

/* A second thread per rank helps only where it has a core. */
static bool proxy_threaded(struct ncclComm *comm) {
  switch (rt_params()->proxy) {
    case RT_PROXY_THREAD: return true;
    case RT_PROXY_INLINE: return false;
    default: break;
  }
  return rt_peer_count_cores(&comm->peers[comm->rank]) >= 2 * comm->local_size;
}

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

struct rt_connector *rt_comm_connector(struct ncclComm *comm, int channel, int peer, bool is_send) {
  struct rt_channel *ch = &comm->channels[channel];
  struct rt_connector **at = is_send ? &ch->send[peer] : &ch->recv[peer];
  struct rt_connector *c = *at;
  if (c) return c;
  if (posix_memalign((void **)&c, RT_PAGE, RAIL_ROUND_UP(sizeof *c, (size_t)RT_PAGE)) != 0) return NULL;
  memset(c, 0, sizeof *c);
  c->peer = peer;
  c->channel = channel;
  c->is_send = is_send;
  return *at = c;
}

/* ---- its memory ------------------------------------------------------------------- */

struct rt_comm_memory rt_comm_count_memory(const struct ncclComm *comm) {
  const bool on_device = comm->memory == RT_DEVICE_MEMORY;
  struct rt_comm_memory m = {0, 0};
  for (int c = 0; c < rt_comm_all_channels(comm); c++)
    for (int r = 0; r < comm->nranks; r++) {
      const struct rt_connector *ends[2] = {comm->channels[c].send[r], comm->channels[c].recv[r]};
      for (int e = 0; e < 2; e++)
        if (ends[e]) m.connections += on_device ? ends[e]->gpu_bytes : ends[e]->host_bytes + sizeof *ends[e];
    }
  if (on_device) return m;
  if (comm->small.segment && comm->rank == 0) m.connections += comm->small.size;
  m.rest = sizeof *comm + comm->ring.size + (size_t)comm->nranks * sizeof *comm->peers;
  m.rest += (size_t)rt_comm_all_channels(comm) * (size_t)comm->nranks * 2 * sizeof(struct rt_connector *);
  return m;
}

/* ---- freeing, in reverse order ----------------------------------------------------- */

static void free_connectors(struct ncclComm *comm) {
  for (int c = 0; c < rt_comm_all_channels(comm); c++) {
    struct rt_channel *ch = &comm->channels[c];
    for (int r = 0; r < comm->nranks; r++) {
      if (ch->send) rt_connector_free(comm, ch->send[r]);
      if (ch->recv) rt_connector_free(comm, ch->recv[r]);
      if (ch->send) ch->send[r] = NULL;
      if (ch->recv) ch->recv[r] = NULL;
    }
  }
}

/* What was registered for them is given back already. */
static void close_connections(struct ncclComm *comm) {
  rt_small_close(&comm->small);
  memset(&comm->small, 0, sizeof comm->small);
  free_connectors(comm);
  rt_export_wait();
}

bool rt_comm_drop_connections(struct ncclComm *comm) {
  const bool on_device = comm->gpu.open;
  if (on_device && !rt_launch_lock_free_begin()) return false;
  rt_proxy_quiesce(&comm->proxy); /* it may still be in the pass that finished its last operation */
  rt_reg_drop_connectors(comm);
  close_connections(comm);
  if (on_device) rt_launch_lock_free_end();
  return true;
}

static void free_parts(struct ncclComm *comm) {
  rt_queue_destroy(&comm->queue);
  rt_reg_free_all(comm);
  close_connections(comm);
  rt_device_plan_close(comm);
  rt_gpu_close(comm);
  rt_fd_receiver_close(&comm->fd_receiver);
  for (int c = 0; c < rt_comm_all_channels(comm); c++) {
    free(comm->channels[c].send);
    free(comm->channels[c].recv);
  }
  close_ring(&comm->ring);
  rt_net_close(comm);
  rt_bootstrap_close(comm->bootstrap);
  free(comm->spare_plan); /* after all that may free a plan */
  free(comm->premuls);
  free(comm->peers);
  free(comm->survivors);
  pthread_mutex_destroy(&comm->reg_lock);
  pthread_mutex_destroy(&comm->error_lock);
  free(comm);
}

/* ---- communicators that cannot be freed yet: a device may use their memory, or the free would wait for it ---- */

static struct ncclComm *abandoned;
static pthread_mutex_t abandoned_lock = PTHREAD_MUTEX_INITIALIZER;

/* After an abort, launched graphs may not have begun yet; any other end has waited for them. */
static bool still_used(struct ncclComm *comm) {
  return comm->gpu.stuck || (rt_comm_failed(comm) && rt_device_plan_graphs_alive(comm));
}

static void abandon(struct ncclComm *comm) {
  if (comm->gpu.stuck)
    RAIL_WARN("rank %d: a kernel on CUDA device %d has not ended; the memory it may use stays allocated", comm->rank,
              comm->gpu.ordinal);
  rt_bootstrap_close(comm->bootstrap);
  comm->bootstrap = NULL;
  pthread_mutex_lock(&abandoned_lock);
  comm->next_abandoned = abandoned;
  abandoned = comm;
  pthread_mutex_unlock(&abandoned_lock);
}

/* False: not now, see rt_launch_lock.h. */
static bool free_now(struct ncclComm *comm) {
  bool on_device = comm->gpu.open;
  if (still_used(comm) || (on_device && !rt_launch_lock_free_try_begin())) return false;
  free_parts(comm);
  if (on_device) rt_launch_lock_free_end();
  return true;
}

/* Frees those whose memory is not used any more. */
static void free_abandoned(void) {
  pthread_mutex_lock(&abandoned_lock);
  for (struct ncclComm **at = &abandoned; *at;) {
    struct ncclComm *comm = *at, *next = comm->next_abandoned;
    if (free_now(comm))
      *at = next;
    else
      at = &comm->next_abandoned;
  }
  pthread_mutex_unlock(&abandoned_lock);
}

void rt_comm_free(struct ncclComm *comm) {
  if (!comm) return;
  rt_comm_drop_id(comm);
  /* The executor may be driving the proxy, and the proxy may have operations of plans that failed. */
  rt_queue_stop(&comm->queue);
  rt_proxy_destroy(&comm->proxy);
  comm->magic = 0;
  if (!free_now(comm)) abandon(comm);
  free_abandoned();
}
