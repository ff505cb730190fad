/* SPDX-License-Identifier: Apache-2.0
 * A plugin can be found, started, stopped, unloaded and started again. */
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"
#include "loader/netload.h"
#include "loader/netload_slots.h"

/* ---- the tables ---- */

static void *open_library(void) {
  void *dl = dlopen(kit_plugin_path(), RTLD_NOW | RTLD_LOCAL);
  ENSURE(dl, "dlopen: %s", dlerror());
  return dl;
}

static const void *table_of(void *dl, int version) {
  char symbol[32];
  snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
  return dlsym(dl, symbol);
}

/* The first slot of all versions. */
static const char *name_in(const void *table) { return *(const char *const *)table; }

static void symbols_of_all_versions(struct kit_process *self) {
  void *dl = open_library();
  char found[64] = "";
  for (int v = RAIL_NET_VERSION_MIN; v <= RAIL_NET_VERSION_MAX; v++) {
    const void *table = table_of(dl, v);
    if (!table) continue;
    ENSURE(name_in(table), "ncclNetPlugin_v%d has no name: NCCL compares NCCL_NET with it, and would crash", v);
    ENSURE(name_in(table)[0], "ncclNetPlugin_v%d has an empty name: no value of NCCL_NET can select it", v);
    snprintf(found + strlen(found), sizeof found - strlen(found), " v%d", v);
  }
  ENSURE(found[0], "no symbol ncclNetPlugin_v6 to v12: NCCL finds nothing in this file");
  kit_note(self, "exports%s", found);
  dlclose(dl);
}

/* Before init name and init are needed, the rest after it: of this version, since init is called once. */
static void no_needed_slot_is_null(struct kit_process *self) {
  struct kit_net n;
  struct rail_net_slots s;
  void *dl = open_library();
  for (int v = RAIL_NET_VERSION_MIN; v <= RAIL_NET_VERSION_MAX; v++) {
    const void *table = table_of(dl, v);
    const char *missing = table ? rail_net_slots_missing_for_init(v, table) : NULL;
    ENSURE(!missing, "the slot %s of ncclNetPlugin_v%d is NULL; NCCL calls it without looking", missing, v);
  }
  kit_net_open(&n);
  rail_net_slots_fill(&s, n.version, rail_net_vtable(n.any)); /* kit_net_open has seen that no other is missing */
  ENSURE(n.version < 11 || s.finalize,
         "the slot finalize of ncclNetPlugin_v%d is NULL; NCCL calls it without looking", n.version);
  kit_note(self, "ncclNetPlugin_v%d has all slots that NCCL calls without looking", n.version);
  kit_net_close(&n);
  dlclose(dl);
}

static void one_name_for_all_versions(struct kit_process *self) {
  (void)self;
  void *dl = open_library();
  const char *first = NULL;
  for (int v = RAIL_NET_VERSION_MIN; v <= RAIL_NET_VERSION_MAX; v++) {
    const void *table = table_of(dl, v);
    if (!table) continue;
    if (!first) first = name_in(table);
    ENSURE(strcmp(name_in(table), first) == 0,
           "v%d is called %s, an older version %s: a setting of NCCL_NET would work with some NCCL releases only", v,
           name_in(table), first);
  }
  dlclose(dl);
}

static void name_is_not_built_in(struct kit_process *self) {
  static const char *const built_in[] = {"IB", "Socket"};
  void *dl = open_library();
  const char *name = name_in(table_of(dl, kit_process_job(self)->version));
  for (size_t i = 0; i < sizeof built_in / sizeof built_in[0]; i++)
    ENSURE(strcasecmp(name, built_in[i]) != 0,
           "the plugin is called %s: NCCL_NET=%s takes it for NCCL's own transport, and nothing selects that any more",
           name, built_in[i]);
  dlclose(dl);
}

/* ---- what stays behind ---- */

struct usage { int fds, threads; };

static void nothing(void *arg) { (void)arg; }

/* A sanitizer starts a thread of its own with the first one of the program. */
static void first_thread(void) { kit_run_threads(1, nothing, NULL, 0); }

static struct usage usage_now(void) { return (struct usage){kit_fd_count(), kit_thread_count()}; }

/* Threads that are about to end may need a moment. */
static void ensure_usage(struct usage before, const char *after_what) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_SETTLE_MS));
  struct usage now = usage_now();
  while ((now.fds > before.fds || now.threads > before.threads) && !rail_deadline_passed(deadline)) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    now = usage_now();
  }
  ENSURE(now.fds <= before.fds, "%s there are %d open files, %d before", after_what, now.fds, before.fds);
  ENSURE(now.threads <= before.threads, "%s there are %d threads, %d before", after_what, now.threads, before.threads);
}

static void init_to_finalize(uint64_t seed) {
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 10000, seed);
  kit_pair_close(&p);
  kit_net_close(&n);
}

static void loading_does_nothing(struct kit_process *self) {
  (void)self;
  first_thread();
  struct usage before = usage_now();
  for (int i = 0; i < 3; i++) {
    void *dl = open_library();
    ensure_usage(before, "after dlopen alone, without init,");
    dlclose(dl);
  }
  ensure_usage(before, "after dlopen and dlclose, without init,");
}

static void each_version_lives_twice(struct kit_process *self) {
  (void)self;
  for (int round = 0; round < 3; round++) init_to_finalize((uint64_t)round);
}

static void reopened_leaves_nothing(struct kit_process *self) {
  (void)self;
  init_to_finalize(0); /* so that what stays for good is there */
  struct usage before = usage_now();
  for (int i = 0; i < 5; i++) init_to_finalize((uint64_t)i);
  ensure_usage(before, "after five more lives, from dlopen to dlclose,");
}

/* NCCL closes the library with the last communicator. Code that a thread still runs must not go away under it: either
 * no thread is left by then, or the library stays (linked with -z nodelete, or opened again by itself). */
static void no_thread_outlives_the_library(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  char path[4096];
  first_thread();
  int before = kit_thread_count();
  kit_net_open(&n);
  snprintf(path, sizeof path, "%s", rail_net_path(n.any));
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 100000, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
  int left = kit_threads_after(before) - before;
  void *still = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  ENSURE(left <= 0 || still, "%d threads still run after finalize and dlclose, and their code is gone", left);
}

/* ---- init, devices, finalize ---- */

/* Below v11 NCCL calls init for the first communicator, and again when one comes after the last has gone; there is no
 * finalize, and the library may have stayed. */
static void old_init_twice(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  kit_net_load(&n, KIT_TARGET);
  int rc = kit_net_init(&n, NULL, -1);
  ENSURE(rc == 0, "init returned %s", kit_rc_text(rc));
  for (int round = 0; round < 3; round++) {
    struct rail_net_init args = {.traffic_class = -1, .log = kit_net_log};
    int ndev = -1;
    rc = round ? rail_net_raw_init(n.any, &args, NULL) : 0;
    ENSURE(rc == 0, "init, call %d in one process, returned %s", round + 1, kit_rc_text(rc));
    rc = n.vt->devices(&ndev);
    ENSURE(rc == 0 && ndev == n.ndev, "after another init devices returned %s and there are %d, %d before",
           kit_rc_text(rc), ndev,
           n.ndev);
    kit_pair_open(&n, &p);
    kit_pair_ping(&p, 5000, (uint64_t)round);
    kit_pair_close(&p);
  }
  kit_net_close(&n);
}

static void context_is_written(struct kit_process *self) {
  (void)self;
  struct rail_net_config config = {.traffic_class = -1};
  struct kit_net n;
  kit_net_load(&n, KIT_TARGET);
  n.ctx = KIT_POISON;
  int rc = n.vt->init(&n.ctx, 0x1234, &config, kit_net_log, NULL);
  ENSURE(rc == 0, "init returned %s", kit_rc_text(rc));
  ENSURE(n.ctx != KIT_POISON,
         "init did not write *ctx, which listen, connect and finalize are given; NCCL 2.30 presets it to NULL");
  kit_net_close(&n);
}

static void contexts_are_independent(struct kit_process *self) {
  (void)self;
  struct kit_net a, b;
  struct kit_pair p, q, r;
  kit_net_open(&a);
  kit_net_open(&b);
  ENSURE(a.ndev == b.ndev, "the second communicator sees %d devices, the first %d", b.ndev, a.ndev);
  kit_pair_open(&a, &p);
  kit_pair_open(&b, &q);
  kit_pair_ping(&p, 5000, 1);
  kit_pair_close(&p);
  kit_net_close(&a);
  kit_pair_ping(&q, 5000, 2); /* b lives on without a */
  kit_pair_open(&b, &r);
  kit_pair_ping(&r, 5000, 3);
  kit_pair_close(&r);
  kit_pair_close(&q);
  kit_net_close(&b);
}

/* Two ranks in one process: one listens in its context, the other connects from its own. */
static void contexts_meet(struct kit_process *self) {
  (void)self;
  struct kit_net a, b;
  kit_net_open(&a);
  kit_net_open(&b);
  struct kit_pair p = {.net = &a};
  p.listen = kit_net_listen(&a, p.handle);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(KIT_PATIENCE_MS));
  while (!p.send || !p.recv) {
    if (!p.send) kit_connect_step(&b, p.handle, &p.send);
    if (!p.recv) kit_accept_step(&a, p.listen, &p.recv);
    ENSURE(!rail_deadline_passed(deadline), "no connection from one context to the other within the deadline");
    sched_yield();
  }
  kit_pair_ping(&p, 300, 4);
  kit_pair_close(&p);
  kit_net_close(&b);
  kit_net_close(&a);
}

static void finalize_null(struct kit_net *n, const char *when) {
  int rc = n->vt->finalize(NULL);
  ENSURE(rc == 0, "finalize(NULL) %s returned %s; NCCL 2.28 calls it when init has failed", when, kit_rc_text(rc));
}

/* After an init that failed NCCL 2.28 finalizes what it has, which is NULL; it may have other communicators, and it
 * never calls this init again. */
static void finalize_of_null(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  kit_net_load(&n, KIT_TARGET);
  int rc = kit_net_init(&n, NULL, -1);
  ENSURE(rc == 0, "init returned %s", kit_rc_text(rc));
  finalize_null(&n, "beside a living context");
  kit_pair_open(&n, &p); /* and that did it no harm */
  kit_pair_ping(&p, 100, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
  kit_net_load(&n, KIT_TARGET);
  finalize_null(&n, "without any context");
  kit_net_unload(&n);
}

static void devices_stay(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  struct kit_pair p;
  kit_net_open(&n);
  for (int i = 0; i < 20; i++) {
    int ndev = -1, rc = n.vt->devices(&ndev);
    ENSURE(rc == 0, "devices, called again, returned %s", kit_rc_text(rc));
    ENSURE(ndev == n.ndev, "devices said %d at first and %d later; NCCL asks once and keeps the number", n.ndev, ndev);
    if (i != 10) continue;
    kit_pair_open(&n, &p);
    kit_pair_close(&p);
  }
  kit_net_close(&n);
}

/* What a communicator that is aborted leaves behind: connections at every step of their making. NCCL drops them. */
static void finalize_reclaims_half_open(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  first_thread();
  kit_net_open(&n);
  kit_net_close(&n);
  struct usage before = usage_now();
  for (int round = 0; round < 5; round++) {
    kit_net_open(&n);
    char handle[3][RAIL_NET_HANDLE_SIZE];
    void *unused = kit_net_listen(&n, handle[0]), *asked = kit_net_listen(&n, handle[1]);
    void *both = kit_net_listen(&n, handle[2]), *send = NULL, *recv = NULL;
    for (int i = 0; i < 3; i++) kit_accept_step(&n, unused, &recv);
    /* A first step each; whatever came complete is closed, the rest is left to finalize. */
    if (kit_connect_step(&n, handle[1], &send)) n.vt->close_send(send);
    if (kit_accept_step(&n, asked, &recv)) n.vt->close_recv(recv);
    if (kit_accept_step(&n, both, &recv)) n.vt->close_recv(recv);
    if (kit_connect_step(&n, handle[2], &send)) n.vt->close_send(send);
    kit_net_close(&n);
  }
  ensure_usage(before, "after finalize of five contexts with connections half made");
}

/* ---- how a program ends ---- */

static void leave_all_open(void *arg) {
  static struct kit_net n; /* static: leak checkers must find what hangs on it */
  static struct kit_pair p;
  static uint8_t in[1000];
  (void)arg;
  kit_net_open(&n);
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 10000, 1);
  static struct kit_op waits;
  waits = kit_op_recv(p.recv, in, sizeof in, 1);
  waits.mh[0] = kit_mr_reg(&n, p.recv, in, sizeof in);
  kit_op_post(&n, &waits);
}

static void exit_with_all_open(struct kit_process *self) {
  (void)self;
  pid_t pid = fork(); /* nothing of the plugin is here yet */
  ENSURE(pid >= 0, "fork failed");
  if (pid == 0) {
    char why[512];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!kit_catch(leave_all_open, NULL, why, sizeof why)) _exit(99);
    exit(0);
  }
  int status = 0;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(10000));
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (rail_deadline_passed(deadline)) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      kit_failed(__FILE__, __LINE__, "a program that ends with its communicators open still runs 10 s after exit()");
    }
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  ENSURE(!WIFSIGNALED(status), "a program that ends with its communicators open dies of signal %d in exit()",
         WTERMSIG(status));
  ENSURE(WEXITSTATUS(status) != 99, "the program did not come as far as exit()");
  ENSURE(WEXITSTATUS(status) == 0, "a program that calls exit(0) with its communicators open ends with status %d",
         WEXITSTATUS(status));
}

/* ---- results and logs ---- */

/* Standard output and error go into a file until restore_output(). */
static int redirect_output(int keep[2]) {
  int fd = memfd_create("said", MFD_CLOEXEC);
  ENSURE(fd >= 0, "memfd_create failed");
  fflush(NULL);
  for (int i = 0; i < 2; i++) {
    keep[i] = dup(STDOUT_FILENO + i);
    dup2(fd, STDOUT_FILENO + i);
  }
  return fd;
}

static void restore_output(const int keep[2]) {
  fflush(NULL);
  for (int i = 0; i < 2; i++) {
    dup2(keep[i], STDOUT_FILENO + i);
    close(keep[i]);
  }
}

static void some_lives(void *self) { each_version_lives_twice(self); }

static void logs_only_through_the_logger(struct kit_process *self) {
  (void)self;
  int keep[2];
  if (getenv("RAIL_TEST_VERBOSE")) kit_skip("RAIL_TEST_VERBOSE is set: the logger itself prints");
  int fd = redirect_output(keep);
  char why[512], said[200] = "";
  bool fine = kit_catch(some_lives, self, why, sizeof why);
  restore_output(keep);
  ENSURE(fine, "%s", why);
  ssize_t n = pread(fd, said, sizeof said - 1, 0);
  said[n > 0 ? n : 0] = 0;
  said[strcspn(said, "\n")] = 0;
  ENSURE(n == 0, "the plugin writes to standard output or error, past NCCL_DEBUG and NCCL_DEBUG_FILE: \"%s\"", said);
  close(fd);
}

/* ---- the table ---- */

#define OLD (KIT_V(6) | KIT_V(7) | KIT_V(8) | KIT_V(9) | KIT_V(10))

const struct kit_check kit_checks_lifecycle[] = {
  {"1.1", "lifecycle.symbols_of_all_versions", KIT_MUST, KIT_ONE,
   .what = "Each ncclNetPlugin_vN that the file exports has a name.",
   .source = "src/plugin/net.cc:97-106, 329-331", .run = symbols_of_all_versions},
  {"1.2", "lifecycle.no_needed_slot_is_null", KIT_MUST, KIT_ONE,
   .what = "No slot is NULL that NCCL calls without asking: all but regMrDmaBuf, getDeviceMr, irecvConsumed, "
           "makeVDevice, setNetAttr, and iflush of a host-only plugin.",
   .source = "src/include/plugin/net/net_v12.h, src/plugin/net.cc:169-214", .run = no_needed_slot_is_null},
  {"1.3", "lifecycle.one_name_for_all_versions", KIT_SHOULD, KIT_ONE,
   .what = "All exported versions have the same name.",
   .source = "src/plugin/net.cc:329-331, src/init.cc:2117-2128", .run = one_name_for_all_versions},
  {"1.4", "lifecycle.name_is_not_built_in", KIT_SHOULD, KIT_ONE,
   .what = "The plugin is not called as NCCL's own transports are, IB or Socket.",
   .source = "src/plugin/net.cc:298-304, 329-331", .run = name_is_not_built_in},
  {"1.5", "lifecycle.loading_does_nothing", KIT_SHOULD, KIT_ONE,
   .what = "dlopen without init starts no thread and keeps no file open.",
   .source = "src/plugin/net.cc:104-138, src/plugin/gin.cc:203-260", .run = loading_does_nothing},
  {"1.6", "lifecycle.each_version_lives_twice", KIT_MUST, KIT_ONE,
   .what = "The plugin works, and works again after finalize, dlclose and dlopen.",
   .source = "src/plugin/net.cc:78-95, 308-319", .run = each_version_lives_twice},
  {"1.7", "lifecycle.no_thread_outlives_the_library", KIT_MUST, KIT_ONE,
   .what = "When NCCL closes the library no thread of the plugin is left, or the library stays in memory.",
   .source = "src/plugin/net.cc:308-319, src/init.cc:380-384", .run = no_thread_outlives_the_library},
  {"1.8", "lifecycle.reopened_leaves_nothing", KIT_SHOULD, KIT_ONE,
   .what = "Five lives, from dlopen to dlclose, leave no thread and no open file.",
   .source = "src/plugin/net.cc:78-95, 308-319", .run = reopened_leaves_nothing},
  {"1.9", "lifecycle.old_init_twice", KIT_MUST, KIT_ONE, .versions = OLD,
   .what = "init may be called again in one process (before v11, where there is no finalize).",
   .source = "src/plugin/net/net_v10.cc:66-117", .run = old_init_twice},
  {"1.10", "lifecycle.contexts_are_independent", KIT_MUST, KIT_ONE, .versions = KIT_SINCE(11),
   .what = "Each communicator has a context of its own; ending one does not disturb the others.",
   .source = "src/plugin/net.cc:169-178, src/init.cc:475-481", .run = contexts_are_independent},
  {"1.11", "lifecycle.contexts_meet", KIT_MUST, KIT_ONE, .versions = KIT_SINCE(11),
   .what = "A connection may begin in one context and end in another of the same process.",
   .source = "src/transport/net.cc:225, 865, 874", .run = contexts_meet},
  {"1.12", "lifecycle.devices_stay", KIT_MUST, KIT_ONE,
   .what = "devices gives the same number each time.",
   .source = "src/plugin/net.cc:180-184, src/graph/topo.cc:1710-1735", .run = devices_stay},
  {"1.13", "lifecycle.finalize_of_null", KIT_MUST, KIT_ONE, .versions = KIT_SINCE(11),
   .what = "finalize(NULL) is accepted, with and without living contexts.",
   .source = "2.28.9: src/plugin/net.cc:224-226", .run = finalize_of_null},
  {"1.14", "lifecycle.finalize_reclaims_half_open", KIT_SHOULD, KIT_ONE, .versions = KIT_SINCE(11),
   .what = "finalize gives back what connections that never came about have used.",
   .source = "src/transport/net.cc:1204, 1259", .run = finalize_reclaims_half_open},
  {"1.15", "lifecycle.context_is_written", KIT_SHOULD, KIT_ONE, .versions = KIT_SINCE(11),
   .what = "init writes *ctx.",
   .source = "src/plugin/net.cc:169-178, plugins/net/README.md", .run = context_is_written},
  {"1.16", "lifecycle.exit_with_all_open", KIT_MUST, KIT_ONE,
   .what = "A program may call exit() with communicators open and requests outstanding: it ends, and does not crash.",
   .source = "src/plugin/net.cc:308-319 (a library that is never closed), src/init.cc:284-291",
   .run = exit_with_all_open},
  {"1.17", "lifecycle.logs_only_through_the_logger", KIT_SHOULD, KIT_ONE,
   .what = "Nothing is written to standard output or error but through the function that init was given.",
   .source = "plugins/net/README.md:128-145, src/plugin/net.cc:169-178", .run = logs_only_through_the_logger},
  {0},
};
