/* SPDX-License-Identifier: Apache-2.0
 * What both kinds of comm share: recognising, failing, stopping one. */
#include "plugin/ib/ib_comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "plugin/ib/ib_param.h"

#define ACK_NS 4096ull   /* an ACK timeout is this, doubled as often as the exponent says */
#define ACK_TOLERANCE 4  /* the standard's tolerance: a timeout of T ends between T and 4T */
#define LINGER_GRACE_MS 1000
#define LINGER_MAX_MS 60000

struct ib_comm *ib_comm_of(void *arg, uint32_t kind_magic, const char *call) {
  struct ib_comm *comm = arg;
  if (rail_likely(comm)) {
    bool known = comm->magic == IB_SEND_COMM_MAGIC || comm->magic == IB_RECV_COMM_MAGIC;
    if (rail_likely(kind_magic ? comm->magic == kind_magic : known)) return comm;
  }
  RAIL_WARN("RailIB: %s: %p is no %s that is open", call, arg,
            kind_magic == IB_SEND_COMM_MAGIC   ? "send comm"
            : kind_magic == IB_RECV_COMM_MAGIC ? "receive comm"
                                               : "comm");
  return NULL;
}

/* ---- requests -------------------------------------------------------------- */

struct ib_request *ib_request_pool_init(void *first, size_t size, uint32_t count, struct ib_comm *comm) {
  struct ib_request *free_list = NULL;
  for (uint32_t i = count; i-- > 0;) {
    struct ib_request *r = (struct ib_request *)(void *)((char *)first + i * size);
    *r = (struct ib_request){.magic = IB_REQ_FREE, .comm = comm, .next_free = free_list};
    free_list = r;
  }
  return free_list;
}

static bool is_outstanding(const struct ib_request *r) {
  return r->magic == IB_REQ_SEND || r->magic == IB_REQ_RECV || r->magic == IB_REQ_FLUSH;
}

struct ib_request *ib_request_of(void *request, const char *call) {
  struct ib_request *r = request;
  if (rail_likely(r && r != RAIL_NET_OPTIONAL_RECV && is_outstanding(r))) return r;
  if (!r || r == RAIL_NET_OPTIONAL_RECV) RAIL_WARN("RailIB: %s: %p is no request", call, request);
  else RAIL_WARN("RailIB: %s: request %p is not outstanding (tested again after it was done?)", call, request);
  return NULL;
}

RAIL_COLD rail_result_t ib_mr_refuse(const struct ib_comm *comm, const char *call, const struct ib_mhandle *mr,
                                     const void *data, uint64_t size) {
  if (size > RAIL_NET_MAX_BYTES)
    RAIL_WARN("RailIB: %s: size %llu; allowed: up to %llu", call, (unsigned long long)size,
              (unsigned long long)RAIL_NET_MAX_BYTES);
  else if (!data) RAIL_WARN("RailIB: %s: data is NULL with size %llu; allowed: NULL only with size 0", call,
                            (unsigned long long)size);
  else if (!mr) RAIL_WARN("RailIB: %s: mhandle is NULL with size %llu; allowed: NULL only with size 0, else what "
                          "regMr gave for these bytes", call, (unsigned long long)size);
  else if (mr->magic != IB_MHANDLE_MAGIC || mr->comm != comm)
    RAIL_WARN("RailIB: %s: mhandle %p is no registration of this connection", call, (const void *)mr);
  else RAIL_WARN("RailIB: %s: %p+%llu is not inside its registration, %#llx+%llu", call, data,
                 (unsigned long long)size, (unsigned long long)mr->addr, (unsigned long long)mr->size);
  return RAIL_BAD_ARGUMENT;
}

/* ---- memory ---------------------------------------------------------------- */

void ib_limit_inline(struct ib_comm *comm) {
  for (unsigned int i = 0; i < comm->plan.nqps && !ib_params.use_inline; i++) comm->qps[i].max_inline = 0;
}

struct ib_ctrl_buf *ib_ctrl_buf_alloc(size_t *size) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  void *buf = NULL;
  *size = RAIL_ROUND_UP(sizeof(struct ib_ctrl_buf), page);
  if (posix_memalign(&buf, page, *size) != 0) return NULL;
  memset(buf, 0, *size);
  return buf;
}

void ib_comm_ctrl_memory(struct ib_comm *comm, void **memory, size_t *size) {
  *memory = comm->sender ? ib_send_comm_of(comm)->ctrl_buf : ib_recv_comm_of(comm)->ctrl_buf;
  *size = sizeof(struct ib_ctrl_buf);
}

void ib_comm_free_kind(struct ib_comm *comm) {
  void *memory;
  size_t size;
  ib_comm_ctrl_memory(comm, &memory, &size);
  free(memory);
  comm->magic = 0;
  if (comm->sender) free(ib_send_comm_of(comm));
  else free(ib_recv_comm_of(comm));
}

/* ---- stopping -------------------------------------------------------------- */

/* Unless set: until an HCA that takes four times its timeout, as the standard allows, has sent again what was not
 * acknowledged. Without a timeout it never does. */
uint64_t ib_comm_linger_ms(const struct ib_comm *comm) {
  uint64_t timeout = comm->sender_timeout;
  if (ib_params.linger_ms >= 0) return (uint64_t)ib_params.linger_ms;
  uint64_t longest = timeout ? ACK_TOLERANCE * (ACK_NS << RAIL_MIN(timeout, 31)) / 1000000 : 0;
  return RAIL_MIN(longest + LINGER_GRACE_MS, LINGER_MAX_MS);
}

/* Who comes second waits until the first is through: then nothing moves for him either. */
void ib_comm_stop(struct ib_comm *comm) {
  static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
  if (comm->forked) return;
  pthread_mutex_lock(&one);
  if (!atomic_exchange(&comm->stopped, true)) {
    for (unsigned int i = 0; comm->qps && i < comm->plan.nqps; i++) ib_qp_to_err(&comm->qps[i]);
    struct ib_flush *flush = comm->sender ? NULL : ib_recv_comm_of(comm)->flush;
    for (unsigned int i = 0; flush && i < comm->nrails; i++) ib_qp_to_err(&flush->qps[i]);
  }
  pthread_mutex_unlock(&one);
}
