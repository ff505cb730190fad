/* SPDX-License-Identifier: Apache-2.0 */
#include "core/plan/rt_estimate.h"

#include "core/plan/rt_tree.h"

/* A step costs a latency, and its bytes the time that a link takes for them. The figures are of two ranks on the
 * machine of docs/results/2026-11-21-allreduce-2-ranks.md: latency from 8 bytes (one step), bandwidth from 1 MiB. */
struct link {
  double step_us, bytes_per_us;
};
static const struct link shm = {0.79, 6460}, net = {7.6, 3410};

double rt_estimate_us(enum rt_coll coll, uint64_t bytes, int nranks, bool all_shm) {
  const struct link *l = all_shm ? &shm : &net;
  double n = nranks, steps = n - 1, sent = (double)bytes;
  switch (coll) {
    case RT_ALLREDUCE:
      steps = 2 * (n - 1);
      sent *= steps / n;
      break;
    case RT_TREE: /* half of the data once, where the rank is a leaf, and half three times in the other tree */
      steps = 2 * rt_tree_depth(nranks);
      sent *= 2;
      break;
    case RT_REDUCE_SCATTER:
    case RT_ALLGATHER: sent *= steps; break;
    case RT_BROADCAST:
    case RT_REDUCE: break;
    default: steps = 1; break;
  }
  return nranks == 1 ? 0 : steps * l->step_us + sent / l->bytes_per_us;
}
