/* SPDX-License-Identifier: Apache-2.0
 * The environment of a case's processes, and the files that they inherit. */
#include "kit/nccl/nccl_case.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

uint64_t kit_nccl_limit(const struct kit_nccl *how, const struct kit_nccl_case *t) {
  if (!t->scenario) return how->limit_ms;
  if (t->scenario->link) return how->limit_ms * 2; /* plugins wait for a network to come back */
  return how->limit_ms * (t->scenario->repeats ? 1 + (uint64_t)(how->repeat * how->ranks) / 20 : 1);
}

/* ---- the environment of a process ---- */

__attribute__((format(printf, 2, 3))) static void add_env(struct kit_nccl_env *e, const char *format, ...) {
  va_list ap;
  va_start(ap, format);
  if (e->n == KIT_NCCL_ENV || vasprintf(&e->entries[e->n], format, ap) < 0) {
    fprintf(stderr, "rail-kit: out of memory\n");
    exit(3);
  }
  e->n++;
  va_end(ap);
}

/* Unless the user has decided it. */
static void add_default(struct kit_nccl_env *e, const char *name, const char *value) {
  if (!getenv(name)) add_env(e, "%s=%s", name, value);
}

void kit_nccl_free_env(struct kit_nccl_env *e) {
  for (int i = 0; i < e->n; i++) free(e->entries[i]);
}

int kit_nccl_processes(const struct kit_nccl *how) { return how->ranks / how->gpus_per_process; }
int kit_nccl_processes_per_host(const struct kit_nccl *how) { return how->ranks_per_host / how->gpus_per_process; }

int kit_nccl_gpus(const struct kit_nccl *how) { return how->ranks_per_host > 1 ? how->ranks_per_host : how->ranks; }

const char *kit_nccl_namespace(const struct kit_nccl_run *run, const struct kit_nccl_case *t, int process) {
  int host = process / kit_nccl_processes_per_host(run->how);
  return t->scenario && t->scenario->link ? run->net.space[host % 2] : NULL;
}

/* NCCL_HOSTID says which processes are one host. Where several ranks are, what lies between these may leave out the
 * network. */
static void add_host(struct kit_nccl_env *e, const struct kit_nccl *how, int process, int topology) {
  bool several = how->ranks_per_host > 1;
  if (!getenv("NCCL_HOSTID")) add_env(e, "NCCL_HOSTID=ghost-%d", process / kit_nccl_processes_per_host(how));
  add_env(e, "GHOST_DEVICES=%d", kit_nccl_gpus(how));
  add_default(e, "NCCL_P2P_DISABLE", several ? "0" : "1");
  add_default(e, "NCCL_SHM_DISABLE", several ? "0" : "1");
  if (!several) return;
  add_env(e, "GHOST_MAPPED=zeros"); /* as NCCL takes what lies between GPUs to be */
  if (!getenv("NCCL_TOPO_FILE")) add_env(e, "NCCL_TOPO_FILE=/proc/self/fd/%d", topology);
}

void kit_nccl_library_path(char *text, size_t size, const char *ghost) {
  const char *path = getenv("LD_LIBRARY_PATH");
  snprintf(text, size, "LD_LIBRARY_PATH=%s%s%s", ghost, path ? ":" : "", path ? path : "");
}

void kit_nccl_make_env(struct kit_nccl_env *e, const struct kit_nccl_run *run, const struct kit_nccl_case *t,
                       int process, int log) {
  static const char *const off[] = {"NCCL_LOCAL_REGISTER", "NCCL_GRAPH_REGISTER", "NCCL_NVLS_ENABLE",
                                    "NCCL_MNNVL_ENABLE",   "NCCL_RAS_ENABLE",     "NCCL_WIN_ENABLE",
                                    "NCCL_GIN_ENABLE"};
  const struct kit_nccl *how = run->how;
  const char *level = getenv("NCCL_DEBUG");
  char path[2 * PATH_MAX];
  bool trace = level && strcasecmp(level, "TRACE") == 0;
  kit_nccl_library_path(path, sizeof path, run->ghost);
  add_env(e, "%s", path);
  add_host(e, how, process, run->topology);
  add_env(e, "NCCL_NET_PLUGIN=%s", how->network ? "none" : how->plugin);
  add_env(e, "NCCL_NET=%s", run->probe.name);
  add_env(e, "NCCL_DEBUG=%s", trace ? "TRACE" : "INFO");
  add_env(e, "NCCL_DEBUG_FILE=/proc/self/fd/%d", log);
  add_env(e, "NCCL_DEBUG_SUBSYS=INIT,NET,ENV,ALLOC,ALLOC_HOST");
  if (t->algo) add_env(e, "NCCL_ALGO=%s", t->algo);
  if (t->proto) add_env(e, "NCCL_PROTO=%s", t->proto);
  if (how->oob) add_env(e, "NCCL_OOB_NET_ENABLE=1");
  add_env(e, "NCCL_MIN_NCHANNELS=%d", how->channels);
  add_env(e, "NCCL_MAX_NCHANNELS=%d", how->channels);
  add_env(e, "NCCL_NET_GDR_LEVEL=%s", how->gdr ? "SYS" : "LOC");
  add_env(e, "NCCL_NET_GDR_READ=%d", how->gdr);
  add_env(e, "GHOST_PATIENCE=%" PRIu64, kit_nccl_limit(how, t) / 1000 + 1);
  if (kit_nccl_namespace(run, t, process)) add_env(e, "NCCL_SOCKET_IFNAME==" KIT_LINK_NAME);
  else add_default(e, "NCCL_SOCKET_IFNAME", "lo");
  for (size_t i = 0; i < sizeof off / sizeof *off; i++) add_default(e, off[i], "0");
  if (!t->scenario || !t->scenario->repeats) return;
  /* Most of the time that a communicator takes is clearing buffers: 10 MB a connection. */
  add_default(e, "NCCL_BUFFSIZE", "65536");
  add_default(e, "NCCL_LL128_BUFFSIZE", "307200");
}

/* ---- files for NCCL ---- */

int kit_nccl_make_file(const char *what) {
  int fd = memfd_create(what, 0), high = fd < 0 ? -1 : fcntl(fd, F_DUPFD, 64);
  if (high < 0) {
    fprintf(stderr, "rail-kit nccl: no file for NCCL's %s (%s): %s\n", what, fd < 0 ? "memfd_create" : "fcntl F_DUPFD",
            strerror(errno));
    exit(3);
  }
  close(fd);
  return high;
}

int kit_nccl_make_topology(const struct kit_nccl *how, const struct kit_probe *probe) {
  int fd = kit_nccl_make_file("topology"), copy = dup(fd);
  FILE *f = copy < 0 ? NULL : fdopen(copy, "w");
  if (f) kit_nccl_write_topology(f, kit_nccl_gpus(how), probe);
  if (!f || fclose(f) != 0) {
    fprintf(stderr, "rail-kit nccl: the file of NCCL's topology cannot be written: %s\n", strerror(errno));
    exit(3);
  }
  return fd;
}
