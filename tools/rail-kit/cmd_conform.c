/* SPDX-License-Identifier: Apache-2.0
 * `rail-kit conform`: the contract, checked. */
#include "kit/conform/kit_conform.h"
#include "kit/kit_json.h"
#include "tools/rail-kit/commands.h"

struct conform_options {
  struct kit_conform how;
  struct rk_hosts hosts;
  bool list;
};

#define AT(field) .at = offsetof(struct conform_options, field)
#define LIST .kind = TOOL_TEXT, .allowed = "names, numbers, areas or patterns, separated by commas"
#define FILE_NAME .kind = TOOL_TEXT, .allowed = "a file, or - for standard output"

static const struct tool_option options[] = {
    {"abi", 'a', "N", "the vtable of this version, 6 to 12; else the newest that the plugin has", TOOL_INT,
     AT(how.version), .min = 6, .max = 12},
    {"all-versions", 'A', NULL, "every version that the plugin exports", TOOL_FLAG, AT(how.all_versions)},
    {"device", 'd', "N", "the plugin's device", TOOL_INT, AT(how.dev), .min = 0, .max = 1023, .preset = "0"},
    RK_FUSE_OPTION(struct conform_options, how.fuse),
    RK_VERBS_OPTION,
    {"only", 'o', "LIST", "these checks: names, numbers, areas (connect), patterns (*.no_*)", LIST, AT(how.only)},
    {"skip", 's', "LIST", "all but these", LIST, AT(how.skip)},
    {"skip-file", 0, "FILE", "checks to leave out and report as skipped: lines of PATTERN REASON", FILE_NAME,
     AT(how.skip_file)},
    {"level", 'l', "LIST", "only checks of these levels: must, should, observed", LIST, AT(how.levels)},
    {"seed", 0, "N", "for what is random; else from the clock", TOOL_U64, AT(how.seed)},
    {"repeat", 'r', "N", "each check so many times, the seed counting up", TOOL_INT, AT(how.repeat), .min = 1,
     .max = 100000, .preset = "1"},
    {"fail-fast", 'f', NULL, "end at the first check that fails", TOOL_FLAG, AT(how.fail_fast)},
    RK_PLACEMENT_OPTIONS(struct conform_options, how.placement),
    RK_HOSTS_OPTIONS(struct conform_options, hosts),
    {"list", 0, NULL, "list the checks and end; with --verbose their sources, too", TOOL_FLAG, AT(list)},
    {"verbose", 'v', NULL, "notes and figures of every check", TOOL_FLAG, AT(how.verbose)},
    {"json", 'J', "FILE", "the report as JSON", FILE_NAME, AT(how.json)},
    {"junit", 0, "FILE", "the report as JUnit XML", FILE_NAME, AT(how.junit)},
    {"help", 'h', NULL, "this text", .kind = TOOL_HELP},
};

static const struct tool_command command = {
    .name = RK_NAME " conform",
    .usage = "PLUGIN [option...]",
    .about = "Checks what NCCL relies on: PLUGIN is a library's path, or a name as NCCL_NET_PLUGIN takes it. Every\n"
             "check runs in processes of its own; a crash or a hang is a result. MUST: NCCL breaks without it.\n"
             "SHOULD: its users suffer. OBSERVED: a figure, no verdict. On one host NCCL_SOCKET_IFNAME is lo\n"
             "unless it is set.",
    .options = options,
    .noptions = sizeof options / sizeof *options,
    .tail = RK_EXIT_STATUS,
};

int rk_conform(int argc, char **argv) {
  struct conform_options o = {.how = {.repeat = 1}};
  char **plugins;
  int status, r = tool_options_read(&command, argc, argv, &o, &plugins);
  if (r != 0) return r > 0 ? TOOL_EXIT_OK : TOOL_EXIT_USAGE;
  if (o.list) return kit_conform_list(&o.how, stdout, o.how.json != NULL);
  if (!plugins[0]) return tool_misuse(&command, "a plugin is missing", NULL), TOOL_EXIT_USAGE;
  if (plugins[1]) return tool_misuse(&command, "one plugin at a time, not also", plugins[1]), TOOL_EXIT_USAGE;
  if (o.how.all_versions && o.how.version)
    return tool_misuse(&command, "not with --all-versions:", "--abi"), TOOL_EXIT_USAGE;
  o.how.plugin = plugins[0];
  if (!kit_file_check(RK_NAME, o.how.json) || !kit_file_check(RK_NAME, o.how.junit)) return TOOL_EXIT_FAILED;
  r = rk_hosts_open(&o.hosts, o.how.plugin, &o.how.link, &status);
  if (r != 0) return status;
  if (o.how.link && rk_has_placement(&o.how.placement)) {
    kit_link_close(o.how.link);
    return tool_misuse(&command, "only on one host:", "--netns, --side-env"), TOOL_EXIT_USAGE;
  }
  o.how.connect = o.hosts.connect;
  status = kit_conform_run(&o.how);
  kit_link_close(o.how.link);
  return status;
}
