/* SPDX-License-Identifier: Apache-2.0
 * Reporting a broken rule. */
#ifndef TR_FINDING_H
#define TR_FINDING_H

#include "plugin/railtrace/tr_object.h"
#include "plugin/railtrace/tr_param.h"
#include "plugin/railtrace/trace_rules.h"

static inline bool tr_checking(void) { return tr_params.check != TR_CHECK_OFF; }

/* Counts, records and, the first 20 times of a rule, logs it; `fmt` gives the particulars, `a` and `b` the two numbers
 * that matter, `comm` may be NULL. True: the call is to fail with RAIL_INTERNAL_ERROR (RAIL_TRACE_CHECK=error). */
RAIL_COLD bool tr_broken(enum rail_trace_rule rule, const struct tr_comm *comm, uint64_t request, uint64_t a,
                         uint64_t b, const char *fmt, ...) RAIL_PRINTF(6, 7);

void tr_findings_count(uint64_t counts[RAIL_TRACE_RULES]); /* by rule */
/* One line: calls, findings by rule, the file. */
void tr_summary(void);

#endif
