/* SPDX-License-Identifier: Apache-2.0
 * Protection domains, registrations, CQs, and the life of QPs. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/preload/fakeverbs/fv.h"

long fakeverbs_live(const char *kind);

/* What `call` fails with; the lock is held from here to leave(). */
static int enter(const char *call, int to_state) {
  pthread_mutex_lock(&fv.lock);
  return fv_fault(call, to_state);
}

static int leave(int err) {
  pthread_mutex_unlock(&fv.lock);
  if (err) errno = err;
  return err;
}

struct pd {
  struct ibv_pd ibv;
  unsigned int users;
};

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  int err = enter("alloc_pd", -1);
  struct pd *pd = err ? NULL : calloc(1, sizeof *pd);
  if (pd) {
    pd->ibv.context = context;
    fv.pds++;
  }
  leave(err);
  return pd ? &pd->ibv : NULL;
}

int ibv_dealloc_pd(struct ibv_pd *ibv) {
  struct pd *pd = (struct pd *)(void *)ibv;
  pthread_mutex_lock(&fv.lock);
  if (pd->users) return leave(EBUSY);
  fv.pds--;
  free(pd);
  return leave(0);
}

/* ---- registrations ------------------------------------------------------ */

struct fv_mr *fv_mr_keyed(uint32_t key) {
  for (struct fv_mr *mr = fv.mrs; mr; mr = mr->next)
    if (mr->ibv.lkey == key) return mr;
  return NULL;
}

static struct ibv_mr *add_mr(struct ibv_pd *pd, const struct fv_mr *form) {
  struct fv_mr *mr = malloc(sizeof *mr);
  if (!mr) return NULL;
  *mr = *form;
  mr->ibv.context = pd->context;
  mr->ibv.pd = pd;
  mr->ibv.lkey = mr->ibv.rkey = ++fv.numbers * 0x101u;
  mr->next = fv.mrs;
  fv.mrs = mr;
  ((struct pd *)(void *)pd)->users++;
  return &mr->ibv;
}

/* As the kernel: what may be written from elsewhere must be writable here. */
static bool is_access(unsigned int access) {
  return !(access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) || (access & IBV_ACCESS_LOCAL_WRITE);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access) {
  int err = enter("reg_mr", -1);
  if (!err && (!is_access(access) || length == 0 || (uintptr_t)addr + length < (uintptr_t)addr)) err = EINVAL;
  struct fv_mr form = {.ibv = {.addr = addr, .length = length}, .iova = iova, .memory = addr, .access = access};
  struct ibv_mr *mr = err ? NULL : add_mr(pd, &form);
  leave(err);
  return mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
  return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
  int err = enter("reg_dmabuf_mr", -1);
  size_t page = (size_t)sysconf(_SC_PAGESIZE), skip = offset % page;
  struct ibv_mr *mr = NULL;
  if (!err && !fv_device_of(pd->context)->dmabuf) err = EOPNOTSUPP;
  else if (!err && fd < 0) err = EBADF;
  else if (!err && (!is_access((unsigned int)access) || length == 0)) err = EINVAL;
  if (!err) {
    void *mapped = mmap(NULL, length + skip, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(offset - skip));
    if (mapped == MAP_FAILED) err = errno;
    struct fv_mr form = {.ibv = {.length = length}, .iova = iova, .memory = (char *)mapped + skip, .mapped = mapped,
                         .mapped_size = length + skip, .access = (unsigned int)access};
    if (!err) mr = add_mr(pd, &form);
  }
  leave(err);
  return mr;
}

int ibv_dereg_mr(struct ibv_mr *ibv) {
  struct fv_mr *mr = (struct fv_mr *)(void *)ibv, **at;
  pthread_mutex_lock(&fv.lock);
  for (at = &fv.mrs; *at && *at != mr;) at = &(*at)->next;
  if (!*at) return leave(EINVAL);
  *at = mr->next;
  ((struct pd *)(void *)mr->ibv.pd)->users--;
  if (mr->mapped) munmap(mr->mapped, mr->mapped_size);
  free(mr);
  return leave(0);
}

/* ---- completion queues --------------------------------------------------- */

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
                             int comp_vector) {
  int err = enter("create_cq", -1), wanted = fv_device_of(context)->cq_size;
  if (!err && (cqe < 1 || comp_vector < 0 || comp_vector >= context->num_comp_vectors)) err = EINVAL;
  struct fv_cq *cq = err ? NULL : calloc(1, sizeof *cq);
  if (cq) {
    cq->cap = (uint32_t)(wanted ? wanted : cqe);
    cq->ring = calloc(cq->cap, sizeof cq->ring[0]);
    cq->ibv.context = context;
    cq->ibv.channel = channel;
    cq->ibv.cq_context = cq_context;
    cq->ibv.cqe = (int)cq->cap;
    cq->next = fv.cqs;
    fv.cqs = cq;
  }
  leave(err);
  return cq ? &cq->ibv : NULL;
}

int ibv_destroy_cq(struct ibv_cq *ibv) {
  struct fv_cq *cq = (struct fv_cq *)(void *)ibv, **at;
  pthread_mutex_lock(&fv.lock);
  if (cq->users) return leave(EBUSY);
  fv_wait_acked(&cq->events);
  for (at = &fv.cqs; *at && *at != cq;) at = &(*at)->next;
  if (*at) *at = cq->next;
  free(cq->ring);
  free(cq);
  return leave(0);
}

/* ---- QPs ----------------------------------------------------------------- */

struct fv_qp *fv_qp_numbered(uint32_t number) {
  for (struct fv_qp *qp = fv.qps; qp; qp = qp->next)
    if (qp->ibv.qp_num == number) return qp;
  return NULL;
}

static bool is_good_init(const struct fv_device *d, const struct ibv_qp_init_attr *a) {
  return a->qp_type == IBV_QPT_RC && a->send_cq && a->recv_cq && !a->srq &&
         a->cap.max_send_wr <= (uint32_t)d->max_qp_wr && a->cap.max_recv_wr <= (uint32_t)d->max_qp_wr &&
         a->cap.max_send_sge <= FV_SGES && a->cap.max_inline_data <= (uint32_t)d->max_inline;
}

static struct fv_qp *add_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
  struct fv_qp *qp = calloc(1, sizeof *qp);
  if (!qp) return NULL;
  qp->init = *init;
  qp->sq.cap = init->cap.max_send_wr;
  qp->rq.cap = init->cap.max_recv_wr;
  qp->sends = calloc(qp->sq.cap + 1, sizeof qp->sends[0]);
  qp->recvs = calloc(qp->rq.cap + 1, sizeof qp->recvs[0]);
  qp->ibv.context = pd->context;
  qp->ibv.qp_context = init->qp_context;
  qp->ibv.pd = pd;
  qp->ibv.send_cq = init->send_cq;
  qp->ibv.recv_cq = init->recv_cq;
  qp->ibv.qp_type = init->qp_type;
  qp->ibv.qp_num = 0x100 + ++fv.numbers;
  qp->attr.port_num = 1;
  ((struct fv_cq *)(void *)init->send_cq)->users++;
  ((struct fv_cq *)(void *)init->recv_cq)->users++;
  ((struct pd *)(void *)pd)->users++;
  qp->next = fv.qps;
  fv.qps = fv.last_qp = qp;
  return qp;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init) {
  int err = enter("create_qp", -1);
  if (!err && !is_good_init(fv_device_of(pd->context), init)) err = EINVAL;
  struct fv_qp *qp = err ? NULL : add_qp(pd, init);
  leave(err);
  return qp ? &qp->ibv : NULL;
}

int ibv_destroy_qp(struct ibv_qp *ibv) {
  struct fv_qp *qp = (struct fv_qp *)(void *)ibv, **at;
  pthread_mutex_lock(&fv.lock);
  fv_wait_acked(&qp->events);
  for (at = &fv.qps; *at && *at != qp;) at = &(*at)->next;
  if (*at) *at = qp->next;
  if (fv.last_qp == qp) fv.last_qp = fv.qps;
  fv_forget(qp);
  ((struct fv_cq *)(void *)ibv->send_cq)->users--;
  ((struct fv_cq *)(void *)ibv->recv_cq)->users--;
  ((struct pd *)(void *)ibv->pd)->users--;
  free(qp->sends);
  free(qp->recvs);
  free(qp);
  return leave(0);
}

/* What each step of an RC QP must bring; see ibv_modify_qp(3). */
static int needed_for(enum ibv_qp_state from, enum ibv_qp_state to) {
  if (from == IBV_QPS_RESET && to == IBV_QPS_INIT) return IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR)
    return IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
           IBV_QP_MIN_RNR_TIMER;
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS)
    return IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  return to == IBV_QPS_ERR || to == IBV_QPS_RESET ? 0 : -1;
}

static bool is_good_path(const struct fv_qp *qp, const struct ibv_qp_attr *a) {
  const struct fv_port *port = &fv_device_of(qp->ibv.context)->ports[qp->attr.port_num - 1];
  if (a->ah_attr.port_num != qp->attr.port_num || a->path_mtu < IBV_MTU_256 || a->path_mtu > (enum ibv_mtu)port->mtu)
    return false;
  if (!a->ah_attr.is_global) return port->ib && !port->grh;
  return a->ah_attr.grh.sgid_index < FV_GIDS && port->gids[a->ah_attr.grh.sgid_index].valid;
}

/* Keeps what the mask names; only what this library looks at, or hands back. */
static void take_attr(struct ibv_qp_attr *to, const struct ibv_qp_attr *from, int mask) {
  if (mask & IBV_QP_PKEY_INDEX) to->pkey_index = from->pkey_index;
  if (mask & IBV_QP_PORT) to->port_num = from->port_num;
  if (mask & IBV_QP_ACCESS_FLAGS) to->qp_access_flags = from->qp_access_flags;
  if (mask & IBV_QP_AV) to->ah_attr = from->ah_attr;
  if (mask & IBV_QP_PATH_MTU) to->path_mtu = from->path_mtu;
  if (mask & IBV_QP_DEST_QPN) to->dest_qp_num = from->dest_qp_num;
  if (mask & IBV_QP_RQ_PSN) to->rq_psn = from->rq_psn;
  if (mask & IBV_QP_SQ_PSN) to->sq_psn = from->sq_psn;
  if (mask & IBV_QP_TIMEOUT) to->timeout = from->timeout;
  if (mask & IBV_QP_RETRY_CNT) to->retry_cnt = from->retry_cnt;
  if (mask & IBV_QP_RNR_RETRY) to->rnr_retry = from->rnr_retry;
  if (mask & IBV_QP_MIN_RNR_TIMER) to->min_rnr_timer = from->min_rnr_timer;
  if (mask & IBV_QP_MAX_QP_RD_ATOMIC) to->max_rd_atomic = from->max_rd_atomic;
  if (mask & IBV_QP_MAX_DEST_RD_ATOMIC) to->max_dest_rd_atomic = from->max_dest_rd_atomic;
}

int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask) {
  struct fv_qp *qp = (struct fv_qp *)(void *)ibv;
  int err = enter("modify_qp", mask & IBV_QP_STATE ? (int)attr->qp_state : -1);
  if (err) return leave(err);
  if (!(mask & IBV_QP_STATE)) return leave(EINVAL);
  int needed = needed_for(ibv->state, attr->qp_state);
  if (needed < 0 || (mask & needed) != needed) return leave(EINVAL);
  if ((mask & IBV_QP_PORT) && (attr->port_num < 1 || attr->port_num > fv_device_of(ibv->context)->nports))
    return leave(EINVAL);
  if (attr->qp_state == IBV_QPS_RTR && !is_good_path(qp, attr)) return leave(EINVAL);
  take_attr(&qp->attr, attr, mask);
  ibv->state = attr->qp_state;
  if (attr->qp_state == IBV_QPS_ERR) fv_flush(qp);
  if (attr->qp_state == IBV_QPS_RESET) fv_forget(qp);
  return leave(0);
}

int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init) {
  struct fv_qp *qp = (struct fv_qp *)(void *)ibv;
  int err = enter("query_qp", -1);
  (void)mask;
  *attr = qp->attr;
  attr->qp_state = attr->cur_qp_state = ibv->state;
  attr->cap = qp->init.cap;
  *init = qp->init;
  return leave(err);
}

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
  int err = enter("query_ece", -1);
  memset(ece, 0, sizeof *ece);
  if (!err && !fv_device_of(qp->context)->ece) err = EOPNOTSUPP;
  if (!err) *ece = (struct ibv_ece){.vendor_id = 0xfa4e, .options = 3};
  return leave(err);
}

int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece) {
  int err = enter("set_ece", -1);
  if (!err && (!fv_device_of(qp->context)->ece || (ece->vendor_id && ece->vendor_id != 0xfa4e))) err = EOPNOTSUPP;
  return leave(err);
}

long fakeverbs_live(const char *kind) {
  long count = 0;
  pthread_mutex_lock(&fv.lock);
  if (strcmp(kind, "context") == 0) count = fv.contexts;
  if (strcmp(kind, "pd") == 0) count = fv.pds;
  if (strcmp(kind, "mr") == 0) for (struct fv_mr *mr = fv.mrs; mr; mr = mr->next) count++;
  if (strcmp(kind, "cq") == 0) for (struct fv_cq *cq = fv.cqs; cq; cq = cq->next) count++;
  if (strcmp(kind, "qp") == 0) for (struct fv_qp *qp = fv.qps; qp; qp = qp->next) count++;
  pthread_mutex_unlock(&fv.lock);
  return count;
}
