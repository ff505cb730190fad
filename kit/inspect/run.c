/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "loader/install_dirs.h"
#include "kit/inspect/inspect.h"
#include "kit/kit_beside.h"
#include "kit/kit_json.h"

enum { FINE = 0, PLUGIN_FAILED = 1, NOT_RUN = 3 };

static int told(const char *what, const char *path) {
  fprintf(stderr, "rail-kit inspect: cannot %s %s: %s\n", what, path, strerror(errno));
  return NOT_RUN;
}

/* A name as NCCL_NET_PLUGIN takes it: the file that the newest NCCL would open, in LD_LIBRARY_PATH or where this
 * program's libraries are. What only ldconfig knows has to be given by its path. */
static bool find_named(const char *name, char path[PATH_MAX]) {
  char tries[KIT_MAX_TRIES][PATH_MAX], directories[2 * PATH_MAX], lib[PATH_MAX], *rest = NULL;
  const char *list = getenv("LD_LIBRARY_PATH");
  int n = strchr(name, '/') ? 0 : kit_release_tries(&kit_releases[kit_nreleases - 1], name, tries);
  if (!kit_beside(lib, rail_lib_from_bin)) lib[0] = 0;
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
  if (!realpath(file, in->real) || !realpath(directory, in->path)) return told("find", in->how->file);
  if (stat(in->real, &st) != 0) return told("read", in->real);
  size_t len = strlen(in->path);
  if (len + 1 + strlen(name) >= sizeof in->path) return errno = ENAMETOOLONG, told("find", in->how->file);
  snprintf(in->path + len, sizeof in->path - len, "%s%s", strcmp(in->path, "/") == 0 ? "" : "/", name);
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
  if (text && (fflush(stdout) != 0 || ferror(stdout))) return told("write", "standard output");
  return status;
}

static void release(struct kit_inspection *in) {
  for (int v = 0; v < KIT_VERSIONS; v++) free(in->versions[v].props);
  kit_elf_free(&in->elf);
  kit_deps_free(&in->deps);
  free(in->findings.items);
  free(in->logged);
  free(in);
}

int kit_inspect_run(const struct kit_inspect_how *how) {
  struct kit_inspection *in = calloc(1, sizeof *in);
  if (!in) return errno = ENOMEM, told("inspect", how->file);
  in->how = how;
  int status = find_file(in);
  if (status == FINE) {
    kit_elf_read(in->real, &in->elf);
    kit_deps_ask(in->path, &in->elf, how->limit_ms, &in->deps);
    status = kit_look_at_plugin(in) == 0 ? FINE : NOT_RUN;
  }
  if (status == FINE) {
    note_exported(in);
    kit_judge_file(in);
    kit_judge_tables(in);
    kit_judge_start(in);
    kit_judge_props(in);
    kit_judge_releases(in);
    kit_findings_sort(&in->findings);
    status = report(in);
  }
  release(in);
  return status;
}
