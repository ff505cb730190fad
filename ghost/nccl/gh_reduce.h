/* SPDX-License-Identifier: Apache-2.0
 * What kernels compute, element by element. */
#ifndef GH_REDUCE_H
#define GH_REDUCE_H

#include "ghost/nccl/gh_function.h"

struct gh_reduction {
  enum gh_op op;
  enum gh_type type;
  uint64_t argument; /* of the operation: a mask, a factor, a divisor */
};

size_t gh_type_size(enum gh_type type);
/* out = a op b; out may be either. */
void gh_reduce(const struct gh_reduction *r, void *out, const void *a, const void *b, size_t n);
/* Applied to each rank's own input, and to the result; in and out may be the same. */
void gh_reduce_before(const struct gh_reduction *r, void *out, const void *in, size_t n);
void gh_reduce_after(const struct gh_reduction *r, void *out, size_t n);

#endif
