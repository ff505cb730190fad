/* SPDX-License-Identifier: Apache-2.0
 * Finds the plugin's file, loads it and starts each of its versions in processes of their own, keeps their records, and
 * has the findings made and printed. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kit/inspect/inspect.h"
#include "kit/kit_group.h"
#include "kit/kit_json.h"
#include "loader/install_dirs.h"

enum { FINE = 0, PLUGIN_FAILED = 1, NOT_RUN = 3 };

/* ---- the processes that load the plugin, and what they report ---- */

#define MAX_LOGGED 20

/* Versions are started from the newest on; what one says the others repeat. */
static void store_log_line(struct kit_inspection *in, int version, const void *text, size_t size) {
  if (in->said_version == 0) in->said_version = version;
  if (in->said_version != version || size == 0) return;
  in->said = kit_more(in->said, &in->nsaid, &in->cap_said, sizeof *in->said);
  snprintf(in->said[in->nsaid - 1], sizeof *in->said, "%.*s", (int)size - 1, (const char *)text);
}

/* Keeps a record if it is as long as its kind is. */
static void store_record(struct kit_inspection *in, const struct kit_record *head, const void *data, size_t size) {
  if (head->kind == KIT_RECORD_LOAD && size == sizeof in->load) {
    memcpy(&in->load, data, size);
    return;
  }
  if (head->version < RAIL_NET_VERSION_MIN || head->version > RAIL_NET_VERSION_MAX) return;
  if (head->kind == KIT_RECORD_SAID) store_log_line(in, head->version, data, size);
  struct kit_seen_version *v = kit_seen(in, head->version);
  if (head->kind == KIT_RECORD_TABLE && size == sizeof v->table) memcpy(&v->table, data, size);
  if (head->kind == KIT_RECORD_START && size == sizeof v->start) memcpy(&v->start, data, size);
  if (head->kind != KIT_RECORD_PROPS || size != sizeof *v->props) return;
  v->props = kit_more(v->props, &v->nprops, &v->cap_props, sizeof *v->props);
  memcpy(&v->props[v->nprops - 1], data, size);
}

static void note_log(struct kit_inspection *in, const char *text) {
  char line[sizeof *in->logged];
  snprintf(line, sizeof line, "%s", text);
  for (size_t i = 0; i < in->nlogged; i++)
    if (strcmp(in->logged[i], line) == 0) return;
  if (in->nlogged == MAX_LOGGED) return;
  in->logged = kit_more(in->logged, &in->nlogged, &in->cap_logged, sizeof *in->logged);
  memcpy(in->logged[in->nlogged - 1], line, sizeof line);
}

static void on_message(struct kit_group *group, const struct kit_message *message, void *arg) {
  struct kit_record head;
  (void)group;
  if (message->kind == KIT_MESSAGE_LOG) note_log(arg, message->text);
  if (message->kind != KIT_MESSAGE_RECORD || message->size < sizeof head) return;
  memcpy(&head, message->data, sizeof head);
  store_record(arg, &head, (const char *)message->data + sizeof head, message->size - sizeof head);
}

/* Runs one process. False: it could not be started. How it ended goes to `end`, "" when well. */
static bool run(struct kit_inspection *in, int version, char *end, size_t size, char *call, size_t call_size) {
  static struct kit_group_options how;
  static struct kit_outcome outcome;
  memset(&how, 0, sizeof how);
  how.nprocesses = 1;
  how.on_message = on_message;
  how.arg = in;
  how.job.version = version;
  how.job.limit_ms = in->how->limit_ms;
  snprintf(how.job.kind, sizeof how.job.kind, "inspect");
  memcpy(how.job.plugin, in->path, strlen(in->path) + 1); /* it fits: load_plugin */
  kit_job_add(&how.job, "devices", "%d", in->how->ndevices);
  for (int i = 0; i < in->how->ndevices; i++) {
    char key[32];
    snprintf(key, sizeof key, "device%d", i);
    kit_job_add(&how.job, key, "%d", in->how->devices[i]);
  }
  kit_group_run(NULL, &how, &outcome);
  end[0] = call[0] = 0;
  const struct kit_process_end *self = &outcome.sides[0];
  if (version && outcome.end == KIT_END_SKIPPED) snprintf(kit_seen(in, version)->skipped, 256, "%.255s", self->text);
  if (outcome.end == KIT_END_FINE || outcome.end == KIT_END_SKIPPED) return true;
  if (outcome.end == KIT_END_HANG && !self->call[0]) { /* no one's fault but the machine's, or --limit's */
    fprintf(stderr, "rail-kit inspect: %s, in %g s: is the machine busy? See --limit\n", self->text, outcome.seconds);
    return false;
  }
  snprintf(end, size, "%s: %s", kit_end_text(self->end), self->text);
  snprintf(call, call_size, "%s", self->call);
  if (outcome.end != KIT_END_ERROR) return true;
  fprintf(stderr, "rail-kit inspect: %s\n", self->text);
  return false;
}

/* Fills in load, load_end and versions, each from a process of its own. -1: reported on stderr, none can be started. */
static int load_plugin(struct kit_inspection *in) {
  struct kit_job *job = NULL;
  char call[32];
  if (strlen(in->path) >= sizeof job->plugin) {
    fprintf(stderr, "rail-kit inspect: %s: a path of more than %zu characters cannot be loaded here\n", in->path,
            sizeof job->plugin - 1);
    return -1;
  }
  if (!run(in, 0, in->load_end, sizeof in->load_end, call, sizeof call)) return -1;
  for (int v = RAIL_NET_VERSION_MAX; v >= RAIL_NET_VERSION_MIN; v--) {
    struct kit_seen_version *seen = kit_seen(in, v);
    if (!seen->table.there || !seen->table.readable) continue;
    if (!run(in, v, seen->end, sizeof seen->end, seen->call, sizeof seen->call)) return -1;
  }
  return 0;
}

static int report_error(const char *what, const char *path) {
  fprintf(stderr, "rail-kit inspect: cannot %s %s: %s\n", what, path, strerror(errno));
  return NOT_RUN;
}

/* A name as NCCL_NET_PLUGIN takes it: the file that the newest NCCL would open, in LD_LIBRARY_PATH or where this
 * program's libraries are. A library that only ldconfig lists has to be given by its path. */
static bool find_named(const char *name, char path[PATH_MAX]) {
  char tries[KIT_MAX_TRIES][PATH_MAX], directories[2 * PATH_MAX], lib[PATH_MAX], *rest = NULL;
  const char *list = getenv("LD_LIBRARY_PATH");
  int n = strchr(name, '/') ? 0 : kit_release_tries(&kit_releases[kit_nreleases - 1], name, tries);
  if (!rail_path_from_bin(lib, rail_lib_from_bin)) lib[0] = 0;
  snprintf(directories, sizeof directories, "%.4000s:%s", list ? list : "", lib);
  for (char *at = strtok_r(directories, ":;", &rest); at; at = strtok_r(NULL, ":;", &rest))
    for (int i = 0; i < n; i++)
      if ((size_t)snprintf(path, PATH_MAX, "%s/%s", at, tries[i]) < PATH_MAX && access(path, R_OK) == 0) return true;
  return false;
}

static int find_file(struct kit_inspection *in) {
  struct stat st;
  char found[PATH_MAX], directory[PATH_MAX];
  const char *file = in->how->file;
  if (access(file, F_OK) != 0 && find_named(file, found)) file = found;
  const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
  snprintf(directory, sizeof directory, "%.*s", slash ? (int)(name - file) : 2, slash ? file : "./");
  if (!realpath(file, in->real) || !realpath(directory, in->path)) return report_error("find", in->how->file);
  if (stat(in->real, &st) != 0) return report_error("read", in->real);
  size_t len = strlen(in->path), name_len = strlen(name);
  if (len + 1 + name_len >= sizeof in->path) return errno = ENAMETOOLONG, report_error("find", in->how->file);
  if (in->path[len - 1] != '/') in->path[len++] = '/';
  memcpy(in->path + len, name, name_len + 1);
  if (S_ISREG(st.st_mode)) {
    in->bytes = (uint64_t)st.st_size;
    return FINE;
  }
  fprintf(stderr, "rail-kit inspect: %s is no file; it takes a library's path or name\n", in->how->file);
  return NOT_RUN;
}

/* What dlsym finds; when the plugin could not be loaded, what the file promises. */
static void note_exported(struct kit_inspection *in) {
  for (int v = RAIL_NET_VERSION_MIN; v <= RAIL_NET_VERSION_MAX; v++) {
    const struct kit_elf_symbol *s = kit_elf_table(&in->elf, "ncclNetPlugin", v);
    bool promised = s && s->in_dynsym && s->defined && !s->hidden;
    if (in->load.loaded ? kit_seen(in, v)->table.there : promised) in->exported |= 1u << v;
  }
  for (size_t i = 0; i < in->elf.nsymbols; i++) { /* v5 and older, which are not looked at in memory */
    const struct kit_elf_symbol *s = &in->elf.symbols[i];
    if (strncmp(s->name, "ncclNetPlugin_v", 15) == 0 && s->in_dynsym && s->defined && s->version < RAIL_NET_VERSION_MIN)
      in->exported |= 1u << s->version;
  }
}

static int report(struct kit_inspection *in) {
  int status = kit_findings_count(&in->findings, KIT_ERROR) > 0 ? PLUGIN_FAILED : FINE;
  bool text = !in->how->json || strcmp(in->how->json, "-") != 0;
  if (text) kit_inspect_text(stdout, in);
  FILE *json = in->how->json ? kit_file_open("rail-kit inspect", in->how->json) : NULL;
  if (in->how->json && !json) return NOT_RUN;
  if (json) (void)kit_inspect_json(json, in);
  if (json && !kit_file_close("rail-kit inspect", json, in->how->json)) return NOT_RUN;
  if (text && (fflush(stdout) != 0 || ferror(stdout))) return report_error("write", "standard output");
  return status;
}

/* In this process: nothing of the plugin's is started. */
static int print_params(const struct kit_inspection *in) {
  kit_plugin_params_fn *params = NULL;
  void *library = dlopen(in->path, RTLD_NOW | RTLD_LOCAL);
  void *symbol = library ? dlsym(library, "railPluginParams") : NULL;
  if (!symbol) {
    fprintf(stderr, "rail-kit inspect: --params: %s; only Railyard's plugins export their parameters\n", dlerror());
    return NOT_RUN;
  }
  memcpy(&params, &symbol, sizeof params);
  params(0);
  return fflush(stdout) == 0 && !ferror(stdout) ? FINE : report_error("write", "standard output");
}

static void release(struct kit_inspection *in) {
  for (int v = 0; v < KIT_VERSIONS; v++) free(in->versions[v].props);
  kit_elf_free(&in->elf);
  kit_deps_free(&in->deps);
  free(in->findings.items);
  free(in->logged);
  free(in->said);
  free(in);
}

int kit_inspect_run(const struct kit_inspect_options *how) {
  struct kit_inspection *in = calloc(1, sizeof *in);
  if (!in) return errno = ENOMEM, report_error("inspect", how->file);
  in->how = how;
  int status = find_file(in);
  if (status == FINE && how->params) {
    status = print_params(in);
    release(in);
    return status;
  }
  if (status == FINE) {
    kit_elf_read(in->real, &in->elf);
    kit_deps_resolve(in->path, &in->elf, how->limit_ms, &in->deps);
    status = load_plugin(in) == 0 ? FINE : NOT_RUN;
  }
  if (status == FINE) {
    note_exported(in);
    kit_verify_file(in);
    kit_verify_tables(in);
    kit_verify_start(in);
    kit_verify_props(in);
    kit_verify_releases(in);
    kit_findings_sort(&in->findings);
    status = report(in);
  }
  release(in);
  return status;
}
