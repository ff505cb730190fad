/* SPDX-License-Identifier: Apache-2.0
 * The parent's part: a world for each cell of each column, and what its sides tell put together. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/bench/bench_side.h"
#include "kit/bench/bench_machine.h"
#include "kit/kit_link.h"

#define SPARE_S 0.5

/* What is heard while a world runs. */
struct heard {
  struct kit_bench_record records[KIT_MAX_SIDES];
  bool told[KIT_MAX_SIDES];
  int first_bad; /* the side that was first to tell a verdict that is not fine; -1 */
  char said[300];
  int nsides;
  double patience_s;
};

static void on_word(struct kit_world *world, const struct kit_word *word, void *arg) {
  struct heard *h = arg;
  (void)world;
  if (word->kind == KIT_WORD_LOG) snprintf(h->said, sizeof h->said, "side %d: %s", word->rank, word->text);
  if (word->kind != KIT_WORD_ROLE || word->size != sizeof h->records[0]) return;
  struct kit_bench_record *r = &h->records[word->rank];
  memcpy(r, word->data, sizeof *r);
  if (r->magic != KIT_BENCH_MAGIC || r->verdict < KIT_BENCH_OK || r->verdict > KIT_BENCH_ERROR) return;
  r->what[sizeof r->what - 1] = r->wire[sizeof r->wire - 1] = r->used.why_not[sizeof r->used.why_not - 1] = 0;
  h->told[word->rank] = true;
  if (r->verdict != KIT_BENCH_OK && h->first_bad < 0) h->first_bad = word->rank;
}

/* Others may take their time: they load, search for devices, pin memory. */
static bool must_not_wait(unsigned call) {
  switch (call) {
    case KIT_CALL_CONNECT:
    case KIT_CALL_ACCEPT:
    case KIT_CALL_ISEND:
    case KIT_CALL_IRECV:
    case KIT_CALL_IFLUSH:
    case KIT_CALL_TEST: return true;
    default: return false;
  }
}

/* Sides that do not come back from such a call end before the job's limit: all may be in one, and tell nothing. */
static void on_tick(struct kit_world *world, void *arg) {
  const struct heard *h = arg;
  double seconds;
  for (int i = 0; i < h->nsides; i++)
    if (must_not_wait(kit_world_call(world, i, &seconds)) && seconds > h->patience_s) kit_world_stop(world);
}

/* ---- figures ---- */

static double per(double value, double by) { return by > 0 ? value / by : NAN; }

static void use(struct kit_bench_result *result, const struct kit_bench_record *sum, uint64_t bytes, int counted) {
  double *f = result->figures;
  if (bytes > 0) f[KIT_BENCH_CPU_GB] = per(sum->used.cpu_s * 1e9, (double)bytes);
  f[KIT_BENCH_SWITCHES] = per((double)sum->used.switches * 1e3, (double)sum->messages);
  if (counted) f[KIT_BENCH_INSTRUCTIONS] = per((double)sum->used.instructions, (double)sum->messages);
}

static void latency(struct kit_bench_result *result, const struct kit_bench_record *sum) {
  double *f = result->figures;
  f[KIT_BENCH_HALF_MIN] = sum->us[0];
  f[KIT_BENCH_HALF_P50] = sum->us[1];
  f[KIT_BENCH_HALF_P90] = sum->us[2];
  f[KIT_BENCH_HALF_P99] = sum->us[3];
  f[KIT_BENCH_HALF_P999] = sum->us[4];
  f[KIT_BENCH_JITTER_US] = sum->us[3] - sum->us[1];
}

static void jitter(struct kit_bench_result *result, const struct kit_bench_record *sum) {
  double *f = result->figures;
  f[KIT_BENCH_GAP_P50] = sum->us[1];
  f[KIT_BENCH_GAP_P99] = sum->us[3];
  f[KIT_BENCH_GAP_P999] = sum->us[4];
  f[KIT_BENCH_GAP_MAX] = sum->us[5];
  f[KIT_BENCH_JITTER_US] = sum->us[3] - sum->us[1];
}

static void connecting(struct kit_bench_result *result, const struct kit_bench_record *sum) {
  double *f = result->figures;
  f[KIT_BENCH_CONNECTS_S] = per((double)sum->messages, sum->seconds);
  f[KIT_BENCH_CONNECT_P50] = sum->us[1];
  f[KIT_BENCH_CONNECT_P99] = sum->us[3];
  f[KIT_BENCH_CLOSE_US] = sum->close_us;
  f[KIT_BENCH_FDS_LEFT] = sum->fds_left;
  f[KIT_BENCH_THREADS_LEFT] = sum->threads_left;
}

/* Messages and costs add up; the time is the longest, and so are times of samples: the worst side's. */
static struct kit_bench_record add_up(const struct heard *h, unsigned int nsides, int *counted) {
  struct kit_bench_record sum = {0};
  *counted = 2;
  for (unsigned int i = 0; i < nsides; i++) {
    const struct kit_bench_record *r = &h->records[i];
    sum.seconds = RAIL_MAX(sum.seconds, r->seconds);
    sum.close_us = RAIL_MAX(sum.close_us, r->close_us);
    sum.messages += r->messages;
    sum.used.cpu_s += r->used.cpu_s;
    sum.used.switches += r->used.switches;
    sum.used.instructions += r->used.instructions;
    sum.fds_left += r->fds_left;
    sum.threads_left += r->threads_left;
    *counted = RAIL_MIN(*counted, r->used.counted);
    if (r->nsamples == 0) continue;
    sum.us[0] = sum.nsamples ? RAIL_MIN(sum.us[0], r->us[0]) : r->us[0];
    for (size_t k = 1; k < RAIL_COUNT_OF(sum.us); k++) sum.us[k] = RAIL_MAX(sum.us[k], r->us[k]);
    sum.nsamples += r->nsamples;
  }
  return sum;
}

static void figure(const struct kit_bench_cell *cell, const struct heard *h, struct kit_bench_result *result,
                   struct kit_bench_results *all) {
  int counted;
  struct kit_bench_record sum = add_up(h, cell->sides, &counted);
  uint64_t bytes = sum.messages * cell->size;
  if (!counted) snprintf(all->counting, sizeof all->counting, "%s", h->records[0].used.why_not);
  else if (counted == 1) snprintf(all->counting, sizeof all->counting, "of user mode only");
  result->messages = sum.messages;
  result->seconds = sum.seconds;
  if (cell->kind == KIT_BENCH_CONNECT) {
    connecting(result, &sum);
    return;
  }
  if (cell->kind == KIT_BENCH_LATENCY) {
    latency(result, &sum);
    bytes = 0; /* who waits for answers uses his CPU to wait */
  } else {
    result->figures[KIT_BENCH_GB_S] = cell->size > 0 ? per((double)bytes / 1e9, sum.seconds) : NAN;
    result->figures[KIT_BENCH_MESSAGES_S] = per((double)sum.messages, sum.seconds);
    if (cell->kind == KIT_BENCH_JITTER) jitter(result, &sum);
  }
  use(result, &sum, bytes, counted);
}

/* ---- verdicts ---- */

RAIL_PRINTF(3, 4)
static void blame(struct kit_bench_result *result, enum kit_bench_verdict verdict, const char *fmt, ...) {
  va_list ap;
  result->verdict = verdict;
  va_start(ap, fmt);
  vsnprintf(result->what, sizeof result->what, fmt, ap);
  va_end(ap);
}

static enum kit_bench_verdict verdict_of_end(enum kit_end end) {
  switch (end) {
    case KIT_END_CRASH: return KIT_BENCH_CRASHED;
    case KIT_END_HANG: return KIT_BENCH_STUCK;
    case KIT_END_SKIPPED: return KIT_BENCH_SKIPPED;
    case KIT_END_ERROR: return KIT_BENCH_ERROR;
    default: return KIT_BENCH_FAILED;
  }
}

static int crashed_side(const struct kit_bench_cell *cell, const struct kit_outcome *outcome) {
  for (int i = 0; i < (int)cell->sides; i++)
    if (outcome->sides[i].end == KIT_END_CRASH) return i;
  return -1;
}

/* A side that was in a call of the plugin for long when it was ended; -1: none. */
static int hung_side(const struct kit_bench_cell *cell, const struct kit_outcome *outcome) {
  for (int i = 0; i < (int)cell->sides; i++)
    if (outcome->sides[i].end == KIT_END_LOST && outcome->sides[i].call[0]) return i;
  return -1;
}

/* A crash explains the others' errors, and a call that does not come back their waiting; what a side told explains its
 * own failing; a process' end comes last. */
static void judge(const struct kit_bench_cell *cell, const struct kit_outcome *outcome, const struct heard *h,
                  struct kit_bench_result *result) {
  const struct kit_bench_record *told = h->first_bad >= 0 ? &h->records[h->first_bad] : NULL;
  const struct kit_side_end *sides = outcome->sides;
  int crashed = crashed_side(cell, outcome), hung = hung_side(cell, outcome), bad = RAIL_MAX(outcome->rank, 0);
  if (crashed >= 0) blame(result, KIT_BENCH_CRASHED, "side %d: %s", crashed, sides[crashed].text);
  else if (hung >= 0)
    blame(result, KIT_BENCH_STUCK, "side %d: %s%s%s", hung, sides[hung].text, told ? "; " : "", told ? told->what : "");
  else if (told) blame(result, (enum kit_bench_verdict)told->verdict, "%s", told->what);
  else if (outcome->end != KIT_END_FINE)
    blame(result, verdict_of_end(outcome->end), "side %d: %s", bad, sides[bad].text);
  for (unsigned int i = 0; i < cell->sides && result->verdict == KIT_BENCH_OK; i++)
    if (!h->told[i]) blame(result, KIT_BENCH_ERROR, "side %u ended without a word", i);
}

/* Half of what is free is left to the system and the plugin. False: blamed. */
static bool fits(const struct kit_bench_cell *cell, struct kit_bench_result *result) {
  double needed = (double)kit_bench_bytes(cell) * cell->sides, available = kit_bench_free_memory();
  if (cell->memory == KIT_BENCH_CUDA || !(needed > available / 2)) return true;
  blame(result, KIT_BENCH_SKIPPED, "needs %.1f GiB of buffers in all, %.1f GiB of memory are free", needed / (1 << 30),
        available / (1 << 30));
  return false;
}

struct run {
  struct kit_world_how how;
  struct kit_outcome outcome;
  struct heard heard;
};

static void prepare(struct run *run, const struct kit_bench_plan *plan, const struct kit_bench_cell *cell,
                    const struct kit_bench_column *column) {
  run->heard.first_bad = -1;
  run->heard.nsides = run->how.nsides = (int)cell->sides;
  run->heard.patience_s = plan->patience_s + SPARE_S; /* a side that waits speaks first */
  run->how.on_word = on_word;
  run->how.on_tick = on_tick;
  run->how.arg = &run->heard;
  kit_bench_job_write(&run->how.job, plan, cell, column);
  for (int i = 0; i < run->how.nsides; i++) {
    run->how.setup[i] = (struct kit_setup){.env = column->env};
    kit_place(&plan->places, i, &run->how.setup[i]);
  }
}

/* What the plugin calls itself, if a side came that far. */
static void note_wire(const struct heard *h, struct kit_bench_column *column) {
  for (int i = 0; i < h->nsides; i++) {
    const struct kit_bench_record *r = &h->records[i];
    if (!h->told[i] || !r->wire[0]) continue;
    column->version = r->version;
    snprintf(column->wire, sizeof column->wire, "%s", r->wire);
  }
}

static void run_cell(struct kit_bench_results *all, const struct kit_bench_cell *cell, struct kit_bench_column *column,
                     struct kit_bench_result *result) {
  struct run *run = calloc(1, sizeof *run);
  for (unsigned int m = 0; m < KIT_BENCH_METRICS; m++) result->figures[m] = NAN;
  if (!run) {
    blame(result, KIT_BENCH_ERROR, "out of memory");
  } else if (fits(cell, result)) {
    prepare(run, all->plan, cell, column);
    kit_world_run(all->plan->link, &run->how, &run->outcome);
    judge(cell, &run->outcome, &run->heard, result);
    note_wire(&run->heard, column);
    if (result->verdict == KIT_BENCH_OK) figure(cell, &run->heard, result, all);
    else snprintf(result->said, sizeof result->said, "%s", run->heard.said);
  }
  free(run);
}

/* ---- the rounds ---- */

struct progress {
  bool terminal, quiet;
  size_t done, all;
  uint64_t start_ns;
};

static void tell_begin(const struct progress *p, unsigned int round, const struct kit_bench_plan *plan,
                       const struct kit_bench_cell *cell, const struct kit_bench_column *column) {
  char text[128];
  if (p->quiet || !p->terminal) return;
  double passed = (double)(rail_now_ns() - p->start_ns) / 1e9;
  fprintf(stderr, "\r\033[K[%zu/%zu, %.0f s to go] round %u/%u, %s: %s", p->done + 1, p->all,
          p->done ? passed / (double)p->done * (double)(p->all - p->done) : 0, round + 1, plan->rounds, column->name,
          kit_bench_cell_text(cell, text, sizeof text));
}

static void tell_end(const struct progress *p, unsigned int round, const struct kit_bench_plan *plan,
                     const struct kit_bench_cell *cell, const struct kit_bench_column *column,
                     const struct kit_bench_result *result) {
  char text[128];
  if (p->quiet || p->terminal) return;
  fprintf(stderr, "[%zu/%zu] round %u/%u, %s: %s: %s%s%s\n", p->done, p->all, round + 1, plan->rounds, column->name,
          kit_bench_cell_text(cell, text, sizeof text), kit_bench_verdict_words[result->verdict],
          *result->what ? ": " : "", result->what);
}

static void run_round(struct kit_bench_results *r, unsigned int round, struct progress *p) {
  const struct kit_bench_plan *plan = r->plan;
  for (size_t c = 0; c < plan->ncells; c++) {
    for (unsigned int k = 0; k < plan->ncolumns; k++) {
      unsigned int column = round % 2 == 0 ? k : plan->ncolumns - 1 - k;
      struct kit_bench_result *result = kit_bench_at(r, round, c, column);
      tell_begin(p, round, plan, &plan->cells[c], &plan->columns[column]);
      run_cell(r, &plan->cells[c], &plan->columns[column], result);
      p->done++;
      tell_end(p, round, plan, &plan->cells[c], &plan->columns[column], result);
    }
  }
}

bool kit_bench_run(const struct kit_bench_plan *plan, struct kit_bench_results *r) {
  struct progress p = {.terminal = isatty(STDERR_FILENO), .quiet = plan->quiet, .start_ns = rail_now_ns(),
                       .all = plan->ncells * plan->ncolumns * plan->rounds};
  *r = (struct kit_bench_results){.plan = plan};
  r->all = calloc(p.all + 1, sizeof *r->all);
  r->others = calloc(plan->rounds + 1, sizeof *r->others);
  if (!r->all || !r->others) {
    fprintf(stderr, "rail-kit bench: no memory for %zu results\n", p.all);
    kit_bench_free(r);
    return false;
  }
  for (unsigned int round = 0; round < plan->rounds; round++) {
    struct kit_bench_load before = kit_bench_load_now();
    run_round(r, round, &p);
    r->others[round] = kit_bench_load_of_others(&before);
  }
  if (p.terminal && !p.quiet) fprintf(stderr, "\r\033[K");
  return true;
}

void kit_bench_free(struct kit_bench_results *r) {
  free(r->all);
  free(r->others);
  r->all = NULL;
  r->others = NULL;
}
