/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks of one process whose kernels wait for each other. Some calls of the driver may wait until nothing runs in a
 * context: those that load code, map memory or give it back. If one rank needs such a call before it launches the
 * kernel that another's is waiting for, both wait for ever. So, among ranks that share a process,
 *   - a kernel for which something had to be made is not launched while another rank still makes its part,
 *   - a communicator's memory is not given back while kernels run, and none is launched meanwhile.
 * These waits are bounded: the other rank may itself wait for what comes after this launch.
 */
#ifndef RT_LAUNCH_LOCK_H
#define RT_LAUNCH_LOCK_H

#include <stdbool.h>
#include <stdint.h>

/* A rank that makes what the kernel of a call needs: it loads code, connects, maps memory. Ranks of one communicator
 * know each other's calls by a number. */
struct rt_launch_lock_setup {
  struct rt_launch_lock_setup *next;
  uint64_t comm, call;
};
void rt_launch_lock_setup_begin(struct rt_launch_lock_setup *s, uint64_t comm, uint64_t call);
void rt_launch_lock_setup_end(struct rt_launch_lock_setup *s);
/* Waits, within the bound, while a rank of the communicator makes something for this call, or for one before it. */
void rt_launch_lock_wait_for_setups(uint64_t comm, uint64_t call);

/* Around a launch: waits, within the bound, while a communicator frees memory; then none does until launch_end. */
void rt_launch_lock_launch_begin(void);
void rt_launch_lock_launch_end(void);
/* A kernel is being launched; it has ended. Neither call waits. */
void rt_launch_lock_kernel_begin(void);
void rt_launch_lock_kernel_end(void);

/* Never waits. False: kernels run or are being launched, so memory must not be freed now. True: none is launched until
 * free_end. */
bool rt_launch_lock_free_try_begin(void);
/* The same, but waits, within the bound, while kernels run: one may be over, and its executor not have seen it yet. */
bool rt_launch_lock_free_begin(void);
void rt_launch_lock_free_end(void);

#endif
