/* SPDX-License-Identifier: Apache-2.0
 * `rail-kit replay`: makes recorded calls again, on any plugin. */
#include "kit/kit_json.h"
#include "kit/trace/kit_replay.h"
#include "tools/rail-kit/commands.h"

struct replay_options {
  struct kit_replay how;
  const char *json;
};

#define AT(field) .at = offsetof(struct replay_options, how.field)

static const struct tool_option options[] = {
    {"plugin", 'P', "PLUGIN", "the plugin: a library's path, or a name as NCCL_NET_PLUGIN takes it", TOOL_TEXT,
     AT(plugin), .allowed = "a path or a name"},
    {"abi", 'a', "N", "its vtable of this version, 6 to 12; else the newest that it has", TOOL_INT, AT(version),
     .min = 6, .max = 12},
    {"device", 'd', "N", "everything on this device; else those of the recording", TOOL_INT, AT(dev), .min = 0,
     .max = 1023},
    {"speed", 's', "N", "1: each call when the recording made it, at the earliest; 0: as soon as it can be made",
     TOOL_INT, AT(speed), .min = 0, .max = 1, .preset = "0"},
    {"compare", 'c', NULL, "show times of messages, recorded and replayed", TOOL_FLAG, AT(compare)},
    {"no-data", 0, NULL, "neither make nor compare contents: for times that are not those of the replay itself",
     TOOL_FLAG, AT(unchecked)},
    {"seed", 0, "N", "for the contents of messages", TOOL_U64, AT(seed), .preset = "1"},
    {"limit", 0, "SECONDS", "for the whole of it", TOOL_SECONDS, AT(limit_ms), .min = 1, .max = 86400, .preset = "600"},
    {"json", 'J', "FILE", "the report as JSON; - is standard output", TOOL_TEXT,
     .at = offsetof(struct replay_options, json), .allowed = "a file, or - for standard output"},
    {"help", 'h', NULL, "this text", .kind = TOOL_HELP},
};

static const struct tool_command command = {
    .name = RK_NAME " replay",
    .usage = "FILE... --plugin PLUGIN [option...]",
    .about = "Makes the calls again that libnccl-net-railtrace.so recorded, a process for each file, without NCCL and\n"
             "GPU. Ends are brought together by their handles; every comm keeps the order of its posts and\n"
             "completions; sizes and contents are compared on arrival. Give the files of all ranks of a job.",
    .options = options,
    .noptions = sizeof options / sizeof *options,
    .tail = "exit status: 0 all as recorded, 1 something differs, 2 bad arguments, 3 it could not be run",
};

int rk_replay(int argc, char **argv) {
  struct replay_options o = {.how = {.dev = -1, .seed = 1, .limit_ms = 600000}};
  int r = tool_options_read(&command, argc, argv, &o, &o.how.files);
  if (r != 0) return r > 0 ? TOOL_EXIT_OK : TOOL_EXIT_USAGE;
  if (!o.how.files[0]) return tool_misuse(&command, "a file is missing", NULL), TOOL_EXIT_USAGE;
  if (!o.how.plugin) return tool_misuse(&command, "a plugin is missing:", "--plugin"), TOOL_EXIT_USAGE;
  FILE *out = kit_file_open(RK_NAME, o.json);
  if (!out) return TOOL_EXIT_FAILED;
  o.how.json = o.json != NULL;
  int status = kit_replay_run(&o.how, out);
  return kit_file_close(RK_NAME, out, o.json) ? status : TOOL_EXIT_FAILED;
}
