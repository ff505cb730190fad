/* SPDX-License-Identifier: Apache-2.0
 * A picture of files over time: bytes a second and requests outstanding, a line for each file. */
#ifndef RAIL_KIT_TRACE_PLOT_H
#define RAIL_KIT_TRACE_PLOT_H

#include "kit/trace/kit_trace.h"

/* By kit_plot. False: told on stderr. */
bool kit_trace_plot(const struct kit_trace *how);

#endif
