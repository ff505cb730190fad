/* SPDX-License-Identifier: Apache-2.0
 *
 * Events for NCCL's profiler: a Start when a request begins, a Stop when test
 * reports that it is done or has failed. One event per send and per buffer of a
 * receive. The callback comes only from the caller's own progress thread.
 *
 * - A buffer whose phandle is NULL has no event: NCCL's bootstrap passes NULL,
 *   and its callback would follow it.
 * - Where the callback leaves *e_handle NULL, nothing was begun, and nothing is
 *   stopped.
 * - A request that the caller gives up without a test that ends it keeps its
 *   event open: close and dereg_mr run on another thread, when what the phandles
 *   belong to may be gone.
 *
 * Without a callback (v6 to v9, or none given) what is left is one branch in
 * isend, irecv and test.
 */
#ifndef RAIL_PROFILE_H
#define RAIL_PROFILE_H

#include "rail/net.h"

enum rail_profile_call { RAIL_PROFILE_START = 0, RAIL_PROFILE_STOP = 1 };

#define RAIL_PROFILE_EVENT_MAX 64 /* bytes of a description */

/* How a plugin describes its requests. */
struct rail_profile_kind {
  int64_t id; /* network type << 16 | version of the description */
  void (*describe)(const void *request, uint32_t buffer, void *event);
};

/* `events`: places of the request's `n` buffers, the profiler's; NULL: none is open. `phandles`: as many, or NULL. */
void rail_profile_start(const struct rail_profile_kind *kind, rail_profiler_fn profiler, void **events, uint32_t n,
                        void *const *phandles, const void *request);
/* Once, however often it is called. */
void rail_profile_stop(const struct rail_profile_kind *kind, rail_profiler_fn profiler, void **events, uint32_t n);

#endif
