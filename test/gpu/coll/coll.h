/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks on one GPU, a process each, joined by a shared page.
 */
#ifndef RAIL_GPU_COLL_H
#define RAIL_GPU_COLL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data.h"

#define COLL_MAX_RANKS 8
#define COLL_CASES (COLL_KINDS * COLL_TYPES)
#define COLL_NO_DEVICE 77 /* exit status */

struct coll_options {
  const char *library; /* a libnccl.so.2: NCCL's or Railyard's */
  const char *only;    /* the one collective to run; NULL: all */
  bool one_type;       /* floats only */
  bool hosts;          /* each rank on a host of its own, as far as the library can see */
  int nranks, iters;
  int most_ms;         /* fewer iterations of a size where they would take longer in all */
  size_t min_bytes, max_bytes;
  unsigned factor;     /* from size to size */
  int limit_s;         /* without progress; then all are killed */
};

/* What the processes share. Lies in memory mapped before the fork. */
struct coll_shared {
  _Atomic bool failed;           /* a rank gave up, or the parent did */
  _Atomic unsigned beat;         /* grows while there is progress */
  _Atomic unsigned at_barrier;
  char id[128];                  /* ncclUniqueId */
  int iters;                     /* of the size at hand; rank 0 chooses */
  struct {                       /* of the size at hand: one rank's */
    double us;      /* an operation, of several one after the other */
    double call_us; /* of that: until the call returns */
    uint64_t wrong;
  } found[COLL_MAX_RANKS];
  _Atomic bool done[COLL_CASES]; /* written by rank 0 */
  uint64_t wrong[COLL_CASES];    /* written by rank 0, before done */
};

/* Is the case one of those that the options ask for? */
bool coll_wanted(const struct coll_options *o, int index);

/* Waits until all ranks are here. False: another has failed. */
bool coll_barrier(const struct coll_options *o, struct coll_shared *s);

/* One rank's work from CUDA's start to its end (rank.c). Prints the table when rank is 0. Exit status. */
int coll_rank(const struct coll_options *o, struct coll_shared *s, int rank);
/* Whether the driver has a device: 0; COLL_NO_DEVICE where it says that there is none; 1: anything else went wrong,
 * said on stdout. Must run in a process that does not fork later. */
int coll_probe(void);

#endif
