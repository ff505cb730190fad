/* SPDX-License-Identifier: Apache-2.0
 *
 * iflush: bytes that a NIC wrote to GPU memory are visible to the GPU when a read behind them has completed. Each NIC
 * reads a few bytes of the last buffer with data from its own endpoint: its reads do not pass its writes. Host memory
 * needs none. What the reads need is made at accept. iflush does not wait for the endpoint's lock, and a NULL request
 * would tell its caller that there is nothing to flush: a flush that finds the lock taken is posted by test.
 */
#include <string.h>

#include "plugin/ofi/ofi_progress.h"

#define FLUSH_BYTES 8

static bool is_enabled(void) { return !ofi_params.flush_disable && ofi_params.flush != OFI_FLUSH_NEVER; }

static bool is_wanted(const struct ofi_recv_comm *rc, const struct ofi_mhandle *mr) {
  return rc->flush_target.bytes && is_enabled() && mr && mr->memory.size &&
         (ofi_params.flush == OFI_FLUSH_ALWAYS || mr->memory.type != RAIL_PTR_HOST);
}

int ofi_flush_prepare(struct ofi_recv_comm *rc) {
  struct ofi_endpoint *endpoint = rc->base.endpoint;
  const struct ofi_caps *caps = &rc->base.device->rails[0]->caps;
  if (!is_enabled() || !caps->rma_read || (ofi_params.flush != OFI_FLUSH_ALWAYS && !caps->hmem_cuda)) return 0;
  if (!ofi_memory_alloc(endpoint, FLUSH_BYTES, &rc->flush_target)) return -FI_ENOMEM;
  for (unsigned int i = 0; i < endpoint->nnics; i++) {
    struct ofi_endpoint_nic *nic = &endpoint->nics[i];
    int err = !nic->self ? ofi_endpoint_resolve(endpoint, i, &nic->name, &nic->self) : 0;
    if (err) return err;
  }
  return 0;
}

/* Each NIC reads the beginning of `data`. */
static rail_result_t post_reads(struct ofi_recv_comm *rc, struct ofi_flush *flush, const void *data) {
  struct ofi_comm *comm = &rc->base;
  const struct ofi_mhandle *mr = flush->mr;
  int err = 0;
  flush->pending = 1;
  for (unsigned int i = 0; i < comm->endpoint->nnics && !err; i++) {
    struct ofi_op *op = &flush->ops[i];
    uint64_t offset = (uintptr_t)data - mr->memory.addr;
    op->kind = OFI_OP_FLUSH;
    op->comm = comm;
    op->request = flush;
    op->nic = &comm->endpoint->nics[i];
    op->to = op->nic->self->addr;
    op->data = rc->flush_target.bytes;
    op->size = RAIL_MIN(FLUSH_BYTES, mr->memory.size - offset);
    op->desc = rc->flush_target.descs[i];
    op->remote_addr = op->nic->device_nic->caps.mr_virt_addr ? (uintptr_t)data : offset;
    op->key = mr->keys[i];
    err = ofi_op_post(op);
    if (!err) flush->pending++;
  }
  flush->pending--;
  if (!err) return RAIL_OK;
  return ofi_comm_fail(comm, RAIL_SYSTEM_ERROR, "iflush: fi_read with %s: %s; check: RAIL_OFI_FLUSH",
                       comm->device->name, ofi_fabric_strerror(err));
}

/* Under the lock. */
static void begin(struct ofi_recv_comm *rc, struct ofi_flush *flush) {
  flush->later = false;
  ofi_request_begin(&flush->base, OFI_REQ_FLUSH);
  rail_net_memory_hold(&flush->mr->memory);
  (void)post_reads(rc, flush, flush->data);
}

static bool is_registered(const struct ofi_comm *comm, const struct ofi_mhandle *mr) {
  const struct ofi_mhandle *other;
  LIST_FOREACH(other, &comm->mhandles, link)
    if (other == mr) return true;
  return false;
}

/* Posts the flushes that found the lock taken. They hold no reference to their registration, so deregMr may have freed
 * it meanwhile. */
void ofi_flush_begin_later(struct ofi_recv_comm *rc) {
  atomic_fetch_and(&rc->base.pending_work, ~OFI_FLUSH_LATER);
  for (unsigned int i = 0; i < OFI_MAX_RECVS; i++) {
    struct ofi_flush *flush = &rc->flushes[i];
    if (!flush->later) continue;
    if (is_registered(&rc->base, flush->mr)) begin(rc, flush);
    else (void)ofi_comm_fail(&rc->base, RAIL_BAD_USAGE, "iflush: the memory was deregistered meanwhile");
  }
}

static void complete_flush(struct ofi_flush *flush) {
  rail_net_memory_release(&flush->mr->memory);
  ofi_request_end(&flush->base);
}

rail_result_t ofi_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mhandles, void **request) {
  *request = NULL;
  struct ofi_comm *comm = ofi_comm_of(recv_comm, OFI_RECV_COMM_MAGIC, "iflush");
  if (!comm || n < 1 || n > OFI_MAX_GROUP || !data || !sizes || !mhandles) {
    if (comm)
      RAIL_WARN("RailOFI: iflush: n %d (allowed: 1..%d), data %p, sizes %p, mhandles %p; none may be NULL",
                n, OFI_MAX_GROUP, (void *)data, (const void *)sizes, (void *)mhandles);
    return RAIL_BAD_ARGUMENT;
  }
  RAIL_TRY(ofi_comm_status(comm));
  int last = n - 1;
  while (last >= 0 && sizes[last] <= 0) last--;
  struct ofi_mhandle *mr = last >= 0 ? mhandles[last] : NULL;
  struct ofi_recv_comm *rc = ofi_recv_comm_of(comm);
  if (!is_wanted(rc, mr)) return RAIL_OK; /* no request: nothing to wait for */
  if (!rail_net_memory_covers(mhandles[last], comm, data[last], (uint64_t)sizes[last]))
    return rail_net_refuse_buffer("RailOFI", "iflush", mhandles[last], comm, data[last], (uint64_t)sizes[last]);
  struct ofi_request *r = SLIST_FIRST(&rc->free_flushes);
  if (!r) {
    RAIL_WARN("RailOFI: iflush: %d flushes are outstanding, the limit; test some of them first", OFI_MAX_RECVS);
    return RAIL_BAD_USAGE;
  }
  struct ofi_flush *flush = rail_container_of(r, struct ofi_flush, base);
  flush->mr = mr;
  flush->data = data[last];
  rail_result_t result = RAIL_OK;
  if (ofi_endpoint_try(comm->endpoint)) {
    result = ofi_comm_status(comm); /* who had the lock may have ended it */
    if (result == RAIL_OK) begin(rc, flush);
    ofi_endpoint_unlock(comm->endpoint);
    if (result != RAIL_OK) return result;
  } else {
    r->magic = OFI_REQ_FLUSH;
    atomic_store_explicit(&r->state, OFI_ACTIVE, memory_order_relaxed);
    flush->later = true;
    atomic_fetch_or(&comm->pending_work, OFI_FLUSH_LATER);
  }
  SLIST_REMOVE_HEAD(&rc->free_flushes, free);
  *request = flush;
  return result;
}

void ofi_flush_done(struct ofi_op *op, const struct ofi_completion *completion) {
  struct ofi_flush *flush = op->request;
  flush->pending--;
  if (completion->err) (void)ofi_comm_fail_op(op, completion);
  else if (flush->pending == 0 && rail_first_error(&op->comm->error) == RAIL_OK) complete_flush(flush);
}

void ofi_flush_finish(struct ofi_flush *flush) {
  flush->base.magic = OFI_REQ_FREE;
  SLIST_INSERT_HEAD(&ofi_recv_comm_of(flush->base.comm)->free_flushes, &flush->base, free);
}
