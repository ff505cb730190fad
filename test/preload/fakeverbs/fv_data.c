/* SPDX-License-Identifier: Apache-2.0
 * Work requests: posted, carried out, completed. */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "test/preload/fakeverbs/fv.h"

/* Small copies go word by word, in address order, as an HCA's writes do: who watches memory sees whole words. And a
 * race detector, which knows memcpy, takes this for no thread of its program, as it does an HCA. */
enum { WORDWISE = 4096 };

static void move(char *to, const char *from, size_t size) {
  size_t at = 0;
  if (size > WORDWISE) {
    memcpy(to, from, size);
    return;
  }
  if (((uintptr_t)to | (uintptr_t)from) % sizeof(uint64_t) == 0)
    for (; at + sizeof(uint64_t) <= size; at += sizeof(uint64_t))
      *(volatile uint64_t *)(void *)(to + at) = *(const volatile uint64_t *)(const void *)(from + at);
  for (; at < size; at++) ((volatile char *)to)[at] = ((const volatile char *)from)[at];
}

/* ---- completions ---------------------------------------------------------- */

static void complete(struct fv_qp *qp, bool recv, uint64_t place, const struct ibv_wc *wc) {
  struct fv_cq *cq = (struct fv_cq *)(void *)(recv ? qp->ibv.recv_cq : qp->ibv.send_cq);
  if (cq->overrun) return;
  if (cq->count == cq->cap) {
    struct ibv_async_event event = {.element.cq = &cq->ibv, .event_type = IBV_EVENT_CQ_ERR};
    cq->overrun = true;
    fv_raise(fv_device_of(cq->ibv.context), &event);
    return;
  }
  struct fv_cqe *cqe = &cq->ring[(cq->head + cq->count++) % cq->cap];
  cqe->wc = *wc;
  cqe->wc.qp_num = qp->ibv.qp_num;
  cqe->place = place;
  cqe->recv = recv;
}

static enum ibv_wc_opcode wc_opcode(enum ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ ? IBV_WC_RDMA_READ : IBV_WC_RDMA_WRITE;
}

static void drop_send(struct fv_qp *qp) {
  struct fv_wr *wr = &qp->sends[qp->sq.run++ % qp->sq.cap];
  free(wr->copy);
  wr->copy = NULL;
}

void fv_flush(struct fv_qp *qp) {
  struct ibv_wc wc = {.status = IBV_WC_WR_FLUSH_ERR, .vendor_err = 0xf9};
  while (qp->sq.run < qp->sq.posted) {
    const struct fv_wr *wr = &qp->sends[qp->sq.run % qp->sq.cap];
    wc.wr_id = wr->wr_id;
    complete(qp, false, qp->sq.run, &wc);
    drop_send(qp);
  }
  while (qp->rq.run < qp->rq.posted) {
    wc.wr_id = qp->recvs[qp->rq.run % qp->rq.cap];
    complete(qp, true, qp->rq.run++, &wc);
  }
}

static void forget_in(struct fv_cq *cq, uint32_t number) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < cq->count; i++) {
    struct fv_cqe *cqe = &cq->ring[(cq->head + i) % cq->cap];
    if (cqe->wc.qp_num != number) cq->ring[(cq->head + kept++) % cq->cap] = *cqe;
  }
  cq->count = kept;
}

void fv_forget(struct fv_qp *qp) {
  while (qp->sq.run < qp->sq.posted) drop_send(qp);
  forget_in((struct fv_cq *)(void *)qp->ibv.send_cq, qp->ibv.qp_num);
  forget_in((struct fv_cq *)(void *)qp->ibv.recv_cq, qp->ibv.qp_num);
  qp->sq.posted = qp->sq.run = qp->sq.free = 0;
  qp->rq.posted = qp->rq.run = qp->rq.free = 0;
}

static void break_qp(struct fv_qp *qp) {
  qp->ibv.state = IBV_QPS_ERR;
  fv_flush(qp);
}

/* ---- who is at the other end ---------------------------------------------- */

static bool has_address(struct fv_qp *qp, const struct ibv_ah_attr *ah) {
  const struct fv_port *port = fv_port_of(qp);
  if (!ah->is_global) return port->ib && port->lid == ah->dlid;
  for (int i = 0; i < FV_GIDS; i++)
    if (port->gids[i].valid && memcmp(port->gids[i].gid.raw, ah->grh.dgid.raw, 16) == 0) return true;
  return false;
}

/* The QP that answers, or NULL: nobody does. */
static struct fv_qp *peer_of(struct fv_qp *qp) {
  struct fv_qp *peer = fv_qp_numbered(qp->attr.dest_qp_num);
  if (!peer || (peer->ibv.state != IBV_QPS_RTR && peer->ibv.state != IBV_QPS_RTS)) return NULL;
  bool same = peer->attr.dest_qp_num == qp->ibv.qp_num && peer->attr.path_mtu == qp->attr.path_mtu &&
              fv_port_of(peer)->ib == fv_port_of(qp)->ib;
  return same && has_address(peer, &qp->attr.ah_attr) ? peer : NULL;
}

/* ---- one request ---------------------------------------------------------- */

enum outcome { DONE, WAITS };

/* Where `length` bytes at `addr` are, if this key of the QP's domain allows it. */
static char *reach(const struct fv_qp *qp, uint32_t key, uint64_t addr, uint64_t length, unsigned int access) {
  const struct fv_mr *mr = fv_mr_keyed(key);
  if (!mr || mr->ibv.pd != qp->ibv.pd || (mr->access & access) != access) return NULL;
  if (addr < mr->iova || addr - mr->iova > mr->ibv.length || length > mr->ibv.length - (addr - mr->iova)) return NULL;
  return mr->memory + (addr - mr->iova);
}

static uint64_t length_of(const struct fv_wr *wr) {
  uint64_t length = 0;
  for (int i = 0; i < wr->nsge; i++) length += wr->sge[i].length;
  return length;
}

/* Moves between local pieces and one place of the peer's. */
static enum ibv_wc_status transfer(struct fv_qp *qp, const struct fv_wr *wr, char *remote) {
  bool read = wr->opcode == IBV_WR_RDMA_READ;
  char *local[FV_SGES] = {NULL};
  for (int i = 0; i < wr->nsge && !wr->copy; i++) {
    const struct ibv_sge *sge = &wr->sge[i];
    local[i] = sge->length ? reach(qp, sge->lkey, sge->addr, sge->length, read ? IBV_ACCESS_LOCAL_WRITE : 0) : NULL;
    if (sge->length && !local[i]) return IBV_WC_LOC_PROT_ERR;
  }
  if (wr->copy) {
    move(remote, wr->copy, length_of(wr));
    return IBV_WC_SUCCESS;
  }
  for (int i = 0; i < wr->nsge; i++) {
    if (read) move(local[i], remote, wr->sge[i].length);
    else move(remote, local[i], wr->sge[i].length);
    remote += wr->sge[i].length;
  }
  return IBV_WC_SUCCESS;
}

static void receive(struct fv_qp *peer, const struct fv_qp *qp, const struct fv_wr *wr) {
  struct fv_verdict verdict = fv_judge("recv");
  struct ibv_wc wc = {.wr_id = peer->recvs[peer->rq.run % peer->rq.cap], .status = verdict.status,
                      .opcode = IBV_WC_RECV_RDMA_WITH_IMM, .byte_len = (uint32_t)length_of(wr),
                      .src_qp = qp->ibv.qp_num, .wc_flags = IBV_WC_WITH_IMM, .vendor_err = verdict.vendor};
  wc.imm_data = wr->imm ^ htobe32(wr->twist);
  complete(peer, true, peer->rq.run++, &wc);
  if (verdict.status != IBV_WC_SUCCESS) break_qp(peer);
}

static enum ibv_wc_status refuse(struct fv_qp *peer) {
  struct ibv_async_event event = {.element.qp = &peer->ibv, .event_type = IBV_EVENT_QP_ACCESS_ERR};
  fv_raise(fv_device_of(peer->ibv.context), &event);
  break_qp(peer);
  return IBV_WC_REM_ACCESS_ERR;
}

/* Larger than what the port's network carries? */
static bool has_lost_packet(const struct fv_qp *qp, uint64_t length) {
  uint64_t most = 128u << qp->attr.path_mtu, packet = length < most ? length : most;
  return packet > fv_port_of((struct fv_qp *)(uintptr_t)qp)->packet;
}

static enum outcome carry_out(struct fv_qp *qp, struct fv_wr *wr, struct fv_verdict *verdict) {
  uint64_t length = length_of(wr);
  bool read = wr->opcode == IBV_WR_RDMA_READ, imm = wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  unsigned int access = read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  struct fv_qp *peer = peer_of(qp);
  verdict->vendor = 0x81;
  if (!peer || has_lost_packet(qp, length)) {
    verdict->status = IBV_WC_RETRY_EXC_ERR;
    return DONE;
  }
  if (fv_port_of(peer)->state != IBV_PORT_ACTIVE || (imm && peer->rq.run == peer->rq.posted)) return WAITS;
  if (length > fv_port_of(qp)->max_msg) {
    verdict->status = IBV_WC_LOC_LEN_ERR;
    return DONE;
  }
  char *remote = length ? reach(peer, wr->rkey, wr->remote_addr, length, access) : NULL;
  if (length && (!remote || !(peer->attr.qp_access_flags & access))) {
    verdict->status = refuse(peer);
    return DONE;
  }
  verdict->status = length ? transfer(qp, wr, remote) : IBV_WC_SUCCESS;
  if (verdict->status == IBV_WC_SUCCESS && imm) receive(peer, qp, wr);
  return DONE;
}

static const char *op_name(enum ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_READ ? "read" : opcode == IBV_WR_RDMA_WRITE ? "write" : "imm";
}

/* The next request of the send queue. */
static enum outcome step(struct fv_qp *qp) {
  struct fv_wr *wr = &qp->sends[qp->sq.run % qp->sq.cap];
  struct fv_verdict verdict = {.status = IBV_WC_SUCCESS};
  if (qp->stalled || fv_port_of(qp)->state != IBV_PORT_ACTIVE) return WAITS;
  if (!wr->counted) { /* one that waited is looked at again */
    verdict = fv_judge(op_name(wr->opcode));
    wr->twist = verdict.twist;
    wr->counted = true;
  }
  qp->stalled = verdict.stall;
  if (qp->stalled) return WAITS;
  if (verdict.status == IBV_WC_SUCCESS && carry_out(qp, wr, &verdict) == WAITS) return WAITS;
  bool good = verdict.status == IBV_WC_SUCCESS;
  struct ibv_wc wc = {.wr_id = wr->wr_id, .status = verdict.status, .opcode = wc_opcode(wr->opcode),
                      .byte_len = (uint32_t)length_of(wr), .vendor_err = good ? 0 : verdict.vendor};
  uint64_t place = qp->sq.run;
  if (!good || (wr->flags & IBV_SEND_SIGNALED) || qp->init.sq_sig_all) complete(qp, false, place, &wc);
  drop_send(qp);
  if (!good) break_qp(qp);
  return DONE;
}

static void run(struct fv_qp *qp, unsigned int most) {
  for (unsigned int i = 0; i < most && qp->ibv.state == IBV_QPS_RTS && qp->sq.run < qp->sq.posted; i++)
    if (step(qp) == WAITS) return;
}

/* ---- posting and polling --------------------------------------------------- */

static int take_send(struct fv_qp *qp, const struct ibv_send_wr *from) {
  struct fv_wr *wr = &qp->sends[qp->sq.posted % qp->sq.cap];
  bool one = from->opcode == IBV_WR_RDMA_WRITE || from->opcode == IBV_WR_RDMA_WRITE_WITH_IMM ||
             from->opcode == IBV_WR_RDMA_READ;
  if (!one || from->num_sge > (int)qp->init.cap.max_send_sge || from->num_sge < 0) return EINVAL;
  if (qp->sq.posted - qp->sq.free >= qp->sq.cap) return ENOMEM;
  *wr = (struct fv_wr){.wr_id = from->wr_id, .opcode = from->opcode, .flags = from->send_flags, .imm = from->imm_data,
                       .remote_addr = from->wr.rdma.remote_addr, .rkey = from->wr.rdma.rkey, .nsge = from->num_sge};
  for (int i = 0; i < wr->nsge; i++) wr->sge[i] = from->sg_list[i];
  uint64_t length = length_of(wr), at = 0;
  if (wr->flags & IBV_SEND_INLINE) {
    if (length > qp->init.cap.max_inline_data || wr->opcode == IBV_WR_RDMA_READ) return EINVAL;
    wr->copy = malloc(length + 1);
    if (!wr->copy) return ENOMEM;
    for (int i = 0; i < wr->nsge; at += wr->sge[i++].length)
      memcpy(wr->copy + at, (const void *)(uintptr_t)wr->sge[i].addr, wr->sge[i].length);
  }
  qp->sq.posted++;
  return 0;
}

int fv_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  struct fv_qp *qp = (struct fv_qp *)(void *)ibv;
  pthread_mutex_lock(&fv.lock);
  int err = 0;
  for (; wr && !err; wr = err ? wr : wr->next) {
    err = fv_fault("post_send", -1);
    if (!err && ibv->state != IBV_QPS_RTS && ibv->state != IBV_QPS_ERR) err = EINVAL;
    if (!err) err = take_send(qp, wr);
    if (err) *bad = wr;
  }
  if (ibv->state == IBV_QPS_ERR) fv_flush(qp);
  else if (!fv.poll_mode) run(qp, UINT32_MAX);
  pthread_mutex_unlock(&fv.lock);
  return err;
}

int fv_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  struct fv_qp *qp = (struct fv_qp *)(void *)ibv;
  pthread_mutex_lock(&fv.lock);
  int err = 0;
  for (; wr && !err; wr = err ? wr : wr->next) {
    err = fv_fault("post_recv", -1);
    if (!err && ibv->state == IBV_QPS_RESET) err = EINVAL;
    if (!err && qp->rq.posted - qp->rq.free >= qp->rq.cap) err = ENOMEM;
    if (err) *bad = wr;
    else qp->recvs[qp->rq.posted++ % qp->rq.cap] = wr->wr_id;
  }
  if (ibv->state == IBV_QPS_ERR) fv_flush(qp);
  pthread_mutex_unlock(&fv.lock);
  return err;
}

static bool passed_over(void) {
  if (!fv.skip) return false;
  fv.skip = fv.skip * 6364136223846793005u + 1442695040888963407u;
  return fv.skip >> 63;
}

int fv_poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wc) {
  struct fv_cq *cq = (struct fv_cq *)(void *)ibv;
  int got = 0;
  pthread_mutex_lock(&fv.lock);
  int err = fv_fault("poll_cq", -1);
  for (struct fv_qp *qp = fv.qps; qp && !err; qp = qp->next)
    if (qp->ibv.send_cq == ibv && !passed_over()) run(qp, fv.burst);
  for (; got < n && cq->count && !err; got++) {
    const struct fv_cqe *cqe = &cq->ring[cq->head];
    struct fv_qp *qp = fv_qp_numbered(cqe->wc.qp_num);
    wc[got] = cqe->wc;
    if (qp && cqe->recv) qp->rq.free = cqe->place + 1;
    if (qp && !cqe->recv) qp->sq.free = cqe->place + 1;
    cq->head = (cq->head + 1) % cq->cap;
    cq->count--;
  }
  pthread_mutex_unlock(&fv.lock);
  return err ? -err : got;
}

#define STATUS_NAME(status) \
  case status: return &#status[sizeof "IBV_WC_" - 1]
const char *ibv_wc_status_str(enum ibv_wc_status status) {
  switch (status) {
    STATUS_NAME(IBV_WC_SUCCESS);
    STATUS_NAME(IBV_WC_LOC_LEN_ERR);
    STATUS_NAME(IBV_WC_LOC_QP_OP_ERR);
    STATUS_NAME(IBV_WC_LOC_PROT_ERR);
    STATUS_NAME(IBV_WC_WR_FLUSH_ERR);
    STATUS_NAME(IBV_WC_REM_INV_REQ_ERR);
    STATUS_NAME(IBV_WC_REM_ACCESS_ERR);
    STATUS_NAME(IBV_WC_REM_OP_ERR);
    STATUS_NAME(IBV_WC_RETRY_EXC_ERR);
    STATUS_NAME(IBV_WC_RNR_RETRY_EXC_ERR);
    default: return "another status";
  }
}
