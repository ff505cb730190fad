/* SPDX-License-Identifier: Apache-2.0 */
#include "test/harness/events.h"

#include <stdarg.h>
#include <stdio.h>

#include "common/base/clock.h"

void event_say(const char *event, const char *fmt, ...) {
  va_list ap;
  flockfile(stdout);
  printf("{\"event\": \"%s\", \"ns\": %llu", event, (unsigned long long)rail_now_ns());
  va_start(ap, fmt);
  vprintf(fmt, ap);
  va_end(ap);
  puts("}");
  fflush(stdout);
  funlockfile(stdout);
}

const char *event_quote(const char *text, char *out, size_t size) {
  size_t n = 0;
  for (; *text && n + 8 < size; text++) {
    unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\') out[n++] = '\\';
    if (c < 32) n += (size_t)snprintf(out + n, 7, "\\u%04x", c);
    else out[n++] = (char)c;
  }
  out[n] = 0;
  return out;
}

void event_log(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...) {
  char text[1500], safe[2000];
  va_list ap;
  (void)flags, (void)file, (void)line;
  if (level > RAIL_LOG_INFO) return;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  event_say("log", ", \"level\": \"%s\", \"text\": \"%s\"", level == RAIL_LOG_WARN ? "WARN" : "INFO",
            event_quote(text, safe, sizeof safe));
}
