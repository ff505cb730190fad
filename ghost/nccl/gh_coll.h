/* SPDX-License-Identifier: Apache-2.0
 * The kernels' work: what one block does for one struct of it. */
#ifndef GH_COLL_H
#define GH_COLL_H

#include "ghost/nccl/gh_prims.h"

/* A block's part of a collective's elements. */
struct gh_part {
  const struct gh_function *f;
  struct gh_reduction reduction;
  const char *in;
  char *out;
  int root;
  size_t esize;
  int64_t count; /* of all blocks */
  int64_t at, n; /* this one's */
  int64_t chunk; /* elements */
};

/* work: a struct ncclDevWorkColl. False: the kernel shall end. */
bool gh_coll_run(struct gh_block *b, const struct gh_function *f, const char *work);
/* gh_pat.c: all-gather and reduce-scatter by PAT; of a reduction only what NCCL uses it for. */
bool gh_pat_can(const struct gh_function *f);
bool gh_pat_run(struct gh_block *b, const struct gh_part *part);
/* works: of struct ncclDevWorkP2p, which run at the same time. */
bool gh_p2p_run(struct gh_block *b, char *const *works, int n);

/* Runs `call` for each argument in a thread of its own, the last in this one. False: one of them did, or no thread. */
bool gh_threads_run(struct gh_block *b, bool (*call)(void *arg), void *const *args, int n);

#endif
