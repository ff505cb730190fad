/* SPDX-License-Identifier: Apache-2.0
 * The parent's part: a process group for each cell of each column, and what its processes report put together. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/bench/bench_machine.h"
#include "kit/bench/bench_process.h"
#include "kit/kit_link.h"

#define SPARE_S 0.5

/* What is received while a process group runs. */
struct received {
  struct kit_bench_record records[KIT_MAX_PROCESSES];
  bool reported[KIT_MAX_PROCESSES];
  int first_bad; /* the process that was first to report a verdict that is not fine; -1 */
  char said[300];
  int nprocesses;
  double patience_s;
};

static void on_message(struct kit_group *group, const struct kit_message *message, void *arg) {
  struct received *h = arg;
  (void)group;
  if (message->kind == KIT_MESSAGE_LOG) snprintf(h->said, sizeof h->said, "side %d: %s", message->rank, message->text);
  if (message->kind != KIT_MESSAGE_RECORD || message->size != sizeof h->records[0]) return;
  struct kit_bench_record *r = &h->records[message->rank];
  memcpy(r, message->data, sizeof *r);
  if (r->magic != KIT_BENCH_MAGIC || r->verdict < KIT_BENCH_OK || r->verdict > KIT_BENCH_ERROR) return;
  r->what[sizeof r->what - 1] = r->wire[sizeof r->wire - 1] = r->used.why_not[sizeof r->used.why_not - 1] = 0;
  h->reported[message->rank] = true;
  if (r->verdict != KIT_BENCH_OK && h->first_bad < 0) h->first_bad = message->rank;
}

/* Other calls may take long: they load, search for devices, pin memory. */
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

/* Processes that do not come back from such a call end before the job's limit: all may be in one, and report
 * nothing. */
static void on_tick(struct kit_group *group, void *arg) {
  const struct received *h = arg;
  double seconds;
  for (int i = 0; i < h->nprocesses; i++)
    if (must_not_wait(kit_group_call(group, i, &seconds)) && seconds > h->patience_s) kit_group_stop(group);
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
static struct kit_bench_record add_up(const struct received *h, unsigned int nprocesses, int *counted) {
  struct kit_bench_record sum = {0};
  *counted = 2;
  for (unsigned int i = 0; i < nprocesses; i++) {
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

static void figure(const struct kit_bench_cell *cell, const struct received *h, struct kit_bench_result *result,
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
    bytes = 0; /* a ping-pong uses its CPU to wait */
  } else {
    result->figures[KIT_BENCH_GB_S] = cell->size > 0 ? per((double)bytes / 1e9, sum.seconds) : NAN;
    result->figures[KIT_BENCH_MESSAGES_S] = per((double)sum.messages, sum.seconds);
    if (cell->kind == KIT_BENCH_JITTER) jitter(result, &sum);
  }
  use(result, &sum, bytes, counted);
}

/* ---- verdicts ---- */

RAIL_PRINTF(3, 4)
static void set_verdict(struct kit_bench_result *result, enum kit_bench_verdict verdict, const char *fmt, ...) {
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

/* A process that was in a call of the plugin for long when it was ended; -1: none. */
static int hung_side(const struct kit_bench_cell *cell, const struct kit_outcome *outcome) {
  for (int i = 0; i < (int)cell->sides; i++)
    if (outcome->sides[i].end == KIT_END_LOST && outcome->sides[i].call[0]) return i;
  return -1;
}

/* A crash explains the others' errors, and a call that does not come back their waiting; what a process reported
 * explains its own failing; a process' end comes last. */
static void decide_verdict(const struct kit_bench_cell *cell, const struct kit_outcome *outcome,
                           const struct received *h, struct kit_bench_result *result) {
  const struct kit_bench_record *record = h->first_bad >= 0 ? &h->records[h->first_bad] : NULL;
  const struct kit_process_end *sides = outcome->sides;
  int crashed = crashed_side(cell, outcome), hung = hung_side(cell, outcome), bad = RAIL_MAX(outcome->rank, 0);
  if (crashed >= 0) set_verdict(result, KIT_BENCH_CRASHED, "side %d: %s", crashed, sides[crashed].text);
  else if (hung >= 0)
    set_verdict(result, KIT_BENCH_STUCK, "side %d: %s%s%s", hung, sides[hung].text, record ? "; " : "",
                record ? record->what : "");
  else if (record) set_verdict(result, (enum kit_bench_verdict)record->verdict, "%s", record->what);
  else if (outcome->end != KIT_END_FINE)
    set_verdict(result, verdict_of_end(outcome->end), "side %d: %s", bad, sides[bad].text);
  for (unsigned int i = 0; i < cell->sides && result->verdict == KIT_BENCH_OK; i++)
    if (!h->reported[i]) set_verdict(result, KIT_BENCH_ERROR, "side %u ended without a report", i);
}

/* Half of what is free is left to the system and the plugin. False: the verdict says what is missing. */
static bool fits(const struct kit_bench_cell *cell, struct kit_bench_result *result) {
  double needed = (double)kit_bench_bytes(cell) * cell->sides, available = kit_bench_free_memory();
  if (cell->memory == KIT_BENCH_CUDA || !(needed > available / 2)) return true;
  set_verdict(result, KIT_BENCH_SKIPPED, "needs %.1f GiB of buffers in all, %.1f GiB of memory are free",
              needed / (1 << 30), available / (1 << 30));
  return false;
}

struct run {
  struct kit_group_options how;
  struct kit_outcome outcome;
  struct received received;
};

static void prepare(struct run *run, const struct kit_bench_plan *plan, const struct kit_bench_cell *cell,
                    const struct kit_bench_column *column) {
  run->received.first_bad = -1;
  run->received.nprocesses = run->how.nprocesses = (int)cell->sides;
  run->received.patience_s = plan->patience_s + SPARE_S; /* a process that waits speaks first */
  run->how.on_message = on_message;
  run->how.on_tick = on_tick;
  run->how.arg = &run->received;
  kit_bench_job_write(&run->how.job, plan, cell, column);
  for (int i = 0; i < run->how.nprocesses; i++) {
    run->how.setup[i] = (struct kit_process_setup){.env = column->env};
    kit_placement_apply(&plan->placement, i, &run->how.setup[i]);
  }
}

/* What the plugin calls itself, if a process came that far. */
static void note_wire(const struct received *h, struct kit_bench_column *column) {
  for (int i = 0; i < h->nprocesses; i++) {
    const struct kit_bench_record *r = &h->records[i];
    if (!h->reported[i] || !r->wire[0]) continue;
    column->version = r->version;
    snprintf(column->wire, sizeof column->wire, "%s", r->wire);
  }
}

static void run_cell(struct kit_bench_results *all, const struct kit_bench_cell *cell, struct kit_bench_column *column,
                     struct kit_bench_result *result) {
  struct run *run = calloc(1, sizeof *run);
  for (unsigned int m = 0; m < KIT_BENCH_METRICS; m++) result->figures[m] = NAN;
  if (!run) {
    set_verdict(result, KIT_BENCH_ERROR, "out of memory");
  } else if (fits(cell, result)) {
    prepare(run, all->plan, cell, column);
    kit_group_run(all->plan->link, &run->how, &run->outcome);
    decide_verdict(cell, &run->outcome, &run->received, result);
    note_wire(&run->received, column);
    if (result->verdict == KIT_BENCH_OK) figure(cell, &run->received, result, all);
    else snprintf(result->said, sizeof result->said, "%s", run->received.said);
  }
  free(run);
}

/* ---- the rounds ---- */

struct progress {
  bool terminal, quiet;
  size_t done, all;
  uint64_t start_ns;
};

static void show_begin(const struct progress *p, unsigned int round, const struct kit_bench_plan *plan,
                       const struct kit_bench_cell *cell, const struct kit_bench_column *column) {
  char text[128];
  if (p->quiet || !p->terminal) return;
  double passed = (double)(rail_now_ns() - p->start_ns) / 1e9;
  fprintf(stderr, "\r\033[K[%zu/%zu, %.0f s to go] round %u/%u, %s: %s", p->done + 1, p->all,
          p->done ? passed / (double)p->done * (double)(p->all - p->done) : 0, round + 1, plan->rounds, column->name,
          kit_bench_cell_text(cell, text, sizeof text));
}

static void show_end(const struct progress *p, unsigned int round, const struct kit_bench_plan *plan,
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
      show_begin(p, round, plan, &plan->cells[c], &plan->columns[column]);
      run_cell(r, &plan->cells[c], &plan->columns[column], result);
      p->done++;
      show_end(p, round, plan, &plan->cells[c], &plan->columns[column], result);
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
