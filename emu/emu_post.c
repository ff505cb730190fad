/* SPDX-License-Identifier: Apache-2.0
 * Work requests as they are posted, completions as they are polled. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "emu/emu.h"
#include "emu/emu_fault.h"

/* ---- ibv_post_send ------------------------------------------------------------- */

static bool is_supported(const struct emu_qp *qp, enum ibv_wr_opcode op) {
  enum ibv_qp_type type = qp->ex.qp_base.qp_type;
  if (op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM) return true;
  if (op == IBV_WR_RDMA_WRITE) return type != IBV_QPT_UD;
  if (op == IBV_WR_RDMA_WRITE_WITH_IMM) return type != IBV_QPT_UD && qp->device->imm;
  if (op == IBV_WR_RDMA_READ) return type == IBV_QPT_RC;
  return emu_is_atomic(op) && type == IBV_QPT_RC && qp->device->atomics;
}

/* Places of the queue are counted until a completion at or behind them has been polled. */
static int take(struct emu_qp *qp, const struct ibv_send_wr *wr) {
  if (!is_supported(qp, wr->opcode)) return EINVAL;
  if (wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->cap.max_send_sge) return EINVAL;
  if (qp->sq_posted - qp->sq_freed >= qp->sq_cap) return ENOMEM;
  uint32_t at = (uint32_t)(qp->sq_posted % qp->sq_cap);
  struct emu_sqe *e = &qp->sq[at];
  struct ibv_sge *sge = qp->sq_sges + (size_t)at * qp->cap.max_send_sge;
  uint64_t length = 0;
  for (int i = 0; i < wr->num_sge; i++) {
    sge[i] = wr->sg_list[i];
    length += sge[i].length;
  }
  *e = (struct emu_sqe){.wr_id = wr->wr_id, .opcode = wr->opcode, .flags = wr->send_flags, .imm = wr->imm_data,
                        .nsge = wr->num_sge, .length = (uint32_t)(length > UINT32_MAX ? UINT32_MAX : length)};
  if (emu_is_atomic(wr->opcode)) {
    e->raddr = wr->wr.atomic.remote_addr;
    e->rkey = wr->wr.atomic.rkey;
    e->compare = wr->wr.atomic.compare_add;
    e->swap = wr->wr.atomic.swap;
  } else if (qp->ex.qp_base.qp_type == IBV_QPT_UD) {
    if (!wr->wr.ud.ah) return EINVAL;
    e->path = ((struct emu_ah *)(void *)wr->wr.ud.ah)->attr;
    e->qpn = wr->wr.ud.remote_qpn;
    e->qkey = wr->wr.ud.remote_qkey;
  } else {
    e->raddr = wr->wr.rdma.remote_addr;
    e->rkey = wr->wr.rdma.rkey;
  }
  if (wr->send_flags & IBV_SEND_INLINE) {
    if (length > qp->cap.max_inline_data || wr->opcode == IBV_WR_RDMA_READ || emu_is_atomic(wr->opcode)) return EINVAL;
    char *to = qp->sq_inline + (size_t)at * qp->cap.max_inline_data;
    for (int i = 0; i < wr->num_sge; to += sge[i++].length)
      emu_move(to, (const void *)(uintptr_t)sge[i].addr, sge[i].length);
    e->is_inline = true;
  }
  e->npackets = e->length && qp->mtu ? (e->length + qp->mtu - 1) / qp->mtu : 1;
  e->first_psn = qp->post_psn;
  qp->post_psn = emu_psn(qp->post_psn + e->npackets);
  qp->sq_posted++;
  return 0;
}

static bool may_post_send(enum ibv_qp_state state) {
  return state == IBV_QPS_RTS || state == IBV_QPS_SQD || state == IBV_QPS_ERR || state == IBV_QPS_SQE;
}

/* Up to the first that is refused; or all or none. */
static int post_send(struct emu_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad, bool all_or_none) {
  struct ibv_qp *ibv = &qp->ex.qp_base;
  int err = 0;
  pthread_mutex_lock(&emu.lock);
  const uint64_t posted = qp->sq_posted;
  const uint32_t psn = qp->post_psn;
  qp->turn = 0; /* what the last poll left */
  for (; wr; wr = wr->next) {
    err = emu_fault_call("post_send", -1);
    if (!err && !may_post_send(ibv->state)) err = EINVAL;
    if (!err) err = take(qp, wr);
    if (!err) continue;
    *bad = wr;
    break;
  }
  if (err && all_or_none) {
    qp->sq_posted = posted;
    qp->post_psn = psn;
  }
  if (ibv->state == IBV_QPS_ERR || ibv->state == IBV_QPS_SQE) emu_qp_flush(qp);
  else if (!emu_req_run(qp)) emu_run_later(qp);
  if (emu_fault_is_pending()) emu_progress();
  emu_wire_flush();
  if (emu.progress_by == EMU_BY_POST) emu_quiesce();
  pthread_mutex_unlock(&emu.lock);
  return err;
}

/* Not between another thread's wr_start and wr_complete. The own thread's is refused, as a device's would deadlock. */
int emu_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad) {
  struct emu_qp *qp = emu_qp_of(ibv);
  int err = qp->batch ? pthread_mutex_lock(&qp->batch_lock) : 0;
  if (err) {
    *bad = wr;
    return err;
  }
  err = post_send(qp, wr, bad, false);
  if (qp->batch) pthread_mutex_unlock(&qp->batch_lock);
  return err;
}

int emu_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  struct emu_qp *qp = emu_qp_of(ibv);
  int err = 0;
  pthread_mutex_lock(&emu.lock);
  for (; wr; wr = wr->next) {
    err = emu_fault_call("post_recv", -1);
    if (!err && (ibv->state == IBV_QPS_RESET || qp->srq)) err = EINVAL;
    if (!err) err = emu_rq_post(&qp->rq, wr);
    if (!err) continue;
    *bad = wr;
    break;
  }
  if (ibv->state == IBV_QPS_ERR) emu_qp_flush(qp);
  pthread_mutex_unlock(&emu.lock);
  return err;
}

/* ---- ibv_poll_cq ------------------------------------------------------------------ */

enum { POLLS_WITHOUT_PROGRESS = 16 };

int emu_poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wc) {
  struct emu_cq *cq = (struct emu_cq *)(void *)ibv;
  if (n <= 0) return n < 0 ? -EINVAL : 0;
  atomic_fetch_add_explicit(&emu.polls, 1, memory_order_relaxed);
  if (atomic_load_explicit(&cq->armed, memory_order_relaxed) != EMU_UNARMED)
    atomic_fetch_add_explicit(&emu.armed_polls, 1, memory_order_relaxed);
  if (pthread_mutex_trylock(&emu.lock) != 0) {
    bool is_empty = atomic_load_explicit(&cq->count, memory_order_relaxed) == 0;
    if (is_empty && emu.progress_by == EMU_BY_THREAD) return 0; /* whoever has the lock makes progress */
    pthread_mutex_lock(&emu.lock);
  }
  int err = emu_fault_poll();
  if (err) {
    pthread_mutex_unlock(&emu.lock);
    return -err;
  }
  if (emu.progress_by != EMU_BY_THREAD) emu_turn_polled(cq);
  int got = emu_cq_take(cq, n, wc);
  if (got == 0 || ++cq->since_progress > POLLS_WITHOUT_PROGRESS) {
    cq->since_progress = 0;
    emu_progress();
    if (got < n) got += emu_cq_take(cq, n - got, wc + got);
  }
  pthread_mutex_unlock(&emu.lock);
  return got;
}

int emu_req_notify_cq(struct ibv_cq *ibv, int solicited_only) {
  struct emu_cq *cq = (struct emu_cq *)(void *)ibv;
  pthread_mutex_lock(&emu.lock);
  enum emu_arm arm = solicited_only ? EMU_ARM_SOLICITED : EMU_ARM_ALL;
  if (arm > cq->armed) cq->armed = arm;
  emu_engine_handover();
  pthread_mutex_unlock(&emu.lock);
  return 0;
}

/* ---- ibv_wr_*: requests that are built call by call, and posted by wr_complete ------- */

static struct emu_qp *ex_of(struct ibv_qp_ex *ex) { return (struct emu_qp *)(void *)ex; }

static struct ibv_send_wr *add(struct ibv_qp_ex *ex, enum ibv_wr_opcode op) {
  struct emu_qp *qp = ex_of(ex);
  static __thread struct ibv_send_wr surplus; /* of a batch that is refused anyway */
  if (qp->batch_n == qp->sq_cap) {
    qp->batch_error = ENOMEM;
    return &surplus;
  }
  struct ibv_send_wr *wr = &qp->batch[qp->batch_n];
  memset(wr, 0, sizeof *wr);
  wr->wr_id = ex->wr_id;
  wr->opcode = op;
  wr->send_flags = ex->wr_flags;
  wr->sg_list = qp->batch_sges + (size_t)qp->batch_n * qp->cap.max_send_sge;
  qp->batch_n++;
  return wr;
}

static struct ibv_send_wr *latest(struct ibv_qp_ex *ex) {
  struct emu_qp *qp = ex_of(ex);
  return qp->batch_n ? &qp->batch[qp->batch_n - 1] : NULL;
}

static void add_rdma(struct ibv_qp_ex *ex, enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr, __be32 imm) {
  struct ibv_send_wr *wr = add(ex, op);
  wr->wr.rdma.remote_addr = addr;
  wr->wr.rdma.rkey = rkey;
  wr->imm_data = imm;
}

static void wr_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) {
  add_rdma(ex, IBV_WR_RDMA_WRITE, rkey, addr, 0);
}
static void wr_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm) {
  add_rdma(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
}
static void wr_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) {
  add_rdma(ex, IBV_WR_RDMA_READ, rkey, addr, 0);
}
static void wr_send(struct ibv_qp_ex *ex) { (void)add(ex, IBV_WR_SEND); }
static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm) { add(ex, IBV_WR_SEND_WITH_IMM)->imm_data = imm; }

static void wr_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap) {
  struct ibv_send_wr *wr = add(ex, IBV_WR_ATOMIC_CMP_AND_SWP);
  wr->wr.atomic.remote_addr = addr;
  wr->wr.atomic.rkey = rkey;
  wr->wr.atomic.compare_add = compare;
  wr->wr.atomic.swap = swap;
}

static void wr_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t value) {
  struct ibv_send_wr *wr = add(ex, IBV_WR_ATOMIC_FETCH_AND_ADD);
  wr->wr.atomic.remote_addr = addr;
  wr->wr.atomic.rkey = rkey;
  wr->wr.atomic.compare_add = value;
}

static void wr_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey) {
  struct ibv_send_wr *wr = latest(ex);
  if (!wr) return;
  wr->wr.ud.ah = ah;
  wr->wr.ud.remote_qpn = qpn;
  wr->wr.ud.remote_qkey = qkey;
}

static void set_sges(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *sge) {
  struct ibv_send_wr *wr = latest(ex);
  if (!wr) return;
  if (n > ex_of(ex)->cap.max_send_sge) {
    ex_of(ex)->batch_error = EINVAL;
    return;
  }
  for (size_t i = 0; i < n; i++) wr->sg_list[i] = sge[i];
  wr->num_sge = (int)n;
}

static void wr_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length) {
  const struct ibv_sge sge = {.addr = addr, .length = length, .lkey = lkey};
  set_sges(ex, length ? 1 : 0, &sge);
}

/* By the interface the data need not stay until wr_complete: it is copied to where the request will have it. */
static void wr_inline_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list) {
  struct emu_qp *qp = ex_of(ex);
  struct ibv_send_wr *wr = latest(ex);
  if (!wr || !qp->cap.max_send_sge) {
    qp->batch_error = EINVAL;
    return;
  }
  size_t length = 0, at = (size_t)((qp->sq_posted + qp->batch_n - 1) % qp->sq_cap);
  for (size_t i = 0; i < n; i++) length += list[i].length;
  if (length > qp->cap.max_inline_data || qp->sq_posted - qp->sq_freed + qp->batch_n > qp->sq_cap) {
    qp->batch_error = length > qp->cap.max_inline_data ? EINVAL : ENOMEM;
    return;
  }
  char *to = qp->sq_inline + at * qp->cap.max_inline_data, *begin = to;
  for (size_t i = 0; i < n; to += list[i++].length) memcpy(to, list[i].addr, list[i].length);
  wr->sg_list[0] = (struct ibv_sge){.addr = (uintptr_t)begin, .length = (uint32_t)length};
  wr->num_sge = length ? 1 : 0;
  wr->send_flags |= IBV_SEND_INLINE;
}

static void wr_inline(struct ibv_qp_ex *ex, void *addr, size_t length) {
  const struct ibv_data_buf one = {.addr = addr, .length = length};
  wr_inline_list(ex, 1, &one);
}

static void wr_start(struct ibv_qp_ex *ex) {
  struct emu_qp *qp = ex_of(ex);
  (void)pthread_mutex_lock(&qp->batch_lock); /* EDEADLK: this thread begins anew */
  qp->batch_n = 0;
  qp->batch_error = 0;
}

static int wr_complete(struct ibv_qp_ex *ex) {
  struct emu_qp *qp = ex_of(ex);
  struct ibv_send_wr *bad;
  uint32_t n = qp->batch_n;
  int err = qp->batch_error;
  for (uint32_t i = 0; i + 1 < n; i++) qp->batch[i].next = &qp->batch[i + 1];
  if (!err && n) err = post_send(qp, qp->batch, &bad, true);
  qp->batch_n = 0;
  (void)pthread_mutex_unlock(&qp->batch_lock);
  return err;
}

static void wr_abort(struct ibv_qp_ex *ex) {
  ex_of(ex)->batch_n = 0;
  (void)pthread_mutex_unlock(&ex_of(ex)->batch_lock);
}

bool emu_wr_init(struct emu_qp *qp) {
  struct ibv_qp_ex *ex = &qp->ex;
  pthread_mutexattr_t checked;
  pthread_mutexattr_init(&checked);
  pthread_mutexattr_settype(&checked, PTHREAD_MUTEX_ERRORCHECK);
  pthread_mutex_init(&qp->batch_lock, &checked);
  pthread_mutexattr_destroy(&checked);
  qp->batch = calloc(qp->sq_cap + 1u, sizeof qp->batch[0]);
  qp->batch_sges = calloc((size_t)qp->sq_cap * qp->cap.max_send_sge + 1, sizeof qp->batch_sges[0]);
  ex->wr_atomic_cmp_swp = wr_cmp_swp;
  ex->wr_atomic_fetch_add = wr_fetch_add;
  ex->wr_rdma_read = wr_read;
  ex->wr_rdma_write = wr_write;
  ex->wr_rdma_write_imm = wr_write_imm;
  ex->wr_send = wr_send;
  ex->wr_send_imm = wr_send_imm;
  ex->wr_set_ud_addr = wr_ud_addr;
  ex->wr_set_inline_data = wr_inline;
  ex->wr_set_inline_data_list = wr_inline_list;
  ex->wr_set_sge = wr_sge;
  ex->wr_set_sge_list = set_sges;
  ex->wr_start = wr_start;
  ex->wr_complete = wr_complete;
  ex->wr_abort = wr_abort;
  return qp->batch && qp->batch_sges;
}
