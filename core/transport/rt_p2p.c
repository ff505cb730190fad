/* SPDX-License-Identifier: Apache-2.0
 *
 * P2P: as SHM, but the slots of a device's communicator lie in GPU memory that both ranks' kernels reach. It lies in
 * the receiver's GPU; where receivers read, the slots of Simple lie in the sender's. Each side exports its part in its
 * connect record; the other imports it, and says in the segment whether that worked. If it did not, or a communicator
 * works on host memory, kernels use the segment's slots.
 */
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "core/comm/rt_comm.h"
#include "core/comm/rt_param.h"
#include "core/gpu/rt_export.h"
#include "core/transport/rt_shm.h"

/* What an importer reports to the owner. */
enum rt_import_state { RT_IMPORT_NONE, RT_IMPORT_OPENING, RT_IMPORT_READY, RT_IMPORT_REFUSED };

struct p2p_res {
  struct rt_shm_end shm; /* first: rt_shm.h */
  enum rt_distance farthest;
  bool read;
  struct rt_export *own; /* NULL: nothing was exported */
  uint32_t own_type;
  struct rt_import theirs;
  bool tried, refused; /* to import theirs; a refusal was logged */
};

/* The record's body. */
struct p2p_record {
  struct rt_shm_record shm; /* first: the receiver's */
  struct rt_export_record memory;
};
_Static_assert(sizeof(struct p2p_record) <= sizeof((struct rt_connect_record){0}.body), "it fits");

static bool p2p_can_connect(const struct rt_peer *a, const struct rt_peer *b) {
  return rt_shm_can_connect(a, b) && a->has_gpu && b->has_gpu && a->p2p_level != RT_LOC &&
         b->p2p_level != RT_LOC;
}

/* ---- which slots lie where ---------------------------------------------------------------- */

/* Bytes of a protocol's slots; LL128's only where it was asked for. */
static size_t slots_size(int proto) {
  const struct rt_params *p = rt_params();
  if (proto == RT_SIMPLE) return rt_slots_size(p->buffsize);
  if (proto == RT_LL) return rt_slots_size(p->ll_buffsize);
  return rt_func_mask_any(rt_proto_masks(p->proto), RD_LL128) ? RT_STEPS * rt_ll128_slot_size(p->buffsize) : 0;
}

/* In memory that this side exports? */
static bool lies_there(const struct p2p_res *res, int proto, bool sender) {
  return (proto == RT_SIMPLE && res->read) == sender;
}

/* Of what a side exports; 0: nothing. */
static size_t memory_size(const struct p2p_res *res, bool sender) {
  size_t size = 0;
  for (int proto = 0; proto <= RD_LL128; proto++)
    if (lies_there(res, proto, sender)) size += RAIL_ROUND_UP(slots_size(proto), 128u);
  return size;
}

static void bind_memory(const struct p2p_res *res, struct rt_conn *conn, char *base, bool sender) {
  for (int proto = 0; proto <= RD_LL128; proto++) {
    if (!lies_there(res, proto, sender) || slots_size(proto) == 0) continue;
    conn->buff[proto] = base;
    base += RAIL_ROUND_UP(slots_size(proto), 128u);
  }
}

/* ---- exporting and importing -------------------------------------------------------------- */

static void log_refusal(const struct ncclComm *comm, const struct rt_connector *c, const char *why) {
  struct p2p_res *res = c->res;
  if (!res->refused)
    RAIL_INFO(RAIL_SUB_INIT, "P2P: rank %d and rank %d use shared memory of the host on channel %d: %s", comm->rank,
              c->peer, c->channel, why);
  res->refused = true;
}

static void export_own(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *mine) {
  struct p2p_res *res = c->res;
  const size_t size = memory_size(res, c->is_send);
  struct p2p_record record;
  char why[RT_WHY];
  if (comm->memory != RT_DEVICE_MEMORY || size == 0) return;
  memcpy(&record, mine->body, sizeof record);
  res->own = rt_export_make(comm, c->peer, size, &record.memory, why);
  res->own_type = record.memory.type;
  if (!res->own) log_refusal(comm, c, why);
  if (res->own) c->gpu_bytes = size;
  memcpy(mine->body, &record, sizeof record);
}

/* An owner that leaves sets `left`, then looks at the state; here it is the other way round. So either the owner sees
 * that its memory is imported, or it is not imported. */
static void import_theirs(struct ncclComm *comm, struct rt_connector *c, const struct rt_connect_record *theirs) {
  struct p2p_res *res = c->res;
  struct rt_shm_segment *seg = res->shm.segment;
  uint32_t *state = &seg->import[!c->is_send];
  struct p2p_record record;
  char why[RT_WHY];
  memcpy(&record, theirs->body, sizeof record);
  if (res->tried || record.memory.type == RT_EXPORT_NONE) return;
  res->tried = true;
  snprintf(why, sizeof why, "the other rank has ended the connection");
  __atomic_store_n(state, RT_IMPORT_OPENING, __ATOMIC_SEQ_CST);
  bool good =
      !__atomic_load_n(&seg->left[!c->is_send], __ATOMIC_SEQ_CST) &&
      rt_import_open(comm, &record.memory, memory_size(res, !c->is_send), c->peer, res->farthest, &res->theirs, why);
  if (!good) log_refusal(comm, c, why);
  __atomic_store_n(&seg->path[!c->is_send], (uint32_t)res->theirs.path, __ATOMIC_RELAXED);
  __atomic_store_n(state, good ? RT_IMPORT_READY : RT_IMPORT_REFUSED, __ATOMIC_RELEASE);
}

static void bind_all(struct ncclComm *comm, struct rt_connector *c, bool own) {
  struct p2p_res *res = c->res;
  const struct rt_shm_segment *seg = res->shm.segment;
  if (own) bind_memory(res, &c->conn, rt_export_base(res->own), c->is_send);
  if (res->theirs.base) bind_memory(res, &c->conn, res->theirs.base, !c->is_send);
  /* Lines of LL128 come whole within a GPU and over NVLink. The receiver looks at them. */
  if (own && !c->is_send && seg->path[RT_SHM_RECV] <= RT_NVL) c->conn.flags &= ~RT_CONN_TORN;
  c->in_gpu = own || res->theirs.base;
  if (c->in_gpu)
    RAIL_INFO(RAIL_SUB_INIT, "P2P: rank %d channel %d %s rank %d: %s%s", comm->rank, c->channel,
              c->is_send ? "to" : "from", c->peer, rt_export_text(own ? res->own_type : res->theirs.type),
              res->read ? ", the receiver reads" : "");
}

/* When both sides have the segment. */
static rail_result_t connect_memory(struct ncclComm *comm, struct rt_connector *c,
                                    const struct rt_connect_record *theirs) {
  struct p2p_res *res = c->res;
  if (comm->memory != RT_DEVICE_MEMORY || theirs->memory != RT_DEVICE_MEMORY) return RAIL_OK;
  import_theirs(comm, c, theirs);
  uint32_t own =
      res->own ? __atomic_load_n(&res->shm.segment->import[c->is_send], __ATOMIC_ACQUIRE) : RT_IMPORT_REFUSED;
  if (own == RT_IMPORT_NONE || own == RT_IMPORT_OPENING) return RAIL_IN_PROGRESS;
  if (res->own && own == RT_IMPORT_REFUSED) log_refusal(comm, c, "the other rank cannot use this one's GPU memory");
  bind_all(comm, c, own == RT_IMPORT_READY);
  return RAIL_OK;
}

/* ---- the transport ---------------------------------------------------------------------------- */

static void set_up_memory(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *mine) {
  const struct rt_peer *me = &comm->peers[comm->rank], *peer = &comm->peers[c->peer];
  struct p2p_res *res = c->res;
  res->farthest = (enum rt_distance)RAIL_MIN(me->p2p_level, peer->p2p_level);
  res->read = me->p2p_read && peer->p2p_read;
  export_own(comm, c, mine);
}

static rail_result_t recv_setup(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *mine) {
  RAIL_TRY(rt_shm_recv_setup(comm, c, mine, sizeof(struct p2p_res)));
  set_up_memory(comm, c, mine);
  return RAIL_OK;
}

static rail_result_t send_setup(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *mine) {
  RAIL_TRY(rt_shm_send_setup(c, sizeof(struct p2p_res)));
  set_up_memory(comm, c, mine);
  return RAIL_OK;
}

static rail_result_t recv_connect(struct ncclComm *comm, struct rt_connector *c,
                                  const struct rt_connect_record *theirs) {
  RAIL_TRY(rt_shm_recv_connect(c));
  return connect_memory(comm, c, theirs);
}

static rail_result_t send_connect(struct ncclComm *comm, struct rt_connector *c,
                                  const struct rt_connect_record *theirs) {
  RAIL_TRY(rt_shm_send_connect(comm, c, theirs));
  rt_shm_attached(c);
  return connect_memory(comm, c, theirs);
}

static void p2p_free(struct ncclComm *comm, struct rt_connector *c) {
  struct p2p_res *res = c->res;
  struct rt_range shared = {NULL, 0};
  const uint64_t *closed = NULL; /* without a segment nothing was imported */
  if (!res) return;
  rt_import_close(&res->theirs);
  rt_shm_leave(c);
  if (res->shm.segment) {
    const uint32_t state = __atomic_load_n(&res->shm.segment->import[c->is_send], __ATOMIC_SEQ_CST);
    rt_shm_ranges(c, &shared);
    if (state == RT_IMPORT_OPENING || state == RT_IMPORT_READY) closed = &res->shm.segment->left[!c->is_send];
  }
  bool kept = res->own && rt_export_free(res->own, comm->peers[c->peer].pid, closed, shared);
  rt_shm_free(c, kept);
}

const struct rt_transport rt_p2p_transport = {
    .name = "P2P",
    .can_connect = p2p_can_connect,
    .send = {.setup = send_setup,
             .connect = send_connect,
             .free = p2p_free,
             .peer_left = rt_shm_peer_left,
             .ranges = rt_shm_ranges},
    .recv = {.setup = recv_setup,
             .connect = recv_connect,
             .free = p2p_free,
             .peer_left = rt_shm_peer_left,
             .ranges = rt_shm_ranges},
};
