/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a captured plan may still be run: as long as there is a graph that
 * has it, or something made from that graph. The driver tells by calling back, in a thread of its own, perhaps when
 * the communicator has long ended; so what it calls back with belongs to both.
 */
#ifndef RT_GRAPH_H
#define RT_GRAPH_H

#include <stdbool.h>

#include "common/base/result.h"

struct rt_hold;

/* While a stream captures `graph`. */
rail_result_t rt_graph_hold(void *graph, struct rt_hold **hold);
/* Are all graphs gone, and all of their runs over? */
bool rt_graph_gone(const struct rt_hold *hold);
/* The communicator's share. Accepts NULL. */
void rt_graph_let_go(struct rt_hold *hold);

#endif
