/* SPDX-License-Identifier: Apache-2.0
 * What a program logs, kept instead of printed. Definitions, for one file of one thread:
 *   rail_log_set_sink(log_capture); log_forget(); ... CHECK(log_said("words")); rail_log_set_sink(NULL); */
#ifndef RAIL_TEST_LOG_LINES_H
#define RAIL_TEST_LOG_LINES_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"

static char log_lines[16384]; /* the latest, one after the other */

__attribute__((format(printf, 5, 6), unused)) static void log_capture(enum rail_log_level level, unsigned long flags,
                                                                      const char *file, int line, const char *fmt,
                                                                      ...) {
  size_t at = strlen(log_lines);
  va_list ap;
  (void)flags, (void)file, (void)line;
  if (level != RAIL_LOG_WARN && level != RAIL_LOG_INFO) return;
  if (sizeof log_lines - at < 1024) at = 0;
  va_start(ap, fmt);
  at += (size_t)vsnprintf(log_lines + at, sizeof log_lines - at - 2, fmt, ap);
  va_end(ap);
  strcpy(log_lines + at, "\n");
}

__attribute__((unused)) static void log_forget(void) { log_lines[0] = 0; }
__attribute__((unused)) static bool log_said(const char *words) { return strstr(log_lines, words) != NULL; }

/* How often. */
__attribute__((unused)) static int log_count(const char *words) {
  int n = 0;
  for (const char *at = log_lines; (at = strstr(at, words)) != NULL; at++) n++;
  return n;
}

#endif
