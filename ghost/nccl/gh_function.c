/* SPDX-License-Identifier: Apache-2.0
 * How NCCL's library is found, and its table of functions read. */
#include "ghost/nccl/gh_function.h"

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ghost/driver/gh_driver.h"

#define TABLE "ncclDevFuncRowToId"

static struct {
  int version;
  const struct gh_layout *layout;
  const int *rows;
  int nrows;
} nccl;

/* ---- the library ---- */

struct library {
  char *path, *base;
};

/* A copy of the list of loaded libraries: dlopen must not be called from dl_iterate_phdr's callback (the loader's
 * lock). */
struct list {
  struct library *all;
  size_t n, room;
};

static int add_library(struct dl_phdr_info *info, size_t size, void *arg) {
  struct list *list = arg;
  (void)size;
  if (!info->dlpi_name || !info->dlpi_name[0]) return 0;
  if (list->n == list->room) {
    size_t room = list->room ? 2 * list->room : 64;
    struct library *all = realloc(list->all, room * sizeof *all);
    if (!all) return 1;
    list->all = all;
    list->room = room;
  }
  char *path = strdup(info->dlpi_name);
  if (!path) return 1;
  list->all[list->n++] = (struct library){.path = path, .base = (char *)(uintptr_t)info->dlpi_addr};
  return 0;
}

struct search {
  char path[4096];
  char *base;
  int version;
};

/* True, and fills `s`, if the library itself exports ncclGetVersion. dlsym also finds it in dependencies; those are in
 * the list themselves. */
static bool try_library(struct search *s, const struct library *of) {
  void *library = dlopen(of->path, RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return false;
  void *symbol = dlsym(library, "ncclGetVersion");
  Dl_info where;
  if (symbol && dladdr(symbol, &where) && where.dli_fbase == of->base) {
    int (*get_version)(int *version);
    *(void **)&get_version = symbol;
    snprintf(s->path, sizeof s->path, "%s", of->path);
    s->base = of->base;
    if (get_version(&s->version) != 0) s->version = -1;
  }
  dlclose(library);
  return s->base != NULL;
}

static void search_libraries(struct search *s) {
  struct list list = {.all = NULL};
  if (dl_iterate_phdr(add_library, &list) != 0) fprintf(stderr, "ghost: out of memory: not all libraries are known\n");
  for (size_t i = 0; i < list.n && !try_library(s, &list.all[i]); i++) continue;
  for (size_t i = 0; i < list.n; i++) free(list.all[i].path);
  free(list.all);
}

/* ---- its table, which is no symbol that the linker exports ---- */

static bool within(uint64_t offset, uint64_t size, size_t file) { return offset <= file && size <= file - offset; }

static const Elf64_Sym *find_symbol(const char *image, size_t size, const char *name) {
  const Elf64_Ehdr *head = (const Elf64_Ehdr *)(const void *)image;
  if (size < sizeof *head || memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64 ||
      head->e_shentsize != sizeof(Elf64_Shdr) ||
      !within(head->e_shoff, (uint64_t)head->e_shnum * head->e_shentsize, size))
    return NULL;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(const void *)(image + head->e_shoff);
  for (int i = 0; i < head->e_shnum; i++) {
    const Elf64_Shdr *s = &sections[i];
    if (s->sh_type != SHT_SYMTAB || s->sh_link >= head->e_shnum || !within(s->sh_offset, s->sh_size, size)) continue;
    const Elf64_Shdr *names = &sections[s->sh_link];
    if (!within(names->sh_offset, names->sh_size, size)) continue;
    const Elf64_Sym *at = (const Elf64_Sym *)(const void *)(image + s->sh_offset);
    for (const Elf64_Sym *end = at + s->sh_size / sizeof *at; at < end; at++)
      if (within(at->st_name, strlen(name) + 1, names->sh_size) &&
          strcmp(image + names->sh_offset + at->st_name, name) == 0)
        return at;
  }
  return NULL;
}

static bool read_table(const struct search *s) {
  struct stat st;
  int fd = open(s->path, O_RDONLY | O_CLOEXEC);
  char *image = MAP_FAILED;
  if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0)
    image = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (fd >= 0) close(fd);
  if (image == MAP_FAILED) return false;
  const Elf64_Sym *symbol = find_symbol(image, (size_t)st.st_size, TABLE);
  if (symbol) {
    nccl.rows = (const int *)(const void *)(s->base + symbol->st_value);
    nccl.nrows = (int)(symbol->st_size / sizeof *nccl.rows);
  }
  munmap(image, (size_t)st.st_size);
  return nccl.rows != NULL;
}

static int rows_of(const struct gh_layout *l) {
  return l->rows_before_all_reduce + GH_OPS * GH_TYPES * GH_PROTOS * (6 + 1 + 4) + 1; /* the last is no row */
}

static void find_nccl(void) {
  struct search s = {.base = NULL};
  search_libraries(&s);
  const struct gh_layout *l = gh_layout_of(s.version);
  if (!s.base) fprintf(stderr, "ghost: no library of this process is NCCL: nothing exports ncclGetVersion\n");
  else if (!l)
    fprintf(stderr, "ghost: %s is NCCL %d, whose kernels are not known; known are %s\n", s.path, s.version,
            gh_layout_versions());
  else if (!read_table(&s))
    fprintf(stderr, "ghost: %s has no symbol " TABLE ": it was stripped; build NCCL without that\n", s.path);
  else if (nccl.nrows != rows_of(l))
    fprintf(stderr, "ghost: %s has %d rows of functions, NCCL %d has %d\n", s.path, nccl.nrows, s.version, rows_of(l));
  else nccl.layout = l;
  nccl.version = s.version;
}

const struct gh_layout *gh_nccl(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, find_nccl);
  return nccl.layout;
}

int gh_nccl_version(void) { return nccl.version; }

/* ---- rows ---- */

static const enum gh_algo ring_like[] = {GH_RING, GH_COLLNET_DIRECT, GH_NVLS, GH_PAT};

/* What the row stands for. The order is the same in all releases of the table, but for what one of them adds. */
static void row_function(int row, struct gh_function *f) {
  int before = nccl.layout->rows_before_all_reduce;
  *f = (struct gh_function){.coll = GH_SENDRECV, .op = GH_COPY, .type = GH_INT8, .algo = GH_RING, .proto = GH_SIMPLE};
  if (row == 0) return;
  if (row < before) {
    row -= 1;
    f->coll = row < 4 * GH_PROTOS ? GH_ALLGATHER : row < 5 * GH_PROTOS ? GH_BROADCAST : GH_ALLGATHERV;
    if (f->coll == GH_ALLGATHER) f->algo = ring_like[row / GH_PROTOS];
    f->proto = row % GH_PROTOS;
    return;
  }
  static const struct {
    enum gh_coll coll;
    int algos;
  } parts[] = {{GH_ALLREDUCE, 6}, {GH_REDUCE, 1}, {GH_REDUCESCATTER, 4}};
  int part = 0;
  row -= before;
  while (part < 2 && row >= GH_OPS * GH_TYPES * GH_PROTOS * parts[part].algos)
    row -= GH_OPS * GH_TYPES * GH_PROTOS * parts[part++].algos;
  f->coll = parts[part].coll;
  f->proto = row % GH_PROTOS;
  row /= GH_PROTOS;
  int algo = row % parts[part].algos;
  f->algo = f->coll == GH_ALLREDUCE ? (enum gh_algo)algo : ring_like[algo];
  row /= parts[part].algos;
  f->type = (enum gh_type)(row % GH_TYPES);
  f->op = (enum gh_op)(row / GH_TYPES);
}

/* Integers of a size share their functions, signed or not; rows that share one for another reason were left out. */
static bool same_function(const struct gh_function *a, const struct gh_function *b) {
  bool integers = a->type <= GH_UINT64 && b->type <= GH_UINT64;
  return a->coll == b->coll && a->op == b->op && a->algo == b->algo && a->proto == b->proto &&
         (a->type == b->type || (integers && a->type / 2 == b->type / 2));
}

bool gh_function_find(unsigned id, struct gh_function *f) {
  bool found = false;
  for (int row = 0; row < nccl.nrows - 1; row++) {
    struct gh_function one;
    if (nccl.rows[row] != (int)id) continue;
    row_function(row, &one);
    if (found && !same_function(f, &one)) return false;
    *f = one;
    found = true;
  }
  return found;
}

void gh_function_text(const struct gh_function *f, char *text, size_t size) {
  static const char *const colls[] = {"SendRecv", "AllGather", "Broadcast", "AllGatherV", "AllReduce", "Reduce",
                                      "ReduceScatter"};
  static const char *const ops[] = {"Sum", "Prod", "MinMax", "PreMulSum", "SumPostDiv", "", "Copy"};
  static const char *const types[] = {"i8",  "u8",  "i32",  "u32",    "i64",    "u64",
                                      "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
  static const char *const algos[] = {"TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
  static const char *const protos[] = {"LL", "LL128", "SIMPLE"};
  snprintf(text, size, "%s %s %s %s %s", colls[f->coll], ops[f->op], types[f->type], algos[f->algo], protos[f->proto]);
}

GH_API bool ghost_nccl_has(const char *function) {
  char text[64];
  struct gh_function f;
  if (!gh_nccl()) return false;
  for (int row = 0; row < nccl.nrows - 1; row++) {
    if (nccl.rows[row] < 0) continue;
    row_function(row, &f);
    gh_function_text(&f, text, sizeof text);
    if (strcmp(text, function) == 0) return gh_function_find((unsigned)nccl.rows[row], &f);
  }
  return false;
}
