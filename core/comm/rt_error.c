/* SPDX-License-Identifier: Apache-2.0
 * The text of a thread's last error and how many it had, for ncclGetLastError and for the failure of a group's job.
 * Every thread that makes a public call has its own; no locks. */
#include "core/comm/rt_error.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "common/base/log.h"

static _Thread_local char last_error[512];
static _Thread_local unsigned errors;
static _Thread_local unsigned long refused_at; /* 0: last_error is of another kind */
static atomic_ulong moments;

unsigned long rt_error_moment(void) { return atomic_fetch_add(&moments, 1) + 1; }

bool rt_error_refused_since(unsigned long moment) { return refused_at > moment; }

ncclResult_t rt_error(rail_result_t result, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(last_error, sizeof last_error, fmt, ap);
  va_end(ap);
  errors++;
  refused_at = result == RAIL_BAD_ARGUMENT || result == RAIL_BAD_USAGE ? rt_error_moment() : 0;
  RAIL_WARN("%s", last_error);
  return (ncclResult_t)result;
}

void rt_error_keep(const char *text) {
  snprintf(last_error, sizeof last_error, "%s", text);
  refused_at = 0;
}

const char *rt_error_text(void) { return last_error; }

unsigned rt_error_count(void) { return errors; }
