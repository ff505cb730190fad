/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line. One table gives each option's letter, name, default and
 * help; a bad argument is named with its value and what is allowed.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tools/rail-coll/coll.h"

enum option_id {
  O_MINBYTES, O_MAXBYTES, O_STEPBYTES, O_STEPFACTOR, O_ITERS, O_AGGREGATE, O_WARMUP, O_CHECK, O_DATA, O_SEED, O_OFFSET,
  O_OP, O_TYPE, O_ROOT, O_OUT_OF_PLACE, O_IN_PLACE, O_AVERAGE, O_BLOCKING, O_REGISTER,
  O_RANKS, O_THREADS, O_GPUS, O_TIMEOUT, O_PLUGIN, O_NET_ONLY, O_JSON, O_PARAMS, O_PARAMS_MARKDOWN, O_VERSION, O_HELP,
  O_COUNT
};

struct option_row {
  const char *name;
  char letter;      /* 0: none */
  const char *arg;  /* NULL: takes none */
  const char *help;
};

static const struct option_row rows[O_COUNT] = {
    [O_MINBYTES] = {"minbytes", 'b', "BYTES", "smallest size (8); K, M, G, T multiply by 1024"},
    [O_MAXBYTES] = {"maxbytes", 'e', "BYTES", "largest size (32M)"},
    [O_STEPBYTES] = {"stepbytes", 'i', "BYTES", "step from size to size by adding"},
    [O_STEPFACTOR] = {"stepfactor", 'f', "N", "step from size to size by multiplying (2)"},
    [O_ITERS] = {"iters", 'n', "N", "timed iterations a size (20); 0: check only"},
    [O_AGGREGATE] = {"agg_iters", 'm', "N", "operations put together in one group, per iteration (1)"},
    [O_WARMUP] = {"warmup_iters", 'w', "N", "iterations before the timed ones (5)"},
    [O_CHECK] = {"check", 'c', "N", "checked iterations a size, each with other data (1); 0: none"},
    [O_DATA] = {"data", 0, "KIND",
                "exact: results must be equal (default); random: within the error bound of rounding"},
    [O_SEED] = {"seed", 0, "N", "of the data (1)"},
    [O_OFFSET] = {"offset", 0, "BYTES", "place buffers so far past an aligned address (0)"},
    [O_OP] = {"op", 'o', "OP", "sum, prod, max, min, avg, mulsum, several with commas, or all (sum)"},
    [O_TYPE] = {"datatype", 'd', "TYPE",
                "int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, f8e4m3, f8e5m2, several "
                "with commas, or all (float)"},
    [O_ROOT] = {"root", 0, "RANK", "of broadcast, reduce, gather and scatter, or all (0)"},
    [O_OUT_OF_PLACE] = {"out-of-place", 0, NULL, "only out of place (default: both)"},
    [O_IN_PLACE] = {"in-place", 0, NULL, "only in place"},
    [O_AVERAGE] = {"average", 'a', "N", "time shown: 0 rank 0's, 1 average, 2 least, 3 greatest of all ranks (3)"},
    [O_BLOCKING] = {"blocking", 'z', "0|1", "wait after each operation instead of after all (0)"},
    [O_REGISTER] = {"local_register", 'R', "0|1", "buffers from ncclMemAlloc, registered with ncclCommRegister (0)"},
    [O_RANKS] = {"ranks", 'r', "N", "start N processes on this machine, one rank each (nccl-tests' -r is --root here)"},
    [O_THREADS] = {"nthreads", 't', "N", "threads a process (1)"},
    [O_GPUS] = {"ngpus", 'g', "N", "ranks a thread (1)"},
    [O_TIMEOUT] = {"timeout", 'T', "SECONDS", "give up when nothing has finished for so long (600); 0: never"},
    [O_PLUGIN] = {"plugin", 0, "NAME", "network plugin: sets NCCL_NET_PLUGIN"},
    [O_NET_ONLY] = {"net-only", 0, NULL, "no shared memory between the ranks of a host: sets NCCL_SHM_DISABLE=1"},
    [O_JSON] = {"json", 'J', "FILE",
                "write the results as JSON too; '-': to standard output, the table to standard error"},
    [O_PARAMS] = {"params", 'p', NULL, "print the runtime's parameters and end"},
    [O_PARAMS_MARKDOWN] = {"params-markdown", 0, NULL, "the same as a Markdown table"},
    [O_VERSION] = {"version", 'V', NULL, "print versions and end"},
    [O_HELP] = {"help", 'h', NULL, "this text"},
};

void rc_help(FILE *out) {
  const struct rc_collective *c;
  fprintf(out, "usage: " RC_NAME " COLLECTIVE [option...]\n\n"
               "Times a collective over host memory and checks every result. Options and table are\n"
               "those of nccl-tests, except -r.\n\ncollectives:\n");
  for (size_t i = 0; (c = rc_collective_at(i)) != NULL; i++) fprintf(out, "  %-15s %s\n", c->name, c->what);
  fprintf(out, "\noptions (default):\n");
  for (int i = 0; i < O_COUNT; i++) {
    char left[64], letter[8] = "    ";
    if (rows[i].letter) snprintf(letter, sizeof letter, "-%c, ", rows[i].letter);
    snprintf(left, sizeof left, "%s--%s%s%s", letter, rows[i].name, rows[i].arg ? " " : "",
             rows[i].arg ? rows[i].arg : "");
    fprintf(out, "  %-27s %s\n", left, rows[i].help);
  }
  fprintf(out,
          "\nranks: -r N starts them here. Without -r a process asks its launcher: torchrun, Slurm and Open MPI are\n"
          "known by their environment, e.g. mpirun -np 4 " RC_NAME " all_reduce. Else there is one process.\n"
          "\nexit status: 0 all results right, 1 wrong results, 2 bad arguments, 3 a rank failed\n");
}

/* ---- values ---- */

__attribute__((format(printf, 3, 4))) static int bad(enum option_id id, const char *value, const char *fmt, ...) {
  char allowed[256];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(allowed, sizeof allowed, fmt, ap);
  va_end(ap);
  char letter[8] = "";
  if (rows[id].letter) snprintf(letter, sizeof letter, "-%c, ", rows[id].letter);
  fprintf(stderr, RC_NAME ": %s--%s: '%s' is not allowed; it takes %s\n", letter, rows[id].name, value, allowed);
  return -1;
}

static bool parse_u64(const char *text, bool suffix, uint64_t *out) {
  static const char units[] = "KMGT";
  char *end;
  if (text[0] < '0' || text[0] > '9') return false; /* strtoull takes signs and spaces */
  errno = 0;
  unsigned long long v = strtoull(text, &end, 0);
  if (errno != 0) return false;
  if (suffix && *end != 0) {
    char up = (char)(*end & ~0x20);
    const char *unit = strchr(units, up);
    if (!unit || up == 0) return false;
    unsigned shift = 10 * (unsigned)(unit - units + 1);
    if (v > UINT64_MAX >> shift) return false;
    v <<= shift;
    end++;
    if ((*end | 0x20) == 'b') end++;
  }
  *out = v;
  return *end == 0;
}

static int get_bytes(enum option_id id, const char *text, uint64_t min, uint64_t *out) {
  if (parse_u64(text, true, out) && *out >= min && *out <= 1ull << 44) return 0;
  return bad(id, text, "a size from %llu bytes to 16T, such as 8, 64K or 1M", (unsigned long long)min);
}

static int get_int(enum option_id id, const char *text, int min, int max, int *out) {
  uint64_t v;
  if (!parse_u64(text, false, &v) || v < (uint64_t)min || v > (uint64_t)max)
    return bad(id, text, "a number from %d to %d", min, max);
  *out = (int)v;
  return 0;
}

static int get_bool(enum option_id id, const char *text, bool *out) {
  int v = 0;
  if (get_int(id, text, 0, 1, &v) != 0) return -1;
  *out = v != 0;
  return 0;
}

/* A comma list of names, or "all". */
static int get_set(enum option_id id, const char *text, int (*find)(const char *, size_t), bool *set, int n) {
  bool all = strcmp(text, "all") == 0;
  for (int i = 0; i < n; i++) set[i] = all;
  for (const char *at = text; !all; at++) {
    size_t len = strcspn(at, ",");
    int i = find(at, len);
    if (i < 0) return bad(id, text, "%s", rows[id].help);
    set[i] = true;
    at += len;
    if (*at == 0) break;
  }
  return 0;
}

static int get_data(const char *text, enum rc_data *out) {
  if (strcmp(text, "exact") == 0) *out = RC_DATA_EXACT;
  else if (strcmp(text, "random") == 0) *out = RC_DATA_RANDOM;
  else return bad(O_DATA, text, "exact or random");
  return 0;
}

static int get_env(enum option_id id, const char *variable, const char *value) {
  if (*value == 0) return bad(id, value, "a name or a path");
  return setenv(variable, value, 1);
}

static int apply(enum option_id id, const char *v, struct rc_options *o) {
  int average = 0;
  switch (id) {
    case O_MINBYTES: return get_bytes(id, v, 0, &o->min_bytes);
    case O_MAXBYTES: return get_bytes(id, v, 0, &o->max_bytes);
    case O_STEPBYTES: return get_bytes(id, v, 1, &o->step_bytes);
    case O_STEPFACTOR: {
      int factor = 0;
      if (get_int(id, v, 2, 1 << 20, &factor) != 0) return -1;
      o->step_factor = (uint64_t)factor;
      o->step_bytes = 0;
      return 0;
    }
    case O_ITERS: return get_int(id, v, 0, 1000000000, &o->iters);
    case O_AGGREGATE: return get_int(id, v, 1, 1000, &o->aggregate);
    case O_WARMUP: return get_int(id, v, 0, 1000000000, &o->warmup);
    case O_CHECK: return get_int(id, v, 0, 1000000000, &o->checks);
    case O_DATA: return get_data(v, &o->data);
    case O_SEED: return parse_u64(v, false, &o->seed) ? 0 : bad(id, v, "a number from 0 to 2^64 - 1");
    case O_OFFSET: return get_bytes(id, v, 0, &o->offset);
    case O_OP: return get_set(id, v, rc_op_find, o->ops, RC_OP_COUNT);
    case O_TYPE: return get_set(id, v, rc_type_find, o->types, ncclNumTypes);
    case O_ROOT:
      if (strcmp(v, "all") != 0) return get_int(id, v, 0, RC_MAX_RANKS - 1, &o->root);
      o->root = -1;
      return 0;
    case O_OUT_OF_PLACE: o->out_of_place = true; return 0;
    case O_IN_PLACE: o->in_place = true; return 0;
    case O_AVERAGE:
      if (get_int(id, v, RC_TIME_RANK0, RC_TIME_MAX, &average) != 0) return -1;
      o->average = (enum rc_average)average;
      return 0;
    case O_BLOCKING: return get_bool(id, v, &o->blocking);
    case O_REGISTER: return get_bool(id, v, &o->registered);
    case O_RANKS: return get_int(id, v, 1, RC_MAX_RANKS, &o->local_ranks);
    case O_THREADS: return get_int(id, v, 1, 256, &o->threads);
    case O_GPUS: return get_int(id, v, 1, 256, &o->comms_per_thread);
    case O_TIMEOUT: return get_int(id, v, 0, 1000000, &o->timeout_s);
    case O_PLUGIN: return get_env(id, "NCCL_NET_PLUGIN", v);
    case O_NET_ONLY: return get_env(id, "NCCL_SHM_DISABLE", "1");
    case O_JSON: o->json = v; return 0;
    case O_PARAMS: railParamPrint(0); return 1;
    case O_PARAMS_MARKDOWN: railParamPrint(1); return 1;
    case O_VERSION:
      printf(RC_NAME " " RC_VERSION ", NCCL API %d.%d.%d\n", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
      return 1;
    case O_HELP: rc_help(stdout); return 1;
    case O_COUNT: break;
  }
  return -1;
}

static int usage_error(const char *what, const char *value) {
  fprintf(stderr, RC_NAME ": %s%s%s%s; see " RC_NAME " --help\n", what, value ? " '" : "", value ? value : "",
          value ? "'" : "");
  return -1;
}

static int complete(int argc, char **argv, struct rc_options *o) {
  char text[32];
  if (optind >= argc) return usage_error("a collective is missing (all_reduce, all_gather, ...)", NULL);
  o->collective = rc_collective_find(argv[optind]);
  if (!o->collective) return usage_error("no such collective:", argv[optind]);
  if (optind + 1 < argc) return usage_error("more than one collective:", argv[optind + 1]);
  if (o->max_bytes < o->min_bytes) {
    snprintf(text, sizeof text, "%llu", (unsigned long long)o->max_bytes);
    return bad(O_MAXBYTES, text, "a size not below --minbytes (%llu)", (unsigned long long)o->min_bytes);
  }
  if (o->min_bytes == 0 && o->step_bytes == 0 && o->max_bytes > 0)
    return bad(O_MINBYTES, "0", "more than 0 with --stepfactor: 0 multiplied stays 0 (use -i)");
  if (!o->out_of_place && !o->in_place) o->out_of_place = o->in_place = true;
  if (o->in_place && !o->out_of_place && !o->collective->in_place)
    return usage_error("--in-place: there is no in-place form of", o->collective->name);
  return 0;
}

int rc_options_parse(int argc, char **argv, struct rc_options *o) {
  struct option longs[O_COUNT + 1] = {{NULL, 0, NULL, 0}};
  char letters[3 + 2 * O_COUNT] = ":", *l = letters + 1;
  *o = (struct rc_options){
      .min_bytes = 8, .max_bytes = 32 << 20, .step_factor = 2, .iters = 20, .warmup = 5, .checks = 1, .aggregate = 1,
      .threads = 1, .comms_per_thread = 1, .average = RC_TIME_MAX, .timeout_s = 600, .seed = 1};
  o->types[ncclFloat32] = o->ops[ncclSum] = true;
  for (int i = 0; i < O_COUNT; i++) {
    longs[i] = (struct option){rows[i].name, rows[i].arg ? required_argument : no_argument, NULL, 256 + i};
    if (rows[i].letter) *l++ = rows[i].letter;
    if (rows[i].letter && rows[i].arg) *l++ = ':';
  }
  *l = 0;
  opterr = 0;
  for (int c; (c = getopt_long(argc, argv, letters, longs, NULL)) != -1;) {
    if (c == '?' && optopt >= 256) return usage_error("takes no value:", argv[optind - 1]);
    if (c == '?' && optopt) {
      char letter[3] = {'-', (char)optopt, 0};
      return usage_error("no such option:", letter);
    }
    if (c == '?') return usage_error("no such option:", argv[optind - 1]);
    if (c == ':') return usage_error("a value is missing after", argv[optind - 1]);
    int id = c - 256;
    for (int i = 0; c < 256 && i < O_COUNT; i++)
      if (rows[i].letter == c) id = i;
    int r = apply((enum option_id)id, optarg, o);
    if (r != 0) return r;
  }
  return complete(argc, argv, o);
}
