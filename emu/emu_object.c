/* SPDX-License-Identifier: Apache-2.0
 * Protection domains, memory regions, CQs, channels, SRQs, address handles. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "emu/emu.h"
#include "emu/emu_fault.h"

static void *refuse(int err) {
  errno = err;
  return NULL;
}

/* ---- protection domains ------------------------------------------------------ */

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context) {
  struct emu_device *d = emu_device_of(context);
  struct emu_pd *pd = calloc(1, sizeof *pd);
  if (!pd) return NULL;
  pd->ibv.context = context;
  pthread_mutex_lock(&emu.lock);
  int err = emu_fault_call("alloc_pd", -1);
  if (!err) err = d->fatal ? EIO : d->npd >= d->max_pd ? ENOMEM : 0;
  if (!err) d->npd++;
  pthread_mutex_unlock(&emu.lock);
  if (!err) return &pd->ibv;
  free(pd);
  return refuse(err);
}

int ibv_dealloc_pd(struct ibv_pd *ibv) {
  struct emu_pd *pd = (struct emu_pd *)(void *)ibv;
  pthread_mutex_lock(&emu.lock);
  bool busy = pd->users;
  if (!busy) emu_device_of(ibv->context)->npd--;
  pthread_mutex_unlock(&emu.lock);
  if (busy) return EBUSY;
  free(pd);
  return 0;
}

/* ---- memory regions ----------------------------------------------------------- */

/* A key: 24 bits of place in the table, 8 bits that differ for those that follow each other there. */
struct emu_mr *emu_mr_find(uint32_t key) {
  uint32_t at = key >> 8;
  struct emu_mr *mr = at < emu.mrs_cap ? emu.mrs[at] : NULL;
  return mr && mr->ibv.rkey == key ? mr : NULL;
}

bool emu_mr_allows(const struct emu_mr *mr, const struct emu_pd *pd, uint64_t addr, uint64_t length,
                   unsigned int access) {
  return mr && mr->ibv.pd == &pd->ibv && (mr->access & access) == access && emu_mr_reach(mr, addr, length);
}

char *emu_mr_reach(const struct emu_mr *mr, uint64_t addr, uint64_t length) {
  if (addr < mr->iova || addr - mr->iova > mr->ibv.length || length > mr->ibv.length - (addr - mr->iova)) return NULL;
  return mr->memory + (addr - mr->iova);
}

void emu_mr_write(const struct emu_mr *mr, uint64_t addr, const char *from, uint32_t size) {
  char *to = emu_mr_reach(mr, addr, size);
  if (mr->on_gpu) emu_gpu_wrote(emu_device_of(mr->ibv.context), to, size);
  emu_move(to, from, size);
}

void emu_mr_read(const struct emu_mr *mr, uint64_t addr, char *to, uint32_t size) {
  if (mr->on_gpu) emu_gpu_read(emu_device_of(mr->ibv.context));
  emu_move(to, emu_mr_reach(mr, addr, size), size);
}

/* A free place in the table; keys come back late. */
static int place_mr(struct emu_mr *mr) {
  if (emu.nmrs + 2 >= emu.mrs_cap) {
    uint32_t cap = emu.mrs_cap ? 2 * emu.mrs_cap : 256;
    struct emu_mr **table = cap <= 1u << 24 ? realloc(emu.mrs, cap * sizeof(struct emu_mr *)) : NULL;
    if (!table) return ENOMEM;
    memset(table + emu.mrs_cap, 0, (cap - emu.mrs_cap) * sizeof(struct emu_mr *));
    emu.mrs = table;
    emu.mrs_cap = cap;
  }
  do {
    if (++emu.next_mr >= emu.mrs_cap) {
      emu.next_mr = 1;
      emu.mr_generation++;
    }
  } while (emu.mrs[emu.next_mr]);
  emu.mrs[emu.next_mr] = mr;
  emu.nmrs++;
  mr->ibv.lkey = mr->ibv.rkey = mr->ibv.handle = emu.next_mr << 8 | emu.mr_generation;
  return 0;
}

/* As the kernel: what may be written from elsewhere must be writable here. */
static bool is_access(unsigned int access) {
  const unsigned int known = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                             IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_OPTIONAL_RANGE;
  if (access & ~known) return false;
  return !(access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) || (access & IBV_ACCESS_LOCAL_WRITE);
}

/* Memory that is not there is refused, as pinning it fails. msync of a range does nothing but look at it. */
static int check_memory(void *addr, size_t length) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), skip = (uintptr_t)addr % page;
  return msync((char *)addr - skip, length + skip, MS_ASYNC) != 0 && errno == ENOMEM ? EFAULT : 0;
}

static uint64_t locked_bytes(const struct emu_mr *mr) {
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)mr->memory / page * page;
  return ((uintptr_t)mr->memory + mr->ibv.length - begin + page - 1) / page * page;
}

static struct ibv_mr *add_mr(struct ibv_pd *pd, const struct emu_mr *form) {
  struct emu_device *d = emu_device_of(pd->context);
  struct emu_mr *mr = malloc(sizeof *mr);
  if (!mr) return NULL;
  *mr = *form;
  mr->ibv.context = pd->context;
  mr->ibv.pd = pd;
  pthread_mutex_lock(&emu.lock);
  int err = emu_fault_call(form->ibv.addr ? "reg_mr" : "reg_dmabuf_mr", -1);
  if (!err) err = d->fatal ? EIO : d->nmr >= d->max_mr ? ENOMEM : place_mr(mr);
  if (!err) {
    d->nmr++;
    d->locked += locked_bytes(mr);
    ((struct emu_pd *)(void *)pd)->users++;
  }
  pthread_mutex_unlock(&emu.lock);
  if (!err) return &mr->ibv;
  free(mr);
  return refuse(err);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access) {
  if (!is_access(access) || length == 0 || (uintptr_t)addr + length < (uintptr_t)addr || iova + length < iova)
    return refuse(EINVAL);
  int err = check_memory(addr, length);
  if (err) return refuse(err);
  const struct emu_mr form = {.ibv = {.addr = addr, .length = length}, .iova = iova, .memory = addr, .access = access,
                              .on_gpu = emu_gpu_holds(addr, length)};
  return add_mr(pd, &form);
}

struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access) {
  return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned int)access);
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access) {
  return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), skip = offset % page;
  if (!emu_device_of(pd->context)->dmabuf) return refuse(EOPNOTSUPP);
  if (fd < 0) return refuse(EBADF);
  if (!is_access((unsigned int)access) || length == 0) return refuse(EINVAL);
  off_t end = lseek(fd, 0, SEEK_END);
  if (end < 0 || (uint64_t)end < offset || (uint64_t)end - offset < length) return refuse(EINVAL);
  char *on_gpu = emu_gpu_dma_buf(fd, offset, length), *memory = on_gpu;
  void *mapped = NULL;
  if (!on_gpu) {
    mapped = mmap(NULL, length + skip, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(offset - skip));
    if (mapped == MAP_FAILED) return NULL;
    memory = (char *)mapped + skip;
  }
  const struct emu_mr form = {.ibv = {.length = length}, .iova = iova, .access = (unsigned int)access,
                              .memory = memory, .on_gpu = on_gpu != NULL,
                              .mapped = mapped, .mapped_size = length + skip};
  struct ibv_mr *mr = add_mr(pd, &form);
  if (!mr && mapped) munmap(mapped, length + skip);
  return mr;
}

int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access) {
  (void)mr, (void)flags, (void)pd, (void)addr, (void)length, (void)access;
  errno = EOPNOTSUPP;
  return IBV_REREG_MR_ERR_INPUT;
}

int ibv_dereg_mr(struct ibv_mr *ibv) {
  struct emu_mr *mr = (struct emu_mr *)(void *)ibv;
  pthread_mutex_lock(&emu.lock);
  emu.mrs[ibv->rkey >> 8] = NULL;
  emu.nmrs--;
  emu_device_of(ibv->context)->nmr--;
  emu_device_of(ibv->context)->locked -= locked_bytes(mr);
  ((struct emu_pd *)(void *)ibv->pd)->users--;
  pthread_mutex_unlock(&emu.lock);
  if (mr->mapped) munmap(mr->mapped, mr->mapped_size);
  free(mr);
  return 0;
}

/* ---- completion channels and CQs ------------------------------------------------ */

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context) {
  struct emu_channel *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->ibv.context = context;
  c->ibv.fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  STAILQ_INIT(&c->ready);
  if (c->ibv.fd >= 0) return &c->ibv;
  free(c);
  return NULL;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel) {
  pthread_mutex_lock(&emu.lock);
  bool busy = channel->refcnt;
  pthread_mutex_unlock(&emu.lock);
  if (busy) return EBUSY;
  close(channel->fd);
  free(channel);
  return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel,
                             int comp_vector) {
  struct emu_device *d = emu_device_of(context);
  if (cqe < 1 || cqe > d->max_cqe || comp_vector < 0 || comp_vector >= context->num_comp_vectors)
    return refuse(EINVAL);
  struct emu_cq *cq = calloc(1, sizeof *cq);
  if (!cq) return NULL;
  cq->cap = (uint32_t)cqe;
  cq->ring = calloc(cq->cap, sizeof cq->ring[0]);
  cq->ibv.context = context;
  cq->ibv.channel = channel;
  cq->ibv.cq_context = cq_context;
  cq->ibv.cqe = cqe;
  pthread_mutex_init(&cq->ibv.mutex, NULL);
  pthread_cond_init(&cq->ibv.cond, NULL);
  pthread_mutex_lock(&emu.lock);
  int err = emu_fault_call("create_cq", -1);
  if (!err) err = !cq->ring || d->ncq >= d->max_cq ? ENOMEM : d->fatal ? EIO : 0;
  if (!err) d->ncq++;
  if (!err && channel) channel->refcnt++;
  pthread_mutex_unlock(&emu.lock);
  if (!err) return &cq->ibv;
  free(cq->ring);
  free(cq);
  return refuse(err);
}

struct ibv_cq_ex *emu_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr) {
  (void)context, (void)attr;
  return refuse(EOPNOTSUPP);
}

int ibv_resize_cq(struct ibv_cq *ibv, int cqe) {
  struct emu_cq *cq = (struct emu_cq *)(void *)ibv;
  if (cqe < 1 || cqe > emu_device_of(ibv->context)->max_cqe) return EINVAL;
  struct emu_cqe *ring = calloc((size_t)cqe, sizeof *ring);
  if (!ring) return ENOMEM;
  pthread_mutex_lock(&emu.lock);
  uint32_t count = atomic_load_explicit(&cq->count, memory_order_relaxed);
  bool fits = count <= (uint32_t)cqe;
  for (uint32_t i = 0; fits && i < count; i++) ring[i] = cq->ring[(cq->head + i) % cq->cap];
  struct emu_cqe *old = fits ? cq->ring : ring;
  if (fits) {
    cq->ring = ring;
    cq->head = 0;
    cq->cap = (uint32_t)cqe;
    ibv->cqe = cqe;
  }
  pthread_mutex_unlock(&emu.lock);
  free(old);
  return fits ? 0 : EINVAL;
}

int ibv_destroy_cq(struct ibv_cq *ibv) {
  struct emu_cq *cq = (struct emu_cq *)(void *)ibv;
  pthread_mutex_lock(&emu.lock);
  if (cq->users) {
    pthread_mutex_unlock(&emu.lock);
    return EBUSY;
  }
  struct emu_channel *channel = (struct emu_channel *)(void *)ibv->channel;
  emu_cq_withdraw_event(cq);
  emu_forget_events(emu_context_of(ibv->context), ibv);
  emu_wait_acked(&cq->comp_events);
  emu_wait_acked(&cq->async_events);
  if (channel) channel->ibv.refcnt--;
  emu_device_of(ibv->context)->ncq--;
  pthread_mutex_unlock(&emu.lock);
  pthread_cond_destroy(&ibv->cond);
  pthread_mutex_destroy(&ibv->mutex);
  free(cq->ring);
  free(cq);
  return 0;
}

/* ---- receive queues ------------------------------------------------------------- */

bool emu_rq_init(struct emu_rq *rq, uint32_t cap, uint32_t max_sge) {
  *rq = (struct emu_rq){.cap = cap, .max_sge = max_sge};
  rq->wqes = calloc(cap + 1u, sizeof rq->wqes[0]);
  rq->sges = calloc((size_t)cap * max_sge + 1, sizeof rq->sges[0]);
  return rq->wqes && rq->sges;
}

void emu_rq_free(struct emu_rq *rq) {
  free(rq->wqes);
  free(rq->sges);
}

int emu_rq_post(struct emu_rq *rq, const struct ibv_recv_wr *wr) {
  if (wr->num_sge < 0 || (uint32_t)wr->num_sge > rq->max_sge) return EINVAL;
  if (rq->posted - rq->freed >= rq->cap) return ENOMEM;
  uint32_t at = (uint32_t)(rq->posted % rq->cap);
  struct emu_recv *r = &rq->wqes[at];
  r->wr_id = wr->wr_id;
  r->nsge = wr->num_sge;
  r->sge = rq->sges + (size_t)at * rq->max_sge;
  for (int i = 0; i < wr->num_sge; i++) r->sge[i] = wr->sg_list[i];
  rq->posted++;
  return 0;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init) {
  struct emu_device *d = emu_device_of(pd->context);
  const struct ibv_srq_attr *a = &init->attr;
  if (!d->max_srq) return refuse(EOPNOTSUPP);
  if (a->max_wr < 1 || a->max_wr > (uint32_t)d->max_srq_wr || a->max_sge > (uint32_t)d->max_sge)
    return refuse(EINVAL);
  struct emu_srq *srq = calloc(1, sizeof *srq);
  if (!srq) return NULL;
  bool good = emu_rq_init(&srq->rq, a->max_wr, a->max_sge);
  srq->ibv.context = pd->context;
  srq->ibv.srq_context = init->srq_context;
  srq->ibv.pd = pd;
  pthread_mutex_init(&srq->ibv.mutex, NULL);
  pthread_cond_init(&srq->ibv.cond, NULL);
  pthread_mutex_lock(&emu.lock);
  int err = emu_fault_call("create_srq", -1);
  if (!err) err = !good || d->nsrq >= d->max_srq ? ENOMEM : d->fatal ? EIO : 0;
  if (!err) {
    d->nsrq++;
    ((struct emu_pd *)(void *)pd)->users++;
  }
  pthread_mutex_unlock(&emu.lock);
  if (!err) return &srq->ibv;
  emu_rq_free(&srq->rq);
  free(srq);
  return refuse(err);
}

struct ibv_srq *emu_create_srq_ex(struct ibv_context *context, struct ibv_srq_init_attr_ex *attr) {
  (void)context;
  if ((attr->comp_mask & IBV_SRQ_INIT_ATTR_TYPE) && attr->srq_type != IBV_SRQT_BASIC) return refuse(EOPNOTSUPP);
  if (!(attr->comp_mask & IBV_SRQ_INIT_ATTR_PD)) return refuse(EINVAL);
  struct ibv_srq_init_attr plain = {.srq_context = attr->srq_context, .attr = attr->attr};
  return ibv_create_srq(attr->pd, &plain);
}

int ibv_modify_srq(struct ibv_srq *ibv, struct ibv_srq_attr *attr, int mask) {
  struct emu_srq *srq = (struct emu_srq *)(void *)ibv;
  if (mask & IBV_SRQ_MAX_WR) return EOPNOTSUPP;
  if ((mask & IBV_SRQ_LIMIT) && attr->srq_limit > srq->rq.cap) return EINVAL;
  pthread_mutex_lock(&emu.lock);
  if (mask & IBV_SRQ_LIMIT) srq->limit = attr->srq_limit;
  pthread_mutex_unlock(&emu.lock);
  return 0;
}

int ibv_query_srq(struct ibv_srq *ibv, struct ibv_srq_attr *attr) {
  struct emu_srq *srq = (struct emu_srq *)(void *)ibv;
  pthread_mutex_lock(&emu.lock);
  *attr = (struct ibv_srq_attr){.max_wr = srq->rq.cap, .max_sge = srq->rq.max_sge, .srq_limit = srq->limit};
  pthread_mutex_unlock(&emu.lock);
  return 0;
}

int ibv_destroy_srq(struct ibv_srq *ibv) {
  struct emu_srq *srq = (struct emu_srq *)(void *)ibv;
  pthread_mutex_lock(&emu.lock);
  if (srq->users) {
    pthread_mutex_unlock(&emu.lock);
    return EBUSY;
  }
  emu_forget_events(emu_context_of(ibv->context), ibv);
  emu_wait_acked(&srq->events);
  emu_device_of(ibv->context)->nsrq--;
  ((struct emu_pd *)(void *)ibv->pd)->users--;
  pthread_mutex_unlock(&emu.lock);
  pthread_cond_destroy(&ibv->cond);
  pthread_mutex_destroy(&ibv->mutex);
  emu_rq_free(&srq->rq);
  free(srq);
  return 0;
}

int emu_post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad) {
  struct emu_srq *srq = (struct emu_srq *)(void *)ibv;
  int err = 0;
  pthread_mutex_lock(&emu.lock);
  for (; wr && !err; wr = err ? wr : wr->next) {
    err = emu_fault_call("post_srq_recv", -1);
    if (!err) err = emu_rq_post(&srq->rq, wr);
    if (err) *bad = wr;
  }
  pthread_mutex_unlock(&emu.lock);
  return err;
}

/* ---- address handles -------------------------------------------------------------- */

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr) {
  struct emu_device *d = emu_device_of(pd->context);
  if (attr->port_num < 1 || attr->port_num > d->nports) return refuse(EINVAL);
  const struct emu_port *port = &d->ports[attr->port_num - 1];
  if (attr->is_global ? attr->grh.sgid_index >= EMU_GIDS || !port->gids[attr->grh.sgid_index].valid : !port->ib)
    return refuse(EINVAL);
  struct emu_ah *ah = calloc(1, sizeof *ah);
  if (!ah) return NULL;
  ah->ibv.context = pd->context;
  ah->ibv.pd = pd;
  ah->attr = *attr;
  pthread_mutex_lock(&emu.lock);
  ((struct emu_pd *)(void *)pd)->users++;
  pthread_mutex_unlock(&emu.lock);
  return &ah->ibv;
}

int ibv_destroy_ah(struct ibv_ah *ibv) {
  pthread_mutex_lock(&emu.lock);
  ((struct emu_pd *)(void *)ibv->pd)->users--;
  pthread_mutex_unlock(&emu.lock);
  free(ibv);
  return 0;
}

int ibv_init_ah_from_wc(struct ibv_context *context, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh,
                        struct ibv_ah_attr *attr) {
  memset(attr, 0, sizeof *attr);
  attr->dlid = wc->slid;
  attr->sl = wc->sl;
  attr->port_num = port;
  if (!(wc->wc_flags & IBV_WC_GRH)) return 0;
  attr->is_global = 1;
  attr->grh.dgid = grh->sgid;
  attr->grh.hop_limit = 64;
  const struct emu_device *d = emu_device_of(context);
  int found = -1;
  pthread_mutex_lock(&emu.lock);
  for (int i = 0; port >= 1 && port <= d->nports && i < EMU_GIDS && found < 0; i++) {
    const struct emu_gid *g = &d->ports[port - 1].gids[i];
    if (g->valid && memcmp(g->gid.raw, grh->dgid.raw, 16) == 0) found = i;
  }
  pthread_mutex_unlock(&emu.lock);
  attr->grh.sgid_index = (uint8_t)(found < 0 ? 0 : found);
  return found < 0 ? EINVAL : 0;
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port) {
  struct ibv_ah_attr attr;
  int err = ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr);
  return err ? refuse(err) : ibv_create_ah(pd, &attr);
}

int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) {
  (void)qp, (void)gid, (void)lid;
  return EOPNOTSUPP;
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid) {
  (void)qp, (void)gid, (void)lid;
  return EOPNOTSUPP;
}
