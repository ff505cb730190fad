/* SPDX-License-Identifier: Apache-2.0
 *
 * What rail-kit's own process keeps while it runs the cases, and the environment that it gives to their processes.
 */
#ifndef RAIL_KIT_NCCL_CASE_H
#define RAIL_KIT_NCCL_CASE_H

#include <limits.h>

#include "kit/fault/fault_net.h"
#include "kit/kit_report.h"
#include "kit/nccl/kit_nccl.h"

/* A line of the report. */
struct kit_nccl_case {
  char id[24];
  char name[48];
  const char *what;
  const struct kit_nccl_scenario *scenario; /* NULL: a collective */
  enum kit_nccl_coll coll;
  const char *algo, *proto; /* as NCCL_ALGO and NCCL_PROTO have them; NULL: NCCL's choice */
};

struct kit_nccl_run {
  const struct kit_nccl *how;
  struct kit_report report;
  struct kit_probe probe;
  char ghost[PATH_MAX], version[32];
  int counters[2]; /* collectives for which the plugin had none, and some */
  int topology; /* a file, where several ranks are a host */
  struct kit_fault_net net; /* for faults of the link between two hosts */
};

#define KIT_NCCL_ENV 40

struct kit_nccl_env {
  char *entries[KIT_NCCL_ENV + 1]; /* NAME=value; NULL at the end */
  int n;
};

/* Milliseconds for the case's processes. */
uint64_t kit_nccl_limit(const struct kit_nccl *how, const struct kit_nccl_case *t);
int kit_nccl_processes(const struct kit_nccl *how);
int kit_nccl_processes_per_host(const struct kit_nccl *how);
/* GPUs of a host. Each rank has one of its own, also where all are told to be one host. */
int kit_nccl_gpus(const struct kit_nccl *how);
/* The network namespace of a process, where the case has a link of its own: hosts by turns. NULL: this one. */
const char *kit_nccl_namespace(const struct kit_nccl_run *run, const struct kit_nccl_case *t, int process);

/* A file without a name that ranks inherit, beyond the descriptors that the kit gives its processes. Without it nothing
 * could be shown, so the program ends. */
int kit_nccl_make_file(const char *what);
/* That of NCCL_TOPO_FILE. */
int kit_nccl_make_topology(const struct kit_nccl *how, const struct kit_probe *probe);
/* NAME=value: where a process finds CUDA's libraries, in ghost's folder first. */
void kit_nccl_library_path(char *text, size_t size, const char *ghost);
/* What needs kernels that ghost has not, or a GPU's features, is off. `log` is a file for NCCL's log. */
void kit_nccl_make_env(struct kit_nccl_env *e, const struct kit_nccl_run *run, const struct kit_nccl_case *t,
                       int process, int log);
void kit_nccl_free_env(struct kit_nccl_env *e);

#endif
