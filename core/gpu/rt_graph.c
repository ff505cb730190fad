/* SPDX-License-Identifier: Apache-2.0
 * The counted reference that a captured plan and its graph share. rt_device_plan.c takes it while a stream is captured;
 * the driver drops the graph's, in a thread of its own. */
#include "core/gpu/rt_graph.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "core/gpu/rt_cuda.h"

#define ADVICE "an earlier error on the device may be the reason"

struct rt_graph_ref {
  atomic_int refs; /* the communicator's, the graphs' */
  atomic_bool destroyed;
};

void rt_graph_release(struct rt_graph_ref *ref) {
  if (ref && atomic_fetch_sub(&ref->refs, 1) == 1) free(ref);
}

static void graphs_destroyed(void *arg) {
  struct rt_graph_ref *ref = arg;
  atomic_store(&ref->destroyed, true);
  rt_graph_release(ref);
}

rail_result_t rt_graph_retain(void *graph, struct rt_graph_ref **out) {
  const struct rt_cuda *cu = rt_cuda();
  struct rt_graph_ref *ref = calloc(1, sizeof *ref);
  void *object = NULL;
  if (!ref) return RAIL_SYSTEM_ERROR;
  atomic_store(&ref->refs, 2);
  rail_result_t r = rt_cuda_check(cu->user_object_create(&object, ref, graphs_destroyed, 1, RT_CU_OBJECT_NO_SYNC),
                                  "cuUserObjectCreate", ADVICE);
  if (r != RAIL_OK) {
    free(ref);
    return r;
  }
  r = rt_cuda_check(cu->graph_retain_object(graph, object, 1, RT_CU_OBJECT_MOVE), "cuGraphRetainUserObject", ADVICE);
  if (r == RAIL_OK) {
    *out = ref;
    return RAIL_OK;
  }
  cu->user_object_release(object, 1); /* which calls graphs_destroyed */
  rt_graph_release(ref);
  return r;
}

bool rt_graph_destroyed(const struct rt_graph_ref *ref) { return atomic_load(&ref->destroyed); }
