/* SPDX-License-Identifier: Apache-2.0
 * Asks the driver what kind of memory a call's buffers are, and holds the communicator to its first kind. The public
 * calls use it (rt_api_coll.c, rt_api_misc.c), in the user's thread, before there is a task. */
#include "core/plan/rt_buffer.h"

#include <stdio.h>

#include "core/comm/rt_error.h"
#include "core/gpu/rt_cuda.h"
#include "core/gpu/rt_module.h"

enum kind { HOST, REGISTERED, DEVICE };

struct memory {
  enum kind kind;
  bool fixed;    /* it lies on one device; managed and registered memory is whose it has to be */
  void *context; /* of DEVICE and REGISTERED; NULL: it has none of its own */
  int ordinal;
};

/* RT_CU_SUCCESS, or the driver's error. */
static int query_driver(const struct rt_cuda *cu, const void *p, struct memory *m) {
  int attributes[] = {RT_CU_POINTER_MEMORY_TYPE, RT_CU_POINTER_IS_MANAGED, RT_CU_POINTER_CONTEXT,
                      RT_CU_POINTER_DEVICE_ORDINAL, RT_CU_POINTER_DEVICE_POINTER};
  unsigned type = 0, managed = 0;
  uint64_t device_pointer = 0;
  void *values[] = {&type, &managed, &m->context, &m->ordinal, &device_pointer};
  *m = (struct memory){.kind = HOST};
  int r = cu->pointer_attributes(RAIL_COUNT_OF(attributes), attributes, values, (uint64_t)(uintptr_t)p);
  if (r != RT_CU_SUCCESS) return r;
  if (managed)
    m->kind = DEVICE;
  else if (type == RT_CU_MEMORY_HOST) /* a kernel can use it only if the device has it at the same address */
    m->kind = device_pointer == (uint64_t)(uintptr_t)p ? REGISTERED : HOST;
  else if (type != 0)
    m->kind = DEVICE;
  m->fixed = m->kind == DEVICE && !managed;
  return r;
}

static rail_result_t find_memory(const struct rt_cuda *cu, const struct ncclComm *comm, const void *p,
                                 struct memory *m) {
  int r = query_driver(cu, p, m);
  if (r == RT_CU_INVALID_CONTEXT && comm && comm->gpu.context) {
    struct rt_cuda_scope scope;
    RAIL_TRY(rt_cuda_enter(&scope, comm->gpu.context));
    r = query_driver(cu, p, m);
    rt_cuda_leave(&scope);
  }
  /* A driver that is not initialised, has no context in this thread, or is a stub, has allocated no memory. */
  if (r == RT_CU_NOT_INITIALIZED || r == RT_CU_DEINITIALIZED || r == RT_CU_STUB_LIBRARY || r == RT_CU_NO_DEVICE ||
      r == RT_CU_INVALID_CONTEXT)
    return RAIL_OK;
  return rt_cuda_check(r, "cuPointerGetAttributes", "an earlier error on the device may be the reason");
}

static const char *text(const struct memory *m, char out[64]) {
  if (m->kind == HOST) return "host memory that is not registered with CUDA";
  snprintf(out, 64, "%smemory of CUDA device %d", m->kind == REGISTERED ? "registered " : "", m->ordinal);
  return out;
}

/* The context in which this communicator's kernels run: the buffer's, if it lies on one device, else the stream's, else
 * the caller's. Mapped memory (rt_mem.h) and that of memory pools lies on one, and has none. */
static void *find_context(const struct rt_cuda *cu, const struct memory *m, void *stream) {
  void *context = m->fixed ? m->context : NULL;
  if (!context && stream && cu->stream_get_context(stream, &context) != RT_CU_SUCCESS) context = NULL;
  if (!context && cu->ctx_get_current(&context) != RT_CU_SUCCESS) context = NULL;
  return context ? context : m->context;
}

static rail_result_t device_of(const struct rt_cuda *cu, void *context, int *device) {
  struct rt_cuda_scope scope;
  RAIL_TRY(rt_cuda_enter(&scope, context));
  int r = cu->ctx_get_device(device);
  rt_cuda_leave(&scope);
  return rt_cuda_check(r, "cuCtxGetDevice", "is the device still there?");
}

/* The call is on the device: the communicator's, or the one that it will have. */
static ncclResult_t set_or_check_device(struct ncclComm *comm, const char *call, const struct rt_cuda *cu,
                                        const struct memory *m, void *stream) {
  struct rt_gpu *gpu = &comm->gpu;
  if (gpu->context && m->fixed && gpu->ordinal != m->ordinal)
    return rt_error(RAIL_BAD_ARGUMENT, "%s: a buffer is memory of CUDA device %d; this communicator is on device %d",
                    call, m->ordinal, gpu->ordinal);
  if (gpu->context) return ncclSuccess;
  void *context = find_context(cu, m, stream);
  if (!context)
    return rt_error(RAIL_CUDA_ERROR, "%s: no CUDA context is current in this thread; make the buffers' device current",
                    call);
  if (device_of(cu, context, &gpu->ordinal) != RAIL_OK)
    return rt_error(RAIL_CUDA_ERROR, "%s: the buffers' CUDA device cannot be found; the log says why", call);
  if (m->fixed && gpu->ordinal != m->ordinal)
    return rt_error(RAIL_BAD_ARGUMENT,
                    "%s: a buffer is memory of CUDA device %d, the stream or the calling thread is "
                    "on device %d; make the buffer's device current, and take a stream of it",
                    call, m->ordinal, gpu->ordinal);
  gpu->context = context;
  comm->memory = RT_DEVICE_MEMORY;
  comm->tuning.on_device = true;
  return ncclSuccess;
}

static ncclResult_t lookup_failed(void) {
  rt_error_keep("cuPointerGetAttributes failed; the log says how");
  return ncclUnhandledCudaError;
}

/* A call's buffers: one, or two. */
struct buffer {
  const char *name;
  const void *at;
  struct memory m;
};

/* The communicator works on the other kind of memory. */
static ncclResult_t wrong_kind(const struct ncclComm *comm, const char *call, const struct buffer *b) {
  char a[64], first[64] = "host memory";
  if (comm->memory == RT_DEVICE_MEMORY) snprintf(first, sizeof first, "memory of CUDA device %d", comm->gpu.ordinal);
  return rt_error(RAIL_BAD_USAGE, "%s: %s %p is %s, and the first call of this communicator had %s: a communicator "
                  "works on one kind of memory; make another one for this call (ncclCommSplit, ncclCommInitRank)",
                  call, b->name, b->at, text(&b->m, a), first);
}

static ncclResult_t do_not_fit(const char *call, const struct buffer *s, const struct buffer *r, const char *rule) {
  char a[64], b[64];
  return rt_error(RAIL_BAD_ARGUMENT, "%s: %s %p is %s, %s %p is %s; %s", call, s->name, s->at, text(&s->m, a), r->name,
                  r->at, text(&r->m, b), rule);
}

static ncclResult_t check(struct ncclComm *comm, const char *call, const struct rt_cuda *cu, const struct buffer *s,
                          const struct buffer *r, void *stream) {
  const struct buffer *device = s->m.kind == DEVICE ? s : r->m.kind == DEVICE ? r : NULL;
  const struct buffer *host = s->m.kind == HOST ? s : r->m.kind == HOST ? r : NULL;
  if (comm->memory == RT_HOST_MEMORY) return device ? wrong_kind(comm, call, device) : ncclSuccess;
  if (comm->memory == RT_DEVICE_MEMORY && host && !device) return wrong_kind(comm, call, host);
  if (device && host) return do_not_fit(call, s, r, "the device must reach both");
  if (s->m.fixed && r->m.fixed && s->m.ordinal != r->m.ordinal)
    return do_not_fit(call, s, r, "one device must have both");
  if (host || (!device && comm->memory == RT_ANY_MEMORY && !rt_module_exists())) {
    comm->memory = RT_HOST_MEMORY;
    return ncclSuccess;
  }
  return set_or_check_device(comm, call, cu, s->m.fixed ? &s->m : &r->m, stream);
}

ncclResult_t rt_buffer_check(struct ncclComm *comm, const char *call, const void *send, const void *recv,
                             void *stream) {
  const struct rt_cuda *cu = rt_cuda();
  struct buffer s = {.name = "sendbuff", .at = send}, r = {.name = "recvbuff", .at = recv};
  if (!send && !recv) return ncclSuccess;
  if (rail_likely(!cu)) {
    comm->memory = RT_HOST_MEMORY;
    return ncclSuccess;
  }
  if (send && find_memory(cu, comm, send, &s.m) != RAIL_OK) return lookup_failed();
  if (recv && recv != send && find_memory(cu, comm, recv, &r.m) != RAIL_OK) return lookup_failed();
  const bool only_recv = !send, only_send = !recv || recv == send;
  return check(comm, call, cu, only_recv ? &r : &s, only_send ? &s : &r, stream);
}

ncclResult_t rt_buffer_is_device(const struct ncclComm *comm, const void *p, bool *is_device) {
  const struct rt_cuda *cu = rt_cuda();
  struct memory m = {.kind = HOST};
  if (cu && find_memory(cu, comm, p, &m) != RAIL_OK) return lookup_failed();
  *is_device = m.kind == DEVICE || comm->memory == RT_DEVICE_MEMORY ||
               (m.kind == REGISTERED && comm->memory != RT_HOST_MEMORY);
  return ncclSuccess;
}

ncclResult_t rt_buffer_check_scalar(const struct ncclComm *comm, const char *call, const void *scalar) {
  const struct rt_cuda *cu = rt_cuda();
  const bool on_device = comm->memory == RT_DEVICE_MEMORY;
  struct memory m;
  if (rail_likely(!cu)) return ncclSuccess;
  if (find_memory(cu, NULL, scalar, &m) != RAIL_OK) return lookup_failed();
  if (m.kind == REGISTERED || (m.kind == DEVICE) == on_device) return ncclSuccess;
  char a[64];
  return rt_error(RAIL_BAD_ARGUMENT, "%s: the operator's factor at %p is %s; the buffers are the %s's", call, scalar,
                  text(&m, a), on_device ? "device" : "host");
}
