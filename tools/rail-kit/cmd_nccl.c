/* SPDX-License-Identifier: Apache-2.0
 * `rail-kit nccl`: NCCL's own host code over a plugin. */
#include <string.h>

#include "kit/kit_filter.h"
#include "kit/nccl/kit_nccl.h"
#include "tools/rail-kit/commands.h"

struct nccl_options {
  struct kit_nccl how;
  bool list;
};

#define AT(field) .at = offsetof(struct nccl_options, field)
#define LIST .kind = TOOL_TEXT, .allowed = "words, numbers or patterns, separated by commas"
#define FILE_NAME .kind = TOOL_TEXT, .allowed = "a file, or - for standard output"

static int set_sizes(const struct tool_value *v) {
  struct kit_nccl *how = &((struct nccl_options *)v->into)->how;
  const char *at = v->text;
  char word[32];
  how->nsizes = 0;
  while (kit_list_next(&at, word, sizeof word)) {
    uint64_t *size = how->nsizes < KIT_NCCL_SIZES ? &how->sizes[how->nsizes++] : NULL;
    if (!size || !tool_parse_u64(word, true, size) || *size > 256u << 20)
      return tool_bad(v, "up to %d sizes with commas, of 256M at most, such as 8,64K", KIT_NCCL_SIZES);
  }
  return 0;
}

/* Every word must be one of them. */
static int check_words(const struct tool_value *v, const char *const *words, const char **to) {
  const char *at = v->text;
  char word[32];
  while (kit_list_next(&at, word, sizeof word)) {
    int i = 0;
    while (words[i] && strcmp(words[i], word) != 0) i++;
    if (!words[i]) return tool_bad(v, "nccl-tests' words with commas: %s, %s, …", words[0], words[1]);
  }
  *to = v->text;
  return 0;
}

static int set_types(const struct tool_value *v) {
  return check_words(v, kit_nccl_types, &((struct nccl_options *)v->into)->how.types);
}

static int set_redops(const struct tool_value *v) {
  return check_words(v, kit_nccl_redops, &((struct nccl_options *)v->into)->how.redops);
}

#define REPEAT 20
#define TEXT_OF_(number) #number
#define TEXT_OF(number) TEXT_OF_(number)

static const char *const off_on[] = {"off", "on", NULL};

static const struct tool_option options[] = {
    {"nccl", 'n', "PATH", "libnccl.so.2, built with a dynamic CUDA runtime: see docs/nccl.md", TOOL_TEXT,
     AT(how.library), .allowed = "a file"},
    {"ranks", 'r', "N", "ranks, each with a GPU", TOOL_INT, AT(how.ranks), .min = 2,
     .max = KIT_NCCL_MAX_RANKS, .preset = "2"},
    {"ranks-per-host", 0, "N", "so many of them are one host: a divisor of the ranks, and less", TOOL_INT,
     AT(how.ranks_per_host), .min = 1, .max = KIT_NCCL_MAX_GPUS, .preset = "those of a process"},
    {"gpus-per-process", 0, "N", "GPUs of a process, each of which is a rank", TOOL_INT, AT(how.gpus_per_process),
     .min = 1, .max = KIT_NCCL_MAX_GPUS, .preset = "1"},
    {"channels", 'c', "N", "of NCCL's", TOOL_INT, AT(how.channels), .min = 1, .max = 16, .preset = "2"},
    {"only", 'o', "LIST", "these cases: names, numbers, areas (all_reduce), patterns (*.ring.LL)", LIST,
     AT(how.only)},
    {"skip", 's', "LIST", "all but these", LIST, AT(how.skip)},
    {"sizes", 0, "LIST", "bytes that a rank sends; above 64K only the first type and operation", TOOL_CALL,
     .set = set_sizes, .preset = "8,1000,64K,1M"},
    {"types", 0, "LIST", "int8, uint8, int32, …, half, float, double, bfloat16; else all that this NCCL has", TOOL_CALL,
     .set = set_types},
    {"redops", 0, "LIST", "sum, prod, max, min, avg; else all that this NCCL has", TOOL_CALL, .set = set_redops},
    {"repeat", 0, "N", "communicators that comm.repeated makes", TOOL_INT, AT(how.repeat), .min = KIT_NCCL_WARM + 1,
     .max = 100000, .preset = TEXT_OF(REPEAT)},
    {"seed", 0, "N", "for the moments of faults; else from the clock", TOOL_U64, AT(how.seed)},
    {"oob", 0, NULL, "NCCL's bootstrap through the plugin, too (NCCL_OOB_NET_ENABLE)", TOOL_FLAG, AT(how.oob)},
    {"gdr", 0, "on|off", "GPUDirect: the plugin sends from the GPU's memory and receives into it", TOOL_CHOICE,
     AT(how.gdr), .words = off_on, .preset = "off"},
    {"limit", 0, "SECONDS", "for the processes of each case", TOOL_SECONDS, AT(how.limit_ms), .min = 1,
     .max = 3600, .preset = "60"},
    {"list", 0, NULL, "list the cases and end", TOOL_FLAG, AT(list)},
    {"quiet", 'q', NULL, "no rows of what went well", TOOL_FLAG, AT(how.quiet)},
    {"json", 'J', "FILE", "the report as JSON", FILE_NAME, AT(how.json)},
    {"junit", 0, "FILE", "the report as JUnit XML", FILE_NAME, AT(how.junit)},
    {"help", 'h', NULL, "this text", .kind = TOOL_HELP},
};

static const struct tool_command command = {
    .name = RK_NAME " nccl",
    .usage = "PLUGIN --nccl PATH [option...]",
    .about = "Runs NCCL's own host code over a plugin, with no GPU: its kernels run on the CPU, on a CUDA driver and\n"
             "runtime that emulate one. Each rank is a process, or each --gpus-per-process of them, and NCCL takes a\n"
             "process for a host, so that all data between processes goes through the plugin (but see\n"
             "--ranks-per-host). Contents are compared with scalar code, and NCCL's log is asked which plugin carries\n"
             "each connection. Other cases make communicators, split and lose them. Times say nothing about a GPU.\n"
             "PLUGIN may also be one of NCCL's own networks: " KIT_NCCL_BUILTIN "Socket, " KIT_NCCL_BUILTIN "IB.\n"
             "Variables that are set stay (NCCL_P2P_DISABLE=0); docs/nccl.md has those that do not.",
    .options = options,
    .noptions = sizeof options / sizeof *options,
    .tail = RK_EXIT_STATUS,
};

/* option: the one that says how many ranks a host has. */
static int refuse_hosts(const struct kit_nccl *how, const char *option) {
  char what[128];
  snprintf(what, sizeof what, "%s %d: --ranks is %d; allowed: a divisor of it that leaves several hosts", option,
           how->ranks_per_host, how->ranks);
  if (how->ranks_per_host % how->gpus_per_process != 0)
    snprintf(what, sizeof what, "--ranks-per-host %d: --gpus-per-process is %d; allowed: a multiple of it",
             how->ranks_per_host, how->gpus_per_process);
  tool_misuse(&command, what, NULL);
  return TOOL_EXIT_USAGE;
}

/* False: the plugin's name says that it is one of NCCL's own networks, and there is none of that name. */
static bool find_network(struct kit_nccl *how) {
  const size_t prefix = strlen(KIT_NCCL_BUILTIN);
  if (strncmp(how->plugin, KIT_NCCL_BUILTIN, prefix) != 0) return true;
  for (int i = 0; kit_nccl_networks[i] && !how->network; i++)
    if (strcasecmp(how->plugin + prefix, kit_nccl_networks[i]) == 0) how->network = kit_nccl_networks[i];
  return how->network != NULL;
}

int rk_nccl(int argc, char **argv) {
  struct nccl_options o = {.how = {.ranks = 2, .gpus_per_process = 1, .channels = 2, .repeat = REPEAT,
                                   .limit_ms = 60000, .nsizes = 4, .sizes = {8, 1000, 64 << 10, 1 << 20}}};
  char **plugins;
  int r = tool_options_read(&command, argc, argv, &o, &plugins);
  if (r != 0) return r > 0 ? TOOL_EXIT_OK : TOOL_EXIT_USAGE;
  if (o.list) return kit_nccl_list(&o.how);
  if (!plugins[0]) return tool_misuse(&command, "a plugin is missing", NULL), TOOL_EXIT_USAGE;
  if (plugins[1]) return tool_misuse(&command, "one plugin at a time, not also", plugins[1]), TOOL_EXIT_USAGE;
  o.how.plugin = plugins[0];
  if (!find_network(&o.how))
    return tool_misuse(&command, "NCCL's own networks are " KIT_NCCL_BUILTIN "Socket and " KIT_NCCL_BUILTIN "IB, not",
                       plugins[0]), TOOL_EXIT_USAGE;
  if (!o.how.library) return tool_misuse(&command, "--nccl is missing", NULL), TOOL_EXIT_USAGE;
  const char *host_option = o.how.ranks_per_host ? "--ranks-per-host" : "--gpus-per-process";
  if (!o.how.ranks_per_host) o.how.ranks_per_host = o.how.gpus_per_process;
  if (o.how.ranks % o.how.ranks_per_host != 0 || o.how.ranks == o.how.ranks_per_host ||
      o.how.ranks_per_host % o.how.gpus_per_process != 0)
    return refuse_hosts(&o.how, host_option);
  return kit_nccl_run(&o.how);
}
