/* SPDX-License-Identifier: Apache-2.0
 *
 * What NCCL's kernels are made of: receive from some peers, combine with a buffer, store and send on, chunk by chunk.
 * The other end of a connection is a kernel or a proxy of NCCL's, so all that they see is NCCL's: steps, credits,
 * sizes, flags of lines. Where an element lies within a slot of LL128 is the kernels' own business.
 */
#ifndef GH_PRIMS_H
#define GH_PRIMS_H

#include "ghost/nccl/gh_layout.h"
#include "ghost/nccl/gh_reduce.h"

struct gh_context;

/* For programs, after a call has failed: why the first kernel of the process did; "" if none has. */
__attribute__((visibility("default"))) const char *ghost_nccl_failure(void);

/* One block of a kernel, which is one channel. */
struct gh_block {
  const struct gh_layout *layout;
  char *args, *comm, *channel; /* NCCL's structs */
  int id, rank, nranks;
  const struct gh_context *context;
  int *error; /* atomic: what the kernel ends with, of all blocks */
};

/* Says why, once a kernel, which ends with that: all blocks do. Returns false. */
__attribute__((format(printf, 2, 3))) bool gh_block_fail(struct gh_block *b, const char *format, ...);

/* One end of a connection. */
struct gh_end {
  char *conn;            /* struct ncclConnInfo */
  char *slots, *fifo;
  uint64_t *wait, *post; /* where the other end counts, where this one does; post of a sender may be NULL */
  uint64_t step, seen;
  size_t slot_size;
  int peer;
};

struct gh_prims {
  struct gh_block *block;
  struct gh_reduction reduction;
  int proto, slices, steps; /* of a chunk, of a slice */
  size_t step_size;         /* of all ends: bytes */
  int nrecv, nsend;
  struct gh_end recv[GH_TREE_ARITY], send[GH_TREE_ARITY];
  char *chunk;              /* LL, LL128: what comes out of lines, what goes into them */
};

/* Peers are ranks; -1 ends a list. conn: 0 for collectives, 1 for send and receive. step_size 0: the protocol's. */
struct gh_prims_setup {
  struct gh_reduction reduction;
  int proto, slices, steps, conn;
  size_t step_size;
  int recv[GH_TREE_ARITY + 1], send[GH_TREE_ARITY + 1];
};
/* False: it has failed; close all the same. */
bool gh_prims_open(struct gh_prims *p, struct gh_block *block, const struct gh_prims_setup *setup);
/* Connections keep the steps they are at. */
void gh_prims_close(struct gh_prims *p);

/* One chunk: of n elements, which may be none. */
struct gh_move {
  const char *from; /* NULL: nothing is added to what comes */
  bool own;         /* from is the rank's input, to which the operation may do something first */
  char *to;         /* NULL: it is not stored */
  bool recv, send;
  bool last;        /* the result is complete */
  int64_t n;
};
/* False: the kernel shall end, since NCCL has set the abort flag or something failed. */
bool gh_prims_move(struct gh_prims *p, const struct gh_move *m);

#endif
