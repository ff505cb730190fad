/* SPDX-License-Identifier: Apache-2.0
 * Devices fused from several interfaces, by makeVDevice and by RAIL_SOCKET_FUSE. The interfaces are veths in network
 * namespaces of the test's own.
 * TEST-LIMIT: 120 */
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "kit/kit_tcp.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"

enum { FACES = 5 };
#define ALL_FACES "=rv0,rv1,rv2,rv3,rv4"

/* ---- namespaces ---------------------------------------------------------- */

static bool shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static bool shell(const char *fmt, ...) {
  char line[512], quiet[560];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(line, sizeof line, fmt, ap);
  va_end(ap);
  snprintf(quiet, sizeof quiet, "(%s) >/dev/null 2>&1", line);
  return system(quiet) == 0; /* a fixed text but for numbers */
}

static bool write_text(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  bool good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
  if (fd >= 0) close(fd);
  return good;
}

/* This process into a network of its own; false if it may not. */
static bool own_network(void) {
  uid_t uid = geteuid();
  char map[48];
  snprintf(map, sizeof map, "0 %u 1", (unsigned int)uid);
  if (uid == 0 ? unshare(CLONE_NEWNET) != 0 : unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return false;
  if (uid != 0 && !write_text("/proc/self/uid_map", map)) return false;
  return shell("ip link set lo up");
}

/* The kernel says a little later that a new link runs. */
static bool runs(int i) {
  struct ifreq face = {0};
  int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(10000));
  snprintf(face.ifr_name, sizeof face.ifr_name, "rv%d", i);
  while (ioctl(fd, SIOCGIFFLAGS, &face) == 0 && !(face.ifr_flags & IFF_RUNNING) && !rail_deadline_passed(deadline))
    usleep(1000);
  close(fd);
  return face.ifr_flags & IFF_RUNNING;
}

/* FACES interfaces rv0 … with an address each, in a process that may fuse them though they have no PCI path. */
static bool make_faces(void) {
  setenv("RAIL_NET_FUSE_NO_PCI", "1", 1);
  if (!own_network()) return false;
  for (int i = 0; i < FACES; i++)
    if (!shell("ip link add rv%d type veth peer name pv%d && ip addr add 198.18.%d.1/24 dev rv%d && "
               "ip link set pv%d up && ip link set rv%d up", i, i, i, i, i, i))
      return false;
  for (int i = 0; i < FACES; i++)
    if (!runs(i)) return false;
  return true;
}

static void in_network(void (*fn)(struct pipes *io, void *arg), void *arg) {
  int status;
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) _exit(make_faces() ? 0 : 1);
  CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
  if (status != 0) tap_skip_case("no network namespaces with veths here (needs ip, and root or user namespaces)");
  struct proc p = proc_start(fn, arg);
  proc_join(&p);
}

/* ---- makeVDevice --------------------------------------------------------- */

static int fuse(const struct kit_net *n, int *dev, int ndevs, const int *devs) {
  struct rail_net_vprops_v12 props = {.ndevs = ndevs};
  for (int i = 0; i < ndevs && i < 8; i++) props.devs[i] = devs[i];
  return n->vt->make_vdevice(dev, &props);
}

static int device_count(const struct kit_net *n) {
  int count = -1;
  ENSURE_INT(n->vt->devices(&count), 0);
  return count;
}

static struct rail_net_props_v12 props_of(const struct kit_net *n, int dev) {
  struct rail_net_props_v12 props;
  memset(&props, 0xa5, sizeof props);
  ENSURE_INT(n->vt->get_properties(dev, &props), 0);
  return props;
}

static void same_text(const char *a, const char *b) {
  ENSURE(strcmp(a, b) == 0, "'%s', expected '%s'", a, b);
}

static void child_fuse(struct pipes *io, void *arg) {
  struct kit_net n;
  int version = *(int *)arg, dev = -1, again = -1;
  (void)io;
  ENSURE(make_faces(), "no interfaces");
  setenv("NCCL_SOCKET_IFNAME", ALL_FACES, 1);
  kit_net_open_version(&n, version);
  ENSURE_INT(n.ndev, FACES);
  struct rail_net_props_v12 first = props_of(&n, 0), second = props_of(&n, 1);
  ENSURE_INT(fuse(&n, &dev, 2, (int[]){1, 0}), 0);
  ENSURE_INT(dev, FACES);
  ENSURE_INT(device_count(&n), FACES + 1);
  struct rail_net_props_v12 p = props_of(&n, dev);
  same_text(p.name, "rv0+rv1");
  ENSURE_INT(p.speed, first.speed + second.speed);
  ENSURE(p.guid && p.guid != first.guid && p.guid != second.guid, "guid %llx", (unsigned long long)p.guid);
  ENSURE(!p.pci_path, "a veth has no path, but '%s'", p.pci_path);
  ENSURE(p.vprops.ndevs == 2 && p.vprops.devs[0] == 0 && p.vprops.devs[1] == 1, "other members");
  ENSURE_INT(props_of(&n, 0).vprops.ndevs, 1);
  /* The same set is the same device, whatever the order. */
  ENSURE_INT(fuse(&n, &again, 2, (int[]){0, 1}), 0);
  ENSURE_INT(again, dev);
  ENSURE_INT(device_count(&n), FACES + 1);
  /* What is fused may be fused. */
  ENSURE_INT(fuse(&n, &again, 2, (int[]){3, dev}), 0);
  ENSURE_INT(again, FACES + 1);
  p = props_of(&n, again);
  same_text(p.name, "rv0+rv1+rv3");
  ENSURE(p.vprops.ndevs == 3 && p.vprops.devs[2] == 3, "other members");
  ENSURE(p.guid != props_of(&n, dev).guid, "one guid for two sets");
  ENSURE_INT(fuse(&n, &again, 4, (int[]){0, 1, 2, 3}), 0);
  same_text(props_of(&n, again).name, "rv0+rv1+rv2+rv3");
  ENSURE_INT(device_count(&n), FACES + 3);
  same_text(props_of(&n, dev).name, "rv0+rv1"); /* nothing moved */
  kit_net_close(&n);
}

TEST(fusing) {
  for (int version = 9; version <= 12; version++) in_network(child_fuse, &version);
}

static void child_refusals(struct pipes *io, void *arg) {
  struct kit_net n;
  int dev = -1, fused = -1;
  (void)io, (void)arg;
  ENSURE(make_faces(), "no interfaces");
  setenv("NCCL_SOCKET_IFNAME", ALL_FACES, 1);
  kit_net_open(&n);
  ENSURE_INT(fuse(&n, &fused, 2, (int[]){0, 1}), 0);
  static const struct { int ndevs, devs[8]; } bad[] = {
    {0, {0}}, {1, {9}}, {-3, {0}}, {2, {0, 0}}, {2, {5, 1}}, {2, {0, 6}}, {2, {0, -1}}, {5, {0, 1, 2, 3, 4}},
    {4, {5, 2, 3, 4}}, {9, {0}}, {1 << 30, {0}}};
  for (size_t i = 0; i < RAIL_COUNT_OF(bad); i++) {
    int before = kit_net_warnings();
    ENSURE_INT(fuse(&n, &dev, bad[i].ndevs, bad[i].devs), RAIL_BAD_ARGUMENT);
    ENSURE(kit_net_warnings() == before + 1, "set %zu is refused with %d lines", i, kit_net_warnings() - before);
  }
  ENSURE(n.vt->make_vdevice(NULL, NULL) == RAIL_BAD_ARGUMENT, "NULL");
  ENSURE_INT(device_count(&n), FACES + 1);
  kit_net_close(&n);
}

TEST(sets_that_cannot_be) { in_network(child_refusals, NULL); }

/* NCCL asks for this by default; a refusal is what it can go on after, but for ncclInvalidUsage. */
static void child_no_pci(struct pipes *io, void *arg) {
  struct kit_net n;
  int version = *(int *)arg, dev = -1;
  (void)io;
  ENSURE(make_faces(), "no interfaces");
  unsetenv("RAIL_NET_FUSE_NO_PCI");
  setenv("NCCL_SOCKET_IFNAME", ALL_FACES, 1);
  kit_net_open_version(&n, version);
  int before = kit_net_warnings();
  ENSURE_INT(fuse(&n, &dev, 2, (int[]){0, 1}), RAIL_BAD_ARGUMENT);
  ENSURE_INT(fuse(&n, &dev, 4, (int[]){4, 1, 2, 3}), RAIL_BAD_ARGUMENT);
  ENSURE_INT(kit_net_warnings() - before, 2);
  ENSURE_INT(dev, -1);
  ENSURE_INT(device_count(&n), FACES);
  kit_net_close(&n);
}

TEST(interfaces_without_a_pci_path) {
  for (int version = 9; version <= 12; version++) in_network(child_no_pci, &version);
}

/* NCCL 2.24 to 2.26 ask for a device of its own for each that they do not merge. */
static void child_alone(struct pipes *io, void *arg) {
  struct kit_net n;
  int version = *(int *)arg, dev = -1, again = -1;
  (void)io;
  ENSURE(make_faces(), "no interfaces");
  unsetenv("RAIL_NET_FUSE_NO_PCI");
  setenv("NCCL_SOCKET_IFNAME", ALL_FACES, 1);
  kit_net_open_version(&n, version);
  for (int face = 0; face < FACES; face++) {
    ENSURE_INT(fuse(&n, &dev, 1, (int[]){face}), 0);
    ENSURE_INT(dev, FACES + face);
    ENSURE_INT(device_count(&n), FACES + face + 1);
    struct rail_net_props_v12 p = props_of(&n, dev), q = props_of(&n, face);
    same_text(p.name, q.name);
    ENSURE(p.vprops.ndevs == 1 && p.vprops.devs[0] == face, "other members");
    ENSURE(p.guid == q.guid && p.speed == q.speed && p.port == q.port, "the device is another one");
    ENSURE_INT(fuse(&n, &again, 1, (int[]){face}), 0);
    ENSURE_INT(again, dev);
  }
  ENSURE_INT(fuse(&n, &dev, 1, (int[]){FACES}), 0);
  ENSURE_INT(dev, FACES);
  kit_net_close(&n);
  /* NCCL up to 2.27 unloads the plugin, and counts on what it has made. */
  kit_net_open_version(&n, version);
  ENSURE_INT(n.ndev, version <= 10 ? 2 * FACES : FACES);
  kit_net_close(&n);
}

TEST(one_device_alone) {
  for (int version = 9; version <= 12; version++) in_network(child_alone, &version);
}

/* ---- many threads --------------------------------------------------------- */

struct fuser { struct kit_net *net; int seed, dev[6]; };

static void fuse_all_sets(void *arg) {
  static const int sets[6][2] = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
  struct fuser *f = arg;
  for (int i = 0; i < 60; i++) {
    int k = (i * 5 + f->seed) % 6, dev = -1;
    ENSURE_INT(fuse(f->net, &dev, 2, sets[k]), 0);
    ENSURE(i < 6 || f->dev[k] == dev, "one set is devices %d and %d", f->dev[k], dev);
    f->dev[k] = dev;
    struct rail_net_props_v12 p = props_of(f->net, dev);
    ENSURE(p.vprops.devs[0] == sets[k][0] && p.vprops.devs[1] == sets[k][1], "device %d has other members", dev);
    ENSURE(dev < device_count(f->net), "device %d is beyond the count", dev);
  }
}

static void child_threads(struct pipes *io, void *arg) {
  struct kit_net n;
  struct fuser f[8];
  (void)io, (void)arg;
  ENSURE(make_faces(), "no interfaces");
  setenv("NCCL_SOCKET_IFNAME", ALL_FACES, 1);
  kit_net_open(&n);
  for (int i = 0; i < 8; i++) f[i] = (struct fuser){.net = &n, .seed = i};
  kit_run_threads(8, fuse_all_sets, f, sizeof f[0]);
  for (int i = 1; i < 8; i++) ENSURE(memcmp(f[i].dev, f[0].dev, sizeof f[0].dev) == 0, "threads disagree");
  ENSURE_INT(device_count(&n), FACES + 6);
  kit_net_close(&n);
}

TEST(fused_by_many_threads) { in_network(child_threads, NULL); }

/* ---- messages over it ------------------------------------------------------ */

static void child_messages(struct pipes *io, void *arg) {
  static struct kit_tcp_socket sockets[256];
  struct kit_net n;
  struct kit_pair p;
  int per_face[FACES] = {0};
  (void)io, (void)arg;
  ENSURE(make_faces(), "no interfaces");
  setenv("NCCL_SOCKET_IFNAME", ALL_FACES, 1);
  setenv("RAIL_SOCKET_STREAMS", "2", 1);
  kit_net_open(&n);
  ENSURE_INT(fuse(&n, &n.dev, 3, (int[]){0, 2, 4}), 0);
  kit_pair_open(&n, &p);
  for (int i = 0; i < 8; i++) kit_pair_ping(&p, (size_t)i * 700001, (uint64_t)i);
  int count = kit_tcp_sockets(sockets, 256);
  for (int i = 0; i < count; i++)
    if (sockets[i].connected)
      per_face[ntohl(((struct sockaddr_in *)&sockets[i].local)->sin_addr.s_addr) >> 8 & 0xff]++;
  for (int i = 0; i < FACES; i++) ENSURE(per_face[i] == (i % 2 ? 0 : 4), "rv%d has %d ends", i, per_face[i]);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(messages_over_three_rails) { in_network(child_messages, NULL); }

/* ---- RAIL_SOCKET_FUSE ------------------------------------------------------ */

struct list { const char *fuse; int count, warnings; const char *names[FACES]; };

static void child_list(struct pipes *io, void *arg) {
  const struct list *l = arg;
  struct kit_net n;
  struct kit_pair p;
  (void)io;
  ENSURE(make_faces(), "no interfaces");
  setenv("NCCL_SOCKET_IFNAME", ALL_FACES, 1);
  setenv("RAIL_SOCKET_FUSE", l->fuse, 1);
  kit_net_open_version(&n, 6); /* which knows nothing of fused devices */
  ENSURE_INT(n.ndev, l->count);
  ENSURE(kit_net_warnings() >= l->warnings, "%d lines for '%s'", kit_net_warnings(), l->fuse);
  for (int i = 0; i < l->count; i++) {
    struct rail_net_props_v12 q = props_of(&n, i);
    same_text(q.name, l->names[i]);
    int rails = 1;
    for (const char *c = q.name; *c; c++) rails += *c == '+';
    ENSURE_INT(q.speed, rails * 10000);
  }
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 3000000, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
}

TEST(fused_from_the_start) {
  struct list lists[] = {
    {"all", 2, 0, {"rv0+rv1+rv2+rv3", "rv4"}},
    {"rv1+rv3", 4, 0, {"rv0", "rv1+rv3", "rv2", "rv4"}},
    {"rv4+rv0,rv3+rv1", 3, 0, {"rv0+rv4", "rv1+rv3", "rv2"}},
    {"rv0+rv9,rv1+rv2", 4, 1, {"rv0", "rv1+rv2", "rv3", "rv4"}},
    {"rv0+rv1,rv1+rv2", 4, 1, {"rv0+rv1", "rv2", "rv3", "rv4"}},
    {"rv0+rv0,rv1,,rv2+", 5, 3, {"rv0", "rv1", "rv2", "rv3", "rv4"}},
    {"rv0+rv1+rv2+rv3+rv4", 5, 1, {"rv0", "rv1", "rv2", "rv3", "rv4"}}};
  for (size_t i = 0; i < RAIL_COUNT_OF(lists); i++) in_network(child_list, &lists[i]);
}

/* With a fused device in the list, makeVDevice counts its interfaces. */
static void child_both(struct pipes *io, void *arg) {
  struct kit_net n;
  int dev;
  (void)io, (void)arg;
  ENSURE(make_faces(), "no interfaces");
  setenv("NCCL_SOCKET_IFNAME", ALL_FACES, 1);
  setenv("RAIL_SOCKET_FUSE", "rv0+rv1+rv2", 1);
  kit_net_open(&n);
  ENSURE_INT(n.ndev, 3);
  struct rail_net_props_v12 p = props_of(&n, 0);
  ENSURE(p.vprops.ndevs == 1 && p.vprops.devs[0] == 0, "a device of the list is its own member");
  ENSURE_INT(fuse(&n, &dev, 2, (int[]){0, 1}), 0);
  p = props_of(&n, dev);
  same_text(p.name, "rv0+rv1+rv2+rv3");
  ENSURE(p.vprops.ndevs == 2 && p.vprops.devs[1] == 1, "other members");
  ENSURE_INT(fuse(&n, &dev, 3, (int[]){0, 1, 2}), RAIL_BAD_ARGUMENT);
  kit_net_close(&n);
}

TEST(fused_twice) { in_network(child_both, NULL); }

/* ---- two machines ----------------------------------------------------------- */

/* Two namespaces, rv0 and rv1 of one joined to those of the other. Routes here
 * lead everything over rv0: only a stream tied to its interface keeps to rv1. */
static void far_side(struct pipes *io, void *arg) {
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE], ready = 1;
  (void)arg;
  ENSURE(own_network(), "no network for the far side");
  pipe_write(io, &ready, 1);
  pipe_read(io, &ready, 1); /* the interfaces are here */
  for (int i = 0; i < 2; i++)
    ENSURE(shell("ip link set pv%d name rv%d && ip addr add 198.18.%d.2/24 dev rv%d && ip link set rv%d up", i, i, i, i,
                 i), "no interface");
  ENSURE(shell("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.rv0.rp_filter=0 net.ipv4.conf.rv1.rp_filter=0"),
         "sysctl");
  ENSURE(runs(0) && runs(1), "the links do not come up");
  kit_net_open(&n);
  void *listen = kit_net_listen(&n, handle);
  pipe_write(io, handle, sizeof handle);
  void *recv = kit_net_accept(&n, listen);
  static uint8_t data[4000000];
  struct kit_op op = kit_op_recv(recv, data, sizeof data, 1);
  kit_op_finish(&n, &op);
  ENSURE(kit_pattern_check(data, sizeof data, 3) < 0, "other bytes came");
  pipe_write(io, &ready, 1);
  pipe_read(io, &ready, 1);
  ENSURE_INT(n.vt->close_recv(recv), 0);
  ENSURE_INT(n.vt->close_listen(listen), 0);
  kit_net_close(&n);
}

static long long sent_by(const char *face) {
  char line[512];
  long long bytes = -1;
  FILE *f = fopen("/proc/self/net/dev", "re");
  ENSURE(f, "no /proc/self/net/dev");
  while (fgets(line, sizeof line, f)) {
    char *colon = strchr(line, ':');
    char *name = line + strspn(line, " ");
    if (!colon || strncmp(name, face, strlen(face)) != 0 || name + strlen(face) != colon) continue;
    sscanf(colon + 1, "%*d %*d %*d %*d %*d %*d %*d %*d %lld", &bytes);
  }
  fclose(f);
  ENSURE(bytes >= 0, "no %s", face);
  return bytes;
}

static void near_side(struct pipes *io, void *arg) {
  static uint8_t data[4000000];
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE], ready;
  (void)io, (void)arg;
  ENSURE(own_network(), "no network for the near side");
  for (int i = 0; i < 2; i++)
    ENSURE(shell("ip link add rv%d type veth peer name pv%d && ip addr add 198.18.%d.1/24 dev rv%d && "
                 "ip link set rv%d up", i, i, i, i, i), "no interface");
  setenv("NCCL_SOCKET_IFNAME", "=rv0,rv1", 1);
  setenv("RAIL_SOCKET_FUSE", "all", 1);
  struct proc far = proc_start(far_side, NULL);
  pipe_read(&far.io, &ready, 1);
  ENSURE(shell("ip link set pv0 netns %d && ip link set pv1 netns %d", (int)far.pid, (int)far.pid), "no far ends");
  ENSURE(shell("ip route add 198.18.1.2/32 via 198.18.0.2 dev rv0"), "no route");
  pipe_write(&far.io, &ready, 1);
  pipe_read(&far.io, handle, sizeof handle);
  ENSURE(runs(0) && runs(1), "the links do not come up");
  kit_net_open(&n);
  void *send = kit_net_connect(&n, handle);
  struct kit_op op = kit_op_send(send, data, sizeof data, 1);
  kit_pattern_fill(data, sizeof data, 3);
  kit_op_finish(&n, &op);
  pipe_read(&far.io, &ready, 1);
  long long first = sent_by("rv0"), second = sent_by("rv1");
  printf("# %lld bytes over the first rail, %lld over the second\n", first, second);
  ENSURE(second > 100000, "%lld bytes over the second rail: routing has led it over the first", second);
  pipe_write(&far.io, &ready, 1);
  ENSURE_INT(n.vt->close_send(send), 0);
  kit_net_close(&n);
  proc_join(&far);
}

TEST(each_stream_keeps_to_its_rail) { in_network(near_side, NULL); }

TEST_MAIN(TEST_CASE(fusing), TEST_CASE(sets_that_cannot_be), TEST_CASE(interfaces_without_a_pci_path),
          TEST_CASE(one_device_alone),
          TEST_CASE(fused_by_many_threads),
          TEST_CASE(messages_over_three_rails), TEST_CASE(fused_from_the_start), TEST_CASE(fused_twice),
          TEST_CASE(each_stream_keeps_to_its_rail))
