/* SPDX-License-Identifier: Apache-2.0
 *
 * Plugins that open libibverbs themselves and look its functions up get ours for those that can fail. libc's own dlsym
 * is found without dlsym, in the table of names of the object that getppid lies in: every name of it leads here.
 *
 * What dlsym finds for RTLD_NEXT and RTLD_DEFAULT depends on who calls it, so what is none of our business is passed on
 * by a jump, as the last thing that a function does: libc then sees the caller's address. This library is always built
 * with optimization.
 */
#include <link.h>
#include <unistd.h>

#include "kit/preload/fault.h"

typedef void *lookup(void *handle, const char *name);
typedef void *lookup_version(void *handle, const char *name, const char *version);

void *dlsym(void *restrict handle, const char *restrict name);
void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version);

struct names {
  const ElfW(Sym) *symbols;
  const char *strings;
  const uint32_t *hash; /* DT_GNU_HASH */
};

static struct names names_of(const struct link_map *map) {
  struct names n = {0};
  for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
    /* The loader has added the address it loaded to, but for some kinds of machine. */
    uintptr_t at = d->d_un.d_ptr < map->l_addr ? d->d_un.d_ptr + map->l_addr : d->d_un.d_ptr;
    if (d->d_tag == DT_SYMTAB) n.symbols = (const void *)at;
    if (d->d_tag == DT_STRTAB) n.strings = (const void *)at;
    if (d->d_tag == DT_GNU_HASH) n.hash = (const void *)at;
  }
  return n;
}

static uint32_t hash_of(const char *name) {
  uint32_t h = 5381;
  for (; *name; name++) h = h * 33 + (uint8_t)*name;
  return h;
}

static void *find_in(const struct link_map *map, const char *name) {
  struct names n = names_of(map);
  if (!n.symbols || !n.strings || !n.hash) return NULL;
  uint32_t nbuckets = n.hash[0], first = n.hash[1], nblooms = n.hash[2], wanted = hash_of(name);
  const uint32_t *buckets = n.hash + 4 + nblooms * (sizeof(ElfW(Addr)) / 4), *chain = buckets + nbuckets;
  for (uint32_t i = buckets[wanted % nbuckets]; i >= first; i++) {
    const ElfW(Sym) *s = &n.symbols[i];
    if ((chain[i - first] | 1) == (wanted | 1) && strcmp(n.strings + s->st_name, name) == 0 && s->st_shndx != SHN_UNDEF)
      return (void *)(map->l_addr + s->st_value);
    if (chain[i - first] & 1) return NULL; /* the bucket's last */
  }
  return NULL;
}

static void *libc_has(_Atomic(void *) *kept, const char *name) {
  void *found = atomic_load_explicit(kept, memory_order_relaxed);
  struct dl_find_object libc;
  pid_t (*anything)(void) = getppid;
  void *inside;
  if (found) return found;
  memcpy(&inside, &anything, sizeof inside);
  if (_dl_find_object(inside, &libc) != 0 || !(found = find_in(libc.dlfo_link_map, name))) {
    static const char text[] = "rail-fault: libc's dlsym is not to be found\n";
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(127);
  }
  atomic_store(kept, found);
  return found;
}

static lookup *real_dlsym(void) {
  static _Atomic(void *) kept;
  void *found = libc_has(&kept, "dlsym");
  lookup *real;
  memcpy(&real, &found, sizeof real);
  return real;
}

static lookup_version *real_dlvsym(void) {
  static _Atomic(void *) kept;
  void *found = libc_has(&kept, "dlvsym");
  lookup_version *real;
  memcpy(&real, &found, sizeof real);
  return real;
}

void *kit_fault_dlsym(void *handle, const char *name) { return real_dlsym()(handle, name); }

static bool is_verb(const char *name, const void *caller) {
  return name && strncmp(name, "ibv_", 4) == 0 && kit_fault_is_ours(caller);
}

PUBLIC void *dlsym(void *restrict handle, const char *restrict name) {
  lookup *real = real_dlsym();
  if (is_verb(name, CALLER)) return kit_fault_verb(name, real(handle, name));
  return real(handle, name);
}

PUBLIC void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version) {
  lookup_version *real = real_dlvsym();
  if (is_verb(name, CALLER)) return kit_fault_verb(name, real(handle, name, version));
  return real(handle, name, version);
}
