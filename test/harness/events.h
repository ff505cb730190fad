/* SPDX-License-Identifier: Apache-2.0
 * Lines of JSON about what a process sees, for a script that watches it. */
#ifndef RAIL_TEST_EVENTS_H
#define RAIL_TEST_EVENTS_H

#include <stddef.h>

#include "rail/net.h"

/* {"event": "…", "ns": CLOCK_MONOTONIC, and `fmt`, which begins with a comma} on a line of its own, at once. */
void event_say(const char *event, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Makes text fit between two quotation marks of JSON; returns out. */
const char *event_quote(const char *text, char *out, size_t size);
/* A plugin's logger: event "log" with level and text; WARN and INFO. */
void event_log(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

#endif
