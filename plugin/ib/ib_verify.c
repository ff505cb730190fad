/* SPDX-License-Identifier: Apache-2.0
 *
 * The first writes over each queue pair, both ways, into the other's own memory: a packet as large as the path's MTU,
 * for which nothing asks but that it gets through, and behind it the word that the peer waits for.
 * The side channel and the HCAs go different ways: TCP may work where RDMA is
 * lost to a wrong GID, VLAN, MTU or firewall. Found here it has a peer, two
 * ports and two GIDs in its line; found by the first message, half a minute
 * later, it would be "retry exceeded".
 */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "plugin/ib/ib_error.h"
#include "plugin/ib/ib_setup.h"
#include "plugin/ib/ib_progress.h"

#define COMPLETIONS_AT_ONCE 16
#define WRITE_SIZE sizeof(uint64_t)

static struct ib_verify *words_of(const struct ib_setup *s) {
  return (struct ib_verify *)((uintptr_t)s->ours.verify_addr - offsetof(struct ib_verify, in));
}

/* "from port A (GID a) to port B (GID b)" of one queue pair. */
static const char *way_of(const struct ib_setup *s, unsigned int qp, char text[320]) {
  const struct ib_plan_qp *p = &s->plan.qps[qp];
  const struct ib_offer_rail *mine = &s->mine.rails[p->local_rail], *theirs = &s->theirs.rails[p->remote_rail];
  char a[IB_GID_TEXT], b[IB_GID_TEXT];
  snprintf(text, 320, "port %s here (GID %s) and port %s there (GID %s)", mine->name, ib_gid_text(mine->gid, a),
           theirs->name, ib_gid_text(theirs->gid, b));
  return text;
}

#define ADVICE \
  "TCP between the hosts works and RDMA does not: look at NCCL_IB_GID_INDEX, the VLANs and MTUs of both ports, " \
  "routing between the two GIDs, and UDP port 4791 in firewalls (RAIL_IB_VERIFY=0 leaves this test out)"

/* The rings are empty, here and there, until all first writes have come: zeros over zeros. */
_Static_assert(sizeof(struct ib_cts_ring) >= 128u << IBV_MTU_4096, "a packet fits");

rail_result_t ib_setup_test_writes(struct ib_setup *s) {
  if (!s->plan.verify) return RAIL_OK;
  struct ib_verify *words = words_of(s);
  struct ib_qp *qp = &s->comm->qps[s->piece];
  char way[320];
  words->out = s->peers.token;
  const uint32_t lkey = s->comm->rails[qp->rail].own_mr->lkey, rkey = s->peers.rkeys[qp->remote_rail];
  struct ibv_sge sges[] = {{.addr = s->ours.own_addr, .length = 128u << qp->path.mtu, .lkey = lkey},
                           {.addr = (uintptr_t)&words->out, .length = WRITE_SIZE, .lkey = lkey}};
  struct ibv_send_wr wrs[2], *bad = NULL;
  memset(wrs, 0, sizeof wrs);
  for (unsigned int i = 0; i < 2; i++) {
    wrs[i].wr_id = ib_wr_id(IB_WR_VERIFY, s->piece, i + 1, 0);
    wrs[i].sg_list = &sges[i];
    wrs[i].num_sge = 1;
    wrs[i].opcode = IBV_WR_RDMA_WRITE;
    wrs[i].wr.rdma.rkey = rkey;
  }
  wrs[0].next = &wrs[1];
  wrs[0].wr.rdma.remote_addr = s->peers.own_addr;
  wrs[1].wr.rdma.remote_addr = s->peers.verify_addr + s->piece * WRITE_SIZE;
  wrs[1].send_flags = IBV_SEND_SIGNALED;
  int err = ibv_post_send(qp->qp, wrs, &bad);
  if (err)
    return ib_setup_fail(s, IB_REASON_VERIFY, RAIL_SYSTEM_ERROR, "the first write between %s could not be posted: %s",
                         way_of(s, s->piece, way), strerror(err));
  return ib_setup_piece_done(s, s->plan.nqps);
}

/* What was flushed only followed another failure: that one is worth the line, if it is here. */
static const struct ibv_wc *worst_of(const struct ibv_wc *wc, int n) {
  const struct ibv_wc *worst = NULL;
  for (int i = 0; i < n; i++)
    if (wc[i].status != IBV_WC_SUCCESS && (!worst || worst->status == IBV_WC_WR_FLUSH_ERR)) worst = &wc[i];
  return worst;
}

static rail_result_t poll(struct ib_setup *s, struct ibv_cq *cq) {
  struct ibv_wc wc[COMPLETIONS_AT_ONCE];
  char way[320];
  int n = ibv_poll_cq(cq, COMPLETIONS_AT_ONCE, wc);
  if (n < 0) return ib_setup_fail(s, IB_REASON_VERIFY, RAIL_SYSTEM_ERROR, "a completion queue cannot be polled");
  const struct ibv_wc *worst = worst_of(wc, n);
  if (worst) {
    const struct ib_error_row *row = ib_error_row(worst->status);
    unsigned int qp = ib_wr_qp(worst->wr_id);
    return ib_setup_fail(s, IB_REASON_VERIFY, RAIL_REMOTE_ERROR, "the first write between %s failed: %s (status %d, "
                         "vendor error 0x%x); %s", way_of(s, qp < s->plan.nqps ? qp : 0, way), row->what,
                         worst->status, worst->vendor_err, ADVICE);
  }
  for (int i = 0; i < n; i++) s->verified += ib_wr_kind(wc[i].wr_id) == IB_WR_VERIFY;
  return RAIL_OK;
}

/* The queue pair whose test write of the peer's is not here; nqps: all are. */
static unsigned int missing(const struct ib_setup *s) {
  const struct ib_verify *words = words_of(s);
  unsigned int i = 0;
  while (i < s->plan.nqps && __atomic_load_n(&words->in[i], __ATOMIC_ACQUIRE) == s->ours.token) i++;
  return i;
}

/* A peer whose side failed says so or hangs up; one whose side is complete may be at PING and GOODBYE already. */
static rail_result_t hear_refusal(struct ib_setup *s) {
  struct ib_message message;
  rail_result_t result = ib_side_peek(&s->side);
  if (result == RAIL_OK) {
    result = ib_setup_hear(s, IB_MESSAGE_ANSWER, &message);
    if (result != RAIL_OK) return result;
    return ib_setup_fail(s, IB_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it said welcome twice");
  }
  if (result == RAIL_IN_PROGRESS) return result;
  return ib_setup_fail(s, IB_REASON_GONE, RAIL_REMOTE_ERROR, "it closed the connection during the first writes");
}

rail_result_t ib_setup_verified(struct ib_setup *s) {
  char way[320];
  if (!s->plan.verify) return RAIL_OK;
  for (unsigned int i = 0; i < s->comm->nrails; i++) RAIL_TRY(poll(s, s->comm->rails[i].cq));
  unsigned int first = missing(s);
  if (first == s->plan.nqps && s->verified == s->plan.nqps) return RAIL_OK;
  rail_result_t result = hear_refusal(s);
  if (result != RAIL_IN_PROGRESS) return result;
  if (!ib_setup_is_late(s)) return result;
  return ib_setup_fail(s, IB_REASON_VERIFY, RAIL_REMOTE_ERROR, "no first write %s between %s within the time limit "
                       "(RAIL_IB_CONNECT_TIMEOUT): %s", first < s->plan.nqps ? "came in" : "was acknowledged",
                       way_of(s, first < s->plan.nqps ? first : 0, way), ADVICE);
}
