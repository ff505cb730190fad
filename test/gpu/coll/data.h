/* SPDX-License-Identifier: Apache-2.0
 *
 * Inputs, and the results they must give. Both are pure functions of seed, rank and
 * index, computed on the host: nothing that a library or a plugin moved is needed to
 * know what should have arrived. Knows neither CUDA nor NCCL.
 */
#ifndef RAIL_GPU_DATA_H
#define RAIL_GPU_DATA_H

#include <stddef.h>
#include <stdint.h>

#define COLL_POISON 0xa5

enum coll_kind { COLL_ALL_REDUCE, COLL_ALL_GATHER, COLL_REDUCE_SCATTER, COLL_ALLTOALL, COLL_KINDS };
enum coll_type { COLL_FLOAT, COLL_INT32, COLL_UINT8, COLL_TYPES };

/* How many elements a rank gives and gets in all, for a size of `bytes`. `count` is the call's argument. */
struct coll_shape {
  size_t count, send, recv;
  size_t bytes; /* the size that is really moved, as nccl-tests counts it */
};

struct coll_case {
  enum coll_kind kind;
  enum coll_type type;
  int nranks;
  uint64_t seed;
  struct coll_shape shape;
};

const char *coll_kind_name(enum coll_kind kind);
const char *coll_type_name(enum coll_type type);
size_t coll_type_size(enum coll_type type);
/* busbw = algbw times this */
double coll_bus_factor(const struct coll_case *c);

struct coll_shape coll_shape_of(const struct coll_case *c, size_t bytes);
void coll_fill(const struct coll_case *c, int rank, void *to);
/* How many elements of what `rank` received are not as they must be. */
size_t coll_wrong(const struct coll_case *c, int rank, const void *got);
/* How many bytes no longer hold the poison. */
size_t coll_disturbed(const void *at, size_t bytes);

#endif
