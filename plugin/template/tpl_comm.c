/* SPDX-License-Identifier: Apache-2.0
 * What both kinds of comms have in common: the first error, memory registrations, the end. */
#include "plugin/template/tpl_comm.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/log.h"

struct tpl_comm *tpl_comm_of(void *arg, uint32_t magic, const char *call) {
  return rail_net_comm_of(TPL_NAME, arg, TPL_SEND_MAGIC, TPL_RECV_MAGIC, magic, call);
}

rail_result_t tpl_comm_init(struct tpl_comm *comm, uint32_t magic, const struct tpl_device *device,
                            const union rail_addr *peer, int fd) {
  if (pthread_mutex_init(&comm->lock, NULL) != 0) return RAIL_SYSTEM_ERROR;
  comm->magic = magic;
  comm->device = device;
  comm->fd = fd;
  LIST_INIT(&comm->mrs);
  rail_addr_text(peer, comm->peer);
  comm->counters = tpl_stats_comm(magic == TPL_SEND_MAGIC ? "send" : "recv", device->name, peer);
  return RAIL_OK;
}

/* shutdown reaches the peer also when a forked child has a copy of the descriptor. */
static void shutdown_socket(struct tpl_comm *comm) {
  if (comm->fd >= 0) shutdown(comm->fd, SHUT_RDWR);
}

void tpl_comm_end(struct tpl_comm *comm) {
  struct tpl_mr *mr;
  shutdown_socket(comm);
  rail_sock_close(&comm->fd);
  while ((mr = LIST_FIRST(&comm->mrs))) {
    LIST_REMOVE(mr, link);
    free(mr);
  }
  tpl_stats_drop(comm->counters);
  comm->magic = 0;
  pthread_mutex_destroy(&comm->lock);
}

/* ---- the first error --------------------------------------------------- */

rail_result_t tpl_fail(struct tpl_comm *comm, rail_result_t result, const char *fmt, ...) {
  if (rail_first_error_set(&comm->error, result)) {
    char why[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    RAIL_WARN(TPL_NAME ": %s %s over %s: %s", comm->magic == TPL_SEND_MAGIC ? "send to" : "receive from", comm->peer,
              comm->device->name, why);
    tpl_stats_count(comm->device->name, TPL_ERRORS);
    shutdown_socket(comm);
  }
  return rail_first_error(&comm->error);
}

rail_result_t tpl_fail_errno(struct tpl_comm *comm, rail_result_t result) {
  int err = errno;
  if (err == 0) return tpl_fail(comm, result, "the peer closed the connection; did its process end? See its log");
  if (err == ETIMEDOUT)
    return tpl_fail(comm, result, "the peer's host does not answer (RAIL_TEMPLATE_DEADLINE); is it up, is the network "
                    "between cut?");
  return tpl_fail(comm, result, "%s; see the peer's log", strerror(err));
}

/* ---- memory ------------------------------------------------------------- */

/* TCP needs no registration. What is kept is deregMr's guarantee: the memory is not touched afterwards. */
rail_result_t tpl_reg_mr(void *comm_arg, void *data, size_t size, int type, void **mhandle) {
  struct tpl_comm *comm = tpl_comm_of(comm_arg, 0, "regMr");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (type != RAIL_PTR_HOST || (!data && size)) {
    RAIL_WARN(TPL_NAME ": regMr: address %p, %zu bytes, pointer type %d; allowed: host memory, type %d", data, size,
              type, RAIL_PTR_HOST);
    return RAIL_BAD_ARGUMENT;
  }
  struct tpl_mr *mr = calloc(1, sizeof *mr);
  if (!mr) {
    RAIL_WARN(TPL_NAME ": regMr: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  mr->comm = comm;
  pthread_mutex_lock(&comm->lock);
  LIST_INSERT_HEAD(&comm->mrs, mr, link);
  pthread_mutex_unlock(&comm->lock);
  *mhandle = mr;
  return RAIL_OK;
}

/* With transfers outstanding the connection ends here: NCCL does this when it aborts, and frees the memory next. After
 * an error no transfer's memory or registration is touched again. */
rail_result_t tpl_dereg_mr(void *comm_arg, void *mhandle) {
  struct tpl_mr *mr = mhandle;
  if (!mr) return RAIL_OK;
  struct tpl_comm *comm = tpl_comm_of(comm_arg, 0, "deregMr");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (mr->comm != comm) {
    RAIL_WARN(TPL_NAME ": deregMr: %p is not a registration of this connection", mhandle);
    return RAIL_BAD_ARGUMENT;
  }
  pthread_mutex_lock(&comm->lock);
  if (mr->in_use && rail_first_error_set(&comm->error, RAIL_BAD_USAGE)) {
    RAIL_INFO(RAIL_SUB_NET, TPL_NAME ": deregMr with %u transfers outstanding ends the connection with %s", mr->in_use,
              comm->peer);
    shutdown_socket(comm);
  }
  LIST_REMOVE(mr, link);
  pthread_mutex_unlock(&comm->lock);
  free(mr);
  return RAIL_OK;
}
