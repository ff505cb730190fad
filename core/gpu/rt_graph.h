/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a captured plan may still be run: until its graph, and all that was made from that, is destroyed. The driver
 * calls back then, in a thread of its own, perhaps long after the communicator's end; so the reference is counted.
 */
#ifndef RT_GRAPH_H
#define RT_GRAPH_H

#include <stdbool.h>

#include "common/base/result.h"

struct rt_graph_ref;

/* While a stream captures `graph`. */
rail_result_t rt_graph_retain(void *graph, struct rt_graph_ref **out);
/* Are all graphs destroyed, and all of their runs over? */
bool rt_graph_destroyed(const struct rt_graph_ref *ref);
/* The communicator's reference. Accepts NULL. */
void rt_graph_release(struct rt_graph_ref *ref);

#endif
