/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs (QPs) that are set up by the RDMA CM (librdmacm): RAIL_IB_CM=rdmacm, and iWARP. The oob connection and
 * its handshake stay; the RDMA CM resolves addresses and routes, and exchanges what moves QPs to RTS.
 *
 *   acceptor     one id per rail listens at the address that the offer names, at a port of its own, which QPS tells; it
 *                is closed when all QPs have been asked for
 *   connector    one id per QP: address, route, connect. The request shows the acceptor's token and the QP's index, the
 *                response the connector's; both are of the offers, so an id of anybody else is rejected
 *
 * QPs are made by this plugin, in its own protection domain, and the ids only know their numbers: this side moves them
 * with attributes that the RDMA CM fills in, and with NCCL's timeouts. QPs of iWARP are moved by their driver.
 *
 * Ids stay until their QP is destroyed: the end of an iWARP id is the end of its connection.
 *
 * The steps read events and never wait for one.
 */
#include "plugin/ib/ib_connect.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "plugin/ib/ib_param.h"

#define RESOLVE_MS 5000    /* for an address, and for a route: neighbours and subnet managers answer in less */
#define EVENTS_AT_ONCE 32
/* Old kernels set mask bits that verbs does not define (RoCE MAC, VLAN): rdma-core librdmacm/cma.c. */
#define KERNEL_ONLY_MASK (0xf << 21)

/* ---- failing ------------------------------------------------------------------ */

#define CHECK_ADDRESS \
  "has the interface behind that GID this address, is it up, and has it a route and a neighbour entry to the peer's " \
  "(ip route get, ping -I)?"
#define CHECK_WAY \
  "are packets of the RDMA CM let through (RoCE: UDP port 4791; iWARP: TCP)? The peer's log may say more"
#define CHECK_LOCAL "dmesg; is /dev/infiniband/rdma_cm accessible (in a container, too), is ulimit -l large enough?"

/* One line: which queue pair, which ports, at what step. GONE and TIMEOUT drop that peer and accept waits for the next;
 * any other reason fails accept. */
static rail_result_t fail(struct ib_setup *s, unsigned int qp, unsigned int reason, const char *step, const char *why,
                          const char *check) {
  char ports[IB_PORTS_TEXT];
  rail_result_t result = reason == RAIL_REASON_FAILED ? RAIL_SYSTEM_ERROR : RAIL_REMOTE_ERROR;
  return rail_setup_fail(&s->base, reason, result, "RDMA CM, queue pair %u between %s: %s: %s; check: %s", qp,
                         ib_offer_ports_text(s, qp, ports), step, why, check);
}

static rail_result_t fail_call(struct ib_setup *s, unsigned int qp, const char *call, const char *check) {
  return fail(s, qp, RAIL_REASON_FAILED, call, strerror(errno), check);
}

static const char *const waits_for[] = {
  [IB_CM_NONE] = "the peer's request",        [IB_CM_ADDRESS] = "the address to be resolved",
  [IB_CM_ROUTE] = "the route to be resolved", [IB_CM_REQUESTED] = "the peer's response",
  [IB_CM_ANSWERING] = "the driver",           [IB_CM_ACCEPTED] = "the peer's last message",
  [IB_CM_UP] = "nothing",
};

/* ---- made and destroyed --------------------------------------------------------- */

/* The channel does not block. */
static bool open_channel(struct ib_cm *cm) {
  cm->channel = ib_rdmacm.create_event_channel();
  int flags = cm->channel ? fcntl(cm->channel->fd, F_GETFL) : -1;
  return flags >= 0 && fcntl(cm->channel->fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

rail_result_t ib_cm_open(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  if (!s->plan.rdmacm) return RAIL_OK;
  struct ib_cm *cm = calloc(1, sizeof *cm + s->plan.nqps * sizeof cm->qps[0]);
  s->comm->cm = cm;
  if (cm) cm->nqps = s->plan.nqps;
  if (cm && open_channel(cm)) return RAIL_OK;
  return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "no event channel of the RDMA CM: %s; is "
                         "/dev/infiniband/rdma_cm there and accessible (in a container, too)?", strerror(errno));
}

static void destroy(struct rdma_cm_id **id) {
  if (*id) (void)ib_rdmacm.destroy_id(*id); /* it fails for what is no id */
  *id = NULL;
}

static void close_listeners(struct ib_cm *cm) {
  for (unsigned int r = 0; r < IB_MAX_RAILS; r++) destroy(&cm->listeners[r]);
}

void ib_cm_close(struct ib_comm *comm) {
  struct ib_cm *cm = comm->cm;
  if (!cm) return;
  for (unsigned int i = 0; i < cm->nqps; i++) destroy(&cm->qps[i].id);
  close_listeners(cm);
  if (cm->channel) ib_rdmacm.destroy_event_channel(cm->channel);
  free(cm);
  comm->cm = NULL;
}

/* ---- addresses ------------------------------------------------------------------ */

static struct sockaddr *any_address(struct sockaddr_storage *addr) { return (struct sockaddr *)(void *)addr; }

/* Is the id where its address is to be: at this port of this HCA? */
static bool is_at(const struct rdma_cm_id *id, const struct ib_port *port) {
  return id->verbs && id->port_num == port->number &&
         strcmp(ib_verbs.get_device_name(id->verbs->device), port->hca->name) == 0;
}

static rail_result_t wrong_port(struct ib_setup *s, unsigned int qp) {
  return fail(s, qp, RAIL_REASON_FAILED, "address",
              "the RDMA CM resolved this address to another port",
              "do two interfaces have one address, or does it belong to no RDMA device (rdma link)? "
              "NCCL_IB_GID_INDEX and NCCL_IB_ADDR_RANGE choose another one");
}

/* A link-local address is none without its interface, which a GID does not name. */
static rail_result_t check_address(struct ib_setup *s, unsigned int qp) {
  struct ib_gid gid = {.valid = true};
  memcpy(gid.raw, s->mine.rails[s->plan.qps[qp].local_rail].gid, sizeof gid.raw);
  if (!ib_gid_is_link_local(&gid)) return RAIL_OK;
  return fail(s, qp, RAIL_REASON_FAILED, "address", "the RDMA CM needs one that is not link-local",
              "give the interface an address, or choose another GID (NCCL_IB_GID_INDEX, NCCL_IB_ADDR_FAMILY)");
}

/* NCCL's traffic class; the RDMA CM derives the service level from it. */
static bool set_traffic_class(struct rdma_cm_id *id, uint8_t traffic_class) {
  return !traffic_class || ib_rdmacm.set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &traffic_class, 1) == 0;
}

/* ---- the acceptor listens --------------------------------------------------------- */

rail_result_t ib_cm_listens(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  struct sockaddr_storage addr;
  if (!s->plan.rdmacm) return RAIL_OK;
  struct ib_cm *cm = s->comm->cm;
  const unsigned int rail = base->piece; /* that of QP `rail`, too */
  RAIL_TRY(check_address(s, rail));
  if (ib_rdmacm.create_id(cm->channel, &cm->listeners[rail], NULL, RDMA_PS_TCP) != 0)
    return fail_call(s, rail, "rdma_create_id", CHECK_LOCAL);
  struct rdma_cm_id *id = cm->listeners[rail];
  if (!set_traffic_class(id, s->mine.traffic_class))
    return fail_call(s, rail, "rdma_set_option (traffic class)", "NCCL_IB_TC, NCCL_IB_FIFO_TC");
  ib_gid_to_sockaddr(s->mine.rails[rail].gid, 0, &addr);
  if (ib_rdmacm.bind_addr(id, any_address(&addr)) != 0) return fail_call(s, rail, "rdma_bind_addr", CHECK_ADDRESS);
  if (!is_at(id, s->ports[rail])) return wrong_port(s, rail);
  if (ib_rdmacm.listen(id, (int)s->plan.nqps) != 0) return fail_call(s, rail, "rdma_listen", CHECK_LOCAL);
  s->ours.cm_ports[rail] = ntohs(ib_rdmacm.get_src_port(id));
  return rail_setup_piece_done(base, s->comm->nrails);
}

/* ---- the connector asks ------------------------------------------------------------- */

static rail_result_t begin(struct ib_setup *s, unsigned int i) {
  struct ib_cm *cm = s->comm->cm;
  struct ib_cm_qp *cm_qp = &cm->qps[i];
  const struct ib_plan_qp *p = &s->plan.qps[i];
  struct sockaddr_storage from, to;
  RAIL_TRY(check_address(s, i));
  if (ib_rdmacm.create_id(cm->channel, &cm_qp->id, cm_qp, RDMA_PS_TCP) != 0)
    return fail_call(s, i, "rdma_create_id", CHECK_LOCAL);
  if (!set_traffic_class(cm_qp->id, s->mine.traffic_class))
    return fail_call(s, i, "rdma_set_option (traffic class)", "NCCL_IB_TC");
  ib_gid_to_sockaddr(s->mine.rails[p->local_rail].gid, 0, &from);
  ib_gid_to_sockaddr(s->theirs.rails[p->remote_rail].gid, s->peers.cm_ports[p->remote_rail], &to);
  if (ib_rdmacm.resolve_addr(cm_qp->id, any_address(&from), any_address(&to), RESOLVE_MS) != 0)
    return fail_call(s, i, "rdma_resolve_addr", CHECK_ADDRESS);
  cm_qp->state = IB_CM_ADDRESS;
  return RAIL_OK;
}

static rail_result_t on_address(struct ib_setup *s, unsigned int i) {
  struct ib_cm_qp *cm_qp = &s->comm->cm->qps[i];
  if (!is_at(cm_qp->id, s->ports[s->plan.qps[i].local_rail])) return wrong_port(s, i);
  if (ib_rdmacm.resolve_route(cm_qp->id, RESOLVE_MS) != 0) return fail_call(s, i, "rdma_resolve_route", CHECK_ADDRESS);
  cm_qp->state = IB_CM_ROUTE;
  return RAIL_OK;
}

static struct rdma_conn_param conn_param(const struct ib_qp *qp, const struct ib_cm_wire *private_data) {
  return (struct rdma_conn_param){.private_data = private_data, .private_data_len = sizeof *private_data,
                                  .responder_resources = IB_RD_ATOMIC, .initiator_depth = IB_RD_ATOMIC,
                                  .flow_control = 1, .retry_count = qp->attr.retry_cnt,
                                  .rnr_retry_count = IB_RNR_RETRY, .qp_num = qp->qp->qp_num};
}

static rail_result_t on_route(struct ib_setup *s, unsigned int i) {
  struct ib_cm_qp *cm_qp = &s->comm->cm->qps[i];
  struct ib_cm_wire request;
  ib_cm_encode(i, s->theirs.cm_token, &request);
  struct rdma_conn_param param = conn_param(&s->comm->qps[i], &request);
  if (ib_rdmacm.connect(cm_qp->id, &param) != 0) return fail_call(s, i, "rdma_connect", CHECK_WAY);
  cm_qp->state = IB_CM_REQUESTED;
  return RAIL_OK;
}

/* ---- queue pairs ------------------------------------------------------------------------ */

/* NCCL's parameters come before what the RDMA CM takes from the network. */
static void apply_nccl_attr(const struct ib_qp *qp, struct ibv_qp_attr *attr, int mask) {
  if (mask & IBV_QP_MIN_RNR_TIMER) attr->min_rnr_timer = IB_MIN_RNR_TIMER;
  if (mask & IBV_QP_RNR_RETRY) attr->rnr_retry = IB_RNR_RETRY;
  if (mask & IBV_QP_TIMEOUT) attr->timeout = qp->attr.timeout;
  if (mask & IBV_QP_RETRY_CNT) attr->retry_cnt = qp->attr.retry_cnt;
  if (mask & IBV_QP_AV && ib_params.sl >= 0) attr->ah_attr.sl = qp->attr.sl;
}

/* What log lines name. */
static void record_attr(struct ib_qp *qp, const struct ibv_qp_attr *attr, int mask) {
  if (mask & IBV_QP_PATH_MTU) qp->attr.mtu = (uint8_t)attr->path_mtu;
  if (mask & IBV_QP_DEST_QPN) qp->attr.dest_qpn = attr->dest_qp_num;
  if (mask & IBV_QP_RQ_PSN) qp->attr.rq_psn = attr->rq_psn;
  if (mask & IBV_QP_SQ_PSN) qp->attr.sq_psn = attr->sq_psn;
  if (!(mask & IBV_QP_AV)) return;
  qp->attr.sl = attr->ah_attr.sl;
  qp->attr.traffic_class = attr->ah_attr.grh.traffic_class;
}

static rail_result_t move(struct ib_setup *s, unsigned int i, enum ib_qp_state to, enum ibv_qp_state verbs_state) {
  struct ib_qp *qp = &s->comm->qps[i];
  struct ibv_qp_attr attr;
  int mask = 0;
  memset(&attr, 0, sizeof attr);
  attr.qp_state = verbs_state;
  if (ib_rdmacm.init_qp_attr(s->comm->cm->qps[i].id, &attr, &mask) != 0)
    return fail_call(s, i, "rdma_init_qp_attr", CHECK_LOCAL);
  mask &= ~KERNEL_ONLY_MASK;
  apply_nccl_attr(qp, &attr, mask);
  record_attr(qp, &attr, mask);
  rail_result_t result = ib_qp_modify(qp, s->ports[qp->rail], to, &attr, mask);
  if (result == RAIL_OK || result == RAIL_IN_PROGRESS) return result;
  return fail(s, i, RAIL_REASON_FAILED, "ibv_modify_qp", "failed (see the line above)", CHECK_LOCAL);
}

static rail_result_t answer(struct ib_setup *s, unsigned int i) {
  struct ib_cm_qp *cm_qp = &s->comm->cm->qps[i];
  if (s->base.connector) {
    if (ib_rdmacm.establish(cm_qp->id) != 0) return fail_call(s, i, "rdma_establish", CHECK_WAY);
    cm_qp->state = IB_CM_UP;
    return RAIL_OK;
  }
  struct ib_cm_wire response;
  ib_cm_encode(i, s->theirs.cm_token, &response);
  struct rdma_conn_param param = conn_param(&s->comm->qps[i], &response);
  if (ib_rdmacm.accept(cm_qp->id, &param) != 0) return fail_call(s, i, "rdma_accept", CHECK_WAY);
  cm_qp->state = IB_CM_ACCEPTED;
  return RAIL_OK;
}

/* One transition, or the answer behind the last one. The driver of iWARP makes them. */
static rail_result_t advance_qp(struct ib_setup *s, unsigned int i) {
  switch (s->ports[s->comm->qps[i].rail]->iwarp ? IB_QP_RTS : s->comm->qps[i].state) {
    case IB_QP_INIT: return move(s, i, IB_QP_RTR, IBV_QPS_RTR);
    case IB_QP_RTR: return move(s, i, IB_QP_RTS, IBV_QPS_RTS);
    default: return answer(s, i);
  }
}

/* ---- events -------------------------------------------------------------------------------- */

/* What an event says; a copy, so that it is acknowledged before an id is destroyed. */
struct cm_event_copy {
  struct rdma_cm_id *id;
  enum rdma_cm_event_type type;
  int status;
  uint32_t qpn;
  size_t size;
  uint8_t data[sizeof(struct ib_cm_wire)]; /* what may follow is padding */
};

/* False: there is none. */
static bool read_event(struct rdma_event_channel *channel, struct cm_event_copy *copy) {
  struct rdma_cm_event *event;
  if (ib_rdmacm.get_cm_event(channel, &event) != 0) return false;
  const struct rdma_conn_param *conn = &event->param.conn;
  bool carries = event->event == RDMA_CM_EVENT_CONNECT_REQUEST || event->event == RDMA_CM_EVENT_CONNECT_RESPONSE ||
                 event->event == RDMA_CM_EVENT_ESTABLISHED;
  *copy = (struct cm_event_copy){.id = event->id, .type = event->event, .status = event->status};
  if (carries) copy->qpn = conn->qp_num;
  if (carries && conn->private_data)
    memcpy(copy->data, conn->private_data, copy->size = RAIL_MIN(conn->private_data_len, sizeof copy->data));
  (void)ib_rdmacm.ack_cm_event(event);
  return true;
}

/* The id of an event is one of ours, or of a request. */
static unsigned int index_of(const struct ib_cm *cm, const struct rdma_cm_id *id) {
  unsigned int i = 0;
  while (i < cm->nqps && cm->qps[i].id != id) i++;
  return i;
}

/* A request of whoever: NULL, or why it is rejected. */
static const char *check_request(const struct ib_setup *s, const struct cm_event_copy *event, unsigned int *qp) {
  const char *why = ib_cm_decode(event->data, event->size, s->mine.cm_token, qp);
  if (why) return why;
  if (*qp >= s->plan.nqps) return "a queue pair that is not in the plan";
  if (s->comm->cm->qps[*qp].state != IB_CM_NONE) return "a second request for one queue pair";
  return is_at(event->id, s->ports[s->plan.qps[*qp].local_rail]) ? NULL : "a request at the port of another queue pair";
}

static void on_request(struct ib_setup *s, const struct cm_event_copy *event) {
  unsigned int qp;
  const char *why = s->base.connector ? "a request where none is expected" : check_request(s, event, &qp);
  if (!why) {
    s->comm->cm->qps[qp] = (struct ib_cm_qp){.id = event->id, .state = IB_CM_ANSWERING};
    return;
  }
  ib_stats_count(s->device->name, IB_DEVICE_DROPPED);
  RAIL_INFO(RAIL_SUB_NET, "RailIB: accept over %s: a request by the RDMA CM is rejected: it has %s", s->device->name,
            why);
  (void)ib_rdmacm.reject(event->id, NULL, 0);
  (void)ib_rdmacm.destroy_id(event->id);
}

/* A response, or with iWARP, whose NIC has moved the queue pair, the established connection. */
static rail_result_t on_response(struct ib_setup *s, unsigned int i, const struct cm_event_copy *event) {
  struct ib_cm_qp *cm_qp = &s->comm->cm->qps[i];
  const bool iwarp = s->ports[s->plan.qps[i].local_rail]->iwarp;
  unsigned int qp;
  const char *why = ib_cm_decode(event->data, event->size, s->mine.cm_token, &qp);
  if (!why && qp != i) why = "a response for another queue pair";
  if (!why && !iwarp && event->qpn != s->peers.qps[i].qpn) why = "a queue pair that is not the one of its list";
  if (why)
    return rail_setup_fail(&s->base, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "its response by the RDMA CM has %s", why);
  cm_qp->state = iwarp ? IB_CM_UP : IB_CM_ANSWERING;
  if (iwarp) s->comm->qps[i].state = IB_QP_RTS;
  return RAIL_OK;
}

static rail_result_t on_established(struct ib_setup *s, unsigned int i, const struct cm_event_copy *event) {
  struct ib_cm_qp *cm_qp = &s->comm->cm->qps[i];
  if (cm_qp->state == IB_CM_REQUESTED) return on_response(s, i, event);
  if (cm_qp->state != IB_CM_ACCEPTED) return RAIL_OK;
  cm_qp->state = IB_CM_UP;
  s->comm->qps[i].state = IB_QP_RTS;
  return RAIL_OK;
}

/* Reasons of a rejection: InfiniBand specification, 12.6.7.2. iWARP has an errno. */
static const char *rejection(int status) {
  switch (status) {
    case 8: return "rejected: nothing listens there any more (reason 8)";
    case 28: return "rejected by the peer's process, or that has ended (reason 28)";
    case -ECONNREFUSED:
    case -ECONNRESET: return "refused: nothing listens there any more";
    default: return "rejected by the peer's host";
  }
}

/* The peer rejects, or is gone: what it says over the oob connection comes first. */
static rail_result_t on_end(struct ib_setup *s, unsigned int i, const char *what) {
  rail_result_t result = ib_build_recv_refusal(s);
  return result == RAIL_IN_PROGRESS ? fail(s, i, RAIL_REASON_GONE, "connect", what, "the peer's log") : result;
}

static rail_result_t on_failure(struct ib_setup *s, unsigned int i, const struct cm_event_copy *event) {
  const char *status = event->status < 0 ? strerror(-event->status) : "no reason given";
  switch (event->type) {
    case RDMA_CM_EVENT_ADDR_ERROR:
      return fail(s, i, RAIL_REASON_FAILED, "the address is not resolved", status, CHECK_ADDRESS);
    case RDMA_CM_EVENT_ROUTE_ERROR:
      return fail(s, i, RAIL_REASON_FAILED, "the route is not resolved", status, CHECK_ADDRESS);
    case RDMA_CM_EVENT_UNREACHABLE: return fail(s, i, IB_REASON_CM, "no answer", status, CHECK_WAY);
    case RDMA_CM_EVENT_REJECTED: return on_end(s, i, rejection(event->status));
    case RDMA_CM_EVENT_DISCONNECTED: return on_end(s, i, "the peer disconnected it");
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      return fail(s, i, RAIL_REASON_FAILED, "connect", "the device was removed", "dmesg");
    default: return fail(s, i, RAIL_REASON_FAILED, ib_rdmacm.event_str(event->type), status, CHECK_LOCAL);
  }
}

/* Late events, and events of unknown ids, are ignored. */
static rail_result_t on_event(struct ib_setup *s, const struct cm_event_copy *event) {
  const struct ib_cm *cm = s->comm->cm;
  unsigned int i = index_of(cm, event->id);
  if (event->type == RDMA_CM_EVENT_CONNECT_REQUEST) {
    on_request(s, event);
    return RAIL_OK;
  }
  if (i == cm->nqps) return RAIL_OK;
  switch (event->type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED: return cm->qps[i].state == IB_CM_ADDRESS ? on_address(s, i) : RAIL_OK;
    case RDMA_CM_EVENT_ROUTE_RESOLVED: return cm->qps[i].state == IB_CM_ROUTE ? on_route(s, i) : RAIL_OK;
    case RDMA_CM_EVENT_CONNECT_RESPONSE:
      return cm->qps[i].state == IB_CM_REQUESTED ? on_response(s, i, event) : RAIL_OK;
    case RDMA_CM_EVENT_ESTABLISHED: return on_established(s, i, event);
    case RDMA_CM_EVENT_ADDR_CHANGE:
    case RDMA_CM_EVENT_TIMEWAIT_EXIT: return RAIL_OK;
    default: return on_failure(s, i, event);
  }
}

/* ---- until all are there ------------------------------------------------------------------------ */

static rail_result_t read_events(struct ib_setup *s) {
  struct cm_event_copy event;
  for (int n = 0; n < EVENTS_AT_ONCE && read_event(s->comm->cm->channel, &event); n++) RAIL_TRY(on_event(s, &event));
  return RAIL_OK;
}

/* One queue pair goes on, as far as one call of the driver takes it. */
static rail_result_t answer_one(struct ib_setup *s, bool *more) {
  struct ib_cm *cm = s->comm->cm;
  for (unsigned int i = 0; i < cm->nqps; i++) {
    if (cm->qps[i].state != IB_CM_ANSWERING) continue;
    rail_result_t result = advance_qp(s, i);
    if (result == RAIL_IN_PROGRESS) continue; /* the driver is to be asked again later */
    *more = true;
    return result;
  }
  return RAIL_OK;
}

/* The first queue pair that is not in that state, or behind it; nqps: all are. */
static unsigned int first_before(const struct ib_cm *cm, enum ib_cm_state state) {
  unsigned int i = 0;
  while (i < cm->nqps && cm->qps[i].state >= state) i++;
  return i;
}

static rail_result_t run_until(struct ib_setup *s, enum ib_cm_state state) {
  struct ib_cm *cm = s->comm->cm;
  bool more = false;
  const unsigned int next = first_before(cm, IB_CM_ADDRESS); /* a connector's: without an id yet */
  if (s->base.connector && next < cm->nqps) {
    RAIL_TRY(begin(s, next));
    more = true;
  }
  RAIL_TRY(read_events(s));
  RAIL_TRY(answer_one(s, &more));
  unsigned int first = first_before(cm, state);
  if (first == cm->nqps) return RAIL_OK;
  s->base.more = more;
  rail_result_t result = ib_build_recv_refusal(s);
  if (result != RAIL_IN_PROGRESS || !rail_setup_is_late(&s->base)) return result;
  /* Only that peer is silent: accept goes on. */
  bool for_peer = !s->base.connector && cm->qps[first].state != IB_CM_ANSWERING;
  return fail(s, first, for_peer ? RAIL_REASON_TIMEOUT : IB_REASON_CM, "not ready within the time limit "
              "(RAIL_IB_CONNECT_TIMEOUT), waiting for", waits_for[cm->qps[first].state], CHECK_WAY);
}

rail_result_t ib_cm_connects(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  return s->plan.rdmacm ? run_until(s, IB_CM_UP) : RAIL_OK;
}

rail_result_t ib_cm_accepts(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  if (!s->plan.rdmacm) return RAIL_OK;
  RAIL_TRY(run_until(s, IB_CM_ACCEPTED));
  close_listeners(s->comm->cm);
  return RAIL_OK;
}

rail_result_t ib_cm_established(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  if (!s->plan.rdmacm) return RAIL_OK;
  RAIL_TRY(run_until(s, IB_CM_UP));
  for (unsigned int i = 0; i < s->plan.nqps; i++) {
    const struct ib_qp *qp = &s->comm->qps[i];
    if (s->ports[qp->rail]->iwarp || qp->attr.dest_qpn == s->peers.qps[i].qpn) continue;
    return rail_setup_fail(base, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "its request by the RDMA CM has queue pair "
                           "0x%x, its list 0x%x", qp->attr.dest_qpn, s->peers.qps[i].qpn);
  }
  return RAIL_OK;
}
