/* SPDX-License-Identifier: Apache-2.0
 * The tuning table as it is with this environment: what rt_tune answers, run by run of sizes. */
#include <stdio.h>
#include <string.h>

#include "common/base/compiler.h"
#include "core/plan/rt_tune.h"
#include "rail/railyard.h"

static bool same(const struct rt_choice *a, const struct rt_choice *b) {
  return a->none == b->none && a->algo == b->algo && a->proto == b->proto && a->nchannels == b->nchannels;
}

static void print_row(enum rt_func f, const char *ranks, bool shm, uint64_t up_to, const struct rt_choice *c) {
  char size[24] = "any";
  if (up_to != UINT64_MAX) snprintf(size, sizeof size, "%llu", (unsigned long long)up_to);
  const char *algo = c->algo_measured, *proto = c->proto_measured;
  bool both = algo && proto && strcmp(algo, proto) != 0;
  const char *algo_name = c->none ? "none" : (f == RT_F_SENDRECV ? "-" : rt_algo_names[c->algo]);
  printf("%-13s  %-5s  %-9s  %12s  %-9s  %-8s  %8d  %s%s%s\n", rt_func_names[f], ranks, shm ? "SHM" : "NET", size,
         algo_name, c->none ? "none" : rt_proto_names[c->proto], c->nchannels,
         algo ? algo : (proto ? proto : "-"), both ? ", " : "", both ? proto : "");
}

/* The next threshold above `bytes`. */
static uint64_t next_threshold(const struct rt_tuning *t, uint64_t bytes) {
  uint64_t next = UINT64_MAX;
  const uint64_t thresholds[] = {t->ll_max, t->exchange_max, t->tree_max, t->tree_max_net};
  for (size_t i = 0; i < RAIL_COUNT_OF(thresholds); i++)
    if (thresholds[i] >= bytes) next = RAIL_MIN(next, thresholds[i]);
  return next;
}

static void print_function(const struct rt_tuning *t, enum rt_func f, int nranks, const char *ranks) {
  static const enum rt_coll colls[RT_NFUNC] = {
      [RT_F_BROADCAST] = RT_BROADCAST,          [RT_F_REDUCE] = RT_REDUCE,       [RT_F_ALLGATHER] = RT_ALLGATHER,
      [RT_F_REDUCESCATTER] = RT_REDUCE_SCATTER, [RT_F_ALLREDUCE] = RT_ALLREDUCE, [RT_F_SENDRECV] = RT_SEND};
  for (uint64_t from = 1;;) {
    struct rt_choice c = rt_tune(t, colls[f], from, nranks), beyond = c;
    uint64_t up_to;
    do {
      up_to = next_threshold(t, from);
      from = up_to + 1;
      if (up_to != UINT64_MAX) beyond = rt_tune(t, colls[f], from, nranks);
    } while (up_to != UINT64_MAX && same(&c, &beyond));
    print_row(f, ranks, t->all_shm, up_to, &c);
    if (up_to == UINT64_MAX) return;
  }
}

RAIL_EXPORT void railTuningPrint(void) {
  const struct rt_params *p = rt_params();
  struct rt_tuning t = rt_tuning_of(p, rt_algo_masks(p->algo), rt_proto_masks(p->proto));
  printf("%-13s  %-5s  %-9s  %12s  %-9s  %-8s  %8s  %s\n", "function", "ranks", "transport", "bytes up to", "algorithm",
         "protocol", "channels", "measured in docs/results");
  for (int shm = 1; shm >= 0; shm--)
    for (int nranks = 2; nranks <= 3; nranks++)
      for (int f = 0; f < RT_NFUNC; f++) {
        t.all_shm = shm != 0;
        print_function(&t, (enum rt_func)f, nranks, nranks == 2 ? "2" : "more");
      }
}
