/* SPDX-License-Identifier: Apache-2.0
 * What a program logs, kept instead of printed. Any thread may log; one looks. Definitions, for one file:
 *   rail_log_set_sink(log_capture); log_forget(); ... CHECK(log_said("words")); rail_log_set_sink(NULL); */
#ifndef RAIL_TEST_LOG_LINES_H
#define RAIL_TEST_LOG_LINES_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"

static pthread_mutex_t log_lock_ = PTHREAD_MUTEX_INITIALIZER;
static char log_lines[65536]; /* the latest, one after the other */
static char log_warning[4096]; /* the last one */
static char log_warned_[16384]; /* the first ones */
static int log_warnings_;

__attribute__((format(printf, 5, 6), unused)) static void log_capture(enum rail_log_level level, unsigned long flags,
                                                                      const char *file, int line, const char *fmt,
                                                                      ...) {
  char text[sizeof log_warning];
  va_list ap;
  (void)flags, (void)file, (void)line;
  if (level != RAIL_LOG_WARN && level != RAIL_LOG_INFO) return;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  pthread_mutex_lock(&log_lock_);
  if (level == RAIL_LOG_WARN) {
    log_warnings_++;
    memcpy(log_warning, text, strlen(text) + 1);
    size_t used = strlen(log_warned_);
    snprintf(log_warned_ + used, sizeof log_warned_ - used, "%s\n", text);
  }
  size_t at = strlen(log_lines);
  if (sizeof log_lines - at < strlen(text) + 2) at = 0;
  snprintf(log_lines + at, sizeof log_lines - at, "%s\n", text);
  pthread_mutex_unlock(&log_lock_);
}

__attribute__((unused)) static void log_forget(void) {
  pthread_mutex_lock(&log_lock_);
  log_lines[0] = log_warning[0] = log_warned_[0] = 0;
  log_warnings_ = 0;
  pthread_mutex_unlock(&log_lock_);
}

/* How often. */
__attribute__((unused)) static int log_count(const char *words) {
  int n = 0;
  pthread_mutex_lock(&log_lock_);
  for (const char *at = log_lines; (at = strstr(at, words)) != NULL; at++) n++;
  pthread_mutex_unlock(&log_lock_);
  return n;
}
__attribute__((unused)) static bool log_said(const char *words) { return log_count(words) > 0; }

/* In a warning, of the first 16 KiB of them. */
__attribute__((unused)) static bool log_warned(const char *words) {
  pthread_mutex_lock(&log_lock_);
  bool warned = strstr(log_warned_, words) != NULL;
  pthread_mutex_unlock(&log_lock_);
  return warned;
}

__attribute__((unused)) static int log_warnings(void) {
  pthread_mutex_lock(&log_lock_);
  int n = log_warnings_;
  pthread_mutex_unlock(&log_lock_);
  return n;
}

#endif
