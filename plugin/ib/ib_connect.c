/* SPDX-License-Identifier: Apache-2.0
 *
 * listen, accept, closeListen, connect, over common/net/net_setup.c; both sides' messages, and tables of steps, run by
 * common/conn/setup.c (rail_setup_run). The connecting side is the sender. What ends accept with an error, as any peer
 * would meet it: ports that do not fit, a local device that fails, a peer that refused.
 */
#include "plugin/ib/ib_connect.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_param.h"

#define HINTS_NS 1000000000ull /* see fill_handle: what is offered is checked again when the connection is made */

/* ---- messages ----------------------------------------------------------------- */

static rail_result_t step_send_offer(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  struct ib_offer_wire wire;
  size_t size = ib_offer_encode(&s->mine, &wire);
  return rail_handshake_send(&base->handshake, IB_MESSAGE_OFFER, &wire, size);
}

static rail_result_t step_recv_offer(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  struct rail_message message;
  RAIL_TRY(rail_setup_recv(base, IB_MESSAGE_OFFER, &message));
  const char *why = ib_offer_decode(message.body, message.size, &s->theirs);
  if (!why && s->theirs.sender == base->connector) why = "an offer with the role of this side";
  if (why) return rail_setup_fail(base, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent %s", why);
  return RAIL_OK;
}

static rail_result_t step_send_qps(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  struct ib_qps_wire wire;
  for (unsigned int i = 0; i < s->plan.nqps; i++) {
    struct ib_qp_info *side = &s->ours.qps[i];
    struct ibv_ece ece = {0};
    const struct ib_qp *qp = &s->comm->qps[i];
    /* The acceptor sends what its device supports; the connector answers with what both support. */
    if (s->plan.ece && (!base->connector || qp->attr.use_ece)) (void)ib_qp_query_ece(qp, &ece);
    side->qpn = qp->qp->qp_num;
    side->psn = qp->attr.sq_psn;
    side->ece_vendor = ece.vendor_id;
    side->ece_options = ece.options;
    side->ece_comp_mask = ece.comp_mask;
  }
  size_t size = ib_qps_encode(&s->ours, &wire);
  return rail_handshake_send(&base->handshake, IB_MESSAGE_QPS, &wire, size);
}

/* Where an acceptor listens by the RDMA CM, one for each of its rails. */
static bool has_cm_ports(const struct ib_qps *qps) {
  for (unsigned int i = 0; i < qps->nrails; i++)
    if (!qps->cm_ports[i]) return false;
  return true;
}

static rail_result_t step_recv_qps(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  struct rail_message message;
  RAIL_TRY(rail_setup_recv(base, IB_MESSAGE_QPS, &message));
  const char *why = ib_qps_decode(message.body, message.size, &s->peers);
  if (!why && (s->peers.nqps != s->plan.nqps || s->peers.nrails != s->theirs.nrails))
    why = "a list of queue pairs that is not what both planned";
  if (!why && s->plan.rdmacm && base->connector && !has_cm_ports(&s->peers)) why = "no port of the RDMA CM";
  if (why) return rail_setup_fail(base, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent %s", why);
  return RAIL_OK;
}

/* The line names the two ports of the peer's refusal. */
static rail_result_t refused(struct rail_setup *base, const struct rail_message *answer, char *text, size_t size) {
  const struct ib_setup *s = ib_setup_of(base);
  struct ib_refused_plan plan;
  ib_stats_count(s->device->name, IB_DEVICE_REFUSED);
  if (answer->reason != IB_REASON_PLAN) return RAIL_OK;
  const char *wrong = ib_refused_plan_decode(answer->body, answer->size, &plan), *here = "one of ours";
  if (wrong) return rail_setup_fail(base, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent %s", wrong);
  if (plan.rail_there >= 0 && (unsigned int)plan.rail_there < s->mine.nrails)
    here = s->mine.rails[plan.rail_there].name;
  snprintf(text, size, "refused: port %s here and port %s there do not fit: %s", here,
           plan.name[0] ? plan.name : "(all)", ib_refusal_text(plan.refusal));
  return RAIL_OK;
}

/* ---- steps that only one side has ------------------------------------------- */

static rail_result_t step_hints(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  s->nhints = s->theirs.nrails;
  for (unsigned int i = 0; i < s->nhints; i++) {
    s->hints[i] = (struct ib_gid){.type = s->theirs.rails[i].gid_type, .valid = true};
    memcpy(s->hints[i].raw, s->theirs.rails[i].gid, sizeof s->hints[i].raw);
  }
  return RAIL_OK;
}

static rail_result_t step_send_ready(struct rail_setup *s) {
  return rail_handshake_send(&s->handshake, IB_MESSAGE_READY, NULL, 0);
}

static rail_result_t step_recv_ready(struct rail_setup *s) {
  struct rail_message message;
  RAIL_TRY(rail_setup_recv(s, IB_MESSAGE_READY, &message));
  if (message.size == 0) return RAIL_OK;
  return rail_setup_fail(s, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "its READY has %zu bytes too many", message.size);
}

/* ---- the tables ---------------------------------------------------------------- */

static const struct rail_setup_row connector_rows[] = {
  {"query ports", ib_offer_query_ports, NULL, false},
  {"offer", ib_offer_make, NULL, false},
  {"dial", rail_setup_dial, "a TCP connection", false},
  {"send offer", step_send_offer, NULL, false},
  {"recv answer", rail_setup_answer, "the peer's answer (it comes when its side calls accept)", true},
  {"recv offer", step_recv_offer, "the peer's offer", false},
  {"plan", ib_offer_plan, NULL, false},
  {"comm", ib_build_comm, NULL, false},
  {"channel of the RDMA CM", ib_cm_open, NULL, false},
  {"completion queues", ib_build_cqs, NULL, false},
  {"memory", ib_build_memory, NULL, false},
  {"queue pairs", ib_build_qps, NULL, false},
  {"to INIT", ib_build_inits, NULL, false},
  {"recv queue pairs", step_recv_qps, "the peer's queue pairs", false},
  {"by the RDMA CM", ib_cm_connects, "the RDMA CM to connect queue pairs", false},
  {"to RTR", ib_build_rtrs, "the driver to take queue pairs to RTR (address resolution)", false},
  {"to RTS", ib_build_rtss, "the driver to take queue pairs to RTS", false},
  {"start", ib_build_start, NULL, false},
  {"send queue pairs", step_send_qps, NULL, false},
  {"recv ready", step_recv_ready, "the peer's queue pairs to be ready", false},
  {"test writes", ib_build_test_writes, NULL, false},
  {"verified", ib_build_verified, "the first writes over each queue pair", false},
};

static const struct rail_setup_row acceptor_rows[] = {
  {"recv offer", step_recv_offer, "the peer's offer", false},
  {"hints", step_hints, NULL, false},
  {"query ports", ib_offer_query_ports, NULL, false},
  {"offer", ib_offer_make, NULL, false},
  {"plan", ib_offer_plan, NULL, false},
  {"welcome", rail_setup_welcome, NULL, false},
  {"send offer", step_send_offer, NULL, false},
  {"comm", ib_build_comm, NULL, false},
  {"channel of the RDMA CM", ib_cm_open, NULL, false},
  {"completion queues", ib_build_cqs, NULL, false},
  {"memory", ib_build_memory, NULL, false},
  {"queue pairs", ib_build_qps, NULL, false},
  {"to INIT", ib_build_inits, NULL, false},
  {"receives", ib_build_receives, "the driver to take flush queue pairs to RTS", false},
  {"listen by the RDMA CM", ib_cm_listens, NULL, false},
  {"send queue pairs", step_send_qps, NULL, false},
  {"accept by the RDMA CM", ib_cm_accepts, "the peer's requests by the RDMA CM", false},
  {"recv queue pairs", step_recv_qps, "the peer's queue pairs", false},
  {"by the RDMA CM", ib_cm_established, "the RDMA CM to establish queue pairs", false},
  {"to RTR", ib_build_rtrs, "the driver to take queue pairs to RTR (address resolution)", false},
  {"to RTS", ib_build_rtss, "the driver to take queue pairs to RTS", false},
  {"start", ib_build_start, NULL, false},
  {"ready", step_send_ready, NULL, false},
  {"test writes", ib_build_test_writes, NULL, false},
  {"verified", ib_build_verified, "the first writes over each queue pair", false},
  {"all sent", rail_setup_flushed, "the peer to read what was sent", false},
};

static const struct rail_setup_ops connector_ops = {.protocol = &ib_protocol, .rows = connector_rows,
                                                    .nrows = RAIL_COUNT_OF(connector_rows),
                                                    .refused = refused};
static const struct rail_setup_ops acceptor_ops = {.protocol = &ib_protocol, .rows = acceptor_rows,
                                                   .nrows = RAIL_COUNT_OF(acceptor_rows), .refused = refused};

/* ---- begun, taken, freed --------------------------------------------------------- */

/* The listener's GIDs: among several local GIDs that match, one in their subnet is preferred. */
static void take_hints(struct ib_setup *s, const struct ib_hints *hints) {
  s->nhints = hints->n;
  for (unsigned int i = 0; i < hints->n; i++) {
    s->hints[i] = (struct ib_gid){.type = IB_GID_UNKNOWN, .valid = true};
    memcpy(s->hints[i].raw, hints->gids[i], sizeof s->hints[i].raw);
  }
}

static rail_result_t begin(struct rail_net_ctx *ctx, const void *device_arg, const union rail_addr *peer,
                           const struct rail_handle *listener, int traffic_class, struct rail_setup **out) {
  const struct ib_device *device = device_arg;
  struct ib_hints hints = {.n = 0};
  if (listener) ib_hints_decode(listener, &hints);
  struct ib_setup *s = calloc(1, sizeof *s);
  if (!s) {
    RAIL_WARN("RailIB: %s: out of memory", listener ? "connect" : "accept");
    return RAIL_SYSTEM_ERROR;
  }
  s->ctx = ctx;
  s->device = device;
  s->traffic_class = traffic_class >= 0 ? traffic_class : ctx->traffic_class;
  take_hints(s, &hints);
  const struct rail_connector_limits limits = {
    .connect_ms = ib_params.connect_ms, .connect_param = "RAIL_IB_CONNECT_TIMEOUT",
    .deadline_ms = ib_params.deadline_ms, .deadline_param = "RAIL_IB_DEADLINE", .warn_ms = ib_params.peer_warn_ms};
  rail_setup_init(&s->base, listener ? &connector_ops : &acceptor_ops, device->name, listener != NULL, peer,
                  &limits);
  *out = &s->base;
  return RAIL_OK;
}

static void free_setup(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  for (unsigned int i = 0; s->queried && i < s->device->nrails; i++) ib_port_forget_gids(s->device->rails[i]);
  if (s->comm) ib_comm_destroy(s->comm);
  rail_setup_close(base);
  free(s->attrs);
  free(s);
}

static void log_connected(const struct ib_setup *s) {
  const struct ib_comm *c = s->comm;
  char mine[IB_GID_TEXT], theirs[IB_GID_TEXT];
  RAIL_INFO(RAIL_SUB_NET, "RailIB: %s %s over %s (GID %s) and its %s (GID %s), %u queue pair%s%s%s%s%s%s%s",
            s->base.connector ? "connected to" : "accepted", c->peer_text, s->device->name,
            ib_gid_text(s->mine.rails[0].gid, mine), s->theirs.rails[0].name,
            ib_gid_text(s->theirs.rails[0].gid, theirs),
            c->plan.nqps, c->plan.nqps > 1 ? "s" : "", c->plan.verify ? ", verified" : "",
            s->base.handshake.session.keyed ? ", authenticated" : "", c->cm ? ", by the RDMA CM" : "",
            c->plan.notices ? ", parts reported by SEND" : "",
            c->plan.two_sided ? ", payload by SEND (no failover)" : "", c->event_driven ? ", waits for events" : "");
}

/* The comm, watched, is the caller's. */
static rail_result_t take(struct rail_setup *base, void **out) {
  struct ib_setup *s = ib_setup_of(base);
  struct ib_comm *comm = s->comm;
  comm->oob_fd = base->handshake.fd;
  base->handshake.fd = -1;
  RAIL_TRY(ib_watch_add(comm)); /* on failure free_setup frees it */
  log_connected(s);
  ib_stats_count(s->device->name, base->connector ? IB_DEVICE_CONNECTED : IB_DEVICE_ACCEPTED);
  s->comm = NULL;
  s->queried = false;
  *out = comm;
  return RAIL_OK;
}

/* ---- listen, accept, closeListen, connect ------------------------------------------ */

/* Thousands of listeners are opened at once: a port is queried once a second for all of them. */
static void fill_handle(const void *device_arg, struct rail_handle *handle) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static struct {
    uint64_t until;
    struct ib_hints hints;
  } known[IB_MAX_DEVICES];
  const struct ib_device *device = device_arg;
  int dev = ib_device_index(device);
  pthread_mutex_lock(&lock);
  if (rail_now_ns() >= known[dev].until) {
    ib_offer_hints(device, &known[dev].hints);
    known[dev].until = rail_now_ns() + HINTS_NS;
  }
  ib_hints_encode(&known[dev].hints, handle);
  pthread_mutex_unlock(&lock);
}

static struct rail_ports tcp_ports = {.plugin = "RailIB", .range_param = "RAIL_IB_PORTS", .bind_param = "RAIL_IB_BIND"};

bool ib_handshake_load(void) {
  rail_ports_load(&tcp_ports, ib_params.ports, ib_params.bind);
  return ib_protocol_load();
}

static uint64_t hello_ms(void) { return (uint64_t)ib_params.handshake_ms; }

static void count(const char *device, enum rail_listener_event event) {
  ib_stats_count(device, event == RAIL_LISTENER_DROPPED ? IB_DEVICE_DROPPED : IB_DEVICE_REFUSED);
}

static const struct rail_net_setup_ops setup_ops = {
  .protocol = &ib_protocol, .ports = &tcp_ports, .hello_ms = hello_ms,
  .oob_interface = ib_oob_interface, .fill_handle = fill_handle, .begin = begin, .take = take,
  .free = free_setup, .count = count};

rail_result_t ib_listen(void *ctx, int dev, void *handle, void **listen_comm) {
  const struct ib_device *device = ib_device_at(dev, "listen");
  if (!device) return RAIL_BAD_ARGUMENT;
  return rail_net_setup_listen(&setup_ops, ctx, device, device->name, handle, listen_comm);
}

rail_result_t ib_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle) {
  (void)dev_handle;
  return rail_net_setup_accept(&setup_ops, listen_comm, recv_comm);
}

rail_result_t ib_close_listen(void *listen_comm) { return rail_net_setup_close_listen(&setup_ops, listen_comm); }

rail_result_t ib_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle) {
  const struct ib_device *device = ib_device_at(dev, "connect");
  (void)dev_handle;
  if (!device) return RAIL_BAD_ARGUMENT;
  return rail_net_setup_connect(&setup_ops, ctx, device, device->name, handle, traffic_class, send_comm);
}
