/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin's own slots in the shape of a v12 vtable, with nothing left out
 * and nothing put right: profiler handles, device handles and traffic classes
 * arrive in whichever slot that version has for them. For checks of just
 * these; everything else goes through kit_net_open.
 */
#ifndef RAIL_KIT_PLAIN_H
#define RAIL_KIT_PLAIN_H

#include "kit/kit_net.h"
#include "kit/kit_side.h"

/* The job's plugin in its version, with such a vtable: loaded, no init yet. One at a time. */
void kit_plain_load(struct kit_side *side, struct kit_net *n);
/* Then init, with a profiler (NULL: none) and a traffic class (v10 hears of it at connect), and devices.
 * Returns what init did; only after 0 there are a context and devices. */
int kit_plain_init(struct kit_net *n, rail_profiler_fn profiler, int traffic_class);
/* Instead of kit_net_close, where there was no init. */
void kit_plain_unload(struct kit_net *n);

#endif
