/* SPDX-License-Identifier: Apache-2.0
 *
 * railtrace with test/preload/tracefix.c behind it, as test_railtrace and
 * test_railtrace_record load it. Definitions, for these programs.
 */
#ifndef TRACE_RIG_H
#define TRACE_RIG_H

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdatomic.h>
#include <unistd.h>

#include "loader/netload.h"
#include "plugin/railtrace/trace_rules.h"
#include "test/harness/tap.h"
#include "test/preload/tracefix.h"

static char build[PATH_MAX], trace_path[PATH_MAX + 64];
static char logged[65536];
static atomic_size_t used;

__attribute__((format(printf, 5, 6), unused)) static void capture(enum rail_log_level level, unsigned long flags,
                                                                  const char *file, int line, const char *fmt, ...) {
  char text[2048];
  va_list ap;
  (void)flags, (void)file, (void)line;
  if (level != RAIL_LOG_WARN) return;
  va_start(ap, fmt);
  int n = vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  size_t at = atomic_fetch_add(&used, (size_t)n + 1);
  if (at + (size_t)n + 2 < sizeof logged) snprintf(logged + at, sizeof logged - at, "%s\n", text);
}

static void forget_lines(void) {
  memset(logged, 0, sizeof logged);
  atomic_store(&used, 0);
}

__attribute__((unused)) static bool said(const char *text) { return strstr(logged, text) != NULL; }

/* One wrapped plugin, with a connection's two ends and a registration on each. */
static struct rig {
  struct rail_net *net;
  const struct rail_net_v12 *vt;
  void *ctx, *listen, *send, *recv, *send_mr, *recv_mr;
  char handle[RAIL_NET_HANDLE_SIZE], data[4096];
  void *fix_library;
  int *fault;
  struct tracefix_seen *seen;
  struct rail_net_device_handle *send_dh, *recv_dh;
} rig;

static void rig_load(void) {
  char path[PATH_MAX + 64], why[1024];
  snprintf(path, sizeof path, "%s/lib/libnccl-net-railtrace.so", build);
  forget_lines();
  CHECK_MSG(rail_net_load(path, 0, &rig.net, why, sizeof why) == RAIL_OK, "%s", why);
  CHECK_INT(rail_net_version(rig.net), 12);
  rig.vt = rail_net_vtable(rig.net);
}

static void rig_find_fixture(void) {
  char path[PATH_MAX + 64];
  snprintf(path, sizeof path, "%s/test/libtracefix.so", build);
  rig.fix_library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  CHECK_MSG(rig.fix_library != NULL, "the wrapper has not loaded %s", path);
  rig.fault = dlsym(rig.fix_library, "tracefix_fault");
  rig.seen = dlsym(rig.fix_library, "tracefix_seen");
  CHECK(rig.fault && rig.seen);
}

static void rig_connect(void) {
  CHECK_OK(rig.vt->listen(rig.ctx, 0, rig.handle, &rig.listen));
  CHECK_OK(rig.vt->connect(rig.ctx, 0, rig.handle, &rig.send, &rig.send_dh));
  CHECK_OK(rig.vt->accept(rig.listen, &rig.recv, &rig.recv_dh));
  CHECK(rig.listen && rig.send && rig.recv);
  CHECK_OK(rig.vt->reg_mr(rig.send, rig.data, sizeof rig.data, RAIL_PTR_HOST, &rig.send_mr));
  CHECK_OK(rig.vt->reg_mr(rig.recv, rig.data, sizeof rig.data, RAIL_PTR_HOST, &rig.recv_mr));
  CHECK(rig.send_mr && rig.recv_mr);
}

/* `check` and `tests`: values of the parameters. */
__attribute__((unused)) static void rig_open(const char *check, const char *tests) {
  char path[PATH_MAX + 64];
  snprintf(path, sizeof path, "%s/test/libtracefix.so", build);
  setenv("RAIL_TRACE_PLUGIN", path, 1);
  setenv("RAIL_TRACE_FILE", trace_path, 1);
  setenv("RAIL_TRACE_CHECK", check, 1);
  setenv("RAIL_TRACE_TESTS", tests, 1);
  setenv("RAIL_TRACE_SLOW", "4ms", 1); /* what the fixture's slow call exceeds, and a busy machine seldom */
  unlink(trace_path);
  memset(&rig, 0, sizeof rig);
  rig_load();
  rig_find_fixture();
  struct rail_net_config config = {.traffic_class = 3};
  *rig.fault = FIX_NONE;
  CHECK_OK(rig.vt->init(&rig.ctx, 42, &config, capture, NULL));
  rig_connect();
  forget_lines();
}

__attribute__((unused)) static void rig_close(void) {
  *rig.fault = FIX_NONE;
  CHECK_OK(rig.vt->dereg_mr(rig.send, rig.send_mr));
  CHECK_OK(rig.vt->dereg_mr(rig.recv, rig.recv_mr));
  CHECK_OK(rig.vt->close_send(rig.send));
  CHECK_OK(rig.vt->close_recv(rig.recv));
  CHECK_OK(rig.vt->close_listen(rig.listen));
  CHECK_OK(rig.vt->finalize(rig.ctx));
  dlclose(rig.fix_library);
  rail_net_unload(rig.net);
  rig.net = NULL;
}

static int rig_isend(size_t size, void **request) {
  return rig.vt->isend(rig.send, rig.data, size, 7, rig.send_mr, NULL, request);
}

/* n buffers of 64 bytes; tags count up from 0. */
static int rig_irecv(int n, void **request) {
  void *data[8], *mhandles[8];
  size_t sizes[8];
  int tags[8];
  for (int i = 0; i < n && i < 8; i++) {
    data[i] = rig.data + 64 * i;
    mhandles[i] = rig.recv_mr;
    sizes[i] = 64;
    tags[i] = i;
  }
  return rig.vt->irecv(rig.recv, n, data, sizes, tags, mhandles, NULL, request);
}

static void rig_finish(void *request) {
  int done = 5, sizes[8] = {0};
  CHECK_OK(rig.vt->test(request, &done, sizes));
  CHECK_INT(done, 1);
}

/* build/test/unit/NAME → build; the file in a directory of this process. */
static void rig_start(const char *name) {
  char self[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  if (n < 0) abort();
  self[n] = 0;
  snprintf(build, sizeof build, "%s", dirname(dirname(dirname(self))));
  snprintf(trace_path, sizeof trace_path, "%s/test/%s.%d.railtrace", build, name, (int)getpid());
  setenv("NCCL_DEBUG", "WARN", 1);
}

#endif
