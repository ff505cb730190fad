/* SPDX-License-Identifier: Apache-2.0 */
#include "core/host/rt_sched.h"

#include "core/host/rt_sched_impl.h"

uint64_t rt_sched_actions(const struct rt_sched *s) { return rt_sched_actions_(s); }

void rt_sched_action(const struct rt_sched *s, uint64_t i, struct rt_action *a) { rt_sched_action_(s, i, a); }

uint64_t rt_sched_call(const struct rt_sched *s) {
  enum rt_coll coll = s->coll == RT_RECV ? RT_SEND : s->coll;
  return s->count * s->esize << 4 | (uint64_t)coll;
}
