/* SPDX-License-Identifier: Apache-2.0
 * One of a cell's processes, from reading its job to telling what came of it. */
#include "kit/bench/bench_side.h"

#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "kit/bench/bench_job.h"

static struct kit_bench_record empty_record(const struct kit_bench_side *s) {
  struct kit_bench_record r = {.magic = KIT_BENCH_MAGIC, .version = s->version};
  snprintf(r.wire, sizeof r.wire, "%s", s->wire_name);
  return r;
}

void kit_bench_fail(struct kit_bench_side *s, enum kit_bench_verdict verdict, const char *fmt, ...) {
  struct kit_bench_record r = empty_record(s);
  va_list ap;
  int n = snprintf(r.what, sizeof r.what, "side %d: ", s->rank);
  va_start(ap, fmt);
  vsnprintf(r.what + n, sizeof r.what - (size_t)n, fmt, ap);
  va_end(ap);
  r.verdict = (int32_t)verdict;
  kit_tell(s->kit, &r, sizeof r);
  kit_failed(__FILE__, __LINE__, "%s", r.what);
}

void kit_bench_must(struct kit_bench_side *s, rail_result_t result, const char *call) {
  if (result == RAIL_OK) return;
  kit_bench_fail(s, KIT_BENCH_FAILED, "%s returned %d (%s)", call, (int)result, rail_result_name(result));
}

void kit_bench_patient(struct kit_bench_side *s, uint64_t now, uint64_t moved) {
  kit_bench_note_time(s, now);
  if (rail_likely(now - moved <= s->patience_ns)) return;
  kit_bench_fail(s, KIT_BENCH_STUCK, "nothing moved for %.1f s", (double)(now - moved) / 1e9);
}

void kit_bench_idle(const struct kit_bench_side *s) {
  struct timespec t = {.tv_sec = s->cell.sleep_us / 1000000, .tv_nsec = s->cell.sleep_us % 1000000 * 1000};
  if (s->cell.sleep_us > 0) nanosleep(&t, NULL);
  else sched_yield();
}

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
  struct kit_bench_record out = empty_record(&s);
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
