/* SPDX-License-Identifier: Apache-2.0
 * The text behind ncclGetLastError: one per thread. */
#ifndef RT_ERROR_H
#define RT_ERROR_H

#include <stdbool.h>

#include "common/base/result.h"
#include "rail/railyard.h"

/* Logs the line at WARN, keeps it for this thread, and returns `result` (for return statements). */
ncclResult_t rt_error(rail_result_t result, const char *fmt, ...) RAIL_PRINTF(2, 3);
/* Keeps the text without logging: it was logged where the error was found. */
void rt_error_keep(const char *text);
const char *rt_error_text(void);
/* A number for this moment, above all earlier ones of the process. */
unsigned long rt_error_moment(void);
/* Is this thread's text that of a call which was refused, its caller being wrong, since then? */
bool rt_error_refused_since(unsigned long moment);
/* Calls of rt_error in this thread so far, to find out whether an operation made one. */
unsigned rt_error_count(void);

#endif
