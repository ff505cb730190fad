/* SPDX-License-Identifier: Apache-2.0
 *
 * Before anything is timed: a window of messages on every lane, of which each
 * byte is checked. What is timed later is looked at by its ends only.
 */
#include <stdlib.h>

#include "common/base/clock.h"
#include "kit/bench/bench_side.h"
#include "kit/kit_mem.h"

#define MOST_BYTES ((uint64_t)64 << 20) /* of a lane, in whole groups of messages */

static uint64_t seed_of(const struct kit_bench_side *s, const struct kit_bench_lane *lane, bool out, unsigned int i) {
  uint64_t from = out ? (uint64_t)s->rank : lane->peer, to = out ? lane->peer : (uint64_t)s->rank;
  return s->job->seed + (from << 56 | to << 48 | (uint64_t)lane->number << 32 | i) * 0x9e3779b97f4a7c15ull;
}

/* Memory of a GPU is reached through a copy. */
static char *workspace(struct kit_bench_side *s) {
  char *copy = s->memory.cuda ? malloc(s->cell.size + 1) : NULL;
  if (s->memory.cuda && !copy) kit_bench_fail(s, KIT_BENCH_ERROR, "no memory for %llu bytes",
                                              (unsigned long long)s->cell.size);
  return copy;
}

static void fill(struct kit_bench_side *s, const struct kit_bench_lane *lane, char *copy, unsigned int i) {
  char *data = lane->base + i * lane->stride;
  kit_pattern_fill(copy ? copy : data, s->cell.size, seed_of(s, lane, true, i));
  if (copy && !kit_bench_memory_write(&s->memory, data, copy, s->cell.size))
    kit_bench_fail(s, KIT_BENCH_ERROR, "CUDA cannot copy to the GPU");
}

static void check(struct kit_bench_side *s, const struct kit_bench_lane *lane, char *copy, unsigned int i) {
  const char *data = lane->base + i * lane->stride;
  if (copy && !kit_bench_memory_read(&s->memory, copy, data, s->cell.size))
    kit_bench_fail(s, KIT_BENCH_ERROR, "CUDA cannot copy from the GPU");
  ssize_t wrong = kit_pattern_check(copy ? copy : data, s->cell.size, seed_of(s, lane, false, i));
  if (wrong >= 0)
    kit_bench_fail(s, KIT_BENCH_WRONG, "message %u of connection %u with side %u, all bytes checked: byte %zd of %llu "
                   "is wrong", i, lane->number, lane->peer, wrong, (unsigned long long)s->cell.size);
}

static void exchange(struct kit_bench_side *s) {
  uint64_t moved = rail_now_ns();
  kit_bench_note_time(s, moved);
  while (!kit_bench_all_done(s)) {
    bool progress = kit_bench_pass(s);
    uint64_t now = rail_now_ns();
    if (progress) moved = now;
    else kit_bench_idle(s);
    kit_bench_patient(s, now, moved);
  }
}

void kit_bench_verify(struct kit_bench_side *s) {
  uint64_t fit = MOST_BYTES / (s->cell.size + 1) + 1;
  unsigned int n = (unsigned int)RAIL_MIN(fit, s->window);
  n = RAIL_ROUND_UP(n, s->cell.group);
  char *copy = workspace(s);
  bool marks = s->marks;
  s->marks = false; /* they would lie in the checked bytes */
  for (unsigned int i = 0; i < s->nout; i++) {
    s->out[i].limit = n;
    for (unsigned int m = 0; m < n; m++) fill(s, &s->out[i], copy, m);
  }
  for (unsigned int i = 0; i < s->nin; i++) s->in[i].limit = n;
  kit_meet(s->kit);
  exchange(s);
  for (unsigned int i = 0; i < s->nin; i++)
    for (unsigned int m = 0; m < n; m++) check(s, &s->in[i], copy, m);
  s->marks = marks;
  free(copy);
}
