/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin under NCCL's own host code, on GPUs that ghost emulates: one process a rank, or gpus_per_process ranks. NCCL
 * takes each process for a host of its own, so that all data between processes goes through the plugin, or so many
 * ranks for one host as ranks_per_host says.
 */
#ifndef RAIL_KIT_NCCL_H
#define RAIL_KIT_NCCL_H

#include <stdio.h>

#include "kit/kit_probe.h"
#include "kit/kit_process.h"

#define KIT_NCCL_SIZES 16
#define KIT_NCCL_MAX_RANKS 8
#define KIT_NCCL_MAX_GPUS (KIT_NCCL_MAX_RANKS / 2) /* of a process, or of a host */
#define KIT_NCCL_WARM 3 /* communicators of comm.repeated after which nothing may grow any more */
#define KIT_NCCL_SCENARIOS 9
#define KIT_NCCL_UNTOUCHED 0x5a /* each byte of a receive buffer before a call */

struct kit_nccl_rank;

struct kit_nccl {
  const char *plugin, *library; /* files; of NCCL: libnccl.so.2 */
  const char *network;          /* NCCL's own one that `plugin` names, as NCCL_NET and NCCL's log have it; NULL: none */
  int ranks, channels;
  int gpus_per_process;           /* ranks of a process, a divisor of ranks_per_host */
  int ranks_per_host;             /* a divisor of ranks, and less: there are several hosts */
  uint64_t sizes[KIT_NCCL_SIZES]; /* bytes that a rank sends */
  unsigned nsizes;
  const char *types, *redops;     /* words with commas; NULL: all */
  const char *only, *skip;
  uint64_t limit_ms;              /* of each case's processes; kit_nccl_limit has exceptions */
  int repeat;                     /* communicators that comm.repeated makes, more than KIT_NCCL_WARM */
  bool oob;                       /* NCCL's own bootstrap through the plugin, too */
  uint64_t seed;                  /* of the moments of faults; 0: from the clock */
  int gdr;                        /* 0 or 1: GPUDirect, from and into the memory of the GPU */
  bool quiet;                     /* no rows of what went well */
  const char *json, *junit;
};

/* What stands before the name of one of NCCL's own networks in the place of a plugin. */
#define KIT_NCCL_BUILTIN "builtin:"
extern const char *const kit_nccl_networks[]; /* "Socket" … NULL */

/* Exit status. */
int kit_nccl_run(const struct kit_nccl *how);
/* Prints what there is to run. */
int kit_nccl_list(const struct kit_nccl *how);
void kit_nccl_process(struct kit_process *self);

/* nccl_scenario.c: communicators made, split and lost. The job's argument `scenario` is the name of one. */
extern const struct kit_nccl_scenario {
  const char *name, *what;
  bool repeats; /* makes `repeat` communicators, and its limit grows with them */
  bool link;    /* hosts are in two network namespaces by turns, and a rank's record (kit_send_record) ends the link */
  void (*run)(struct kit_nccl_rank *r);
} kit_nccl_scenarios[KIT_NCCL_SCENARIOS];
void kit_nccl_scenario(struct kit_process *self);

/* nccl_file.c: can this file be NCCL on the emulated GPU? False: `why` has what is wrong with it and what to do. */
bool kit_nccl_file(const char *path, char *why, size_t size);

/* nccl_topology.c: writes the host of so many GPUs and of the plugin's devices, as NCCL_TOPO_FILE has it. */
void kit_nccl_write_topology(FILE *f, int gpus, const struct kit_probe *probe);

/* ---- nccl_data.c: what ranks send and must receive, by scalar code of its own ---- */

enum kit_nccl_coll {
  KIT_NCCL_ALL_REDUCE, KIT_NCCL_ALL_GATHER, KIT_NCCL_REDUCE_SCATTER, KIT_NCCL_BROADCAST, KIT_NCCL_REDUCE,
  KIT_NCCL_SENDRECV, KIT_NCCL_ALLTOALL, KIT_NCCL_ALLTOALLV, KIT_NCCL_COLLS
};
extern const char *const kit_nccl_colls[];  /* "all_reduce" … NULL */
extern const char *const kit_nccl_types[];  /* by NCCL's numbers; NULL at the end */
extern const char *const kit_nccl_redops[]; /* by NCCL's numbers: sum prod max min avg */

struct kit_nccl_call {
  enum kit_nccl_coll coll;
  int type, redop, root;
  size_t count; /* elements that a rank sends to one peer (alltoallv: at most), or has for all */
  int rank, ranks;
  unsigned round; /* contents differ */
};

size_t kit_nccl_type_size(int type);
bool kit_nccl_reduces(enum kit_nccl_coll coll);
/* A float of 8 bits? */
bool kit_nccl_is_fp8(int type);
/* Elements of the call's two buffers. */
size_t kit_nccl_send_count(const struct kit_nccl_call *c);
size_t kit_nccl_recv_count(const struct kit_nccl_call *c);
/* Elements that `from` sends to `to` in an all-to-all; they lie at to * count of the one's buffer and at from * count
 * of the other's. -1: neither calls ncclSend or ncclRecv. */
long long kit_nccl_part(const struct kit_nccl_call *c, int from, int to);
/* Bytes that hosts must send each other for it, whatever the algorithm. */
uint64_t kit_nccl_between_hosts(const struct kit_nccl_call *c, int ranks_per_host);
/* Elements at which the smaller buffer lies in the larger one of a call in place; -1: there is none. */
long long kit_nccl_in_place(const struct kit_nccl_call *c);
void kit_nccl_fill(const struct kit_nccl_call *c, void *send);
/* The number of wrong elements; `first` has the first one in words. */
size_t kit_nccl_verify(const struct kit_nccl_call *c, const void *recv, char *first, size_t size);
/* Is every result a number of the type? Else there is nothing to compare. */
bool kit_nccl_exact(const struct kit_nccl_call *c);

#endif
