/* SPDX-License-Identifier: Apache-2.0
 * What is run, in which environment, and what NCCL's own log must say about it. */
#include "kit/nccl/kit_nccl.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_filter.h"
#include "kit/nccl/nccl_case.h"
#include "kit/nccl/nccl_counters.h"
#include "loader/install_dirs.h"

#define WHAT                                                                                                       \
  "NCCL makes a communicator over this plugin, its collective delivers what scalar code says, and its log says of " \
  "every connection that this plugin carries it"
#define SOURCE "NCCL's host code itself"

/* ---- what there is ---- */

enum {
  NPROTOS = 3,
  NRING_COLLS = KIT_NCCL_SENDRECV, /* collectives: each by the ring and each protocol; all-reduce by the tree, too */
  NPAT_COLLS = 2,                  /* all-gather and reduce-scatter also by PAT, which has one protocol */
  NCASES = (NRING_COLLS + 1) * NPROTOS + NPAT_COLLS + (KIT_NCCL_COLLS - NRING_COLLS) + KIT_NCCL_SCENARIOS
};

enum algo { RING, TREE, PAT };
static const char *const algos[] = {"RING", "TREE", "PAT"};
static const char *const algo_names[] = {"ring", "tree", "pat"};
static const char *const protos[NPROTOS] = {"LL", "LL128", "Simple"};
static struct kit_nccl_case cases[NCASES];

static bool has_algo(enum kit_nccl_coll coll, enum algo algo) {
  if (algo == TREE) return coll == KIT_NCCL_ALL_REDUCE;
  return algo == RING || coll == KIT_NCCL_ALL_GATHER || coll == KIT_NCCL_REDUCE_SCATTER;
}

static struct kit_nccl_case *add_coll(struct kit_nccl_case *t, enum kit_nccl_coll coll) {
  int number = 0;
  for (enum algo algo = RING; algo <= PAT; algo++)
    for (int proto = algo == PAT ? NPROTOS - 1 : 0; has_algo(coll, algo) && proto < NPROTOS; proto++, t++) {
      *t = (struct kit_nccl_case){.what = WHAT, .coll = coll, .algo = algos[algo], .proto = protos[proto]};
      snprintf(t->id, sizeof t->id, "%d.%d", (int)coll + 1, ++number);
      snprintf(t->name, sizeof t->name, "%s.%s.%s", kit_nccl_colls[coll], algo_names[algo], t->proto);
    }
  return t;
}

static void make_cases(void) {
  struct kit_nccl_case *t = cases;
  for (int coll = 0; coll < NRING_COLLS; coll++) t = add_coll(t, (enum kit_nccl_coll)coll);
  for (int coll = NRING_COLLS; coll < KIT_NCCL_COLLS; coll++, t++) {
    *t = (struct kit_nccl_case){.what = WHAT, .coll = (enum kit_nccl_coll)coll};
    snprintf(t->id, sizeof t->id, "%d.1", coll + 1);
    snprintf(t->name, sizeof t->name, "%s", kit_nccl_colls[coll]);
  }
  for (int i = 0; i < KIT_NCCL_SCENARIOS; i++, t++) {
    const struct kit_nccl_scenario *scenario = &kit_nccl_scenarios[i];
    *t = (struct kit_nccl_case){.what = scenario->what, .scenario = scenario};
    snprintf(t->id, sizeof t->id, "%d.%d", KIT_NCCL_COLLS + 1, i + 1);
    snprintf(t->name, sizeof t->name, "%s", scenario->name);
  }
  assert(t == cases + NCASES);
}

/* ---- NCCL's log ---- */

struct proof {
  bool several_a_host;      /* ranks: what lies between them need not go through the plugin */
  int by_plugin, elsewhere; /* connections that NCCL has logged */
  char line[256];           /* of one that the plugin does not carry */
  int by_gdr;               /* of the plugin's connections: those with GPUDirect */
  int by_another;           /* and those that send through another rank of the host (PXN) */
  bool offers_gdr;
  char version[32];
  char warning[512];        /* NCCL's first */
};

/* Between two ranks of a host: NCCL makes no such connection to another one. */
static bool is_within_host(const char *via) {
  return strncmp(via, " via P2P/", 9) == 0 || strncmp(via, " via SHM/", 9) == 0;
}

/* device: "0", or "0(3)", through rank 3, and what else NCCL says. */
static bool is_by_another(const char *device) { return device[strspn(device, "0123456789")] == '('; }

static void read_line(struct proof *p, const char *text, const char *name) {
  char wanted[280];
  snprintf(wanted, sizeof wanted, " via NET/%s/", name);
  const char *via = strstr(text, " via "), *version = strstr(text, "NCCL version "), *warn = strstr(text, "NCCL WARN ");
  bool connection = via && (strstr(text, "Channel ") || strstr(text, "[send]") || strstr(text, "[receive]")) &&
                    !(p->several_a_host && is_within_host(via));
  bool by_plugin = connection && strstr(text, wanted);
  p->by_plugin += by_plugin;
  p->by_gdr += by_plugin && strstr(via, "/GDRDMA");
  p->by_another += by_plugin && is_by_another(via + strlen(wanted));
  p->offers_gdr |= strstr(text, "GPU Direct RDMA Enabled for HCA") != NULL;
  if (connection && !by_plugin && p->elsewhere++ == 0) snprintf(p->line, sizeof p->line, "%.250s", text);
  if (version && !p->version[0])
    snprintf(p->version, sizeof p->version, "%.*s", (int)strcspn(version + 13, "+ "), version + 13);
  if (warn && !p->warning[0]) snprintf(p->warning, sizeof p->warning, "%.500s", warn);
}

/* NCCL unlinks its shared memory once both ends have it, and the rest with the communicator. That of ranks which were
 * killed stays, and only NCCL's log has its names (ncclShmOpen in src/misc/shmutils.cc). */
static void remove_shared_memory(const char *text) {
  static const char allocated[] = " bytes of shared memory in ", folder[] = "/dev/shm/";
  const char *at = strstr(text, allocated), *path = at ? at + strlen(allocated) : "";
  const char *name = strncmp(path, folder, strlen(folder)) == 0 ? path + strlen(folder) : "";
  char file[64];
  if (strncmp(name, "nccl-", 5) != 0 || strchr(name, '/') || strlen(path) >= sizeof file) return;
  snprintf(file, sizeof file, "%s", path);
  file[strcspn(file, " ")] = 0;
  unlink(file);
}

static void read_log(struct proof *p, int log, const char *name) {
  struct stat st;
  if (fstat(log, &st) != 0 || st.st_size <= 0) return;
  char *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, log, 0), *end = at + st.st_size;
  if (at == MAP_FAILED) return;
  for (char *line = at; line < end;) {
    char *next = memchr(line, '\n', (size_t)(end - line));
    size_t n = (size_t)((next ? next : end) - line);
    char text[512];
    snprintf(text, sizeof text, "%.*s", (int)n, line);
    read_line(p, text, name);
    remove_shared_memory(text);
    line += n + 1;
  }
  munmap(at, (size_t)st.st_size);
}

/* ---- one case ---- */

struct case_run {
  struct kit_nccl_run *run;
  struct kit_result result;
  struct kit_group_options group;
  struct kit_nccl_env env[KIT_NCCL_MAX_RANKS];
  int logs[KIT_NCCL_MAX_RANKS]; /* of the processes */
  char sizes[512];
};

/* A record is the request of fault.link_lost. */
static void on_message(struct kit_group *group, const struct kit_message *message, void *arg) {
  struct case_run *c = arg;
  (void)group;
  if (message->kind == KIT_MESSAGE_RECORD) kit_fault_link(KIT_LINK_DOWN, 0, &c->run->net.port[0], true);
  else kit_result_message(&c->result, message);
}

static void fail(struct kit_result *r, const char *what, const char *detail) {
  if (r->end != KIT_END_FINE) return;
  r->end = KIT_END_FAILED;
  snprintf(r->text, sizeof r->text, "%s%s", what, detail);
}

/* GPUDirect was asked for, and is not in use. */
static void check_gdr(struct kit_result *r, const struct proof *p, const char *ranks) {
  if (p->offers_gdr) {
    fail(r, "the plugin offers GPUDirect, and NCCL does not use it for all connections: ", ranks);
  } else if (r->end == KIT_END_FINE) {
    r->end = KIT_END_SKIPPED;
    snprintf(r->text, sizeof r->text, "the plugin offers host memory only (ptrSupport); leave out --gdr");
  }
}

const char *const kit_nccl_networks[] = {"Socket", "IB", NULL};

/* NCCL says of its own networks what it says of a plugin of the same name. */
static bool is_nccls_own(const char *name) {
  int i = 0;
  while (kit_nccl_networks[i] && strcasecmp(name, kit_nccl_networks[i]) != 0) i++;
  return kit_nccl_networks[i] != NULL;
}

/* Of one host, since a rank in the middle of a ring may have no connection to another one. */
static struct proof check_host(struct kit_nccl_run *run, struct kit_result *r, const int *logs, int host) {
  int n = run->how->ranks_per_host, first = host * n, processes = kit_nccl_processes_per_host(run->how);
  struct proof p = {.several_a_host = n > 1};
  char ranks[64];
  for (int i = 0; i < processes; i++) read_log(&p, logs[host * processes + i], run->probe.name);
  if (n > 1) snprintf(ranks, sizeof ranks, "ranks %d to %d", first, first + n - 1);
  else snprintf(ranks, sizeof ranks, "rank %d", first);
  if (!run->how->network && is_nccls_own(run->probe.name))
    fail(r, "NCCL's own network has the plugin's name, so nothing shows who carries the connections: ",
         run->probe.name);
  if (p.elsewhere) fail(r, "a connection is not carried by the plugin: ", p.line);
  if (!p.by_plugin) fail(r, "NCCL's log names no connection that the plugin carries: ", ranks);
  if (run->how->gdr && p.by_gdr < p.by_plugin) check_gdr(r, &p, ranks);
  if (p.version[0]) snprintf(run->version, sizeof run->version, "%s", p.version);
  return p;
}

static void add_figure(struct kit_result *r, const char *name, int value) {
  struct kit_message m = {.kind = KIT_MESSAGE_METRIC, .text = name, .value = value, .unit = ""};
  kit_result_message(r, &m);
}

static const struct kit_figure *find_figure(const struct kit_result *r, const char *name) {
  for (int i = 0; i < r->nfigures; i++)
    if (strcmp(r->figures[i].name, name) == 0) return &r->figures[i];
  return NULL;
}

/* Whatever NCCL's log says: what the plugin did not receive has come by another way. Of collectives that went well. */
static void check_counters(struct kit_nccl_run *run, struct kit_result *r) {
  const struct kit_figure *received = find_figure(r, KIT_NCCL_RECEIVED);
  const struct kit_figure *needed = find_figure(r, KIT_NCCL_BETWEEN_HOSTS);
  char text[192];
  run->counters[received && needed]++;
  if (!received || !needed) return;
  snprintf(text, sizeof text, "%.0f bytes, of at least %.0f that the hosts had to send each other", received->value,
           needed->value);
  if (received->value < needed->value) fail(r, "the plugin's own counters say that it received only ", text);
}

static void check_log(struct kit_nccl_run *run, struct kit_result *r, const int *logs) {
  struct proof all = {.by_plugin = 0};
  for (int host = 0; host < run->how->ranks / run->how->ranks_per_host; host++) {
    struct proof p = check_host(run, r, logs, host);
    all.by_plugin += p.by_plugin;
    all.by_another += p.by_another;
    if (p.warning[0] && !all.warning[0]) snprintf(all.warning, sizeof all.warning, "%s", p.warning);
  }
  add_figure(r, "connections_by_the_plugin", all.by_plugin);
  if (run->how->ranks_per_host > 1) add_figure(r, "connections_through_another_rank", all.by_another);
  struct kit_message warn = {.kind = KIT_MESSAGE_LOG, .text = all.warning};
  if (all.warning[0]) kit_result_message(r, &warn);
}

/* The command line that repeats the case with the same options; the environment is the caller's. */
static void format_repeat_command(struct kit_result *r, const struct kit_nccl *how, const struct kit_nccl_case *t,
                                  const char *sizes) {
  size_t room = sizeof r->again;
  snprintf(r->again, room, "rail-kit nccl ");
  kit_append_quoted(r->again, room, how->plugin);
  strncat(r->again, " --nccl ", room - strlen(r->again) - 1);
  kit_append_quoted(r->again, room, how->library);
  size_t at = strlen(r->again);
  snprintf(r->again + at, room - at,
           " --ranks %d --gpus-per-process %d --ranks-per-host %d --channels %d --limit %g --repeat %d --seed %#llx "
           "--sizes %s%s%s%s%s --only %s%s%s",
           how->ranks, how->gpus_per_process, how->ranks_per_host, how->channels, (double)how->limit_ms / 1000,
           how->repeat, (unsigned long long)r->seed, sizes, how->types ? " --types " : "", how->types ? how->types : "",
           how->redops ? " --redops " : "", how->redops ? how->redops : "", t->name,
           how->oob ? " --oob" : "", how->gdr ? " --gdr on" : "");
}

static void make_job(struct kit_job *job, const struct kit_nccl *how, const struct kit_nccl_case *t, const char *sizes,
                     uint64_t seed) {
  snprintf(job->kind, sizeof job->kind, "nccl");
  snprintf(job->name, sizeof job->name, "%s", t->name);
  snprintf(job->plugin, sizeof job->plugin, "%s", how->plugin);
  job->limit_ms = kit_nccl_limit(how, t);
  job->seed = seed;
  kit_job_add(job, "library", "%s", how->library);
  if (t->scenario) kit_job_add(job, "scenario", "%s", t->scenario->name);
  kit_job_add(job, "gpus", "%d", kit_nccl_gpus(how));
  kit_job_add(job, "ranks_per_host", "%d", how->ranks_per_host);
  kit_job_add(job, "gpus_per_process", "%d", how->gpus_per_process);
  kit_job_add(job, "gdr", "%d", how->gdr);
  kit_job_add(job, "repeat", "%d", how->repeat);
  kit_job_add(job, "coll", "%d", (int)t->coll);
  kit_job_add(job, "algo", "%s", t->algo ? t->algo : algos[RING]);
  kit_job_add(job, "proto", "%s", !t->proto || t->proto[0] == 'S' ? "SIMPLE" : t->proto);
  kit_job_add(job, "sizes", "%s", sizes);
  if (how->types) kit_job_add(job, "types", "%s", how->types);
  if (how->redops) kit_job_add(job, "redops", "%s", how->redops);
}

static void make_run(struct case_run *c, const struct kit_nccl_run *run, const struct kit_nccl_case *t) {
  const struct kit_nccl *how = run->how;
  c->result = (struct kit_result){.id = t->id, .name = t->name, .what = t->what, .source = SOURCE, .level = KIT_MUST,
                                  .version = kit_probe_newest(&run->probe), .seed = run->report.seed};
  c->group = (struct kit_group_options){.nprocesses = kit_nccl_processes(how), .on_message = on_message, .arg = c};
  for (unsigned i = 0; i < how->nsizes; i++)
    snprintf(c->sizes + strlen(c->sizes), sizeof c->sizes - strlen(c->sizes), "%s%llu", i ? "," : "",
             (unsigned long long)how->sizes[i]);
  make_job(&c->group.job, how, t, c->sizes, run->report.seed);
  for (int i = 0; i < c->group.nprocesses; i++) {
    c->logs[i] = kit_nccl_make_file("log");
    kit_nccl_make_env(&c->env[i], run, t, i, c->logs[i]);
    c->group.setup[i].env = (const char *const *)c->env[i].entries;
    c->group.setup[i].netns = kit_nccl_namespace(run, t, i);
  }
}

static void free_run(struct case_run *c) {
  for (int i = 0; i < c->group.nprocesses; i++) {
    close(c->logs[i]);
    kit_nccl_free_env(&c->env[i]);
  }
}

/* Has the plugin a device on a link of the kit's own? False: `why` has the reason not. */
static bool make_link(struct kit_nccl_run *run, char *why, size_t size) {
  struct kit_placement there = {.at = {{.env = {"NCCL_SOCKET_IFNAME==" KIT_LINK_NAME}, .nenv = 1}}};
  struct kit_probe probe;
  if (!kit_fault_net_open(&run->net)) return snprintf(why, size, "%s", run->net.why), false;
  if (!kit_fault_net_restore(&run->net)) return snprintf(why, size, "the link does not come up"), false;
  if (run->how->network && strcmp(run->how->network, "Socket") == 0) return true;
  snprintf(there.at[0].netns, sizeof there.at[0].netns, "%s", run->net.space[0]);
  if (!run->how->network && kit_probe(run->how->plugin, &there, &probe, why, size) &&
      strstr(probe.devices[0], KIT_LINK_NAME))
    return true;
  snprintf(why, size, "the plugin does not use the network interface that the kit would take down");
  return false;
}

static void run_processes(struct kit_nccl_run *run, const struct kit_nccl_case *t, struct case_run *c) {
  struct kit_outcome outcome;
  if (t->scenario && t->scenario->link && !make_link(run, c->result.text, sizeof c->result.text)) {
    c->result.end = KIT_END_SKIPPED;
    return;
  }
  kit_group_run(NULL, &c->group, &outcome);
  kit_result_outcome(&c->result, &outcome, c->group.nprocesses);
  check_log(run, &c->result, c->logs);
  if (!t->scenario && c->result.end == KIT_END_FINE) check_counters(run, &c->result);
}

static void run_case(struct kit_nccl_run *run, const struct kit_nccl_case *t) {
  struct case_run c = {.run = run, .sizes = ""};
  kit_report_progress(&run->report, t->name);
  make_run(&c, run, t);
  run_processes(run, t, &c);
  free_run(&c);
  format_repeat_command(&c.result, run->how, t, c.sizes);
  kit_report_add(&run->report, &c.result);
}

/* ---- all ---- */

/* Writes the folder of the emulated CUDA libraries; reports what is missing. */
static bool find_ghost(char path[PATH_MAX]) {
  static const char *const libraries[] = {"libcuda.so.1", "libcudart.so.12", "libcudart.so.13", "libnvidia-ml.so.1"};
  char folder[PATH_MAX], file[PATH_MAX + 32];
  snprintf(folder, sizeof folder, "%s/ghost", rail_lib_from_bin);
  if (!rail_path_from_bin(path, folder)) {
    fprintf(stderr, "rail-kit nccl: this program's own path is not known, nor the folder lib/ghost beside it\n");
    return false;
  }
  for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
    snprintf(file, sizeof file, "%s/%s", path, libraries[i]);
    if (access(file, R_OK) == 0) continue;
    fprintf(stderr, "rail-kit nccl: the emulated CUDA is not there: %s: %s; run build/bin/rail-kit of a source tree, "
            "where make builds it\n", file, strerror(errno));
    return false;
  }
  return true;
}

static bool wanted(const struct kit_filter *filter, const struct kit_nccl_case *t) {
  return kit_filter_accepts(filter, t->id, t->name, KIT_MUST);
}

int kit_nccl_list(const struct kit_nccl *how) {
  struct kit_filter filter;
  if (!kit_filter_read(&filter, how->only, how->skip, NULL, NULL)) return 2;
  make_cases();
  for (int i = 0; i < NCASES; i++)
    if (wanted(&filter, &cases[i])) printf("%-6s %s\n", cases[i].id, cases[i].name);
  kit_filter_free(&filter);
  return 0;
}

static const char *entry(int i, const char **name) {
  if (i == NCASES) return NULL;
  *name = cases[i].name;
  return cases[i].id;
}

static int run_all(struct kit_nccl_run *run, const struct kit_filter *filter) {
  for (int i = 0; i < NCASES; i++) run->report.expected += wanted(filter, &cases[i]);
  if (run->report.expected == 0) {
    kit_filter_print_empty(filter, "nccl");
    return 2;
  }
  if (run->how->ranks_per_host > 1) run->topology = kit_nccl_make_topology(run->how, &run->probe);
  kit_report_start(&run->report);
  FILE *f = run->report.table;
  if (f && run->report.verbose)
    fprintf(f, "                %12s %12s %9s %6s %4s %11s %8s %11s %8s\n", "size (B)", "count", "type", "redop",
            "root", "time (us)", "#wrong", "in place", "#wrong");
  for (int i = 0; i < NCASES; i++)
    if (wanted(filter, &cases[i])) run_case(run, &cases[i]);
  if (f && run->version[0])
    fprintf(f, "NCCL %s, %d ranks, %s%s\n", run->version, run->how->ranks, run->probe.name,
            run->counters[1]   ? ", whose own counters were compared"
            : run->counters[0] ? ", which has no counters: only NCCL's log says what it carried"
                               : "");
  if (run->topology >= 0) close(run->topology);
  kit_fault_net_close(&run->net);
  return kit_report_finish(&run->report);
}

int kit_nccl_run(const struct kit_nccl *how) {
  static struct kit_nccl_run run;
  struct kit_filter filter;
  char why[1024], plugin[PATH_MAX], library[PATH_MAX], path[2 * PATH_MAX];
  struct kit_placement with_ghost = {.at = {{.env = {path}, .nenv = 1}}}; /* which a plugin's init may look for */
  int result = 3;
  /* NCCL and the plugin are opened by processes that look for libraries elsewhere. */
  struct kit_nccl resolved = *how;
  if (strchr(how->plugin, '/') && realpath(how->plugin, plugin)) resolved.plugin = plugin;
  if (realpath(how->library, library)) resolved.library = library;
  run = (struct kit_nccl_run){.how = &resolved, .topology = -1,
                     .report = {.command = "nccl", .plugin = resolved.plugin, .verbose = !how->quiet,
                                .json = how->json, .junit = how->junit,
                                .seed = how->seed ? how->seed : (rail_now_ns() & 0xffffffff) | 1}};
  if (!kit_filter_read(&filter, how->only, how->skip, NULL, NULL)) return 2;
  make_cases();
  if (!kit_filter_check(&filter, "nccl", entry)) {
    result = 2;
  } else if (!kit_nccl_file(resolved.library, why, sizeof why)) {
    fprintf(stderr, "rail-kit nccl: %s\n", why);
  } else if (find_ghost(run.ghost)) {
    kit_nccl_library_path(path, sizeof path, run.ghost);
    bool loads = how->network || kit_probe(resolved.plugin, &with_ghost, &run.probe, why, sizeof why);
    if (how->network) snprintf(run.probe.name, sizeof run.probe.name, "%s", how->network);
    result = loads ? run_all(&run, &filter)
                   : kit_report_unusable(&run.report, kit_probe_newest(&run.probe), why);
  }
  kit_filter_free(&filter);
  return result;
}
