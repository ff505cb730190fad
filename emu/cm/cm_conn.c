/* SPDX-License-Identifier: Apache-2.0
 *
 * A connection, from REQ to its end. Each end has a Unix socket to the other; one that is closed stands for what a
 * kernel does for a program that ends: it rejects, or disconnects. A port that is not active, and a fault, keep
 * messages from arriving. */
#include <errno.h>
#include <infiniband/sa.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "emu/cm/cm.h"
#include "emu/rail_emu.h"

enum { REQ_MS = 10000, BUSY_MS = 20, SIDR_UNSUPPORTED = 1, SIDR_REJECTED = 2 };

static void read_socket(struct cm_id *id);

/* ---- messages out --------------------------------------------------------------- */

static struct cm_message message(const struct cm_id *id, enum cm_type type) {
  return (struct cm_message){.type = (uint8_t)type, .udp = cm_is_udp(id), .mtu = (uint8_t)id->place.attr.active_mtu,
                             .lid = id->place.attr.lid, .gid = id->place.gid, .qpn = id->qpn, .psn = id->psn,
                             .qkey = id->qkey, .responder_resources = id->responder_resources,
                             .initiator_depth = id->initiator_depth, .ece_vendor = id->ece.vendor_id,
                             .ece_options = id->ece.options};
}

static bool put_private(struct cm_message *m, const void *data, uint8_t len, uint8_t most) {
  if (len > most || (len && !data)) return false;
  if (len) memcpy(m->private_data, data, len);
  m->private_len = len;
  return true;
}

static void say(const struct cm_id *id, struct cm_message *m) {
  if (cm_place_is_up(&id->place)) (void)cm_wire_send(id, m);
}

static void send_short(const struct cm_id *id, enum cm_type type, uint8_t reason) {
  struct cm_message m = message(id, type);
  m.reason = reason;
  say(id, &m);
}

/* ---- events ------------------------------------------------------------------------ */

static uint8_t room_for(const struct cm_id *id, enum cm_type type) {
  if (id->place.device->context->device->transport_type == IBV_TRANSPORT_IWARP) return 0;
  if (cm_is_udp(id)) return type == CM_REQ ? CM_PRIVATE_SIDR_REQ : CM_PRIVATE_SIDR_REP;
  return type == CM_REQ ? CM_PRIVATE_REQ : type == CM_REP ? CM_PRIVATE_REP : CM_PRIVATE_REJ;
}

static void report_message(struct cm_id *id, enum rdma_cm_event_type type, int status, const struct cm_message *m) {
  struct cm_event *e = cm_event_alloc(id, type, status);
  if (!e) return;
  uint8_t room = room_for(id, (enum cm_type)m->type), len = m->private_len > room ? m->private_len : room;
  memcpy(e->private_data, m->private_data, m->private_len);
  if (cm_is_udp(id)) {
    e->event.param.ud = (struct rdma_ud_param){
      .private_data = e->private_data, .private_data_len = len, .qp_num = m->qpn, .qkey = m->qkey,
      .ah_attr = {.dlid = m->lid, .port_num = id->place.port, .is_global = 1,
                  .grh = {.dgid = m->gid, .sgid_index = (uint8_t)id->place.gid_index, .hop_limit = 64}}};
  } else {
    e->event.param.conn = (struct rdma_conn_param){
      .private_data = len ? e->private_data : NULL, .private_data_len = len,
      .responder_resources = m->initiator_depth, .initiator_depth = m->responder_resources,
      .flow_control = m->flow_control, .retry_count = m->retry_count, .rnr_retry_count = m->rnr_retry_count,
      .srq = m->srq, .qp_num = m->qpn};
  }
  cm_event_push(e);
}

/* The connection is no more, or never was. */
static void end_with(struct cm_id *id, enum rdma_cm_event_type type, int status) {
  id->state = CM_OVER;
  id->deadline = 0;
  cm_unwatch(id);
  cm_report(id, type, status);
}

static void timewait_over(struct cm_id *id) { cm_report(id, RDMA_CM_EVENT_TIMEWAIT_EXIT, 0); }

static void to_timewait(struct cm_id *id) {
  id->state = CM_OVER;
  cm_unwatch(id);
  (void)cm_set_deadline(id, CM_TIMEWAIT_MS, timewait_over);
}

/* No answer came. */
static void no_answer(struct cm_id *id) {
  if (id->state == CM_DISCONNECTING) {
    cm_report(id, RDMA_CM_EVENT_DISCONNECTED, -ETIMEDOUT);
    to_timewait(id);
    return;
  }
  send_short(id, CM_REJ, CM_REJ_TIMEOUT);
  end_with(id, RDMA_CM_EVENT_UNREACHABLE, -ETIMEDOUT);
}

static int await_answer(struct cm_id *id) {
  return cm_set_deadline(id, (uint64_t)rail_emu_cm_answer_ms(CM_ANSWER_MS), no_answer);
}

/* ---- the active end -------------------------------------------------------------------- */

static void dial(struct cm_id *id) {
  int err = cm_wire_connect(id);
  if (err == EAGAIN && cm_now() < id->dial_until) {
    err = cm_set_deadline(id, BUSY_MS, dial);
    if (!err) return;
  }
  if (err == EAGAIN) err = ETIMEDOUT;
  if (err == ECONNREFUSED && cm_is_udp(id)) {
    end_with(id, RDMA_CM_EVENT_UNREACHABLE, SIDR_UNSUPPORTED);
  } else if (err == ECONNREFUSED) {
    struct cm_message nobody = {.type = CM_REJ};
    id->state = CM_OVER;
    report_message(id, RDMA_CM_EVENT_REJECTED, CM_REJ_INVALID_SERVICE_ID, &nobody);
  } else if (err) {
    end_with(id, RDMA_CM_EVENT_UNREACHABLE, -err);
  } else {
    id->on_readable = read_socket;
    say(id, &id->peer); /* the REQ waited there */
    if (cm_watch(id) != 0 || await_answer(id) != 0) end_with(id, RDMA_CM_EVENT_UNREACHABLE, -ENOMEM);
  }
}

static bool is_valid(const struct cm_id *id, const struct rdma_conn_param *p) {
  uint8_t most = id->place.device->max_resources;
  if (cm_is_udp(id)) return true;
  if (!id->id.qp && !p) return false;
  return !p || ((p->responder_resources == RDMA_MAX_RESP_RES || p->responder_resources <= most) &&
                (p->initiator_depth == RDMA_MAX_INIT_DEPTH || p->initiator_depth <= most));
}

/* What was asked for, but no more than the device, the peer, or a field of 3 bits can have. */
static uint8_t at_most(uint8_t wanted, uint8_t most) { return wanted < most ? wanted : most; }

int rdma_connect(struct rdma_cm_id *ibv, struct rdma_conn_param *p) {
  struct cm_id *id = cm_id_of(ibv);
  pthread_mutex_lock(&cm.lock);
  int err = id->state != CM_ROUTE_RESOLVED || !is_valid(id, p) ? EINVAL : 0;
  if (!err) {
    uint8_t most = id->place.device->max_resources;
    id->responder_resources = at_most(p ? p->responder_resources : RDMA_MAX_RESP_RES, most);
    id->initiator_depth = at_most(p ? p->initiator_depth : RDMA_MAX_INIT_DEPTH, most);
    id->retry_count = at_most(p ? p->retry_count : 7, 7);
    id->rnr_retry_count = at_most(p ? p->rnr_retry_count : 7, 7);
    id->qpn = ibv->qp ? ibv->qp->qp_num : p ? p->qp_num : 0;
    struct cm_message m = message(id, CM_REQ);
    m.src = id->src;
    m.dst = id->dst;
    m.ipv4 = ibv->route.addr.dst_addr.sa_family == AF_INET;
    m.retry_count = id->retry_count;
    m.rnr_retry_count = id->rnr_retry_count;
    m.flow_control = p && p->flow_control;
    m.srq = ibv->qp ? ibv->qp->srq != NULL : p && p->srq;
    bool fits = !p || put_private(&m, p->private_data, p->private_data_len,
                                  cm_is_udp(id) ? CM_PRIVATE_SIDR_REQ : CM_PRIVATE_REQ);
    err = fits ? 0 : EINVAL;
    if (!err) {
      id->peer = m;
      id->state = CM_CONNECTING;
      id->dial_until = cm_now() + (uint64_t)rail_emu_cm_answer_ms(CM_ANSWER_MS);
      dial(id);
    }
  }
  pthread_mutex_unlock(&cm.lock);
  return err ? cm_result(err) : cm_complete(id);
}

static void on_response(struct cm_id *id, const struct cm_message *m) {
  if (id->state != CM_CONNECTING || !id->place.device) return; /* it has one once it connects */
  uint8_t most = id->place.device->max_resources;
  id->deadline = 0;
  id->peer = *m;
  id->ece = (struct ibv_ece){.vendor_id = m->ece_vendor, .options = m->ece_options};
  if (cm_is_udp(id)) {
    id->state = CM_OVER;
    cm_unwatch(id);
    report_message(id, RDMA_CM_EVENT_ESTABLISHED, 0, m);
    return;
  }
  id->initiator_depth = at_most(m->responder_resources, most);
  id->responder_resources = at_most(m->initiator_depth, most);
  id->rnr_retry_count = m->rnr_retry_count;
  id->state = CM_RESPONDED;
  report_message(id, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, m);
}

int rdma_establish(struct rdma_cm_id *ibv) {
  struct cm_id *id = cm_id_of(ibv);
  pthread_mutex_lock(&cm.lock);
  int err = ibv->qp || id->state != CM_RESPONDED ? EINVAL : 0;
  if (!err) {
    send_short(id, CM_RTU, 0);
    id->state = CM_CONNECTED;
  }
  pthread_mutex_unlock(&cm.lock);
  return cm_result(err);
}

/* ---- the passive end --------------------------------------------------------------------- */

static void on_request(struct cm_id *id, const struct cm_message *m) {
  struct cm_id *l = id->listener;
  if (id->state != CM_EMBRYO) return;
  id->deadline = 0;
  if (m->udp != cm_is_udp(l) || !cm_place_of(&m->dst, &id->place) || !cm_place_is_up(&id->place)) {
    id->state = CM_OVER; /* silence; the socket stays open until the other end gives up */
    return;
  }
  cm_enter(id, &id->place);
  if (l->requests >= l->backlog) {
    send_short(id, CM_REJ, CM_REJ_CONSUMER_DEFINED);
    cm_free(id);
    return;
  }
  uint8_t most = id->place.device->max_resources;
  id->peer = *m;
  id->src = m->dst;
  id->dst = m->src;
  cm_addr_write(&id->src, m->ipv4, &id->id.route.addr.src_storage);
  cm_addr_write(&id->dst, m->ipv4, &id->id.route.addr.dst_storage);
  id->id.route.addr.addr.ibaddr.dgid = m->gid;
  id->responder_resources = at_most(m->initiator_depth, most);
  id->initiator_depth = at_most(m->responder_resources, most);
  id->retry_count = m->retry_count;
  id->rnr_retry_count = m->rnr_retry_count;
  id->ece = (struct ibv_ece){.vendor_id = m->ece_vendor, .options = m->ece_options};
  id->state = CM_REQUESTED;
  l->requests++;
  report_message(id, RDMA_CM_EVENT_CONNECT_REQUEST, 0, m);
}

static void read_listener(struct cm_id *l) {
  for (int fd; (fd = cm_wire_accept(l)) >= 0;) {
    struct cm_id *id = calloc(1, sizeof *id);
    if (!id) {
      close(fd);
      continue;
    }
    id->id = (struct rdma_cm_id){.channel = l->id.channel, .context = l->id.context, .ps = l->id.ps,
                                 .qp_type = l->id.qp_type};
    id->listener = l;
    id->state = CM_EMBRYO;
    id->psn = (uint32_t)random() & 0xffffff;
    id->qkey = l->qkey;
    id->ack_timeout = l->ack_timeout;
    id->tos = l->tos;
    id->on_readable = read_socket;
    cm_add(id);
    id->fd = fd;
    if (cm_watch(id) != 0 || cm_set_deadline(id, REQ_MS, cm_free) != 0) cm_free(id);
  }
}

int rdma_listen(struct rdma_cm_id *ibv, int backlog) {
  struct cm_id *id = cm_id_of(ibv);
  pthread_mutex_lock(&cm.lock);
  int err = id->state != CM_IDLE ? EINVAL : 0;
  if (!err && !id->is_bound) {
    id->src_is_any = id->is_bound = true;
    id->src = (struct cm_addr){.port = 0};
    err = cm_wire_bind(id);
    cm_addr_write(&id->src, true, &ibv->route.addr.src_storage);
  }
  if (!err) err = cm_wire_listen(id);
  id->on_readable = read_listener;
  if (!err) err = cm_watch(id);
  if (!err) {
    id->state = CM_LISTENING;
    id->backlog = backlog <= 0 || backlog > CM_MAX_BACKLOG ? CM_MAX_BACKLOG : backlog;
  }
  pthread_mutex_unlock(&cm.lock);
  return cm_result(err);
}

int rdma_accept(struct rdma_cm_id *ibv, struct rdma_conn_param *p) {
  struct cm_id *id = cm_id_of(ibv);
  pthread_mutex_lock(&cm.lock);
  int err = id->state != CM_REQUESTED || !is_valid(id, p) ? EINVAL : 0;
  if (!err) {
    id->responder_resources = at_most(p ? p->responder_resources : RDMA_MAX_RESP_RES, id->responder_resources);
    id->initiator_depth = at_most(p ? p->initiator_depth : RDMA_MAX_INIT_DEPTH, id->initiator_depth);
    id->qpn = ibv->qp ? ibv->qp->qp_num : p ? p->qp_num : 0;
    struct cm_message m = message(id, CM_REP);
    m.flow_control = p && p->flow_control;
    m.rnr_retry_count = at_most(p ? p->rnr_retry_count : 7, 7);
    m.srq = ibv->qp ? ibv->qp->srq != NULL : p && p->srq;
    bool fits = !p || put_private(&m, p->private_data, p->private_data_len,
                                  cm_is_udp(id) ? CM_PRIVATE_SIDR_REP : CM_PRIVATE_REP);
    err = fits ? cm_qp_connect(id) : EINVAL;
    if (!err) {
      id->state = cm_is_udp(id) ? CM_OVER : CM_ACCEPTED;
      say(id, &m);
      if (!cm_is_udp(id)) err = await_answer(id);
    }
  }
  pthread_mutex_unlock(&cm.lock);
  return err || cm_is_udp(id) ? cm_result(err) : cm_complete(id);
}

int rdma_reject(struct rdma_cm_id *ibv, const void *data, uint8_t len) {
  struct cm_id *id = cm_id_of(ibv);
  pthread_mutex_lock(&cm.lock);
  int err = id->state != CM_REQUESTED ? EINVAL : 0;
  if (!err) {
    struct cm_message m = message(id, CM_REJ);
    m.reason = CM_REJ_CONSUMER_DEFINED;
    err = put_private(&m, data, len, cm_is_udp(id) ? CM_PRIVATE_SIDR_REP : CM_PRIVATE_REJ) ? 0 : EINVAL;
    if (!err) {
      say(id, &m);
      id->state = CM_OVER;
    }
  }
  pthread_mutex_unlock(&cm.lock);
  return cm_result(err);
}

static void on_established(struct cm_id *id) {
  if (id->state != CM_ACCEPTED) return;
  id->deadline = 0;
  id->state = CM_CONNECTED;
  cm_report(id, RDMA_CM_EVENT_ESTABLISHED, 0);
}

/* The program has seen bytes, so the connection is there, whatever became of the RTU. */
int rdma_notify(struct rdma_cm_id *ibv, enum ibv_event_type event) {
  if (event != IBV_EVENT_COMM_EST) return 0;
  pthread_mutex_lock(&cm.lock);
  on_established(cm_id_of(ibv));
  pthread_mutex_unlock(&cm.lock);
  return 0;
}

/* ---- the end --------------------------------------------------------------------------------- */

int rdma_disconnect(struct rdma_cm_id *ibv) {
  struct cm_id *id = cm_id_of(ibv);
  int err = 0;
  pthread_mutex_lock(&cm.lock);
  bool has_event = id->state != CM_DISCONNECTING && id->state != CM_OVER;
  switch (id->state) {
    case CM_RESPONDED:
    case CM_ACCEPTED:
    case CM_CONNECTED:
      cm_qp_error(id);
      send_short(id, CM_DREQ, 0);
      id->state = CM_DISCONNECTING;
      err = await_answer(id);
      break;
    case CM_DISCONNECTED:
      cm_qp_error(id);
      send_short(id, CM_DREP, 0);
      to_timewait(id);
      break;
    case CM_DISCONNECTING:
    case CM_OVER: cm_qp_error(id); break;
    default: err = EINVAL; break;
  }
  pthread_mutex_unlock(&cm.lock);
  return err || !has_event ? cm_result(err) : cm_complete(id);
}

static void on_disconnect(struct cm_id *id, bool is_request) {
  bool was = id->state == CM_CONNECTED || id->state == CM_ACCEPTED || id->state == CM_RESPONDED;
  if (id->state != CM_DISCONNECTING && !(was && is_request)) return;
  id->deadline = 0;
  cm_report(id, RDMA_CM_EVENT_DISCONNECTED, 0);
  if (was) {
    id->state = CM_DISCONNECTED;
    return;
  }
  if (is_request) send_short(id, CM_DREP, 0);
  to_timewait(id);
}

static void on_reject(struct cm_id *id, const struct cm_message *m) {
  if (id->state != CM_CONNECTING && id->state != CM_RESPONDED && id->state != CM_ACCEPTED &&
      id->state != CM_REQUESTED)
    return;
  id->deadline = 0;
  id->state = CM_OVER;
  cm_unwatch(id);
  if (cm_is_udp(id)) report_message(id, RDMA_CM_EVENT_UNREACHABLE, SIDR_REJECTED, m);
  else report_message(id, RDMA_CM_EVENT_REJECTED, m->reason, m);
}

/* The other end's socket is closed: its program is, or has destroyed the id. */
static void on_gone(struct cm_id *id) {
  const struct cm_message rej = {.type = CM_REJ, .reason = CM_REJ_CONSUMER_DEFINED};
  cm_unwatch(id);
  if (id->state == CM_EMBRYO || (id->listener && id->state == CM_OVER)) {
    cm_free(id); /* nobody has seen it */
    return;
  }
  on_reject(id, &rej);
  if (id->state == CM_CONNECTED || id->state == CM_DISCONNECTING) {
    cm_report(id, RDMA_CM_EVENT_DISCONNECTED, 0);
    to_timewait(id);
  } else if (id->state == CM_DISCONNECTED) {
    to_timewait(id);
  }
}

/* ---- messages in -------------------------------------------------------------------------------- */

static void carry_out(struct cm_id *id, const struct cm_message *m) {
  switch (m->type) {
    case CM_REQ: on_request(id, m); break;
    case CM_REP: on_response(id, m); break;
    case CM_RTU: on_established(id); break;
    case CM_REJ: on_reject(id, m); break;
    default: on_disconnect(id, m->type == CM_DREQ); break;
  }
}

static void carry_out_late(struct cm_id *id) {
  struct cm_message *m = id->late;
  id->late = NULL;
  (void)cm_watch(id); /* what came since is read next */
  carry_out(id, m);
  free(m);
}

/* False: a fault has it. */
static bool passes(struct cm_id *id, const struct cm_message *m) {
  static const char *const events[] = {[CM_REQ] = "connect_request", [CM_REP] = "connect_response",
                                       [CM_RTU] = "established", [CM_REJ] = "rejected", [CM_DREQ] = "disconnected",
                                       [CM_DREP] = "disconnected"};
  struct cm_message rej = {.type = CM_REJ, .reason = CM_REJ_CONSUMER_DEFINED};
  long us = 0;
  switch (rail_emu_cm_fault(events[m->type], &us)) {
    case RAIL_EMU_CM_LOST: return false;
    case RAIL_EMU_CM_LATE:
      id->late = malloc(sizeof *id->late);
      if (!id->late) return true;
      *id->late = *m;
      cm_unwatch(id);
      (void)cm_set_deadline(id, (uint64_t)us / 1000, carry_out_late);
      return false;
    case RAIL_EMU_CM_REJECT:
      (void)cm_wire_send(id, &rej);
      on_reject(id, &rej);
      return false;
    default: return true;
  }
}

/* One message: others wait for the loop's next turn, in which the id may be gone. */
static void read_socket(struct cm_id *id) {
  struct cm_message m;
  int got = cm_wire_receive(id, &m);
  if (got < 0) on_gone(id);
  else if (got > 0 && (!id->place.device || cm_place_is_up(&id->place)) && passes(id, &m)) carry_out(id, &m);
}

/* ---- events as they are read ------------------------------------------------------------------------ */

/* Whoever reads the event of a REP moves the queue pair and acknowledges it, as Linux' library does. */
static void on_read(struct cm_event *e) {
  struct cm_id *id = cm_id_of(e->event.id);
  bool sync;
  switch (e->event.event) {
    case RDMA_CM_EVENT_CONNECT_REQUEST:
      sync = id->listener->sync;
      id->listener->requests--;
      id->listener = NULL;
      if (sync && !cm_own_channel(id)) e->event.status = -ENOMEM;
      break;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      if (!cm_qp_of(id) || id->state != CM_RESPONDED) break;
      e->event.status = -cm_qp_connect(id);
      e->event.event = e->event.status ? RDMA_CM_EVENT_CONNECT_ERROR : RDMA_CM_EVENT_ESTABLISHED;
      send_short(id, e->event.status ? CM_REJ : CM_RTU, CM_REJ_CONSUMER_DEFINED);
      id->state = e->event.status ? CM_OVER : CM_CONNECTED;
      break;
    case RDMA_CM_EVENT_REJECTED: cm_qp_error(id); break;
    default: break;
  }
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event) {
  struct cm_event *e = cm_event_read((struct cm_channel *)(void *)channel, on_read);
  if (!e) return -1;
  *event = &e->event;
  return 0;
}

int cm_complete(struct cm_id *id) {
  if (!id->sync) return 0;
  if (id->id.event) rdma_ack_cm_event(id->id.event);
  id->id.event = NULL;
  if (rdma_get_cm_event(id->id.channel, &id->id.event) != 0) return -1;
  int status = id->id.event->status;
  if (!status) return 0;
  return cm_result(id->id.event->event == RDMA_CM_EVENT_REJECTED ? ECONNREFUSED : status < 0 ? -status : status);
}
