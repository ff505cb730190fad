/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "kit/bench/bench_side.h"

#define ROOM (1u << 20) /* later ones of a phase are not recorded */

bool kit_bench_samples_make(struct kit_bench_samples *samples) {
  *samples = (struct kit_bench_samples){.ns = malloc(ROOM * sizeof *samples->ns), .room = ROOM};
  if (!samples->ns) return false;
  memset(samples->ns, 0xa5, ROOM * sizeof *samples->ns);
  return true;
}

void kit_bench_samples_free(struct kit_bench_samples *samples) {
  free(samples->ns);
  *samples = (struct kit_bench_samples){.ns = NULL};
}

static int compare(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

void kit_bench_samples_sum_up(struct kit_bench_samples *samples, double share, struct kit_bench_record *out) {
  static const size_t rank[] = {0, 500, 900, 990, 999, 1000}; /* of a thousand */
  _Static_assert(RAIL_COUNT_OF(rank) == RAIL_COUNT_OF(out->us), "one place each");
  out->nsamples = samples->n;
  if (samples->n == 0) return;
  qsort(samples->ns, samples->n, sizeof *samples->ns, compare);
  for (size_t i = 0; i < RAIL_COUNT_OF(rank); i++) {
    size_t at = (samples->n - 1) * rank[i] / 1000;
    out->us[i] = (double)samples->ns[at] / 1e3 / share;
  }
}
