/* SPDX-License-Identifier: Apache-2.0
 * On which CPUs the engine's threads run. */
#include "plugin/socket/sk_affinity.h"

#include "common/base/cpus.h"
#include "common/base/log.h"

enum sk_affinity_choice sk_affinity_choose(const cpu_set_t *allowed, const cpu_set_t *near, unsigned int threads,
                                           cpu_set_t *cpus) {
  enum sk_affinity_choice choice = SK_AFFINITY_NEAR;
  CPU_AND(cpus, allowed, near);
  if (CPU_EQUAL(cpus, allowed)) choice = SK_AFFINITY_SAME;
  else if (CPU_COUNT(cpus) == 0) choice = SK_AFFINITY_NONE;
  else if ((unsigned int)CPU_COUNT(cpus) < threads) choice = SK_AFFINITY_FEW;
  if (choice != SK_AFFINITY_NEAR) *cpus = *allowed;
  return choice;
}

void sk_affinity_begin(struct sk_affinity *affinity) {
  *affinity = (struct sk_affinity){0};
  affinity->known = sched_getaffinity(0, sizeof affinity->allowed, &affinity->allowed) == 0;
  affinity->now = affinity->allowed;
}

bool sk_affinity_add(struct sk_affinity *affinity, const cpu_set_t *near, const char *device, unsigned int threads) {
  char allowed[RAIL_CPUS_TEXT], cpus_near[RAIL_CPUS_TEXT], now[RAIL_CPUS_TEXT];
  const cpu_set_t before = affinity->now;
  cpu_set_t all;
  CPU_OR(&all, &affinity->near, near);
  if (!affinity->known || CPU_EQUAL(&all, &affinity->near)) return false;
  affinity->near = all;
  const enum sk_affinity_choice choice = sk_affinity_choose(&affinity->allowed, &all, threads, &affinity->now);
  const bool moved = !CPU_EQUAL(&affinity->now, &before);
  rail_cpus_text(&affinity->allowed, allowed);
  rail_cpus_text(near, cpus_near);
  rail_cpus_text(&affinity->now, now);
  if (choice == SK_AFFINITY_NONE || choice == SK_AFFINITY_FEW)
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: engine threads stay on CPUs %s: of those near %s (%s) they "
              "may use %s", allowed, device, cpus_near,
              choice == SK_AFFINITY_NONE ? "none" : "fewer than there are threads");
  else if (moved)
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: engine threads run on CPUs %s of %s, as those near %s are %s",
              now, allowed, device, cpus_near);
  return moved;
}
