/* SPDX-License-Identifier: Apache-2.0
 * What both kinds of comm share: recognising, failing, stopping one. */
#include "plugin/ib/ib_comm.h"

#include <pthread.h>

#include "common/log.h"
#include "plugin/ib/ib_flush.h"

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

rail_result_t ib_comm_fail(struct ib_comm *comm, rail_result_t result) {
  if (comm->failed == RAIL_OK) comm->failed = result;
  return comm->failed;
}

/* Who comes second waits until the first is through: then nothing moves for him either. */
void ib_comm_stop(struct ib_comm *comm) {
  static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
  if (comm->forked) return;
  pthread_mutex_lock(&one);
  if (!atomic_exchange(&comm->stopped, true)) {
    for (unsigned int i = 0; comm->qps && i < comm->plan.nqps; i++) ib_qp_to_err(&comm->qps[i]);
    if (!comm->sender) ib_flush_stop(ib_recv_comm_flush(comm));
  }
  pthread_mutex_unlock(&one);
}
