/* SPDX-License-Identifier: Apache-2.0
 * The command line. */
#include "tools/common/options.h"

#include <stdlib.h>
#include <string.h>

#include "rail/version.h"
#include "tools/rail-coll/coll.h"

static int set_factor(const struct tool_value *v) {
  struct rc_options *o = v->into;
  uint64_t factor;
  if (!tool_parse_u64(v->text, false, &factor) || factor < 2 || factor > 1 << 20)
    return tool_bad(v, "a number from 2 to %d", 1 << 20);
  o->step_factor = factor;
  o->step_bytes = 0;
  return 0;
}

/* A comma list of names, or "all". */
static int get_set(const struct tool_value *v, int (*find)(const char *, size_t), bool *set, int n) {
  bool all = strcmp(v->text, "all") == 0;
  for (int i = 0; i < n; i++) set[i] = all;
  for (const char *at = v->text; !all; at++) {
    size_t len = strcspn(at, ",");
    int i = find(at, len);
    if (i < 0) return tool_bad(v, "%s", v->option->help);
    set[i] = true;
    at += len;
    if (*at == 0) break;
  }
  return 0;
}

static int set_ops(const struct tool_value *v) {
  return get_set(v, rc_op_find, ((struct rc_options *)v->into)->ops, RC_OP_COUNT);
}

static int set_types(const struct tool_value *v) {
  return get_set(v, rc_type_find, ((struct rc_options *)v->into)->types, ncclNumTypes);
}

static int set_root(const struct tool_value *v) {
  struct rc_options *o = v->into;
  uint64_t root;
  o->root = -1;
  if (strcmp(v->text, "all") == 0) return 0;
  if (!tool_parse_u64(v->text, false, &root) || root >= RC_MAX_RANKS)
    return tool_bad(v, "a number from 0 to %d", RC_MAX_RANKS - 1);
  o->root = (int)root;
  return 0;
}

static int memory_find(const char *name, size_t len) {
  for (int i = 0; rc_memory_names[i]; i++)
    if (strlen(rc_memory_names[i]) == len && strncmp(rc_memory_names[i], name, len) == 0) return i;
  return -1;
}

static int set_memory(const struct tool_value *v) {
  struct rc_options *o = v->into;
  o->nmemory = 0;
  for (const char *at = v->text;; at++) {
    size_t len = strcspn(at, ",");
    int kind = memory_find(at, len);
    if (kind < 0 || o->nmemory == RC_MAX_KINDS)
      return tool_bad(v, "host, device or managed, or up to %d of them with commas", RC_MAX_KINDS);
    o->memory[o->nmemory++] = (enum rc_memory)kind;
    at += len;
    if (*at == 0) return 0;
  }
}

static int set_device(const struct tool_value *v) {
  struct rc_options *o = v->into;
  uint64_t device;
  o->device = -1;
  if (strcmp(v->text, "auto") == 0) return 0;
  if (!tool_parse_u64(v->text, false, &device) || device > 1023) return tool_bad(v, "a number from 0 to 1023, or auto");
  o->device = (int)device;
  return 0;
}

static int set_plugin(const struct tool_value *v) {
  struct rc_options *o = v->into;
  if (*v->text == 0 || strchr(v->text, ',')) return tool_bad(v, "one name or path; NCCL_NET_PLUGIN takes a list");
  o->plugin = v->text;
  return setenv("NCCL_NET_PLUGIN", v->text, 1) == 0 ? setenv("RAIL_NET_FALLBACK", "0", 1) : -1;
}

static int set_net_only(const struct tool_value *v) {
  (void)v;
  return setenv("NCCL_SHM_DISABLE", "1", 1);
}

static int print_params(const struct tool_value *v) {
  railParamPrint(v->option->tag);
  return 1;
}

static int print_tuning(const struct tool_value *v) {
  (void)v;
  railTuningPrint();
  return 1;
}

static int print_version(const struct tool_value *v) {
  (void)v;
  printf(RC_NAME " " RAIL_VERSION ", NCCL API %d.%d.%d\n", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
  return 1;
}

static const char *const data_words[] = {[RC_DATA_EXACT] = "exact", [RC_DATA_RANDOM] = "random", NULL};

#define AT(field) .at = offsetof(struct rc_options, field)
#define MANY .max = 1000000000

static const struct tool_option options[] = {
    {"minbytes", 'b', "BYTES", "smallest size (8); K, M, G, T multiply by 1024", TOOL_BYTES, AT(min_bytes)},
    {"maxbytes", 'e', "BYTES", "largest size (32M)", TOOL_BYTES, AT(max_bytes)},
    {"stepbytes", 'i', "BYTES", "step from size to size by adding", TOOL_BYTES, AT(step_bytes), .min = 1},
    {"stepfactor", 'f', "N", "step from size to size by multiplying (2)", TOOL_CALL, .set = set_factor},
    {"iters", 'n', "N", "timed iterations a size (20); 0: check only", TOOL_INT, AT(iters), MANY},
    {"agg_iters", 'm', "N", "operations put together in one group, per iteration (1)",
     TOOL_INT, AT(aggregate), .min = 1, .max = 1000},
    {"warmup_iters", 'w', "N", "iterations before the timed ones (5)", TOOL_INT, AT(warmup), MANY},
    {"check", 'c', "N", "checked iterations a size, each with other data (1); 0: none", TOOL_INT, AT(checks), MANY},
    {"data", 0, "KIND",
                "exact: results must be equal (default); random: within the error bound of rounding",
     TOOL_CHOICE, AT(data), .words = data_words},
    {"seed", 0, "N", "of the data (1)", TOOL_U64, AT(seed)},
    {"offset", 0, "BYTES", "place buffers so far past an aligned address (0)", TOOL_BYTES, AT(offset)},
    {"op", 'o', "OP", "sum, prod, max, min, avg, mulsum, several with commas, or all (sum)", TOOL_CALL, .set = set_ops},
    {"datatype", 'd', "TYPE",
                "int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, f8e4m3, f8e5m2, several "
                "with commas, or all (float)", TOOL_CALL, .set = set_types},
    {"root", 0, "RANK", "of broadcast, reduce, gather and scatter, or all (0)", TOOL_CALL, .set = set_root},
    {"out-of-place", 0, NULL, "only out of place (default: both)", TOOL_FLAG, AT(out_of_place)},
    {"in-place", 0, NULL, "only in place", TOOL_FLAG, AT(in_place)},
    {"average", 'a', "N", "time shown: 0 rank 0's, 1 average, 2 least, 3 greatest of all ranks (3)",
     TOOL_INT, AT(average), .max = RC_TIME_MAX},
    {"blocking", 'z', "0|1", "wait after each operation instead of after all (0)", TOOL_BOOL, AT(blocking)},
    {"local_register", 'R', "0|1", "buffers registered with ncclCommRegister, the host's from ncclMemAlloc (0)",
     TOOL_BOOL, AT(registered)},
    {"memory", 0, "KIND",
                "where buffers are: host (default), device, managed; device,managed: in turns, rank by rank",
     TOOL_CALL, .set = set_memory},
    {"device", 0, "N", "CUDA device of the ranks that have one, or auto: rank modulo devices (auto)",
     TOOL_CALL, .set = set_device},
    {"cudagraph", 'G', "N", "time N launches of a graph of all iterations, and check graphs' results (0: no graph)",
     TOOL_INT, AT(graphs), .max = 1000000},
    {"ranks", 'r', "N", "start N processes on this machine, one rank each (nccl-tests' -r is --root here)",
     TOOL_INT, AT(local_ranks), .min = 1, .max = RC_MAX_RANKS},
    {"nthreads", 't', "N", "threads a process (1)", TOOL_INT, AT(threads), .min = 1, .max = 256},
    {"ngpus", 'g', "N", "ranks a thread (1)", TOOL_INT, AT(comms_per_thread), .min = 1, .max = 256},
    {"timeout", 'T', "SECONDS", "give up when nothing has finished for so long (600); 0: never",
     TOOL_INT, AT(timeout_s), .max = 1000000},
    {"plugin", 0, "NAME", "network plugin, this and no other: NCCL_NET_PLUGIN without its fallback", TOOL_CALL,
     .set = set_plugin},
    {"net-only", 0, NULL, "no shared memory between the ranks of a host: sets NCCL_SHM_DISABLE=1",
     TOOL_CALL, .set = set_net_only},
    {"json", 'J', "FILE",
                "write the results as JSON too; '-': to standard output, the table to standard error",
     TOOL_TEXT, AT(json), .allowed = "a file or -"},
    {"params", 'p', NULL, "print the runtime's parameters and end", TOOL_CALL, .set = print_params},
    {"params-markdown", 0, NULL, "the same as a Markdown table", TOOL_CALL, .set = print_params, .tag = 1},
    {"tuning", 0, NULL, "print what is chosen for which call and size, and end", TOOL_CALL, .set = print_tuning},
    {"version", 'V', NULL, "print versions and end", TOOL_CALL, .set = print_version},
    {"help", 'h', NULL, "this text", .kind = TOOL_HELP},
};

static void print_collectives(FILE *f) {
  const struct rc_collective *c;
  fprintf(f, "\ncollectives:\n");
  for (size_t i = 0; (c = rc_collective_at(i)) != NULL; i++) fprintf(f, "  %-15s %s\n", c->name, c->what);
}

static const struct tool_command command = {
    .name = RC_NAME,
    .usage = "COLLECTIVE [option...]",
    .about = "Times a collective over memory of the host or of GPUs and checks every result. Options and\n"
             "table are those of nccl-tests, except -r.",
    .lists = print_collectives,
    .options = options,
    .noptions = sizeof options / sizeof *options,
    .tail = "ranks: -r N starts them here. Without -r a process asks its launcher: torchrun, Slurm and Open MPI are\n"
            "known by their environment, e.g. mpirun -np 4 " RC_NAME " all_reduce. Else there is one process.\n"
            "\nexit status: 0 all results right, 1 wrong results, 2 bad arguments, 3 a rank failed",
};

static int check_sizes(const struct rc_options *o) {
  char text[32];
  if (o->max_bytes < o->min_bytes) {
    snprintf(text, sizeof text, "%llu", (unsigned long long)o->max_bytes);
    struct tool_value max = tool_value(&command, "maxbytes", text);
    return tool_bad(&max, "a size not below --minbytes (%llu)", (unsigned long long)o->min_bytes);
  }
  struct tool_value min = tool_value(&command, "minbytes", "0");
  if (o->min_bytes == 0 && o->step_bytes == 0 && o->max_bytes > 0)
    return tool_bad(&min, "more than 0 with --stepfactor: 0 multiplied stays 0 (use -i)");
  return 0;
}

/* A communicator's ranks all have host buffers, or all have device buffers. */
static int check_memory(const struct rc_options *o) {
  for (int i = 1; i < o->nmemory; i++)
    if ((o->memory[i] == RC_MEMORY_HOST) != (o->memory[0] == RC_MEMORY_HOST))
      return tool_misuse(&command, "--memory: host and others: a communicator works on one kind of memory", NULL);
  return 0;
}

/* A graph has what lies on a stream. */
static int check_graphs(const struct rc_options *o) {
  if (o->graphs == 0) return 0;
  if (!rc_uses_gpus(o))
    return tool_misuse(&command, "--cudagraph: every rank must have a GPU: --memory device or managed", NULL);
  if (o->blocking)
    return tool_misuse(&command, "--cudagraph: what is captured cannot be waited for: no --blocking", NULL);
  return 0;
}

static int no_collective(const char *what, const char *word) {
  const struct rc_collective *c;
  char text[400];
  snprintf(text, sizeof text, "%s (there are ", what);
  for (size_t i = 0; (c = rc_collective_at(i)) != NULL; i++) {
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s%s", i ? ", " : "", c->name);
  }
  size_t used = strlen(text);
  snprintf(text + used, sizeof text - used, word ? "):" : ")");
  return tool_misuse(&command, text, word);
}

static int complete(char **words, struct rc_options *o) {
  if (!words[0]) return no_collective("a collective is missing", NULL);
  o->collective = rc_collective_find(words[0]);
  if (!o->collective) return no_collective("no such collective", words[0]);
  if (words[1]) return tool_misuse(&command, "more than one collective:", words[1]);
  if (check_sizes(o) != 0 || check_memory(o) != 0) return -1;
  if (!o->out_of_place && !o->in_place) o->out_of_place = o->in_place = true;
  if (o->in_place && !o->out_of_place && !o->collective->in_place)
    return tool_misuse(&command, "--in-place: there is no in-place form of", o->collective->name);
  return check_graphs(o);
}

int rc_options_parse(int argc, char **argv, struct rc_options *o) {
  char **words;
  *o = (struct rc_options){
      .min_bytes = 8, .max_bytes = 32 << 20, .step_factor = 2, .iters = 20, .warmup = 5, .checks = 1, .aggregate = 1,
      .threads = 1, .comms_per_thread = 1, .average = RC_TIME_MAX, .timeout_s = 600, .seed = 1,
      .nmemory = 1, .device = -1};
  o->types[ncclFloat32] = o->ops[ncclSum] = true;
  int r = tool_options_read(&command, argc, argv, o, &words);
  return r != 0 ? r : complete(words, o);
}
