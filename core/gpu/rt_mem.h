/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of a GPU: of cuMemAlloc, or mapped by the driver's virtual memory management. Mapped memory has no context.
 * Each device that is to use it needs to be allowed to, the one where it lies, too; and it lives until the last of
 * those that have mapped it, or hold a handle of it, has released it, whichever process they are in.
 *
 * A refusal's reason is in `why`; nothing is logged.
 */
#ifndef RT_MEM_H
#define RT_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/gpu/rt_cuda.h"

struct rt_mem {
  uint64_t address; /* 0: none */
  size_t size;      /* all of it, not less than was asked for */
  bool mapped;
};

/* May memory of the device be mapped: NCCL_CUMEM_ENABLE, and what the driver says? */
bool rt_mem_may_map(int device);
/* What it can be exported as then: bits, RT_CU_…_HANDLE. */
int rt_mem_handles(int device);

/* Does a fabric work? More devices can export to one than have one, and not every process may use it: a small piece is
 * exported and imported to find out. */
bool rt_mem_has_fabric(int device, char why[RT_WHY]);

/* cuMemAlloc; the device's context is current. */
bool rt_mem_alloc(struct rt_mem *m, size_t size, char why[RT_WHY]);
/* Mapped, for its own device. If `handle` is not NULL, the memory can be exported by it, and it must be released. */
bool rt_mem_map(struct rt_mem *m, int device, size_t size, int handles, uint64_t *handle, char why[RT_WHY]);
/* Mapped for `device`: what another rank exported. The driver neither keeps nor closes a file descriptor. */
bool rt_mem_import(struct rt_mem *m, int device, size_t size, int type, void *shared, char why[RT_WHY]);
/* Another device may use it, too. */
bool rt_mem_allow(const struct rt_mem *m, int device, char why[RT_WHY]);
void rt_mem_release(uint64_t handle);
/* Accepts a zeroed struct. Of cuMemAlloc's the context must be current. */
void rt_mem_free(struct rt_mem *m);

#endif
