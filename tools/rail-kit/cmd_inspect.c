/* SPDX-License-Identifier: Apache-2.0
 * `rail-kit inspect`: what NCCL makes of a plugin's file. */
#include "kit/inspect/kit_inspect.h"
#include "tools/rail-kit/commands.h"

static int add_device(const struct tool_value *v) {
  struct kit_inspect_options *how = v->into;
  uint64_t dev;
  if (!tool_parse_u64(v->text, false, &dev) || dev > 1023) return tool_bad(v, "a number from 0 to 1023");
  if (how->ndevices == KIT_INSPECT_MAX_DEVICES) return tool_bad(v, "at most %d devices", KIT_INSPECT_MAX_DEVICES);
  how->devices[how->ndevices++] = (int)dev;
  return 0;
}

#define AT(field) .at = offsetof(struct kit_inspect_options, field)

static const struct tool_option options[] = {
    {"device", 'd', "N", "only this device's properties; may be given several times (all)", TOOL_CALL,
     .set = add_device},
    {"json", 'J', "FILE", "the report as JSON; '-': to standard output, instead of the text", TOOL_TEXT, AT(json),
     .allowed = "a file, or - for standard output"},
    {"params", 'p', NULL, "print the parameters of one of Railyard's plugins and end", TOOL_FLAG, AT(params)},
    {"limit", 'T', "SECONDS", "for each process that loads the plugin", TOOL_SECONDS, AT(limit_ms), .min = 0.5,
     .max = 3600, .preset = "10"},
    {"help", 'h', NULL, "this text", .kind = TOOL_HELP},
};

static const struct tool_command command = {
    .name = RK_NAME " inspect",
    .usage = "PLUGIN [option...]",
    .about = "Shows what NCCL makes of PLUGIN, a library's path or a name as NCCL_NET_PLUGIN takes it: which tables\n"
             "it exports and whether they are whole, which of them each NCCL from 2.13 to 2.30 takes and by which\n"
             "NCCL_NET_PLUGIN it finds the file, which libraries are missing, and what its devices report. The plugin\n"
             "is loaded in processes of its own; a crash or a hang is a result.",
    .options = options,
    .noptions = sizeof options / sizeof *options,
    .tail = RK_EXIT_STATUS,
};

int rk_inspect(int argc, char **argv) {
  struct kit_inspect_options how = {.limit_ms = 10000};
  char **files;
  int r = tool_options_read(&command, argc, argv, &how, &files);
  if (r != 0) return r > 0 ? tool_exit_printed(RK_NAME) : TOOL_EXIT_USAGE;
  if (!files[0]) return tool_misuse(&command, "a plugin is missing", NULL), TOOL_EXIT_USAGE;
  if (files[1]) return tool_misuse(&command, "one plugin at a time, not also", files[1]), TOOL_EXIT_USAGE;
  how.file = files[0];
  return kit_inspect_run(&how);
}
