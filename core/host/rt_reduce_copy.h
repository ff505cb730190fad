/* SPDX-License-Identifier: Apache-2.0
 *
 * The arguments of a reduceCopy: combine up to 8 sources and store the result to up
 * to 8 destinations. Written by host code in C, read by kernels on a GPU. The
 * result is that of the functions of rt_reduce.h, applied in this order:
 *   1. pre, where the operation has one, to each of the first `npre` sources:
 *      those that are a rank's own input and not yet a sum;
 *   2. reduce, from the first source to the last;
 *   3. post, where the operation has one and `last` says that the result is final.
 * One source alone is copied as it is. Any address, any count; a destination may
 * be exactly equal to a source, any other overlap is not allowed.
 */
#ifndef RT_REDUCE_COPY_H
#define RT_REDUCE_COPY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/host/rt_element.h"
#include "core/host/rt_reduce.h"
#include "core/host/rt_types.h"

#define RT_REDUCE_COPY_MAX 8

struct rt_reduce_copy {
  const char *src[RT_REDUCE_COPY_MAX];
  char *dst[RT_REDUCE_COPY_MAX];
  uint64_t count; /* elements */
  union rt_scalar scalar;
  int type, op; /* enum rt_type, enum rt_redop */
  int nsrc, ndst;
  int npre;
  bool last;
};

RT_HD bool rt_type_is_integer(int type) {
  switch (type) {
#define RT_TYPE_KIND_(name, value, size, text) \
  case RT_##name: return RT_BY_KIND_##name(true, false);
    RT_TYPE_LIST(RT_TYPE_KIND_)
#undef RT_TYPE_KIND_
    default: return false;
  }
}

/* How many sources need the pre-operation; does the result need the post-operation? */
RT_HD int rt_reduce_copy_npre(const struct rt_reduce_copy *w) {
  bool scaled = w->op == RT_PREMULSUM || (w->op == RT_AVG && !rt_type_is_integer(w->type));
  return scaled ? w->npre : 0;
}

RT_HD bool rt_reduce_copy_post(const struct rt_reduce_copy *w) {
  return w->last && w->op == RT_AVG && rt_type_is_integer(w->type);
}

/* Does it only copy? Then it may be done in bytes. */
RT_HD bool rt_reduce_copy_is_copy(const struct rt_reduce_copy *w) {
  return w->nsrc == 1 && rt_reduce_copy_npre(w) == 0 && !rt_reduce_copy_post(w);
}

#endif
