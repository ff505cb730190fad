/* SPDX-License-Identifier: Apache-2.0
 * The file as it lies on disk. Nothing in it is trusted: libelf checks what it is asked for against the file's size. */
#include "kit/inspect/inspect.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/compiler.h"
#ifdef RAIL_HAVE_LIBELF
#include <gelf.h>
#endif

const struct kit_elf_symbol *kit_elf_table(const struct kit_elf *elf, const char *prefix, int version) {
  char name[64];
  snprintf(name, sizeof name, "%s_v%d", prefix, version);
  for (size_t i = 0; i < elf->nsymbols; i++)
    if (strcmp(elf->symbols[i].name, name) == 0) return &elf->symbols[i];
  return NULL;
}

void kit_elf_free(struct kit_elf *elf) {
  free(elf->needed);
  free(elf->symbols);
}

#ifndef RAIL_HAVE_LIBELF
void kit_elf_read(const char *path, struct kit_elf *elf) {
  (void)path;
  memset(elf, 0, sizeof *elf);
  snprintf(elf->why, sizeof elf->why, "this rail-kit was built without libelf (Debian: libelf-dev)");
}
#else

/* ---- libelf, loaded when it is needed: a machine without it can run the rest of the kit ---- */

#define LIBELF_FUNCTIONS(X)                                                                                           \
  X(elf_version) X(elf_begin) X(elf_end) X(elf_errmsg) X(elf_kind) X(elf_nextscn) X(elf_getscn) X(elf_getdata)        \
  X(elf_strptr) X(elf_getshdrstrndx) X(elf_getphdrnum) X(gelf_getehdr) X(gelf_getshdr) X(gelf_getphdr) X(gelf_getsym) \
  X(gelf_getdyn)

struct libelf {
#define X(name) __typeof__(&name) name;
  LIBELF_FUNCTIONS(X)
#undef X
};

static bool find(void *library, const char *name, void *function) {
  void *at = dlsym(library, name);
  memcpy(function, &at, sizeof at);
  return at != NULL;
}

/* NULL: it is not on this machine, `why` says what to do. */
static const struct libelf *load_libelf(char *why, size_t why_size) {
  static struct libelf elf;
  static bool there;
  if (there) return &elf;
  void *library = dlopen("libelf.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    snprintf(why, why_size, "libelf.so.1 is not on this machine (Debian: apt-get install libelf1)");
    return NULL;
  }
#define X(name)                                                       \
  if (!find(library, #name, &elf.name)) {                             \
    snprintf(why, why_size, "libelf.so.1 has no %s: too old", #name); \
    dlclose(library);                                                 \
    return NULL;                                                      \
  }
  LIBELF_FUNCTIONS(X)
#undef X
  there = elf.elf_version(EV_CURRENT) != EV_NONE;
  if (!there) snprintf(why, why_size, "libelf.so.1 is too old");
  return there ? &elf : NULL;
}

struct reader {
  const struct libelf *lib;
  Elf *elf;
  GElf_Ehdr header;
  struct kit_elf *to;
};

/* ---- symbols ---- */

/* Tables of plugins of any kind, and the name that NCCL's README gives them by mistake. */
static bool is_table_name(const char *name, int *version) {
  static const char *const prefixes[] = {"ncclNetPlugin",   "ncclCollNetPlugin",  "ncclGinPlugin", "ncclRmaPlugin",
                                         "ncclTunerPlugin", "ncclProfilerPlugin", "ncclEnvPlugin", "ncclNet",
                                         "ncclCollNet"};
  for (size_t i = 0; i < RAIL_COUNT_OF(prefixes); i++) {
    size_t len = strlen(prefixes[i]);
    char *end;
    if (strncmp(name, prefixes[i], len) != 0 || strncmp(name + len, "_v", 2) != 0) continue;
    long v = strtol(name + len + 2, &end, 10);
    if (name[len + 2] < '1' || name[len + 2] > '9' || *end || v > 99) continue;
    *version = (int)v;
    return true;
  }
  return false;
}

static struct kit_elf_symbol *symbol_of(struct kit_elf *to, const char *name, int version) {
  for (size_t i = 0; i < to->nsymbols; i++)
    if (strcmp(to->symbols[i].name, name) == 0) return &to->symbols[i];
  to->symbols = kit_more(to->symbols, &to->nsymbols, &to->cap_symbols, sizeof *to->symbols);
  struct kit_elf_symbol *s = &to->symbols[to->nsymbols - 1];
  snprintf(s->name, sizeof s->name, "%s", name);
  s->version = version;
  return s;
}

static void take_symbol(struct reader *r, const GElf_Sym *sym, const char *name, bool dynamic) {
  int version = 0;
  size_t strings = 0;
  if (!name || strlen(name) >= sizeof((struct kit_elf_symbol *)0)->name || !is_table_name(name, &version)) return;
  struct kit_elf_symbol *s = symbol_of(r->to, name, version);
  if (dynamic) s->in_dynsym = true;
  else s->in_symtab = true;
  if (s->in_dynsym && !dynamic) return; /* the dynamic one is what dlsym sees */
  s->defined = sym->st_shndx != SHN_UNDEF;
  s->is_object = GELF_ST_TYPE(sym->st_info) == STT_OBJECT;
  s->is_function = GELF_ST_TYPE(sym->st_info) == STT_FUNC || GELF_ST_TYPE(sym->st_info) == STT_GNU_IFUNC;
  int visibility = GELF_ST_VISIBILITY(sym->st_other);
  s->hidden = visibility == STV_HIDDEN || visibility == STV_INTERNAL || GELF_ST_BIND(sym->st_info) == STB_LOCAL;
  s->size = sym->st_size;
  GElf_Shdr section;
  Elf_Scn *scn = sym->st_shndx < SHN_LORESERVE ? r->lib->elf_getscn(r->elf, sym->st_shndx) : NULL;
  if (!s->defined || !scn || !r->lib->gelf_getshdr(scn, &section)) return;
  s->zeroed = section.sh_type == SHT_NOBITS;
  if (r->lib->elf_getshdrstrndx(r->elf, &strings) != 0) return;
  const char *text = r->lib->elf_strptr(r->elf, strings, section.sh_name);
  snprintf(s->section, sizeof s->section, "%s", text ? text : "");
}

static void read_symbols(struct reader *r, Elf_Scn *scn, const GElf_Shdr *section) {
  Elf_Data *data = r->lib->elf_getdata(scn, NULL);
  size_t n = data && section->sh_entsize ? data->d_size / section->sh_entsize : 0;
  for (size_t i = 0; i < n && i <= INT_MAX; i++) {
    GElf_Sym sym;
    if (!r->lib->gelf_getsym(data, (int)i, &sym)) return;
    take_symbol(r, &sym, r->lib->elf_strptr(r->elf, section->sh_link, sym.st_name), section->sh_type == SHT_DYNSYM);
  }
}

/* ---- what the loader reads ---- */

static void take_dynamic(struct reader *r, const GElf_Dyn *dyn, size_t strings) {
  struct kit_elf *to = r->to;
  const char *text = NULL;
  switch (dyn->d_tag) {
    case DT_NEEDED:
    case DT_SONAME:
    case DT_RPATH:
    case DT_RUNPATH: text = r->lib->elf_strptr(r->elf, strings, dyn->d_un.d_val); break;
    case DT_TEXTREL: to->text_relocations = true; return;
    case DT_BIND_NOW: to->lazy_binding = false; return;
    case DT_INIT: to->constructors++; return;
    case DT_INIT_ARRAYSZ: to->constructors += (int)RAIL_MIN(dyn->d_un.d_val / sizeof(void *), 1000000); return;
    case DT_FLAGS:
      if (dyn->d_un.d_val & DF_TEXTREL) to->text_relocations = true;
      if (dyn->d_un.d_val & DF_BIND_NOW) to->lazy_binding = false;
      return;
    case DT_FLAGS_1:
      if (dyn->d_un.d_val & DF_1_NODELETE) to->no_delete = true;
      if (dyn->d_un.d_val & DF_1_NOW) to->lazy_binding = false;
      return;
    default: return;
  }
  if (!text) return;
  if (dyn->d_tag == DT_SONAME) snprintf(to->soname, sizeof to->soname, "%s", text);
  if (dyn->d_tag == DT_RPATH) snprintf(to->rpath, sizeof to->rpath, "%s", text);
  if (dyn->d_tag == DT_RUNPATH) snprintf(to->runpath, sizeof to->runpath, "%s", text);
  if (dyn->d_tag != DT_NEEDED) return;
  to->needed = kit_more(to->needed, &to->nneeded, &to->cap_needed, sizeof *to->needed);
  snprintf(to->needed[to->nneeded - 1], sizeof *to->needed, "%s", text);
}

static void read_dynamic(struct reader *r, Elf_Scn *scn, const GElf_Shdr *section) {
  Elf_Data *data = r->lib->elf_getdata(scn, NULL);
  size_t n = data && section->sh_entsize ? data->d_size / section->sh_entsize : 0;
  r->to->lazy_binding = true;
  for (size_t i = 0; i < n && i <= INT_MAX; i++) {
    GElf_Dyn dyn;
    if (!r->lib->gelf_getdyn(data, (int)i, &dyn) || dyn.d_tag == DT_NULL) return;
    take_dynamic(r, &dyn, section->sh_link);
  }
}

static void read_segments(struct reader *r) {
  size_t n = 0;
  bool stated = false;
  if (r->lib->elf_getphdrnum(r->elf, &n) != 0) return;
  for (size_t i = 0; i < n && i <= INT_MAX; i++) {
    GElf_Phdr segment;
    if (!r->lib->gelf_getphdr(r->elf, (int)i, &segment) || segment.p_type != PT_GNU_STACK) continue;
    stated = true;
    r->to->executable_stack = (segment.p_flags & PF_X) != 0;
  }
  if (!stated) r->to->executable_stack = true; /* that is what its absence means */
}

static const char *machine_name(int machine) {
  switch (machine) {
    case EM_X86_64: return "x86-64";
    case EM_AARCH64: return "aarch64";
    case EM_PPC64: return "ppc64";
    case EM_386: return "i386";
    case EM_RISCV: return "riscv";
    default: return "another machine";
  }
}

static int own_machine(void) {
#if defined(__x86_64__)
  return EM_X86_64;
#elif defined(__aarch64__)
  return EM_AARCH64;
#else
  return EM_NONE;
#endif
}

static void read_all(struct reader *r) {
  struct kit_elf *to = r->to;
  to->bits = r->header.e_ident[EI_CLASS] == ELFCLASS64 ? 64 : 32;
  to->shared = r->header.e_type == ET_DYN;
  to->machine_fits = own_machine() == EM_NONE || (r->header.e_machine == own_machine() && to->bits == 64);
  snprintf(to->machine, sizeof to->machine, "%s", machine_name(r->header.e_machine));
  read_segments(r);
  for (Elf_Scn *scn = NULL; (scn = r->lib->elf_nextscn(r->elf, scn)) != NULL;) {
    GElf_Shdr section;
    if (!r->lib->gelf_getshdr(scn, &section)) continue;
    if (section.sh_type == SHT_DYNSYM || section.sh_type == SHT_SYMTAB) read_symbols(r, scn, &section);
    if (section.sh_type == SHT_DYNAMIC) read_dynamic(r, scn, &section);
  }
  to->read = true;
}

void kit_elf_read(const char *path, struct kit_elf *elf) {
  memset(elf, 0, sizeof *elf);
  struct reader r = {.lib = load_libelf(elf->why, sizeof elf->why), .to = elf};
  if (!r.lib) return;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    snprintf(elf->why, sizeof elf->why, "%s", strerror(errno));
    return;
  }
  r.elf = r.lib->elf_begin(fd, ELF_C_READ, NULL);
  if (!r.elf || r.lib->elf_kind(r.elf) != ELF_K_ELF) snprintf(elf->why, sizeof elf->why, "it is no ELF file");
  else if (!r.lib->gelf_getehdr(r.elf, &r.header)) snprintf(elf->why, sizeof elf->why, "%s", r.lib->elf_errmsg(-1));
  else read_all(&r);
  if (r.elf) r.lib->elf_end(r.elf);
  close(fd);
}
#endif
