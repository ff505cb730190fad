/* SPDX-License-Identifier: Apache-2.0
 * What the ib plugin's sender in this process counts of each rail. */
#ifndef RAIL_TEST_IB_COUNTERS_H
#define RAIL_TEST_IB_COUNTERS_H

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kit/kit_ensure.h"
#include "kit/kit_stats.h"

/* The values of a counter, of `most` rails at most. Returns how many. */
static int rails_look(const char *counter, uint64_t *values, int most) {
  char file[64], why[256];
  int n = 0;
  snprintf(file, sizeof file, RAIL_STATS_PREFIX "%d.RailIB", (int)getpid());
  struct kit_stats_view *v = kit_stats_read(RAIL_STATS_DIR, file, why, sizeof why);
  ENSURE(v, "%s", why);
  for (uint32_t g = 0; g < v->ngroups; g++)
    for (uint32_t r = 0; strcmp(v->groups[g].name, "rail") == 0 && r < v->groups[g].nrecords; r++, n++) {
      ENSURE(n < most, "%u records of rails", v->groups[g].nrecords);
      for (uint32_t c = 0; c < v->groups[g].ncounters; c++)
        if (strcmp(v->groups[g].counters[c].name, counter) == 0) values[n] = v->groups[g].records[r].values[c];
    }
  kit_stats_view_free(v);
  return n;
}

#endif
