/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory registration. A handle belongs to a connection, and has a registration with each NIC that needs one: for
 * fi_write into it, for local use where the provider asks for that (FI_MR_LOCAL), for GPU memory. GPU memory is
 * registered by its address: a provider that needs a dma-buf of it asks the driver for one itself.
 */
#include <stdlib.h>
#include <string.h>

#include "plugin/ofi/ofi_comm.h"

/* ---- registering ------------------------------------------------------------- */

static bool needs_registration(const struct ofi_comm *comm, const struct ofi_nic *nic, int type) {
  bool read_back = ofi_params.flush == OFI_FLUSH_ALWAYS && nic->caps.rma_read;
  return nic->caps.mr_local || type != RAIL_PTR_HOST ||
         (!comm->sender && (nic->protocol == OFI_PROTOCOL_RMA || read_back));
}

static int register_with(struct ofi_comm *comm, unsigned int i, struct ofi_mhandle *mr) {
  const struct ofi_nic *nic = comm->endpoint->nics[i].device_nic;
  const struct iovec iov = {.iov_base = (void *)(uintptr_t)mr->memory.addr, .iov_len = mr->memory.size};
  struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .access = FI_SEND | FI_RECV};
  if (nic->caps.rma) attr.access |= FI_WRITE | FI_REMOTE_WRITE;
  if (nic->caps.rma_read) attr.access |= FI_READ | FI_REMOTE_READ;
  if (mr->memory.type != RAIL_PTR_HOST) {
    attr.iface = FI_HMEM_CUDA;
    attr.device.cuda = mr->cuda_device;
  }
  int err = ofi_memory_register(comm->endpoint, i, &attr, &mr->mrs[i]);
  if (err) {
    mr->mrs[i] = NULL;
    return err;
  }
  mr->descs[i] = fi_mr_desc(mr->mrs[i]);
  mr->keys[i] = fi_mr_key(mr->mrs[i]);
  return mr->keys[i] == FI_KEY_NOTAVAIL ? -FI_EKEYREJECTED : 0;
}

static void deregister(struct ofi_mhandle *mr) {
  for (unsigned int i = 0; i < OFI_MAX_PATHS; i++) {
    int err = mr->mrs[i] ? fi_close(&mr->mrs[i]->fid) : 0;
    if (err)
      RAIL_WARN("RailOFI: deregistering %#llx+%llu: fi_close: %s; its pages may stay locked",
                (unsigned long long)mr->memory.addr, (unsigned long long)mr->memory.size, ofi_fabric_strerror(err));
    mr->mrs[i] = NULL;
  }
}

/* Under the lock. */
static rail_result_t register_with_nics(struct ofi_comm *comm, struct ofi_mhandle *mr) {
  for (unsigned int i = 0; mr->memory.size && i < comm->endpoint->nnics; i++) {
    const struct ofi_nic *nic = comm->endpoint->nics[i].device_nic;
    int err = needs_registration(comm, nic, mr->memory.type) ? register_with(comm, i, mr) : 0;
    if (!err) continue;
    deregister(mr);
    RAIL_WARN("RailOFI: registering %#llx+%llu with %s (%s): fi_mr_regattr: %s; %s",
              (unsigned long long)mr->memory.addr, (unsigned long long)mr->memory.size, nic->name, nic->provider,
              ofi_fabric_strerror(err),
              err == -FI_ENOMEM   ? "is `ulimit -l` (memlock) too low for this process?"
              : err == -FI_ENOKEY ? "all keys of this domain are taken (mr_key_size)"
                                  : "is the address ordinary memory that this process may write to?");
    return RAIL_SYSTEM_ERROR;
  }
  LIST_INSERT_HEAD(&comm->mhandles, mr, link);
  return RAIL_OK;
}

static rail_result_t check_args(const struct ofi_comm *comm, const void *data, size_t size, int type) {
  if (type != RAIL_PTR_HOST && type != RAIL_PTR_CUDA) {
    RAIL_WARN("RailOFI: regMr: pointer type %d; allowed: %d (host), %d (CUDA)", type, RAIL_PTR_HOST, RAIL_PTR_CUDA);
    return RAIL_BAD_ARGUMENT;
  }
  if ((!data && size) || (uintptr_t)data + size < (uintptr_t)data) {
    RAIL_WARN("RailOFI: regMr: %p+%zu is not a range of addresses", data, size);
    return RAIL_BAD_ARGUMENT;
  }
  for (unsigned int i = 0; i < comm->device->nrails && type != RAIL_PTR_HOST; i++)
    if (!comm->device->rails[i]->caps.hmem_cuda) {
      RAIL_WARN("RailOFI: regMr of %p+%zu: provider %s has no CUDA memory (FI_HMEM); allowed: host memory, type %d",
                data, size, comm->device->rails[i]->provider, RAIL_PTR_HOST);
      return RAIL_SYSTEM_ERROR;
    }
  return RAIL_OK;
}

rail_result_t ofi_reg_mr(void *comm_arg, void *data, size_t size, int type, void **mhandle) {
  *mhandle = NULL;
  struct ofi_comm *comm = ofi_comm_of(comm_arg, 0, "regMr");
  if (!comm) return RAIL_BAD_ARGUMENT;
  RAIL_TRY(check_args(comm, data, size, type));
  if (comm->forked) return RAIL_BAD_USAGE;
  struct ofi_mhandle *mr = calloc(1, sizeof *mr);
  if (!mr) {
    RAIL_WARN("RailOFI: regMr: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  rail_net_memory_init(&mr->memory, comm, data, size, type);
  if (type != RAIL_PTR_HOST) mr->cuda_device = ofi_cuda_device_of(mr->memory.addr);
  ofi_endpoint_lock(comm->endpoint);
  rail_result_t result = register_with_nics(comm, mr);
  ofi_endpoint_unlock(comm->endpoint);
  if (result == RAIL_OK) *mhandle = mr;
  else free(mr);
  return result;
}

rail_result_t ofi_dereg_mr(void *comm_arg, void *mhandle) {
  struct ofi_mhandle *mr = mhandle;
  if (!mr) return RAIL_OK;
  struct ofi_comm *comm = ofi_comm_of(comm_arg, 0, "deregMr");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (!rail_net_memory_is_of(&mr->memory, comm)) {
    RAIL_WARN("RailOFI: deregMr: %p is not a registration of this connection", mhandle);
    return RAIL_BAD_ARGUMENT;
  }
  mr->memory.magic = 0;
  if (comm->forked) return RAIL_OK;
  if (atomic_load_explicit(&mr->memory.outstanding, memory_order_acquire) && !atomic_load(&comm->stopped)) {
    /* Normal at abort, a bug at any other time; either way the connection is over. */
    RAIL_INFO(RAIL_SUB_NET, "RailOFI: deregMr of %#llx+%llu with %u requests outstanding ends the connection with %s",
              (unsigned long long)mr->memory.addr, (unsigned long long)mr->memory.size,
              atomic_load(&mr->memory.outstanding), comm->peer_text);
    ofi_comm_stop(comm);
  }
  ofi_endpoint_lock(comm->endpoint);
  deregister(mr);
  /* Requests that will never be done refer to it: it is freed with the comm. */
  bool in_use = atomic_load_explicit(&mr->memory.outstanding, memory_order_acquire) != 0;
  if (!in_use) LIST_REMOVE(mr, link);
  ofi_endpoint_unlock(comm->endpoint);
  if (!in_use) free(mr);
  return RAIL_OK;
}
