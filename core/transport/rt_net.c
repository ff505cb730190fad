/* SPDX-License-Identifier: Apache-2.0
 *
 * NET: the proxy moves steps between slots and a plugin that was loaded with dlopen, as NCCL's does. One connection of
 * the plugin per connector; the slots' buffers are registered once; a step whose slot names user memory goes from or to
 * there. Slots of device plans may lie in the GPU's memory (rt_gdr.h).
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "core/comm/rt_comm.h"
#include "core/comm/rt_param.h"
#include "core/gpu/rt_gdr.h"

/* A registration that costs more than this per MiB is not made for one operation. */
#define CHEAP_REG_NS 20000u
#define CHEAP_REG_PROBE ((size_t)1 << 20)
#define CHEAP_REG_PROBES 3

/* In pages of its own: a device may have to reach the FIFO. */
struct net_res {
  void *listen_comm, *comm; /* comm: the plugin's send or recv comm */
  int dev;
  char *memory; /* both protocols' buffers */
  size_t size;
  void *mhandle[RT_NPROTO];
  struct rt_gdr gdr; /* of RT_SIMPLE, instead of its part of `memory` */
  unsigned char handle[RAIL_NET_HANDLE_SIZE];
  /* The FIFO between program or kernel and proxy; cache lines of their own. */
  RAIL_ALIGNED(64) uint64_t tail;
  RAIL_ALIGNED(64) uint64_t credit;
  RAIL_ALIGNED(64) struct rt_slot slot[RT_STEPS];
  uint64_t step; /* steps of finished operations */
};
#define RES_SIZE RAIL_ROUND_UP(sizeof(struct net_res), (size_t)RT_PAGE)

/* ---- the plugin ------------------------------------------------------------ */

/* The plugin's lines come out through our log. */
RAIL_PRINTF(5, 6)
static void plugin_log(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt,
                       ...) {
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  rail_log_at(level, flags, file, line, "%s", text);
}

/* Times what registering user memory for one operation would cost, on this plugin and machine. Each probe is memory
 * that nothing has registered yet: plugins answer from a cache what is registered already. */
static bool registering_is_cheap(struct net_res *res, struct rail_net *plugin) {
  void *mh = NULL;
  uint64_t best = UINT64_MAX;
  char *probe = mmap(NULL, CHEAP_REG_PROBES * CHEAP_REG_PROBE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (probe == MAP_FAILED) return false;
  for (size_t i = 0; i < CHEAP_REG_PROBES; i++) {
    char *fresh = probe + i * CHEAP_REG_PROBE;
    uint64_t t0 = rail_now_ns();
    if (rail_net_reg_mr(plugin, res->comm, fresh, CHEAP_REG_PROBE, RAIL_PTR_HOST, &mh) != RAIL_OK) {
      best = UINT64_MAX;
      break;
    }
    rail_net_dereg_mr(plugin, res->comm, mh);
    best = RAIL_MIN(best, rail_now_ns() - t0);
  }
  munmap(probe, CHEAP_REG_PROBES * CHEAP_REG_PROBE);
  return best < CHEAP_REG_NS;
}

/* -1: undefined. */
static int traffic_class_of(const struct ncclComm *comm) {
  return comm->config.trafficClass == NCCL_CONFIG_UNDEF_INT ? -1 : comm->config.trafficClass;
}

void rt_net_close(struct ncclComm *comm) {
  if (!comm->net.plugin) return;
  rail_net_finalize(comm->net.plugin, comm->net.ctx);
  rail_net_unload(comm->net.plugin);
  comm->net.plugin = NULL;
}

/* Loads and initialises the plugin (NCCL_NET_PLUGIN, NCCL_NET, config.netName), once per communicator. It is closed
 * again if its devices cannot be used: net->plugin says that they are there, too. */
static rail_result_t open_plugin(struct ncclComm *comm) {
  struct rt_net *net = &comm->net;
  if (net->plugin) return RAIL_OK;
  const struct rail_net_init args = {.comm_id = (uint64_t)(uintptr_t)comm,
                                     .traffic_class = traffic_class_of(comm),
                                     .log = plugin_log,
                                     .net_name = comm->requested_net[0] ? comm->requested_net : NULL};
  RAIL_TRY(rail_net_select(&args, rt_params()->net_fallback ? "socket" : NULL, &net->plugin, &net->ctx));
  const rail_result_t r = rt_net_devices_open(net->plugin, rt_params()->net_force_merge, &net->devices);
  if (r != RAIL_OK) rt_net_close(comm);
  return r;
}

/* ---- setting up --------------------------------------------------------------- */

static bool net_can_connect(const struct rt_peer *a, const struct rt_peer *b) {
  (void)a, (void)b;
  return true;
}

static rail_result_t make_res(struct ncclComm *comm, struct rt_connector *c) {
  const struct rt_params *p = rt_params();
  struct net_res *res = NULL;
  RAIL_TRY(open_plugin(comm));
  if (posix_memalign((void **)&res, RT_PAGE, RES_SIZE) != 0) return RAIL_SYSTEM_ERROR;
  memset(res, 0, sizeof *res);
  c->res = res;
  res->size = rt_slots_size(p->buffsize) + rt_slots_size(p->ll_buffsize);
  const struct rt_net_devices *devices = &comm->net.devices;
  const struct rt_topo_gpu *gpu = &comm->peers[comm->rank].gpu;
  res->dev = devices->dev[rt_topo_nic(gpu, devices->pci, devices->n, comm->local_rank + c->channel)];
  res->memory = mmap(NULL, res->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (res->memory == MAP_FAILED) {
    res->memory = NULL;
    RAIL_WARN("NET: rank %d cannot allocate %zu bytes of buffers for rank %d; lower NCCL_BUFFSIZE", comm->rank,
              res->size, c->peer);
    return RAIL_SYSTEM_ERROR;
  }
  c->host_bytes = res->size;
  struct rt_conn *conn = &c->conn;
  conn->buff[RT_SIMPLE] = res->memory;
  conn->slot_size[RT_SIMPLE] = rt_slot_size(p->buffsize);
  conn->buff[RT_LL] = res->memory + rt_slots_size(p->buffsize);
  conn->slot_size[RT_LL] = rt_slot_size(p->ll_buffsize);
  conn->slot = res->slot;
  conn->tail = &res->tail;
  conn->credit = &res->credit;
  conn->flags = RT_CONN_PROXY;
  /* The sender's slots are free at once; the receiver's are granted step by step. */
  if (c->is_send) res->credit = RT_STEPS;
  return RAIL_OK;
}

/* The connection stands: register the buffers of both protocols. Slots of device plans lie in the GPU's memory if that
 * is possible. */
static rail_result_t register_buffers(struct ncclComm *comm, struct rt_connector *c) {
  const struct rt_params *p = rt_params();
  struct net_res *res = c->res;
  const size_t size[RT_NPROTO] = {rt_slots_size(p->buffsize), rt_slots_size(p->ll_buffsize)};
  for (int proto = 0; proto < RT_NPROTO; proto++)
    RAIL_TRY(rail_net_reg_mr(comm->net.plugin, res->comm, c->conn.buff[proto], size[proto], RAIL_PTR_HOST,
                             &res->mhandle[proto]));
  if (c->is_send && !comm->net.reg_timed) {
    comm->net.cheap_reg = registering_is_cheap(res, comm->net.plugin);
    comm->net.reg_timed = true;
  }
  if (comm->memory != RT_DEVICE_MEMORY) return RAIL_OK;
  const size_t slots = RT_STEPS * (size_t)c->conn.slot_size[RT_SIMPLE];
  rt_gdr_open(comm, res->dev, res->comm, c->is_send, slots, &res->gdr);
  if (res->gdr.slots) c->conn.buff[RT_SIMPLE] = res->gdr.slots;
  if (res->gdr.slots) c->gpu_bytes = slots;
  return RAIL_OK;
}

static rail_result_t recv_setup(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *mine) {
  RAIL_TRY(make_res(comm, c));
  struct net_res *res = c->res;
  RAIL_TRY(rail_net_listen(comm->net.plugin, comm->net.ctx, res->dev, res->handle, &res->listen_comm));
  memcpy(mine->body, res->handle, sizeof res->handle);
  return RAIL_OK;
}

static rail_result_t recv_connect(struct ncclComm *comm, struct rt_connector *c,
                                  const struct rt_connect_record *theirs) {
  (void)theirs;
  struct net_res *res = c->res;
  RAIL_TRY(rail_net_accept(comm->net.plugin, res->listen_comm, &res->comm));
  if (!res->comm) return RAIL_IN_PROGRESS;
  rail_net_close_listen(comm->net.plugin, res->listen_comm);
  res->listen_comm = NULL;
  return register_buffers(comm, c);
}

static rail_result_t send_setup(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *mine) {
  (void)mine;
  return make_res(comm, c);
}

static rail_result_t send_connect(struct ncclComm *comm, struct rt_connector *c,
                                  const struct rt_connect_record *theirs) {
  struct net_res *res = c->res;
  /* The plugin may keep its state in the handle between calls: one copy, always the same memory. */
  static const unsigned char none[RAIL_NET_HANDLE_SIZE];
  if (memcmp(res->handle, none, sizeof none) == 0) memcpy(res->handle, theirs->body, sizeof res->handle);
  RAIL_TRY(rail_net_connect(comm->net.plugin, comm->net.ctx, res->dev, res->handle, traffic_class_of(comm),
                            &res->comm));
  return res->comm ? register_buffers(comm, c) : RAIL_IN_PROGRESS;
}

static void net_free(struct ncclComm *comm, struct rt_connector *c) {
  struct net_res *res = c->res;
  if (!res) return;
  struct rail_net *plugin = comm->net.plugin;
  rt_gdr_close(comm, res->comm, &res->gdr);
  for (int proto = 0; proto < RT_NPROTO; proto++)
    if (res->mhandle[proto]) rail_net_dereg_mr(plugin, res->comm, res->mhandle[proto]);
  if (c->is_send)
    rail_net_close_send(plugin, res->comm);
  else
    rail_net_close_recv(plugin, res->comm);
  if (res->listen_comm) rail_net_close_listen(plugin, res->listen_comm);
  if (res->memory) munmap(res->memory, res->size);
  free(res);
  c->res = NULL;
}

static rail_result_t net_reg(struct ncclComm *comm, struct rt_connector *c, void *data, size_t size, void **mhandle) {
  struct net_res *res = c->res;
  return rail_net_reg_mr(comm->net.plugin, res->comm, data, size, RAIL_PTR_HOST, mhandle);
}

static void net_dereg(struct ncclComm *comm, struct rt_connector *c, void *mhandle) {
  struct net_res *res = c->res;
  rail_net_dereg_mr(comm->net.plugin, res->comm, mhandle);
}

static int net_ranges(const struct rt_connector *c, struct rt_range *out) {
  struct net_res *res = c->res;
  out[0] = (struct rt_range){res, RES_SIZE};
  out[1] = (struct rt_range){res->memory, RAIL_ROUND_UP(res->size, (size_t)RT_PAGE)};
  return 2;
}

/* ---- moving steps: the proxy's side of the FIFO -------------------------------- */

/* A step's memory, and its registration with the plugin. */
struct net_buffer {
  void *data, *mhandle;
};

static bool in_gpu(const struct net_res *res, const struct rt_proxy_op *op) {
  return res->gdr.slots && op->proto == RT_SIMPLE;
}

static struct net_buffer buffer_of(const struct rt_connector *c, const struct rt_proxy_op *op, uint64_t step) {
  const struct net_res *res = c->res;
  const struct rt_slot *slot = &res->slot[step % RT_STEPS];
  if (slot->ptr) return (struct net_buffer){slot->ptr, slot->mhandle};
  return (struct net_buffer){rt_conn_slot_buff(&c->conn, op->proto, step),
                             in_gpu(res, op) ? res->gdr.mhandle : res->mhandle[op->proto]};
}

/* Hands the next step to the plugin. RAIL_IN_PROGRESS: it takes none now. */
static rail_result_t post(struct ncclComm *comm, struct rt_connector *c, struct rt_proxy_op *op) {
  struct net_res *res = c->res;
  uint64_t step = op->base + op->posted;
  const struct rt_slot *slot = &res->slot[step % RT_STEPS];
  struct net_buffer p = buffer_of(c, op, step);
  void **request = &op->requests[op->posted % RT_STEPS];
  *request = NULL;
  if (c->is_send) {
    RAIL_TRY(rail_net_isend(comm->net.plugin, res->comm, p.data, (size_t)slot->bytes, comm->rank, p.mhandle, request));
  } else {
    size_t capacity = slot->ptr ? (size_t)slot->capacity : (size_t)c->conn.slot_size[op->proto];
    int tag = c->peer;
    RAIL_TRY(rail_net_irecv(comm->net.plugin, res->comm, 1, &p.data, &capacity, &tag, &p.mhandle, request));
  }
  if (!*request) return RAIL_IN_PROGRESS;
  op->posted++;
  return RAIL_OK;
}

/* Tests the oldest send, as NCCL does, and returns its slot to the producer when the plugin has finished it. */
static rail_result_t test_send(struct ncclComm *comm, struct rt_connector *c, struct rt_proxy_op *op) {
  struct net_res *res = c->res;
  int done = 0, bytes = 0;
  RAIL_TRY(rail_net_test(comm->net.plugin, op->requests[op->done % RT_STEPS], &done, &bytes));
  if (!done) return RAIL_IN_PROGRESS;
  uint64_t step = op->base + op->done++;
  rt_publish(&res->credit, step + 1 + RT_STEPS);
  return RAIL_OK;
}

/* What the plugin said of a flush. */
static rail_result_t flushed(struct ncclComm *comm, const struct rt_connector *c, rail_result_t r) {
  if (r != RAIL_OK && r != RAIL_IN_PROGRESS)
    RAIL_WARN("NET: rank %d: %s cannot flush what came from rank %d into the memory of CUDA device %d (%s); "
              "NCCL_NET_GDR_LEVEL=LOC receives into host memory",
              comm->rank, rail_net_name(comm->net.plugin), c->peer, comm->gpu.ordinal, rail_result_name((int)r));
  return r;
}

/* Tests the oldest receive that has not finished. When it has, the request of its flush replaces its own. */
static rail_result_t test_recv(struct ncclComm *comm, struct rt_connector *c, struct rt_proxy_op *op) {
  struct net_res *res = c->res;
  void **request = &op->requests[op->received % RT_STEPS];
  int done = 0, bytes = 0;
  RAIL_TRY(rail_net_test(comm->net.plugin, *request, &done, &bytes));
  if (!done) return RAIL_IN_PROGRESS;
  uint64_t step = op->base + op->received++;
  *request = NULL;
  res->slot[step % RT_STEPS].bytes = (uint64_t)bytes;
  if (bytes == 0 || !in_gpu(res, op) || !res->gdr.flush) return RAIL_OK;
  struct net_buffer p = buffer_of(c, op, step);
  return flushed(comm, c, rail_net_iflush(comm->net.plugin, res->comm, 1, &p.data, &bytes, &p.mhandle, request));
}

/* Publishes the oldest received step to the consumer, when it is flushed or needs no flush. */
static rail_result_t publish_step(struct ncclComm *comm, struct rt_connector *c, struct rt_proxy_op *op) {
  struct net_res *res = c->res;
  void *flush = op->requests[op->done % RT_STEPS];
  int done = 1;
  if (flush) RAIL_TRY(flushed(comm, c, rail_net_test(comm->net.plugin, flush, &done, NULL)));
  if (!done) return RAIL_IN_PROGRESS;
  uint64_t step = op->base + op->done++;
  rt_publish(&res->tail, step + 1);
  return RAIL_OK;
}

/* RAIL_OK: something moved, maybe nothing more. */
static rail_result_t complete(struct ncclComm *comm, struct rt_connector *c, struct rt_proxy_op *op) {
  rail_result_t r = RAIL_OK, moved = RAIL_IN_PROGRESS;
  if (c->is_send) {
    while (op->done < op->posted && (r = test_send(comm, c, op)) == RAIL_OK) moved = RAIL_OK;
    return r == RAIL_OK || r == RAIL_IN_PROGRESS ? moved : r;
  }
  while (op->received < op->posted && (r = test_recv(comm, c, op)) == RAIL_OK) moved = RAIL_OK;
  if (r != RAIL_OK && r != RAIL_IN_PROGRESS) return r;
  while (op->done < op->received && (r = publish_step(comm, c, op)) == RAIL_OK) moved = RAIL_OK;
  return r == RAIL_OK || r == RAIL_IN_PROGRESS ? moved : r;
}

static rail_result_t net_progress(struct ncclComm *comm, struct rt_connector *c, struct rt_proxy_op *op) {
  struct net_res *res = c->res;
  /* Steps that the producer has filled, or for which the consumer has said where the receive shall land. */
  const uint64_t *ready = c->is_send ? &res->tail : &res->credit;
  rail_result_t r = RAIL_OK, moved = RAIL_IN_PROGRESS;
  rt_tsan_acquire_steps();
  if (!op->started) {
    op->base = res->step;
    op->started = true;
  }
  while (op->posted < op->nsteps && op->posted < op->done + RT_STEPS && rt_observe(ready) > op->base + op->posted &&
         (r = post(comm, c, op)) == RAIL_OK)
    moved = RAIL_OK;
  if (r != RAIL_OK && r != RAIL_IN_PROGRESS) return r;
  r = complete(comm, c, op);
  if (r != RAIL_OK && r != RAIL_IN_PROGRESS) return r;
  if (r == RAIL_OK) moved = RAIL_OK;
  if (op->done == op->nsteps) res->step = op->base + op->nsteps;
  return moved;
}

const struct rt_transport rt_net_transport = {
    .name = "NET",
    .can_connect = net_can_connect,
    .send = {.setup = send_setup,
             .connect = send_connect,
             .free = net_free,
             .progress = net_progress,
             .reg = net_reg,
             .dereg = net_dereg,
             .ranges = net_ranges},
    .recv = {.setup = recv_setup,
             .connect = recv_connect,
             .free = net_free,
             .progress = net_progress,
             .reg = net_reg,
             .dereg = net_dereg,
             .ranges = net_ranges},
};
