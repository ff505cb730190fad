/* SPDX-License-Identifier: Apache-2.0
 * Where the engine's threads run. */
#include "plugin/socket/sk_place.h"

#include "common/base/cpus.h"
#include "common/base/log.h"

enum sk_placing sk_place_choose(const cpu_set_t *may, const cpu_set_t *near, unsigned int threads, cpu_set_t *cpus) {
  enum sk_placing placing = SK_PLACE_NEAR;
  CPU_AND(cpus, may, near);
  if (CPU_EQUAL(cpus, may)) placing = SK_PLACE_SAME;
  else if (CPU_COUNT(cpus) == 0) placing = SK_PLACE_NONE;
  else if ((unsigned int)CPU_COUNT(cpus) < threads) placing = SK_PLACE_FEW;
  if (placing != SK_PLACE_NEAR) *cpus = *may;
  return placing;
}

void sk_place_begin(struct sk_place *place) {
  *place = (struct sk_place){0};
  place->known = sched_getaffinity(0, sizeof place->may, &place->may) == 0;
  place->now = place->may;
}

bool sk_place_add(struct sk_place *place, const cpu_set_t *near, const char *device, unsigned int threads) {
  char may[RAIL_CPUS_TEXT], cpus_near[RAIL_CPUS_TEXT], now[RAIL_CPUS_TEXT];
  const cpu_set_t before = place->now;
  cpu_set_t all;
  CPU_OR(&all, &place->near, near);
  if (!place->known || CPU_EQUAL(&all, &place->near)) return false;
  place->near = all;
  const enum sk_placing placing = sk_place_choose(&place->may, &all, threads, &place->now);
  const bool moved = !CPU_EQUAL(&place->now, &before);
  rail_cpus_text(&place->may, may);
  rail_cpus_text(near, cpus_near);
  rail_cpus_text(&place->now, now);
  if (placing == SK_PLACE_NONE || placing == SK_PLACE_FEW)
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: engine threads stay on CPUs %s: of those near %s (%s) they "
              "may use %s", may, device, cpus_near, placing == SK_PLACE_NONE ? "none" : "fewer than there are threads");
  else if (moved)
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: engine threads run on CPUs %s of %s, as those near %s are %s",
              now, may, device, cpus_near);
  return moved;
}
