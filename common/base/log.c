/* SPDX-License-Identifier: Apache-2.0
 *
 * A line is formatted once into a buffer on the stack and then handed, whole,
 * to NCCL's logger, to a file or to stderr. Nothing here allocates or takes a lock, so a
 * line may be logged from any thread, after fork, and out of memory.
 */
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOG_LINE 4096 /* a list of plugins that were tried, each with its dlerror, is long */

static _Atomic(const char *) log_prefix;
static _Atomic(rail_logger_fn) log_sink;
static _Atomic(const char *) log_file; /* pattern of its name; NULL: stderr */
static atomic_int log_fd = -1;         /* the file, once there was a line */
static atomic_int log_threshold = -1; /* enum rail_log_level; -1: NCCL_DEBUG not read yet */

/* Row order is verbosity. "Version" prints no warnings, as in NCCL. */
static const struct { const char *word; enum rail_log_level level; } log_words[] = {
  {"NONE", RAIL_LOG_NONE},   {"VERSION", RAIL_LOG_VERSION}, {"WARN", RAIL_LOG_WARN},
  {"INFO", RAIL_LOG_INFO},   {"ABORT", RAIL_LOG_ABORT},     {"TRACE", RAIL_LOG_TRACE},
};

/* Two threads may both parse; they find the same. */
static int threshold(void) {
  int level = atomic_load_explicit(&log_threshold, memory_order_relaxed);
  if (level >= 0) return level;
  level = RAIL_LOG_WARN;
  const char *text = getenv("NCCL_DEBUG");
  if (text) {
    for (size_t i = 0; i < RAIL_COUNT_OF(log_words); i++)
      if (strcasecmp(text, log_words[i].word) == 0) level = log_words[i].level;
  }
  atomic_store_explicit(&log_threshold, level, memory_order_relaxed);
  return level;
}

void rail_log_reload(void) { atomic_store(&log_threshold, -1); }

void rail_log_set_prefix(const char *prefix) { atomic_store(&log_prefix, prefix); }

void rail_log_set_sink(rail_logger_fn sink) { atomic_store(&log_sink, sink); }

bool rail_log_trace_on(void) { return threshold() >= RAIL_LOG_TRACE; }

static const char *level_word(enum rail_log_level level) {
  for (size_t i = 0; i < RAIL_COUNT_OF(log_words); i++)
    if (log_words[i].level == level) return log_words[i].word;
  return "?";
}

/* Without the domain. */
static void host_name(char host[64]) {
  if (gethostname(host, 64) != 0) strcpy(host, "?");
  host[63] = 0;
  host[strcspn(host, ".")] = 0;
}

void rail_log_set_file(const char *pattern) {
  static char kept[PATH_MAX];
  snprintf(kept, sizeof kept, "%s", pattern);
  atomic_store(&log_file, kept);
}

/* As NCCL reads it: what is neither %h, %p nor %% stays as it is. */
static void expand(const char *pattern, char *path, size_t size) {
  char host[64];
  size_t n = 0;
  host_name(host);
  for (const char *p = pattern; *p && n + sizeof host < size; p++) {
    if (*p != '%' || !p[1] || !strchr("hp%", p[1])) {
      path[n++] = *p;
      continue;
    }
    p++;
    n += (size_t)(*p == 'h'   ? snprintf(path + n, size - n, "%s", host)
                  : *p == 'p' ? snprintf(path + n, size - n, "%d", (int)getpid())
                              : snprintf(path + n, size - n, "%%"));
  }
  path[n] = 0;
}

static int output(void) {
  char path[PATH_MAX];
  const char *pattern = atomic_load(&log_file);
  int fd = atomic_load(&log_fd), none = -1;
  if (!pattern) return STDERR_FILENO;
  if (fd >= 0) return fd;
  expand(pattern, path, sizeof path);
  fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) {
    atomic_store(&log_file, NULL);
    RAIL_WARN("NCCL_DEBUG_FILE=%s: %s: %s; lines go to standard error", pattern, path, strerror(errno));
    return STDERR_FILENO;
  }
  if (atomic_compare_exchange_strong(&log_fd, &none, fd)) return fd;
  close(fd);
  return none; /* another thread's */
}

/* "host:pid:tid [prefix] WARN text", one write, so that lines of many ranks that
 * share a terminal do not interleave. */
static void line_out(enum rail_log_level level, const char *prefix, const char *text) {
  char host[64];
  int fd = output();
  host_name(host);
  char line[LOG_LINE + 256];
  int n = snprintf(line, sizeof line - 1, "%s:%d:%ld %s%s%s%s %s", host, (int)getpid(), (long)syscall(SYS_gettid),
                   prefix ? "[" : "", prefix ? prefix : "", prefix ? "] " : "", level_word(level), text);
  if (n < 0) return;
  size_t len = RAIL_MIN((size_t)n, sizeof line - 2);
  line[len++] = '\n';
  for (size_t at = 0; at < len;) {
    ssize_t wrote = write(fd, line + at, len - at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return; /* nowhere left to say so */
    at += (size_t)wrote;
  }
}

/* Plugins' texts begin with the plugin's name, which a prefix has already. */
static const char *without_name(const char *prefix, const char *text) {
  const char *slash = prefix ? strrchr(prefix, '/') : NULL;
  size_t n = slash ? strlen(slash + 1) : 0;
  return n && strncmp(text, slash + 1, n) == 0 && strncmp(text + n, ": ", 2) == 0 ? text + n + 2 : text;
}

void rail_log_at(enum rail_log_level level, unsigned long subsys, const char *file, int line, const char *fmt, ...) {
  int saved = errno;
  rail_logger_fn sink = atomic_load(&log_sink);
  if (!sink && (int)level > threshold()) return;

  char text[LOG_LINE];
  va_list ap;
  va_start(ap, fmt);
  errno = saved; /* for %m */
  int n = vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (n < 0) strcpy(text, "(line could not be formatted)");
  else if ((size_t)n >= sizeof text) memcpy(text + sizeof text - 4, "...", 4);

  const char *prefix = atomic_load(&log_prefix);
  const char *rest = without_name(prefix, text);
  if (sink) sink(level, subsys, file, line, "%s%s%s", prefix ? prefix : "", prefix ? " : " : "", rest);
  else line_out(level, prefix, rest);
  errno = saved;
}
