/* SPDX-License-Identifier: Apache-2.0
 * One pass over a file: what each connection did and how long calls took. */
#include <stdlib.h>
#include <string.h>

#include "common/base/compiler.h"
#include "kit/trace/kit_trace.h"

#define MAX_OPEN 65536 /* requests of a comm; more are counted as unfinished at once */

struct kit_trace_open {
  uint64_t request, ns, bytes;
  enum rail_trace_kind kind;
};

static struct kit_trace_comm *comm_of(struct kit_trace_summary *s, uint64_t id) {
  int64_t at = kit_trace_map_get(&s->by_id, id);
  return at < 0 ? NULL : &s->comms[at];
}

static bool add_comm(struct kit_trace_summary *s, const struct rail_trace_event *e) {
  /* The second of one id is ignored: a file is not trusted. */
  if (!e->made || kit_trace_map_get(&s->by_id, e->made) >= 0) return true;
  if (s->ncomms == s->cap) {
    size_t cap = s->cap ? 2 * s->cap : 32;
    struct kit_trace_comm *grown = realloc(s->comms, cap * sizeof *grown);
    if (!grown) return false;
    s->comms = grown;
    s->cap = cap;
  }
  if (!kit_trace_map_put(&s->by_id, e->made, (uint32_t)s->ncomms)) return false;
  s->comms[s->ncomms++] = (struct kit_trace_comm){.id = e->made, .made_by = e->kind, .begin_ns = e->ns};
  return true;
}

static unsigned int size_class(uint64_t size) {
  unsigned int c = 0;
  while (size && c < KIT_TRACE_SIZES - 1) {
    size >>= 1;
    c++;
  }
  return c;
}

static size_t bin_of(const struct kit_trace_summary *s, uint64_t ns) {
  return RAIL_MIN((size_t)((ns - RAIL_MIN(ns, s->first_ns)) / s->bin_ns), (size_t)KIT_TRACE_BINS - 1);
}

/* A gap is time in which a connection had work and finished or began nothing. */
static void moved(struct kit_trace_comm *c, const struct kit_trace *how, uint64_t ns, bool had_work) {
  uint64_t gap = had_work && ns > c->last_move_ns ? ns - c->last_move_ns : 0;
  c->longest_gap_ns = RAIL_MAX(c->longest_gap_ns, gap);
  if (how->gap_ms > 0 && (double)gap > how->gap_ms * 1e6) c->gaps++;
  c->last_move_ns = ns;
}

static bool post(struct kit_trace_summary *s, const struct kit_trace *how, const struct rail_trace_event *e) {
  struct kit_trace_comm *c = comm_of(s, e->comm);
  if (!c || !e->made) return true;
  if (c->nopen == c->cap) {
    size_t cap = c->cap ? 2 * c->cap : 16;
    struct kit_trace_open *grown = cap <= MAX_OPEN ? realloc(c->open, cap * sizeof *grown) : NULL;
    if (!grown) {
      c->unfinished++;
      return cap > MAX_OPEN;
    }
    c->open = grown;
    c->cap = cap;
  }
  uint64_t bytes = 0;
  for (unsigned int i = 0; i < e->n; i++) bytes += e->bufs[i].size;
  moved(c, how, e->ns, c->nopen > 0);
  c->open[c->nopen++] = (struct kit_trace_open){e->made, e->ns, bytes, e->kind};
  c->max_depth = RAIL_MAX(c->max_depth, (unsigned int)c->nopen);
  s->total_depth++;
  if (s->bin_depth) {
    double *d = &s->bin_depth[bin_of(s, e->ns)];
    *d = RAIL_MAX(*d, (double)s->total_depth);
  }
  return true;
}

/* Receives report how much came; of sends what was posted counts. */
static void count_done(struct kit_trace_comm *c, const struct kit_trace_open *o, const struct rail_trace_event *e,
                       uint64_t *bytes) {
  *bytes = 0;
  if (o->kind == RAIL_TRACE_IFLUSH) return;
  if (o->kind == RAIL_TRACE_ISEND) {
    *bytes = o->bytes;
    c->messages++;
    c->sizes[size_class(o->bytes)]++;
  } else {
    for (unsigned int i = 0; i < e->n; i++) {
      *bytes += e->bufs[i].size;
      c->sizes[size_class(e->bufs[i].size)]++;
    }
    c->messages += e->n;
  }
  c->bytes += *bytes;
}

static bool test(struct kit_trace_summary *s, const struct kit_trace *how, const struct rail_trace_event *e) {
  struct kit_trace_comm *c = comm_of(s, e->comm);
  uint64_t bytes;
  if (!c || !e->value) return true;
  for (size_t i = 0; i < c->nopen; i++) {
    struct kit_trace_open o = c->open[i];
    if (o.request != e->request) continue;
    c->open[i] = c->open[--c->nopen];
    s->total_depth--;
    moved(c, how, e->ns, true);
    count_done(c, &o, e, &bytes);
    if (s->bin_bytes) s->bin_bytes[bin_of(s, e->ns)] += (double)bytes;
    return kit_trace_list_add(&c->latency, e->ns + e->duration - RAIL_MIN(o.ns, e->ns));
  }
  return true;
}

static bool look_at(struct kit_trace_summary *s, const struct kit_trace *how, const struct rail_trace_event *e) {
  struct kit_trace_comm *c;
  switch (e->kind) {
    case RAIL_TRACE_LISTEN:
    case RAIL_TRACE_CONNECT:
    case RAIL_TRACE_ACCEPT: return add_comm(s, e);
    case RAIL_TRACE_ISEND:
    case RAIL_TRACE_IRECV:
    case RAIL_TRACE_IFLUSH: return post(s, how, e);
    case RAIL_TRACE_TEST: return test(s, how, e);
    case RAIL_TRACE_CLOSE_SEND:
    case RAIL_TRACE_CLOSE_RECV:
    case RAIL_TRACE_CLOSE_LISTEN:
      if ((c = comm_of(s, e->comm)) != NULL) {
        c->end_ns = e->ns;
        s->total_depth -= (unsigned int)c->nopen;
        c->unfinished += c->nopen;
        c->nopen = 0;
      }
      return true;
    case RAIL_TRACE_FINDING:
      if (e->value < RAIL_TRACE_RULES) s->findings[e->value]++;
      return true;
    case RAIL_TRACE_DROPPED: s->dropped += e->value; return true;
    default: return true;
  }
}

bool kit_trace_sum(struct rail_trace *trace, const struct kit_trace *how, struct kit_trace_summary *s, char *why,
                   size_t why_size) {
  struct rail_trace_event e;
  int r;
  bool enough = true;
  while (enough && (r = rail_trace_next(trace, &e, why, why_size)) == 1) {
    /* The end of what is outside of the time asked for does not matter, its objects do. */
    bool wanted = (double)e.ns / 1e9 >= how->from && (how->until <= 0 || (double)e.ns / 1e9 <= how->until);
    if (!s->events++) s->first_ns = e.ns;
    s->last_ns = RAIL_MAX(s->last_ns, e.ns + e.duration);
    enough = look_at(s, how, &e);
    if (!enough || !wanted || e.kind == RAIL_TRACE_FINDING || e.kind == RAIL_TRACE_DROPPED) continue;
    enough = kit_trace_list_add(&s->calls[e.kind], e.duration);
    if (e.result) s->results[e.kind]++;
  }
  for (size_t i = 0; i < s->ncomms; i++) s->comms[i].unfinished += s->comms[i].nopen;
  if (enough) return r == 0;
  snprintf(why, why_size, "out of memory");
  return false;
}

void kit_trace_summary_free(struct kit_trace_summary *s) {
  for (size_t i = 0; i < s->ncomms; i++) {
    free(s->comms[i].latency.v);
    free(s->comms[i].open);
  }
  for (int k = 0; k < RAIL_TRACE_KINDS; k++) free(s->calls[k].v);
  free(s->comms);
  kit_trace_map_free(&s->by_id);
  free(s->bin_bytes);
  free(s->bin_depth);
}

/* The file's last chunk has counted those, too, that found no room. */
uint64_t kit_trace_findings(const struct rail_trace *trace, const struct kit_trace_summary *s, unsigned int rule) {
  const struct rail_trace_end *end = rail_trace_end(trace);
  return end ? RAIL_MAX(end->findings[rule], s->findings[rule]) : s->findings[rule];
}

/* ---- numbers that are looked up, numbers of which quantiles are asked ---- */

static size_t place(const struct kit_trace_map *map, uint64_t key) {
  size_t at = (size_t)((key * 0x9e3779b97f4a7c15ull) >> 20) & (map->cap - 1);
  while (map->slots[at].key && map->slots[at].key != key) at = (at + 1) & (map->cap - 1);
  return at;
}

int64_t kit_trace_map_get(const struct kit_trace_map *map, uint64_t key) {
  if (!map->cap || !key) return -1;
  size_t at = place(map, key);
  return map->slots[at].key ? (int64_t)map->slots[at].value : -1;
}

static bool grow(struct kit_trace_map *map) {
  struct kit_trace_map bigger = {.cap = map->cap ? 2 * map->cap : 64};
  bigger.slots = calloc(bigger.cap, sizeof *bigger.slots);
  if (!bigger.slots) return false;
  for (size_t i = 0; i < map->cap; i++) {
    if (!map->slots[i].key) continue;
    bigger.slots[place(&bigger, map->slots[i].key)] = map->slots[i];
    bigger.used++;
  }
  free(map->slots);
  *map = bigger;
  return true;
}

bool kit_trace_map_put(struct kit_trace_map *map, uint64_t key, uint32_t value) {
  if (!key) return true;
  if (2 * (map->used + 1) > map->cap && !grow(map)) return false;
  size_t at = place(map, key);
  if (!map->slots[at].key) map->used++;
  map->slots[at].key = key;
  map->slots[at].value = value;
  return true;
}

void kit_trace_map_free(struct kit_trace_map *map) {
  free(map->slots);
  *map = (struct kit_trace_map){0};
}

bool kit_trace_list_add(struct kit_trace_list *list, uint64_t v) {
  if (list->n == list->cap) {
    size_t cap = list->cap ? 2 * list->cap : 64;
    uint64_t *grown = realloc(list->v, cap * sizeof *grown);
    if (!grown) return false;
    list->v = grown;
    list->cap = cap;
  }
  list->v[list->n++] = v;
  list->sorted = false;
  return true;
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

uint64_t kit_trace_list_at(struct kit_trace_list *list, double quantile) {
  if (!list->n) return 0;
  if (!list->sorted) qsort(list->v, list->n, sizeof *list->v, by_value);
  list->sorted = true;
  return list->v[(size_t)((double)(list->n - 1) * quantile + 0.5)];
}
