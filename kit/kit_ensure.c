/* SPDX-License-Identifier: Apache-2.0
 * How a case fails or is skipped, threads of a case, random numbers, and what a process uses, from /proc. */
#include "kit/kit_ensure.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/result.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

#define SETTLE_MS 10000 /* longer than it takes a thread that was joined to be gone */

struct catcher { jmp_buf end; char *why; size_t why_size; };

static _Thread_local struct catcher *catcher;
static kit_failure_fn case_handler;

void kit_on_failure(kit_failure_fn handler) { case_handler = handler; }

_Noreturn void kit_failed(const char *file, int line, const char *fmt, ...) {
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (catcher) {
    snprintf(catcher->why, catcher->why_size, "%s:%d: %s", file, line, text);
    longjmp(catcher->end, 1);
  }
  case_handler(file, line, "%s", text);
  abort(); /* the handler does not return */
}

static void (*skip_handler)(const char *why);

void kit_on_skip(void (*handler)(const char *why)) { skip_handler = handler; }

_Noreturn void kit_skip(const char *fmt, ...) {
  char text[1024];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (!skip_handler) kit_failed(__FILE__, __LINE__, "cannot run here: %s", text);
  skip_handler(text);
  abort(); /* the handler does not return */
}

bool kit_catch(void (*fn)(void *arg), void *arg, char *why, size_t why_size) {
  struct catcher here = {.why = why, .why_size = why_size}, *volatile outer = catcher;
  volatile bool ok = false;
  why[0] = 0;
  catcher = &here;
  if (setjmp(here.end) == 0) {
    fn(arg);
    ok = true;
  }
  catcher = outer;
  return ok;
}

struct thread { pthread_t id; void (*fn)(void *); void *arg; char why[1024]; bool ok; };

static void *thread_main(void *arg) {
  struct thread *t = arg;
  t->ok = kit_catch(t->fn, t->arg, t->why, sizeof t->why);
  return NULL;
}

void kit_run_threads(int n, void (*fn)(void *arg), void *args, size_t stride) {
  struct thread *threads = calloc((size_t)n, sizeof *threads);
  ENSURE(threads, "out of memory");
  int started = 0;
  for (; started < n; started++) {
    struct thread *t = &threads[started];
    t->fn = fn;
    t->arg = (char *)args + stride * (size_t)started;
    if (pthread_create(&t->id, NULL, thread_main, t) != 0) break;
  }
  char why[1024] = "";
  for (int i = 0; i < started; i++) {
    pthread_join(threads[i].id, NULL);
    if (!threads[i].ok && !why[0]) snprintf(why, sizeof why, "%s", threads[i].why);
  }
  free(threads);
  ENSURE(started == n, "only %d of %d threads could be started", started, n);
  ENSURE(!why[0], "in a thread: %s", why);
}

const char *kit_rc_text(int rc) {
  static _Thread_local char texts[4][48];
  static _Thread_local unsigned next;
  char *text = texts[next++ % 4];
  snprintf(text, sizeof texts[0], "%d (%s)", rc, rail_result_name(rc));
  return text;
}

int kit_scaled(int n) {
  const char *text = getenv("RAIL_TEST_SCALE");
  int divisor = text ? atoi(text) : SANITIZED ? 5 : 1;
  if (divisor < 1) divisor = 1;
  return n / divisor > 1 ? n / divisor : 1;
}

static uint64_t patience_cap = UINT64_MAX;

void kit_patience_cap(uint64_t ms) { patience_cap = ms; }

bool kit_sanitized(void) { return SANITIZED; }

uint64_t kit_patience_ms(uint64_t ms) {
  const char *text = getenv("RAIL_TEST_PATIENCE_MS");
  uint64_t most = text ? strtoull(text, NULL, 10) : UINT64_MAX;
  if (SANITIZED) ms *= 5;
  if (most > patience_cap) most = patience_cap;
  return ms < most ? ms : most;
}

void kit_rest(int *quiet) {
  enum { LOOKS = 100, NAP_US = 50 };
  if (*quiet >= LOOKS) {
    usleep(NAP_US);
    return;
  }
  ++*quiet;
  sched_yield();
}

static uint64_t fixed_seed;

void kit_seed(uint64_t seed) { fixed_seed = seed; }

void kit_rng_start(struct kit_rng *rng) {
  if (fixed_seed) {
    rng->state = fixed_seed;
    return;
  }
  const char *text = getenv("RAIL_TEST_SEED");
  rng->state = text ? strtoull(text, NULL, 0) : rail_now_ns() ^ ((uint64_t)getpid() << 40);
  printf("# RAIL_TEST_SEED=%#llx\n", (unsigned long long)rng->state);
}

uint64_t kit_rng_next(struct kit_rng *rng) { /* splitmix64 */
  uint64_t x = rng->state += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

uint32_t kit_rng_below(struct kit_rng *rng, uint32_t n) { return (uint32_t)(((kit_rng_next(rng) >> 32) * n) >> 32); }

void kit_rng_shuffle(struct kit_rng *rng, int *items, int n) {
  for (int i = n - 1; i > 0; i--) {
    int j = (int)kit_rng_below(rng, (uint32_t)i + 1), t = items[i];
    items[i] = items[j];
    items[j] = t;
  }
}

int kit_fd_count(void) {
  DIR *d = opendir("/proc/self/fd");
  if (!d) return -1;
  int n = 0;
  while (readdir(d)) n++;
  closedir(d);
  return n - 3; /* ".", ".." and the directory itself */
}

static long status_number(const char *key) {
  FILE *f = fopen("/proc/self/status", "re");
  if (!f) return -1;
  char line[256];
  long value = -1;
  while (value < 0 && fgets(line, sizeof line, f))
    if (strncmp(line, key, strlen(key)) == 0) value = strtol(line + strlen(key), NULL, 10);
  fclose(f);
  return value;
}

int kit_thread_count(void) { return (int)status_number("Threads:"); }

int kit_threads_after(int expected) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(SETTLE_MS));
  int count;
  while ((count = kit_thread_count()) > expected && !rail_deadline_passed(deadline))
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  return count;
}

long kit_rss_kb(void) { return status_number("VmRSS:"); }

uint64_t kit_cpu_ns(void) {
  struct timespec ts;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
  return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}
