/* SPDX-License-Identifier: Apache-2.0
 * What many senders cost one receiver over the ib plugin and the emulated device: processes that load the plugin,
 * connect to the receiver's process at once, send a message each and close. make bench-emu; ib_peers N: so many (1000).
 * Every byte is checked. Figures of one machine, to be compared with each other only. */
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kit/kit_ensure.h"
#include "loader/netload.h"
#include "test/harness/emu.h"

enum { BYTES = 4096, MOST = 1500, PATIENCE_S = 600, LOOK_US = 50 };

struct plugin { /* as loaded by this process */
  struct rail_net *net;
  void *ctx;
};

struct peer {
  void *comm, *mhandle, *request;
  bool received;
  char data[BYTES];
};

static pid_t main_process;
static bool is_peer;
static useconds_t npeers;
static char folder[] = "/dev/shm/ib-peers.XXXXXX";

/* ---- ends ---------------------------------------------------------------------------------- */

static void remove_folder(void) {
  DIR *dir = opendir(folder);
  for (struct dirent *d; dir && (d = readdir(dir)) != NULL;) (void)unlinkat(dirfd(dir), d->d_name, 0);
  if (dir) closedir(dir);
  rmdir(folder);
}

/* The peers are killed when the process ends that started them. */
__attribute__((format(printf, 1, 2))) _Noreturn static void fail(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  vfprintf(stderr, fmt, ap);
  va_end(ap);
  fputc('\n', stderr);
  if (!is_peer) remove_folder();
  _exit(1);
}

static void require(rail_result_t result, const char *call) {
  if (result != RAIL_OK) fail("process %d: %s: %s", (int)getpid(), call, rail_result_name(result));
}

/* ---- what is measured ------------------------------------------------------------------------ */

static double seconds(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct { double elapsed, processor; } since;
static void begin(void) {
  since.elapsed = seconds(CLOCK_MONOTONIC);
  since.processor = seconds(CLOCK_PROCESS_CPUTIME_ID);
}
static void print_time(const char *what, int n) {
  double elapsed = seconds(CLOCK_MONOTONIC) - since.elapsed;
  printf("%-48s %7.2f s; CPU time of the receiver: %.2f ms a connection\n", what, elapsed,
         (seconds(CLOCK_PROCESS_CPUTIME_ID) - since.processor) * 1e3 / n);
  fflush(stdout);
}

/* A line of /proc/self/status, in KiB. */
static long status_kib(const char *name) {
  char line[256];
  long kib = 0;
  FILE *in = fopen("/proc/self/status", "re");
  while (in && fgets(line, sizeof line, in))
    if (strncmp(line, name, strlen(name)) == 0) kib = strtol(line + strlen(name), NULL, 10);
  if (in) fclose(in);
  return kib;
}

struct used { long own, shared, locked; int files; };
static struct used used_now(void) {
  return (struct used){.own = status_kib("RssAnon:"), .shared = status_kib("RssShmem:"),
                       .locked = emu_live("locked"), .files = kit_fd_count()};
}

/* ---- both sides ------------------------------------------------------------------------------- */

/* The receiver polls, as NCCL does. A sender looks less and less often, in the end all together 20,000 times a second:
 * senders that poll would leave the receiver no core. */
static void idle(double deadline, const char *what) {
  static useconds_t pause = LOOK_US;
  if (seconds(CLOCK_MONOTONIC) > deadline) fail("process %d: %s: not within %d s", (int)getpid(), what, PATIENCE_S);
  if (!is_peer) {
    sched_yield();
    return;
  }
  usleep(pause);
  pause = 2 * pause < npeers * LOOK_US ? 2 * pause : npeers * LOOK_US;
}

static struct plugin load_plugin(void) {
  static const struct rail_net_init args = {.traffic_class = -1};
  struct plugin at;
  char path[PATH_MAX], why[512];
  if (!rail_path_from_bin(path, "../lib/libnccl-net-ib.so")) fail("no path of this program");
  if (rail_net_try(path, &args, &at.net, &at.ctx, why, sizeof why) != RAIL_OK) fail("%s: %s", path, why);
  return at;
}

static void unload_plugin(struct plugin *at) {
  require(rail_net_finalize(at->net, at->ctx), "finalize");
  rail_net_unload(at->net);
}

/* Its number, and bytes that follow from it. */
static void fill(char data[BYTES], uint32_t number) {
  memcpy(data, &number, sizeof number);
  for (uint32_t i = sizeof number; i < BYTES; i++) data[i] = (char)(number * 31 + i * 7 + i / 256);
}

/* ---- a sender ----------------------------------------------------------------------------------- */

static void send_message(const struct plugin *at, void *comm, uint32_t number, double deadline) {
  static char data[BYTES];
  void *mhandle, *request = NULL;
  int done = 0, size;
  fill(data, number);
  require(rail_net_reg_mr(at->net, comm, data, sizeof data, RAIL_PTR_HOST, &mhandle), "regMr");
  while (!request) {
    require(rail_net_isend(at->net, comm, data, sizeof data, 0, mhandle, &request), "isend");
    if (!request) idle(deadline, "isend");
  }
  while (!done) {
    require(rail_net_test(at->net, request, &done, &size), "test");
    if (!done) idle(deadline, "test of isend");
  }
  require(rail_net_dereg_mr(at->net, comm, mhandle), "deregMr");
}

/* Loads the plugin, says so, connects when all may, sends, and ends when all have. */
_Noreturn static void be_peer(uint32_t number, const int *ready, const int *go, const int *end) {
  char handle[RAIL_NET_HANDLE_SIZE], c = 0;
  void *comm = NULL;
  struct plugin at = load_plugin();
  if (write(ready[1], &c, 1) != 1 || read(go[0], handle, sizeof handle) != sizeof handle) _exit(1);
  double deadline = seconds(CLOCK_MONOTONIC) + PATIENCE_S;
  while (!comm) {
    require(rail_net_connect(at.net, at.ctx, 0, handle, -1, &comm), "connect");
    if (!comm) idle(deadline, "connect");
  }
  send_message(&at, comm, number, deadline);
  if (read(end[0], &c, 1) != 0) _exit(1);
  require(rail_net_close_send(at.net, comm), "closeSend");
  unload_plugin(&at);
  _exit(0);
}

static void start_peers(int n, const int *ready, const int *go, const int *end) {
  for (int i = 0; i < n; i++) {
    pid_t pid = fork();
    if (pid < 0) fail("process %d of %d cannot be started: %s", i, n, strerror(errno));
    if (pid) continue;
    is_peer = true;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != main_process) _exit(1);
    close(ready[0]);
    close(go[1]);
    close(end[1]);
    be_peer((uint32_t)i, ready, go, end);
  }
  close(ready[1]);
  close(go[0]);
  close(end[0]);
}

/* ---- the receiver --------------------------------------------------------------------------------- */

static void post_receive(const struct plugin *at, struct peer *p, double deadline) {
  void *data = p->data;
  const size_t size = BYTES;
  const int tag = 0;
  require(rail_net_reg_mr(at->net, p->comm, p->data, BYTES, RAIL_PTR_HOST, &p->mhandle), "regMr");
  while (!p->request) {
    require(rail_net_irecv(at->net, p->comm, 1, &data, &size, &tag, &p->mhandle, &p->request), "irecv");
    if (!p->request) idle(deadline, "irecv");
  }
}

static void accept_all(const struct plugin *at, void *listener, struct peer *peers, int n, double deadline) {
  for (int i = 0; i < n;) {
    require(rail_net_accept(at->net, listener, &peers[i].comm), "accept");
    if (!peers[i].comm) {
      idle(deadline, "accept");
      continue;
    }
    post_receive(at, &peers[i++], deadline);
  }
}

/* Each peer's message once, with its bytes. */
static void check_message(const struct peer *p, int size, int n, bool *seen) {
  char expected[BYTES];
  uint32_t number;
  memcpy(&number, p->data, sizeof number);
  if (size != BYTES || number >= (uint32_t)n || seen[number]) fail("a message of %d bytes, from peer %u", size, number);
  fill(expected, number);
  if (memcmp(expected, p->data, BYTES) != 0) fail("wrong bytes from peer %u", number);
  seen[number] = true;
}

static void receive_all(const struct plugin *at, struct peer *peers, int n, double deadline) {
  bool *seen = calloc((size_t)n, sizeof *seen);
  if (!seen) fail("out of memory");
  for (int received = 0; received < n;) {
    int before = received;
    for (int i = 0; i < n; i++) {
      int done = 0, size = 0;
      if (peers[i].received) continue;
      require(rail_net_test(at->net, peers[i].request, &done, &size), "test");
      if (!done) continue;
      check_message(&peers[i], size, n, seen);
      require(rail_net_dereg_mr(at->net, peers[i].comm, peers[i].mhandle), "deregMr");
      peers[i].received = true;
      received++;
    }
    if (received == before) idle(deadline, "test of irecv");
  }
  free(seen);
}

static void await_peers(int n) {
  for (int i = 0, status; i < n; i++)
    if (wait(&status) < 0 || status != 0) fail("a peer ended with status 0x%x", (unsigned int)status);
}

static void close_all(const struct plugin *at, struct peer *peers, int n) {
  for (int i = 0; i < n; i++) require(rail_net_close_recv(at->net, peers[i].comm), "closeRecv");
}

static void print_memory(const struct used *before, int n) {
  const struct used now = used_now();
  printf("the receiver, for each connection: %.1f KiB of memory, %.1f KiB of the device's rings, %.1f KiB registered, "
         "%.2f descriptors\n", (double)(now.own - before->own) / n, (double)(now.shared - before->shared) / n,
         (double)(now.locked - before->locked) / 1024 / n, (double)(now.files - before->files) / n);
}

static void many_peers(int n) {
  int ready[2], go[2], end[2];
  char c, handle[RAIL_NET_HANDLE_SIZE];
  void *listener;
  struct peer *peers = calloc((size_t)n, sizeof *peers);
  if (!peers || pipe(ready) != 0 || pipe(go) != 0 || pipe(end) != 0) fail("%s", strerror(errno));
  memset(peers, 0, (size_t)n * sizeof *peers); /* its pages are there before memory is measured */
  begin();
  start_peers(n, ready, go, end);
  for (int i = 0; i < n; i++)
    if (read(ready[0], &c, 1) != 1) fail("a peer could not load the plugin");
  printf("%d processes load the ib plugin and connect to one receiver at once\n", n);
  print_time("all have loaded it", n);
  struct plugin at = load_plugin();
  require(rail_net_listen(at.net, at.ctx, 0, handle, &listener), "listen");
  const struct used before = used_now();
  double deadline = seconds(CLOCK_MONOTONIC) + PATIENCE_S;
  begin();
  for (int i = 0; i < n; i++)
    if (write(go[1], handle, sizeof handle) != sizeof handle) fail("a pipe: %s", strerror(errno));
  accept_all(&at, listener, peers, n, deadline);
  print_time("all are connected", n);
  receive_all(&at, peers, n, deadline);
  print_time("... and 4 KiB of each are received and checked", n);
  print_memory(&before, n);
  begin();
  close(end[1]);
  close_all(&at, peers, n);
  require(rail_net_close_listen(at.net, listener), "closeListen");
  unload_plugin(&at);
  print_time("all are closed, and nothing lingers", n);
  await_peers(n);
  print_time("... and all other processes have ended", n);
  if (emu_live("qp") + emu_live("cq") + emu_live("mr") != 0) fail("verbs objects are left");
  free(peers);
}

static void choose_device(void) {
  char path[PATH_MAX];
  if (!rail_path_from_bin(path, "../lib/emu/libibverbs.so.1")) fail("no path of this program");
  setenv("NCCL_IBVERBS_LIB", path, 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  setenv("RAIL_IB_CONNECT_TIMEOUT", "600", 0); /* seconds: on few cores a peer may be dropped several times */
}

int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 1000;
  struct rlimit files;
  if (n < 1 || n > MOST || !mkdtemp(folder)) {
    fprintf(stderr, "usage: ib_peers [1 to %d, default 1000]\n", MOST);
    return 2;
  }
  main_process = getpid();
  npeers = (useconds_t)n;
  setenv("RAIL_EMU_DIR", folder, 1);
  choose_device();
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &files);
  }
  many_peers(n);
  remove_folder();
  return 0;
}
