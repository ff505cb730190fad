/* SPDX-License-Identifier: Apache-2.0
 * A cell on its way from the parent to its sides, as a job's arguments. */
#ifndef RAIL_KIT_BENCH_JOB_H
#define RAIL_KIT_BENCH_JOB_H

#include "kit/bench/bench_side.h"

void kit_bench_job_write(struct kit_job *job, const struct kit_bench_plan *plan, const struct kit_bench_cell *cell,
                         const struct kit_bench_column *column);
/* Fills in what the job says; ends the side when that cannot be. */
void kit_bench_job_read(struct kit_bench_side *s);

#endif
