/* SPDX-License-Identifier: Apache-2.0
 *
 * What this side offers: its ports as they are now, with a GID for each that suits the peer; and the plan, which both
 * sides compute from both offers.
 */
#include "plugin/ib/ib_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "plugin/ib/ib_connect.h"
#include "plugin/ib/ib_param.h"

#define SL_MAX 15
#define SENDER_INLINE 128                         /* bytes of a message */
#define RECEIVER_INLINE sizeof(struct ib_cts_wire) /* a receive of one buffer */

/* ---- the offer: what a device can do ----------------------------------------- */

struct ib_qp_sizes ib_offer_sizes(const struct ib_setup *s, const struct ib_port *port) {
  const uint32_t most = (uint32_t)RAIL_MAX(port->hca->attr.max_qp_wr, 1);
  const bool has_inline = ib_params.use_inline || port->iwarp; /* iWARP: notices are inline */
  if (s->base.connector)
    return (struct ib_qp_sizes){.send_depth = RAIL_MIN(IB_SEND_DEPTH, most), .recv_depth = 1,
                                .inline_bytes = has_inline ? SENDER_INLINE : 0};
  return (struct ib_qp_sizes){.send_depth = RAIL_MIN(IB_CTS_DEPTH, most), .recv_depth = RAIL_MIN(IB_RECV_DEPTH, most),
                              .inline_bytes = has_inline ? RECEIVER_INLINE : 0};
}

/* Every WR of each QP may complete with an error, signaled or not: the completion queue has room for all. */
static unsigned int max_qps_of(const struct ib_setup *s, const struct ib_port *port) {
  struct ib_qp_sizes sizes = ib_offer_sizes(s, port);
  int64_t room = ((int64_t)port->hca->attr.max_cqe - IB_MAX_FLUSHES) / (sizes.send_depth + sizes.recv_depth);
  return (unsigned int)RAIL_MAX(0, RAIL_MIN(RAIL_MIN(room, port->hca->attr.max_qp), IB_MAX_QPS));
}

static unsigned int log2_of(uint64_t n) {
  unsigned int log2 = 0;
  while (n >>= 1) log2++;
  return log2;
}

/* ---- the offer: ports -------------------------------------------------------- */

rail_result_t ib_offer_query_ports(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  if (!s->attrs && !(s->attrs = calloc(s->device->nrails, sizeof *s->attrs)))
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "out of memory");
  struct ib_port *port = s->device->rails[base->piece];
  struct ib_port_attr *attr = &s->attrs[base->piece];
  s->queried = true;
  if (ib_port_query(port, attr) != RAIL_OK)
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR,
                           "port %s cannot be queried (the line above says why)", port->name);
  if (!attr->active)
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR,
                           "port %s is down; is its link up (ibv_devinfo, ip link), is the cable in?", port->name);
  return rail_setup_piece_done(base, s->device->nrails);
}

static int choose(const struct ib_port *port, const struct ib_port_attr *attr, const struct ib_gid *peer,
                  const char **why) {
  struct ib_gid_prefs prefs;
  ib_params_gid_prefs(&prefs);
  return ib_gid_choose(&attr->gids, ib_port_is_ethernet(port), &prefs, peer, why);
}

void ib_offer_hints(const struct ib_device *device, struct ib_hints *hints) {
  struct ib_port_attr *attr = calloc(1, sizeof *attr);
  hints->n = 0;
  for (; attr && hints->n < device->nrails && hints->n < IB_HANDLE_GIDS; hints->n++) {
    struct ib_port *port = device->rails[hints->n];
    const char *why;
    int index = ib_port_query(port, attr) == RAIL_OK ? choose(port, attr, NULL, &why) : IB_GID_NONE;
    if (index < 0) break;
    memcpy(hints->gids[hints->n], attr->gids.gids[index].raw, sizeof hints->gids[0]);
  }
  free(attr);
}

/* The GID of the peer's rail opposite this one, as far as it is known: a handle has at most 4. */
static const struct ib_gid *hint_for(const struct ib_setup *s, unsigned int position) {
  bool cut_off = s->base.connector && s->nhints == IB_HANDLE_GIDS;
  if (s->nhints == 0 || (cut_off && position >= s->nhints)) return NULL;
  return &s->hints[position % s->nhints];
}

/* Is that port's best GID for this peer in the peer's subnet? */
static bool is_near(const struct ib_setup *s, unsigned int rail, const struct ib_gid *peer) {
  const struct ib_gid *gids = s->attrs[rail].gids.gids;
  const char *why;
  int index = choose(s->device->rails[rail], &s->attrs[rail], peer, &why);
  return index >= 0 && ib_gid_same_subnet(&gids[index], peer, (unsigned int)ib_params.subnet_prefix_len);
}

/* The order of the local rails: as in the device, or (NCCL_IB_SUBNET_AWARE_ROUTING) so that rails of one position are
 * in one subnet, as far as possible. Only the side that receives the other's offer first may do it. */
static void order_rails(const struct ib_setup *s, unsigned int order[IB_MAX_RAILS]) {
  unsigned int n = s->device->nrails;
  for (unsigned int i = 0; i < n; i++) order[i] = i;
  if (s->base.connector || !ib_params.subnet_aware) return;
  for (unsigned int position = 0; position < n && position < s->nhints; position++)
    for (unsigned int i = position; i < n; i++)
      if (is_near(s, order[i], &s->hints[position])) {
        unsigned int found = order[i];
        order[i] = order[position];
        order[position] = found;
        break;
      }
}

static rail_result_t offer_rail(struct ib_setup *s, unsigned int position, unsigned int rail) {
  struct ib_port *port = s->device->rails[rail];
  const struct ib_port_attr *attr = &s->attrs[rail];
  const char *why = "";
  int index = choose(port, attr, hint_for(s, position), &why);
  if (index < 0)
    return rail_setup_fail(&s->base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "port %s: %s", port->name, why);
  struct ib_offer_rail *offer = &s->mine.rails[position];
  *offer = (struct ib_offer_rail){
    .roce = port->roce,
    .iwarp = port->iwarp,
    .port = port->number,
    .mtu = attr->mtu,
    .gid_type = attr->gids.gids[index].type,
    .grh_required = attr->grh_required,
    .lid = attr->lid,
    .subnet_prefix = attr->subnet_prefix,
    .speed = (uint32_t)port->speed,
  };
  memcpy(offer->gid, attr->gids.gids[index].raw, sizeof offer->gid);
  memcpy(offer->name, port->name, strnlen(port->name, sizeof offer->name - 1));
  s->ports[position] = port;
  s->gid_index[position] = index;
  return RAIL_OK;
}

/* ---- the offer: quality of service ------------------------------------------- */

/* Service level and traffic class: of the parameters, else of the caller, else of the sender. */
static void choose_service(struct ib_setup *s) {
  int64_t sl = ib_params.sl, tc = ib_params.tc;
  int of_caller = s->traffic_class >= 0 && s->traffic_class <= UINT8_MAX ? s->traffic_class : -1;
  if (!s->base.connector && ib_params.fifo_tc >= 0) tc = ib_params.fifo_tc;
  if (tc < 0) tc = of_caller;
  if (sl < 0 && of_caller <= SL_MAX) sl = of_caller;
  if (tc < 0) tc = s->base.connector ? 0 : s->theirs.traffic_class;
  if (sl < 0) sl = s->base.connector ? 0 : RAIL_MIN(s->theirs.sl, SL_MAX);
  s->mine.traffic_class = (uint8_t)tc;
  s->mine.sl = (uint8_t)sl;
}

/* ---- the offer: all of it ---------------------------------------------------- */

rail_result_t ib_offer_make(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  struct ib_offer *o = &s->mine;
  unsigned int order[IB_MAX_RAILS] = {0};
  const bool iwarp = s->device->rails[0]->iwarp; /* all rails are of one kind */
  order_rails(s, order);
  o->sender = base->connector;
  o->nrails = s->device->nrails;
  o->qps_per_rail = (unsigned int)ib_params.qps;
  o->max_qps = IB_MAX_QPS;
  o->split = ib_params.split != 0;
  o->rdmacm = s->device->rails[0]->rdmacm;
  o->no_imm = iwarp;
  o->two_sided = ib_params.protocol == IB_PROTOCOL_SEND;
  o->ece = ib_params.ece && ib_verbs.query_ece && ib_verbs.set_ece && !o->rdmacm;
  o->verify = ib_params.verify != 0;
  /* A completion of iWARP says that the NIC has taken the bytes, not that the peer has them: what a lost queue pair has
   * delivered is not known. */
  o->failover = ib_params.failover && !iwarp;
  o->max_write_log2 = o->two_sided ? IB_MAX_WRITE_LOG2 : log2_of((uint64_t)ib_params.max_write);
  o->recv_depth = IB_RECV_DEPTH;
  o->timeout = (uint8_t)ib_params.timeout;
  o->process = rail_setup_process_id();
  if (o->rdmacm && rail_random_bytes(&o->cm_token, sizeof o->cm_token) != RAIL_OK)
    return rail_setup_fail(base, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "no random bytes from the kernel");
  for (unsigned int i = 0; i < o->nrails; i++) {
    RAIL_TRY(offer_rail(s, i, order[i]));
    uint32_t max_msg = s->attrs[order[i]].max_msg;
    if (max_msg) o->max_write_log2 = RAIL_MIN(o->max_write_log2, log2_of(max_msg));
    o->recv_depth = RAIL_MIN(o->recv_depth, ib_offer_sizes(s, s->ports[i]).recv_depth);
    o->max_qps = RAIL_MIN(o->max_qps, o->nrails * max_qps_of(s, s->ports[i]));
  }
  choose_service(s);
  free(s->attrs);
  s->attrs = NULL;
  return RAIL_OK;
}

/* ---- the plan, of both offers -----------------------------------------------
 *
 * Both sides check sender and receiver in the same order, so that both find the same first reason; for the receiver the
 * result is swapped at the end.
 */

static const char *const refusal_text[] = {
  [IB_REFUSAL_NONE] = "they fit",
  [IB_REFUSAL_LINK] = "they are of different kinds (InfiniBand, RoCE, iWARP); choose and fuse ports (NCCL_IB_HCA) "
                      "alike on both sides",
  [IB_REFUSAL_SUBNET] = "they are in different InfiniBand subnets, and not both have a LID and, for a router, a GID "
                        "with a FLID (NCCL_IB_ROUTABLE_FLID_GID_INDEX)",
  [IB_REFUSAL_FAMILY] = "one GID is an IPv4 address, the other IPv6; see NCCL_IB_ADDR_FAMILY, NCCL_IB_GID_INDEX and "
                        "the addresses of the interfaces behind them",
  [IB_REFUSAL_ROCE] = "one GID is RoCE v1, the other v2; see NCCL_IB_ROCE_VERSION_NUM and NCCL_IB_GID_INDEX",
  [IB_REFUSAL_GID] = "one has no GID, or one is link-local and the other is not; give both interfaces an address, or "
                     "set NCCL_IB_GID_INDEX",
  [IB_REFUSAL_MTU] = "an MTU that does not exist",
  [IB_REFUSAL_DEPTH] = "the receiver's device holds too few receive requests per queue pair",
  [IB_REFUSAL_QPS] = "there are more rails than queue pairs allowed; lower NCCL_IB_QPS_PER_CONNECTION, fuse fewer "
                     "ports, or use a device with larger completion queues",
  [IB_REFUSAL_OFFER] = "a value out of its range",
  [IB_REFUSAL_CM] = "one side sets up queue pairs by the RDMA CM, the other does not; set RAIL_IB_CM alike on both",
  [IB_REFUSAL_PROTOCOL] = "one side moves payload by SEND, the other by RDMA write; set RAIL_IB_PROTOCOL alike on both",
};
_Static_assert(RAIL_COUNT_OF(refusal_text) == IB_REFUSAL_COUNT, "a text for each refusal");

const char *ib_refusal_text(unsigned int refusal) {
  return refusal < IB_REFUSAL_COUNT ? refusal_text[refusal] : "a reason that this version does not know";
}

/* ---- the plan: one port, two ports ------------------------------------------- */

static struct ib_gid gid_of(const struct ib_offer_rail *r) {
  struct ib_gid gid = {.type = r->gid_type, .valid = true};
  memcpy(gid.raw, r->gid, sizeof gid.raw);
  return gid;
}

/* The router's LID, bits 32..47 of a routable GID. */
static uint16_t flid_of(const struct ib_offer_rail *r) { return (uint16_t)(r->gid[4] << 8 | r->gid[5]); }

static bool same_subnet(const struct ib_offer_rail *a, const struct ib_offer_rail *b) {
  return a->subnet_prefix == b->subnet_prefix;
}

uint16_t ib_plan_dlid(const struct ib_offer_rail *mine, const struct ib_offer_rail *theirs) {
  if (mine->roce || mine->iwarp) return 0;
  return same_subnet(mine, theirs) ? theirs->lid : flid_of(theirs);
}

static bool wants_grh(const struct ib_offer_rail *a, const struct ib_offer_rail *b) {
  return a->roce || a->grh_required || b->grh_required || !same_subnet(a, b);
}

static enum ib_refusal check_rail(const struct ib_offer_rail *r) {
  if (r->mtu < 1 || r->mtu > 5) return IB_REFUSAL_MTU;
  return r->port == 0 || r->gid_type > IB_GID_UNKNOWN ? IB_REFUSAL_OFFER : IB_REFUSAL_NONE;
}

static enum ib_refusal check_roce(const struct ib_offer_rail *a, const struct ib_offer_rail *b) {
  struct ib_gid x = gid_of(a), y = gid_of(b);
  bool v1 = a->gid_type == IB_GID_ROCE_V1 || b->gid_type == IB_GID_ROCE_V1;
  bool v2 = a->gid_type == IB_GID_ROCE_V2 || b->gid_type == IB_GID_ROCE_V2;
  if (ib_gid_is_empty(&x) || ib_gid_is_empty(&y)) return IB_REFUSAL_GID;
  if (v1 && v2) return IB_REFUSAL_ROCE;
  if (ib_gid_is_ipv4(&x) != ib_gid_is_ipv4(&y)) return IB_REFUSAL_FAMILY;
  if (ib_gid_is_link_local(&x) != ib_gid_is_link_local(&y)) return IB_REFUSAL_GID;
  return IB_REFUSAL_NONE;
}

/* Addresses are those of interfaces. */
static enum ib_refusal check_iwarp(const struct ib_offer_rail *a, const struct ib_offer_rail *b) {
  struct ib_gid x = gid_of(a), y = gid_of(b);
  if (ib_gid_is_empty(&x) || ib_gid_is_empty(&y)) return IB_REFUSAL_GID;
  return ib_gid_is_ipv4(&x) == ib_gid_is_ipv4(&y) ? IB_REFUSAL_NONE : IB_REFUSAL_FAMILY;
}

static enum ib_refusal check_infiniband(const struct ib_offer_rail *a, const struct ib_offer_rail *b) {
  struct ib_gid x = gid_of(a), y = gid_of(b);
  if (ib_plan_dlid(a, b) == 0 || ib_plan_dlid(b, a) == 0) return IB_REFUSAL_SUBNET;
  if (wants_grh(a, b) && (ib_gid_is_empty(&x) || ib_gid_is_empty(&y))) return IB_REFUSAL_GID;
  return IB_REFUSAL_NONE;
}

static enum ib_refusal check_pair(const struct ib_offer_rail *sender, const struct ib_offer_rail *receiver) {
  enum ib_refusal refusal = check_rail(sender);
  if (refusal == IB_REFUSAL_NONE) refusal = check_rail(receiver);
  if (refusal != IB_REFUSAL_NONE) return refusal;
  if (sender->roce != receiver->roce || sender->iwarp != receiver->iwarp) return IB_REFUSAL_LINK;
  if (sender->iwarp) return check_iwarp(sender, receiver);
  return sender->roce ? check_roce(sender, receiver) : check_infiniband(sender, receiver);
}

/* ---- the plan: all of it ----------------------------------------------------- */

static bool in_range(const struct ib_offer *o) {
  return o->nrails >= 1 && o->nrails <= IB_MAX_RAILS && o->qps_per_rail >= 1 && o->qps_per_rail <= IB_MAX_QPS &&
         o->max_write_log2 >= 12 && o->max_write_log2 <= IB_MAX_WRITE_LOG2 && o->sl <= 15 && o->timeout <= 31;
}

/* A multiple of the larger side's rails: each message of one part per rail then uses each rail once. */
static unsigned int count_qps(const struct ib_offer *a, const struct ib_offer *b, unsigned int rails) {
  unsigned int wanted = rails * RAIL_MAX(a->qps_per_rail, b->qps_per_rail);
  unsigned int most = RAIL_MIN(IB_MAX_QPS, RAIL_MIN(a->max_qps, b->max_qps));
  return RAIL_MIN(wanted, most / rails * rails);
}

static enum ib_refusal make(const struct ib_offer *sender, const struct ib_offer *receiver, struct ib_plan *plan,
                            int *sender_rail, int *receiver_rail) {
  if (!in_range(sender) || !in_range(receiver)) return IB_REFUSAL_OFFER;
  if (receiver->recv_depth < IB_RECV_DEPTH) return IB_REFUSAL_DEPTH;
  unsigned int rails = RAIL_MAX(sender->nrails, receiver->nrails);
  plan->nqps = count_qps(sender, receiver, rails);
  if (plan->nqps == 0) return IB_REFUSAL_QPS;
  for (unsigned int i = 0; i < plan->nqps; i++) {
    unsigned int s = i % sender->nrails, r = i % receiver->nrails;
    const struct ib_offer_rail *from = &sender->rails[s], *to = &receiver->rails[r];
    enum ib_refusal refusal = check_pair(from, to);
    if (refusal != IB_REFUSAL_NONE) {
      *sender_rail = (int)s;
      *receiver_rail = (int)r;
      return refusal;
    }
    plan->qps[i] = (struct ib_plan_qp){.local_rail = (uint8_t)s, .remote_rail = (uint8_t)r,
                                       .mtu = RAIL_MIN(from->mtu, to->mtu), .grh = wants_grh(from, to)};
  }
  if (sender->rdmacm != receiver->rdmacm) return IB_REFUSAL_CM;
  if (sender->two_sided != receiver->two_sided) return IB_REFUSAL_PROTOCOL;
  plan->qps_per_message = sender->split || receiver->split ? plan->nqps : rails;
  plan->max_write_log2 = RAIL_MIN(sender->max_write_log2, receiver->max_write_log2);
  plan->ece = sender->ece && receiver->ece;
  plan->verify = sender->verify || receiver->verify;
  plan->rdmacm = sender->rdmacm;
  plan->two_sided = sender->two_sided;
  plan->notices = (sender->no_imm || receiver->no_imm) && !plan->two_sided;
  /* Notices are for NICs whose completions do not say that the peer has the bytes (docs/protocol-ib.md, 8), and a SEND
   * that came twice would take two receive WRs. */
  plan->failover =
    sender->failover && receiver->failover && plan->nqps > 1 && !plan->notices && !plan->two_sided;
  return IB_REFUSAL_NONE;
}

static void swap_sides(struct ib_plan *plan) {
  for (unsigned int i = 0; i < plan->nqps; i++) {
    uint8_t sender_rail = plan->qps[i].local_rail;
    plan->qps[i].local_rail = plan->qps[i].remote_rail;
    plan->qps[i].remote_rail = sender_rail;
  }
}

enum ib_refusal ib_plan_make(const struct ib_offer *mine, const struct ib_offer *theirs, struct ib_plan *plan,
                             int *rail_mine, int *rail_theirs) {
  enum ib_refusal refusal;
  memset(plan, 0, sizeof *plan);
  *rail_mine = *rail_theirs = -1;
  if (mine->sender == theirs->sender) return IB_REFUSAL_OFFER;
  if (mine->sender) {
    refusal = make(mine, theirs, plan, rail_mine, rail_theirs);
  } else {
    refusal = make(theirs, mine, plan, rail_theirs, rail_mine);
    swap_sides(plan);
  }
  if (refusal != IB_REFUSAL_NONE) memset(plan, 0, sizeof *plan);
  return refusal;
}
/* ---- the plan: the step, and what is said of a refusal ----------------------- */

static const char *offer_rail_name(const struct ib_offer *offer, int rail) {
  return rail >= 0 && (unsigned int)rail < offer->nrails ? offer->rails[rail].name : "(all)";
}

static void refuse_plan(struct ib_setup *s, enum ib_refusal refusal, int rail_mine, int rail_theirs) {
  struct ib_refused_plan refused = {.refusal = refusal, .rail_here = rail_mine, .rail_there = rail_theirs};
  struct ib_refused_plan_wire wire;
  if (rail_mine >= 0) memcpy(refused.name, s->mine.rails[rail_mine].name, sizeof refused.name);
  ib_refused_plan_encode(&refused, &wire);
  rail_handshake_refuse(&s->base.handshake, IB_REASON_PLAN, &wire);
}

rail_result_t ib_offer_plan(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  char mine[IB_GID_TEXT], theirs[IB_GID_TEXT];
  int a, b;
  enum ib_refusal refusal = ib_plan_make(&s->mine, &s->theirs, &s->plan, &a, &b);
  if (refusal == IB_REFUSAL_NONE) return RAIL_OK;
  ib_stats_count(s->device->name, IB_DEVICE_REFUSED);
  rail_setup_fail(base, RAIL_REASON_NONE, RAIL_BAD_USAGE, "refused: port %s here (GID %s) and port %s there (GID %s) "
                  "do not fit: %s", offer_rail_name(&s->mine, a),
                  a < 0 ? "any" : ib_gid_text(s->mine.rails[a].gid, mine), offer_rail_name(&s->theirs, b),
                  b < 0 ? "any" : ib_gid_text(s->theirs.rails[b].gid, theirs), ib_refusal_text(refusal));
  base->reason = IB_REASON_PLAN;
  refuse_plan(s, refusal, a, b);
  return RAIL_BAD_USAGE;
}

const char *ib_offer_ports_text(const struct ib_setup *s, unsigned int qp, char text[IB_PORTS_TEXT]) {
  const struct ib_plan_qp *p = &s->plan.qps[qp];
  const struct ib_offer_rail *mine = &s->mine.rails[p->local_rail], *theirs = &s->theirs.rails[p->remote_rail];
  char a[IB_GID_TEXT], b[IB_GID_TEXT];
  snprintf(text, IB_PORTS_TEXT, "port %s here (GID %s) and port %s there (GID %s)", mine->name,
           ib_gid_text(mine->gid, a), theirs->name, ib_gid_text(theirs->gid, b));
  return text;
}
