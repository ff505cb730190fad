/* SPDX-License-Identifier: Apache-2.0
 * What both kinds of comm share: checking a caller's pointers, request pools, memory, stopping. Its end: ib_close.c. */
#include "plugin/ib/ib_comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "plugin/ib/ib_param.h"

#define LINGER_MAX_MS 60000 /* as the parameter's own limit */

/* ---- requests -------------------------------------------------------------- */

void ib_request_pool_init(struct ib_request_pool *pool, void *first, size_t size, uint32_t count,
                          struct ib_comm *comm) {
  SLIST_INIT(pool);
  for (uint32_t i = count; i-- > 0;) {
    struct ib_request *r = (struct ib_request *)(void *)((char *)first + i * size);
    *r = (struct ib_request){.magic = IB_REQ_FREE, .comm = comm};
    SLIST_INSERT_HEAD(pool, r, free);
  }
}

RAIL_COLD rail_result_t ib_comm_refuse_buffer(const struct ib_comm *comm, const char *call, const void *mhandle,
                                              const void *data, uint64_t size) {
  if (size <= comm->max_bytes || comm->max_bytes == RAIL_NET_MAX_BYTES)
    return rail_net_refuse_buffer("RailIB", call, mhandle, comm, data, size);
  RAIL_WARN("RailIB: %s: size %llu; allowed: up to %llu (with RAIL_IB_PROTOCOL=send)", call, (unsigned long long)size,
            (unsigned long long)comm->max_bytes);
  return RAIL_BAD_ARGUMENT;
}

/* ---- memory ---------------------------------------------------------------- */

bool ib_comm_init(struct ib_comm *comm, uint32_t magic) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), size = RAIL_ROUND_UP(sizeof *comm->ctrl_buf, page);
  void *buf = NULL;
  if (posix_memalign(&buf, page, size) != 0) return false;
  memset(buf, 0, size);
  comm->ctrl_buf = buf;
  comm->magic = magic;
  comm->sender = magic == IB_SEND_COMM_MAGIC;
  comm->oob_fd = -1;
  comm->max_bytes = RAIL_NET_MAX_BYTES;
  return true;
}

void ib_comm_limit_inline(struct ib_comm *comm) {
  if (ib_params.use_inline) return;
  for (unsigned int i = 0; i < comm->plan.nqps; i++) comm->qps[i].max_inline = 0;
}

/* ---- stopping -------------------------------------------------------------- */

/* Unless RAIL_IB_LINGER is set: until the sender's HCA, which may take 4 times its timeout, has retransmitted what was
 * not acknowledged. Without a timeout it never does. */
uint64_t ib_comm_linger_ms(const struct ib_comm *comm) {
  uint64_t timeout = comm->sender_timeout;
  if (ib_params.linger_ms >= 0) return (uint64_t)ib_params.linger_ms;
  uint64_t longest = timeout ? IB_ACK_TOLERANCE * (IB_ACK_NS << RAIL_MIN(timeout, 31)) / 1000000 : 0;
  return RAIL_MIN(longest + IB_GRACE_MS, LINGER_MAX_MS);
}

static pthread_mutex_t qp_lock = PTHREAD_MUTEX_INITIALIZER; /* orders stopping, dropping and replacing QPs */

void ib_comm_stop_qp(struct ib_comm *comm, unsigned int qp) {
  pthread_mutex_lock(&qp_lock);
  ib_qp_to_err(&comm->qps[qp]);
  pthread_mutex_unlock(&qp_lock);
}

/* Destroyed without the lock: that waits until the watch thread has acknowledged the QP's events. */
void ib_comm_drop_qp(struct ib_qp *qp) {
  struct ib_qp lost;
  memset(&lost, 0, sizeof lost);
  pthread_mutex_lock(&qp_lock);
  lost.qp = qp->qp;
  qp->qp = NULL;
  qp->state = IB_QP_NONE;
  pthread_mutex_unlock(&qp_lock);
  ib_qp_destroy(&lost);
  atomic_store(&qp->event_qp, NULL);
}

bool ib_comm_replace_qp(struct ib_comm *comm, struct ib_qp *qp, struct ib_qp *next) {
  pthread_mutex_lock(&qp_lock);
  bool stopped = atomic_load(&comm->stopped);
  if (!stopped) {
    qp->qp = next->qp;
    qp->state = next->state;
    qp->max_inline = next->max_inline;
    qp->sq_avail = next->sq_avail;
    qp->rq_consumed = 0;
    qp->posted.first = qp->posted.end = 0;
    qp->attr = next->attr;
    qp->ignore_completions = false;
    atomic_store(&qp->flushed, false);
    atomic_store(&qp->event_qp, next->qp);
    atomic_store(&next->event_qp, NULL);
    next->qp = NULL;
    next->state = IB_QP_NONE;
  }
  pthread_mutex_unlock(&qp_lock);
  return !stopped;
}

/* A second caller waits for the first, so that the QPs are in ERR for it too when it returns. */
void ib_comm_stop(struct ib_comm *comm) {
  if (comm->forked) return;
  pthread_mutex_lock(&qp_lock);
  if (ib_comm_set_stopped(comm)) {
    for (unsigned int i = 0; comm->qps && i < comm->plan.nqps; i++) ib_qp_to_err(&comm->qps[i]);
    struct ib_flush *flush = comm->sender ? NULL : ib_recv_comm_of(comm)->flush;
    for (unsigned int i = 0; flush && i < comm->nrails; i++) ib_qp_to_err(&flush->qps[i]);
  }
  pthread_mutex_unlock(&qp_lock);
}
