/* SPDX-License-Identifier: Apache-2.0
 * Queue pairs: their life and their states. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "emu/emu.h"
#include "emu/emu_fault.h"
#include "emu/rail_emu.h"

/* ---- creation ----------------------------------------------------------------- */

static int check_init(const struct emu_device *d, const struct ibv_qp_init_attr *a) {
  if (a->qp_type != IBV_QPT_RC && a->qp_type != IBV_QPT_UC && a->qp_type != IBV_QPT_UD) return EOPNOTSUPP;
  if (!a->send_cq || !a->recv_cq) return EINVAL;
  if (a->cap.max_send_wr > (uint32_t)d->max_qp_wr || a->cap.max_send_sge > (uint32_t)d->max_sge ||
      a->cap.max_inline_data > (uint32_t)d->max_inline)
    return EINVAL;
  if (!a->srq && (a->cap.max_recv_wr > (uint32_t)d->max_qp_wr || a->cap.max_recv_sge > (uint32_t)d->max_sge))
    return EINVAL;
  return 0;
}

static void free_memory(struct emu_qp *qp) {
  if (qp->batch) pthread_mutex_destroy(&qp->batch_lock);
  free(qp->sq);
  free(qp->sq_sges);
  free(qp->sq_inline);
  free(qp->batch);
  free(qp->batch_sges);
  free(qp->responses);
  free(qp->saved);
  emu_rq_free(&qp->rq);
  free(qp);
}

static struct emu_qp *new_qp(struct emu_device *d, const struct ibv_qp_init_attr *init) {
  struct emu_qp *qp = calloc(1, sizeof *qp);
  const struct ibv_qp_cap *cap = &init->cap;
  if (!qp) return NULL;
  qp->device = d;
  qp->cap = *cap;
  qp->sq_cap = cap->max_send_wr;
  qp->sq_sig_all = init->sq_sig_all != 0;
  qp->sq = calloc(qp->sq_cap + 1u, sizeof qp->sq[0]);
  qp->sq_sges = calloc((size_t)qp->sq_cap * cap->max_send_sge + 1, sizeof qp->sq_sges[0]);
  qp->sq_inline = calloc((size_t)qp->sq_cap * cap->max_inline_data + 1, 1);
  qp->responses_cap = 2 * (uint32_t)d->max_rd_atomic + 2;
  qp->responses = calloc(qp->responses_cap, sizeof qp->responses[0]);
  qp->saved = calloc((size_t)d->max_rd_atomic, sizeof qp->saved[0]);
  STAILQ_INIT(&qp->held);
  if (init->srq) qp->cap.max_recv_wr = qp->cap.max_recv_sge = 0;
  bool good = emu_rq_init(&qp->rq, qp->cap.max_recv_wr, qp->cap.max_recv_sge);
  if (good && qp->sq && qp->sq_sges && qp->sq_inline && qp->responses && qp->saved) return qp;
  free_memory(qp);
  return NULL;
}

/* Numbers go round, so that one that is free again is used as late as possible. */
static int take_number(struct emu_qp *qp) {
  if (emu.nqps >= EMU_QPS - 2) return ENOMEM;
  do {
    if (++emu.next_qp >= EMU_QPS) emu.next_qp = 2; /* 0 and 1 are special */
    if (emu.next_qp < 2) emu.next_qp = 2;
  } while (emu.qps[emu.next_qp]);
  emu.qps[emu.next_qp] = emu.last_qp = qp;
  emu.nqps++;
  qp->ex.qp_base.qp_num = qp->ex.qp_base.handle = emu_wire_slot() << EMU_QP_BITS | emu.next_qp;
  return 0;
}

static struct emu_qp *create(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
  struct emu_device *d = emu_device_of(pd->context);
  int err = check_init(d, init);
  struct emu_qp *qp = err ? NULL : new_qp(d, init);
  if (!err && !qp) err = ENOMEM;
  if (!err) err = emu_engine_start();
  pthread_mutex_lock(&emu.lock);
  if (!err) err = emu_fault_call("create_qp", -1);
  if (!err && d->fatal) err = EIO;
  if (!err && d->nqp >= d->max_qp) err = ENOMEM;
  if (!err) err = take_number(qp);
  if (!err) {
    struct ibv_qp *ibv = &qp->ex.qp_base;
    d->nqp++;
    qp->pd = (struct emu_pd *)(void *)pd;
    qp->srq = (struct emu_srq *)(void *)init->srq;
    ibv->context = pd->context;
    ibv->qp_context = init->qp_context;
    ibv->pd = pd;
    ibv->send_cq = init->send_cq;
    ibv->recv_cq = init->recv_cq;
    ibv->srq = init->srq;
    ibv->qp_type = init->qp_type;
    emu.ndatagram_qps += ibv->qp_type == IBV_QPT_UD;
    pthread_mutex_init(&ibv->mutex, NULL);
    pthread_cond_init(&ibv->cond, NULL);
    ((struct emu_cq *)(void *)init->send_cq)->users++;
    ((struct emu_cq *)(void *)init->recv_cq)->users++;
    if (qp->srq) qp->srq->users++;
    qp->pd->users++;
    init->cap = qp->cap;
  }
  pthread_mutex_unlock(&emu.lock);
  if (!err) return qp;
  if (qp) free_memory(qp);
  errno = err;
  return NULL;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
  struct emu_qp *qp = create(pd, init);
  return qp ? &qp->ex.qp_base : NULL;
}

struct ibv_qp *emu_create_qp_ex(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr) {
  const uint64_t ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND |
                       IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
                       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
  (void)context;
  bool known = !(attr->comp_mask & ~(uint32_t)(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)) &&
               !((attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) && (attr->send_ops_flags & ~ops));
  if (!known || !(attr->comp_mask & IBV_QP_INIT_ATTR_PD)) {
    errno = known ? EINVAL : EOPNOTSUPP;
    return NULL;
  }
  struct ibv_qp_init_attr init;
  memcpy(&init, attr, sizeof init); /* the same fields in the same places */
  struct ibv_qp *qp = ibv_create_qp(attr->pd, &init);
  if (qp && (attr->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) && !emu_wr_init(emu_qp_of(qp))) {
    (void)ibv_destroy_qp(qp);
    errno = ENOMEM;
    return NULL;
  }
  if (qp) memcpy(attr, &init, sizeof init);
  return qp;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) { return emu_qp_of(qp)->batch ? &emu_qp_of(qp)->ex : NULL; }

static void forget_completions(struct emu_qp *qp) {
  emu_cq_forget((struct emu_cq *)(void *)qp->ex.qp_base.send_cq, qp->ex.qp_base.qp_num);
  emu_cq_forget((struct emu_cq *)(void *)qp->ex.qp_base.recv_cq, qp->ex.qp_base.qp_num);
}

void emu_qp_forget(struct emu_qp *qp) {
  emu.qps[qp->ex.qp_base.qp_num & (EMU_QPS - 1)] = NULL;
  emu.nqps--;
  emu.ndatagram_qps -= qp->ex.qp_base.qp_type == IBV_QPT_UD;
  emu_req_reset(qp);
  emu_resp_reset(qp);
  emu_link_put(qp->link);
  qp->link = NULL;
  if (emu.last_qp == qp) emu.last_qp = NULL;
}

int ibv_destroy_qp(struct ibv_qp *ibv) {
  struct emu_qp *qp = emu_qp_of(ibv);
  pthread_mutex_lock(&emu.lock);
  if (emu_qp_find(ibv->qp_num) == qp) { /* not in a child of the process that made it */
    emu_wire_flush();
    emu_qp_forget(qp);
  } else {
    emu_req_reset(qp);
  }
  emu_forget_events(emu_context_of(ibv->context), ibv);
  emu_wait_acked(&qp->events);
  forget_completions(qp);
  ((struct emu_cq *)(void *)ibv->send_cq)->users--;
  ((struct emu_cq *)(void *)ibv->recv_cq)->users--;
  if (qp->srq) qp->srq->users--;
  qp->pd->users--;
  qp->device->nqp--;
  pthread_mutex_unlock(&emu.lock);
  pthread_cond_destroy(&ibv->cond);
  pthread_mutex_destroy(&ibv->mutex);
  free_memory(qp);
  return 0;
}

/* ---- transitions ------------------------------------------------------------------- */

/* What each step must bring and what it may: ibv_modify_qp(3), and the tables of the InfiniBand specification. */
static const struct transition {
  enum ibv_qp_state from, to;
  int rc, rc_optional, uc, uc_optional, ud, ud_optional;
} transitions[] = {
  {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0,
   IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY, 0},
  {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
   0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY},
  {IBV_QPS_INIT, IBV_QPS_RTR,
   IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
   IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX,
   IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
   IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX, 0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
  {IBV_QPS_RTR, IBV_QPS_RTS,
   IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
   IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE,
   IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE,
   IBV_QP_SQ_PSN, IBV_QP_CUR_STATE | IBV_QP_QKEY},
  {IBV_QPS_RTS, IBV_QPS_RTS, 0,
   IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE,
   0, IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE,
   0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
  {IBV_QPS_RTS, IBV_QPS_SQD, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY, 0, IBV_QP_EN_SQD_ASYNC_NOTIFY, 0,
   IBV_QP_EN_SQD_ASYNC_NOTIFY},
  {IBV_QPS_SQD, IBV_QPS_RTS, 0,
   IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER | IBV_QP_PATH_MIG_STATE,
   0, IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE,
   0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
  {IBV_QPS_SQD, IBV_QPS_SQD, 0,
   IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC |
     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_MIN_RNR_TIMER |
     IBV_QP_PATH_MIG_STATE,
   0, IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PATH_MIG_STATE,
   0, IBV_QP_PKEY_INDEX | IBV_QP_QKEY},
  {IBV_QPS_SQE, IBV_QPS_RTS, 0, 0, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS, 0, IBV_QP_CUR_STATE | IBV_QP_QKEY},
};

static bool is_allowed(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, int mask) {
  mask &= ~IBV_QP_STATE;
  if (to == IBV_QPS_RESET) return mask == 0;
  if (to == IBV_QPS_ERR) return mask == 0 && from != IBV_QPS_RESET; /* as the kernel */
  for (size_t i = 0; i < sizeof transitions / sizeof transitions[0]; i++) {
    const struct transition *t = &transitions[i];
    if (t->from != from || t->to != to) continue;
    if (from == IBV_QPS_SQE && type == IBV_QPT_RC) return false;
    int needed = type == IBV_QPT_RC ? t->rc : type == IBV_QPT_UC ? t->uc : t->ud;
    int optional = type == IBV_QPT_RC ? t->rc_optional : type == IBV_QPT_UC ? t->uc_optional : t->ud_optional;
    return (mask & needed) == needed && !(mask & ~(needed | optional));
  }
  return false;
}

static int check_path(const struct emu_qp *qp, uint8_t number, const struct ibv_ah_attr *ah) {
  if (number == 0 || ah->port_num != number) return EINVAL;
  const struct emu_port *port = &qp->device->ports[number - 1];
  if (!ah->is_global) return port->ib && !port->grh ? 0 : EINVAL;
  return ah->grh.sgid_index < EMU_GIDS && port->gids[ah->grh.sgid_index].valid ? 0 : EINVAL;
}

static int check_attr(const struct emu_qp *qp, const struct ibv_qp_attr *a, int mask) {
  const struct emu_device *d = qp->device;
  if ((mask & IBV_QP_CUR_STATE) && a->cur_qp_state != qp->ex.qp_base.state) return EINVAL;
  if ((mask & IBV_QP_PORT) && (a->port_num < 1 || a->port_num > d->nports)) return EINVAL;
  if ((mask & IBV_QP_PKEY_INDEX) && a->pkey_index >= EMU_PKEYS) return EINVAL;
  if ((mask & IBV_QP_PATH_MTU) &&
      (a->path_mtu < IBV_MTU_256 || a->path_mtu > (enum ibv_mtu)emu_port_of(qp)->mtu))
    return EINVAL;
  if ((mask & IBV_QP_MAX_QP_RD_ATOMIC) && a->max_rd_atomic > d->max_rd_atomic) return EINVAL;
  if ((mask & IBV_QP_MAX_DEST_RD_ATOMIC) && a->max_dest_rd_atomic > d->max_rd_atomic) return EINVAL;
  if ((mask & IBV_QP_TIMEOUT) && a->timeout > 31) return EINVAL;
  if ((mask & IBV_QP_RETRY_CNT) && a->retry_cnt > 7) return EINVAL;
  if ((mask & IBV_QP_RNR_RETRY) && a->rnr_retry > 7) return EINVAL;
  if ((mask & IBV_QP_MIN_RNR_TIMER) && a->min_rnr_timer > 31) return EINVAL;
  if ((mask & IBV_QP_DEST_QPN) && a->dest_qp_num > 0xffffff) return EINVAL;
  return mask & IBV_QP_AV ? check_path(qp, mask & IBV_QP_PORT ? a->port_num : qp->attr.port_num, &a->ah_attr) : 0;
}

static void keep_attr(struct ibv_qp_attr *to, const struct ibv_qp_attr *from, int mask) {
#define KEEP(flag, field) if (mask & (flag)) to->field = from->field
  KEEP(IBV_QP_PKEY_INDEX, pkey_index);
  KEEP(IBV_QP_PORT, port_num);
  KEEP(IBV_QP_QKEY, qkey);
  KEEP(IBV_QP_ACCESS_FLAGS, qp_access_flags);
  KEEP(IBV_QP_AV, ah_attr);
  KEEP(IBV_QP_PATH_MTU, path_mtu);
  KEEP(IBV_QP_DEST_QPN, dest_qp_num);
  KEEP(IBV_QP_RQ_PSN, rq_psn);
  KEEP(IBV_QP_SQ_PSN, sq_psn);
  KEEP(IBV_QP_TIMEOUT, timeout);
  KEEP(IBV_QP_RETRY_CNT, retry_cnt);
  KEEP(IBV_QP_RNR_RETRY, rnr_retry);
  KEEP(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
  KEEP(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
  KEEP(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
#undef KEEP
}

/* Where its packets go and what they say they come from. */
static void take_path(struct emu_qp *qp) {
  const struct emu_port *port = emu_port_of(qp);
  const struct ibv_ah_attr *ah = &qp->attr.ah_attr;
  qp->to = emu_hash_address(port, ah->is_global ? &ah->grh.dgid : NULL, ah->dlid);
  qp->from = ah->is_global ? port->gid_hash[ah->grh.sgid_index] : emu_hash_address(port, NULL, port->lid);
}

static void connect_qp(struct emu_qp *qp) {
  take_path(qp);
  qp->mtu = 128u << qp->attr.path_mtu;
  qp->exp_psn = emu_psn(qp->attr.rq_psn);
  emu_link_put(qp->link);
  qp->link = emu_link_get(qp->attr.dest_qp_num >> EMU_QP_BITS);
}

static void to_reset(struct emu_qp *qp) {
  emu_req_reset(qp);
  emu_resp_reset(qp);
  emu_link_put(qp->link);
  qp->link = NULL;
  forget_completions(qp);
  qp->sq_posted = qp->sq_next = qp->sq_una = qp->sq_freed = 0;
  qp->rq.posted = qp->rq.taken = qp->rq.freed = 0;
  memset(&qp->attr, 0, sizeof qp->attr);
}

static void enter(struct emu_qp *qp, enum ibv_qp_state to) {
  enum ibv_qp_state from = qp->ex.qp_base.state;
  if (to == IBV_QPS_ERR) {
    emu_qp_error(qp);
    return;
  }
  qp->ex.qp_base.state = to;
  if (to == IBV_QPS_RESET) to_reset(qp);
  if (to == IBV_QPS_RTR && qp->ex.qp_base.qp_type != IBV_QPT_UD) connect_qp(qp);
  if (from == IBV_QPS_SQD && to == IBV_QPS_SQD && qp->ex.qp_base.qp_type != IBV_QPT_UD) take_path(qp);
  if (to == IBV_QPS_RTS && from == IBV_QPS_RTR) {
    qp->post_psn = qp->una_psn = qp->high_psn = qp->asked_psn = emu_psn(qp->attr.sq_psn);
    qp->retries_left = qp->attr.retry_cnt;
    qp->rnr_left = qp->attr.rnr_retry;
  }
  if (to == IBV_QPS_RTS) emu_run_later(qp);
  if (to == IBV_QPS_SQD) emu_req_drained(qp);
}

int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask) {
  struct emu_qp *qp = emu_qp_of(ibv);
  pthread_mutex_lock(&emu.lock);
  enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : ibv->state;
  int err = emu_fault_call("modify_qp", mask & IBV_QP_STATE ? (int)to : -1);
  if (!err && qp->device->fatal && to != IBV_QPS_RESET && to != IBV_QPS_ERR) err = EIO;
  if (!err && !is_allowed(ibv->qp_type, ibv->state, to, mask)) err = EINVAL;
  if (!err) err = check_attr(qp, attr, mask);
  if (!err) {
    keep_attr(&qp->attr, attr, mask);
    qp->attr.en_sqd_async_notify = (mask & IBV_QP_EN_SQD_ASYNC_NOTIFY) && attr->en_sqd_async_notify;
    if (mask & IBV_QP_STATE) enter(qp, to);
  }
  pthread_mutex_unlock(&emu.lock);
  return err;
}

int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
  struct emu_qp *qp = emu_qp_of(ibv);
  (void)mask;
  pthread_mutex_lock(&emu.lock);
  int err = emu_fault_call("query_qp", -1);
  *attr = qp->attr;
  attr->qp_state = attr->cur_qp_state = ibv->state;
  attr->sq_draining = ibv->state == IBV_QPS_SQD && emu_req_is_outstanding(qp);
  attr->cap = qp->cap;
  *init = (struct ibv_qp_init_attr){.qp_context = ibv->qp_context, .send_cq = ibv->send_cq, .recv_cq = ibv->recv_cq,
                                    .srq = ibv->srq, .cap = qp->cap, .qp_type = ibv->qp_type,
                                    .sq_sig_all = qp->sq_sig_all};
  pthread_mutex_unlock(&emu.lock);
  return err;
}

/* ---- enhanced connections ------------------------------------------------------------ */

enum { ECE_VENDOR = 0xe500, ECE_OPTIONS = 3 };

/* 0, or what the call fails with: because the device has no such thing, or a statement says so. */
static int check_ece(struct ibv_qp *qp, const char *call) {
  pthread_mutex_lock(&emu.lock);
  int err = emu_fault_call(call, -1);
  pthread_mutex_unlock(&emu.lock);
  return !err && !emu_device_of(qp->context)->ece ? EOPNOTSUPP : err;
}

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
  int err = check_ece(qp, "query_ece");
  memset(ece, 0, sizeof *ece);
  if (!err) *ece = (struct ibv_ece){.vendor_id = ECE_VENDOR, .options = ECE_OPTIONS};
  return err;
}

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
  int err = check_ece(qp, "set_ece");
  return !err && ece->vendor_id && ece->vendor_id != ECE_VENDOR ? EOPNOTSUPP : err;
}

int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags) {
  (void)qp, (void)op, (void)flags;
  return 0;
}

/* ---- for the emulated RDMA CM ---------------------------------------------------- */

struct ibv_qp *rail_emu_qp(unsigned int number) {
  pthread_mutex_lock(&emu.lock);
  struct emu_qp *qp = emu_qp_find(number);
  pthread_mutex_unlock(&emu.lock);
  return qp ? &qp->ex.qp_base : NULL;
}
