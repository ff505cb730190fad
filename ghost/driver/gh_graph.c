/* SPDX-License-Identifier: Apache-2.0
 * The emulated driver's graphs: what a capture noted down, in the order in which it was asked for. */
#include <stdlib.h>
#include <string.h>

#include "ghost/driver/gh_queue.h"

#define ALIVE_GRAPH 0x6772617068ull
#define ALIVE_EXEC 0x65786563ull

struct graph {
  uint64_t alive;
  struct objects objects;
  struct item *first;
};

/* A run begins when the last one is over, whatever the streams. */
struct exec {
  uint64_t alive;
  struct item *first;
  struct mark *last;
  struct objects objects;
};

static uint64_t captures;

GH_API int cuStreamBeginCapture_v2(void *stream, int mode) {
  struct stream *s;
  int r = gh_queue_enter("cuStreamBeginCapture_v2", stream, &s);
  if (r) return r;
  if (!stream || s->capture) return gh_queue_leave(CAPTURE_UNSUPPORTED);
  struct capture *c = gh_need(sizeof *c);
  *c = (struct capture){.id = ++captures, .mode = mode};
  c->end = &c->first;
  gh_queue_join(s, c);
  return gh_queue_leave(OK);
}

/* ---- nodes, of a graph that is being captured: its capture is the graph ---- */

static struct capture *capture_of(const void *graph) {
  for (const struct stream *s = gh_queue_all(); s; s = s->next)
    if (s->capture && s->capture == graph) return s->capture;
  return NULL;
}

static struct node *find_node(const struct capture *c, const void *node) {
  struct node *n = c->nodes;
  while (n && n != node) n = n->next;
  return n;
}

static struct node *add_node(struct capture *c, const struct before *before) {
  struct node *n = calloc(1, sizeof *n);
  if (!n) return NULL;
  *n = (struct node){.next = c->nodes, .before = *before};
  return c->nodes = n;
}

static void add_before(struct before *to, const struct before *from) {
  for (int i = 0; i < MAX_CAPTURED; i++)
    if (to->nodes[i] < from->nodes[i]) to->nodes[i] = from->nodes[i];
}

static void free_capture(struct capture *c) {
  while (c->nodes) {
    struct node *next = c->nodes->next;
    free(c->nodes);
    c->nodes = next;
  }
  free(c);
}

/* flags: 1 replaces what comes before the stream's next item, 0 adds to that. */
GH_API int cuStreamUpdateCaptureDependencies(void *stream, void **nodes, size_t n, unsigned flags) {
  struct stream *s;
  struct before before = {{0}};
  int r = gh_queue_enter("cuStreamUpdateCaptureDependencies", stream, &s);
  if (r) return r;
  if (!s->capture || flags > 1) return gh_queue_leave(INVALID_VALUE);
  for (size_t i = 0; i < n; i++) {
    const struct node *node = find_node(s->capture, nodes[i]);
    if (!node) return gh_queue_leave(INVALID_VALUE);
    add_before(&before, &node->before);
  }
  if (flags == 0) add_before(&before, &s->before);
  s->before = before;
  return gh_queue_leave(OK);
}

/* The node's dependencies, and those that cuGraphAddDependencies adds later, must have been captured before it: items
 * of a launch run in the order of the capture. */
static int add_item(const char *call, void **node, const void *graph, void *const *after, size_t n,
                    const struct item *item) {
  struct before before = {{0}};
  int r = gh_enter_context(call);
  if (r) return r;
  pthread_mutex_lock(&gh_queue_lock);
  struct capture *c = capture_of(graph);
  for (size_t i = 0; c && i < n; i++) {
    const struct node *of = find_node(c, after[i]);
    if (!of) c = NULL;
    else add_before(&before, &of->before);
  }
  if (!c) return gh_queue_leave(INVALID_VALUE);
  if (!(*node = add_node(c, &before))) return gh_queue_leave(OUT_OF_MEMORY);
  gh_items_add(&c->end, item);
  return gh_queue_leave(OK);
}

/* A launch of the graph records the event, or waits for it, when it comes here. */
GH_API int cuGraphAddEventRecordNode(void **node, void *graph, void *const *after, size_t n, void *event) {
  return add_item("cuGraphAddEventRecordNode", node, graph, after, n, &(struct item){.kind = RECORD, .event = event});
}

GH_API int cuGraphAddEventWaitNode(void **node, void *graph, void *const *after, size_t n, void *event) {
  return add_item("cuGraphAddEventWaitNode", node, graph, after, n, &(struct item){.kind = WAIT, .event = event});
}

GH_API int cuGraphAddHostNode(void **node, void *graph, void *const *after, size_t n,
                              const struct gh_host_node *host) {
  return add_item("cuGraphAddHostNode", node, graph, after, n,
                  &(struct item){.kind = HOST, .call = host->call, .argument = host->argument});
}

GH_API int cuGraphAddDependencies(void *graph, void *const *from, void *const *to, size_t n) {
  int r = gh_enter_context("cuGraphAddDependencies");
  if (r) return r;
  pthread_mutex_lock(&gh_queue_lock);
  struct capture *c = capture_of(graph);
  for (size_t i = 0; c && i < n; i++) {
    const struct node *a = find_node(c, from[i]);
    struct node *b = find_node(c, to[i]);
    if (!a || !b) return gh_queue_leave(INVALID_VALUE);
    add_before(&b->before, &a->before);
  }
  return gh_queue_leave(c ? OK : INVALID_VALUE);
}

/* ---- captures ---- */

/* Takes all streams out of the capture. False if the first has not waited for all that another did. */
static bool end_for_all_streams(struct capture *c, const struct stream *first) {
  bool joined = true;
  for (struct stream *s = gh_queue_all(); s; s = s->next) {
    if (s->capture != c) continue;
    joined &= s->before.nodes[s->index] <= first->before.nodes[s->index];
    s->capture = NULL;
  }
  return joined;
}

/* Without the lock: it calls back. */
static void release(struct object *o) {
  pthread_mutex_lock(&gh_queue_lock);
  bool last = --o->refs == 0;
  pthread_mutex_unlock(&gh_queue_lock);
  if (!last) return;
  gh_enter_callback();
  o->destroy(o->arg);
  gh_leave_callback();
  free(o);
  gh_count_live("objects", -1);
}

static void release_all(struct objects *list) {
  while (list->n > 0) release(list->of[--list->n]);
}

GH_API int cuUserObjectCreate(void **object, void *arg, void (*destroy)(void *), unsigned count, unsigned flags) {
  int r = gh_enter("cuUserObjectCreate");
  if (r == OK && (!destroy || !count || flags != 1)) r = INVALID_VALUE;
  if (r) return r;
  struct object *o = *object = gh_need(sizeof *o);
  *o = (struct object){.refs = (int)count, .destroy = destroy, .arg = arg};
  gh_count_live("objects", 1);
  return OK;
}

GH_API int cuUserObjectRelease(void *object, unsigned count) {
  int r = gh_enter_ending("cuUserObjectRelease");
  if (r || count != 1) return r ? r : INVALID_VALUE;
  release(object);
  return OK;
}

/* A graph that is being captured is known by its capture. */
GH_API int cuGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags) {
  int r = gh_enter_context("cuGraphRetainUserObject");
  struct capture *c = graph;
  struct object *o = object;
  if (r || count != 1 || flags != 1) return r ? r : INVALID_VALUE; /* one reference, moved */
  pthread_mutex_lock(&gh_queue_lock);
  bool found = false;
  for (const struct stream *s = gh_queue_all(); s; s = s->next) found |= s->capture && s->capture == c;
  if (!found || c->objects.n == MAX_OBJECTS) return gh_queue_leave(INVALID_VALUE);
  c->objects.of[c->objects.n++] = o;
  return gh_queue_leave(OK);
}

GH_API int cuStreamEndCapture(void *stream, void **graph) {
  struct stream *s;
  int r = gh_queue_enter("cuStreamEndCapture", stream, &s);
  if (r) return r;
  struct capture *c = s->capture;
  *graph = NULL;
  if (!c || s->index != 0) return gh_queue_leave(INVALID_VALUE);
  bool joined = end_for_all_streams(c, s);
  r = c->invalid ? CAPTURE_INVALIDATED : joined ? OK : CAPTURE_UNJOINED;
  if (r == OK) {
    struct graph *g = gh_need(sizeof *g);
    *g = (struct graph){.alive = ALIVE_GRAPH, .first = c->first, .objects = c->objects};
    *graph = g;
    gh_count_live("graphs", 1);
  }
  pthread_mutex_unlock(&gh_queue_lock);
  if (r) {
    gh_items_free(c->first);
    release_all(&c->objects);
  }
  free_capture(c);
  return r;
}

/* What comes before the stream's next item is shown as one node, or as none. */
static int show_nodes(struct stream *s, const void **nodes, size_t *n) {
  static const struct before nothing;
  struct capture *c = s->capture;
  bool some = memcmp(&s->before, &nothing, sizeof nothing) != 0;
  if (some && !(c->shown = add_node(c, &s->before))) return OUT_OF_MEMORY;
  if (nodes) *(const void *const **)nodes = &c->shown;
  if (n) *n = some;
  return OK;
}

GH_API int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, const void **dependencies,
                                     size_t *n) {
  struct stream *s;
  int r = gh_queue_enter("cuStreamGetCaptureInfo_v2", stream, &s);
  if (r) return r;
  if (!status) return gh_queue_leave(INVALID_VALUE);
  if (s->capture && (dependencies || n)) r = show_nodes(s, dependencies, n);
  if (graph) *graph = s->capture;
  *status = !s->capture ? 0 : s->capture->invalid ? 2 : 1;
  if (id) *id = s->capture ? s->capture->id : 0;
  return gh_queue_leave(r);
}

static struct item *copy_items(const struct item *list) {
  struct item *first = NULL, **end = &first;
  for (; list; list = list->next) {
    struct item *copy = gh_need(sizeof *copy);
    *copy = *list;
    copy->next = NULL;
    gh_blob_ref(copy->blob);
    *end = copy;
    end = &copy->next;
  }
  return first;
}

GH_API int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags) {
  int r = gh_enter_context("cuGraphInstantiateWithFlags");
  const struct graph *g = graph;
  if (r || flags || g->alive != ALIVE_GRAPH) return r ? r : flags ? INVALID_VALUE : INVALID_HANDLE;
  struct exec *e = gh_need(sizeof *e);
  *e = (struct exec){.alive = ALIVE_EXEC, .first = copy_items(g->first), .objects = g->objects};
  pthread_mutex_lock(&gh_queue_lock);
  for (int i = 0; i < e->objects.n; i++) e->objects.of[i]->refs++;
  pthread_mutex_unlock(&gh_queue_lock);
  *exec = e;
  gh_count_live("graphs", 1);
  return OK;
}

static void launch_item(struct stream *s, const struct item *i) {
  if (!i->event) {
    gh_queue_append(s, i);
  } else if (i->kind == WAIT) {
    gh_queue_wait(s, i->event->mark);
  } else {
    i->event->of = NULL;
    gh_queue_record(s, &i->event->mark);
  }
}

GH_API int cuGraphLaunch(void *exec, void *stream) {
  struct stream *s;
  struct exec *e = exec;
  int r = gh_queue_enter("cuGraphLaunch", stream, &s);
  if (r) return r;
  if (e->alive != ALIVE_EXEC || s->capture) return gh_queue_leave(s->capture ? CAPTURE_UNSUPPORTED : INVALID_HANDLE);
  gh_queue_order_with_legacy(s);
  gh_queue_wait(s, e->last);
  for (const struct item *i = e->first; i; i = i->next) launch_item(s, i);
  gh_queue_record(s, &e->last);
  return gh_queue_leave(OK);
}

GH_API int cuGraphExecDestroy(void *exec) {
  int r = gh_enter_context("cuGraphExecDestroy");
  struct exec *e = exec;
  if (r || e->alive != ALIVE_EXEC) return r ? r : INVALID_HANDLE;
  e->alive = 0;
  gh_items_free(e->first);
  pthread_mutex_lock(&gh_queue_lock);
  while (e->last && !e->last->done) /* its objects live until then */
    pthread_cond_wait(&gh_queue_changed, &gh_queue_lock);
  gh_mark_unref(e->last);
  pthread_mutex_unlock(&gh_queue_lock);
  release_all(&e->objects);
  free(e);
  gh_count_live("graphs", -1);
  return OK;
}

GH_API int cuGraphDestroy(void *graph) {
  int r = gh_enter_context("cuGraphDestroy");
  struct graph *g = graph;
  if (r || g->alive != ALIVE_GRAPH) return r ? r : INVALID_HANDLE;
  g->alive = 0;
  gh_items_free(g->first);
  release_all(&g->objects);
  free(g);
  gh_count_live("graphs", -1);
  return OK;
}
