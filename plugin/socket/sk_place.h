/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the engine's threads run: on the CPUs near the cards of the devices that they serve, among those that the
 * thread which started them could use. NCCL starts them from its service thread, which has the CPUs of
 * NCCL_PROXY_CPUSET, else those near the GPU that the process may use, or with NCCL_IGNORE_CPU_AFFINITY all near the
 * GPU.
 */
#ifndef SK_PLACE_H
#define SK_PLACE_H

#include <sched.h>
#include <stdbool.h>

enum sk_placing {
  SK_PLACE_NEAR, /* on those that are near */
  SK_PLACE_SAME, /* all that they may use are near */
  SK_PLACE_NONE, /* none is */
  SK_PLACE_FEW,  /* fewer are than there are threads */
};

/* Pure. *cpus: but for SK_PLACE_NEAR, all of `may`. */
enum sk_placing sk_place_choose(const cpu_set_t *may, const cpu_set_t *near, unsigned int threads, cpu_set_t *cpus);

struct sk_place {
  bool known; /* what they may use */
  cpu_set_t may, near, now;
};

/* The calling thread starts threads. */
void sk_place_begin(struct sk_place *place);

/* They serve this device, too: its CPUs are near, besides those of the devices before. True: the threads are to run on
 * place->now from here on. Logs what was chosen. */
bool sk_place_add(struct sk_place *place, const cpu_set_t *near, const char *device, unsigned int threads);

#endif
