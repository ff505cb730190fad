/* SPDX-License-Identifier: Apache-2.0
 * The emulated driver's graphs: what a capture noted down, in the order in which it was asked for. */
#include <stdlib.h>

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
  struct capture *c = calloc(1, sizeof *c);
  *c = (struct capture){.id = ++captures, .mode = mode};
  c->end = &c->first;
  gh_queue_join(s, c);
  return gh_queue_leave(OK);
}

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
  struct object *o = *object = calloc(1, sizeof *o);
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
    struct graph *g = calloc(1, sizeof *g);
    *g = (struct graph){.alive = ALIVE_GRAPH, .first = c->first, .objects = c->objects};
    *graph = g;
    gh_count_live("graphs", 1);
  }
  pthread_mutex_unlock(&gh_queue_lock);
  if (r) {
    gh_items_free(c->first);
    release_all(&c->objects);
  }
  free(c);
  return r;
}

GH_API int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, const void **dependencies,
                                     size_t *n) {
  struct stream *s;
  int r = gh_queue_enter("cuStreamGetCaptureInfo_v2", stream, &s);
  if (r) return r;
  if (!status || dependencies || n) return gh_queue_leave(INVALID_VALUE); /* there are no nodes to show */
  if (graph) *graph = s->capture;
  *status = !s->capture ? 0 : s->capture->invalid ? 2 : 1;
  if (id) *id = s->capture ? s->capture->id : 0;
  return gh_queue_leave(OK);
}

static struct item *copy_items(const struct item *list) {
  struct item *first = NULL, **end = &first;
  for (; list; list = list->next) {
    struct item *copy = malloc(sizeof *copy);
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
  struct exec *e = calloc(1, sizeof *e);
  *e = (struct exec){.alive = ALIVE_EXEC, .first = copy_items(g->first), .objects = g->objects};
  pthread_mutex_lock(&gh_queue_lock);
  for (int i = 0; i < e->objects.n; i++) e->objects.of[i]->refs++;
  pthread_mutex_unlock(&gh_queue_lock);
  *exec = e;
  gh_count_live("graphs", 1);
  return OK;
}

GH_API int cuGraphLaunch(void *exec, void *stream) {
  struct stream *s;
  struct exec *e = exec;
  int r = gh_queue_enter("cuGraphLaunch", stream, &s);
  if (r) return r;
  if (e->alive != ALIVE_EXEC || s->capture) return gh_queue_leave(s->capture ? CAPTURE_UNSUPPORTED : INVALID_HANDLE);
  gh_queue_wait(s, e->last);
  for (const struct item *i = e->first; i; i = i->next) gh_queue_append(s, i);
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
