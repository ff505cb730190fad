/* SPDX-License-Identifier: Apache-2.0
 * How a side fails, and how long it waits before it does. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#include "kit/bench/bench_side.h"

struct kit_bench_record kit_bench_empty_record(const struct kit_bench_side *s) {
  struct kit_bench_record r = {.magic = KIT_BENCH_MAGIC, .version = s->version};
  snprintf(r.wire, sizeof r.wire, "%s", s->wire_name);
  return r;
}

void kit_bench_fail(struct kit_bench_side *s, enum kit_bench_verdict verdict, const char *fmt, ...) {
  struct kit_bench_record r = kit_bench_empty_record(s);
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
  if (s->cell.spin) rail_cpu_relax();
  else if (s->cell.sleep_us > 0) nanosleep(&t, NULL);
  else sched_yield();
}
