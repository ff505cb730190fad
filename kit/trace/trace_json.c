/* SPDX-License-Identifier: Apache-2.0
 * Events and summaries as JSON. */
#include <inttypes.h>

#include "kit/kit_json.h"
#include "kit/trace/kit_trace.h"
#include "plugin/railtrace/trace_rules.h"

#define INT(key, value) kit_json_int(j, key, (int64_t)(value))

void kit_trace_json_header(struct kit_json *j, const struct rail_trace *trace, const char *path) {
  const struct rail_trace_header *h = rail_trace_header(trace);
  const struct rail_trace_end *end = rail_trace_end(trace);
  kit_json_text(j, "file", path);
  kit_json_text(j, "host", h->host);
  kit_json_text(j, "program", h->program);
  INT("pid", h->pid);
  INT("realtime_ns", h->realtime_ns);
  INT("clock_ns", h->clock_ns);
  kit_json_text(j, "plugin", h->plugin_name);
  kit_json_text(j, "plugin_path", h->plugin_path);
  INT("plugin_version", h->plugin_version);
  INT("caller_version", h->caller_version);
  kit_json_array(j, "threads");
  for (uint32_t i = 1; i <= rail_trace_threads(trace); i++) {
    kit_json_object(j, NULL);
    INT("id", rail_trace_thread(trace, i)->tid);
    kit_json_text(j, "name", rail_trace_thread(trace, i)->name);
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
  kit_json_bool(j, "ended", end != NULL);
  kit_json_bool(j, "limited", end && end->limited);
  INT("dropped", end ? end->dropped : 0);
}

static void json_bufs(struct kit_json *j, const struct rail_trace_event *e) {
  kit_json_array(j, "buffers");
  for (unsigned int i = 0; i < e->n; i++) {
    kit_json_object(j, NULL);
    if (e->kind != RAIL_TRACE_TEST) {
      INT("mr", e->bufs[i].mr);
      INT("at", e->bufs[i].at);
      INT("tag", e->bufs[i].tag);
    }
    INT("size", e->bufs[i].size);
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
}

static void json_handle(struct kit_json *j, const uint8_t *handle) {
  char text[2 * RAIL_NET_HANDLE_SIZE + 1];
  for (int i = 0; i < RAIL_NET_HANDLE_SIZE; i++) snprintf(text + 2 * i, 3, "%02x", handle[i]);
  kit_json_text(j, "handle", text);
}

static void json_props(struct kit_json *j, const struct rail_net_props_v12 *p) {
  kit_json_text(j, "name", p->name);
  kit_json_text(j, "pci_path", p->pci_path);
  INT("guid", p->guid);
  INT("ptr_support", p->ptr_support);
  INT("speed", p->speed);
  INT("port", p->port);
  kit_json_number(j, "latency", (double)p->latency);
  INT("max_comms", p->max_comms);
  INT("max_recvs", p->max_recvs);
  INT("max_p2p_bytes", p->max_p2p_bytes);
  INT("max_coll_bytes", p->max_coll_bytes);
  INT("rail_id", p->rail_id);
  INT("plane_id", p->plane_id);
}

static void json_comm_attr(struct kit_json *j, const char *key, const struct rail_net_comm_attr *a) {
  kit_json_object(j, key);
  INT("max_concurrent_peers", a->max_concurrent_peers);
  INT("min_concurrent_peers", a->min_concurrent_peers);
  INT("max_flows_per_peer", a->max_flows_per_peer);
  INT("min_flows_per_peer", a->min_flows_per_peer);
  kit_json_end(j, '}');
}

static void json_attr(struct kit_json *j, const struct rail_net_attr *a) {
  json_comm_attr(j, "send", &a->send);
  json_comm_attr(j, "recv", &a->recv);
  INT("op", a->op);
  INT("algo", a->algo);
  INT("proto", a->proto);
}

static void json_fused(struct kit_json *j, const struct rail_trace_event *e) {
  kit_json_array(j, "devices");
  for (unsigned int i = 0; i < e->n; i++) INT(NULL, e->bufs[i].tag);
  kit_json_end(j, ']');
}

static void json_finding(struct kit_json *j, const struct rail_trace_event *e) {
  kit_json_text(j, "rule", rail_trace_rule((unsigned int)(e->value < RAIL_RULES ? e->value : 0))->name);
  kit_json_text(j, "who", e->dev ? "plugin" : "caller");
  kit_json_array(j, "numbers"); /* what the rule's text says of them */
  INT(NULL, e->address);
  INT(NULL, e->size);
  kit_json_end(j, ']');
}

void kit_trace_json_event(struct kit_json *j, const struct rail_trace_event *e) {
  INT("ns", e->ns);
  kit_json_format(j, "id", "%u.%" PRIu64, e->thread, e->number);
  kit_json_text(j, "call", rail_trace_kind_name(e->kind));
  INT("duration_ns", e->duration);
  INT("result", e->result);
  if (e->ctx) INT("ctx", e->ctx);
  if (e->comm) INT("comm", e->comm);
  if (e->made) INT("made", e->made);
  if (e->mr) INT("mr", e->mr);
  if (e->request) INT("request", e->request);
  if (e->tries) INT("tries", e->tries);
  if (e->waited) INT("waited_ns", e->waited);
  switch (e->kind) {
    case RAIL_TRACE_INIT:
      INT("version", e->dev);
      kit_json_format(j, "comm_id", "%#" PRIx64, e->value);
      INT("traffic_class", e->tag);
      break;
    case RAIL_TRACE_PROPERTIES: INT("device", e->dev); json_props(j, &e->props); break;
    case RAIL_TRACE_MAKE_VDEVICE: INT("device", e->dev); json_fused(j, e); break;
    case RAIL_TRACE_SET_ATTR: json_attr(j, &e->attr); break;
    case RAIL_TRACE_CONNECT: INT("traffic_class", e->tag); INT("device", e->dev); json_handle(j, e->handle); break;
    case RAIL_TRACE_LISTEN: INT("device", e->dev); json_handle(j, e->handle); break;
    case RAIL_TRACE_REG_MR: INT("type", e->dev); INT("size", e->size); break;
    case RAIL_TRACE_REG_DMABUF: INT("type", e->dev); INT("size", e->size); INT("offset", e->value); break;
    case RAIL_TRACE_IRECV: kit_json_bool(j, "completion_optional", e->value != 0); json_bufs(j, e); break;
    case RAIL_TRACE_ISEND:
    case RAIL_TRACE_IFLUSH: json_bufs(j, e); break;
    case RAIL_TRACE_TEST: kit_json_bool(j, "done", e->value != 0); json_bufs(j, e); break;
    case RAIL_TRACE_FINDING: json_finding(j, e); break;
    case RAIL_TRACE_CONSUMED:
    case RAIL_TRACE_DEVICES:
    case RAIL_TRACE_DROPPED: INT("count", e->value); break;
    default: break;
  }
}

static void json_quantiles(struct kit_json *j, struct kit_trace_list *l) {
  INT("p50_ns", kit_trace_list_at(l, 0.5));
  INT("p99_ns", kit_trace_list_at(l, 0.99));
  INT("max_ns", kit_trace_list_at(l, 1));
}

static void json_comm(struct kit_json *j, struct kit_trace_comm *c) {
  kit_json_object(j, NULL);
  INT("comm", c->id);
  kit_json_text(j, "made_by", rail_trace_kind_name(c->made_by));
  INT("begin_ns", c->begin_ns);
  INT("end_ns", c->end_ns);
  INT("messages", c->messages);
  INT("bytes", c->bytes);
  INT("unfinished", c->unfinished);
  INT("max_depth", c->max_depth);
  INT("gaps", c->gaps);
  INT("longest_gap_ns", c->longest_gap_ns);
  json_quantiles(j, &c->latency);
  kit_json_array(j, "sizes");
  for (int i = 0; i < KIT_TRACE_SIZES; i++) {
    if (!c->sizes[i]) continue;
    kit_json_object(j, NULL);
    INT("from", i ? 1ull << (i - 1) : 0);
    INT("count", c->sizes[i]);
    kit_json_end(j, '}');
  }
  kit_json_end(j, ']');
  kit_json_end(j, '}');
}

void kit_trace_json_summary(struct kit_json *j, const struct rail_trace *trace, struct kit_trace_summary *s) {
  kit_json_object(j, "calls");
  for (int k = 1; k < RAIL_TRACE_KINDS; k++) {
    if (!s->calls[k].n) continue;
    kit_json_object(j, rail_trace_kind_name((unsigned int)k));
    INT("count", s->calls[k].n);
    INT("errors", s->results[k]);
    json_quantiles(j, &s->calls[k]);
    kit_json_end(j, '}');
  }
  kit_json_end(j, '}');
  kit_json_array(j, "comms");
  for (size_t i = 0; i < s->ncomms; i++) json_comm(j, &s->comms[i]);
  kit_json_end(j, ']');
  kit_json_object(j, "findings");
  for (unsigned int i = 0; i < RAIL_TRACE_RULES; i++)
    if (kit_trace_findings(trace, s, i)) INT(rail_trace_rule(i)->name, kit_trace_findings(trace, s, i));
  kit_json_end(j, '}');
}
