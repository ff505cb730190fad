/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of the ib plugin without a device: libfakeverbs.so, which lies in the
 * build directory above the test program, is the libibverbs. Its script
 * is described in test/preload/fakeverbs/fv.h. Or the emulated device (docs/emu.md),
 * which has an RDMA CM.
 */
#ifndef IB_FAKE_H
#define IB_FAKE_H

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>

#include "common/base/log.h"
#include "plugin/ib/ib_param.h"
#include "test/harness/tap.h"

/* Call first in main. script NULL: fake0 and fake1, one port each. */
__attribute__((unused)) static void fake_use(const char *program, const char *script) {
  char path[PATH_MAX], folder[PATH_MAX];
  snprintf(folder, sizeof folder, "%s", program);
  snprintf(path, sizeof path, "%.4000s/../libfakeverbs.so", dirname(folder));
  setenv("NCCL_IBVERBS_LIB", path, 1);
  if (script) setenv("FAKEVERBS", script, 1);
  else unsetenv("FAKEVERBS");
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ib_params_load();
}

/* Instead of it: the emulated libibverbs and librdmacm. */
static bool fake_is_emu_;
__attribute__((unused)) static void fake_use_emu(const char *program, const char *statements) {
  char path[PATH_MAX], folder[PATH_MAX];
  snprintf(folder, sizeof folder, "%s", program);
  const char *in = dirname(folder);
  snprintf(path, sizeof path, "%.4000s/../../lib/emu/libibverbs.so.1", in);
  setenv("NCCL_IBVERBS_LIB", path, 1);
  snprintf(path, sizeof path, "%.4000s/../../lib/emu/librdmacm.so.1", in);
  setenv("RAIL_IB_RDMACM_LIB", path, 1);
  setenv("RAIL_EMU", statements, 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  fake_is_emu_ = true;
  ib_params_load();
}

static void *fake_symbol_(const char *name) {
  void *library = dlopen(getenv("NCCL_IBVERBS_LIB"), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
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
  void *symbol = fake_symbol_(fake_is_emu_ ? "rail_emu_command" : "fakeverbs_script");
  memcpy(&script, &symbol, sizeof script);
  if (script(text) != 0) abort();
}

static long fake_ask_(const char *function, const char *what) {
  long (*ask)(const char *);
  void *symbol = fake_symbol_(function);
  memcpy(&ask, &symbol, sizeof ask);
  return ask(what);
}
/* How many there are (context pd mr cq qp), and how often a function was called (reg_mr, post_send ...). */
__attribute__((unused)) static long fake_live(const char *kind) {
  return fake_ask_(fake_is_emu_ ? "rail_emu_live" : "fakeverbs_live", kind);
}
__attribute__((unused)) static long fake_calls(const char *call) {
  return fake_ask_(fake_is_emu_ ? "rail_emu_calls" : "fakeverbs_calls", call);
}

/* Warnings, and with fake_hears_info lines of INFO, one after the other, since fake_listen(). */
static char fake_heard_[16384];
__attribute__((unused)) static bool fake_hears_info;
__attribute__((unused, format(printf, 5, 6))) static void fake_hear_(enum rail_log_level level, unsigned long flags,
                                                                   const char *file, int line, const char *fmt, ...) {
  size_t used = strlen(fake_heard_);
  va_list ap;
  (void)flags, (void)file, (void)line;
  if (level != RAIL_LOG_WARN && (level != RAIL_LOG_INFO || !fake_hears_info)) return;
  va_start(ap, fmt);
  vsnprintf(fake_heard_ + used, sizeof fake_heard_ - used, fmt, ap);
  va_end(ap);
}
__attribute__((unused)) static void fake_listen(void) {
  fake_heard_[0] = 0;
  rail_log_set_sink(fake_hear_);
}
__attribute__((unused)) static bool fake_heard(const char *text) { return strstr(fake_heard_, text) != NULL; }

#endif
