/* SPDX-License-Identifier: Apache-2.0
 * What both kinds of comm share: recognising, failing, stopping one. */
#include "plugin/ib/ib_comm.h"

#include <pthread.h>

#include "common/base/log.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_request.h"

#define ACK_NS 4096ull   /* an ACK timeout is this, doubled as often as the exponent says */
#define RETRY_STRETCH 4  /* the standard's tolerance: a timeout of T ends between T and 4T */
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

/* Unless set: until an HCA that takes four times its timeout, as the standard allows, has sent again what was not
 * acknowledged. Without a timeout it never does. */
uint64_t ib_comm_linger_ms(const struct ib_comm *comm) {
  uint64_t timeout = comm->sender_timeout;
  if (ib_params.linger_ms >= 0) return (uint64_t)ib_params.linger_ms;
  uint64_t longest = timeout ? RETRY_STRETCH * (ACK_NS << RAIL_MIN(timeout, 31)) / 1000000 : 0;
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
