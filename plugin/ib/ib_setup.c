/* SPDX-License-Identifier: Apache-2.0
 * Both sides' messages, the words for a peer's refusal, the end. */
#include "plugin/ib/ib_setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_watch.h"

/* ---- begun, freed ---------------------------------------------------------- */

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
  const char *why = listener ? ib_hints_decode(listener, &hints) : NULL;
  if (why) {
    RAIL_WARN("RailIB: connect: this handle cannot be used: %s", why);
    return RAIL_BAD_ARGUMENT;
  }
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
  rail_setup_init(&s->base, listener ? &ib_connector_ops : &ib_acceptor_ops, device->name, listener != NULL, peer,
                  &limits);
  *out = &s->base;
  return RAIL_OK;
}

static void free_setup(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  if (s->comm) ib_comm_destroy(s->comm);
  rail_setup_close(base);
  free(s->attrs);
  free(s);
}

/* The line names the two ports of the peer's refusal. */
rail_result_t ib_setup_refused(struct rail_setup *base, const struct rail_message *answer, char *text, size_t size) {
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

/* ---- messages ------------------------------------------------------------ */

rail_result_t ib_setup_send_offer(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  struct ib_offer_wire wire;
  size_t size = ib_offer_encode(&s->mine, &wire);
  return rail_handshake_send(&base->handshake, IB_MESSAGE_OFFER, &wire, size);
}

rail_result_t ib_setup_recv_offer(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  struct rail_message message;
  RAIL_TRY(rail_setup_recv(base, IB_MESSAGE_OFFER, &message));
  const char *why = ib_offer_decode(message.body, message.size, &s->theirs);
  if (!why && s->theirs.sender == base->connector) why = "an offer with the role of this side";
  if (why) return rail_setup_fail(base, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent %s", why);
  return RAIL_OK;
}

rail_result_t ib_setup_send_qps(struct rail_setup *base) {
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

rail_result_t ib_setup_recv_qps(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  struct rail_message message;
  RAIL_TRY(rail_setup_recv(base, IB_MESSAGE_QPS, &message));
  const char *why = ib_qps_decode(message.body, message.size, &s->peers);
  if (!why && (s->peers.nqps != s->plan.nqps || s->peers.nrails != s->theirs.nrails))
    why = "a list of queue pairs that is not what both planned";
  if (why) return rail_setup_fail(base, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent %s", why);
  return RAIL_OK;
}

/* ---- the end ------------------------------------------------------------- */

static void log_connected(const struct ib_setup *s) {
  const struct ib_comm *c = s->comm;
  char mine[IB_GID_TEXT], theirs[IB_GID_TEXT];
  RAIL_INFO(RAIL_SUB_NET, "RailIB: %s %s over %s (GID %s) and its %s (GID %s), %u queue pair%s%s%s",
            s->base.connector ? "connected to" : "accepted", c->peer_text, s->device->name,
            ib_gid_text(s->mine.rails[0].gid, mine), s->theirs.rails[0].name,
            ib_gid_text(s->theirs.rails[0].gid, theirs),
            c->plan.nqps, c->plan.nqps > 1 ? "s" : "", c->plan.verify ? ", verified" : "",
            s->base.handshake.session.keyed ? ", authenticated" : "");
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
  *out = comm;
  return RAIL_OK;
}

/* ---- for common/net/net_setup.h -------------------------------------------------- */

static struct rail_ports tcp_ports = {.plugin = "RailIB", .range_param = "RAIL_IB_PORTS", .bind_param = "RAIL_IB_BIND"};

bool ib_handshake_load(void) {
  rail_ports_load(&tcp_ports, ib_params.ports, ib_params.bind);
  return ib_protocol_load();
}

static uint64_t handshake_ms(void) { return (uint64_t)ib_params.handshake_ms; }

static void count(const char *device, enum rail_listener_event event) {
  ib_stats_count(device, event == RAIL_LISTENER_DROPPED ? IB_DEVICE_STRANGERS : IB_DEVICE_REFUSED);
}

const struct rail_net_setup_ops ib_net_setup = {
  .protocol = &ib_protocol, .ports = &tcp_ports, .max_accepting = IB_MAX_ACCEPTING, .handshake_ms = handshake_ms,
  .oob_interface = ib_oob_interface, .fill_handle = ib_listen_fill_handle, .begin = begin, .take = take,
  .free = free_setup, .count = count};
