/* SPDX-License-Identifier: Apache-2.0
 *
 * P2P: as SHM, but the slots of a device's communicator lie in a GPU's memory that both ranks' kernels reach, an area.
 * It lies in the receiver's GPU; where receivers read, the slots of Simple lie in the sender's. Each side offers its part
 * in the segment, the other takes it (rt_area.h), while they connect. When one of them cannot, kernels use the segment's
 * slots, as those of a communicator on host memory do.
 */
#include <string.h>

#include "common/base/log.h"
#include "core/comm/rt_comm.h"
#include "core/comm/rt_param.h"
#include "core/transport/rt_shm.h"

struct p2p_res {
  struct rt_shm_end shm; /* first: rt_shm.h */
  struct ncclComm *comm;
  enum rt_distance farthest;
  bool read;
  struct rt_area *own;
  struct rt_area_view theirs;
  bool offered, said; /* our part is offered, or will never be; a refusal was logged */
};

static bool p2p_can_connect(const struct rt_peer *a, const struct rt_peer *b) {
  return rt_shm_can_connect(a, b) && a->has_gpu && b->has_gpu && a->p2p_level != RT_LOC &&
         b->p2p_level != RT_LOC;
}

/* ---- what lies where --------------------------------------------------------------------- */

/* Bytes of a protocol's slots; LL128's only where it was asked for. */
static size_t slots_size(int proto) {
  const struct rt_params *p = rt_params();
  if (proto == RT_SIMPLE) return RT_STEPS * rt_slot_size(p->buffsize);
  if (proto == RT_LL) return RT_STEPS * rt_slot_size(p->ll_buffsize);
  return rt_func_mask_any(rt_proto_masks(p->proto), RD_LL128) ? RT_STEPS * rt_ll128_slot_size(p->buffsize) : 0;
}

/* In the side's area? */
static bool lies_there(const struct p2p_res *res, int proto, bool sender) {
  return (proto == RT_SIMPLE && res->read) == sender;
}

/* Of a side's area; 0: it has none. */
static size_t area_size(const struct p2p_res *res, bool sender) {
  size_t size = 0;
  for (int proto = 0; proto <= RD_LL128; proto++)
    if (lies_there(res, proto, sender)) size += RAIL_ROUND_UP(slots_size(proto), 128u);
  return size;
}

static void bind_area(const struct p2p_res *res, struct rt_conn *conn, char *base, bool sender) {
  for (int proto = 0; proto <= RD_LL128; proto++) {
    if (!lies_there(res, proto, sender) || slots_size(proto) == 0) continue;
    conn->buff[proto] = base;
    base += RAIL_ROUND_UP(slots_size(proto), 128u);
  }
}

/* ---- agreeing ------------------------------------------------------------------------------ */

static void say_refused(struct p2p_res *res, const struct rt_connector *c, const char *why) {
  if (!res->said)
    RAIL_INFO(RAIL_SUB_INIT, "P2P: rank %d and rank %d use shared memory of the host on channel %d: %s",
              res->comm->rank, c->peer, c->channel, why);
  res->said = true;
}

/* Makes and offers this side's part. */
static void offer_own(struct rt_connector *c) {
  struct p2p_res *res = c->res;
  struct ncclComm *comm = res->comm;
  struct rt_area_offer *offer = &res->shm.segment->offer[c->is_send];
  size_t size = area_size(res, c->is_send);
  char why[RT_WHY];
  res->offered = true;
  if (size) res->own = rt_area_make(comm, c->peer, size, offer, why);
  if (size && !res->own) say_refused(res, c, why);
  if (res->own)
    rt_area_publish(offer);
  else
    rt_area_withhold(offer);
}

static void take_theirs(struct rt_connector *c) {
  struct p2p_res *res = c->res;
  struct rt_area_offer *offer = &res->shm.segment->offer[!c->is_send];
  char why[RT_WHY];
  if (!rt_area_take(res->comm, offer, area_size(res, !c->is_send), c->peer, res->farthest, &res->theirs, why)) {
    say_refused(res, c, why);
    return;
  }
  rt_area_use(&res->theirs, offer);
}

/* Has the other side said what becomes of the offer, if there is one? */
static bool answered(enum rt_offer_state state) { return state > RT_OFFER_TAKEN; }

/* Of the area that LL128's lines come in by: are they moved as a whole? */
static bool lines_are_whole(const struct rt_area_offer *receivers) {
  return rt_offer_state(receivers) == RT_OFFER_USED && receivers->path <= RT_NVL;
}

/* Goes as far as it can; true when both sides know where the slots lie. */
static bool agree(struct rt_connector *c) {
  struct p2p_res *res = c->res;
  struct rt_shm_segment *seg = res->shm.segment;
  struct rt_area_offer *own = &seg->offer[c->is_send], *theirs = &seg->offer[!c->is_send];
  if (!res->offered) offer_own(c);
  if (rt_offer_state(theirs) == RT_OFFER_OFFERED) take_theirs(c);
  if (!answered(rt_offer_state(own)) || !answered(rt_offer_state(theirs))) return false;
  if (rt_offer_state(own) == RT_OFFER_REFUSED) say_refused(res, c, "the other rank cannot use this one's GPU memory");
  bool used = rt_offer_state(own) == RT_OFFER_USED;
  if (used) bind_area(res, &c->conn, rt_area_base(res->own), c->is_send);
  if (res->theirs.base) bind_area(res, &c->conn, res->theirs.base, !c->is_send);
  if (lines_are_whole(&seg->offer[RT_SHM_RECV])) c->conn.flags &= ~RT_CONN_PARTED;
  c->in_gpu = used || res->theirs.base;
  if (c->in_gpu)
    RAIL_INFO(RAIL_SUB_INIT, "P2P: rank %d channel %d %s rank %d: %s%s", res->comm->rank, c->channel,
              c->is_send ? "to" : "from", c->peer, rt_way_text((used ? own : theirs)->to.way),
              res->read ? ", the receiver reads" : "");
  return true;
}

/* ---- the transport ---------------------------------------------------------------------------- */

static rail_result_t begin_setup(struct ncclComm *comm, struct rt_connector *c) {
  const struct rt_peer *me = &comm->peers[comm->rank], *peer = &comm->peers[c->peer];
  struct p2p_res *res = c->res;
  res->comm = comm;
  res->farthest = (enum rt_distance)RAIL_MIN(me->p2p_level, peer->p2p_level);
  res->read = me->p2p_read && peer->p2p_read;
  return RAIL_OK;
}

static rail_result_t recv_setup(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *mine) {
  RAIL_TRY(rt_shm_recv_setup(comm, c, mine, sizeof(struct p2p_res)));
  return begin_setup(comm, c);
}

static rail_result_t send_setup(struct ncclComm *comm, struct rt_connector *c, struct rt_connect_record *mine) {
  (void)mine;
  RAIL_TRY(rt_shm_send_setup(c, sizeof(struct p2p_res)));
  return begin_setup(comm, c);
}

static rail_result_t connect_device(struct rt_connector *c, const struct rt_connect_record *theirs) {
  const struct p2p_res *res = c->res;
  if (res->comm->memory != RT_DEVICE_MEMORY || theirs->memory != RT_DEVICE_MEMORY) return RAIL_OK;
  return agree(c) ? RAIL_OK : RAIL_IN_PROGRESS;
}

static rail_result_t recv_connect(struct ncclComm *comm, struct rt_connector *c,
                                  const struct rt_connect_record *theirs) {
  (void)comm;
  RAIL_TRY(rt_shm_recv_connect(c));
  return connect_device(c, theirs);
}

static rail_result_t send_connect(struct ncclComm *comm, struct rt_connector *c,
                                  const struct rt_connect_record *theirs) {
  RAIL_TRY(rt_shm_send_connect(comm, c, theirs));
  rt_shm_attached(c);
  return connect_device(c, theirs);
}

static void p2p_free(struct ncclComm *comm, struct rt_connector *c) {
  struct p2p_res *res = c->res;
  bool kept = false;
  if (res && res->shm.segment) {
    struct rt_area_offer *offers = res->shm.segment->offer;
    struct rt_range shared;
    rt_shm_ranges(c, &shared);
    rt_area_return(&res->theirs, &offers[!c->is_send]);
    rt_shm_leave(c); /* before somebody else may unmap the segment */
    if (res->own) kept = rt_area_leave(res->own, &offers[c->is_send], comm->peers[c->peer].pid, shared);
  }
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
