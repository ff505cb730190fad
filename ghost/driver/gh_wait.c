/* SPDX-License-Identifier: Apache-2.0
 * Where calls of the driver wait for what runs. CUDA documents of few calls that they do not: freeing memory and
 * loading code may wait until no kernel runs, and so may mapping memory. A process with kernels of two ranks in
 * one context, which wait for each other, must not need such a call in between. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ghost/driver/gh_queue.h"

#define TICK_MS 100u

static __thread bool in_callback;

void gh_enter_callback(void) { in_callback = true; }
void gh_leave_callback(void) { in_callback = false; }
bool gh_in_callback(void) { return in_callback; }

void gh_deadlock(const char *format, ...) {
  char text[200];
  va_list ap;
  va_start(ap, format);
  vsnprintf(text, sizeof text, format, ap);
  va_end(ap);
  fprintf(stderr, "ghost: deadlock: %s\n", text);
  abort();
}

void *gh_need(size_t size) {
  void *p = calloc(1, size ? size : 1);
  if (p) return p;
  fprintf(stderr, "ghost: out of memory for %zu bytes\n", size);
  abort();
}

static uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* In ticks: a time in which nothing of the machine ran is one. */
bool gh_queue_wait_change(struct patience *p) {
  const char *text = getenv("GHOST_PATIENCE");
  if (!p->tick_end || p->ended != gh_queue_ended) *p = (struct patience){now_ms() + TICK_MS, gh_queue_ended, 0};
  struct timespec until = {.tv_sec = (time_t)(p->tick_end / 1000), .tv_nsec = (long)(p->tick_end % 1000) * 1000000};
  pthread_cond_clockwait(&gh_queue_changed, &gh_queue_lock, CLOCK_MONOTONIC, &until);
  if (now_ms() >= p->tick_end) {
    p->tick_end = now_ms() + TICK_MS;
    p->ticks++;
  }
  return p->ended != gh_queue_ended || p->ticks < (uint64_t)(text ? atoi(text) : 20) * 1000 / TICK_MS;
}

/* Work of a stream that has to be over. */
struct work {
  uint64_t stream, until; /* stream: its number, for another one may come to lie where it was */
};

/* Who destroys a stream waits for its work; on a broken device nothing runs. */
static bool is_over(const struct work *w) {
  const struct stream *at = gh_queue_all();
  while (at && at->number != w->stream) at = at->next;
  return !at || at->done >= w->until || gh_has_sticky_error();
}

/* What is given to the streams while this waits is none of its business. */
static void wait_for_streams(const char *call, bool (*affects)(const struct stream *s, const void *arg),
                             const void *arg) {
  struct patience patience = {0};
  int n = 0;
  pthread_mutex_lock(&gh_queue_lock);
  for (const struct stream *s = gh_queue_all(); s; s = s->next) n++;
  struct work *all = gh_need((size_t)n * sizeof *all);
  n = 0;
  for (const struct stream *s = gh_queue_all(); s; s = s->next)
    if (affects(s, arg) && s->done < s->given) all[n++] = (struct work){s->number, s->given};
  for (int i = 0; i < n; i++)
    while (!is_over(&all[i]))
      if (!gh_queue_wait_change(&patience))
        gh_deadlock("%s waits for what runs on stream %" PRIu64 ", which does not end", call, all[i].stream);
  pthread_mutex_unlock(&gh_queue_lock);
  free(all);
}

static bool is_of(const struct stream *s, const void *context) { return !s->context || s->context == context; }
static bool is_any(const struct stream *s, const void *arg) {
  (void)s;
  (void)arg;
  return true;
}
static bool is_ordered(const struct stream *s, const void *arg) {
  (void)arg;
  return s->blocking;
}

void gh_wait_for(const char *call, const struct gh_context *context) { wait_for_streams(call, is_of, context); }
void gh_may_wait_for(const char *call, const struct gh_context *context) {
  const char *text = getenv("GHOST_MAPPING");
  if (text && strcmp(text, "waits") == 0) gh_wait_for(call, context);
}
void gh_wait_for_all(const char *call) { wait_for_streams(call, is_any, NULL); }
void gh_wait_for_legacy(const char *call) { wait_for_streams(call, is_ordered, NULL); }

GH_API int cuCtxSynchronize(void) {
  int r = gh_enter_context("cuCtxSynchronize");
  if (r == OK) gh_wait_for("cuCtxSynchronize", gh_context());
  return r ? r : gh_enter("after waiting");
}
