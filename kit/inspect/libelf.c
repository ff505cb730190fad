/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/inspect/libelf.h"

#ifdef RAIL_HAVE_LIBELF
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static bool find(void *library, const char *name, void *function) {
  void *at = dlsym(library, name);
  memcpy(function, &at, sizeof at);
  return at != NULL;
}

const struct kit_libelf *kit_libelf(char *why, size_t why_size) {
  static struct kit_libelf elf;
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
  KIT_LIBELF_FUNCTIONS(X)
#undef X
  there = elf.elf_version(EV_CURRENT) != EV_NONE;
  if (!there) snprintf(why, why_size, "libelf.so.1 is too old");
  return there ? &elf : NULL;
}
#endif
