/* SPDX-License-Identifier: Apache-2.0
 * libelf, loaded when it is needed: a machine without it can run the rest of the kit. */
#ifndef RAIL_KIT_INSPECT_LIBELF_H
#define RAIL_KIT_INSPECT_LIBELF_H

#include <stddef.h>

#ifdef RAIL_HAVE_LIBELF
#include <gelf.h>

#define KIT_LIBELF_FUNCTIONS(X)                                                                                       \
  X(elf_version) X(elf_begin) X(elf_end) X(elf_errmsg) X(elf_kind) X(elf_nextscn) X(elf_getscn) X(elf_getdata)        \
  X(elf_strptr) X(elf_getshdrstrndx) X(elf_getphdrnum) X(gelf_getehdr) X(gelf_getshdr) X(gelf_getphdr) X(gelf_getsym) \
  X(gelf_getdyn)

struct kit_libelf {
#define X(name) __typeof__(&name) name;
  KIT_LIBELF_FUNCTIONS(X)
#undef X
};

/* NULL: it is not on this machine, `why` says what to do. */
const struct kit_libelf *kit_libelf(char *why, size_t why_size);
#endif

#endif
