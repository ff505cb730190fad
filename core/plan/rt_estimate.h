/* SPDX-License-Identifier: Apache-2.0
 * How long an operation might take: for ncclGroupSimulateEnd, and nothing decides by it. */
#ifndef RT_ESTIMATE_H
#define RT_ESTIMATE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/host/rt_sched.h"

/* us. `bytes`: of the call's count, so of one rank's block where there are blocks. */
double rt_estimate_us(enum rt_coll coll, uint64_t bytes, int nranks, bool all_shm);

#endif
