/* SPDX-License-Identifier: Apache-2.0
 *
 * Exit statuses that all tools share. RESULT: the tool did its work, and what it found is bad; it has reported so on
 * standard output. FAILED: it could not do its work.
 */
#ifndef TOOL_EXIT_H
#define TOOL_EXIT_H

enum { TOOL_EXIT_OK = 0, TOOL_EXIT_RESULT = 1, TOOL_EXIT_USAGE = 2, TOOL_EXIT_FAILED = 3 };

/* The status with which a tool that only printed ends: FAILED, reported on stderr, if standard output took not all. */
int tool_exit_printed(const char *prog);

#endif
