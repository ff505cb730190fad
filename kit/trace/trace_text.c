/* SPDX-License-Identifier: Apache-2.0
 * Events as lines, summaries as tables. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "common/base/result.h"
#include "kit/kit_filter.h"
#include "kit/trace/kit_trace.h"
#include "plugin/railtrace/trace_rules.h"

bool kit_trace_takes(const struct kit_trace *how, const struct rail_trace_event *e) {
  double at = (double)e->ns / 1e9;
  bool made_here = e->kind == RAIL_TRACE_LISTEN || e->kind == RAIL_TRACE_CONNECT || e->kind == RAIL_TRACE_ACCEPT;
  if (how->calls && !kit_list_has(how->calls, rail_trace_kind_name(e->kind))) return false;
  if (how->comm && e->comm != how->comm && !(made_here && e->made == how->comm)) return false;
  if (how->thread && e->thread != (uint32_t)how->thread) return false;
  return at >= how->from && (how->until <= 0 || at <= how->until);
}

static void print_bufs(FILE *out, const struct rail_trace_event *e) {
  for (unsigned int i = 0; i < e->n; i++) {
    const struct rail_trace_buf *b = &e->bufs[i];
    fprintf(out, "%s%" PRIu64 " B", i ? ", " : " ", b->size);
    if (b->mr) fprintf(out, " at mr %" PRIu64 "+%" PRId64, b->mr, (int64_t)b->at);
    else fprintf(out, " at %#" PRIx64, b->at);
    if (e->kind != RAIL_TRACE_IFLUSH) fprintf(out, " tag %" PRId64, b->tag);
  }
}

static void print_tries(FILE *out, const struct rail_trace_event *e, const char *what) {
  if (e->tries) fprintf(out, ", after %" PRIu64 " %s in %.3f ms", e->tries, what, (double)e->waited / 1e6);
}

static void print_post(FILE *out, const struct rail_trace_event *e) {
  fprintf(out, " comm %" PRIu64, e->comm);
  if (e->made) fprintf(out, " request %" PRIu64, e->made);
  print_bufs(out, e);
  if (e->kind == RAIL_TRACE_IRECV && e->value) fprintf(out, ", completion optional");
  print_tries(out, e, "tries that had to wait");
}

static void print_test(FILE *out, const struct rail_trace_event *e) {
  fprintf(out, " comm %" PRIu64 " request %" PRIu64 "%s", e->comm, e->request, e->value ? " done" : " not done");
  for (unsigned int i = 0; i < e->n; i++) fprintf(out, "%s%" PRIu64 " B", i ? ", " : ": ", e->bufs[i].size);
  print_tries(out, e, "tests");
}

static void print_device(FILE *out, const struct rail_trace_event *e) {
  const struct rail_net_props_v12 *p = &e->props;
  if (e->kind == RAIL_TRACE_MAKE_VDEVICE) {
    fprintf(out, " of");
    for (unsigned int i = 0; i < e->n; i++) fprintf(out, " %" PRId64, e->bufs[i].tag);
    fprintf(out, ": device %" PRId64, e->dev);
    return;
  }
  fprintf(out, " device %" PRId64, e->dev);
  if (e->result == 0)
    fprintf(out, ": %s, %d Mb/s, port %d, guid %#" PRIx64 ", latency %g us, maxComms %d, maxRecvs %d, ptrSupport %d",
            p->name, p->speed, p->port, p->guid, (double)p->latency, p->max_comms, p->max_recvs, p->ptr_support);
}

static void print_finding(FILE *out, const struct rail_trace_event *e) {
  const struct rail_trace_rule_row *rule = rail_trace_rule((unsigned int)(e->value < RAIL_RULES ? e->value : 0));
  fprintf(out, " the %s broke %s: %s (%" PRIu64 ", %" PRIu64 ")", e->dev ? "plugin" : "caller", rule->name, rule->text,
          e->address, e->size);
  if (e->comm) fprintf(out, " comm %" PRIu64, e->comm);
  if (e->request) fprintf(out, " request %" PRIu64, e->request);
}

static void print_connection(FILE *out, const struct rail_trace_event *e) {
  if (e->kind == RAIL_TRACE_ACCEPT) fprintf(out, " comm %" PRIu64, e->comm);
  else fprintf(out, " ctx %" PRIu64 " device %" PRId64, e->ctx, e->dev);
  if (e->made) fprintf(out, ": comm %" PRIu64, e->made);
  if (e->kind != RAIL_TRACE_LISTEN) print_tries(out, e, "tries");
}

static void print_rest(FILE *out, const struct rail_trace_event *e) {
  switch (e->kind) {
    case RAIL_TRACE_INIT:
      fprintf(out, " through v%" PRId64 ", comm id %#" PRIx64 ", traffic class %" PRId64 ": ctx %" PRIu64, e->dev,
              e->value, e->tag, e->made);
      break;
    case RAIL_TRACE_FINALIZE: fprintf(out, " ctx %" PRIu64, e->ctx); break;
    case RAIL_TRACE_DEVICES: fprintf(out, ": %" PRIu64, e->value); break;
    case RAIL_TRACE_SET_ATTR:
      fprintf(out, " ctx %" PRIu64 " op %#x algo %#x proto %#x", e->ctx, e->attr.op, e->attr.algo, e->attr.proto);
      break;
    case RAIL_TRACE_REG_MR:
    case RAIL_TRACE_REG_DMABUF:
      fprintf(out, " comm %" PRIu64 " %" PRIu64 " B at %#" PRIx64 " type %" PRId64 ": mr %" PRIu64, e->comm, e->size,
              e->address, e->dev, e->made);
      break;
    case RAIL_TRACE_GET_DEVICE_MR:
    case RAIL_TRACE_DEREG_MR: fprintf(out, " comm %" PRIu64 " mr %" PRIu64, e->comm, e->mr); break;
    case RAIL_TRACE_CONSUMED: fprintf(out, " comm %" PRIu64 " request %" PRIu64, e->comm, e->request); break;
    case RAIL_TRACE_DROPPED: fprintf(out, " %" PRIu64 " calls are missing here", e->value); break;
    default: fprintf(out, " comm %" PRIu64, e->comm); break;
  }
}

void kit_trace_line(FILE *out, const struct rail_trace_event *e) {
  char name[48];
  snprintf(name, sizeof name, "%u.%" PRIu64, e->thread, e->number);
  fprintf(out, "%14.9f %-9s %-13s", (double)e->ns / 1e9, name, rail_trace_kind_name(e->kind));
  switch (e->kind) {
    case RAIL_TRACE_LISTEN:
    case RAIL_TRACE_CONNECT:
    case RAIL_TRACE_ACCEPT: print_connection(out, e); break;
    case RAIL_TRACE_ISEND:
    case RAIL_TRACE_IRECV:
    case RAIL_TRACE_IFLUSH: print_post(out, e); break;
    case RAIL_TRACE_TEST: print_test(out, e); break;
    case RAIL_TRACE_PROPERTIES:
    case RAIL_TRACE_MAKE_VDEVICE: print_device(out, e); break;
    case RAIL_TRACE_FINDING: print_finding(out, e); break;
    default: print_rest(out, e); break;
  }
  if (e->result) fprintf(out, " -> %s (%d)", rail_result_name(e->result), e->result);
  if (e->kind != RAIL_TRACE_FINDING && e->kind != RAIL_TRACE_DROPPED)
    fprintf(out, "  [%.3f us]", (double)e->duration / 1e3);
  fputc('\n', out);
}

/* ---- The summary as tables ---- */

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
