/* SPDX-License-Identifier: Apache-2.0
 *
 * From calls to the file. Each calling thread has a ring of bytes that it
 * alone fills, and one thread of ours empties all rings into the file: a call
 * never waits. A call that finds no room is counted, and the count is in
 * the file where the call would be.
 */
#ifndef TR_RECORD_H
#define TR_RECORD_H

#include "common/base/clock.h"
#include "plugin/railtrace/trace_file.h"

/* Opens the file and starts the thread, once; an error is logged once, and nothing is recorded then. */
void tr_record_open(const struct rail_trace_header *header);
/* Everything that was recorded before is in the file when it returns, or could not be written. */
void tr_record_flush(void);
/* Writes the end. Calls that come later are not recorded. */
void tr_record_close(const struct rail_trace_end *end);

/* Name of the call that this thread is about to record. */
struct tr_call_name {
  uint32_t thread;
  uint64_t number;
};
struct tr_call_name tr_call_name(void);

/* The event's time is CLOCK_MONOTONIC, thread and number are filled in. */
void tr_record(struct rail_trace_event *event);

uint64_t tr_recorded(void), tr_dropped(void); /* calls so far, of all threads */
const char *tr_record_path(void);             /* "" when nothing is recorded */

#endif
