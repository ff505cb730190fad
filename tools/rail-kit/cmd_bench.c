/* SPDX-License-Identifier: Apache-2.0
 * `rail-kit bench`: its command line, and where its results go. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kit/bench/kit_bench.h"
#include "kit/kit_json.h"
#include "kit/kit_plot.h"
#include "kit/kit_probe.h"
#include "rail/version.h"
#include "tools/rail-kit/commands.h"

#define MAX_ENV (KIT_BENCH_COLUMNS * KIT_BENCH_ENV)

struct bench_options {
  struct kit_bench_plan plan;
  struct kit_bench_selection choices;
  struct kit_bench_column columns[KIT_BENCH_COLUMNS];
  struct rk_hosts hosts;
  int preset, rounds;
  bool tcp, check;
  double seconds, warmup; /* below 0: the preset's */
  struct tool_value env[MAX_ENV];
  unsigned int nenv;
  const char *json, *plot, *before;
  double fail_below;
};

/* ---- values ---- */

/* The next word of a list; false at its end. */
static bool next_word(const char **at, char *word, size_t size) {
  size_t n = strcspn(*at, ",");
  if (n == 0 || n >= size) return false;
  memcpy(word, *at, n);
  word[n] = 0;
  *at += n + ((*at)[n] == ',' && (*at)[n + 1] ? 1 : 0);
  return true;
}

static int word_index(const char *const *words, const char *word) {
  for (int i = 0; words[i]; i++)
    if (strcmp(words[i], word) == 0) return i;
  return -1;
}

static int set_words(const struct tool_value *v, const char *const *words, bool *chosen) {
  char word[32], allowed[120] = "";
  const char *at = v->text;
  int i = -1;
  while (*at && next_word(&at, word, sizeof word) && (i = word_index(words, word)) >= 0) chosen[i] = true;
  if (i >= 0 && *at == 0) return 0;
  for (i = 0; words[i]; i++) {
    size_t used = strlen(allowed);
    snprintf(allowed + used, sizeof allowed - used, "%s%s", i ? ", " : "", words[i]);
  }
  return tool_bad(v, "a list with commas of %s", allowed);
}

static int set_kinds(const struct tool_value *v) {
  return set_words(v, kit_bench_kind_words, ((struct bench_options *)v->into)->choices.kinds);
}

static int set_patterns(const struct tool_value *v) {
  return set_words(v, kit_bench_pattern_words, ((struct bench_options *)v->into)->choices.patterns);
}

/* "8", or "8-1M": 8, 16, ... */
static bool add_numbers(const char *word, const struct tool_option *o, struct kit_bench_numbers *out) {
  char low[32];
  const char *dash = strchr(word, '-');
  uint64_t first, last;
  snprintf(low, sizeof low, "%.*s", dash ? (int)(dash - word) : (int)strlen(word), word);
  if (!tool_parse_u64(low, true, &first) || (dash && !tool_parse_u64(dash + 1, true, &last))) return false;
  if (!dash) last = first;
  if (first < (uint64_t)o->min || last > (uint64_t)o->max || last < first || (dash && first == 0)) return false;
  for (uint64_t n = first; n <= last; n *= 2) {
    if (out->n == KIT_BENCH_VALUES) return false;
    out->at[out->n++] = n;
    if (n == 0) break;
  }
  return true;
}

static int set_numbers(const struct tool_value *v) {
  struct kit_bench_numbers *out = (void *)((char *)v->into + v->option->at);
  char word[64];
  const char *at = v->text;
  out->n = 0;
  while (*at && next_word(&at, word, sizeof word) && add_numbers(word, v->option, out)) word[0] = 0;
  if (*at == 0 && out->n > 0 && word[0] == 0) return 0;
  return tool_bad(v, "numbers from %.0f to %.0f, with commas, such as 8,64K; 8-64K doubles; at most %d", v->option->min,
                  v->option->max, KIT_BENCH_VALUES);
}

static int set_env(const struct tool_value *v) {
  struct bench_options *o = v->into;
  const char *colon = strchr(v->text, ':'), *equals = colon ? strchr(colon, '=') : NULL;
  if (!equals || colon == v->text || equals == colon + 1 || o->nenv == MAX_ENV)
    return tool_bad(v, "PLUGIN:NAME=VALUE, at most %d", MAX_ENV);
  o->env[o->nenv++] = *v;
  return 0;
}

static int set_plot(const struct tool_value *v) {
  if (!kit_plot_can_write(v->text)) return tool_bad(v, "a file that ends with .svg or .png");
  ((struct bench_options *)v->into)->plot = v->text;
  return 0;
}

static int set_preset(const struct tool_value *v) {
  ((struct bench_options *)v->into)->preset = v->option->tag;
  return 0;
}

#define AT(field) .at = offsetof(struct bench_options, field)
#define LIST(field, least, most) TOOL_CALL, AT(choices.field), .min = least, .max = most, .set = set_numbers

static const struct tool_option options[] = {
    {"kind", 'k', "LIST", "bw: transfers; lat: ping-pong; jitter: gaps between arrivals; connect", TOOL_CALL,
     .set = set_kinds, .preset = "bw,lat,connect"},
    {"pattern", 'p', "LIST", "pair, bidir, ring, incast (N to 1), all (to all); lat is always a pair", TOOL_CALL,
     .set = set_patterns, .preset = "pair"},
    {"sides", 'n', "LIST", "processes of ring, incast and all", LIST(sides, 2, KIT_MAX_PROCESSES), .preset = "4"},
    {"size", 's', "LIST", "of a message, 0 to 1G", LIST(sizes, 0, 1 << 30), .preset = "8,4K,64K,1M,4M,64M"},
    {"comms", 'c', "LIST", "connections from side to side", LIST(comms, 1, KIT_BENCH_COMMS), .preset = "1,4"},
    {"window", 'w', "LIST", "messages outstanding on each", LIST(windows, 1, KIT_BENCH_WINDOW), .preset = "8"},
    {"group", 'g', "LIST", "buffers of a receive; a plugin takes up to its maxRecvs", LIST(groups, 1, KIT_BENCH_GROUP),
     .preset = "1"},
    {"sleep", 'z', "LIST", "us that a side sleeps when nothing moved; 0: sched_yield", LIST(sleeps, 0, 100000),
     .preset = "0"},
    {"spin", 0, NULL, "a side looks again at once when nothing moved: instead of --sleep", TOOL_FLAG, AT(choices.spin)},
    {"one-buffer", 0, NULL, "all messages of a connection in one buffer, as programs do that check nothing",
     TOOL_FLAG, AT(choices.one_buffer)},
    {"memory", 'm', "WHERE", "of the messages: host, cuda", TOOL_CHOICE, AT(choices.memory),
     .words = kit_bench_memory_words, .preset = "host"},
    {"buffers", 0, "BYTES", "that a side may have; the largest cells get a smaller window", TOOL_BYTES,
     AT(choices.buffers), .min = 1, .preset = "512M"},
    {"tcp", 't', NULL, "plain TCP streams as one more column: the system's own limit", TOOL_FLAG, AT(tcp)},
    {"env", 'e', "SET", "PLUGIN:NAME=VALUE: a variable for one column; may be repeated", TOOL_CALL, .set = set_env},
    {"abi", 'a', "N", "the vtable of this version, 6 to 12; else the newest that a plugin has", TOOL_INT,
     AT(plan.version), .min = 6, .max = 12},
    {"device", 'd', "N", "the plugins' device", TOOL_INT, AT(plan.dev), .max = 1023, .preset = "0"},
    RK_FUSE_OPTION(struct bench_options, plan.fuse),
    {"rounds", 'r', "N", "each cell so many times, the plugins alternating", TOOL_INT, AT(rounds), .min = 1,
     .max = 1000, .preset = "3; 1 with --quick"},
    {"seconds", 0, "S", "of a cell that count", TOOL_REAL, AT(seconds), .max = 600, .preset = "0.2; 0.1 with --quick"},
    {"warmup", 0, "S", "before them", TOOL_REAL, AT(warmup), .max = 600, .preset = "0.05"},
    {"patience", 0, "S", "without progress, until it counts as stuck", TOOL_REAL, AT(plan.patience_s), .min = 0.01,
     .max = 600, .preset = "5"},
    {"connects", 0, "N", "most connections that a connect cell makes within --seconds", TOOL_U64, AT(plan.connects)},
    {"check", 0, "0|1", "check all bytes of some messages before the timing", TOOL_BOOL, AT(check), .preset = "1"},
    {"seed", 0, "N", "of those bytes", TOOL_U64, AT(plan.seed), .preset = "1"},
    {"quick", 'q', NULL, "fewer sizes, one connection, one round: some seconds", TOOL_CALL, .set = set_preset,
     .tag = KIT_BENCH_QUICK},
    {"sweep", 0, NULL, "all kinds and patterns, more windows: some ten minutes a plugin", TOOL_CALL, .set = set_preset,
     .tag = KIT_BENCH_SWEEP},
    RK_PLACEMENT_OPTIONS(struct bench_options, plan.placement),
    {"bind", 0, "A,B", "processors that the even and the odd sides are bound to; without it to none", TOOL_CALL,
     AT(plan.placement), .set = rk_set_bind},
    RK_HOSTS_OPTIONS(struct bench_options, hosts),
    {"json", 'J', "FILE", "everything as JSON; '-': on standard output, the table on standard error", TOOL_TEXT,
     AT(json), .allowed = "a file, or - for standard output"},
    {"plot", 0, "FILE", "a picture, .svg or .png (needs python3-matplotlib)", TOOL_CALL, .set = set_plot},
    {"compare", 0, "OLD.json", "what has changed since, in this run or in NEW.json", TOOL_TEXT, AT(before),
     .allowed = "a file that --json wrote"},
    {"fail-below", 0, "R", "with --compare: exit 1 when a figure is below R times what it was", TOOL_REAL,
     AT(fail_below), .max = 1},
    {"quiet", 0, NULL, "nothing about how far it is", TOOL_FLAG, AT(plan.quiet)},
    {"help", 'h', NULL, "this text", .kind = TOOL_HELP},
};

static const struct tool_command command = {
    .name = RK_NAME " bench",
    .usage = "[NAME=]PLUGIN... [option...]\n       " RK_NAME " bench --compare OLD.json NEW.json",
    .about = "Times plugins side by side: each cell of a table (kind, pattern, size, comms, window) runs with every\n"
             "plugin in turn, in processes of its own; ratios are to the first one. Wrong bytes, errors, crashes\n"
             "and hangs are results of their cell. On one host NCCL_SOCKET_IFNAME is lo unless it is set.",
    .options = options,
    .noptions = sizeof options / sizeof *options,
    .tail = RK_EXIT_STATUS,
};

/* ---- columns ---- */

/* libnccl-net-NAME.so → NAME */
static void name_from_path(const char *path, char *name, size_t size) {
  const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
  if (strncmp(base, "lib", 3) == 0) base += 3;
  if (strncmp(base, "nccl-net-", 9) == 0) base += 9;
  snprintf(name, size, "%.*s", (int)strcspn(base, "."), base);
}

static struct kit_bench_column *find_column(struct bench_options *o, const char *name, size_t n) {
  for (unsigned int i = 0; i < o->plan.ncolumns; i++)
    if (strlen(o->columns[i].name) == n && memcmp(o->columns[i].name, name, n) == 0) return &o->columns[i];
  return NULL;
}

static int add_column(struct bench_options *o, const char *word, bool tcp) {
  struct kit_bench_column column = {0};
  const char *equals = strchr(word, '='), *slash = strchr(word, '/'), *path = word;
  if (equals && (!slash || equals < slash)) {
    snprintf(column.name, sizeof column.name, "%.*s", (int)(equals - word), word);
    path = equals + 1;
  } else {
    name_from_path(word, column.name, sizeof column.name);
  }
  if (!*path || !*column.name) return tool_misuse(&command, "wants a plugin as NAME=PLUGIN or PLUGIN, not", word);
  if (strlen(path) >= sizeof column.plugin) return tool_misuse(&command, "that name is too long:", path);
  if (!tcp) snprintf(column.plugin, sizeof column.plugin, "%s", path);
  if (find_column(o, column.name, strlen(column.name)))
    return tool_misuse(&command, "two columns have one name; write NAME=PLUGIN:", column.name);
  if (o->plan.ncolumns == KIT_BENCH_COLUMNS) return tool_misuse(&command, "too many plugins, beginning with", word);
  o->columns[o->plan.ncolumns++] = column;
  return 0;
}

static int add_env(struct bench_options *o) {
  for (unsigned int i = 0; i < o->nenv; i++) {
    const char *text = o->env[i].text, *colon = strchr(text, ':');
    struct kit_bench_column *column = find_column(o, text, (size_t)(colon - text));
    if (!column || column->nenv == KIT_BENCH_ENV)
      return tool_bad(&o->env[i], "the name of a column, and at most %d variables for it", KIT_BENCH_ENV);
    column->env[column->nenv++] = colon + 1;
  }
  return 0;
}

/* A plugin that is not there is an error before anything runs; one that cannot be used is a result of its cells. A name
 * without a slash is for the dynamic linker to find, in a process like those that will load it; for a column with
 * --env, which may be for the linker, only they know. */
static bool is_there(const struct bench_options *o, const struct kit_bench_column *column, char *why, size_t size) {
  struct kit_probe probe;
  if (strchr(column->plugin, '/')) {
    if (access(column->plugin, R_OK) == 0) return true;
    snprintf(why, size, "%s: %s", column->plugin, strerror(errno));
    return false;
  }
  return column->nenv > 0 || kit_probe(column->plugin, &o->plan.placement, &probe, why, size) || probe.versions;
}

static bool finds_plugins(const struct bench_options *o) {
  char why[1024];
  for (unsigned int i = 0; i < o->plan.ncolumns; i++) {
    if (!*o->columns[i].plugin || is_there(o, &o->columns[i], why, sizeof why)) continue; /* "": --tcp */
    fprintf(stderr, RK_NAME " bench: %s\n", why);
    return false;
  }
  return true;
}

static int set_up(struct bench_options *o, char **words) {
  for (; *words; words++)
    if (add_column(o, *words, false) != 0) return -1;
  if (o->tcp && add_column(o, "tcp", true) != 0) return -1;
  if (o->plan.ncolumns == 0) return tool_misuse(&command, "a plugin is missing (or --tcp)", NULL);
  if (add_env(o) != 0) return -1;
  bool quick = o->preset == KIT_BENCH_QUICK;
  o->plan.columns = o->columns;
  o->plan.rounds = o->rounds ? (unsigned int)o->rounds : quick ? 1 : 3;
  o->plan.seconds = o->seconds >= 0 ? o->seconds : quick ? 0.1 : 0.2;
  o->plan.warmup_s = o->warmup >= 0 ? o->warmup : 0.05;
  o->plan.check = o->check;
  kit_bench_selection_defaults(&o->choices, (enum kit_bench_preset)o->preset);
  return 0;
}

/* ---- results ---- */

static bool write_json(const struct kit_bench_results *r, const struct kit_bench_about *about, FILE *f,
                       const char *path) {
  (void)kit_bench_json(r, about, f);
  return kit_file_close(RK_NAME " bench", f, path);
}

static int compare(const struct bench_options *o, const char *path, FILE *table) {
  fputc('\n', table);
  int changed = kit_bench_compare(o->before, path, o->fail_below, table);
  return changed < 0 ? TOOL_EXIT_FAILED : changed ? TOOL_EXIT_RESULT : TOOL_EXIT_OK;
}

/* The comparison reads a file: the one that was asked for, else a temporary one. */
static int compare_results(const struct bench_options *o, const struct kit_bench_results *r,
                           const struct kit_bench_about *about, FILE *table) {
  char temporary[] = "/tmp/rail-kit-bench-XXXXXX";
  int fd, status = TOOL_EXIT_FAILED;
  if (o->json && strcmp(o->json, "-") != 0) return compare(o, o->json, table);
  FILE *f = (fd = mkstemp(temporary)) >= 0 ? fdopen(fd, "w") : NULL;
  if (!f) {
    fprintf(stderr, "rail-kit bench: %s: %s\n", temporary, strerror(errno));
    return TOOL_EXIT_FAILED;
  }
  if (write_json(r, about, f, temporary)) status = compare(o, temporary, table);
  unlink(temporary);
  return status;
}

static int write_results(const struct bench_options *o, const struct kit_bench_results *r,
                    const struct kit_bench_about *about, FILE *json) {
  FILE *table = json == stdout ? stderr : stdout;
  kit_bench_table(r, table);
  if (json && !write_json(r, about, json, o->json)) return TOOL_EXIT_FAILED;
  if (o->plot && !kit_bench_plot(r, about, o->plot)) return TOOL_EXIT_FAILED;
  return o->before ? compare_results(o, r, about, table) : TOOL_EXIT_OK;
}

/* What a cell could not do here is no fault of the plugin. */
static int status_of(const struct kit_bench_results *r) {
  int status = TOOL_EXIT_OK;
  size_t n = (size_t)r->plan->rounds * r->plan->ncells * r->plan->ncolumns;
  for (size_t i = 0; i < n; i++) {
    if (r->all[i].verdict == KIT_BENCH_ERROR) return TOOL_EXIT_FAILED;
    if (r->all[i].verdict != KIT_BENCH_OK && r->all[i].verdict != KIT_BENCH_SKIPPED) status = TOOL_EXIT_RESULT;
  }
  return status;
}

static int run(struct bench_options *o, int argc, char **argv) {
  struct kit_bench_about about = {.kit_version = RAIL_VERSION, .argc = argc, .argv = argv};
  struct kit_bench_results results;
  FILE *json = NULL;
  if (o->json && !(json = kit_file_open(RK_NAME " bench", o->json))) return TOOL_EXIT_FAILED;
  kit_bench_describe_machine(&about);
  if (!kit_bench_make_cells(&o->choices, &o->plan.cells, &o->plan.ncells) || !kit_bench_run(&o->plan, &results))
    return TOOL_EXIT_FAILED;
  int status = status_of(&results), written = write_results(o, &results, &about, json);
  kit_bench_free(&results);
  free(o->plan.cells);
  return written != TOOL_EXIT_OK ? written : status;
}

/* The other host runs the one plugin of its own command line, in its own environment. */
static int one_plugin(const struct bench_options *o) {
  if (o->plan.ncolumns - o->tcp > 1)
    tool_misuse(&command, "two hosts: one plugin at a time (and --tcp), not also", o->columns[1].name);
  else if (o->nenv > 0 || rk_has_placement(&o->plan.placement))
    tool_misuse(&command, "only on one host:", o->nenv > 0 ? "--env" : "--netns, --side-env, --bind");
  else return TOOL_EXIT_OK;
  return TOOL_EXIT_USAGE;
}

/* What --json wrote, by its name or its first byte; no plugin begins with a brace. */
static bool is_results(const char *word) {
  size_t n = strlen(word);
  if (n > 5 && strcmp(word + n - 5, ".json") == 0) return true;
  FILE *f = fopen(word, "re");
  bool brace = f && fgetc(f) == '{';
  if (f) fclose(f);
  return brace;
}

int rk_bench(int argc, char **argv) {
  static struct bench_options o = {.plan = {.patience_s = 5, .seed = 1}, .choices = {.buffers = 512ull << 20},
                                   .check = true, .seconds = -1, .warmup = -1};
  char **words;
  int status, r = tool_options_read(&command, argc, argv, &o, &words);
  if (r != 0) return r > 0 ? TOOL_EXIT_OK : TOOL_EXIT_USAGE;
  if (o.before && words[0] && is_results(words[0]) && !words[1] && !o.tcp) {
    r = kit_bench_compare(o.before, words[0], o.fail_below, stdout);
    return r < 0 ? TOOL_EXIT_FAILED : r ? TOOL_EXIT_RESULT : TOOL_EXIT_OK;
  }
  if (o.fail_below > 0 && !o.before)
    return tool_misuse(&command, "only with --compare:", "--fail-below"), TOOL_EXIT_USAGE;
  if (set_up(&o, words) != 0) return TOOL_EXIT_USAGE;
  if (o.before && !kit_bench_can_compare(o.before)) return TOOL_EXIT_FAILED;
  if (!finds_plugins(&o) || !kit_file_check(RK_NAME " bench", o.plot)) return TOOL_EXIT_FAILED;
  r = rk_hosts_open(&o.hosts, o.columns[0].plugin, &o.plan.link, &status);
  if (r != 0) return status;
  status = o.plan.link ? one_plugin(&o) : TOOL_EXIT_OK;
  if (status == TOOL_EXIT_OK) status = run(&o, argc, argv);
  kit_link_close(o.plan.link);
  return status;
}
