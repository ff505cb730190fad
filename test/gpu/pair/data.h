/* SPDX-License-Identifier: Apache-2.0
 *
 * Inputs, and the results they must give. Both are pure functions of seed, rank and
 * index, computed on the host: nothing that NCCL or the plugin moved is needed to
 * know what should have arrived. Knows neither CUDA nor NCCL.
 */
#ifndef RAIL_GPU_DATA_H
#define RAIL_GPU_DATA_H

#include <stddef.h>
#include <stdint.h>

#define PAIR_RANKS 2
#define KIT_POISON 0xa5

enum pair_kind { PAIR_ALL_REDUCE, PAIR_ALL_GATHER, PAIR_ALLTOALL, PAIR_KINDS };
enum pair_type { PAIR_FLOAT, PAIR_INT32, PAIR_UINT8, PAIR_TYPES };

/* How many elements a rank gives and gets in all, for a size of `bytes`. `count` is the call's argument. */
struct pair_shape {
  size_t count, send, recv;
  size_t bytes; /* the size that is really moved, as nccl-tests counts it */
};

struct pair_case {
  enum pair_kind kind;
  enum pair_type type;
  uint64_t seed;
  struct pair_shape shape;
};

const char *pair_kind_name(enum pair_kind kind);
const char *pair_type_name(enum pair_type type);
size_t pair_type_size(enum pair_type type);
/* busbw = algbw times this */
double pair_bus_factor(enum pair_kind kind);

struct pair_shape pair_shape_of(enum pair_kind kind, enum pair_type type, size_t bytes);
void pair_fill(const struct pair_case *c, int rank, void *to);
/* How many elements of what `rank` received are not as they must be. */
size_t pair_wrong(const struct pair_case *c, int rank, const void *got);
/* How many bytes no longer hold the poison. */
size_t pair_disturbed(const void *at, size_t bytes);

#endif
