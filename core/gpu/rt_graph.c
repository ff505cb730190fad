/* SPDX-License-Identifier: Apache-2.0 */
#include "core/gpu/rt_graph.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "core/gpu/rt_cuda.h"

#define ADVICE "an earlier error on the device may be the reason"

struct rt_hold {
  atomic_int shares; /* the communicator's, the graphs' */
  atomic_bool gone;
};

void rt_graph_let_go(struct rt_hold *hold) {
  if (hold && atomic_fetch_sub(&hold->shares, 1) == 1) free(hold);
}

static void graphs_gone(void *arg) {
  struct rt_hold *hold = arg;
  atomic_store(&hold->gone, true);
  rt_graph_let_go(hold);
}

rail_result_t rt_graph_hold(void *graph, struct rt_hold **hold) {
  const struct rt_cuda *cu = rt_cuda();
  struct rt_hold *h = calloc(1, sizeof *h);
  void *object = NULL;
  if (!h) return RAIL_SYSTEM_ERROR;
  atomic_store(&h->shares, 2);
  rail_result_t r = rt_cuda_check(cu->user_object_create(&object, h, graphs_gone, 1, RT_CU_OBJECT_NO_SYNC),
                                  "cuUserObjectCreate", ADVICE);
  if (r != RAIL_OK) {
    free(h);
    return r;
  }
  r = rt_cuda_check(cu->graph_retain_object(graph, object, 1, RT_CU_OBJECT_MOVE), "cuGraphRetainUserObject", ADVICE);
  if (r == RAIL_OK) {
    *hold = h;
    return RAIL_OK;
  }
  cu->user_object_release(object, 1); /* which calls back, for the graphs' share */
  rt_graph_let_go(h);
  return r;
}

bool rt_graph_gone(const struct rt_hold *hold) { return atomic_load(&hold->gone); }
