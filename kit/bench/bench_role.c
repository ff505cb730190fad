/* SPDX-License-Identifier: Apache-2.0
 * One of a cell's processes, from reading its job to telling what came of it. */
#include "kit/bench/bench_side.h"

#include <stdlib.h>

#include "kit/bench/bench_job.h"

static void measure(struct kit_bench_side *s, struct kit_bench_record *out) {
  void (*phase)(struct kit_bench_side *, double, struct kit_bench_record *) =
      s->cell.kind == KIT_BENCH_LATENCY ? kit_bench_pingpong : kit_bench_transfer;
  struct kit_bench_record warm = *out;
  kit_bench_listen_all(s);
  kit_bench_join_all(s);
  kit_meet(s->kit);
  if (s->check) kit_bench_verify(s);
  phase(s, s->warmup_s, &warm);
  phase(s, s->seconds, out);
  kit_meet(s->kit);
  kit_bench_close_all(s);
}

void kit_bench_run_side(struct kit_side *kit) {
  struct kit_bench_side s = {.kit = kit, .job = kit_side_job(kit), .rank = kit_side_rank(kit)};
  s.trail = kit_trail_step();
  kit_bench_job_read(&s);
  kit_bench_counters_open(&s.counters);
  kit_bench_make_lanes(&s);
  kit_bench_must(&s, s.wire->start(&s), "init");
  struct kit_bench_record out = kit_bench_empty_record(&s);
  if (s.cell.kind == KIT_BENCH_CONNECT) kit_bench_connects(&s, s.seconds, &out);
  else measure(&s, &out);
  kit_bench_must(&s, s.wire->stop(&s), "finalize");
  kit_tell(kit, &out, sizeof out);
  kit_bench_memory_free(&s.memory);
  kit_bench_samples_free(&s.samples);
  kit_bench_counters_close(&s.counters);
  free(s.requests);
  free(s.out);
}
