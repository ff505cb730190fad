/* SPDX-License-Identifier: Apache-2.0
 *
 * Two processes, one NCCL rank each, on one GPU, joined by a shared page.
 */
#ifndef RAIL_GPU_PAIR_H
#define RAIL_GPU_PAIR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data.h"

#define PAIR_CASES (PAIR_KINDS * PAIR_TYPES)

struct pair_options {
  int devices[PAIR_RANKS]; /* CUDA's numbers */
  int iters, warmup;
  size_t min_bytes, max_bytes;
  int limit_s; /* without progress; then all are killed */
};

/* What the processes share. Lies in memory mapped before the fork. */
struct pair_shared {
  _Atomic bool failed;     /* a rank gave up, or the parent did */
  _Atomic unsigned beat;   /* grows while there is progress */
  _Atomic unsigned at_barrier;
  _Atomic bool id_ready;
  char id[128];            /* ncclUniqueId */
  _Atomic bool done[PAIR_CASES]; /* written by rank 0 */
  struct {                 /* of the size at hand: one rank's */
    double us;
    uint64_t wrong;
  } found[PAIR_RANKS];
  uint64_t wrong[PAIR_CASES]; /* written by rank 0, before done */
};

/* Waits until all ranks are here. False: another has failed. */
bool pair_barrier(struct pair_shared *s);

/* One rank's work from CUDA's start to its end (rank.c). Prints the table when rank is 0. Exit status. */
int pair_rank(const struct pair_options *o, struct pair_shared *s, int rank);
#define PAIR_NO_DEVICE 77
/* Whether CUDA can use the devices: 0, or PAIR_NO_DEVICE, having said why on stdout. Must run in a process that
 * does not fork later. */
int pair_probe(const struct pair_options *o);

#endif
