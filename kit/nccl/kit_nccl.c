/* SPDX-License-Identifier: Apache-2.0
 * What is run, in which environment, and what NCCL's own log must say about it. */
#include "kit/nccl/kit_nccl.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kit/kit_filter.h"
#include "kit/kit_probe.h"
#include "kit/kit_report.h"
#include "loader/install_dirs.h"

#define MAX_ENV 40
#define WHAT                                                                                                       \
  "NCCL makes a communicator over this plugin, its collective delivers what scalar code says, and its log says of " \
  "every connection that this plugin carries it"
#define SOURCE "NCCL's host code itself"

struct nccl_case {
  char id[16];
  char name[48];
  const char *what;
  const struct kit_nccl_scenario *scenario; /* NULL: a collective */
  enum kit_nccl_coll coll;
  const char *algo, *proto; /* as NCCL_ALGO and NCCL_PROTO have them; NULL: NCCL's choice */
};

struct run {
  const struct kit_nccl *how;
  struct kit_report report;
  struct kit_probe probe;
  char ghost[PATH_MAX], version[32];
  int topology; /* a file, where several ranks are a host */
};

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
static struct nccl_case cases[NCASES];

static bool has_algo(enum kit_nccl_coll coll, enum algo algo) {
  if (algo == TREE) return coll == KIT_NCCL_ALL_REDUCE;
  return algo == RING || coll == KIT_NCCL_ALL_GATHER || coll == KIT_NCCL_REDUCE_SCATTER;
}

static struct nccl_case *add_coll(struct nccl_case *t, enum kit_nccl_coll coll) {
  int number = 0;
  for (enum algo algo = RING; algo <= PAT; algo++)
    for (int proto = algo == PAT ? NPROTOS - 1 : 0; has_algo(coll, algo) && proto < NPROTOS; proto++, t++) {
      *t = (struct nccl_case){.what = WHAT, .coll = coll, .algo = algos[algo], .proto = protos[proto]};
      snprintf(t->id, sizeof t->id, "%d.%d", (int)coll + 1, ++number);
      snprintf(t->name, sizeof t->name, "%s.%s.%s", kit_nccl_colls[coll], algo_names[algo], t->proto);
    }
  return t;
}

static void make_cases(void) {
  struct nccl_case *t = cases;
  for (int coll = 0; coll < NRING_COLLS; coll++) t = add_coll(t, (enum kit_nccl_coll)coll);
  for (int coll = NRING_COLLS; coll < KIT_NCCL_COLLS; coll++, t++) {
    *t = (struct nccl_case){.what = WHAT, .coll = (enum kit_nccl_coll)coll};
    snprintf(t->id, sizeof t->id, "%d.1", coll + 1);
    snprintf(t->name, sizeof t->name, "%s", kit_nccl_colls[coll]);
  }
  for (int i = 0; i < KIT_NCCL_SCENARIOS; i++, t++) {
    const struct kit_nccl_scenario *scenario = &kit_nccl_scenarios[i];
    *t = (struct nccl_case){.what = scenario->what, .scenario = scenario};
    snprintf(t->id, sizeof t->id, "%d.%d", KIT_NCCL_COLLS + 1, i + 1);
    snprintf(t->name, sizeof t->name, "%s", scenario->name);
  }
  assert(t == cases + NCASES);
}

/* Milliseconds for the case's processes. */
static uint64_t limit_of(const struct kit_nccl *how, const struct nccl_case *t) {
  bool repeats = t->scenario && t->scenario->repeats;
  return how->limit_ms * (repeats ? 1 + (uint64_t)how->repeat / 10 : 1);
}

/* ---- the environment of a process ---- */

struct env {
  char *entries[MAX_ENV + 1];
  int n;
};

__attribute__((format(printf, 2, 3))) static void add_env(struct env *e, const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  if (e->n == MAX_ENV || vasprintf(&e->entries[e->n], format, ap) < 0) {
    fprintf(stderr, "rail-kit: out of memory\n");
    exit(3);
  }
  e->n++;
  va_end(ap);
}

/* Unless the user has decided it. */
static void add_default(struct env *e, const char *name, const char *value) {
  if (!getenv(name)) add_env(e, "%s=%s", name, value);
}

static void free_env(struct env *e) {
  for (int i = 0; i < e->n; i++) free(e->entries[i]);
}

static int processes_of(const struct kit_nccl *how) { return how->ranks / how->gpus_per_process; }
static int processes_per_host(const struct kit_nccl *how) { return how->ranks_per_host / how->gpus_per_process; }

/* GPUs of a host. Each rank has one of its own, also where all are told to be one host. */
static int gpus_of(const struct kit_nccl *how) { return how->ranks_per_host > 1 ? how->ranks_per_host : how->ranks; }

/* NCCL_HOSTID says which processes are one host. Where several ranks are, what lies between these may leave out the
 * network. */
static void add_host(struct env *e, const struct kit_nccl *how, int process, int topology) {
  bool several = how->ranks_per_host > 1;
  if (!getenv("NCCL_HOSTID")) add_env(e, "NCCL_HOSTID=ghost-%d", process / processes_per_host(how));
  add_env(e, "GHOST_DEVICES=%d", gpus_of(how));
  add_default(e, "NCCL_P2P_DISABLE", several ? "0" : "1");
  add_default(e, "NCCL_SHM_DISABLE", several ? "0" : "1");
  if (!several) return;
  add_env(e, "GHOST_MAPPED=zeros"); /* as NCCL takes what lies between GPUs to be */
  if (!getenv("NCCL_TOPO_FILE")) add_env(e, "NCCL_TOPO_FILE=/proc/self/fd/%d", topology);
}

/* What needs kernels that ghost has not, or a GPU's features, is off. */
static void make_env(struct env *e, const struct run *run, const struct nccl_case *t, int process, int log) {
  static const char *const off[] = {"NCCL_LOCAL_REGISTER", "NCCL_GRAPH_REGISTER", "NCCL_NVLS_ENABLE",
                                    "NCCL_MNNVL_ENABLE",   "NCCL_RAS_ENABLE",     "NCCL_WIN_ENABLE",
                                    "NCCL_GIN_ENABLE"};
  const struct kit_nccl *how = run->how;
  const char *path = getenv("LD_LIBRARY_PATH"), *level = getenv("NCCL_DEBUG");
  bool trace = level && strcasecmp(level, "TRACE") == 0;
  add_env(e, "LD_LIBRARY_PATH=%s%s%s", run->ghost, path ? ":" : "", path ? path : "");
  add_host(e, how, process, run->topology);
  add_env(e, "NCCL_NET_PLUGIN=%s", how->plugin);
  add_env(e, "NCCL_NET=%s", run->probe.name);
  add_env(e, "NCCL_DEBUG=%s", trace ? "TRACE" : "INFO");
  add_env(e, "NCCL_DEBUG_FILE=/proc/self/fd/%d", log);
  add_env(e, "NCCL_DEBUG_SUBSYS=INIT,NET,ENV,ALLOC,ALLOC_HOST");
  if (t->algo) add_env(e, "NCCL_ALGO=%s", t->algo);
  if (t->proto) add_env(e, "NCCL_PROTO=%s", t->proto);
  if (how->oob) add_env(e, "NCCL_OOB_NET_ENABLE=1");
  add_env(e, "NCCL_MIN_NCHANNELS=%d", how->channels);
  add_env(e, "NCCL_MAX_NCHANNELS=%d", how->channels);
  add_env(e, "NCCL_NET_GDR_LEVEL=%s", how->gdr ? "SYS" : "LOC");
  add_env(e, "NCCL_NET_GDR_READ=%d", how->gdr);
  add_env(e, "GHOST_PATIENCE=%" PRIu64, limit_of(how, t) / 1000 + 1);
  add_default(e, "NCCL_SOCKET_IFNAME", "lo");
  for (size_t i = 0; i < sizeof off / sizeof *off; i++) add_default(e, off[i], "0");
}

/* ---- files for NCCL ---- */

/* A file without a name that ranks inherit, beyond the descriptors that the kit gives its processes. Without it nothing
 * could be shown, so the program ends. */
static int make_file(const char *what) {
  int fd = memfd_create(what, 0), high = fd < 0 ? -1 : fcntl(fd, F_DUPFD, 64);
  if (high < 0) {
    fprintf(stderr, "rail-kit nccl: no file for NCCL's %s (%s): %s\n", what, fd < 0 ? "memfd_create" : "fcntl F_DUPFD",
            strerror(errno));
    exit(3);
  }
  close(fd);
  return high;
}

static int make_topology(const struct kit_nccl *how, const struct kit_probe *probe) {
  int fd = make_file("topology"), copy = dup(fd);
  FILE *f = copy < 0 ? NULL : fdopen(copy, "w");
  if (f) kit_nccl_write_topology(f, gpus_of(how), probe);
  if (!f || fclose(f) != 0) {
    fprintf(stderr, "rail-kit nccl: the file of NCCL's topology cannot be written: %s\n", strerror(errno));
    exit(3);
  }
  return fd;
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

static void on_message(struct kit_group *group, const struct kit_message *message, void *arg) {
  (void)group;
  kit_result_message(arg, message);
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

/* NCCL says of its own networks what it says of a plugin of the same name. */
static bool is_nccls_own(const char *name) { return strcasecmp(name, "Socket") == 0 || strcasecmp(name, "IB") == 0; }

/* Of one host, since a rank in the middle of a ring may have no connection to another one. */
static struct proof check_host(struct run *run, struct kit_result *r, const int *logs, int host) {
  int n = run->how->ranks_per_host, first = host * n, processes = processes_per_host(run->how);
  struct proof p = {.several_a_host = n > 1};
  char ranks[64];
  for (int i = 0; i < processes; i++) read_log(&p, logs[host * processes + i], run->probe.name);
  if (n > 1) snprintf(ranks, sizeof ranks, "ranks %d to %d", first, first + n - 1);
  else snprintf(ranks, sizeof ranks, "rank %d", first);
  if (is_nccls_own(run->probe.name))
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

static void check_log(struct run *run, struct kit_result *r, const int *logs) {
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
static void format_repeat_command(struct kit_result *r, const struct kit_nccl *how, const struct nccl_case *t,
                                  const char *sizes) {
  size_t room = sizeof r->again;
  snprintf(r->again, room, "rail-kit nccl ");
  kit_append_quoted(r->again, room, how->plugin);
  strncat(r->again, " --nccl ", room - strlen(r->again) - 1);
  kit_append_quoted(r->again, room, how->library);
  size_t at = strlen(r->again);
  snprintf(r->again + at, room - at,
           " --ranks %d --gpus-per-process %d --ranks-per-host %d --channels %d --limit %g --repeat %d --sizes %s"
           "%s%s%s%s --only %s%s%s",
           how->ranks, how->gpus_per_process, how->ranks_per_host, how->channels, (double)how->limit_ms / 1000,
           how->repeat, sizes, how->types ? " --types " : "", how->types ? how->types : "",
           how->redops ? " --redops " : "", how->redops ? how->redops : "", t->name,
           how->oob ? " --oob" : "", how->gdr ? " --gdr on" : "");
}

struct case_run {
  struct kit_result result;
  struct kit_group_options group;
  struct env env[KIT_NCCL_MAX_RANKS];
  int logs[KIT_NCCL_MAX_RANKS]; /* of the processes */
  char sizes[512];
};

static void make_job(struct kit_job *job, const struct kit_nccl *how, const struct nccl_case *t, const char *sizes) {
  snprintf(job->kind, sizeof job->kind, "nccl");
  snprintf(job->name, sizeof job->name, "%s", t->name);
  snprintf(job->plugin, sizeof job->plugin, "%s", how->plugin);
  job->limit_ms = limit_of(how, t);
  kit_job_add(job, "library", "%s", how->library);
  if (t->scenario) kit_job_add(job, "scenario", "%s", t->scenario->name);
  kit_job_add(job, "gpus", "%d", gpus_of(how));
  kit_job_add(job, "ranks_per_host", "%d", how->ranks_per_host);
  kit_job_add(job, "gpus_per_process", "%d", how->gpus_per_process);
  kit_job_add(job, "repeat", "%d", how->repeat);
  kit_job_add(job, "coll", "%d", (int)t->coll);
  kit_job_add(job, "algo", "%s", t->algo ? t->algo : algos[RING]);
  kit_job_add(job, "proto", "%s", !t->proto || t->proto[0] == 'S' ? "SIMPLE" : t->proto);
  kit_job_add(job, "sizes", "%s", sizes);
  if (how->types) kit_job_add(job, "types", "%s", how->types);
  if (how->redops) kit_job_add(job, "redops", "%s", how->redops);
}

static void make_run(struct case_run *c, const struct run *run, const struct nccl_case *t) {
  const struct kit_nccl *how = run->how;
  c->result = (struct kit_result){.id = t->id, .name = t->name, .what = t->what, .source = SOURCE, .level = KIT_MUST,
                                  .version = kit_probe_newest(&run->probe), .seed = run->report.seed};
  c->group = (struct kit_group_options){.nprocesses = processes_of(how), .on_message = on_message, .arg = &c->result};
  for (unsigned i = 0; i < how->nsizes; i++)
    snprintf(c->sizes + strlen(c->sizes), sizeof c->sizes - strlen(c->sizes), "%s%llu", i ? "," : "",
             (unsigned long long)how->sizes[i]);
  make_job(&c->group.job, how, t, c->sizes);
  for (int i = 0; i < c->group.nprocesses; i++) {
    c->logs[i] = make_file("log");
    make_env(&c->env[i], run, t, i, c->logs[i]);
    c->group.setup[i].env = (const char *const *)c->env[i].entries;
  }
}

static void free_run(struct case_run *c) {
  for (int i = 0; i < c->group.nprocesses; i++) {
    close(c->logs[i]);
    free_env(&c->env[i]);
  }
}

static void run_case(struct run *run, const struct nccl_case *t) {
  struct case_run c = {.sizes = ""};
  struct kit_outcome outcome;
  make_run(&c, run, t);
  kit_report_progress(&run->report, t->name);
  kit_group_run(NULL, &c.group, &outcome);
  kit_result_outcome(&c.result, &outcome, c.group.nprocesses);
  check_log(run, &c.result, c.logs);
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

static bool wanted(const struct kit_filter *filter, const struct nccl_case *t) {
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

static int run_all(struct run *run, const struct kit_filter *filter) {
  for (int i = 0; i < NCASES; i++) run->report.expected += wanted(filter, &cases[i]);
  if (run->report.expected == 0) {
    kit_filter_print_empty(filter, "nccl");
    return 2;
  }
  if (run->how->ranks_per_host > 1) run->topology = make_topology(run->how, &run->probe);
  kit_report_start(&run->report);
  FILE *f = run->report.table;
  if (f && run->report.verbose)
    fprintf(f, "                %12s %12s %9s %6s %4s %11s %8s %11s %8s\n", "size (B)", "count", "type", "redop",
            "root", "time (us)", "#wrong", "in place", "#wrong");
  for (int i = 0; i < NCASES; i++)
    if (wanted(filter, &cases[i])) run_case(run, &cases[i]);
  if (f && run->version[0]) fprintf(f, "NCCL %s, %d ranks, %s\n", run->version, run->how->ranks, run->probe.name);
  if (run->topology >= 0) close(run->topology);
  return kit_report_finish(&run->report);
}

int kit_nccl_run(const struct kit_nccl *how) {
  static const struct kit_placement here;
  static struct run run;
  struct kit_filter filter;
  char why[1024], plugin[PATH_MAX], library[PATH_MAX];
  int result = 3;
  /* NCCL and the plugin are opened by processes that look for libraries elsewhere. */
  struct kit_nccl resolved = *how;
  if (strchr(how->plugin, '/') && realpath(how->plugin, plugin)) resolved.plugin = plugin;
  if (realpath(how->library, library)) resolved.library = library;
  run = (struct run){.how = &resolved, .topology = -1,
                     .report = {.command = "nccl", .plugin = resolved.plugin, .verbose = !how->quiet,
                                .json = how->json, .junit = how->junit, .seed = 1}};
  if (!kit_filter_read(&filter, how->only, how->skip, NULL, NULL)) return 2;
  make_cases();
  if (!kit_filter_check(&filter, "nccl", entry)) {
    result = 2;
  } else if (!kit_nccl_file(resolved.library, why, sizeof why)) {
    fprintf(stderr, "rail-kit nccl: %s\n", why);
  } else if (find_ghost(run.ghost)) {
    bool loads = kit_probe(resolved.plugin, &here, &run.probe, why, sizeof why);
    result = loads ? run_all(&run, &filter)
                   : kit_report_unusable(&run.report, kit_probe_newest(&run.probe), why);
  }
  kit_filter_free(&filter);
  return result;
}
