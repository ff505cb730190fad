/* SPDX-License-Identifier: Apache-2.0
 * `rail-kit trace`: prints what railtrace recorded. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "kit/kit_filter.h"
#include "kit/kit_json.h"
#include "kit/kit_plot.h"
#include "kit/trace/kit_trace.h"
#include "tools/rail-kit/commands.h"

struct trace_options {
  struct kit_trace how;
  const char *json;
};

#define AT(field) .at = offsetof(struct trace_options, how.field)

static int set_calls(const struct tool_value *v) {
  const char *at = v->text;
  char word[32];
  while (kit_list_next(&at, word, sizeof word)) {
    unsigned int kind = RAIL_TRACE_NONE + 1;
    while (kind < RAIL_TRACE_KINDS && strcmp(rail_trace_kind_name(kind), word) != 0) kind++;
    if (kind == RAIL_TRACE_KINDS) return tool_bad(v, "names of calls with commas: isend,irecv,test,finding,…");
  }
  ((struct trace_options *)v->into)->how.calls = v->text;
  return 0;
}

static int set_plot(const struct tool_value *v) {
  if (!kit_plot_can_write(v->text)) return tool_bad(v, "a file that ends with .svg or .png");
  ((struct trace_options *)v->into)->how.plot = v->text;
  return 0;
}

static const struct tool_option options[] = {
    {"summary", 's', NULL, "per call and per connection: counts, times, sizes, depth, pauses; and the findings",
     TOOL_FLAG, AT(summary)},
    {"call", 'c', "LIST", "only these calls: isend,irecv,test,finding,...", TOOL_CALL, .set = set_calls},
    {"comm", 'm', "N", "only calls on this comm", TOOL_U64, AT(comm)},
    {"thread", 't', "N", "only calls of this thread", TOOL_INT, AT(thread), .min = 1, .max = 4096},
    {"from", 0, "SECONDS", "only calls from there on, after the file's beginning", TOOL_REAL, AT(from), .min = 0,
     .max = 1e9, .preset = "0"},
    {"until", 0, "SECONDS", "only calls up to there", TOOL_REAL, AT(until), .min = 0, .max = 1e9, .preset = "the end"},
    {"gap", 'g', "MS", "with --summary: count pauses longer than this, of connections that had work", TOOL_REAL,
     AT(gap_ms), .min = 0.001, .max = 1e9, .preset = "10"},
    {"json", 'J', "FILE", "as JSON: an array with an object for each file; - is standard output", TOOL_TEXT,
     .at = offsetof(struct trace_options, json), .allowed = "a file, or - for standard output"},
    {"plot", 'p', "FILE", "draw bytes a second and requests outstanding into this SVG or PNG file", TOOL_CALL,
     .set = set_plot},
    {"help", 'h', NULL, "this text", .kind = TOOL_HELP},
};

static const struct tool_command command = {
    .name = RK_NAME " trace",
    .usage = "FILE... [option...]",
    .about = "Prints the calls that libnccl-net-railtrace.so recorded: when, THREAD.NUMBER, what, how long. A file\n"
             "that is broken is printed up to there; the error names the offset.",
    .options = options,
    .noptions = sizeof options / sizeof *options,
    .tail = "exit status: 0 fine, 1 there are findings (with --summary), 2 bad arguments, 3 a file cannot be read",
};

/* What another option would ignore. NULL: nothing. */
static const char *find_conflict(const struct trace_options *o) {
  const struct kit_trace *how = &o->how;
  if (how->plot && (how->summary || o->json)) return "--plot goes without --summary and --json";
  bool by_call = how->calls || how->comm || how->thread, by_time = how->from > 0 || how->until > 0;
  if (how->plot && (by_call || by_time))
    return "--plot draws all calls: it goes without --call, --comm, --thread, --from and --until";
  if (how->summary && by_call) return "--summary has all calls: it goes without --call, --comm and --thread";
  return NULL;
}

int rk_trace(int argc, char **argv) {
  struct trace_options o = {.how = {.gap_ms = 10}};
  int r = tool_options_read(&command, argc, argv, &o, &o.how.files);
  if (r != 0) return r > 0 ? TOOL_EXIT_OK : TOOL_EXIT_USAGE;
  if (!o.how.files[0]) return tool_misuse(&command, "a file is missing", NULL), TOOL_EXIT_USAGE;
  const char *conflict = find_conflict(&o);
  if (conflict) return tool_misuse(&command, conflict, NULL), TOOL_EXIT_USAGE;
  for (char **file = o.how.files; *file; file++) {
    if (access(*file, R_OK) == 0) continue;
    fprintf(stderr, RK_NAME ": %s: %s\n", *file, strerror(errno));
    return TOOL_EXIT_FAILED;
  }
  if (!kit_file_check(RK_NAME, o.how.plot)) return TOOL_EXIT_FAILED;
  FILE *out = kit_file_open(RK_NAME, o.json);
  if (!out) return TOOL_EXIT_FAILED;
  o.how.json = o.json != NULL;
  int status = kit_trace_run(&o.how, out);
  return kit_file_close(RK_NAME, out, o.json) ? status : TOOL_EXIT_FAILED;
}
