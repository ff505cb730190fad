/* SPDX-License-Identifier: Apache-2.0
 *
 * The table, column for column that of nccl-tests, so that what reads theirs reads ours.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "rail/version.h"
#include "tools/rail-coll/coll.h"

/* "device (ranks 0, 2), host (ranks 1, 3)", or the one kind of all. */
static void head_memory(const struct rc_report *r) {
  const char *comma = "";
  fprintf(r->table, "#  Buffers in memory of kind: ");
  for (int kind = 0; rc_memory_names[kind]; kind++) {
    int n = 0;
    for (int i = 0; i < r->nranks; i++) {
      if (r->ranks[i].memory != kind) continue;
      if (n++ == 0) fprintf(r->table, "%s%s (ranks %d", comma, rc_memory_names[kind], i);
      else fprintf(r->table, ", %d", i);
    }
    if (n > 0) fprintf(r->table, ")");
    if (n > 0) comma = ", ";
  }
  fprintf(r->table, "\n");
}

static void head_devices(const struct rc_report *r) {
  bool same = true;
  fprintf(r->table, "# Using devices\n");
  for (int i = 0; i < r->nranks; i++) {
    const struct rc_rank_info *k = &r->ranks[i];
    fprintf(r->table, "#  Rank %2d Group  0 Pid %6d on %10s device %2d [%s] %s%s%s\n", i, k->pid, k->host, k->device,
            k->gpu[0] ? k->bus_id : "host", k->gpu, k->gpu[0] ? " " : "", k->transports);
  }
  if (rc_uses_gpus(r->o)) head_memory(r);
  for (int i = 1; i < r->nranks; i++) same = same && strcmp(r->ranks[i].plugin, r->ranks[0].plugin) == 0;
  if (same && r->ranks[0].plugin[0]) fprintf(r->table, "#  Network plugin of all ranks: %s\n", r->ranks[0].plugin);
  for (int i = 0; !same && i < r->nranks; i++)
    fprintf(r->table, "#  Network plugin of rank %d: %s\n", i, r->ranks[i].plugin[0] ? r->ranks[i].plugin : "none");
}

void rc_report_head(struct rc_report *r) {
  const struct rc_options *o = r->o;
  FILE *f = r->table;
  int library = 0;
  (void)ncclGetVersion(&library);
  fprintf(f, "# " RC_NAME " version " RAIL_VERSION " nccl-headers=%d nccl-library=%d\n", NCCL_VERSION_CODE, library);
  fprintf(f, "# Collective test starting: %s\n", o->collective->name);
  fprintf(f, "# nRanks %d nThread %d nGpus %d minBytes %llu maxBytes %llu step: %llu(%s) warmup iters: %d iters: %d "
          "agg iters: %d validate: %d graph: %d launch: %s\n#\n", r->nranks, o->threads, o->comms_per_thread,
          (unsigned long long)o->min_bytes, (unsigned long long)o->max_bytes,
          (unsigned long long)(o->step_bytes ? o->step_bytes : o->step_factor), o->step_bytes ? "bytes" : "factor",
          o->warmup, o->iters, o->aggregate, o->checks, o->graphs, r->launch);
  head_devices(r);
  fprintf(f, "#\n");
  fprintf(f, "# %10s  %12s  %8s  %6s  %6s           out-of-place                       in-place          \n", "",
          "", "", "", "");
  fprintf(f, "# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s\n", "size", "count", "type", "redop",
          "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong");
  fprintf(f, "# %10s  %12s  %8s  %6s  %6s  %7s  %6s  %6s  %6s  %7s  %6s  %6s  %6s\n", "(B)", "(elements)", "", "", "",
          "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "");
  fflush(f);
}

static void print_side(FILE *f, const struct rc_side *s, bool timed) {
  char wrong[24] = "N/A", us[24];
  if (!s->ran || !s->supported) {
    fprintf(f, "  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", "N/A");
    return;
  }
  snprintf(us, sizeof us, s->us >= 10000 ? "%.0f" : s->us >= 100 ? "%.1f" : "%.2f", s->us);
  if (s->checked) snprintf(wrong, sizeof wrong, "%" PRIu64, s->wrong + s->outside);
  if (timed) fprintf(f, "  %7s  %6.2f  %6.2f  %6s", us, s->algbw, s->busbw, wrong);
  else fprintf(f, "  %7s  %6s  %6s  %6s", "N/A", "N/A", "N/A", wrong);
}

static void add_side(struct rc_report *r, const struct rc_side *s) {
  if (!s->ran || !s->supported) return;
  r->wrong += s->wrong;
  r->outside += s->outside;
  r->busbw_sum += s->busbw;
  r->busbw_n++;
}

int rc_report_row(struct rc_report *r, const struct rc_row *row) {
  bool timed = r->o->iters > 0;
  if (r->nrows == r->cap) {
    size_t cap = r->cap ? 2 * r->cap : 64;
    struct rc_row *rows = realloc(r->rows, cap * sizeof *rows);
    if (!rows) {
      fprintf(stderr, RC_NAME ": no memory for the results\n");
      return -1;
    }
    r->rows = rows;
    r->cap = cap;
  }
  r->rows[r->nrows++] = *row;
  add_side(r, &row->out);
  add_side(r, &row->in);
  fprintf(r->table, "%12zu  %12zu  %8s  %6s  %6d", row->bytes, row->count, row->type, row->op, row->root);
  print_side(r->table, &row->out, timed);
  print_side(r->table, &row->in, timed);
  fputc('\n', r->table);
  fflush(r->table);
  return 0;
}

void rc_report_tail(struct rc_report *r) {
  fprintf(r->table, "# Out of bounds values : %" PRIu64 " %s\n", r->wrong + r->outside,
          r->wrong + r->outside == 0 ? "OK" : "FAILED");
  if (r->outside > 0)
    fprintf(r->table, "# Of these, bytes written outside the result: %llu\n", (unsigned long long)r->outside);
  fprintf(r->table, "# Avg bus bandwidth    : %g\n#\n", r->busbw_n ? r->busbw_sum / (double)r->busbw_n : 0.0);
  fflush(r->table);
}
