/* SPDX-License-Identifier: Apache-2.0
 * The requester: work requests become packets; ACKs and responses complete them; timers send them again. */
#include <string.h>

#include "emu/emu.h"
#include "emu/emu_fault.h"

enum { MOST_PSNS = (1 << 23) - 1 }; /* that may be outstanding: else an answer to an old one is one to a new one */
enum { PACKETS_AT_ONCE = 64, VENDOR_RETRY = 0x81, VENDOR_RNR = 0x87, VENDOR_LOCAL = 0x53, VENDOR_REMOTE = 0x88 };

static struct emu_sqe *sqe_at(struct emu_qp *qp, uint64_t place) { return &qp->sq[place % qp->sq_cap]; }
static struct ibv_sge *sges_of(struct emu_qp *qp, uint64_t place) {
  return qp->sq_sges + (size_t)(place % qp->sq_cap) * qp->cap.max_send_sge;
}
static const char *inline_of(struct emu_qp *qp, uint64_t place) {
  return qp->sq_inline + (size_t)(place % qp->sq_cap) * qp->cap.max_inline_data;
}
static bool has_response(const struct emu_sqe *e) { return e->opcode == IBV_WR_RDMA_READ || emu_is_atomic(e->opcode); }
static bool has_imm(const struct emu_sqe *e) {
  return e->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || e->opcode == IBV_WR_SEND_WITH_IMM;
}

/* ---- completion ----------------------------------------------------------------- */

static enum ibv_wc_opcode wc_opcode(enum ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: return IBV_WC_SEND;
    case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
    default: return IBV_WC_RDMA_WRITE;
  }
}

/* The oldest request is done. */
static void complete(struct emu_qp *qp, enum ibv_wc_status status, uint32_t vendor_err) {
  struct emu_sqe *e = sqe_at(qp, qp->sq_una);
  uint64_t place = qp->sq_una++;
  if (qp->sq_next < qp->sq_una) {
    qp->sq_next = qp->sq_una;
    qp->next_packet = 0;
  }
  if (status == IBV_WC_SUCCESS && !(e->flags & IBV_SEND_SIGNALED) && !qp->sq_sig_all) return;
  const struct ibv_wc wc = {.wr_id = e->wr_id, .status = status, .opcode = wc_opcode(e->opcode),
                            .byte_len = e->length, .vendor_err = vendor_err};
  emu_complete(qp, false, place, false, &wc);
}

void emu_req_fail(struct emu_qp *qp, enum ibv_wc_status status, uint32_t vendor_err) {
  if (qp->sq_una < qp->sq_posted) complete(qp, status, vendor_err);
  emu_sq_error(qp);
}

/* ---- local memory ---------------------------------------------------------------- */

/* Between a request's local pieces, from byte `at` of them on, and packets. False: a piece is not accessible. */
static bool move_local(struct emu_qp *qp, uint64_t place, uint32_t at, char *packet, uint32_t n, bool to_local) {
  const struct emu_sqe *e = sqe_at(qp, place);
  if (e->is_inline) {
    emu_move(packet, inline_of(qp, place) + at, n);
    return true;
  }
  const struct ibv_sge *sge = sges_of(qp, place);
  for (int i = 0; i < e->nsge && n; i++) {
    if (at >= sge[i].length) {
      at -= sge[i].length;
      continue;
    }
    uint32_t part = sge[i].length - at < n ? sge[i].length - at : n;
    const struct emu_mr *mr = emu_mr_find(sge[i].lkey);
    if (!emu_mr_allows(mr, qp->pd, sge[i].addr + at, part, to_local ? IBV_ACCESS_LOCAL_WRITE : 0)) return false;
    if (to_local) emu_mr_write(mr, sge[i].addr + at, packet, part);
    else emu_move(packet, emu_mr_reach(mr, sge[i].addr + at, part), part);
    packet += part;
    n -= part;
    at = 0;
  }
  return n == 0;
}

static enum ibv_wc_status check_local(struct emu_qp *qp, uint64_t place) {
  const struct emu_sqe *e = sqe_at(qp, place);
  const struct ibv_sge *sge = sges_of(qp, place);
  uint32_t most = qp->ex.qp_base.qp_type == IBV_QPT_UD ? 128u << emu_port_of(qp)->mtu : emu_port_of(qp)->max_msg;
  if (e->length > most || e->npackets > MOST_PSNS) return IBV_WC_LOC_LEN_ERR;
  if (emu_is_atomic(e->opcode) && e->length != 8) return IBV_WC_LOC_LEN_ERR;
  if (has_response(e) && qp->attr.max_rd_atomic == 0) return IBV_WC_LOC_QP_OP_ERR;
  for (int i = 0; i < e->nsge && !e->is_inline; i++)
    if (sge[i].length && !emu_mr_allows(emu_mr_find(sge[i].lkey), qp->pd, sge[i].addr, sge[i].length,
                                        has_response(e) ? IBV_ACCESS_LOCAL_WRITE : 0))
      return IBV_WC_LOC_PROT_ERR;
  return IBV_WC_SUCCESS;
}

/* ---- packets out ------------------------------------------------------------------ */

static uint8_t op_of(const struct emu_sqe *e) {
  switch (e->opcode) {
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM: return EMU_OP_SEND;
    case IBV_WR_RDMA_READ: return EMU_OP_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return EMU_OP_CMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return EMU_OP_FETCH_ADD;
    default: return EMU_OP_WRITE;
  }
}

enum sent { SENT, NO_ROOM, NO_ACCESS };

static enum sent send_packet(struct emu_qp *qp, uint64_t place, uint32_t number) {
  const struct emu_sqe *e = sqe_at(qp, place);
  uint32_t skip = e->opcode == IBV_WR_RDMA_READ ? e->received : 0;
  uint32_t at = number * qp->mtu, payload = has_response(e) ? 0 : e->length - at < qp->mtu ? e->length - at : qp->mtu;
  bool last = has_response(e) || number + 1 == e->npackets;
  if (emu_is_throttled(qp, payload)) return NO_ROOM;
  if (emu_is_lost(qp, payload)) return SENT;
  struct emu_packet *p = emu_link_reserve(qp->link, EMU_HEADER, payload);
  if (!p && qp->ex.qp_base.qp_type == IBV_QPT_UC && !emu_link_is_alive(qp->link)) return SENT; /* to nobody */
  if (!p) { /* the peer is slow, or dead: the ACK timer decides when it had time for all that is in the ring */
    qp->sent_at = emu_link_position(qp->link);
    qp->wants_room = true;
    return NO_ROOM;
  }
  p->op = op_of(e);
  int flags = (number == 0 ? EMU_FIRST : 0) | (qp->ex.qp_base.qp_type == IBV_QPT_UC ? EMU_UC : 0);
  if (last) flags |= EMU_LAST | EMU_ACK_REQ | (has_imm(e) ? EMU_IMM : 0);
  if (last && (e->flags & IBV_SEND_SOLICITED)) flags |= EMU_SOLICITED;
  p->flags = (uint8_t)flags;
  p->mtu = (uint8_t)qp->attr.path_mtu;
  p->syndrome = 0;
  p->dqpn = qp->attr.dest_qp_num;
  p->sqpn = qp->ex.qp_base.qp_num;
  p->psn = emu_psn(e->first_psn + number + skip / qp->mtu);
  p->rkey = e->rkey;
  p->length = e->length - skip;
  p->va = e->raddr + skip;
  p->to = qp->to;
  p->from = qp->from;
  p->compare = emu_is_atomic(e->opcode) ? e->compare : e->imm;
  p->swap = e->swap;
  if (payload && !move_local(qp, place, at, (char *)p + EMU_HEADER, payload, false)) return NO_ACCESS;
  emu_link_commit(qp->link, p);
  qp->wants_room = false;
  qp->sent_at = emu_link_position(qp->link);
  return SENT;
}

static enum sent send_datagram(struct emu_qp *qp, uint64_t place) {
  const struct emu_sqe *e = sqe_at(qp, place);
  const struct emu_port *port = emu_port_of(qp);
  const struct ibv_ah_attr *ah = &e->path;
  qp->link = emu_link_keep(qp->link, e->qpn >> EMU_QP_BITS);
  if (emu_is_throttled(qp, e->length)) return NO_ROOM;
  if (emu_is_lost(qp, e->length)) return SENT;
  struct emu_packet *p = emu_link_reserve(qp->link, sizeof *p, e->length);
  if (!p && !emu_link_is_alive(qp->link)) { /* what it is sent is lost; another one may come to its place */
    emu_link_put(qp->link);
    qp->link = NULL;
    return SENT;
  }
  if (!p) return NO_ROOM;
  uint32_t size = p->size;
  memset(p, 0, sizeof *p);
  p->size = size;
  p->payload = p->length = e->length;
  p->op = EMU_OP_UD;
  p->flags = (uint8_t)(EMU_FIRST | EMU_LAST | (has_imm(e) ? EMU_IMM : 0) | (ah->is_global ? EMU_GRH : 0) |
                       (e->flags & IBV_SEND_SOLICITED ? EMU_SOLICITED : 0));
  p->dqpn = e->qpn;
  p->sqpn = qp->ex.qp_base.qp_num;
  p->qkey = e->qkey & 0x80000000u ? qp->attr.qkey : e->qkey;
  p->swap = e->imm;
  p->rkey = port->lid; /* the source's */
  p->to = emu_hash_address(port, ah->is_global ? &ah->grh.dgid : NULL, ah->dlid);
  if (ah->is_global) {
    p->sgid = port->gids[ah->grh.sgid_index].gid;
    p->dgid = ah->grh.dgid;
  }
  if (e->length && !move_local(qp, place, 0, (char *)p + sizeof *p, e->length, false)) return NO_ACCESS;
  emu_link_commit(qp->link, p);
  return SENT;
}

/* Something was sent that is not acknowledged, if only before it is to be sent again. UC and UD have the first half of
 * a message. */
bool emu_req_is_outstanding(const struct emu_qp *qp) {
  return qp->ex.qp_base.qp_type == IBV_QPT_RC ? emu_psn_diff(qp->high_psn, qp->una_psn) > 0 : qp->next_packet != 0;
}

void emu_req_drained(struct emu_qp *qp) {
  if (qp->ex.qp_base.state != IBV_QPS_SQD || !qp->attr.en_sqd_async_notify || emu_req_is_outstanding(qp)) return;
  qp->attr.en_sqd_async_notify = 0;
  emu_raise_qp(qp, IBV_EVENT_SQ_DRAINED);
}

static uint64_t ack_timeout(const struct emu_qp *qp) { return 4096ull << qp->attr.timeout; }

/* The ACK timer runs while an ACK is due, from the latest one on, whatever is sent meanwhile. It runs, too,
 * while the first packet that asks for one finds no room: the peer may be dead. */
static void restart_timer(struct emu_qp *qp) {
  const bool due = emu_psn_diff(qp->asked_psn, qp->una_psn) > 0;
  emu_timer_off(qp, EMU_TIMER_ACK);
  if (qp->ex.qp_base.qp_type != IBV_QPT_RC || qp->attr.timeout == 0 || qp->sq_una == qp->sq_posted) return;
  if (!due && !qp->wants_room) return;
  qp->timed_at = due ? qp->sent_at : UINT64_MAX;
  qp->answers_at = 0;
  emu_timer_set(qp, EMU_TIMER_ACK, emu_now() + ack_timeout(qp));
}

/* Whether the next request may begin. */
enum begun { BEGUN, WAITS, FAILED };

static enum begun begin(struct emu_qp *qp) {
  struct emu_sqe *e = sqe_at(qp, qp->sq_next);
  if (e->stall) return WAITS;
  if (emu_fault_is_pending() || (!e->counted && emu_turn_is_over(qp))) {
    emu_run_later(qp);
    return WAITS;
  }
  enum ibv_wc_status status = check_local(qp, qp->sq_next);
  uint32_t vendor = VENDOR_LOCAL;
  if (status == IBV_WC_SUCCESS && !e->counted) {
    struct emu_verdict verdict = emu_fault_request(qp, e->opcode);
    e->counted = true;
    if (qp->turn) qp->turn--;
    e->stall = verdict.stall;
    e->fault = verdict.status;
    e->fault_vendor = verdict.vendor;
    if (verdict.stall) return WAITS;
    if (emu_fault_is_pending()) { /* it begins when that was done */
      emu_run_later(qp);
      return WAITS;
    }
  }
  if (status == IBV_WC_SUCCESS && e->fault != IBV_WC_SUCCESS) {
    status = e->fault;
    vendor = e->fault_vendor;
  }
  if (status != IBV_WC_SUCCESS) { /* after those before it */
    if (qp->sq_una != qp->sq_next) return WAITS;
    emu_req_fail(qp, status, vendor);
    return FAILED;
  }
  if ((e->flags & IBV_SEND_FENCE) && qp->reads_outstanding) return WAITS;
  if (qp->ex.qp_base.qp_type == IBV_QPT_RC && emu_psn(e->first_psn + e->npackets - qp->una_psn) > MOST_PSNS)
    return WAITS;
  return has_response(e) && qp->reads_outstanding >= qp->attr.max_rd_atomic ? WAITS : BEGUN;
}

/* After a packet of the request at sq_next. */
static void advance(struct emu_qp *qp) {
  struct emu_sqe *e = sqe_at(qp, qp->sq_next);
  uint32_t behind = emu_psn(e->first_psn + (has_response(e) ? e->npackets : qp->next_packet + 1));
  if (emu_psn_diff(behind, qp->high_psn) > 0) qp->high_psn = behind;
  if (has_response(e)) qp->reads_outstanding++;
  if (has_response(e) || ++qp->next_packet == e->npackets) {
    qp->asked_psn = behind;
    qp->sq_next++;
    qp->next_packet = 0;
  }
  if (qp->ex.qp_base.qp_type == IBV_QPT_RC || qp->next_packet != 0) return;
  complete(qp, IBV_WC_SUCCESS, 0);
  emu_req_drained(qp);
}

bool emu_req_run(struct emu_qp *qp) {
  bool all = true;
  for (int i = 0; qp->sq_next < qp->sq_posted; i++) {
    bool has_begun = emu_psn_diff(qp->high_psn, sqe_at(qp, qp->sq_next)->first_psn) > 0;
    if (qp->ex.qp_base.state != IBV_QPS_RTS && !(qp->ex.qp_base.state == IBV_QPS_SQD && has_begun)) break;
    if (qp->timer_at[EMU_TIMER_PAUSE]) break;
    if (i == PACKETS_AT_ONCE) {
      all = false;
      break;
    }
    uint64_t slow = qp->slowed ? 0 : emu_fault_slow(qp);
    if (slow) {
      qp->slowed = true;
      emu_timer_set(qp, EMU_TIMER_PAUSE, emu_now() + slow);
      break;
    }
    if (qp->next_packet == 0) {
      enum begun begun = begin(qp);
      if (begun == FAILED) return true;
      if (begun == WAITS) break;
    }
    bool ud = qp->ex.qp_base.qp_type == IBV_QPT_UD;
    enum sent sent = ud ? send_datagram(qp, qp->sq_next) : send_packet(qp, qp->sq_next, qp->next_packet);
    if (sent == NO_ROOM) {
      all = false;
      break;
    }
    if (sent == NO_ACCESS) { /* deregistered while it was sent */
      while (qp->sq_una < qp->sq_next) complete(qp, IBV_WC_WR_FLUSH_ERR, 0xf9);
      emu_req_fail(qp, IBV_WC_LOC_PROT_ERR, VENDOR_LOCAL);
      return true;
    }
    qp->slowed = false;
    advance(qp);
  }
  if (qp->sq_next == qp->sq_posted) qp->behind = false;
  if (!qp->timer_at[EMU_TIMER_ACK]) restart_timer(qp);
  return all;
}

void emu_req_reset(struct emu_qp *qp) {
  emu_timer_remove(qp);
  emu_run_remove(qp);
  emu_fault_forget(qp);
  qp->next_packet = qp->reads_outstanding = 0;
  qp->wants_room = qp->slowed = qp->behind = qp->implied_nak = false;
  qp->sq_next = qp->sq_una = qp->sq_posted;
  qp->sent_at = 0;
}

/* ---- again -------------------------------------------------------------------------- */

/* From the oldest PSN that was not acknowledged. */
static void rewind_to_una(struct emu_qp *qp) {
  const struct emu_sqe *e = sqe_at(qp, qp->sq_una);
  qp->sq_next = qp->sq_una;
  qp->asked_psn = qp->una_psn;
  qp->next_packet = 0;
  qp->reads_outstanding = 0;
  if (qp->sq_una < qp->sq_posted && !has_response(e)) {
    int32_t into = emu_psn_diff(qp->una_psn, e->first_psn);
    if (into > 0 && (uint32_t)into < e->npackets) qp->next_packet = (uint32_t)into;
  }
  emu_run_later(qp);
}

/* Counts a retry. False: that was the last. */
static bool retry(struct emu_qp *qp) {
  bool endless = qp->device->endless_retry && qp->attr.retry_cnt == 7;
  if (!endless && qp->retries_left == 0) {
    emu_req_fail(qp, IBV_WC_RETRY_EXC_ERR, VENDOR_RETRY);
    return false;
  }
  if (!endless) qp->retries_left--;
  rewind_to_una(qp);
  restart_timer(qp);
  return true;
}

/* A response that is missing is asked for again by the first of those behind it: an implied NAK. The others were under
 * way by then. */
static void retry_response(struct emu_qp *qp) {
  if (qp->implied_nak) return;
  qp->implied_nak = true;
  (void)retry(qp);
}

/* A process that is slow is no device that is silent: what it has not seen yet it may answer. */
void emu_req_timeout(struct emu_qp *qp, enum emu_timer kind, uint64_t now) {
  emu_timer_off(qp, kind);
  if (kind == EMU_TIMER_PAUSE) emu_run_later(qp);
  else if (emu_link_is_silent(qp->link, qp->timed_at, &qp->answers_at)) {
    qp->implied_nak = false;
    (void)retry(qp);
  } else if (qp->timed_at == UINT64_MAX) restart_timer(qp);
  else emu_timer_set(qp, EMU_TIMER_ACK, qp->answers_at ? now : now + ack_timeout(qp)); /* answers are read at once */
}

/* ---- packets in ---------------------------------------------------------------------- */

/* All before `psn` has arrived. False: the response of a read or atomic among it is lost. */
static bool acknowledge(struct emu_qp *qp, uint32_t psn) {
  if (emu_psn_diff(psn, qp->una_psn) <= 0) return true;
  while (qp->sq_una < qp->sq_posted) {
    const struct emu_sqe *e = sqe_at(qp, qp->sq_una);
    uint32_t behind = emu_psn(e->first_psn + e->npackets);
    if (emu_psn_diff(behind, psn) > 0) break;
    if (has_response(e)) return false;
    qp->una_psn = behind;
    complete(qp, IBV_WC_SUCCESS, 0);
  }
  qp->una_psn = psn;
  if (qp->sq_una == qp->sq_posted) return true;
  const struct emu_sqe *e = sqe_at(qp, qp->sq_una);
  int32_t into = emu_psn_diff(psn, e->first_psn);
  if (has_response(e)) qp->una_psn = emu_psn(e->first_psn + e->received / qp->mtu); /* its response says how far */
  else if (qp->sq_next == qp->sq_una && into > (int32_t)qp->next_packet)
    qp->next_packet = (uint32_t)into; /* acknowledged in part while it is sent again */
  return true;
}

static void progressed(struct emu_qp *qp) {
  qp->implied_nak = false;
  qp->retries_left = qp->attr.retry_cnt;
  qp->rnr_left = qp->attr.rnr_retry;
  restart_timer(qp);
  if (qp->sq_next < qp->sq_posted) emu_run_later(qp);
  emu_req_drained(qp);
}

/* In units of 10 us, by the code of 5 bits: 0 is the longest. */
static const uint32_t rnr_times[32] = {65536, 1,   2,   3,   4,   6,    8,    12,   16,   24,   32,
                                       48,    64,  96,  128, 192, 256,  384,  512,  768,  1024, 1536,
                                       2048,  3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152};

static void receiver_not_ready(struct emu_qp *qp, unsigned int code) {
  if (qp->attr.rnr_retry != 7) {
    if (qp->rnr_left == 0) {
      emu_req_fail(qp, IBV_WC_RNR_RETRY_EXC_ERR, VENDOR_RNR);
      return;
    }
    qp->rnr_left--;
  }
  rewind_to_una(qp);
  emu_timer_off(qp, EMU_TIMER_ACK);
  const uint64_t until = emu_now() + rnr_times[code & 31] * 10000ull, slow = qp->timer_at[EMU_TIMER_PAUSE];
  emu_timer_set(qp, EMU_TIMER_PAUSE, slow > until ? slow : until);
}

static void on_ack(struct emu_qp *qp, const struct emu_packet *p) {
  uint32_t before = qp->una_psn;
  bool ack = (p->syndrome & 0x60) == EMU_ACK;
  uint32_t psn = ack ? emu_psn(p->psn + 1) : p->psn;
  if (emu_psn_diff(psn, qp->high_psn) > 0 || emu_psn_diff(psn, qp->una_psn) < 0) return; /* an old one, or nonsense */
  if (!acknowledge(qp, psn)) {
    retry_response(qp);
    return;
  }
  if (qp->una_psn != before) progressed(qp);
  if (ack || qp->sq_una == qp->sq_posted || qp->una_psn != psn) return;
  switch (p->syndrome) {
    case EMU_NAK_SEQUENCE:
      if (emu_req_is_outstanding(qp)) (void)retry(qp);
      break;
    case EMU_NAK_INVALID_REQUEST: emu_req_fail(qp, IBV_WC_REM_INV_REQ_ERR, VENDOR_REMOTE); break;
    case EMU_NAK_REMOTE_ACCESS: emu_req_fail(qp, IBV_WC_REM_ACCESS_ERR, VENDOR_REMOTE); break;
    case EMU_NAK_REMOTE_OPERATION: emu_req_fail(qp, IBV_WC_REM_OP_ERR, VENDOR_REMOTE); break;
    default:
      if ((p->syndrome & 0x60) == EMU_RNR_NAK && emu_req_is_outstanding(qp)) receiver_not_ready(qp, p->syndrome);
      break;
  }
}

static void on_response(struct emu_qp *qp, const struct emu_packet *p, const char *payload) {
  if (emu_psn_diff(p->psn, qp->high_psn) >= 0 || emu_psn_diff(p->psn, qp->una_psn) < 0) return;
  if (!acknowledge(qp, p->psn)) {
    retry_response(qp);
    return;
  }
  if (qp->sq_una == qp->sq_posted) return;
  struct emu_sqe *e = sqe_at(qp, qp->sq_una);
  bool atomic = p->op == EMU_OP_ATOMIC_RESPONSE;
  if (atomic ? !emu_is_atomic(e->opcode) : e->opcode != IBV_WR_RDMA_READ) return;
  if (p->psn != emu_psn(e->first_psn + e->received / qp->mtu)) {
    if (emu_psn_diff(p->psn, e->first_psn) >= 0 && emu_req_is_outstanding(qp)) retry_response(qp); /* one is lost */
    return;
  }
  char result[8];
  uint32_t n = atomic ? 8 : p->payload;
  if (atomic) memcpy(result, &p->swap, sizeof result);
  bool last = p->flags & EMU_LAST;
  bool fits = n <= e->length - e->received && (last ? n == e->length - e->received : n == qp->mtu);
  if (!fits) {
    emu_req_fail(qp, IBV_WC_BAD_RESP_ERR, VENDOR_REMOTE);
    return;
  }
  /* `payload` is only read from: move_local writes to the local side. */
  if (n && !move_local(qp, qp->sq_una, e->received, atomic ? result : (char *)(uintptr_t)payload, n, true)) {
    emu_req_fail(qp, IBV_WC_LOC_PROT_ERR, VENDOR_LOCAL);
    return;
  }
  e->received += n;
  qp->una_psn = emu_psn(p->psn + 1);
  if (last) {
    if (qp->reads_outstanding) qp->reads_outstanding--;
    complete(qp, IBV_WC_SUCCESS, 0);
  }
  progressed(qp);
}

void emu_req_packet(struct emu_qp *qp, const struct emu_packet *p, const char *payload) {
  enum ibv_qp_state state = qp->ex.qp_base.state;
  if (state != IBV_QPS_RTS && state != IBV_QPS_SQD) return;
  if (p->op == EMU_OP_ACK) on_ack(qp, p);
  else on_response(qp, p, payload);
}
