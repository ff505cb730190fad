/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory registration. A handle belongs to a connection and holds one
 * registration per rail, which the HCA's cache may share with others.
 */
#include <stdlib.h>

#include "common/base/log.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_mr.h"
#include "plugin/ib/ib_mr_cache.h"
#include "plugin/ib/ib_progress.h"
#include "plugin/ib/ib_watch.h"

/* Of the lists of handles of all comms: NCCL's calls for one comm may come from two threads (the user's, who
 * registers buffers, and the proxy's service thread). Held for a few stores. */
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

static void link_handle(struct ib_comm *comm, struct ib_mhandle *handle) {
  pthread_mutex_lock(&list_lock);
  handle->next = comm->mhandles;
  if (comm->mhandles) comm->mhandles->prev = handle;
  comm->mhandles = handle;
  pthread_mutex_unlock(&list_lock);
}

static void unlink_handle(struct ib_comm *comm, struct ib_mhandle *handle) {
  pthread_mutex_lock(&list_lock);
  if (handle->prev) handle->prev->next = handle->next;
  else comm->mhandles = handle->next;
  if (handle->next) handle->next->prev = handle->prev;
  pthread_mutex_unlock(&list_lock);
}

static void release_entries(struct ib_comm *comm, struct ib_mhandle *handle) {
  for (unsigned int i = 0; i < comm->nrails; i++) {
    if (handle->entries[i]) ib_mr_cache_put(comm->rails[i].port->hca->mrs, handle->entries[i]);
    handle->entries[i] = NULL;
  }
}

static void retire_entries(struct ib_comm *comm, struct ib_mhandle *handle) {
  for (unsigned int i = 0; i < comm->nrails; i++) ib_mr_cache_retire(comm->rails[i].port->hca->mrs, handle->entries[i]);
}

/* The same for both kinds of comm, and for all that a connection may do with a buffer, so that buffers which several
 * connections register are registered once: sends read it, receives are written to, a flush reads it back. The peer
 * of a send comm never learns a key of its buffers. */
static int access_on(const struct ib_hca *hca) {
  int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
  return hca->relaxed_ordering ? access | (int)IBV_ACCESS_RELAXED_ORDERING : access;
}

static bool supports(const struct ib_comm *comm, int type, int fd) {
  for (unsigned int i = 0; i < comm->nrails; i++) {
    const struct ib_hca *hca = comm->rails[i].port->hca;
    if (type == RAIL_PTR_CUDA && fd < 0 && !hca->gpu_direct) return false;
    if (fd >= 0 && !hca->dmabuf) return false;
  }
  return true;
}

static rail_result_t check(const struct ib_comm *comm, const char *call, const void *data, size_t size, int type,
                           int fd) {
  static const char missing[] = "the peer memory module of the GPU's driver (nvidia_peermem) is not loaded, so that "
                                "only host memory and dma-bufs can be registered";
  if (type != RAIL_PTR_HOST && type != RAIL_PTR_CUDA && type != RAIL_PTR_DMABUF) {
    RAIL_WARN("RailIB: %s: pointer type %d; allowed: %d (host), %d (CUDA), %d (dma-buf)", call, type, RAIL_PTR_HOST,
              RAIL_PTR_CUDA, RAIL_PTR_DMABUF);
    return RAIL_BAD_ARGUMENT;
  }
  if (type == RAIL_PTR_DMABUF && fd < 0) {
    RAIL_WARN("RailIB: %s: pointer type %d (dma-buf) without a file descriptor; regMrDmaBuf takes one", call, type);
    return RAIL_BAD_ARGUMENT;
  }
  if (!data && size) {
    RAIL_WARN("RailIB: %s: address NULL with size %zu", call, size);
    return RAIL_BAD_ARGUMENT;
  }
  if (supports(comm, type, fd)) return RAIL_OK;
  RAIL_WARN("RailIB: %s of %p+%zu over %s: %s", call, data, size, comm->device->name,
            fd < 0 ? missing : "the kernel or the HCA's driver registers no dma-bufs");
  return RAIL_SYSTEM_ERROR;
}

/* `key` is whole but for what depends on the rail. A handle of no bytes registers nothing. */
static rail_result_t register_on_rails(struct ib_comm *comm, struct ib_mr_key *key, struct ib_mhandle *handle) {
  for (unsigned int i = 0; key->size && i < comm->nrails; i++) {
    const struct ib_hca *hca = comm->rails[i].port->hca;
    key->access = access_on(hca);
    rail_result_t result = ib_mr_cache_get(hca->mrs, key, &handle->entries[i]);
    if (result != RAIL_OK) {
      release_entries(comm, handle);
      return result;
    }
    handle->lkeys[i] = ib_mr_entry_mr(handle->entries[i])->lkey;
    handle->rkeys[i] = ib_mr_entry_mr(handle->entries[i])->rkey;
  }
  return RAIL_OK;
}

static rail_result_t reg(const char *call, void *comm_arg, void *data, size_t size, int type, uint64_t offset, int fd,
                         void **mhandle) {
  *mhandle = NULL;
  struct ib_comm *comm = ib_comm_of(comm_arg, 0, call);
  if (!comm) return RAIL_BAD_ARGUMENT;
  RAIL_TRY(check(comm, call, data, size, type, fd));
  struct ib_mhandle *handle = calloc(1, sizeof *handle);
  if (!handle) {
    RAIL_WARN("RailIB: %s: out of memory", call);
    return RAIL_SYSTEM_ERROR;
  }
  handle->magic = IB_MHANDLE_MAGIC;
  handle->type = type;
  handle->comm = comm;
  handle->addr = (uint64_t)(uintptr_t)data;
  handle->size = size;
  struct ib_mr_key key = {.addr = handle->addr, .size = size, .fd = fd, .offset = offset};
  rail_result_t result = register_on_rails(comm, &key, handle);
  if (result != RAIL_OK) {
    free(handle);
    return result;
  }
  link_handle(comm, handle);
  *mhandle = handle;
  return RAIL_OK;
}

rail_result_t ib_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle) {
  return reg("regMr", comm, data, size, type, 0, -1, mhandle);
}

rail_result_t ib_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle) {
  if (fd < 0) {
    *mhandle = NULL;
    RAIL_WARN("RailIB: regMrDmaBuf of %p+%zu: file descriptor %d", data, size, fd);
    return RAIL_BAD_ARGUMENT;
  }
  return reg("regMrDmaBuf", comm, data, size, type, offset, fd, mhandle);
}

rail_result_t ib_dereg_mr(void *comm_arg, void *mhandle) {
  struct ib_mhandle *handle = mhandle;
  if (!handle) return RAIL_OK;
  struct ib_comm *comm = ib_comm_of(comm_arg, 0, "deregMr");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (handle->magic != IB_MHANDLE_MAGIC || handle->comm != comm) {
    RAIL_WARN("RailIB: deregMr: %p is not a registration of this connection", mhandle);
    return RAIL_BAD_ARGUMENT;
  }
  if (atomic_load_explicit(&handle->outstanding, memory_order_acquire) && !atomic_load(&comm->stopped)) {
    /* Normal at abort, a bug at any other time; either way the connection is over. The registration may be shared and
     * live on, so it is the QPs that must not touch the range any more. */
    ib_comm_stop(comm);
    RAIL_INFO(RAIL_SUB_NET, "RailIB: deregMr of %#llx+%llu with %u requests outstanding: the connection is stopped",
              (unsigned long long)handle->addr, (unsigned long long)handle->size, atomic_load(&handle->outstanding));
    ib_watch_remove(comm, true); /* the peer learns at once */
  }
  if (atomic_load_explicit(&handle->outstanding, memory_order_acquire) && !comm->sender && !comm->forked &&
      !(atomic_load(&comm->health) & IB_COMM_DEVICE_FATAL) && !ib_settle(comm)) /* a dead HCA moves and says nothing */
    RAIL_INFO(RAIL_SUB_NET, "RailIB: deregMr of %#llx+%llu: the HCA has not said within a second that it has stopped",
              (unsigned long long)handle->addr, (unsigned long long)handle->size);
  handle->magic = 0;
  /* Requests refer to it, and a QP that was stopped in the middle of a write may, too: Soft-RoCE's holds the
   * registration until it is destroyed, and ibv_dereg_mr would wait for that for up to 50 s (Linux 6.1, rxe_pool.c). It
   * goes with the connection, and nobody finds it until then, because the caller may free the memory. */
  if (atomic_load_explicit(&handle->outstanding, memory_order_acquire)) {
    if (!comm->forked) retire_entries(comm, handle);
    return RAIL_OK;
  }
  if (!comm->forked) release_entries(comm, handle);
  unlink_handle(comm, handle);
  free(handle);
  return RAIL_OK;
}

void ib_mhandles_free(struct ib_comm *comm) {
  while (comm->mhandles) {
    struct ib_mhandle *handle = comm->mhandles;
    comm->mhandles = handle->next;
    release_entries(comm, handle);
    handle->magic = 0;
    free(handle);
  }
}
