/* SPDX-License-Identifier: Apache-2.0
 *
 * Logging. A plugin logs through the logger that NCCL hands to init; until
 * then, and in programs without NCCL, lines go to stderr, or a file, filtered by
 * NCCL_DEBUG (NONE, VERSION, WARN, INFO, TRACE; default WARN).
 * All functions preserve errno and may be called from any thread.
 */
#ifndef RAIL_LOG_H
#define RAIL_LOG_H

#include "compiler.h"
#include "rail/net.h"
#include <stdbool.h>

/* What each line begins with: the module, "NET/RailSocket". A text that begins "RailSocket: " loses that then. Kept by
 * reference. */
void rail_log_set_prefix(const char *prefix);

/* Sets the sink; NULL returns to stderr. A later set replaces the earlier:
 * NCCL's own logger is one function per process. */
void rail_log_set_sink(rail_logger_fn sink);

/* Lines go to this file, at its end, instead of stderr: NCCL_DEBUG_FILE's text, where %h is the host, %p the process
 * and %% a %. It is opened at the first line and stays open, as with NCCL: a child of fork goes on in its parent's
 * file, and a program must not close descriptors that it does not know of. Once a process. */
void rail_log_set_file(const char *pattern);

void rail_log_at(enum rail_log_level level, unsigned long subsys, const char *file, int line, const char *fmt, ...)
    RAIL_PRINTF(5, 6);

/* NCCL_DEBUG is looked at again before the next line. */
void rail_log_reload(void);

/* "4.2.1.7:5000"-style lines carry what, who, and what to do. */
#define RAIL_WARN(...) rail_log_at(RAIL_LOG_WARN, ~0ul, __FILE__, __LINE__, __VA_ARGS__)
#define RAIL_INFO(subsys, ...) rail_log_at(RAIL_LOG_INFO, (subsys), __FILE__, __LINE__, __VA_ARGS__)

/* Handshake steps and the like; formatted only when the level asks for it.
 * The data path logs nothing. */
bool rail_log_trace_on(void);
#define RAIL_TRACE(subsys, ...)                                                              \
  do {                                                                                       \
    if (rail_unlikely(rail_log_trace_on())) rail_log_at(RAIL_LOG_TRACE, (subsys), __FILE__, __LINE__, __VA_ARGS__); \
  } while (0)

#endif
