/* SPDX-License-Identifier: Apache-2.0
 * The command line. */
#include "tools/common/options.h"

#include "rail/version.h"
#include "tools/rail-stat/stat.h"

static int set_mode(const struct tool_value *v) {
  struct rs_options *o = v->into;
  enum rs_mode mode = (enum rs_mode)v->option->tag;
  if (o->mode != RS_DEFAULT && o->mode != mode) {
    fprintf(stderr, RS_NAME ": --%s: only one of --once, --prometheus, --json, --list and --clean is allowed\n",
            v->option->name);
    return -1;
  }
  o->mode = mode;
  return 0;
}

static int add_pid(const struct tool_value *v) {
  struct rs_options *o = v->into;
  uint64_t pid;
  if (v->text[0] == '0' || !tool_parse_u64(v->text, false, &pid) || pid > INT32_MAX)
    return tool_bad(v, "a process number, 1 to 2147483647");
  if (o->npids == RS_MAX_PIDS) return tool_bad(v, "at most %d processes", RS_MAX_PIDS);
  o->pids[o->npids++] = (int64_t)pid;
  return 0;
}

static int print_version(const struct tool_value *v) {
  (void)v;
  printf(RS_NAME " " RAIL_VERSION "\n");
  return 1;
}

#define MODE .kind = TOOL_CALL, .set = set_mode, .tag
#define AT(field) .at = offsetof(struct rs_options, field)

static const struct tool_option options[] = {
    {"once", '1', NULL, "print one table, with the rates of one interval, and end", MODE = RS_ONCE},
    {"prometheus", 'm', NULL, "print all counters in Prometheus' text format", MODE = RS_PROMETHEUS},
    {"json", 'J', NULL, "print all counters as JSON; times are nanoseconds of CLOCK_MONOTONIC", MODE = RS_JSON},
    {"list", 'l', NULL, "list the pages: live, dead, unreadable and why", MODE = RS_LIST},
    {"clean", 0, NULL, "remove the pages of processes that are dead", MODE = RS_CLEAN},
    {"pid", 'p', "PID", "only this process; may be given several times", TOOL_CALL, .set = add_pid},
    {"streams", 's', NULL, "show each stream of the connections too", TOOL_FLAG, AT(streams)},
    {"interval", 'i', "SECONDS", "time between two snapshots, 0.05 to 3600", TOOL_SECONDS, AT(interval_ms), .min = 0.05,
     .max = 3600, .preset = "1"},
    {"dir", 0, "DIR", "where the pages lie (" RAIL_STATS_DIR "); for a container: /proc/PID/root" RAIL_STATS_DIR,
     TOOL_TEXT, AT(dir), .allowed = "a directory"},
    {"version", 'V', NULL, "print the version and end", TOOL_CALL, .set = print_version},
    {"help", 'h', NULL, "this text", .kind = TOOL_HELP},
};

static const struct tool_command command = {
    .name = RS_NAME,
    .usage = "[option...]",
    .about = "Shows the counters of all processes on this machine that use Railyard's plugins. On a\n"
             "terminal the view is live, busiest connections first: q ends it, s shows the streams.\n"
             "Otherwise it prints one table, as with --once.",
    .options = options,
    .noptions = sizeof options / sizeof *options,
    .tail = "exit status: 0 done, 1 no page of the given --pid, 2 bad arguments, 3 reading or writing failed",
};

int rs_options_parse(int argc, char **argv, struct rs_options *o) {
  *o = (struct rs_options){.interval_ms = 1000, .dir = RAIL_STATS_DIR};
  int r = tool_options_read(&command, argc, argv, o, NULL);
  if (r == 0 && o->mode == RS_CLEAN && o->npids)
    return tool_misuse(&command, "not with --clean, which looks at all processes:", "--pid");
  return r;
}
