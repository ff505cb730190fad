/* SPDX-License-Identifier: Apache-2.0
 * The one table of parameters of the wrapper. */
#include "plugin/railtrace/tr_param.h"

#include "common/base/compiler.h"
#include "plugin/railtrace/trace_file.h"

#define AT(field) offsetof(struct tr_params, field)

static const struct rail_param rows[] = {
  {.name = "RAIL_TRACE_PLUGIN", .type = RAIL_PARAM_STRING, .offset = AT(plugin),
   .doc = "The plugin to watch: a path, or a name as in NCCL_NET_PLUGIN. Without it there are no devices."},
  {.name = "RAIL_TRACE_FILE", .type = RAIL_PARAM_STRING, .def = "rail-trace.%h.%p.railtrace", .offset = AT(file),
   .doc = "Where the calls are recorded; %h is the host, %p the process. A file that exists is kept, the new one gets "
          "a number behind. \"none\": nothing is recorded, only checked."},
  {.name = "RAIL_TRACE_LIMIT", .type = RAIL_PARAM_BYTES, .def = "1G", .lo = 1 << 20, .hi = INT64_MAX,
   .offset = AT(limit),
   .doc = "The file grows no larger (unless very many threads begin at that moment); what comes later is counted as "
          "dropped."},
  {.name = "RAIL_TRACE_BUFFER", .type = RAIL_PARAM_BYTES, .def = "1M", .lo = 16384, .hi = RAIL_TRACE_MAX_CHUNK,
   .offset = AT(buffer),
   .doc = "Memory of each thread for calls that are not in the file yet, a power of 2 (rounded down). When it is full, "
          "calls are counted as dropped."},
  {.name = "RAIL_TRACE_TESTS", .type = RAIL_PARAM_ENUM, .def = "done", .words = "all|done", .offset = AT(tests),
   .doc = "Which calls of test are recorded; with done, those that found their request unfinished are only counted."},
  {.name = "RAIL_TRACE_CHECK", .type = RAIL_PARAM_ENUM, .def = "warn", .words = "off|warn|error", .offset = AT(check),
   .doc = "What happens when the caller or the plugin breaks the contract: nothing, a line in the log, or also "
          "ncclInternalError for the caller."},
  {.name = "RAIL_TRACE_SLOW", .type = RAIL_PARAM_MS, .def = "1ms", .lo = 1, .hi = 3600 * 1000, .offset = AT(slow_ms),
   .doc = "A listen, connect or accept that takes longer is reported. It is never made an error."},
};

const struct rail_param_table tr_param_table = {.module = "railtrace", .rows = rows, .count = RAIL_COUNT_OF(rows),
                                              .title = "Recording wrapper"};
struct tr_params tr_params;

void tr_params_load(void) { rail_param_load(&tr_param_table, &tr_params); }
