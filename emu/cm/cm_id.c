/* SPDX-License-Identifier: Apache-2.0
 * Ids: made, bound, resolved, destroyed; their options. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/sa.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "emu/cm/cm.h"
#include "emu/rail_emu.h"

/* ---- made, destroyed ---------------------------------------------------------- */

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out, void *context,
                   enum rdma_port_space ps) {
  if (ps != RDMA_PS_TCP && ps != RDMA_PS_UDP && ps != RDMA_PS_IB) return cm_result(EINVAL);
  struct cm_id *id = calloc(1, sizeof *id);
  struct rdma_event_channel *own = channel ? NULL : rdma_create_event_channel();
  if (!id || (!channel && !own)) {
    if (own) rdma_destroy_event_channel(own);
    free(id);
    return cm_result(ENOMEM);
  }
  id->id = (struct rdma_cm_id){.channel = channel ? channel : own, .context = context, .ps = ps,
                               .qp_type = ps == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC};
  id->sync = own;
  id->qkey = RDMA_UDP_QKEY;
  id->ack_timeout = CM_ACK_TIMEOUT;
  if (getrandom(&id->psn, sizeof id->psn, 0) != sizeof id->psn) id->psn = 1;
  id->psn &= 0xffffff;
  pthread_mutex_lock(&cm.lock);
  cm_add(id);
  pthread_mutex_unlock(&cm.lock);
  *out = &id->id;
  return 0;
}

/* Requests that nobody has seen go with the id that listens. The closed socket tells the peer of a connection. */
int rdma_destroy_id(struct rdma_cm_id *ibv) {
  struct cm_id *id = cm_id_of(ibv), *next;
  if (ibv->event) rdma_ack_cm_event(ibv->event);
  pthread_mutex_lock(&cm.lock);
  cm_unwatch(id);
  id->deadline = 0;
  cm_events_withdraw(id);
  for (struct cm_id *other = LIST_FIRST(&cm.ids); other; other = next) {
    next = LIST_NEXT(other, link);
    if (other->listener == id) cm_free(other);
  }
  cm_wait_acked(id);
  cm_free(id);
  pthread_mutex_unlock(&cm.lock);
  return 0;
}

/* ---- addresses ------------------------------------------------------------------ */

/* Takes the address and its port; under the lock. */
static int bind_to(struct cm_id *id, const struct sockaddr *addr) {
  struct cm_place place;
  if (id->is_bound || id->state != CM_IDLE) return EINVAL;
  if (!cm_addr_read(addr, &id->src)) return EAFNOSUPPORT;
  bool any = cm_addr_is_any(&id->src);
  if (!any && !cm_place_of(&id->src, &place)) return EADDRNOTAVAIL;
  int err = cm_wire_bind(id);
  if (err) return err;
  id->is_bound = true;
  id->src_is_any = any;
  if (!any) cm_enter(id, &place);
  cm_addr_write(&id->src, addr->sa_family == AF_INET, &id->id.route.addr.src_storage);
  return 0;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr) {
  pthread_mutex_lock(&cm.lock);
  int err = bind_to(cm_id_of(id), addr);
  pthread_mutex_unlock(&cm.lock);
  return cm_result(err);
}

static void addr_lost(struct cm_id *id) {
  id->state = CM_IDLE;
  cm_report(id, RDMA_CM_EVENT_ADDR_ERROR, -ETIMEDOUT);
}

static void addr_resolved(struct cm_id *id) {
  id->state = CM_ADDR_RESOLVED;
  cm_report(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
}

/* The port to leave by: the one that the id is bound to, or that to which the address belongs itself. 0 or errno. */
static int route_to(struct cm_id *id, struct cm_place *to) {
  struct rdma_addr *a = &id->id.route.addr;
  bool ipv4 = a->dst_addr.sa_family == AF_INET;
  if (!cm_place_of(&id->dst, to)) return EHOSTUNREACH;
  if (id->src_is_any || !id->is_bound) {
    id->src.ip = id->dst.ip;
    if (!id->is_bound) {
      int err = cm_wire_bind(id);
      if (err) return err;
      id->is_bound = true;
    }
    cm_enter(id, to);
    cm_addr_write(&id->src, ipv4, &a->src_storage);
  }
  a->addr.ibaddr.dgid = to->gid;
  return cm_place_is_up(&id->place) ? 0 : ENETUNREACH;
}

int rdma_resolve_addr(struct rdma_cm_id *ibv, struct sockaddr *src, struct sockaddr *dst, int timeout_ms) {
  struct cm_id *id = cm_id_of(ibv);
  struct cm_place to;
  long us = 0;
  pthread_mutex_lock(&cm.lock);
  int err = id->state != CM_IDLE || !dst ? EINVAL : 0;
  if (!err && src && !id->is_bound) err = bind_to(id, src);
  if (!err && !cm_addr_read(dst, &id->dst)) err = EAFNOSUPPORT;
  if (!err) {
    cm_addr_write(&id->dst, dst->sa_family == AF_INET, &ibv->route.addr.dst_storage);
    id->state = CM_RESOLVING_ADDR;
    int why = route_to(id, &to);
    int fault = why ? RAIL_EMU_CM_REJECT : rail_emu_cm_fault("addr_resolved", &us);
    if (fault == RAIL_EMU_CM_LOST) err = cm_set_deadline(id, (uint64_t)timeout_ms, addr_lost);
    else if (fault == RAIL_EMU_CM_LATE) err = cm_set_deadline(id, (uint64_t)us / 1000, addr_resolved);
    else if (fault == RAIL_EMU_CM_REJECT) cm_report(id, RDMA_CM_EVENT_ADDR_ERROR, -(why ? why : EHOSTUNREACH));
    else addr_resolved(id);
    if (fault == RAIL_EMU_CM_REJECT) id->state = CM_IDLE;
  }
  pthread_mutex_unlock(&cm.lock);
  return err ? cm_result(err) : cm_complete(id);
}

static void route_lost(struct cm_id *id) {
  id->state = CM_ADDR_RESOLVED;
  cm_report(id, RDMA_CM_EVENT_ROUTE_ERROR, -ETIMEDOUT);
}

static void route_resolved(struct cm_id *id) {
  id->state = CM_ROUTE_RESOLVED;
  cm_report(id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
}

int rdma_resolve_route(struct rdma_cm_id *ibv, int timeout_ms) {
  struct cm_id *id = cm_id_of(ibv);
  long us = 0;
  pthread_mutex_lock(&cm.lock);
  int err = id->state != CM_ADDR_RESOLVED ? EINVAL : 0;
  if (!err && !id->path) id->path = calloc(1, sizeof *id->path);
  if (!err && !id->path) err = ENOMEM;
  if (!err) {
    const struct rdma_ib_addr *a = &ibv->route.addr.addr.ibaddr;
    *id->path = (struct ibv_sa_path_rec){.dgid = a->dgid, .sgid = a->sgid, .hop_limit = 64, .reversible = 1,
                                         .numb_path = 1, .pkey = a->pkey, .mtu_selector = 2,
                                         .mtu = (uint8_t)id->place.attr.active_mtu, .packet_life_time_selector = 2,
                                         .packet_life_time = CM_ACK_TIMEOUT - 1};
    ibv->route.path_rec = id->path;
    ibv->route.num_paths = 1;
    id->state = CM_RESOLVING_ROUTE;
    int fault = rail_emu_cm_fault("route_resolved", &us);
    if (fault == RAIL_EMU_CM_LOST) {
      err = cm_set_deadline(id, (uint64_t)timeout_ms, route_lost);
    } else if (fault == RAIL_EMU_CM_LATE) {
      err = cm_set_deadline(id, (uint64_t)us / 1000, route_resolved);
    } else if (fault == RAIL_EMU_CM_REJECT) {
      id->state = CM_ADDR_RESOLVED;
      cm_report(id, RDMA_CM_EVENT_ROUTE_ERROR, -EHOSTUNREACH);
    } else {
      route_resolved(id);
    }
  }
  pthread_mutex_unlock(&cm.lock);
  return err ? cm_result(err) : cm_complete(id);
}

/* ---- options ---------------------------------------------------------------------- */

/* ACK timeout and type of service are attributes of the queue pair; there is no port that is in use for a while. */
int rdma_set_option(struct rdma_cm_id *ibv, int level, int name, void *value, size_t size) {
  struct cm_id *id = cm_id_of(ibv);
  int number = 0;
  if (level != RDMA_OPTION_ID) return cm_result(ENOSYS);
  bool is_byte = name == RDMA_OPTION_ID_TOS || name == RDMA_OPTION_ID_ACK_TIMEOUT;
  if (size != (is_byte ? 1 : sizeof number)) return cm_result(EINVAL);
  memcpy(&number, value, size);
  switch (name) {
    case RDMA_OPTION_ID_TOS: id->tos = (uint8_t)number; return 0;
    case RDMA_OPTION_ID_REUSEADDR:
    case RDMA_OPTION_ID_AFONLY: return 0;
    case RDMA_OPTION_ID_ACK_TIMEOUT:
      if (number > 31) return cm_result(EINVAL);
      pthread_mutex_lock(&cm.lock);
      id->ack_timeout = (uint8_t)number;
      pthread_mutex_unlock(&cm.lock);
      return 0;
    default: return cm_result(ENOSYS);
  }
}

/* What the peer said of its device comes with its REQ or REP, what this end says leaves with its own. */
int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *ece) {
  if (!ece || !ece->vendor_id || !ece->options) return cm_result(EINVAL);
  pthread_mutex_lock(&cm.lock);
  cm_id_of(id)->ece = *ece;
  pthread_mutex_unlock(&cm.lock);
  return 0;
}

int rdma_get_remote_ece(struct rdma_cm_id *ibv, struct ibv_ece *ece) {
  const struct cm_id *id = cm_id_of(ibv);
  if (!ece || ece->comp_mask) return cm_result(EINVAL);
  pthread_mutex_lock(&cm.lock);
  ece->vendor_id = id->peer.ece_vendor;
  ece->options = id->peer.ece_options;
  pthread_mutex_unlock(&cm.lock);
  return 0;
}
