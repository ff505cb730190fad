/* SPDX-License-Identifier: Apache-2.0
 *
 * The NCCL library in this process: its release, and what the numbers mean by which its work names functions. They
 * depend on what was left out when it was built, so they are read from the library's own table.
 */
#ifndef GH_FUNCTION_H
#define GH_FUNCTION_H

#include "ghost/nccl/gh_layout.h"

enum gh_coll { GH_SENDRECV, GH_ALLGATHER, GH_BROADCAST, GH_ALLGATHERV, GH_ALLREDUCE, GH_REDUCE, GH_REDUCESCATTER };
enum gh_op { GH_SUM, GH_PROD, GH_MINMAX, GH_PREMULSUM, GH_SUMPOSTDIV, GH_OPS, GH_COPY };
enum gh_type {
  GH_INT8, GH_UINT8, GH_INT32, GH_UINT32, GH_INT64, GH_UINT64, GH_FLOAT16, GH_FLOAT32, GH_FLOAT64, GH_BFLOAT16,
  GH_FLOAT8E4M3, GH_FLOAT8E5M2, GH_TYPES
};
enum gh_algo { GH_TREE, GH_RING, GH_COLLNET_DIRECT, GH_COLLNET_CHAIN, GH_NVLS, GH_NVLS_TREE, GH_PAT };

struct gh_function {
  enum gh_coll coll;
  enum gh_op op;
  enum gh_type type;
  enum gh_algo algo;
  int proto;
};

/* The release's structs. NULL: this process has no NCCL that ghost knows, and one line has said so. */
const struct gh_layout *gh_nccl(void);
/* After that, as ncclGetVersion says it. */
int gh_nccl_version(void);
/* After that. False: the library was built without what the number stands for, or there is no such number. */
bool gh_function_find(unsigned id, struct gh_function *f);
/* "AllReduce Sum f32 RING SIMPLE" */
void gh_function_text(const struct gh_function *f, char *text, size_t size);

/* For programs: has the process's NCCL the function of that text? */
__attribute__((visibility("default"))) bool ghost_nccl_has(const char *function);

#endif
