/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests without a fabric: libfakefabric.so, which lies in the directory above
 * the test program's, takes libfabric's place. Its script is described in
 * test/preload/fakefabric/ff.h.
 */
#ifndef OFI_FAKE_H
#define OFI_FAKE_H

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>

#include "test/harness/tap.h"

/* Call first in main. script NULL: one NIC, fake0. */
__attribute__((unused)) static void fake_use(const char *program, const char *script) {
  char path[PATH_MAX], folder[PATH_MAX];
  snprintf(folder, sizeof folder, "%s", program);
  snprintf(path, sizeof path, "%.4000s/../libfakefabric.so", dirname(folder));
  setenv("RAIL_OFI_LIBRARY", path, 1);
  if (script) setenv("FAKEFABRIC", script, 1);
  else unsetenv("FAKEFABRIC");
}

__attribute__((unused)) static void *fake_symbol(const char *name) {
  void *library = dlopen(getenv("RAIL_OFI_LIBRARY"), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  void *symbol = library ? dlsym(library, name) : NULL;
  if (!symbol) {
    fprintf(stderr, "%s: %s\n", name, dlerror());
    abort();
  }
  dlclose(library);
  return symbol;
}

__attribute__((unused)) static void fake_script(const char *text) {
  int (*script)(const char *);
  void *symbol = fake_symbol("fakefabric_script");
  memcpy(&script, &symbol, sizeof script);
  if (script(text) != 0) abort();
}

__attribute__((unused)) static long fake_ask_(const char *function, const char *what) {
  long (*ask)(const char *);
  void *symbol = fake_symbol(function);
  memcpy(&ask, &symbol, sizeof ask);
  return ask(what);
}
/* How many are open (fabric domain ep cq av mr info), and how often a call was made (mr_reg, tsend ...). */
__attribute__((unused)) static long fake_live(const char *kind) { return fake_ask_("fakefabric_live", kind); }
__attribute__((unused)) static long fake_calls(const char *call) { return fake_ask_("fakefabric_calls", call); }

/* How often the interface was misused, and how the last time. */
__attribute__((unused)) static long fake_violations(void) {
  long (*count)(void);
  void *symbol = fake_symbol("fakefabric_violations");
  memcpy(&count, &symbol, sizeof count);
  return count();
}
__attribute__((unused)) static const char *fake_violation(void) {
  const char *(*text)(long);
  void *symbol = fake_symbol("fakefabric_violation");
  memcpy(&text, &symbol, sizeof text);
  return text(fake_violations() - 1);
}
__attribute__((unused)) static void fake_forgive(void) {
  void (*forget)(void);
  void *symbol = fake_symbol("fakefabric_forget_violations");
  memcpy(&forget, &symbol, sizeof forget);
  forget();
}

#endif
