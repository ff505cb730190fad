/* SPDX-License-Identifier: Apache-2.0
 *
 * The affinity of the engine's threads: they run on the CPUs near the cards of the devices that they serve, among
 * those that the thread which started them could use. That is NCCL's service thread, which has the CPUs of
 * NCCL_PROXY_CPUSET, else those near the GPU that the process may use, or with NCCL_IGNORE_CPU_AFFINITY all near the
 * GPU.
 */
#ifndef SK_AFFINITY_H
#define SK_AFFINITY_H

#include <sched.h>
#include <stdbool.h>

enum sk_affinity_choice {
  SK_AFFINITY_NEAR, /* on those that are near */
  SK_AFFINITY_SAME, /* all that they may use are near */
  SK_AFFINITY_NONE, /* none is */
  SK_AFFINITY_FEW,  /* fewer are than there are threads */
};

/* Pure. *cpus: but for SK_AFFINITY_NEAR, all of `allowed`. */
enum sk_affinity_choice sk_affinity_choose(const cpu_set_t *allowed, const cpu_set_t *near, unsigned int threads,
                                           cpu_set_t *cpus);

struct sk_affinity {
  bool known;        /* `allowed` is */
  cpu_set_t allowed; /* what they may use */
  cpu_set_t near;    /* the cards of all devices that were added */
  cpu_set_t now;     /* on which they run */
};

/* The calling thread starts threads. */
void sk_affinity_begin(struct sk_affinity *affinity);

/* They serve this device, too: its CPUs are near, besides those of the devices before. True: the threads are to run on
 * affinity->now from here on. Logs what was chosen. */
bool sk_affinity_add(struct sk_affinity *affinity, const cpu_set_t *near, const char *device, unsigned int threads);

#endif
