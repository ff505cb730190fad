/* SPDX-License-Identifier: Apache-2.0
 * Ranks of a bootstrap as threads of one test, and the log lines they write. */
#ifndef TEST_BOOT_RANKS_H
#define TEST_BOOT_RANKS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "common/base/log.h"
#include "core/bootstrap/rt_boot.h"
#include "test/harness/tap.h"

#define MAX_RANKS 32

/* An allgather of a byte: no rank returns before all have called. */
RAIL_UNUSED static rail_result_t boot_barrier(struct rt_bootstrap *b) {
  char *all = calloc((size_t)b->nranks, 1);
  const rail_result_t r = all ? rt_bootstrap_allgather(b, all, 1) : RAIL_SYSTEM_ERROR;
  free(all);
  return r;
}

/* ---- log capture: the last lines, to check what users read ---- */

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[1 << 16];
static size_t log_len;

__attribute__((format(printf, 5, 6))) static void capture(enum rail_log_level level, unsigned long flags,
                                                          const char *file, int line, const char *fmt, ...) {
  char text[1200];
  va_list ap;
  (void)flags; (void)file; (void)line;
  if (level > RAIL_LOG_WARN) return;
  va_start(ap, fmt);
  int n = vsnprintf(text, sizeof text - 1, fmt, ap);
  va_end(ap);
  if (n < 0) return;
  size_t len = strlen(text);
  text[len++] = '\n';
  pthread_mutex_lock(&log_lock);
  if (log_len + len < sizeof log_text) {
    memcpy(log_text + log_len, text, len);
    log_len += len;
    log_text[log_len] = 0;
  }
  pthread_mutex_unlock(&log_lock);
  if (getenv("SHOW_LOG")) fprintf(stderr, "%s", text);
}

RAIL_UNUSED static void log_clear(void) {
  pthread_mutex_lock(&log_lock);
  log_len = 0;
  log_text[0] = 0;
  pthread_mutex_unlock(&log_lock);
}

RAIL_UNUSED static bool logged(const char *what) {
  pthread_mutex_lock(&log_lock);
  bool found = strstr(log_text, what) != NULL;
  pthread_mutex_unlock(&log_lock);
  if (!found) printf("# not logged: \"%s\"\n", what);
  return found;
}

/* ---- ranks as threads ---- */

struct rank {
  int rank, nranks;
  char id[RT_UNIQUE_ID_BYTES];
  uint64_t timeout_ms, heartbeat_ms, heartbeat_timeout_ms;
  int (*body)(struct rank *, struct rt_bootstrap *); /* 0 good, else a line number */
  rail_result_t open_result;
  int bad_line;
  _Atomic int failures; /* calls of on_failure */
  char why[512];
  struct rt_bootstrap *boot;
  pthread_t thread;
  bool keep_open;
};

/* The message of a peer's rt_bootstrap_send. */
RAIL_UNUSED static rail_result_t recv_message(struct rt_bootstrap *b, int peer, uint32_t tag, void *data, size_t size) {
  return rt_boot_recv(b, RT_BOOT_MESSAGE, peer, tag, data, size, NULL);
}

/* In bodies, which may not longjmp: */
#define WANT(cond) do { if (!(cond)) return __LINE__; } while (0)

static void on_failure(void *arg, rail_result_t result, const char *why) {
  struct rank *r = arg;
  (void)result;
  snprintf(r->why, sizeof r->why, "%s", why);
  atomic_fetch_add(&r->failures, 1);
}

static struct rt_bootstrap_args args_of(struct rank *r) {
  return (struct rt_bootstrap_args){.rank = r->rank, .nranks = r->nranks, .timeout_ms = r->timeout_ms,
                                    .heartbeat_ms = r->heartbeat_ms, .heartbeat_timeout_ms = r->heartbeat_timeout_ms,
                                    .on_failure = on_failure, .arg = r};
}

static void *rank_main(void *arg) {
  struct rank *r = arg;
  struct rt_bootstrap_args args = args_of(r);
  r->open_result = rt_bootstrap_open(r->id, &args, &r->boot);
  if (r->open_result == RAIL_OK && r->body) r->bad_line = r->body(r, r->boot);
  if (!r->keep_open) {
    rt_bootstrap_close(r->boot);
    r->boot = NULL;
  }
  return NULL;
}

static struct rank ranks[MAX_RANKS];

static void ranks_init(int n, const char *id, int (*body)(struct rank *, struct rt_bootstrap *)) {
  memset(ranks, 0, sizeof ranks);
  for (int i = 0; i < n; i++) {
    ranks[i].rank = i;
    ranks[i].nranks = n;
    memcpy(ranks[i].id, id, RT_UNIQUE_ID_BYTES);
    ranks[i].timeout_ms = 60000;
    ranks[i].heartbeat_ms = 1000;
    ranks[i].heartbeat_timeout_ms = 30000;
    ranks[i].body = body;
  }
}

static void rank_start(int i) {
  if (pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]) != 0) abort();
}

/* Runs all as threads; returns the first complaint. */
static const char *ranks_run(int n) {
  static char text[100];
  for (int i = 0; i < n; i++) rank_start(i);
  for (int i = 0; i < n; i++) pthread_join(ranks[i].thread, NULL);
  for (int i = 0; i < n; i++) {
    if (ranks[i].open_result == RAIL_OK && !ranks[i].bad_line && !ranks[i].failures) continue;
    snprintf(text, sizeof text, "rank %d of %d: open %d, line %d, failures %d", i, n, ranks[i].open_result,
             ranks[i].bad_line, ranks[i].failures);
    return text;
  }
  return NULL;
}

RAIL_UNUSED static void run_good(int n, int (*body)(struct rank *, struct rt_bootstrap *)) {
  char id[RT_UNIQUE_ID_BYTES];
  CHECK_OK(rt_unique_id_create(id));
  ranks_init(n, id, body);
  const char *bad = ranks_run(n);
  CHECK_MSG(!bad, "%s", bad);
}

RAIL_UNUSED static const int sizes_of_world[] = {1, 2, 3, 4, 8, 32};
#define EACH_WORLD(n) for (size_t w_ = 0; w_ < sizeof sizes_of_world / sizeof *sizes_of_world; w_++) \
  for (int n = sizes_of_world[w_], once_ = 1; once_; once_ = 0)

#endif
