/* SPDX-License-Identifier: Apache-2.0
 * A plan's fields as arguments of a job and back, and the values that chance decides. */
#include "kit/fault/fault_plan.h"

#include <inttypes.h>
#include <stddef.h>

#include "common/base/compiler.h"
#include "kit/kit_traffic.h"
#include "kit/preload/preload.h"

static const struct field {
  const char *key;
  size_t at;
  uint64_t min, max;
} fields[] = {
#define FIELD(name, min, max) {#name, offsetof(struct kit_fault_plan, name), min, max}
    FIELD(seed, 0, UINT64_MAX),
    FIELD(comms, 1, 64),
    FIELD(dirs, KIT_DIRS_BOTH, KIT_DIRS_BACK),
    FIELD(mix, KIT_TRAFFIC_FIXED, KIT_TRAFFIC_LARGE),
    FIELD(max, 8, 64 << 20),
    FIELD(group, 1, KIT_TRAFFIC_BLOCK),
    FIELD(window, 1, 64),
    FIELD(act, KIT_ACT_NOTHING, KIT_ACT_FAIL),
    FIELD(how, 0, KIT_CLIENTS_MIXED),
    FIELD(when, KIT_WHEN_FLOWING, KIT_WHEN_IDLE),
    FIELD(victims, 0, 3),
    FIELD(delay_us, 0, 60000000),
    FIELD(last_ms, 0, 600000),
    FIELD(count, 0, 4000),
    FIELD(nth, 0, UINT32_MAX),
    FIELD(kinds, 0, KIT_FAIL_ALL),
    FIELD(piece, 0, 1 << 30),
    FIELD(buffer, 0, 1 << 30),
    FIELD(interrupt, 0, 1000000),
    FIELD(files, 0, 100000),
    FIELD(goal, KIT_GOAL_SURVIVE, KIT_GOAL_EITHER),
    FIELD(patience_ms, 1, 600000),
    FIELD(after_ms, 0, 600000),
#undef FIELD
};

static uint64_t *field(struct kit_fault_plan *plan, const struct field *f) { return (void *)((char *)plan + f->at); }

void kit_fault_plan_put(const struct kit_fault_plan *plan, struct kit_job *job) {
  struct kit_fault_plan copy = *plan;
  for (size_t i = 0; i < RAIL_COUNT_OF(fields); i++)
    kit_job_add(job, fields[i].key, "%" PRIu64, *field(&copy, &fields[i]));
}

struct kit_fault_plan kit_fault_plan_get(const struct kit_job *job) {
  struct kit_fault_plan plan = {0};
  for (size_t i = 0; i < RAIL_COUNT_OF(fields); i++) {
    const struct field *f = &fields[i];
    ENSURE(kit_job_arg(job, f->key), "the job has no %s", f->key);
    uint64_t value = kit_job_number(job, f->key, 0);
    ENSURE(value >= f->min && value <= f->max, "the job's %s is %" PRIu64 ", allowed are %" PRIu64 " to %" PRIu64,
           f->key, value, f->min, f->max);
    *field(&plan, f) = value;
  }
  return plan;
}

static uint64_t one_of(struct kit_rng *rng, const uint64_t *list, uint32_t n) { return list[kit_rng_below(rng, n)]; }
#define ONE_OF(rng, ...) \
  one_of(rng, (const uint64_t[]){__VA_ARGS__}, RAIL_COUNT_OF(((const uint64_t[]){__VA_ARGS__})))

void kit_fault_plan_draw(struct kit_fault_plan *plan, struct kit_rng *rng) {
  /* Always as many draws, so that one fixed value does not move the others. */
  uint64_t comms = ONE_OF(rng, 2, 2, 4, 6), window = ONE_OF(rng, 1, 4, 8, 32), group = ONE_OF(rng, 1, 4, 8);
  uint64_t mix = ONE_OF(rng, KIT_TRAFFIC_MIXED, KIT_TRAFFIC_MIXED, KIT_TRAFFIC_SMALL, KIT_TRAFFIC_LARGE);
  uint64_t max = ONE_OF(rng, 4096, 65536, 300000, 1 << 20, 4 << 20);
  uint64_t victims = ONE_OF(rng, 1, 2), delay = 20000 + kit_rng_below(rng, 130000), soon = 1 + kit_rng_below(rng, 1200);
  plan->seed = kit_rng_next(rng);
  if (!plan->comms) plan->comms = comms;
  if (!plan->window) plan->window = window;
  if (!plan->group) plan->group = group;
  if (!plan->mix) plan->mix = mix;
  if (!plan->max) plan->max = max;
  if (plan->group * plan->window * plan->max > 32 << 20) plan->window = 2;
  if (!plan->victims) plan->victims = victims;
  if (!plan->delay_us) plan->delay_us = plan->when == KIT_WHEN_CONNECTING ? soon : delay;
  if (!plan->patience_ms) plan->patience_ms = 5000;
  if (!plan->after_ms) plan->after_ms = 150;
}
