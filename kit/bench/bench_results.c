/* SPDX-License-Identifier: Apache-2.0
 * What several rounds of a cell amount to. */
#include <math.h>
#include <stdlib.h>

#include "common/base/compiler.h"
#include "kit/bench/kit_bench.h"

#define MOST_ROUNDS 1000

struct kit_bench_result *kit_bench_at(const struct kit_bench_results *r, unsigned int round, size_t cell,
                                      unsigned int column) {
  return &r->all[((size_t)round * r->plan->ncells + cell) * r->plan->ncolumns + column];
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static struct kit_bench_spread spread_of(double *values, unsigned int n) {
  struct kit_bench_spread s = {NAN, NAN, NAN, n};
  if (n == 0) return s;
  qsort(values, n, sizeof *values, compare);
  s.least = values[0];
  s.greatest = values[n - 1];
  s.median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  return s;
}

static double value(const struct kit_bench_results *r, unsigned int round, size_t cell, unsigned int column,
                    enum kit_bench_metric metric) {
  const struct kit_bench_result *result = kit_bench_at(r, round, cell, column);
  return result->verdict == KIT_BENCH_OK ? result->figures[metric] : NAN;
}

struct kit_bench_spread kit_bench_spread(const struct kit_bench_results *r, size_t cell, unsigned int column,
                                         enum kit_bench_metric metric) {
  double values[MOST_ROUNDS];
  unsigned int n = 0;
  for (unsigned int i = 0; i < r->plan->rounds && n < MOST_ROUNDS; i++) {
    double v = value(r, i, cell, column, metric);
    if (!isnan(v)) values[n++] = v;
  }
  return spread_of(values, n);
}

double kit_bench_ratio(const struct kit_bench_results *r, size_t cell, unsigned int column,
                       enum kit_bench_metric metric) {
  double values[MOST_ROUNDS];
  unsigned int n = 0;
  for (unsigned int i = 0; i < r->plan->rounds && n < MOST_ROUNDS; i++) {
    double mine = value(r, i, cell, column, metric), first = value(r, i, cell, 0, metric);
    if (!isnan(mine) && !isnan(first) && first != 0) values[n++] = mine / first;
  }
  return spread_of(values, n).median;
}

enum kit_bench_verdict kit_bench_worst(const struct kit_bench_results *r, size_t cell, unsigned int column,
                                       unsigned int *bad) {
  static const enum kit_bench_verdict gravest[] = {KIT_BENCH_WRONG, KIT_BENCH_CRASHED, KIT_BENCH_STUCK,
                                                   KIT_BENCH_FAILED, KIT_BENCH_ERROR, KIT_BENCH_SKIPPED};
  unsigned int count[KIT_BENCH_ERROR + 1] = {0};
  *bad = 0;
  for (unsigned int i = 0; i < r->plan->rounds; i++) {
    enum kit_bench_verdict v = kit_bench_at(r, i, cell, column)->verdict;
    count[v]++;
    *bad += v != KIT_BENCH_OK;
  }
  for (size_t i = 0; i < RAIL_COUNT_OF(gravest); i++)
    if (count[gravest[i]] > 0) return gravest[i];
  return KIT_BENCH_OK;
}
