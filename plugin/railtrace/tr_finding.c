/* SPDX-License-Identifier: Apache-2.0
 * Broken rules: counted, recorded and logged. */
#include "plugin/railtrace/tr_finding.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/railtrace/tr_call.h"
#include "plugin/railtrace/tr_record.h"

#define MAX_LOGGED 20

static _Atomic uint64_t counts[RAIL_TRACE_RULES];

static void record(enum rail_trace_rule rule, const struct tr_comm *comm, uint64_t request, uint64_t a, uint64_t b) {
  struct rail_trace_event e;
  e.kind = RAIL_TRACE_FINDING;
  e.result = 0;
  e.ns = rail_now_ns();
  e.duration = 0;
  e.comm = comm ? comm->id : 0;
  e.dev = rail_trace_rule(rule)->plugin;
  e.request = request;
  e.value = rule;
  e.address = a;
  e.size = b;
  tr_record(&e);
}

bool tr_broken(enum rail_trace_rule rule, const struct tr_comm *comm, uint64_t request, uint64_t a, uint64_t b,
               const char *fmt, ...) {
  const struct rail_trace_rule_row *row = rail_trace_rule(rule);
  char text[400], where[100] = "";
  if (!tr_checking()) return false;
  uint64_t before = atomic_fetch_add_explicit(&counts[rule], 1, memory_order_relaxed);
  struct tr_call_name call = tr_call_name();
  record(rule, comm, request, a, b);
  if (before < MAX_LOGGED) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (comm) snprintf(where, sizeof where, ", comm %" PRIu64, comm->id);
    RAIL_WARN("%s broke %s: %s (%s; call %u.%" PRIu64 "%s)%s", row->plugin ? "the plugin" : "the caller", row->name,
              text, row->text, call.thread, call.number, where,
              before + 1 == MAX_LOGGED ? "; more of these are only counted" : "");
  }
  return tr_params.check == TR_CHECK_ERROR && rule != RAIL_RULE_SLOW_CALL;
}

void tr_findings_count(uint64_t out[RAIL_TRACE_RULES]) {
  for (int i = 0; i < RAIL_TRACE_RULES; i++) out[i] = atomic_load_explicit(&counts[i], memory_order_relaxed);
}

void tr_summary(void) {
  uint64_t all[RAIL_TRACE_RULES], findings = 0, dropped = tr_dropped();
  char list[1024] = "";
  size_t used = 0;
  tr_findings_count(all);
  for (int i = 0; i < RAIL_RULES; i++) {
    findings += all[i];
    if (!all[i] || used >= sizeof list) continue;
    int n = snprintf(list + used, sizeof list - used, "%s%s %" PRIu64, used ? ", " : ": ",
                     rail_trace_rule((unsigned int)i)->name, all[i]);
    if (n > 0) used += (size_t)n;
  }
  const char *path = tr_record_path();
  char text[1500];
  snprintf(text, sizeof text, "%" PRIu64 " calls, %" PRIu64 " of them dropped, %" PRIu64 " findings%s", tr_recorded(),
           dropped, findings, list);
  if (findings || dropped) RAIL_WARN("%s%s%s", text, path[0] ? "; recorded in " : "", path);
  else RAIL_INFO(RAIL_SUB_NET, "%s%s%s", text, path[0] ? "; recorded in " : "", path);
}

/* ---- findings that every call shares ---- */

static const char *kind_name(unsigned int kind) {
  return kind == TR_LISTEN ? "listening comm" : kind == TR_SEND ? "send comm" : "receive comm";
}

struct tr_comm *tr_comm_report(void *handle, unsigned int kinds, const char *call) {
  struct tr_comm *c;
  enum tr_found found = tr_comm_find(handle, &c);
  if (found == TR_UNKNOWN)
    (void)tr_broken(RAIL_RULE_COMM_UNKNOWN, NULL, 0, (uintptr_t)handle, 0, "%s on %p", call, handle);
  else if (found == TR_STALE)
    (void)tr_broken(RAIL_RULE_COMM_CLOSED, NULL, 0, (uintptr_t)handle, 0, "%s on %p", call, handle);
  else
    (void)tr_broken(RAIL_RULE_COMM_KIND, c, 0, atomic_load(&c->kind), kinds, "%s on a %s", call,
                    kind_name(atomic_load(&c->kind)));
  return NULL;
}

rail_result_t tr_bad_result(int result, const struct tr_comm *comm, const char *call) {
  (void)tr_broken(RAIL_RULE_RESULT, comm, 0, (uint64_t)(int64_t)result, 0, "%s returned %d", call, result);
  return RAIL_INTERNAL_ERROR;
}
