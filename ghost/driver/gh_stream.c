/* SPDX-License-Identifier: Apache-2.0
 * The emulated driver's streams and events. */
#include <stdlib.h>
#include <string.h>

#include "ghost/driver/gh_queue.h"

#define ALIVE_STREAM 0x73747265616dull
#define ALIVE_EVENT 0x6576656e74ull
#define WAIT_EXTERNAL 1u /* the event is none of the capture's */

pthread_mutex_t gh_queue_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t gh_queue_changed = PTHREAD_COND_INITIALIZER;
uint64_t gh_queue_ended;
static struct stream *streams, *legacy;
static uint64_t made; /* streams, ever */
static unsigned running[GH_MAX_DEVICES]; /* blocks */
/* Host functions are the business of one thread of the driver's. */
static pthread_mutex_t one_host_function = PTHREAD_MUTEX_INITIALIZER;

/* ---- running ---- */

void gh_mark_unref(struct mark *m) {
  if (m && --m->refs == 0) free(m);
}

void gh_blob_ref(struct gh_blob *blob) {
  if (blob) __atomic_add_fetch(&blob->refs, 1, __ATOMIC_RELAXED);
}

void gh_blob_unref(struct gh_blob *blob) {
  if (blob && __atomic_sub_fetch(&blob->refs, 1, __ATOMIC_ACQ_REL) == 0) free(blob);
}

void gh_items_free(struct item *list) {
  while (list) {
    struct item *next = list->next;
    gh_mark_unref(list->mark);
    gh_blob_unref(list->blob);
    free(list);
    list = next;
  }
}

/* Blocks wait for each other: a kernel of which some are not there waits for ever. */
static void begin_kernel(const struct gh_launch *l) {
  unsigned *blocks = &running[l->context->device], room = gh_max_resident_blocks(l->threads);
  struct patience patience = {0};
  while (*blocks > 0 && *blocks + l->blocks > room)
    if (!gh_queue_wait_change(&patience))
      gh_deadlock("a kernel of %u blocks finds no room beside the %u that run on the device", l->blocks, *blocks);
  *blocks += l->blocks;
}

static void call_host(const struct item *item) {
  pthread_mutex_lock(&one_host_function);
  gh_enter_callback();
  item->call(item->argument);
  gh_leave_callback();
  pthread_mutex_unlock(&one_host_function);
}

static void run(struct item *item) {
  struct gh_launch *l = item->kind == KERNEL ? &item->blob->launch : NULL;
  if (item->kind == RECORD) {
    item->mark->done = true;
    return;
  }
  if (item->kind == WAIT) {
    while (!item->mark->done) pthread_cond_wait(&gh_queue_changed, &gh_queue_lock);
    return;
  }
  if (l) begin_kernel(l);
  pthread_mutex_unlock(&gh_queue_lock);
  if (item->kind == HOST) call_host(item);
  if (item->kind == COPY) memmove(item->to, item->from, item->size);
  if (item->kind == SET) memset(item->to, item->value, item->size);
  if (l) {
    int r = gh_should_fail("kernel") ? ILLEGAL_ADDRESS : gh_kernel_run(l);
    if (r) gh_set_sticky_error(r);
  }
  pthread_mutex_lock(&gh_queue_lock);
  if (l) running[l->context->device] -= l->blocks;
}

static void *stream_main(void *arg) {
  struct stream *s = arg;
  pthread_mutex_lock(&gh_queue_lock);
  while (s->first || !s->quit) {
    struct item *item = s->first;
    if (!item) {
      pthread_cond_wait(&gh_queue_changed, &gh_queue_lock);
      continue;
    }
    s->busy = true;
    s->first = item->next;
    if (!s->first) s->end = &s->first;
    run(item);
    item->next = NULL;
    gh_items_free(item);
    s->busy = false;
    s->done++;
    gh_queue_ended++;
    pthread_cond_broadcast(&gh_queue_changed);
  }
  pthread_mutex_unlock(&gh_queue_lock);
  return NULL;
}

/* ---- queues ---- */

static struct stream *new_stream(void) {
  struct stream *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->alive = ALIVE_STREAM;
  s->end = &s->first;
  if (pthread_create(&s->thread, NULL, stream_main, s)) {
    free(s);
    return NULL;
  }
  s->number = ++made;
  s->next = streams;
  streams = s;
  return s;
}

struct stream *gh_queue_stream(void *handle) {
  if (!handle) {
    if (!legacy) legacy = new_stream();
    if (legacy) legacy->blocking = true;
    return legacy;
  }
  struct stream *s = streams;
  while (s && s != handle) s = s->next;
  return s;
}

struct stream *gh_queue_all(void) { return streams; }

void gh_items_add(struct item ***end, const struct item *item) {
  struct item *copy = gh_need(sizeof *copy);
  *copy = *item;
  copy->next = NULL;
  if (copy->mark) copy->mark->refs++;
  gh_blob_ref(copy->blob);
  **end = copy;
  *end = &copy->next;
}

void gh_queue_append(struct stream *s, const struct item *item) {
  gh_items_add(&s->end, item);
  s->given++;
  pthread_cond_broadcast(&gh_queue_changed);
}

void gh_queue_record(struct stream *s, struct mark **mark) {
  gh_mark_unref(*mark);
  *mark = gh_need(sizeof **mark);
  (*mark)->refs = 1;
  struct item item = {.kind = RECORD, .mark = *mark};
  gh_queue_append(s, &item);
}

void gh_queue_wait(struct stream *s, struct mark *mark) {
  struct item item = {.kind = WAIT, .mark = mark};
  if (mark) gh_queue_append(s, &item);
}

/* What is on `before` now comes first. */
static void order(struct stream *before, struct stream *after) {
  struct mark *mark = NULL;
  if (before->done == before->given) return;
  gh_queue_record(before, &mark);
  gh_queue_wait(after, mark);
  gh_mark_unref(mark);
}

void gh_queue_order_with_legacy(struct stream *s) {
  if (!s->blocking || !legacy) return;
  for (struct stream *t = streams; t; t = t->next)
    if (t != s && t->blocking && (s == legacy || t == legacy)) order(t, s);
}

static bool all_before(const struct before *a, const struct before *b) {
  bool all = true;
  for (int i = 0; i < MAX_CAPTURED; i++) all &= a->nodes[i] <= b->nodes[i];
  return all;
}

int gh_queue_add(struct stream *s, const struct item *item) {
  if (!s->capture) {
    gh_queue_order_with_legacy(s);
    gh_queue_append(s, item);
    return OK;
  }
  struct capture *c = s->capture;
  if (c->invalid) return CAPTURE_INVALIDATED;
  gh_items_add(&c->end, item);
  s->before.nodes[s->index] = ++c->given.nodes[s->index];
  if (item->kind != KERNEL) return OK;
  /* All kernels are of one communicator: they must not run side by side. */
  if (!all_before(&c->kernel, &s->before)) return UNORDERED;
  c->kernel = s->before;
  return OK;
}

bool gh_queue_join(struct stream *s, struct capture *c) {
  if (c->nstreams == MAX_CAPTURED) return false;
  memset(&s->before, 0, sizeof s->before);
  s->index = c->nstreams++;
  s->capture = c;
  return true;
}

bool gh_invalidate_captures(void) {
  bool found = false;
  pthread_mutex_lock(&gh_queue_lock);
  for (struct stream *s = streams; s; s = s->next)
    if (s->capture && s->capture->mode == MODE_GLOBAL) found = s->capture->invalid = true;
  pthread_mutex_unlock(&gh_queue_lock);
  return found;
}

/* A capture of a stream that is ordered with the legacy one does not survive that being used. */
static bool captures_with_legacy(const struct stream *s) {
  bool found = false;
  for (struct stream *t = streams; s == legacy && t; t = t->next)
    if (t->blocking && t->capture) found = t->capture->invalid = true;
  return found;
}

int gh_queue_enter(const char *call, void *handle, struct stream **s) {
  int r = gh_enter_context(call);
  if (r) return r;
  pthread_mutex_lock(&gh_queue_lock);
  *s = gh_queue_stream(handle);
  if (*s && !captures_with_legacy(*s)) return OK;
  return gh_queue_leave(*s ? CAPTURE_IMPLICIT : INVALID_HANDLE);
}

int gh_queue_leave(int result) {
  pthread_mutex_unlock(&gh_queue_lock);
  return result;
}

GH_API int cuStreamCreate(void **stream, unsigned flags) {
  int r = gh_enter_context("cuStreamCreate");
  if (r == OK && flags > 1) r = INVALID_VALUE;
  if (r) return r;
  pthread_mutex_lock(&gh_queue_lock);
  struct stream *s = *stream = new_stream();
  if (!s) return gh_queue_leave(OUT_OF_MEMORY);
  s->context = gh_context();
  s->blocking = flags == 0;
  gh_count_live("streams", 1);
  return gh_queue_leave(OK);
}

/* Unlike the driver's, ends only when the stream's work is done: a test that destroys a busy one finds out. */
GH_API int cuStreamDestroy_v2(void *stream) {
  struct stream *s;
  int r = gh_queue_enter("cuStreamDestroy_v2", stream, &s);
  if (r) return r;
  if (s == legacy || (s->capture && s->index == 0)) return gh_queue_leave(INVALID_VALUE);
  struct stream **at = &streams;
  while (*at != s) at = &(*at)->next;
  *at = s->next;
  s->quit = true;
  pthread_cond_broadcast(&gh_queue_changed);
  pthread_mutex_unlock(&gh_queue_lock);
  pthread_join(s->thread, NULL);
  free(s);
  gh_count_live("streams", -1);
  return OK;
}

static int idle(const char *call, void *stream, bool wait) {
  struct stream *s;
  int r = gh_queue_enter(call, stream, &s);
  if (r) return r;
  if (s->capture) {
    s->capture->invalid = true;
    return gh_queue_leave(CAPTURE_UNSUPPORTED);
  }
  while (wait && (s->first || s->busy)) pthread_cond_wait(&gh_queue_changed, &gh_queue_lock);
  r = s->first || s->busy ? NOT_READY : OK;
  pthread_mutex_unlock(&gh_queue_lock);
  int broken = gh_enter("after waiting");
  return broken ? broken : r;
}

GH_API int cuStreamSynchronize(void *stream) { return idle("cuStreamSynchronize", stream, true); }
GH_API int cuStreamQuery(void *stream) { return idle("cuStreamQuery", stream, false); }

GH_API int cuStreamGetCtx(void *stream, void **context) {
  struct stream *s;
  int r = gh_queue_enter("cuStreamGetCtx", stream, &s);
  if (r) return r;
  *context = s->context ? s->context : gh_context();
  return gh_queue_leave(OK);
}

/* ---- events ---- */

GH_API int cuEventCreate(void **event, unsigned flags) {
  int r = gh_enter_context("cuEventCreate");
  if (r == OK && flags > 7) r = INVALID_VALUE;
  if (r) return r;
  struct event *e = *event = calloc(1, sizeof *e);
  if (!e) return OUT_OF_MEMORY;
  e->alive = ALIVE_EVENT;
  e->context = gh_context();
  gh_count_live("events", 1);
  return OK;
}

GH_API int cuEventDestroy_v2(void *event) {
  int r = gh_enter_ending("cuEventDestroy_v2");
  struct event *e = event;
  if (r || e->alive != ALIVE_EVENT) return r ? r : INVALID_HANDLE;
  pthread_mutex_lock(&gh_queue_lock);
  e->alive = 0;
  gh_mark_unref(e->mark);
  free(e);
  pthread_mutex_unlock(&gh_queue_lock);
  gh_count_live("events", -1);
  return OK;
}

GH_API int cuEventQuery(void *event) {
  int r = gh_enter_unsafe("cuEventQuery");
  const struct event *e = event;
  if (r || e->alive != ALIVE_EVENT) return r ? r : INVALID_HANDLE;
  pthread_mutex_lock(&gh_queue_lock);
  r = e->of ? CAPTURED_EVENT : e->mark && !e->mark->done ? NOT_READY : OK;
  return gh_queue_leave(r);
}

GH_API int cuEventSynchronize(void *event) {
  int r = gh_enter_unsafe("cuEventSynchronize");
  const struct event *e = event;
  if (r || e->alive != ALIVE_EVENT) return r ? r : INVALID_HANDLE;
  pthread_mutex_lock(&gh_queue_lock);
  struct mark *mark = e->mark;
  if (e->of) return gh_queue_leave(CAPTURED_EVENT);
  if (mark) mark->refs++;
  while (mark && !mark->done) pthread_cond_wait(&gh_queue_changed, &gh_queue_lock);
  gh_mark_unref(mark);
  return gh_queue_leave(OK);
}

GH_API int cuEventRecord(void *event, void *stream) {
  struct stream *s;
  struct event *e = event;
  int r = gh_queue_enter("cuEventRecord", stream, &s);
  if (r || e->alive != ALIVE_EVENT) return r ? r : gh_queue_leave(INVALID_HANDLE);
  if (s->context && s->context != e->context) return gh_queue_leave(INVALID_HANDLE);
  e->of = s->capture;
  e->capture = s->capture ? s->capture->id : 0;
  e->before = s->before;
  if (s->capture) return gh_queue_leave(s->capture->invalid ? CAPTURE_INVALIDATED : OK);
  gh_queue_order_with_legacy(s);
  gh_queue_record(s, &e->mark);
  return gh_queue_leave(OK);
}

static bool under_way(const struct event *e) {
  bool found = false;
  for (const struct stream *s = streams; s; s = s->next)
    found |= s->capture && s->capture == e->of && s->capture->id == e->capture;
  return found;
}

/* A stream that waits for what a capture did joins it. */
static int wait_captured(struct stream *s, const struct event *e) {
  if (!under_way(e)) return CAPTURED_EVENT;
  if (s->capture && s->capture != e->of) return CAPTURE_ISOLATION;
  if (!s->capture && !gh_queue_join(s, e->of)) return OUT_OF_MEMORY;
  for (int i = 0; i < MAX_CAPTURED; i++)
    if (s->before.nodes[i] < e->before.nodes[i]) s->before.nodes[i] = e->before.nodes[i];
  return s->capture->invalid ? CAPTURE_INVALIDATED : OK;
}

GH_API int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  struct stream *s;
  struct event *e = event;
  int r = gh_queue_enter("cuStreamWaitEvent", stream, &s);
  bool external = flags == WAIT_EXTERNAL;
  if (r || (flags && !external) || e->alive != ALIVE_EVENT)
    return r ? r : gh_queue_leave(e->alive == ALIVE_EVENT ? INVALID_VALUE : INVALID_HANDLE);
  if (external && !s->capture) return gh_queue_leave(INVALID_VALUE);
  if (external) return gh_queue_leave(gh_queue_add(s, &(struct item){.kind = WAIT, .event = e}));
  if (e->of) return gh_queue_leave(wait_captured(s, e));
  if (s->capture) {
    s->capture->invalid = true;
    return gh_queue_leave(CAPTURE_ISOLATION);
  }
  gh_queue_order_with_legacy(s);
  gh_queue_wait(s, e->mark);
  return gh_queue_leave(OK);
}
