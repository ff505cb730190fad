/* SPDX-License-Identifier: Apache-2.0
 *
 * Which kernels the emulated driver can run is decided by what is linked with it: libcuda.so.1 has NCCL's (gh_nccl.c),
 * test/libfakegpu.so has the runtime's own (test/device/gpu/kernel.c).
 */
#ifndef GH_KERNEL_H
#define GH_KERNEL_H

#include <stddef.h>

struct gh_context;

/* One launch. It is the callee's until the kernel has ended. */
struct gh_launch {
  const char *name;
  void *arguments; /* as they lie in the kernel's parameter space; a copy */
  size_t size;     /* of them */
  unsigned blocks, threads, shared;
  const struct gh_context *context;
};

/* The number of the kernel's parameters, their sizes at *sizes; -1: there is no such kernel. */
int gh_kernel_parameters(const char *name, const size_t **sizes);
/* At the launch, before it runs: 0 or one of cuda.h's errors. */
int gh_kernel_check(const struct gh_launch *l);
/* Returns when the kernel has ended: 0 or an error, which all later calls return. */
int gh_kernel_run(const struct gh_launch *l);

#endif
