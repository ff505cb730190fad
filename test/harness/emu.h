/* SPDX-License-Identifier: Apache-2.0
 *
 * The emulated verbs device (docs/emu.md) in the process of a test: a plugin opens it, the test tells it what to do and
 * asks it what it has. The libraries lie in the build directory above the test program.
 */
#ifndef RAIL_TEST_EMU_H
#define RAIL_TEST_EMU_H

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "loader/install_dirs.h"

/* Call first in main: chooses the libraries. NULL: emu0 and emu1, one port each. */
__attribute__((unused)) static void emu_use(const char *statements) {
  static char verbs[PATH_MAX], cm[PATH_MAX];
  if (!rail_path_from_bin(verbs, "../../lib/emu/libibverbs.so.1") ||
      !rail_path_from_bin(cm, "../../lib/emu/librdmacm.so.1")) {
    fprintf(stderr, "the emulated device is not found: no path of this program\n");
    abort();
  }
  setenv("NCCL_IBVERBS_LIB", verbs, 1);
  setenv("RAIL_IB_RDMACM_LIB", cm, 1);
  if (statements) setenv("RAIL_EMU", statements, 1);
  else unsetenv("RAIL_EMU");
}

/* It stays open, so that it has its state while the plugin closes it and opens it again. */
static void *emu_symbol_(const char *name) {
  static void *library;
  if (!library) library = dlopen(getenv("NCCL_IBVERBS_LIB"), RTLD_NOW | RTLD_LOCAL);
  void *symbol = library ? dlsym(library, name) : NULL;
  if (symbol) return symbol;
  fprintf(stderr, "%s: %s\n", name, dlerror());
  abort();
}

/* Statements of docs/emu.md, which must be right. */
__attribute__((unused)) static void emu_do(const char *statements) {
  int (*command)(const char *);
  void *symbol = emu_symbol_("rail_emu_command");
  memcpy(&command, &symbol, sizeof command);
  if (command(statements) != 0) abort();
}

static long emu_ask_(const char *function, const char *what) {
  long (*ask)(const char *);
  void *symbol = emu_symbol_(function);
  memcpy(&ask, &symbol, sizeof ask);
  return ask(what);
}
/* How many objects there are (context pd mr cq qp), and how often a call was made that `fail` can name. */
__attribute__((unused)) static long emu_live(const char *kind) { return emu_ask_("rail_emu_live", kind); }
__attribute__((unused)) static long emu_calls(const char *call) { return emu_ask_("rail_emu_calls", call); }

#endif
