/* SPDX-License-Identifier: Apache-2.0
 * Both sides' messages, the words for a peer's refusal. */
#include "plugin/ib/ib_setup.h"

#include <stdio.h>

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

/* ---- for log lines ---------------------------------------------------------- */

const char *ib_setup_ports_text(const struct ib_setup *s, unsigned int qp, char text[IB_PORTS_TEXT]) {
  const struct ib_plan_qp *p = &s->plan.qps[qp];
  const struct ib_offer_rail *mine = &s->mine.rails[p->local_rail], *theirs = &s->theirs.rails[p->remote_rail];
  char a[IB_GID_TEXT], b[IB_GID_TEXT];
  snprintf(text, IB_PORTS_TEXT, "port %s here (GID %s) and port %s there (GID %s)", mine->name,
           ib_gid_text(mine->gid, a), theirs->name, ib_gid_text(theirs->gid, b));
  return text;
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

rail_result_t ib_setup_recv_refusal(struct ib_setup *s) {
  struct rail_message message;
  rail_result_t result = rail_handshake_peek(&s->base.handshake);
  if (result == RAIL_OK) {
    result = rail_setup_recv(&s->base, RAIL_MESSAGE_ANSWER, &message);
    if (result != RAIL_OK) return result;
    return rail_setup_fail(&s->base, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent a second welcome");
  }
  if (result == RAIL_IN_PROGRESS) return result;
  return rail_setup_fail(&s->base, RAIL_REASON_GONE, RAIL_REMOTE_ERROR, "it closed the connection, while this side "
                         "waited for %s", s->base.ops->rows[s->base.state].waits_for);
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

/* Where an acceptor listens by the RDMA CM, one for each of its rails. */
static bool has_cm_ports(const struct ib_qps *qps) {
  for (unsigned int i = 0; i < qps->nrails; i++)
    if (!qps->cm_ports[i]) return false;
  return true;
}

rail_result_t ib_setup_recv_qps(struct rail_setup *base) {
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
