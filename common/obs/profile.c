/* SPDX-License-Identifier: Apache-2.0
 * Starting and stopping the events of a request. */
#include "common/obs/profile.h"

void rail_profile_start(const struct rail_profile_kind *kind, rail_profiler_fn profiler, void **events, uint32_t n,
                        void *const *phandles, const void *request) {
  for (uint32_t i = 0; i < n; i++) {
    _Alignas(16) char event[RAIL_PROFILE_EVENT_MAX];
    events[i] = NULL;
    if (!phandles || !phandles[i]) continue;
    kind->describe(request, i, event);
    (void)profiler(&events[i], RAIL_PROFILE_START, phandles[i], kind->id, event);
  }
}

void rail_profile_stop(const struct rail_profile_kind *kind, rail_profiler_fn profiler, void **events, uint32_t n) {
  for (uint32_t i = 0; i < n; i++) {
    if (!events[i]) continue;
    (void)profiler(&events[i], RAIL_PROFILE_STOP, NULL, kind->id, NULL);
    events[i] = NULL;
  }
}
