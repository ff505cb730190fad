/* SPDX-License-Identifier: Apache-2.0
 * A communicator's memory: allocated, its connectors made, counted and dropped, and freed. How it is filled in with all
 * other ranks: rt_comm_init.c. */
#include "core/comm/rt_comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/log.h"
#include "core/comm/rt_reg.h"
#include "core/gpu/rt_device_plan.h"
#include "core/gpu/rt_export.h"
#include "core/gpu/rt_launch_lock.h"

/* ---- allocated -------------------------------------------------------------------- */

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

/* ---- connectors: made on first use, counted, dropped ------------------------------ */

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

/* ---- freed, in reverse order ------------------------------------------------------ */

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
  if (comm->ring.order) munmap(comm->ring.order, comm->ring.size);
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

/* Communicators that cannot be freed yet: a device may use their memory, or the free would wait for it. */
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
