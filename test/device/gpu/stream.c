/* SPDX-License-Identifier: Apache-2.0
 * The fake driver's streams and events. */
#include <stdlib.h>
#include <string.h>

#include "test/device/gpu/queue.h"

#define ALIVE_STREAM 0x73747265616dull
#define ALIVE_EVENT 0x6576656e74ull

pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t queue_news = PTHREAD_COND_INITIALIZER;
static struct stream *streams, *legacy;
static unsigned running[MAX_DEVICES]; /* blocks */
/* Host functions are the business of one thread of the driver's. */
static pthread_mutex_t one_host_function = PTHREAD_MUTEX_INITIALIZER;

/* ---- running ---- */

void mark_unref(struct mark *m) {
  if (m && --m->refs == 0) free(m);
}

void items_free(struct item *list) {
  while (list) {
    struct item *next = list->next;
    mark_unref(list->mark);
    free(list);
    list = next;
  }
}

/* Blocks wait for each other: a kernel of which some are not there waits for ever. */
static void begin_kernel(const struct item *item) {
  unsigned *blocks = &running[item->context->device], room = fake_room(item->threads);
  uint64_t deadline = 0;
  while (*blocks > 0 && *blocks + item->blocks > room)
    if (!queue_wait_news(&deadline))
      fake_deadlock("a kernel of %u blocks finds no room beside the %u that run on the device", item->blocks, *blocks);
  *blocks += item->blocks;
}

static void call_host(const struct item *item) {
  pthread_mutex_lock(&one_host_function);
  fake_enter_callback();
  item->call(item->argument);
  fake_leave_callback();
  pthread_mutex_unlock(&one_host_function);
}

static void run(struct item *item) {
  switch (item->kind) {
    case RECORD: item->mark->done = true; return;
    case WAIT:
      while (!item->mark->done) pthread_cond_wait(&queue_news, &queue_lock);
      return;
    case KERNEL: begin_kernel(item); break;
    default: break;
  }
  pthread_mutex_unlock(&queue_lock);
  if (item->kind == HOST)
    call_host(item);
  else if (fake_wanted("kernel"))
    fake_break(ILLEGAL_ADDRESS);
  else {
    int r = fake_run_kernel(item->argument, item->blocks, item->threads, item->context);
    if (r) fake_break(r);
  }
  pthread_mutex_lock(&queue_lock);
  if (item->kind == KERNEL) running[item->context->device] -= item->blocks;
}

static void *stream_main(void *arg) {
  struct stream *s = arg;
  pthread_mutex_lock(&queue_lock);
  while (s->first || !s->quit) {
    struct item *item = s->first;
    if (!item) {
      pthread_cond_wait(&queue_news, &queue_lock);
      continue;
    }
    s->busy = true;
    s->first = item->next;
    if (!s->first) s->end = &s->first;
    run(item);
    item->next = NULL;
    items_free(item);
    s->busy = false;
    s->done++;
    pthread_cond_broadcast(&queue_news);
  }
  pthread_mutex_unlock(&queue_lock);
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
  s->next = streams;
  streams = s;
  return s;
}

struct stream *queue_stream(void *handle) {
  if (!handle) {
    if (!legacy) legacy = new_stream();
    if (legacy) legacy->blocking = true;
    return legacy;
  }
  struct stream *s = streams;
  while (s && s != handle) s = s->next;
  return s;
}

struct stream *queue_all(void) { return streams; }

static void append(struct item ***end, const struct item *item) {
  struct item *copy = malloc(sizeof *copy);
  *copy = *item;
  copy->next = NULL;
  if (copy->mark) copy->mark->refs++;
  **end = copy;
  *end = &copy->next;
}

void queue_append(struct stream *s, const struct item *item) {
  append(&s->end, item);
  s->given++;
  pthread_cond_broadcast(&queue_news);
}

void queue_record(struct stream *s, struct mark **mark) {
  mark_unref(*mark);
  *mark = calloc(1, sizeof **mark);
  (*mark)->refs = 1;
  struct item item = {.kind = RECORD, .mark = *mark};
  queue_append(s, &item);
}

void queue_wait(struct stream *s, struct mark *mark) {
  struct item item = {.kind = WAIT, .mark = mark};
  if (mark) queue_append(s, &item);
}

/* What is on `before` now comes first. */
static void order(struct stream *before, struct stream *after) {
  struct mark *mark = NULL;
  if (before->done == before->given) return;
  queue_record(before, &mark);
  queue_wait(after, mark);
  mark_unref(mark);
}

/* The legacy stream, and those that were not made non-blocking, in the order in which they are given work. */
static void order_with_legacy(struct stream *s) {
  if (!s->blocking || !legacy) return;
  for (struct stream *t = streams; t; t = t->next)
    if (t != s && t->blocking && (s == legacy || t == legacy)) order(t, s);
}

static bool all_before(const struct before *a, const struct before *b) {
  bool all = true;
  for (int i = 0; i < MAX_CAPTURED; i++) all &= a->nodes[i] <= b->nodes[i];
  return all;
}

int queue_add(struct stream *s, const struct item *item) {
  if (!s->capture) {
    order_with_legacy(s);
    queue_append(s, item);
    return OK;
  }
  struct capture *c = s->capture;
  if (c->invalid) return CAPTURE_INVALIDATED;
  append(&c->end, item);
  s->before.nodes[s->index]++;
  if (item->kind != KERNEL) return OK;
  /* All kernels are of one communicator: they must not run side by side. */
  if (!all_before(&c->kernel, &s->before)) return UNORDERED;
  c->kernel = s->before;
  return OK;
}

bool queue_join(struct stream *s, struct capture *c) {
  if (c->nstreams == MAX_CAPTURED) return false;
  memset(&s->before, 0, sizeof s->before);
  s->index = c->nstreams++;
  s->capture = c;
  return true;
}

bool fake_capture_forbids(void) {
  bool found = false;
  pthread_mutex_lock(&queue_lock);
  for (struct stream *s = streams; s; s = s->next)
    if (s->capture && s->capture->mode == MODE_GLOBAL) found = s->capture->invalid = true;
  pthread_mutex_unlock(&queue_lock);
  return found;
}

/* A capture of a stream that is ordered with the legacy one does not survive that being used. */
static bool captures_with_legacy(const struct stream *s) {
  bool found = false;
  for (struct stream *t = streams; s == legacy && t; t = t->next)
    if (t->blocking && t->capture) found = t->capture->invalid = true;
  return found;
}

int queue_enter(const char *call, void *handle, struct stream **s) {
  int r = fake_enter_context(call);
  if (r) return r;
  pthread_mutex_lock(&queue_lock);
  *s = queue_stream(handle);
  if (*s && !captures_with_legacy(*s)) return OK;
  return queue_leave(*s ? CAPTURE_IMPLICIT : INVALID_HANDLE);
}

int queue_leave(int result) {
  pthread_mutex_unlock(&queue_lock);
  return result;
}

API int cuStreamCreate(void **stream, unsigned flags) {
  int r = fake_enter_context("cuStreamCreate");
  if (r == OK && flags > 1) r = INVALID_VALUE;
  if (r) return r;
  pthread_mutex_lock(&queue_lock);
  struct stream *s = *stream = new_stream();
  if (!s) return queue_leave(OUT_OF_MEMORY);
  s->context = fake_context();
  s->blocking = flags == 0;
  fake_left("streams", 1);
  return queue_leave(OK);
}

/* Unlike the driver's, ends only when the stream's work is done: a test that destroys a busy one finds out. */
API int cuStreamDestroy_v2(void *stream) {
  struct stream *s;
  int r = queue_enter("cuStreamDestroy_v2", stream, &s);
  if (r) return r;
  if (s == legacy || s->capture) return queue_leave(INVALID_VALUE);
  struct stream **at = &streams;
  while (*at != s) at = &(*at)->next;
  *at = s->next;
  s->quit = true;
  pthread_cond_broadcast(&queue_news);
  pthread_mutex_unlock(&queue_lock);
  pthread_join(s->thread, NULL);
  free(s);
  fake_left("streams", -1);
  return OK;
}

static int idle(const char *call, void *stream, bool wait) {
  struct stream *s;
  int r = queue_enter(call, stream, &s);
  if (r) return r;
  if (s->capture) {
    s->capture->invalid = true;
    return queue_leave(CAPTURE_UNSUPPORTED);
  }
  while (wait && (s->first || s->busy)) pthread_cond_wait(&queue_news, &queue_lock);
  r = s->first || s->busy ? NOT_READY : OK;
  pthread_mutex_unlock(&queue_lock);
  int broken = fake_enter("after waiting");
  return broken ? broken : r;
}

API int cuStreamSynchronize(void *stream) { return idle("cuStreamSynchronize", stream, true); }
API int cuStreamQuery(void *stream) { return idle("cuStreamQuery", stream, false); }

API int cuStreamGetCtx(void *stream, void **context) {
  struct stream *s;
  int r = queue_enter("cuStreamGetCtx", stream, &s);
  if (r) return r;
  *context = s->context ? s->context : fake_context();
  return queue_leave(OK);
}

/* ---- kernels, host functions ---- */

API int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                       unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments,
                       void **extra) {
  struct stream *s;
  int r = queue_enter("cuLaunchKernel", stream, &s);
  if (r) return r;
  bool one_dimension = grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1;
  if (!function || !one_dimension || !grid_x || !block_x || block_x > 1024 || shared || !arguments || extra)
    return queue_leave(INVALID_VALUE);
  const struct context *context = s->context ? s->context : fake_context();
  if (fake_function_context(function) != context) return queue_leave(INVALID_HANDLE);
  struct item item = {.kind = KERNEL, .argument = *(void **)arguments[0], .blocks = grid_x, .threads = block_x,
                      .context = context};
  r = fake_check_kernel(item.argument, grid_x);
  return queue_leave(r ? r : queue_add(s, &item));
}

API int cuLaunchHostFunc(void *stream, void (*call)(void *), void *argument) {
  struct stream *s;
  int r = queue_enter("cuLaunchHostFunc", stream, &s);
  struct item item = {.kind = HOST, .call = call, .argument = argument};
  return r ? r : queue_leave(call ? queue_add(s, &item) : INVALID_VALUE);
}

/* ---- events ---- */

API int cuEventCreate(void **event, unsigned flags) {
  int r = fake_enter_context("cuEventCreate");
  if (r == OK && flags > 7) r = INVALID_VALUE;
  if (r) return r;
  struct event *e = *event = calloc(1, sizeof *e);
  if (!e) return OUT_OF_MEMORY;
  e->alive = ALIVE_EVENT;
  e->context = fake_context();
  fake_left("events", 1);
  return OK;
}

API int cuEventDestroy_v2(void *event) {
  int r = fake_enter_ending("cuEventDestroy_v2");
  struct event *e = event;
  if (r || e->alive != ALIVE_EVENT) return r ? r : INVALID_HANDLE;
  pthread_mutex_lock(&queue_lock);
  e->alive = 0;
  mark_unref(e->mark);
  free(e);
  pthread_mutex_unlock(&queue_lock);
  fake_left("events", -1);
  return OK;
}

API int cuEventQuery(void *event) {
  int r = fake_enter_unsafe("cuEventQuery");
  const struct event *e = event;
  if (r || e->alive != ALIVE_EVENT) return r ? r : INVALID_HANDLE;
  pthread_mutex_lock(&queue_lock);
  r = e->of ? CAPTURED_EVENT : e->mark && !e->mark->done ? NOT_READY : OK;
  return queue_leave(r);
}

API int cuEventRecord(void *event, void *stream) {
  struct stream *s;
  struct event *e = event;
  int r = queue_enter("cuEventRecord", stream, &s);
  if (r || e->alive != ALIVE_EVENT) return r ? r : queue_leave(INVALID_HANDLE);
  if (s->context && s->context != e->context) return queue_leave(INVALID_HANDLE);
  e->of = s->capture;
  e->capture = s->capture ? s->capture->id : 0;
  e->before = s->before;
  if (s->capture) return queue_leave(s->capture->invalid ? CAPTURE_INVALIDATED : OK);
  queue_record(s, &e->mark);
  return queue_leave(OK);
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
  if (!s->capture && !queue_join(s, e->of)) return OUT_OF_MEMORY;
  for (int i = 0; i < MAX_CAPTURED; i++)
    if (s->before.nodes[i] < e->before.nodes[i]) s->before.nodes[i] = e->before.nodes[i];
  return s->capture->invalid ? CAPTURE_INVALIDATED : OK;
}

API int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  struct stream *s;
  struct event *e = event;
  int r = queue_enter("cuStreamWaitEvent", stream, &s);
  if (r || flags || e->alive != ALIVE_EVENT) return r ? r : queue_leave(flags ? INVALID_VALUE : INVALID_HANDLE);
  if (e->of) return queue_leave(wait_captured(s, e));
  if (s->capture) {
    s->capture->invalid = true;
    return queue_leave(CAPTURE_ISOLATION);
  }
  queue_wait(s, e->mark);
  return queue_leave(OK);
}
