/* SPDX-License-Identifier: Apache-2.0
 * Registered memory, and the buffers that must lie in it. */
#include <inttypes.h>

#include "common/base/log.h"
#include "loader/netload.h"
#include "plugin/railtrace/tr_call.h"

#define ON_CONNECTION (TR_SEND | TR_RECV)

/* A plugin may give NULL for memory that needs no registration; the caller then has no handle to look up. */
static rail_result_t registered(struct tr_comm *c, struct rail_trace_event *e, void *real, void **mhandle) {
  rail_result_t result = tr_result(e->result, c, rail_trace_kind_name(e->kind));
  e->made = 0;
  if (result == RAIL_OK && real == TR_POISON) {
    if (tr_broken(RAIL_RULE_MHANDLE_UNWRITTEN, c, 0, 0, 0, "%s succeeded without writing *mhandle",
                  rail_trace_kind_name(e->kind)))
      result = RAIL_INTERNAL_ERROR;
    real = NULL;
  }
  if (result == RAIL_OK) {
    struct tr_mr *mr = real ? tr_mr_new(c, e->address, e->size, real) : NULL;
    if (real && !mr) {
      (void)rail_net_dereg_mr(c->net, c->real, real);
      RAIL_WARN("%s: no memory for another registration", rail_trace_kind_name(e->kind));
      result = RAIL_SYSTEM_ERROR;
    } else {
      if (mr) e->made = mr->id;
      if (mr) *mhandle = tr_mr_handle(mr);
      atomic_fetch_add(mr ? &c->mrs : &c->null_mrs, 1);
    }
  }
  tr_record(e);
  return result;
}

static void begin(struct rail_trace_event *e, enum rail_trace_kind kind, const struct tr_comm *c, const void *data,
                  size_t size, int type) {
  tr_begin(e, kind);
  e->comm = c->id;
  e->address = (uintptr_t)data;
  e->size = size;
  e->dev = type;
}

rail_result_t tr_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle) {
  struct rail_trace_event e;
  void *real = TR_POISON;
  struct tr_comm *c = tr_comm_of(comm, ON_CONNECTION, "regMr");
  if (!c) return RAIL_INTERNAL_ERROR;
  begin(&e, RAIL_TRACE_REG_MR, c, data, size, type);
  tr_end(&e, rail_net_raw_reg_mr(c->net, c->real, data, size, type, &real));
  return registered(c, &e, real, mhandle);
}

rail_result_t tr_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                               void **mhandle) {
  struct rail_trace_event e;
  void *real = TR_POISON;
  struct tr_comm *c = tr_comm_of(comm, ON_CONNECTION, "regMrDmaBuf");
  if (!c) return RAIL_INTERNAL_ERROR;
  begin(&e, RAIL_TRACE_REG_DMABUF, c, data, size, type);
  e.value = offset;
  tr_end(&e, rail_net_raw_reg_mr_dmabuf(c->net, c->real, data, size, type, offset, fd, &real));
  return registered(c, &e, real, mhandle);
}

/* What is wrong with a memory handle in a call on this comm. `mr` may be NULL. True: the call is to fail. */
RAIL_COLD static bool report(enum tr_found found, const struct tr_comm *c, const struct tr_mr *mr, void *mhandle,
                             const char *call) {
  if (found == TR_UNKNOWN)
    return tr_broken(RAIL_RULE_MR_UNKNOWN, c, 0, (uintptr_t)mhandle, 0, "%s with memory handle %p", call, mhandle);
  if (found == TR_STALE)
    return tr_broken(RAIL_RULE_MR_DEREGISTERED, c, 0, (uintptr_t)mhandle, 0, "%s with memory handle %p", call, mhandle);
  return tr_broken(RAIL_RULE_MR_OTHER_COMM, c, 0, mr->id, mr->comm_id, "%s with memory %" PRIu64 " of comm %" PRIu64,
                   call, mr->id, mr->comm_id);
}

rail_result_t tr_dereg_mr(void *comm, void *mhandle) {
  struct rail_trace_event e;
  struct tr_mr *mr;
  if (!mhandle) return RAIL_OK;
  struct tr_comm *c = tr_comm_of(comm, ON_CONNECTION, "deregMr");
  if (!c) return RAIL_INTERNAL_ERROR;
  enum tr_found found = tr_mr_find(mhandle, &mr);
  if (found != TR_OK) {
    (void)report(found, c, mr, mhandle, "deregMr");
    return RAIL_INTERNAL_ERROR; /* there is no handle of the plugin to pass on */
  }
  if (mr->comm_id != c->id && report(TR_OK, c, mr, mhandle, "deregMr")) return RAIL_INTERNAL_ERROR;
  uint32_t users = atomic_load(&mr->users) - 1;
  /* After an error this is how NCCL tidies up, so it is reported and passed on. */
  if (users)
    (void)tr_broken(RAIL_RULE_MR_IN_USE, c, 0, mr->id, users, "memory %" PRIu64 " while %u buffer%s in it", mr->id,
                    users, users == 1 ? " is outstanding" : "s are outstanding");
  tr_begin(&e, RAIL_TRACE_DEREG_MR);
  e.comm = c->id;
  e.mr = mr->id;
  tr_end(&e, rail_net_raw_dereg_mr(c->net, c->real, mr->real));
  rail_result_t result = tr_result(e.result, c, "deregMr");
  tr_record(&e);
  if (mr->comm_id == c->id) atomic_fetch_sub(&c->mrs, 1);
  tr_mr_free(mr);
  return result;
}

rail_result_t tr_get_device_mr(void *comm, void *mhandle, void **dptr_mhandle) {
  struct rail_trace_event e;
  struct tr_mr *mr = NULL;
  struct tr_comm *c = tr_comm_of(comm, ON_CONNECTION, "getDeviceMr");
  if (!c) return RAIL_INTERNAL_ERROR;
  enum tr_found found = mhandle ? tr_mr_find(mhandle, &mr) : TR_OK;
  if (found != TR_OK) {
    (void)report(found, c, mr, mhandle, "getDeviceMr");
    return RAIL_INTERNAL_ERROR;
  }
  tr_begin(&e, RAIL_TRACE_GET_DEVICE_MR);
  e.comm = c->id;
  e.mr = mr ? mr->id : 0;
  tr_end(&e, rail_net_raw_get_device_mr(c->net, c->real, mr ? mr->real : NULL, dptr_mhandle));
  rail_result_t result = tr_result(e.result, c, "getDeviceMr");
  tr_record(&e);
  return result;
}

void *tr_buffer(struct tr_comm *c, void *data, uint64_t size, void *mhandle, const char *call,
                struct rail_trace_buf *buf, struct tr_span *span, bool *refuse) {
  struct tr_mr *mr = NULL;
  *span = (struct tr_span){.size = size};
  *buf = (struct rail_trace_buf){.at = (uintptr_t)data, .size = size};
  if (rail_unlikely(!data && size))
    *refuse |= tr_broken(RAIL_RULE_NULL_DATA, c, 0, size, 0, "%s of %" PRIu64 " bytes at NULL", call, size);
  if (!mhandle && (!size || atomic_load_explicit(&c->null_mrs, memory_order_relaxed))) return NULL;
  enum tr_found found = tr_mr_find(mhandle, &mr);
  if (rail_unlikely(found != TR_OK)) {
    *refuse |= report(found, c, mr, mhandle, call);
    return mr ? mr->real : mhandle;
  }
  if (rail_unlikely(mr->comm_id != c->id)) *refuse |= report(TR_OK, c, mr, mhandle, call);
  uint64_t at = (uintptr_t)data - mr->base;
  if (rail_unlikely(size && ((uintptr_t)data < mr->base || at > mr->size || size > mr->size - at)))
    *refuse |= tr_broken(RAIL_RULE_MR_RANGE, c, 0, (uintptr_t)data, size,
                         "%s of %" PRIu64 " bytes at %p, memory %" PRIu64 " is %" PRIu64 " bytes at %#" PRIx64, call,
                         size, data, mr->id, mr->size, mr->base);
  buf->mr = mr->id;
  buf->at = at;
  span->mr = mr->index + 1;
  return mr->real;
}
