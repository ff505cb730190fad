/* SPDX-License-Identifier: Apache-2.0
 * What the file itself says, before it is loaded. */
#include <string.h>

#include "kit/inspect/inspect.h"

#define NET_CC "NCCL src/plugin/net.cc"
#define FIND(grade, id, why, source, ...) kit_find(&in->findings, 0, grade, id, why, source, __VA_ARGS__)

static void judge_shape(struct kit_inspection *in) {
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

static void judge_other(struct kit_inspection *in, const struct kit_elf_symbol *s) {
  for (size_t i = 0; i < RAIL_COUNT_OF(others); i++)
    if (begins(s->name, others[i].prefix) && s->in_dynsym && s->defined && !s->hidden)
      FIND(KIT_NOTE, "other.table", others[i].who, others[i].source, "it exports %s, %s", s->name, others[i].kind);
  if ((begins(s->name, "ncclNet") || begins(s->name, "ncclCollNet")) && s->defined)
    FIND(in->exported ? KIT_WARNING : KIT_ERROR, "table.type_name",
         "NCCL looks for ncclNetPlugin_vN; ncclNet_vN is the name of the type, which NCCL's README gives by mistake.",
         "NCCL plugins/net/example/plugin.c", "%s is no name that NCCL looks for", s->name);
}

/* ---- net tables ---- */

static void judge_visibility(struct kit_inspection *in, const struct kit_elf_symbol *s) {
  if (!s->defined)
    FIND(KIT_ERROR, "table.undefined", "The symbol is only mentioned; whoever is to define it is not in this file.",
         "dlsym(3)", "%s is undefined", s->name);
  else if (!s->in_dynsym || s->hidden)
    FIND(KIT_ERROR, "table.hidden",
         "dlsym sees exported symbols only: -fvisibility=hidden needs an attribute on the table, a version script "
         "needs its name.",
         "dlsym(3)", "%s is not exported%s", s->name, s->in_dynsym ? "" : ": it is in .symtab but not in .dynsym");
}

static void judge_table(struct kit_inspection *in, const struct kit_elf_symbol *s) {
  uint64_t needed = (uint64_t)rail_net_slot_count(s->version) * sizeof(void *);
  judge_visibility(in, s);
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

static void judge_tables(struct kit_inspection *in) {
  int newest_old = 0;
  for (size_t i = 0; i < in->elf.nsymbols; i++) {
    const struct kit_elf_symbol *s = &in->elf.symbols[i];
    if (!begins(s->name, "ncclNetPlugin")) {
      judge_other(in, s);
    } else if (s->version > RAIL_NET_VERSION_MAX) {
      FIND(KIT_NOTE, "table.newer", "No NCCL up to 2.30 looks for it.", NET_CC, "it has %s", s->name);
    } else if (s->version >= RAIL_NET_VERSION_MIN) {
      judge_table(in, s);
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

static void judge_dependencies(struct kit_inspection *in) {
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

void kit_judge_file(struct kit_inspection *in) {
  if (!in->elf.read) {
    FIND(KIT_WARNING, "file.unread", "Sizes and kinds of the tables are not checked.", "elf(5)",
         "the file's own tables were not read: %s", in->elf.why);
  } else {
    judge_shape(in);
    judge_tables(in);
  }
  judge_dependencies(in);
  if (in->exported == 0)
    FIND(KIT_ERROR, "table.none",
         "NCCL logs \"unsupported\" or nothing at all, closes the library and goes on with its built-in transports.",
         NET_CC, "no ncclNetPlugin_v%d to _v%d can be taken from it", RAIL_NET_VERSION_MIN, RAIL_NET_VERSION_MAX);
}
