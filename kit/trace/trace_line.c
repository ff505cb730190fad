/* SPDX-License-Identifier: Apache-2.0
 * One event as a line. */
#include <inttypes.h>
#include <string.h>

#include "common/base/result.h"
#include "plugin/railtrace/trace_rules.h"
#include "kit/trace/kit_trace.h"

static bool in_list(const char *list, const char *word) {
  size_t len = strlen(word);
  for (const char *p = list; *p; p += strcspn(p, ",")) {
    p += strspn(p, ",");
    if (strncmp(p, word, len) == 0 && (p[len] == 0 || p[len] == ',')) return true;
  }
  return false;
}

bool kit_trace_takes(const struct kit_trace *how, const struct rail_trace_event *e) {
  double at = (double)e->ns / 1e9;
  bool made_here = e->kind == RAIL_TRACE_LISTEN || e->kind == RAIL_TRACE_CONNECT || e->kind == RAIL_TRACE_ACCEPT;
  if (how->calls && !in_list(how->calls, rail_trace_kind_name(e->kind))) return false;
  if (how->comm && e->comm != how->comm && !(made_here && e->made == how->comm)) return false;
  if (how->thread && e->thread != (uint32_t)how->thread) return false;
  return at >= how->from && (how->until <= 0 || at <= how->until);
}

static void say_bufs(FILE *out, const struct rail_trace_event *e) {
  for (unsigned int i = 0; i < e->n; i++) {
    const struct rail_trace_buf *b = &e->bufs[i];
    fprintf(out, "%s%" PRIu64 " B", i ? ", " : " ", b->size);
    if (b->mr) fprintf(out, " at mr %" PRIu64 "+%" PRId64, b->mr, (int64_t)b->at);
    else fprintf(out, " at %#" PRIx64, b->at);
    if (e->kind != RAIL_TRACE_IFLUSH) fprintf(out, " tag %" PRId64, b->tag);
  }
}

static void say_tries(FILE *out, const struct rail_trace_event *e, const char *what) {
  if (e->tries) fprintf(out, ", after %" PRIu64 " %s in %.3f ms", e->tries, what, (double)e->waited / 1e6);
}

static void say_post(FILE *out, const struct rail_trace_event *e) {
  fprintf(out, " comm %" PRIu64, e->comm);
  if (e->made) fprintf(out, " request %" PRIu64, e->made);
  say_bufs(out, e);
  if (e->kind == RAIL_TRACE_IRECV && e->value) fprintf(out, ", completion optional");
  say_tries(out, e, "tries that had to wait");
}

static void say_test(FILE *out, const struct rail_trace_event *e) {
  fprintf(out, " comm %" PRIu64 " request %" PRIu64 "%s", e->comm, e->request, e->value ? " done" : " not done");
  for (unsigned int i = 0; i < e->n; i++) fprintf(out, "%s%" PRIu64 " B", i ? ", " : ": ", e->bufs[i].size);
  say_tries(out, e, "tests");
}

static void say_device(FILE *out, const struct rail_trace_event *e) {
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

static void say_finding(FILE *out, const struct rail_trace_event *e) {
  const struct rail_trace_rule_row *rule = rail_trace_rule((unsigned int)(e->value < RAIL_RULES ? e->value : 0));
  fprintf(out, " the %s broke %s: %s (%" PRIu64 ", %" PRIu64 ")", e->dev ? "plugin" : "caller", rule->name, rule->text,
          e->address, e->size);
  if (e->comm) fprintf(out, " comm %" PRIu64, e->comm);
  if (e->request) fprintf(out, " request %" PRIu64, e->request);
}

static void say_connection(FILE *out, const struct rail_trace_event *e) {
  if (e->kind == RAIL_TRACE_ACCEPT) fprintf(out, " comm %" PRIu64, e->comm);
  else fprintf(out, " ctx %" PRIu64 " device %" PRId64, e->ctx, e->dev);
  if (e->made) fprintf(out, ": comm %" PRIu64, e->made);
  if (e->kind != RAIL_TRACE_LISTEN) say_tries(out, e, "tries");
}

static void say_rest(FILE *out, const struct rail_trace_event *e) {
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
    case RAIL_TRACE_ACCEPT: say_connection(out, e); break;
    case RAIL_TRACE_ISEND:
    case RAIL_TRACE_IRECV:
    case RAIL_TRACE_IFLUSH: say_post(out, e); break;
    case RAIL_TRACE_TEST: say_test(out, e); break;
    case RAIL_TRACE_PROPERTIES:
    case RAIL_TRACE_MAKE_VDEVICE: say_device(out, e); break;
    case RAIL_TRACE_FINDING: say_finding(out, e); break;
    default: say_rest(out, e); break;
  }
  if (e->result) fprintf(out, " -> %s (%d)", rail_result_name(e->result), e->result);
  if (e->kind != RAIL_TRACE_FINDING && e->kind != RAIL_TRACE_DROPPED)
    fprintf(out, "  [%.3f us]", (double)e->duration / 1e3);
  fputc('\n', out);
}
