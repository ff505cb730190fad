/* SPDX-License-Identifier: Apache-2.0
 *
 * Both sides check sender and receiver in the same order, so that both find the same first reason; for the receiver the
 * result is swapped at the end.
 */
#include "plugin/ib/ib_plan.h"

#include <string.h>

#include "common/base/compiler.h"
#include "plugin/ib/ib_gid.h"

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

/* ---- one port, two ports ----------------------------------------------- */

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

/* ---- the whole ----------------------------------------------------------- */

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
