/* SPDX-License-Identifier: Apache-2.0
 * The runtime's streams, events, and graphs. */
#include "ghost/runtime/gh_cudart.h"

GH_API int cudaStreamCreate(void **stream) { GH_RT_CALL(cuStreamCreate(stream, 0)); }
GH_API int cudaStreamCreateWithFlags(void **stream, unsigned flags) { GH_RT_CALL(cuStreamCreate(stream, flags)); }
GH_API int cudaStreamDestroy(void *stream) { GH_RT_CALL(cuStreamDestroy_v2(stream)); }
GH_API int cudaStreamSynchronize(void *stream) { GH_RT_CALL(cuStreamSynchronize(stream)); }
GH_API int cudaStreamQuery(void *stream) { GH_RT_CALL(cuStreamQuery(stream)); }

/* The handle is as good a number as any: no two streams have the same at one time. */
GH_API int cudaStreamGetId(void *stream, unsigned long long *id) {
  *id = (unsigned long long)(uintptr_t)stream;
  return gh_rt_leave(gh_rt_enter());
}

GH_API int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
  GH_RT_CALL(cuStreamWaitEvent(stream, event, flags));
}
GH_API int cudaThreadExchangeStreamCaptureMode(int *mode) { GH_RT_CALL(cuThreadExchangeStreamCaptureMode(mode)); }
GH_API int cudaEventCreate(void **event) { GH_RT_CALL(cuEventCreate(event, 0)); }
GH_API int cudaEventCreateWithFlags(void **event, unsigned flags) { GH_RT_CALL(cuEventCreate(event, flags)); }
GH_API int cudaEventDestroy(void *event) { GH_RT_CALL(cuEventDestroy_v2(event)); }
GH_API int cudaEventRecord(void *event, void *stream) { GH_RT_CALL(cuEventRecord(event, stream)); }
GH_API int cudaEventQuery(void *event) { GH_RT_CALL(cuEventQuery(event)); }
GH_API int cudaEventSynchronize(void *event) { GH_RT_CALL(cuEventSynchronize(event)); }
GH_API int cudaLaunchHostFunc(void *stream, void (*call)(void *arg), void *arg) {
  GH_RT_CALL(cuLaunchHostFunc(stream, call, arg));
}

/* ---- captures ---- */

GH_API int cudaStreamIsCapturing(void *stream, int *status) {
  GH_RT_CALL(cuStreamGetCaptureInfo_v2(stream, status, NULL, NULL, NULL, NULL));
}

static int capture_info(void *stream, int *status, unsigned long long *id, void **graph, const void **nodes,
                        size_t *n) {
  uint64_t number = 0;
  int r = gh_rt_enter();
  if (r == 0) r = cuStreamGetCaptureInfo_v2(stream, status, &number, graph, nodes, n);
  if (r == 0 && id) *id = number;
  return gh_rt_leave(r);
}

GH_API int GH_RT_EDGES(cudaStreamGetCaptureInfo, _v3)(void *stream, int *status, unsigned long long *id, void **graph,
                                                      const void **nodes, const void **edges, size_t *n) {
  if (edges) *edges = NULL;
  return capture_info(stream, status, id, graph, nodes, n);
}

GH_API int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph,
                                          const void **nodes, size_t *n) {
  return capture_info(stream, status, id, graph, nodes, n);
}

GH_API int cudaUserObjectCreate(void **object, void *arg, void (*destroy)(void *arg), unsigned count,
                                   unsigned flags) {
  GH_RT_CALL(cuUserObjectCreate(object, arg, destroy, count, flags));
}
GH_API int cudaGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags) {
  GH_RT_CALL(cuGraphRetainUserObject(graph, object, count, flags));
}

GH_API int GH_RT_EDGES(cudaStreamUpdateCaptureDependencies, _v2)(void *stream, void **nodes, const void *edges,
                                                                 size_t n, unsigned flags) {
  if (edges) return gh_rt_leave(GH_RT_NOT_SUPPORTED);
  GH_RT_CALL(cuStreamUpdateCaptureDependencies(stream, nodes, n, flags));
}
GH_API int GH_RT_EDGES(cudaGraphAddDependencies, _v2)(void *graph, void *const *from, void *const *to,
                                                      const void *edges, size_t n) {
  if (edges) return gh_rt_leave(GH_RT_NOT_SUPPORTED);
  GH_RT_CALL(cuGraphAddDependencies(graph, from, to, n));
}
#if GH_RT_VERSION < 13000
GH_API int cudaStreamUpdateCaptureDependencies(void *stream, void **nodes, size_t n, unsigned flags) {
  GH_RT_CALL(cuStreamUpdateCaptureDependencies(stream, nodes, n, flags));
}
GH_API int cudaGraphAddDependencies(void *graph, void *const *from, void *const *to, size_t n) {
  GH_RT_CALL(cuGraphAddDependencies(graph, from, to, n));
}
#endif

GH_API int cudaGraphAddEventRecordNode(void **node, void *graph, void *const *after, size_t n, void *event) {
  GH_RT_CALL(cuGraphAddEventRecordNode(node, graph, after, n, event));
}
GH_API int cudaGraphAddEventWaitNode(void **node, void *graph, void *const *after, size_t n, void *event) {
  GH_RT_CALL(cuGraphAddEventWaitNode(node, graph, after, n, event));
}
GH_API int cudaGraphAddHostNode(void **node, void *graph, void *const *after, size_t n,
                                const struct gh_host_node *host) {
  GH_RT_CALL(cuGraphAddHostNode(node, graph, after, n, host));
}
GH_API int cudaGraphAddKernelNode(void) { return gh_rt_leave(GH_RT_NOT_SUPPORTED); }
GH_API int cudaStreamBeginCapture(void *stream, int mode) { GH_RT_CALL(cuStreamBeginCapture_v2(stream, mode)); }
GH_API int cudaStreamEndCapture(void *stream, void **graph) { GH_RT_CALL(cuStreamEndCapture(stream, graph)); }
GH_API int cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags) {
  GH_RT_CALL(cuGraphInstantiateWithFlags(exec, graph, flags));
}
GH_API int cudaGraphLaunch(void *exec, void *stream) { GH_RT_CALL(cuGraphLaunch(exec, stream)); }
GH_API int cudaGraphExecDestroy(void *exec) { GH_RT_CALL(cuGraphExecDestroy(exec)); }
GH_API int cudaGraphDestroy(void *graph) { GH_RT_CALL(cuGraphDestroy(graph)); }
GH_API int cudaMemcpyBatchAsync(void) { return gh_rt_leave(GH_RT_NOT_SUPPORTED); }
GH_API int cudaArrayGetInfo(void) { return gh_rt_leave(GH_RT_NOT_SUPPORTED); }
