/* SPDX-License-Identifier: Apache-2.0
 *
 * What a NIC writes into a device's memory is hidden from kernels until that NIC has read from there: the read pushes
 * the writes before it through all bridges, and so a plugin's flush is a read (docs/design/kit.md). Emulated NICs
 * report what they write and read; they find the calls with dlsym, and name memory by the program's addresses. A NIC is
 * identified by any pointer of its own. All calls may be made by any thread.
 */
#ifndef GH_NIC_H
#define GH_NIC_H

#include "ghost/driver/gh_cuda.h"

/* Is all of [p, p+size) in one device's memory? */
GH_API bool ghost_nic_is_device(const void *p, size_t size);
/* The memory behind [offset, offset+size) of a dma-buf of this process' driver. NULL: not a dma-buf of it, or the
 * memory was freed. */
GH_API void *ghost_nic_dma_buf(int fd, uint64_t offset, size_t size);
/* Call it before the bytes are there. */
GH_API void ghost_nic_wrote(const void *nic, const void *p, size_t size);
/* The NIC has answered a read of a device's memory: all that it wrote before can be seen. */
GH_API void ghost_nic_read(const void *nic);
/* How many bytes of [p, p+size) are hidden, for kernels and for tests. */
GH_API size_t ghost_nic_hidden(const void *p, size_t size);

/* ---- inside the driver ---- */

/* A descriptor for the range; -1: there is none. */
int gh_dma_buf(uint64_t address, size_t size);
/* The memory is being freed. */
void gh_nic_forget(const void *p, size_t size);

#endif
