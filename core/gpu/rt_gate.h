/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks of one process whose kernels wait for each other. Some calls of the driver may wait until nothing runs in a
 * context: those that load code, map memory or give it back. If one rank needs such a call before it launches the
 * kernel that another's is waiting for, both wait for ever. So, among ranks that share a process,
 *   - a kernel for which something had to be made is not launched while another rank still makes its part,
 *   - a communicator's memory is not given back while kernels run, and none is launched meanwhile.
 * These waits are bounded: the other rank may itself wait for what comes after this launch.
 */
#ifndef RT_GATE_H
#define RT_GATE_H

#include <stdbool.h>
#include <stdint.h>

/* A rank that makes what the kernel of a call needs. Ranks of one communicator know each other's calls by a number. */
struct rt_gate_maker {
  struct rt_gate_maker *next;
  uint64_t comm, call;
};
void rt_gate_make(struct rt_gate_maker *m, uint64_t comm, uint64_t call);
void rt_gate_made(struct rt_gate_maker *m);
/* Waits while a rank of the communicator makes something for this call, or for one before it. */
void rt_gate_wait_for_makers(uint64_t comm, uint64_t call);

/* Waits while a communicator frees memory. */
void rt_gate_wait_for_closers(void);
/* A kernel is about to be launched; it has ended. Neither call waits. */
void rt_gate_run(void);
void rt_gate_ran(void);

/* False: kernels run, so memory must not be freed now. True: none is launched until rt_gate_closed. */
bool rt_gate_close(void);
void rt_gate_closed(void);

#endif
