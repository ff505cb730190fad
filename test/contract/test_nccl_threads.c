/* SPDX-License-Identifier: Apache-2.0
 * NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD, and the vendor of the card, through the vtable: what the handle asks
 * for, which sockets and threads there are, and where these run.
 * TEST-LIMIT: 60 */
#include <dirent.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "common/base/cpus.h"
#include "kit/kit_tcp.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"

enum { HANDLE_STREAMS = 7, MAX_SOCKETS = 256 };

struct setting {
  const char *nthreads, *nsocks, *vendor; /* NULL: as it is */
  const char *streams, *engine, *near; /* near: CPUs near the card */
  int cores; /* 0: as many as there are */
  int want_streams, want_threads, warnings;
  const char *why; /* in the device's line */
};

/* ---- cores ------------------------------------------------------------------------ */

static int pretended_cores;

/* In the place of the C library's, also for the plugin. */
__attribute__((visibility("default"))) int sched_getaffinity(pid_t pid, size_t size, cpu_set_t *cores) {
  if (!pretended_cores) return syscall(SYS_sched_getaffinity, pid, size, cores) < 0 ? -1 : 0;
  memset(cores, 0, size);
  for (int i = 0; i < pretended_cores; i++) CPU_SET_S(i, size, cores);
  return 0;
}

/* ---- what there is -------------------------------------------------------------- */

/* Each must run on these CPUs, if they are given. */
static int engine_threads(const char *near) {
  DIR *dir = opendir("/proc/self/task");
  ENSURE(dir, "no /proc/self/task");
  int found = 0;
  for (struct dirent *d; (d = readdir(dir));) {
    char path[300], name[32] = "", text[RAIL_CPUS_TEXT];
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", d->d_name);
    FILE *f = fopen(path, "r");
    bool of_engine = f && fgets(name, sizeof name, f) && strncmp(name, "rail-socket-", 12) == 0;
    if (f) fclose(f);
    found += of_engine;
    if (!of_engine || !near) continue;
    cpu_set_t cpus = {0};
    ENSURE(syscall(SYS_sched_getaffinity, strtol(d->d_name, NULL, 10), sizeof cpus, &cpus) > 0, "no CPUs");
    ENSURE(strcmp(rail_cpus_text(&cpus, text), near) == 0, "on CPUs %s, not %s", text, near);
  }
  closedir(dir);
  return found;
}

static int connected_ends(void) {
  static struct kit_tcp_socket sockets[MAX_SOCKETS];
  int count = kit_tcp_sockets(sockets, MAX_SOCKETS), ends = 0;
  for (int i = 0; i < count; i++) ends += sockets[i].connected;
  return ends;
}

static char device_line[1024];

static void keep_device_line(const char *text) {
  if (strstr(text, "RailSocket : device 0 is ")) snprintf(device_line, sizeof device_line, "%s", text);
}

/* The kernel says a little later that a new link runs. */
static bool runs(const char *name) {
  struct ifreq face = {0};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  snprintf(face.ifr_name, sizeof face.ifr_name, "%s", name);
  bool good = ioctl(fd, SIOCGIFFLAGS, &face) == 0 && face.ifr_flags & IFF_RUNNING;
  close(fd);
  return good;
}

/* ---- a card of this vendor ------------------------------------------------------- */

static void put(const char *interface, const char *leaf, const char *text) {
  char path[80];
  snprintf(path, sizeof path, "/sys/class/net/%s/device/%s", interface, leaf);
  FILE *f = fopen(path, "w");
  ENSURE(f && fprintf(f, "%s\n", text) > 0 && fclose(f) == 0, "no %s", path);
}

/* This interface then seems to have such a card. False: no file system may be mounted here. */
static bool show_vendor(const char *interface, const char *vendor) {
  char path[80];
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return false;
  if (mount("tmpfs", "/sys/class/net", "tmpfs", 0, "size=64k") != 0) return false;
  snprintf(path, sizeof path, "/sys/class/net/%s", interface);
  ENSURE_INT(mkdir(path, 0700), 0);
  strcat(path, "/device");
  ENSURE_INT(mkdir(path, 0700), 0);
  put(interface, "vendor", vendor);
  return true;
}

static void child(struct pipes *io, void *arg) {
  const struct setting *s = arg;
  struct kit_net n;
  struct kit_pair p;
  bool can = !s->vendor || show_vendor("lo", s->vendor);
  pipe_write(io, &can, sizeof can);
  if (!can) return;
  if (s->near) put("lo", "local_cpulist", s->near);
  setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  const struct { const char *name, *value; } env[] = {{"NCCL_SOCKET_NTHREADS", s->nthreads},
                                                      {"NCCL_NSOCKS_PERTHREAD", s->nsocks},
                                                      {"RAIL_SOCKET_STREAMS", s->streams},
                                                      {"RAIL_SOCKET_ENGINE", s->engine},
                                                      {"RAIL_SOCKET_THREADS", NULL}};
  for (size_t i = 0; i < RAIL_COUNT_OF(env); i++) {
    if (env[i].value) setenv(env[i].name, env[i].value, 1);
    else unsetenv(env[i].name);
  }
  pretended_cores = s->cores;
  kit_net_on_info(keep_device_line);
  kit_net_open(&n);
  ENSURE_INT(kit_net_warnings(), s->warnings);
  ENSURE(strstr(device_line, s->why), "'%s', not '%s'", device_line, s->why);
  kit_pair_open(&n, &p);
  ENSURE_INT(p.handle[HANDLE_STREAMS], s->want_streams);
  ENSURE_INT(connected_ends(), 2 * s->want_streams);
  ENSURE_INT(engine_threads(s->near), s->want_threads);
  for (int i = 0; i < 4; i++) kit_pair_ping(&p, (size_t)i * 700001, (uint64_t)i);
  kit_pair_close(&p);
  kit_net_close(&n);
}

static void check(const struct setting *settings, size_t count) {
  for (size_t i = 0; i < count; i++) {
    struct proc p = proc_start(child, (void *)(uintptr_t)&settings[i]);
    bool can;
    pipe_read(&p.io, &can, sizeof can);
    proc_join(&p);
    if (!can) tap_skip_case("no mount namespace is allowed here");
  }
}

TEST(by_the_variables) {
  const struct setting settings[] = {
    {.want_streams = 1, .why = "1 stream (default), engine inline (default)"},
    {.nthreads = "2", .nsocks = "3", .want_streams = 6, .want_threads = 2,
     .why = "6 streams (NCCL_SOCKET_NTHREADS, NCCL_NSOCKS_PERTHREAD), engine epoll with 2 threads"},
    {.nthreads = "0", .nsocks = "8", .want_streams = 1, .why = "1 stream"},
    {.nsocks = "8", .want_streams = 1, .why = "no effect without NCCL_SOCKET_NTHREADS"},
    {.nthreads = "3", .nsocks = "8", .want_streams = 16, .want_threads = 3, .warnings = 1, .why = "16 streams"},
  };
  check(settings, RAIL_COUNT_OF(settings));
}

TEST(ours_win) {
  const struct setting settings[] = {
    {.nthreads = "2", .nsocks = "8", .streams = "2", .engine = "inline", .want_streams = 2,
     .why = "2 streams (RAIL_SOCKET_STREAMS), engine inline (RAIL_SOCKET_ENGINE)"},
    {.nthreads = "0", .engine = "epoll", .want_streams = 1, .want_threads = 1, .why = "epoll with 1 thread"},
  };
  check(settings, RAIL_COUNT_OF(settings));
}

TEST(by_the_vendor) {
  const struct setting settings[] = {
    {.vendor = "0x1d0f", .cores = 4, .want_streams = 16, .want_threads = 2,
     .why = "16 streams (NCCL's default on AWS), engine epoll with 2 threads (NCCL's default on AWS)"},
    {.vendor = "0x1d0f", .cores = 3, .want_streams = 16,
     .why = "16 streams (NCCL's default on AWS), engine inline (fewer than 4 cores)"},
    {.vendor = "0x1ae0", .cores = 4, .want_streams = 4, .want_threads = 4, .why = "NCCL's default on Google Cloud"},
    {.vendor = "0x15b3", .cores = 4, .want_streams = 1, .why = "1 stream (default), engine inline (default)"},
    {.vendor = "0x1d0f", .cores = 1, .nthreads = "1", .nsocks = "2", .want_streams = 2, .want_threads = 1,
     .why = "2 streams"},
    {.vendor = "0x1d0f", .cores = 4, .nthreads = "0", .want_streams = 1, .why = "1 stream"},
  };
  check(settings, RAIL_COUNT_OF(settings));
}

/* The last CPU of this machine is near the card. */
TEST(threads_run_near_the_card) {
  char near[16];
  cpu_set_t cpus = {0};
  ENSURE(syscall(SYS_sched_getaffinity, 0, sizeof cpus, &cpus) > 0, "no CPUs");
  size_t last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &cpus)) last--;
  snprintf(near, sizeof near, "%zu", last);
  const struct setting settings[] = {
    {.vendor = "0x15b3", .engine = "epoll", .near = near, .want_streams = 1, .want_threads = 1, .why = "1 thread"},
  };
  check(settings, RAIL_COUNT_OF(settings));
}

/* ---- a fused device -------------------------------------------------------------- */

/* Streams go by its first interface, threads by the one whose card wants most. */
static void child_fused(struct pipes *io, void *arg) {
  const bool second = *(const bool *)arg;
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  bool can = geteuid() == 0 && unshare(CLONE_NEWNET) == 0;
  for (int i = 0; i < 2 && can; i++) {
    char line[256];
    snprintf(line, sizeof line, "(ip link add rv%d type veth peer name pv%d && ip addr add 198.18.%d.1/24 dev rv%d && "
             "ip link set pv%d up && ip link set rv%d up) >/dev/null 2>&1", i, i, i, i, i, i);
    can = system(line) == 0; /* a fixed text but for numbers */
  }
  can = can && show_vendor(second ? "rv1" : "rv0", "0x1d0f");
  pipe_write(io, &can, sizeof can);
  if (!can) return;
  setenv("NCCL_SOCKET_IFNAME", "=rv0,rv1", 1);
  setenv("RAIL_SOCKET_FUSE", "rv0+rv1", 1);
  pretended_cores = 4;
  kit_net_on_info(keep_device_line);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(10000)); /* for the links to run */
  while (!runs("rv0") || !runs("rv1")) {
    ENSURE(!rail_deadline_passed(deadline), "the links do not run");
    usleep(1000);
  }
  kit_net_open(&n);
  const char *why = second ? "2 streams in all (default), engine epoll with 2 threads"
                           : "16 streams in all (NCCL's default on AWS), engine epoll with 2 threads";
  ENSURE(strstr(device_line, "is rv0+rv1,") && strstr(device_line, why), "'%s', not '%s'", device_line, why);
  void *listen = kit_net_listen(&n, handle);
  ENSURE_INT(handle[HANDLE_STREAMS], second ? 1 : 16);
  ENSURE_INT(n.vt->close_listen(listen), 0);
  kit_net_close(&n);
}

TEST(a_fused_device) {
  for (int i = 0; i < 2; i++) {
    bool second = i == 1, can;
    struct proc p = proc_start(child_fused, &second);
    pipe_read(&p.io, &can, sizeof can);
    proc_join(&p);
    if (!can) tap_skip_case("no namespaces with veths here (needs ip, and root)");
  }
}

TEST_MAIN(TEST_CASE(by_the_variables), TEST_CASE(ours_win), TEST_CASE(by_the_vendor),
          TEST_CASE(threads_run_near_the_card),
          TEST_CASE(a_fused_device))
