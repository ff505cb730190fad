/* SPDX-License-Identifier: Apache-2.0
 * Findings about the file itself: its shape, the tables it exports, the libraries it needs. And what each NCCL release
 * makes of it: which table it takes, which values of NCCL_NET_PLUGIN lead to the file. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/compiler.h"
#include "kit/inspect/inspect.h"

#define NET_CC "NCCL src/plugin/net.cc"
#define FIND(grade, id, why, source, ...) kit_find(&in->findings, 0, grade, id, why, source, __VA_ARGS__)

static void verify_shape(struct kit_inspection *in) {
  const struct kit_elf *elf = &in->elf;
  if (!elf->machine_fits)
    FIND(KIT_ERROR, "file.machine", "The dynamic loader refuses it.", "ld.so(8)", "the file is %d bits for %s",
         elf->bits, elf->machine);
  if (!elf->shared)
    FIND(KIT_ERROR, "file.kind", "dlopen takes shared objects only (-shared).", "dlopen(3)",
         "the file is no shared object");
  if (elf->text_relocations)
    FIND(KIT_WARNING, "file.text_relocations",
         "Code is not position independent (-fPIC): it is copied into every process, and SELinux may refuse it.",
         "ld.so(8)", "the library has text relocations");
  if (elf->executable_stack)
    FIND(KIT_WARNING, "file.executable_stack",
         "glibc since 2.41 refuses to dlopen it, older ones make every thread's stack executable. Assembler files "
         "without .note.GNU-stack are the usual cause.",
         "glibc 2.41 NEWS", "the library asks for an executable stack");
  if (elf->no_delete)
    FIND(KIT_NOTE, "file.no_delete",
         "NCCL 2.22 to 2.25 and since 2.28 closes plugins when the last communicator ends; this one stays, and keeps "
         "its state.",
         NET_CC, "the library is marked NODELETE");
  if (elf->rpath[0])
    FIND(KIT_NOTE, "file.rpath",
         "RPATH is searched before LD_LIBRARY_PATH, and for the libraries of its libraries too; RUNPATH is neither.",
         "ld.so(8)", "RPATH is %.300s", elf->rpath);
}

/* ---- tables of other kinds ---- */

static const struct {
  const char *prefix, *kind, *who, *source;
} others[] = {
    {"ncclCollNetPlugin", "a CollNet (collective offload) table",
     "NCCL looks for it in the net plugin's library and uses it for collectives if it has devices; inspect says "
     "nothing about it.",
     NET_CC},
    {"ncclGinPlugin", "a GIN table",
     "NCCL 2.28 looks for v11 in the net plugin's library, 2.30 for v13 and v14; inspect says nothing about it.",
     "NCCL src/plugin/gin.cc"},
    {"ncclRmaPlugin", "an RMA table",
     "NCCL 2.30 looks for v13 and v14 in the net plugin's library; inspect says nothing about it.",
     "NCCL src/plugin/rma.cc"},
    {"ncclTunerPlugin", "a tuner table",
     "NCCL since 2.21 takes a tuner from the net plugin's library when NCCL_TUNER_PLUGIN names none.",
     "NCCL src/plugin/tuner.cc"},
    {"ncclProfilerPlugin", "a profiler table",
     "NCCL since 2.28 takes a profiler from the net plugin's library when NCCL_PROFILER_PLUGIN names none.",
     "NCCL src/plugin/profiler.cc"},
    {"ncclEnvPlugin", "an environment table", "NCCL does not look for it in a net plugin.", "NCCL src/plugin/env.cc"},
};

static bool begins(const char *name, const char *prefix) {
  size_t len = strlen(prefix);
  return strncmp(name, prefix, len) == 0 && name[len] == '_';
}

static void verify_other(struct kit_inspection *in, const struct kit_elf_symbol *s) {
  for (size_t i = 0; i < RAIL_COUNT_OF(others); i++)
    if (begins(s->name, others[i].prefix) && s->in_dynsym && s->defined && !s->hidden)
      FIND(KIT_NOTE, "other.table", others[i].who, others[i].source, "it exports %s, %s", s->name, others[i].kind);
  if ((begins(s->name, "ncclNet") || begins(s->name, "ncclCollNet")) && s->defined)
    FIND(in->exported ? KIT_WARNING : KIT_ERROR, "table.type_name",
         "NCCL looks for ncclNetPlugin_vN; ncclNet_vN is the name of the type, which NCCL's README gives by mistake.",
         "NCCL plugins/net/example/plugin.c", "%s is no name that NCCL looks for", s->name);
}

/* ---- net tables ---- */

static void verify_visibility(struct kit_inspection *in, const struct kit_elf_symbol *s) {
  if (!s->defined)
    FIND(KIT_ERROR, "table.undefined", "The symbol is only mentioned; whoever is to define it is not in this file.",
         "dlsym(3)", "%s is undefined", s->name);
  else if (!s->in_dynsym || s->hidden)
    FIND(KIT_ERROR, "table.hidden",
         "dlsym sees exported symbols only: -fvisibility=hidden needs an attribute on the table, a version script "
         "needs its name.",
         "dlsym(3)", "%s is not exported%s", s->name, s->in_dynsym ? "" : ": it is in .symtab but not in .dynsym");
}

static void verify_table(struct kit_inspection *in, const struct kit_elf_symbol *s) {
  uint64_t needed = (uint64_t)rail_net_slot_count(s->version) * sizeof(void *);
  verify_visibility(in, s);
  if (s->is_function)
    FIND(KIT_ERROR, "table.function", "NCCL reads pointers at the symbol's address: it would read machine code.",
         NET_CC, "%s is a function, not an object", s->name);
  else if (s->size != 0 && s->size < needed)
    FIND(KIT_ERROR, "table.too_small",
         "NCCL reads the slots behind its end all the same: they are whatever the linker put there.",
         "NCCL src/include/plugin/net", "%s has %llu bytes; v%d has %d slots, %llu bytes", s->name,
         (unsigned long long)s->size, s->version, rail_net_slot_count(s->version), (unsigned long long)needed);
  else if (s->size > needed)
    FIND(KIT_WARNING, "table.too_large", "It looks like the table of another version under this one's name.",
         "NCCL src/include/plugin/net", "%s has %llu bytes; v%d has %llu", s->name, (unsigned long long)s->size,
         s->version, (unsigned long long)needed);
  if (s->zeroed)
    FIND(KIT_ERROR, "table.zeroed",
         "It is all NULL when NCCL reads it, unless a constructor fills it in: NCCL calls none of the plugin before.",
         NET_CC, "%s lies in %s, which the file does not fill", s->name, s->section);
}

static void verify_tables(struct kit_inspection *in) {
  int newest_old = 0;
  for (size_t i = 0; i < in->elf.nsymbols; i++) {
    const struct kit_elf_symbol *s = &in->elf.symbols[i];
    if (!begins(s->name, "ncclNetPlugin")) {
      verify_other(in, s);
    } else if (s->version > RAIL_NET_VERSION_MAX) {
      FIND(KIT_NOTE, "table.newer", "No NCCL up to 2.30 looks for it.", NET_CC, "it has %s", s->name);
    } else if (s->version >= RAIL_NET_VERSION_MIN) {
      verify_table(in, s);
    } else if (s->in_dynsym && s->defined) {
      newest_old = RAIL_MAX(newest_old, s->version);
    }
  }
  if (newest_old)
    FIND(in->exported >> RAIL_NET_VERSION_MIN ? KIT_NOTE : KIT_WARNING, "table.old",
         "v5 is looked for by NCCL 2.12 to 2.25, v4 up to 2.18; inspect says nothing about them.", NET_CC,
         "it exports v%d and perhaps older", newest_old);
}

/* ---- libraries ---- */

static const char *base(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static void verify_dependencies(struct kit_inspection *in) {
  const struct kit_deps *deps = &in->deps;
  bool missing = false;
  if (!deps->asked)
    FIND(KIT_WARNING, "deps.unknown", "Missing libraries show only when the plugin is loaded.", "ld.so(8)",
         "the dynamic loader did not say what the library needs: %s", deps->why);
  for (size_t i = 0; i < deps->n; i++) {
    if (deps->items[i].path[0]) continue;
    missing = true;
    FIND(KIT_ERROR, "deps.missing",
         "dlopen fails, and NCCL says so only with NCCL_DEBUG=INFO before it goes on with its built-in transports. "
         "Install the library, or add its directory to LD_LIBRARY_PATH.",
         "NCCL src/plugin/plugin_open.cc", "%s is not found; %s needs it", deps->items[i].name,
         deps->items[i].needed_by[0] ? base(deps->items[i].needed_by) : "it");
  }
  for (size_t i = 0; i < deps->nundefined; i++)
    FIND(
        KIT_ERROR, "deps.undefined",
        missing
            ? "NCCL opens plugins with RTLD_NOW: every symbol must be found. A missing library may be the cause."
            : "NCCL opens plugins with RTLD_NOW: every symbol must be found in the libraries that are linked "
              "(-lNAME), and those of NCCL itself are not visible.",
        "NCCL src/os/linux.cc", "undefined in %s: %s", base(deps->undefined[i].in), deps->undefined[i].symbol);
}

void kit_verify_file(struct kit_inspection *in) {
  if (!in->elf.read) {
    FIND(KIT_WARNING, "file.unread", "Sizes and kinds of the tables are not checked.", "elf(5)",
         "the file's own tables were not read: %s", in->elf.why);
  } else {
    verify_shape(in);
    verify_tables(in);
  }
  verify_dependencies(in);
  if (in->exported == 0)
    FIND(KIT_ERROR, "table.none",
         "NCCL logs \"unsupported\" or nothing at all, closes the library and goes on with its built-in transports.",
         NET_CC, "no ncclNetPlugin_v%d to _v%d can be taken from it", RAIL_NET_VERSION_MIN, RAIL_NET_VERSION_MAX);
}

/* How each NCCL finds a plugin, read from its tags: src/net.cc to 2.25, src/plugin/net.cc and plugin_open.cc
 * since. */

#define PREFIXED .rule = KIT_FILE_PREFIXED, .buffer = 128, .init_first = true
#define BOTH .rule = KIT_FILE_BOTH, .init_first = true, .device_type = true
#define LIST .buffer = 255, .statics = true, .list = true, .device_type = true
#define LATEST LIST, .rule = KIT_FILE_NAME_OR_BOTH, .none = true, .unloads = true

const struct kit_release kit_releases[] = {
    {"2.13", 6, 4, PREFIXED},
    {"2.14", 6, 4, PREFIXED},
    {"2.15", 6, 4, PREFIXED},
    {"2.16", 6, 4, PREFIXED},
    {"2.17", 6, 4, PREFIXED},
    {"2.18", 6, 4, PREFIXED},
    {"2.19", 7, 5, PREFIXED, .device_type = true},
    {"2.20", 8, 5, PREFIXED, .device_type = true},
    {"2.21", 8, 5, BOTH},
    {"2.22", 8, 5, BOTH, .statics = true, .unloads = true},
    {"2.23", 8, 5, BOTH, .statics = true, .unloads = true},
    {"2.24", 9, 5, BOTH, .statics = true, .unloads = true},
    {"2.25", 9, 5, BOTH, .statics = true, .unloads = true},
    {"2.26", 10, 6, BOTH, .statics = true, .buffer = 255},
    {"2.27.3", 10, 6, LIST, .rule = KIT_FILE_LIB_OR_PREFIXED, .init_first = true},
    {"2.27.5-2.27.7", 10, 6, LIST, .rule = KIT_FILE_NAME_OR_BOTH, .init_first = true},
    {"2.28.3", 11, 6, LATEST, .init_first = true, .forgets = true, .finalize_failed = true},
    {"2.28.7-2.28.9", 11, 6, LATEST, .forgets = true, .finalize_failed = true},
    {"2.29.2-2.29.3", 11, 6, LATEST, .forgets = true, .finalize_failed = true},
    {"2.29.7", 11, 6, LATEST, .forgets = true},
    {"2.30", 12, 6, LATEST},
};
const size_t kit_nreleases = RAIL_COUNT_OF(kit_releases);

int kit_release_picks(const struct kit_release *r, uint32_t exported) {
  for (int v = r->newest; v >= r->oldest; v--)
    if (exported >> v & 1) return v;
  return 0;
}

static bool is_library_name(const char *value, size_t least) {
  size_t len = strlen(value);
  return len >= least && strncmp(value, "lib", 3) == 0 && strcmp(value + len - 3, ".so") == 0;
}

/* What the whole value means to dlopen. The comparison is as long as the value is, so "s" is a beginning, too. */
static const char *verbatim(const struct kit_release *r, const char *value) {
  return r->statics && strncasecmp(value, "STATIC_PLUGIN", strlen(value)) == 0 ? KIT_STATIC : value;
}

int kit_release_tries(const struct kit_release *r, const char *value, char tries[KIT_MAX_TRIES][PATH_MAX]) {
  int n = 0;
  if (!value || (!*value && !r->list)) {
    snprintf(tries[n++], PATH_MAX, "libnccl-net.so");
    return n;
  }
  if (!*value || (r->none && strcasecmp(value, "none") == 0)) return 0;
  size_t buffer = r->buffer ? (size_t)r->buffer : PATH_MAX;
  if (r->list && (strchr(value, ',') || strlen(value) >= buffer)) return 0;
  bool first = r->rule == KIT_FILE_BOTH || r->rule == KIT_FILE_NAME_OR_BOTH ||
               (r->rule == KIT_FILE_LIB_OR_PREFIXED && is_library_name(value, strlen("libX.so")));
  bool second = r->rule == KIT_FILE_PREFIXED || r->rule == KIT_FILE_BOTH ||
                (r->rule == KIT_FILE_LIB_OR_PREFIXED && !first) ||
                (r->rule == KIT_FILE_NAME_OR_BOTH && !strchr(value, '/') && !is_library_name(value, 3));
  if (first) {
    snprintf(tries[n], buffer, "%s", verbatim(r, value));
    if (strcmp(tries[n++], KIT_STATIC) == 0) return n; /* dlopen of the program itself always works */
  }
  if (second) snprintf(tries[n++], buffer, "libnccl-net-%s.so", value);
  return n;
}

/* Does a value lead to the file? SEARCH: when its directory is one that the dynamic loader searches. */
static enum kit_reach release_reaches(const struct kit_release *r, const char *value, const char *file) {
  char tries[KIT_MAX_TRIES][PATH_MAX];
  const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
  int n = kit_release_tries(r, value, tries);
  char *real_file = realpath(file, NULL);
  enum kit_reach reach = KIT_REACH_NO;
  for (int i = 0; i < n && reach == KIT_REACH_NO && strcmp(tries[i], KIT_STATIC) != 0; i++) {
    char *real = strchr(tries[i], '/') ? realpath(tries[i], NULL) : NULL;
    if (real && real_file && strcmp(real, real_file) == 0) reach = KIT_REACH_YES;
    else if (strcmp(tries[i], base) == 0) reach = KIT_REACH_SEARCH;
    free(real);
  }
  free(real_file);
  return reach;
}

/* Release by release: what is taken, how the file is found, and what that NCCL does that concerns this plugin. */

#define PLUGIN_OPEN_CC "NCCL src/plugin/plugin_open.cc"

/* ---- values of NCCL_NET_PLUGIN ---- */

/* X of libnccl-net-X.so; false: the file is not named so. */
static bool short_name(const char *file, char name[KIT_NAME_MAX]) {
  static const char prefix[] = "libnccl-net-", suffix[] = ".so";
  size_t len = strlen(file), around = sizeof prefix + sizeof suffix - 2;
  if (len <= around || len - around >= KIT_NAME_MAX || strncmp(file, prefix, sizeof prefix - 1) != 0 ||
      strcmp(file + len - sizeof suffix + 1, suffix) != 0)
    return false;
  memcpy(name, file + sizeof prefix - 1, len - around);
  name[len - around] = 0;
  return true;
}

static const char *file_name(const struct kit_inspection *in) { return strrchr(in->path, '/') + 1; }

int kit_ways(const struct kit_inspection *in, const struct kit_release *r, struct kit_way ways[KIT_MAX_WAYS]) {
  char name[KIT_NAME_MAX];
  const char *file = file_name(in);
  const char *values[] = {NULL, short_name(file, name) ? name : NULL, file, in->path};
  int n = 0;
  for (size_t i = 0; i < RAIL_COUNT_OF(values); i++) {
    if (i > 0 && !values[i]) continue;
    enum kit_reach reach = release_reaches(r, values[i], in->path);
    if (reach == KIT_REACH_NO) continue;
    ways[n].reach = reach;
    ways[n].set = i > 0;
    snprintf(ways[n++].value, PATH_MAX, "%s", values[i] ? values[i] : "");
  }
  return n;
}

bool kit_searched(const struct kit_inspection *in) {
  char directory[PATH_MAX];
  const char *list = getenv("LD_LIBRARY_PATH");
  snprintf(directory, sizeof directory, "%.*s", (int)(file_name(in) - in->path - 1), in->path);
  char *copy = list ? strdup(list) : NULL, *rest = NULL;
  bool found = false;
  for (char *at = copy ? strtok_r(copy, ":;", &rest) : NULL; at && !found; at = strtok_r(NULL, ":;", &rest)) {
    char *real = realpath(at, NULL);
    found = real && strcmp(real, directory) == 0;
    free(real);
  }
  free(copy);
  return found;
}

static void verify_file_name(struct kit_inspection *in) {
  char name[KIT_NAME_MAX];
  const char *file = file_name(in);
  bool named = short_name(file, name) || strcmp(file, "libnccl-net.so") == 0;
  if (!named)
    FIND(KIT_WARNING, "file.name",
         "NCCL up to 2.20 looks for libnccl-net-NAME.so and nothing else, a path is no use there; later ones take the "
         "path or the file's name.",
         PLUGIN_OPEN_CC, "the file's name %s is not of the form libnccl-net-NAME.so", file);
  if (short_name(file, name) && strncasecmp(name, "STATIC_PLUGIN", strlen(name)) == 0)
    FIND(KIT_ERROR, "file.static",
         "NCCL since 2.22 compares only as many letters with STATIC_PLUGIN as the value has, and looks for the plugin "
         "in the program itself; only 2.27.3 does not. The path works.",
         PLUGIN_OPEN_CC, "NCCL_NET_PLUGIN=%s does not lead to %s", name, file);
  if (short_name(file, name) && strcasecmp(name, "none") == 0)
    FIND(KIT_ERROR, "file.none", "It means: no plugin.", NET_CC, "NCCL_NET_PLUGIN=%s does not lead to %s", name, file);
  if (strchr(in->path, ','))
    FIND(KIT_WARNING, "file.comma", "NCCL since 2.27 takes NCCL_NET_PLUGIN for a list and cuts it there.", NET_CC,
         "there is a comma in %.400s", in->path);
  if (strlen(in->path) > 254)
    FIND(KIT_WARNING, "file.long",
         "NCCL since 2.26 keeps 254 characters: 2.26 cuts the rest, later ones ignore the value.", NET_CC,
         "the path has %zu characters", strlen(in->path));
}

/* ---- tables ---- */

/* The first and the last release of each stretch without a table. */
static void verify_gaps(struct kit_inspection *in) {
  if (!in->exported) return;
  for (size_t i = 0; i < kit_nreleases; i++) {
    if (kit_release_picks(&kit_releases[i], in->exported)) continue;
    size_t last = i;
    while (last + 1 < kit_nreleases && !kit_release_picks(&kit_releases[last + 1], in->exported)) last++;
    FIND(KIT_NOTE, "release.none", "They go on with their built-in transports.", NET_CC,
         "NCCL %s%s%s finds no table that it knows: it looks for v%d to v%d", kit_releases[i].name,
         last > i ? " to " : "", last > i ? kit_releases[last].name : "", kit_releases[i].oldest,
         kit_releases[last].newest);
    i = last;
  }
}

int kit_quirks(const struct kit_inspection *in, const struct kit_release *r, const char *quirks[KIT_MAX_QUIRKS]) {
  int picks = kit_release_picks(r, in->exported), n = 0;
  const struct kit_elf *elf = &in->elf;
  if (!picks) return 0;
  if (picks <= 8) quirks[n++] = "no message above 1 GiB, no fused NICs, no optional completion of receives";
  if (picks <= 10) quirks[n++] = "init once a process, no finalize";
  if (picks <= 9) quirks[n++] = "no traffic class";
  if (r->init_first) quirks[n++] = "init and devices are called even if NCCL_NET asks for another";
  if (r->finalize_failed)
    quirks[n++] =
        picks <= 10 ? "an init that fails crashes the process" : "finalize is called after an init that failed";
  if (r->forgets && !elf->no_delete)
    quirks[n++] =
        "after the last communicator the next one looks for libnccl-net.so (NCCL_NET_PLUGIN_REF_COUNT=1 helps)";
  else if (r->unloads && !elf->no_delete) quirks[n++] = "the library is closed with the last communicator";
  return n;
}

void kit_verify_releases(struct kit_inspection *in) {
  verify_file_name(in);
  verify_gaps(in);
}
