/* SPDX-License-Identifier: Apache-2.0
 * The responder: requests are checked, carried out, answered. */
#include <string.h>

#include "emu/emu.h"
#include "emu/emu_fault.h"

/* ---- answers ---------------------------------------------------------------------- */

static struct emu_response *response_at(struct emu_qp *qp, uint32_t i) {
  return &qp->responses[(qp->responses_first + i) % qp->responses_cap];
}

/* Queued: they leave in order, when there is room. An ACK takes the one before it along. */
static void respond(struct emu_qp *qp, const struct emu_response *r) {
  struct emu_response *last = qp->responses_n ? response_at(qp, qp->responses_n - 1) : NULL;
  uint64_t asked_at = emu.reading;
  if (last && last->op == EMU_OP_ACK && r->op == EMU_OP_ACK && last->syndrome == EMU_ACK) {
    asked_at = last->asked_at;
  } else {
    if (qp->responses_n == qp->responses_cap) return; /* the requester asks again */
    last = response_at(qp, qp->responses_n++);
  }
  *last = *r;
  last->asked_at = asked_at;
  emu_run_later(qp);
}

static void pop(struct emu_qp *qp) {
  qp->responses_first = (qp->responses_first + 1) % qp->responses_cap;
  qp->responses_n--;
}

static void ack(struct emu_qp *qp, uint8_t syndrome, uint32_t psn) {
  const struct emu_response r = {.op = EMU_OP_ACK, .syndrome = syndrome, .psn = psn};
  respond(qp, &r);
}

void emu_resp_reset(struct emu_qp *qp) {
  qp->responses_n = qp->responses_first = 0;
  qp->nak_sent = qp->in_message = qp->recv_taken = false;
  qp->saved_next = 0;
  memset(qp->saved, 0, (size_t)qp->device->max_rd_atomic * sizeof qp->saved[0]);
}

static void fill(const struct emu_qp *qp, struct emu_packet *p, uint8_t op, uint32_t psn) {
  p->op = op;
  p->flags = 0;
  p->mtu = (uint8_t)qp->attr.path_mtu;
  p->syndrome = 0;
  p->dqpn = qp->attr.dest_qp_num;
  p->sqpn = qp->ex.qp_base.qp_num;
  p->psn = psn;
  p->rkey = p->length = 0;
  p->va = 0;
  p->to = qp->to;
  p->from = qp->from;
  p->compare = 0;
  p->swap = 0;
}

/* The next packet of a read's response. */
static bool send_read_response(struct emu_qp *qp, struct emu_response *r) {
  uint32_t at = r->sent * qp->mtu, payload = r->length - at < qp->mtu ? r->length - at : qp->mtu;
  const struct emu_mr *mr = emu_mr_find(r->rkey);
  uint32_t psn = emu_psn(r->psn + r->sent);
  if (payload && !emu_mr_allows(mr, qp->pd, r->va + at, payload, IBV_ACCESS_REMOTE_READ)) {
    r->op = EMU_OP_ACK;
    r->syndrome = EMU_NAK_REMOTE_ACCESS;
    r->psn = psn;
    return true;
  }
  if (emu_is_throttled(qp, payload)) return false;
  if (!emu_is_lost(qp, payload)) {
    struct emu_packet *p = emu_link_reserve(qp->link, EMU_HEADER, payload);
    if (!p) return false;
    fill(qp, p, EMU_OP_READ_RESPONSE, psn);
    p->flags = (uint8_t)((r->sent == 0 ? EMU_FIRST : 0) | (r->sent + 1 == r->npackets ? EMU_LAST : 0));
    if (payload) emu_mr_read(mr, r->va + at, (char *)p + EMU_HEADER, payload);
    emu_link_commit(qp->link, p);
  }
  r->sent++;
  return true;
}

static bool send_short(struct emu_qp *qp, const struct emu_response *r) {
  if (emu_is_lost(qp, 0)) return true;
  struct emu_packet *p = emu_link_reserve(qp->link, EMU_HEADER, 0);
  if (!p) return false;
  fill(qp, p, r->op, r->psn);
  p->syndrome = r->syndrome;
  p->flags = EMU_FIRST | EMU_LAST;
  p->swap = r->result;
  emu_link_commit(qp->link, p);
  return true;
}

/* In ERR, too: the NAK that says why is still to leave. */
bool emu_resp_run(struct emu_qp *qp) {
  while (qp->responses_n) {
    struct emu_response *r = response_at(qp, 0);
    if (r->op == EMU_OP_READ_RESPONSE) {
      if (!send_read_response(qp, r)) return false;
      if (r->op == EMU_OP_READ_RESPONSE && r->sent < r->npackets) continue;
      if (r->op == EMU_OP_ACK) continue;
    } else if (!send_short(qp, r)) {
      return false;
    }
    pop(qp);
  }
  return true;
}

/* ---- receives ----------------------------------------------------------------------- */

/* The next posted receive becomes that of the message. */
static bool take_receive(struct emu_qp *qp) {
  struct emu_rq *rq = qp->srq ? &qp->srq->rq : &qp->rq;
  if (rq->taken == rq->posted) return false;
  const struct emu_recv *r = &rq->wqes[rq->taken % rq->cap];
  qp->recv.wr_id = r->wr_id;
  qp->recv.nsge = r->nsge;
  for (int i = 0; i < r->nsge; i++) qp->recv_sges[i] = r->sge[i];
  qp->recv_place = rq->taken++;
  qp->recv_taken = true;
  if (!qp->srq) return true;
  rq->freed = rq->taken;
  if (qp->srq->limit && rq->posted - rq->taken < qp->srq->limit) {
    struct ibv_async_event event = {.element.srq = &qp->srq->ibv, .event_type = IBV_EVENT_SRQ_LIMIT_REACHED};
    qp->srq->limit = 0;
    emu_raise(qp->device, &event);
  }
  return true;
}

static void complete_receive(struct emu_qp *qp, const struct ibv_wc *wc, bool solicited) {
  struct ibv_wc full = *wc;
  full.wr_id = qp->recv.wr_id;
  qp->recv_taken = false;
  emu_fault_receive(qp, &full);
  emu_complete(qp, true, qp->recv_place, solicited, &full);
  if (full.status != wc->status) emu_qp_error(qp);
}

static uint64_t room_of(const struct ibv_sge *sge, int n) {
  uint64_t room = 0;
  for (int i = 0; i < n; i++) room += sge[i].length;
  return room;
}

/* Bytes into the receive's pieces, from `at` on. */
static bool scatter(struct emu_qp *qp, uint32_t at, const char *from, uint32_t n) {
  const struct emu_pd *pd = qp->srq ? (struct emu_pd *)(void *)qp->srq->ibv.pd : qp->pd;
  for (int i = 0; i < qp->recv.nsge && n; i++) {
    const struct ibv_sge *sge = &qp->recv_sges[i];
    if (at >= sge->length) {
      at -= sge->length;
      continue;
    }
    uint32_t part = sge->length - at < n ? sge->length - at : n;
    const struct emu_mr *mr = emu_mr_find(sge->lkey);
    if (!emu_mr_allows(mr, pd, sge->addr + at, part, IBV_ACCESS_LOCAL_WRITE)) return false;
    emu_mr_write(mr, sge->addr + at, from, part);
    from += part;
    n -= part;
    at = 0;
  }
  return n == 0;
}

/* ---- refusals -------------------------------------------------------------------------- */

/* A refused request ends the connection: a NAK, an event, ERR. UC: the message is dropped. */
static void refuse(struct emu_qp *qp, const struct emu_packet *p, uint8_t syndrome) {
  qp->in_message = false;
  if (p->flags & EMU_UC) return;
  ack(qp, syndrome, p->psn);
  if (syndrome == EMU_NAK_REMOTE_ACCESS) emu_raise_qp(qp, IBV_EVENT_QP_ACCESS_ERR);
  if (syndrome == EMU_NAK_INVALID_REQUEST) emu_raise_qp(qp, IBV_EVENT_QP_REQ_ERR);
  emu_qp_error(qp);
}

/* The receive is at fault: it completes with the reason. */
static void refuse_receive(struct emu_qp *qp, const struct emu_packet *p, enum ibv_wc_status status, uint8_t syndrome) {
  const struct ibv_wc wc = {.status = status, .vendor_err = 0x32};
  complete_receive(qp, &wc, false);
  qp->in_message = false;
  if (!(p->flags & EMU_UC)) ack(qp, syndrome, p->psn);
  emu_qp_error(qp);
}

static void not_ready(struct emu_qp *qp, const struct emu_packet *p) {
  if (p->flags & EMU_UC) { /* lost */
    qp->in_message = false;
    return;
  }
  qp->nak_sent = true;
  ack(qp, (uint8_t)(EMU_RNR_NAK | (qp->attr.min_rnr_timer & 31)), p->psn);
}

/* ---- requests ---------------------------------------------------------------------------- */

static bool may_access(const struct emu_qp *qp, uint32_t rkey, uint64_t va, uint32_t length, unsigned int access) {
  if (length == 0 && !qp->device->zero_byte_rkey) return true;
  return emu_mr_allows(emu_mr_find(rkey), qp->pd, va, length, access);
}

static void done_packet(struct emu_qp *qp, const struct emu_packet *p, uint32_t npackets) {
  qp->exp_psn = emu_psn(p->psn + npackets);
  qp->nak_sent = false;
}

static bool is_well_formed(const struct emu_qp *qp, const struct emu_packet *p) {
  bool first = p->flags & EMU_FIRST, last = p->flags & EMU_LAST;
  if (first == qp->in_message || (!first && p->op != qp->message_op)) return false;
  if (p->payload > qp->mtu || (!last && p->payload != qp->mtu) || (last && !first && p->payload == 0)) return false;
  if (p->op == EMU_OP_SEND) return true;
  uint32_t left = first ? p->length : qp->message_left;
  return last ? p->payload == left : p->payload < left;
}

static void on_send(struct emu_qp *qp, const struct emu_packet *p, const char *payload) {
  bool first = p->flags & EMU_FIRST, last = p->flags & EMU_LAST;
  if (first && !qp->recv_taken && !take_receive(qp)) {
    not_ready(qp, p);
    return;
  }
  if (first) qp->message_done = 0;
  if (p->payload > room_of(qp->recv_sges, qp->recv.nsge) - qp->message_done) {
    refuse_receive(qp, p, IBV_WC_LOC_LEN_ERR, EMU_NAK_INVALID_REQUEST);
    return;
  }
  if (p->payload && !scatter(qp, qp->message_done, payload, p->payload)) {
    refuse_receive(qp, p, IBV_WC_LOC_PROT_ERR, EMU_NAK_REMOTE_OPERATION);
    return;
  }
  qp->message_done += p->payload;
  qp->in_message = !last;
  qp->message_op = p->op;
  done_packet(qp, p, 1);
  if (!last) return;
  const struct ibv_wc wc = {.opcode = IBV_WC_RECV, .byte_len = qp->message_done, .src_qp = p->sqpn,
                            .imm_data = p->imm, .wc_flags = p->flags & EMU_IMM ? IBV_WC_WITH_IMM : 0};
  complete_receive(qp, &wc, p->flags & EMU_SOLICITED);
  if (!(p->flags & EMU_UC)) ack(qp, EMU_ACK, p->psn);
}

static void on_write(struct emu_qp *qp, const struct emu_packet *p, const char *payload) {
  bool last = p->flags & EMU_LAST;
  if (!(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE)) {
    refuse(qp, p, EMU_NAK_INVALID_REQUEST);
    return;
  }
  if (p->flags & EMU_FIRST) {
    if (!may_access(qp, p->rkey, p->va, p->length, IBV_ACCESS_REMOTE_WRITE)) {
      refuse(qp, p, EMU_NAK_REMOTE_ACCESS);
      return;
    }
    qp->message_rkey = p->rkey;
    qp->message_va = p->va;
    qp->message_left = p->length;
    qp->message_done = 0;
  }
  if (p->payload && !may_access(qp, qp->message_rkey, qp->message_va, p->payload, IBV_ACCESS_REMOTE_WRITE)) {
    refuse(qp, p, EMU_NAK_REMOTE_ACCESS); /* deregistered in the middle of it */
    return;
  }
  if ((p->flags & EMU_IMM) && !qp->recv_taken && !take_receive(qp)) {
    not_ready(qp, p);
    return;
  }
  if (p->payload) emu_mr_write(emu_mr_find(qp->message_rkey), qp->message_va, payload, p->payload);
  qp->message_va += p->payload;
  qp->message_left -= p->payload;
  qp->message_done += p->payload;
  qp->in_message = !last;
  qp->message_op = p->op;
  done_packet(qp, p, 1);
  if (!last) return;
  if (p->flags & EMU_IMM) {
    const struct ibv_wc wc = {.opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = qp->message_done, .src_qp = p->sqpn,
                              .imm_data = p->imm, .wc_flags = IBV_WC_WITH_IMM};
    complete_receive(qp, &wc, p->flags & EMU_SOLICITED);
  }
  if (!(p->flags & EMU_UC)) ack(qp, EMU_ACK, p->psn);
}

static uint32_t packets_of(const struct emu_qp *qp, uint32_t length) {
  return length ? (length + qp->mtu - 1) / qp->mtu : 1;
}

static uint32_t responses_with_resources(struct emu_qp *qp) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < qp->responses_n; i++) n += response_at(qp, i)->op != EMU_OP_ACK;
  return n;
}

/* Also for one that is asked for again: what it reads then is what is there then. */
static void on_read(struct emu_qp *qp, const struct emu_packet *p, bool again) {
  if (!(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_READ) || p->length > 1u << 31) {
    refuse(qp, p, EMU_NAK_INVALID_REQUEST);
    return;
  }
  if (!may_access(qp, p->rkey, p->va, p->length, IBV_ACCESS_REMOTE_READ)) {
    refuse(qp, p, EMU_NAK_REMOTE_ACCESS);
    return;
  }
  if (responses_with_resources(qp) >= qp->attr.max_dest_rd_atomic) {
    if (!again) refuse(qp, p, EMU_NAK_INVALID_REQUEST);
    return;
  }
  const struct emu_response r = {.op = EMU_OP_READ_RESPONSE, .psn = p->psn, .npackets = packets_of(qp, p->length),
                                 .rkey = p->rkey, .va = p->va, .length = p->length};
  if (!again) done_packet(qp, p, r.npackets);
  respond(qp, &r);
}

/* As emu_move: by no thread of the program. */
__attribute__((no_sanitize("thread", "address"))) static uint64_t apply(const struct emu_packet *p, uint64_t *at) {
  uint64_t old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
  for (;;) {
    uint64_t new = p->op == EMU_OP_FETCH_ADD ? old + p->compare : old == p->compare ? p->swap : old;
    if (__atomic_compare_exchange_n(at, &old, new, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return old;
  }
}

static void on_atomic(struct emu_qp *qp, const struct emu_packet *p, bool again) {
  struct emu_response r = {.op = EMU_OP_ATOMIC_RESPONSE, .psn = p->psn};
  if (again) { /* carried out once: the result is kept */
    for (int i = 0; i < qp->device->max_rd_atomic; i++)
      if (qp->saved[i].valid && qp->saved[i].psn == p->psn) {
        r.result = qp->saved[i].result;
        respond(qp, &r);
        return;
      }
    return;
  }
  if (!(qp->attr.qp_access_flags & IBV_ACCESS_REMOTE_ATOMIC) || p->va % 8 ||
      responses_with_resources(qp) >= qp->attr.max_dest_rd_atomic) {
    refuse(qp, p, EMU_NAK_INVALID_REQUEST);
    return;
  }
  const struct emu_mr *mr = emu_mr_find(p->rkey);
  if (!emu_mr_allows(mr, qp->pd, p->va, 8, IBV_ACCESS_REMOTE_ATOMIC)) {
    refuse(qp, p, EMU_NAK_REMOTE_ACCESS);
    return;
  }
  r.result = apply(p, (uint64_t *)(void *)emu_mr_reach(mr, p->va, 8));
  qp->saved[qp->saved_next] = (struct emu_saved_atomic){.psn = p->psn, .result = r.result, .valid = true};
  qp->saved_next = (qp->saved_next + 1) % (uint32_t)qp->device->max_rd_atomic;
  done_packet(qp, p, 1);
  respond(qp, &r);
}

static void carry_out(struct emu_qp *qp, const struct emu_packet *p, const char *payload) {
  switch (p->op) {
    case EMU_OP_SEND:
    case EMU_OP_WRITE:
      if (!is_well_formed(qp, p)) refuse(qp, p, EMU_NAK_INVALID_REQUEST);
      else if (p->op == EMU_OP_SEND) on_send(qp, p, payload);
      else on_write(qp, p, payload);
      break;
    default:
      if (qp->in_message || p->payload) refuse(qp, p, EMU_NAK_INVALID_REQUEST);
      else if (p->op == EMU_OP_READ) on_read(qp, p, false);
      else on_atomic(qp, p, false);
      break;
  }
}

/* One that has been carried out before. */
static void on_duplicate(struct emu_qp *qp, const struct emu_packet *p) {
  if (p->op == EMU_OP_READ) on_read(qp, p, true);
  else if (p->op == EMU_OP_CMP_SWAP || p->op == EMU_OP_FETCH_ADD) on_atomic(qp, p, true);
  else if (!qp->responses_n) ack(qp, EMU_ACK, emu_psn(qp->exp_psn - 1));
}

/* UC: what is missing is lost, up to the next message's beginning. */
static void on_unreliable(struct emu_qp *qp, const struct emu_packet *p, const char *payload) {
  if (p->op != EMU_OP_SEND && p->op != EMU_OP_WRITE) return;
  bool first = p->flags & EMU_FIRST;
  if (p->psn != qp->exp_psn || first) qp->in_message = false;
  qp->exp_psn = emu_psn(p->psn + 1);
  if (first || qp->in_message) carry_out(qp, p, payload);
}

static void on_datagram(struct emu_qp *qp, const struct emu_packet *p, const char *payload) {
  char grh[40] = {0};
  const struct emu_rq *rq = qp->srq ? &qp->srq->rq : &qp->rq;
  if (p->qkey != qp->attr.qkey || rq->taken == rq->posted) return;
  const struct emu_recv *next = &rq->wqes[rq->taken % rq->cap];
  if (p->payload + sizeof grh > room_of(next->sge, next->nsge)) return; /* dropped; the receive is for another one */
  (void)take_receive(qp);
  grh[0] = 0x60;
  grh[4] = (char)(p->payload >> 8);
  grh[5] = (char)p->payload;
  grh[6] = 0x1b;
  grh[7] = 64;
  memcpy(grh + 8, p->sgid.raw, 16);
  memcpy(grh + 24, p->dgid.raw, 16);
  struct ibv_wc wc = {.opcode = IBV_WC_RECV, .byte_len = p->payload + (uint32_t)sizeof grh, .src_qp = p->sqpn,
                      .imm_data = (uint32_t)p->swap, .slid = (uint16_t)p->rkey};
  wc.wc_flags = (p->flags & EMU_IMM ? IBV_WC_WITH_IMM : 0) | (p->flags & EMU_GRH ? IBV_WC_GRH : 0);
  bool good = (!(p->flags & EMU_GRH) || scatter(qp, 0, grh, sizeof grh)) &&
              (!p->payload || scatter(qp, sizeof grh, payload, p->payload));
  if (!good) wc.status = IBV_WC_LOC_PROT_ERR;
  complete_receive(qp, &wc, p->flags & EMU_SOLICITED);
}

void emu_resp_packet(struct emu_qp *qp, const struct emu_packet *p, const char *payload) {
  enum ibv_qp_state state = qp->ex.qp_base.state;
  enum ibv_qp_type type = qp->ex.qp_base.qp_type;
  if (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_SQD && state != IBV_QPS_SQE) return;
  if ((p->op == EMU_OP_UD) != (type == IBV_QPT_UD) || !(p->flags & EMU_UC) != (type != IBV_QPT_UC)) return;
  if (type == IBV_QPT_UD) {
    on_datagram(qp, p, payload);
    return;
  }
  if (type == IBV_QPT_UC) {
    on_unreliable(qp, p, payload);
    return;
  }
  int32_t ahead = emu_psn_diff(p->psn, qp->exp_psn);
  if (ahead == 0) {
    carry_out(qp, p, payload);
  } else if (ahead < 0) {
    on_duplicate(qp, p);
  } else if (!qp->nak_sent) {
    qp->nak_sent = true;
    ack(qp, EMU_NAK_SEQUENCE, qp->exp_psn);
  }
}
