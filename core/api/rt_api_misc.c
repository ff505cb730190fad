/* SPDX-License-Identifier: Apache-2.0
 * Public calls about registrations and operators, and Railyard's own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "core/api/rt_api.h"
#include "core/comm/rt_reg.h"
#include "core/host/rt_types.h"
#include "core/plan/rt_buffer.h"

/* ---- registrations ------------------------------------------------------------------------ */

static ncclResult_t check_buffer(const char *call, ncclComm_t comm, const void *buff, size_t size, void **handle) {
  ncclResult_t r = rt_check_comm(comm, call);
  if (r != ncclSuccess || (buff && size > 0 && handle)) return r;
  rt_error(RAIL_BAD_ARGUMENT, "%s: buff %p, size %zu, handle %p; none may be 0", call, buff, size, (void *)handle);
  return ncclInvalidArgument;
}

static ncclResult_t add_buffer(const char *call, ncclComm_t comm, void *buff, size_t size, void **handle) {
  struct rt_reg_buffer *b = NULL;
  if (rt_reg_add(comm, buff, size, &b) != RAIL_OK) return rt_error(RAIL_SYSTEM_ERROR, "%s: out of memory", call);
  *handle = b;
  return ncclSuccess;
}

static ncclResult_t remove_buffer(const char *call, ncclComm_t comm, void *handle) {
  ncclResult_t r = rt_check_handle(comm, call);
  if (r != ncclSuccess) return r;
  if (rt_comm_failed(comm) && comm->queue.comm)
    rt_queue_wait(&comm->queue); /* a pass over operations that have failed may use the registration still */
  else if (!rt_queue_settle(&comm->queue))
    return rt_error(RAIL_BAD_USAGE, "%s: operations are unfinished; wait for them first", call);
  if (rt_reg_remove(comm, handle) != RAIL_OK)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: %p is not a registration of this communicator", call, handle);
  return ncclSuccess;
}

RAIL_EXPORT ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle) {
  ncclResult_t r = check_buffer("ncclCommRegister", comm, buff, size, handle);
  return r == ncclSuccess ? add_buffer("ncclCommRegister", comm, buff, size, handle) : r;
}

RAIL_EXPORT ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
  return remove_buffer("ncclCommDeregister", comm, handle);
}

RAIL_EXPORT ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                                int winFlags) {
  if (win) *win = NULL;
  const char *call = "ncclCommWindowRegister";
  const int known = NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING;
  if (winFlags & ~known)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: winFlags is %#x; allowed are bits of %#x", call, (unsigned)winFlags,
                    (unsigned)known);
  ncclResult_t r = check_buffer(call, comm, buff, size, (void **)win);
  bool is_device = false;
  if (r == ncclSuccess) r = rt_buffer_is_device(comm, buff, &is_device);
  if (r != ncclSuccess || is_device) return r; /* a kernel may take a window for an address: there is none */
  return add_buffer(call, comm, buff, size, (void **)win);
}

RAIL_EXPORT ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr) {
  ncclResult_t r = rt_check_handle(comm, "ncclWinGetUserPtr");
  if (r != ncclSuccess) return r;
  if (!outUserPtr) return rt_error(RAIL_BAD_ARGUMENT, "ncclWinGetUserPtr: outUserPtr is NULL");
  *outUserPtr = win ? rt_reg_base(comm, (const struct rt_reg_buffer *)(const void *)win) : NULL;
  if (!win || *outUserPtr) return ncclSuccess;
  return rt_error(RAIL_BAD_ARGUMENT, "ncclWinGetUserPtr: %p is not a window of this communicator", (void *)win);
}

RAIL_EXPORT ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win) {
  return win ? remove_buffer("ncclCommWindowDeregister", comm, win) : rt_check_handle(comm, "ncclCommWindowDeregister");
}

/* ---- operators ------------------------------------------------------------------------ */

RAIL_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                                  ncclScalarResidence_t residence, ncclComm_t comm) {
  ncclResult_t r = rt_check_comm(comm, "ncclRedOpCreatePreMulSum");
  if (r != ncclSuccess) return r;
  size_t esize = rt_type_size((int)datatype);
  if (!op || !scalar || esize == 0)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclRedOpCreatePreMulSum: op %p, scalar %p, datatype %d", (void *)op, scalar,
                    (int)datatype);
  if (residence != ncclScalarDevice && residence != ncclScalarHostImmediate)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclRedOpCreatePreMulSum: residence is %d; allowed are 0 and 1",
                    (int)residence);
  int i = 0;
  while (i < comm->npremuls && comm->premuls[i].used) i++;
  if (i == comm->npremuls) {
    struct rt_premul *grown = realloc(comm->premuls, (size_t)(i + 1) * sizeof *grown);
    if (!grown) return rt_error(RAIL_SYSTEM_ERROR, "ncclRedOpCreatePreMulSum: out of memory");
    comm->premuls = grown;
    comm->npremuls = i + 1;
  }
  struct rt_premul *m = &comm->premuls[i];
  *m = (struct rt_premul){.used = true, .deferred = residence == ncclScalarDevice, .type = datatype, .scalar = scalar};
  if (!m->deferred) memcpy(m->value, scalar, esize);
  *op = (ncclRedOp_t)(ncclNumOps + i);
  return ncclSuccess;
}

RAIL_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  ncclResult_t r = rt_check_handle(comm, "ncclRedOpDestroy");
  if (r != ncclSuccess) return r;
  int i = (int)op - ncclNumOps;
  if (i < 0 || i >= comm->npremuls || !comm->premuls[i].used)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclRedOpDestroy: op %d was not made for this communicator", (int)op);
  comm->premuls[i].used = false;
  return ncclSuccess;
}

/* ---- logging ------------------------------------------------------------------------------ */

RAIL_EXPORT void ncclResetDebugInit(void) { rail_log_reload(); }
RAIL_EXPORT void ncclResetDebugInitInternal(void) { rail_log_reload(); }

/* ---- Railyard's own ----------------------------------------------------------------------- */

RAIL_EXPORT ncclResult_t railCommWait(ncclComm_t comm) {
  ncclResult_t r = rt_check_handle(comm, "railCommWait");
  if (r != ncclSuccess) return r;
  if (atomic_load(&comm->init_state) == ncclInProgress) return ncclInProgress;
  atomic_fetch_add(&comm->users, 1);
  if (comm->queue.comm) rt_queue_wait(&comm->queue);
  r = (ncclResult_t)atomic_load(&comm->failed);
  if (r != ncclSuccess) rt_error_keep(comm->error);
  atomic_fetch_sub(&comm->users, 1);
  return r;
}

RAIL_EXPORT ncclResult_t railCommQuery(ncclComm_t comm, int *done) {
  ncclResult_t r = rt_check_handle(comm, "railCommQuery");
  if (r != ncclSuccess) return r;
  if (!done) return rt_error(RAIL_BAD_ARGUMENT, "railCommQuery: done is NULL");
  *done = 0;
  if (atomic_load(&comm->init_state) == ncclInProgress) return ncclInProgress;
  *done = !comm->queue.comm || rt_queue_idle(&comm->queue);
  return (ncclResult_t)atomic_load(&comm->failed);
}

RAIL_EXPORT const char *railCommTransports(ncclComm_t comm) {
  if (rt_check_made(comm, "railCommTransports") != ncclSuccess) return "";
  bool p2p = false, shm = false, net = false;
  for (int c = 0; c < rt_comm_all_channels(comm); c++)
    for (int p = 0; p < comm->nranks; p++) {
      const struct rt_connector *ends[2] = {comm->channels[c].send[p], comm->channels[c].recv[p]};
      for (int e = 0; e < 2; e++) {
        if (!ends[e] || !ends[e]->connected) continue;
        p2p |= ends[e]->in_gpu;
        shm |= rt_transport_direct(ends[e]->transport) && !ends[e]->in_gpu;
        net |= ends[e]->transport == &rt_net_transport;
      }
    }
  snprintf(comm->transports_text, sizeof comm->transports_text, "%s%s%s%s%s%s", p2p ? "P2P" : "",
           p2p && (shm || net) ? "+" : "", shm ? "SHM" : "", shm && net ? "+" : "", net ? "NET/" : "",
           net ? rail_net_name(comm->net.plugin) : "");
  return comm->transports_text;
}

RAIL_EXPORT const char *railCommNetPlugin(ncclComm_t comm) {
  if (rt_check_handle(comm, "railCommNetPlugin") != ncclSuccess || !comm->net.plugin) return "";
  return rail_net_path(comm->net.plugin);
}

RT_PNAME(CommRegister);
RT_PNAME(CommDeregister);
RT_PNAME(CommWindowRegister);
RT_PNAME(CommWindowDeregister);
RT_PNAME(WinGetUserPtr);
RT_PNAME(ResetDebugInit);
RT_PNAME(RedOpCreatePreMulSum);
RT_PNAME(RedOpDestroy);
