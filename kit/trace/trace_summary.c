/* SPDX-License-Identifier: Apache-2.0
 * The summary as tables. */
#include <inttypes.h>
#include <time.h>

#include "plugin/railtrace/trace_rules.h"
#include "kit/trace/kit_trace.h"

static const char *unit_bytes(char text[24], double v) {
  static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int u = 0;
  while (v >= 1024 && u < 4) {
    v /= 1024;
    u++;
  }
  snprintf(text, 24, u ? "%.1f %s" : "%.0f %s", v, units[u]);
  return text;
}

static const char *unit_time(char text[24], uint64_t ns) {
  if (ns < 1000) snprintf(text, 24, "%" PRIu64 " ns", ns);
  else if (ns < 1000000) snprintf(text, 24, "%.1f us", (double)ns / 1e3);
  else if (ns < 1000000000) snprintf(text, 24, "%.1f ms", (double)ns / 1e6);
  else snprintf(text, 24, "%.2f s", (double)ns / 1e9);
  return text;
}

void kit_trace_print_header(FILE *out, const struct rail_trace *trace, const char *path) {
  const struct rail_trace_header *h = rail_trace_header(trace);
  const struct rail_trace_end *end = rail_trace_end(trace);
  time_t at = (time_t)(h->realtime_ns / 1000000000);
  struct tm tm;
  char when[32] = "?";
  if (gmtime_r(&at, &tm)) strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
  fprintf(out, "# %s: %s, process %u on %s, %s UTC\n", path, h->program, h->pid, h->host, when);
  fprintf(out, "# plugin %s (%s), its v%u, called through v%u; %zu thread%s\n", h->plugin_name, h->plugin_path,
          h->plugin_version, h->caller_version, rail_trace_threads(trace), rail_trace_threads(trace) == 1 ? "" : "s");
  for (uint32_t i = 1; i <= rail_trace_threads(trace); i++)
    fprintf(out, "#   thread %u: %s, id %" PRIu64 "\n", i, rail_trace_thread(trace, i)->name,
            rail_trace_thread(trace, i)->tid);
  if (!end) fprintf(out, "# the file has no end: the process was killed, or still runs\n");
  else if (end->limited) fprintf(out, "# the file's limit was reached\n");
  if (end && end->dropped) fprintf(out, "# %" PRIu64 " calls were dropped\n", end->dropped);
}

static void print_calls(FILE *out, struct kit_trace_summary *s) {
  char t[4][24];
  fprintf(out, "\n%-14s %10s %8s %10s %10s %10s %10s\n", "call", "count", "errors", "p50", "p99", "max", "total");
  for (int k = 1; k < RAIL_TRACE_KINDS; k++) {
    struct kit_trace_list *l = &s->calls[k];
    uint64_t total = 0;
    if (!l->n) continue;
    for (size_t i = 0; i < l->n; i++) total += l->v[i];
    fprintf(out, "%-14s %10zu %8" PRIu64 " %10s %10s %10s %10s\n", rail_trace_kind_name((unsigned int)k), l->n,
            s->results[k], unit_time(t[0], kit_trace_list_at(l, 0.5)), unit_time(t[1], kit_trace_list_at(l, 0.99)),
            unit_time(t[2], kit_trace_list_at(l, 1)), unit_time(t[3], total));
  }
}

static void print_sizes(FILE *out, const struct kit_trace_comm *c) {
  char text[24];
  fprintf(out, "      sizes:");
  for (int i = 0; i < KIT_TRACE_SIZES; i++)
    if (c->sizes[i])
      fprintf(out, " %s: %" PRIu64 ";", unit_bytes(text, i ? (double)(1ull << (i - 1)) : 0), c->sizes[i]);
  fputc('\n', out);
}

static void print_comm(FILE *out, struct kit_trace_comm *c, uint64_t last_ns) {
  char b[24], r[24], t[4][24];
  double seconds = (double)((c->end_ns ? c->end_ns : last_ns) - c->begin_ns) / 1e9;
  if (c->made_by == RAIL_TRACE_LISTEN) return;
  fprintf(out, "%5" PRIu64 " %-5s %9" PRIu64 " %11s %9s/s %6u %9s %9s %9s %9s %5" PRIu64 "%s\n", c->id,
          c->made_by == RAIL_TRACE_CONNECT ? "send" : "recv", c->messages, unit_bytes(b, (double)c->bytes),
          unit_bytes(r, seconds > 0 ? (double)c->bytes / seconds : 0), c->max_depth,
          unit_time(t[0], kit_trace_list_at(&c->latency, 0.5)), unit_time(t[1], kit_trace_list_at(&c->latency, 0.99)),
          unit_time(t[2], kit_trace_list_at(&c->latency, 1)), unit_time(t[3], c->longest_gap_ns), c->gaps,
          c->end_ns ? "" : "  not closed");
  if (c->messages) print_sizes(out, c);
  if (c->unfinished) fprintf(out, "      %" PRIu64 " requests were never done\n", c->unfinished);
}

void kit_trace_print_summary(FILE *out, const struct rail_trace *trace, struct kit_trace_summary *s) {
  uint64_t found = 0;
  print_calls(out, s);
  fprintf(out, "\n%5s %-5s %9s %11s %11s %6s %9s %9s %9s %9s %5s\n", "comm", "kind", "messages", "bytes", "rate",
          "depth", "p50", "p99", "max", "pause", "gaps");
  for (size_t i = 0; i < s->ncomms; i++) print_comm(out, &s->comms[i], s->last_ns);
  fprintf(out, "\n");
  for (unsigned int i = 0; i < RAIL_TRACE_RULES; i++) {
    uint64_t n = kit_trace_findings(trace, s, i);
    const struct rail_trace_rule_row *rule = rail_trace_rule(i);
    found += n;
    if (n)
      fprintf(out, "%" PRIu64 " x the %s broke %s: %s\n", n, rule->plugin ? "plugin" : "caller", rule->name,
              rule->text);
  }
  if (!found) fprintf(out, "no findings\n");
  if (s->dropped) fprintf(out, "%" PRIu64 " calls are missing: sums are too small\n", s->dropped);
}
