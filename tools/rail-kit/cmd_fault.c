/* SPDX-License-Identifier: Apache-2.0
 * `rail-kit fault`: faults while data flows. */
#include "kit/fault/kit_fault.h"
#include "kit/kit_json.h"
#include "tools/rail-kit/commands.h"

struct fault_options {
  struct kit_fault how;
  struct rk_hosts hosts;
  bool list;
};

#define AT(field) .at = offsetof(struct fault_options, field)
#define LIST .kind = TOOL_TEXT, .allowed = "names, numbers, areas or patterns, separated by commas"
#define FILE_NAME .kind = TOOL_TEXT, .allowed = "a file, or - for standard output"

static int set_links(const struct tool_value *v) {
  struct kit_fault *how = &((struct fault_options *)v->into)->how;
  how->links_text = v->text;
  return kit_fault_ports_read(v->text, how->links) ? 0 : tool_bad(v, "two interfaces with a comma, each [NETNS:]NAME");
}

static const struct tool_option options[] = {
    {"abi", 'a', "N", "the vtable of this version, 6 to 12; else the newest that the plugin has", TOOL_INT,
     AT(how.version), .min = 6, .max = 12},
    {"device", 'd', "N", "the plugin's device", TOOL_INT, AT(how.dev), .min = 0, .max = 1023, .preset = "0"},
    RK_FUSE_OPTION(struct fault_options, how.fuse),
    RK_VERBS_OPTION,
    {"only", 'o', "LIST", "these scenarios: names, numbers, areas (kill), patterns (*.idle)", LIST, AT(how.only)},
    {"skip", 's', "LIST", "all but these", LIST, AT(how.skip)},
    {"skip-file", 0, "FILE", "scenarios to leave out and report as skipped: lines of PATTERN REASON", FILE_NAME,
     AT(how.skip_file)},
    {"level", 'l', "LIST", "only scenarios of these levels: must, should, observed", LIST, AT(how.levels)},
    {"seed", 0, "N", "for traffic, moments and victims; else from the clock", TOOL_U64, AT(how.seed)},
    {"repeat", 'r', "N", "each scenario so many times, the seed counting up", TOOL_INT, AT(how.repeat), .min = 1,
     .max = 100000, .preset = "1"},
    {"rounds", 'R', "N", "instead of each once, so many, drawn at random", TOOL_INT, AT(how.rounds), .min = 1,
     .max = 1000000},
    {"calls", 'c', "N", "of each failing kind (fail.*) make so many calls fail, a run each", TOOL_INT, AT(how.calls),
     .min = 1, .max = 1000000, .preset = "8"},
    {"patience", 'p', "SECONDS", "within which a death must be noticed", TOOL_SECONDS, AT(how.patience_ms), .min = 0.1,
     .max = 600, .preset = "5"},
    {"stop-time", 't', "SECONDS", "of stop.long and link.*_long", TOOL_SECONDS, AT(how.stop_ms), .min = 0.1, .max = 600,
     .preset = "3"},
    {"links", 0, "A,B", "interfaces of the two sides that link.* is done to, as [NETNS:]NAME; else it makes its own",
     TOOL_CALL, .set = set_links},
    RK_PLACEMENT_OPTIONS(struct fault_options, how.placement),
    RK_HOSTS_OPTIONS(struct fault_options, hosts),
    {"list", 0, NULL, "list the scenarios and end", TOOL_FLAG, AT(list)},
    {"verbose", 'v', NULL, "which errors came, when, and the figures, of every scenario", TOOL_FLAG, AT(how.verbose)},
    {"json", 'J', "FILE", "the report as JSON", FILE_NAME, AT(how.json)},
    {"junit", 0, "FILE", "the report as JUnit XML", FILE_NAME, AT(how.junit)},
    {"help", 'h', NULL, "this text", .kind = TOOL_HELP},
};

static const struct tool_command command = {
    .name = RK_NAME " fault",
    .usage = "PLUGIN [option...]",
    .about = "Causes faults in two processes with running transfers, whose contents are checked: one is killed,\n"
             "stopped or closes, foreign clients connect, links go down, system calls fail. Reports which process\n"
             "got which error, and when. No crash, no hanging call, no wrong byte, a working close: MUST. Nothing\n"
             "left behind, a dead peer noticed, no error from a harmless event: SHOULD. Links need root, for\n"
             "network namespaces.",
    .options = options,
    .noptions = sizeof options / sizeof *options,
    .tail = RK_EXIT_STATUS,
};

int rk_fault(int argc, char **argv) {
  struct fault_options o = {.how = {.repeat = 1, .patience_ms = KIT_FAULT_PATIENCE_MS, .stop_ms = KIT_FAULT_STOP_MS}};
  char **plugins;
  int status, r = tool_options_read(&command, argc, argv, &o, &plugins);
  if (r != 0) return r > 0 ? TOOL_EXIT_OK : TOOL_EXIT_USAGE;
  if (o.list) return kit_fault_list(&o.how, stdout, o.how.json != NULL);
  if (!plugins[0]) return tool_misuse(&command, "a plugin is missing", NULL), TOOL_EXIT_USAGE;
  if (plugins[1]) return tool_misuse(&command, "one plugin at a time, not also", plugins[1]), TOOL_EXIT_USAGE;
  o.how.plugin = plugins[0];
  if (!kit_file_check(RK_NAME, o.how.json) || !kit_file_check(RK_NAME, o.how.junit)) return TOOL_EXIT_FAILED;
  r = rk_hosts_open(&o.hosts, o.how.plugin, &o.how.link, &status);
  if (r != 0) return status;
  if (o.how.link && rk_has_placement(&o.how.placement)) {
    kit_link_close(o.how.link);
    return tool_misuse(&command, "only on one host:", "--netns, --side-env"), TOOL_EXIT_USAGE;
  }
  o.how.connect = o.hosts.connect;
  status = kit_fault_run(&o.how);
  kit_link_close(o.how.link);
  return status;
}
