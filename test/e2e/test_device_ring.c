/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 120
 * TEST-SAN: asan tsan
 *
 * Proves: a communicator's rings go from host to host once, and past neighbouring GPUs, whatever the ranks' numbers;
 * rank 0 says how; collectives give what they must all the same, on host buffers and on a device's.
 */
#include <sys/mman.h>

#include "test/device/gpu/check.h"
#include "test/harness/pci_tree.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 60000
#define BYTES (64u * 1024)
enum { MOST = 6, COUNT = 1001 };

struct expected { const char *line; };

/* The one line that is looked for in what rank 0 logs. */
static int log_to_file(void) {
  int fd = memfd_create("log", 0);
  ENSURE(fd >= 0 && dup2(fd, 2) == 2, "no file for the log");
  setenv("NCCL_DEBUG", "INFO", 1);
  return fd;
}

static void must_have_said(int fd, const char *line) {
  static char text[1 << 17];
  ssize_t n = pread(fd, text, sizeof text - 1, 0);
  ENSURE(n > 0 && strstr(text, line), "the log has no \"%s\"", line);
}

static void is(int32_t got, int32_t expected, const char *call, int i) {
  ENSURE(got == expected, "%s: element %d is %d, expected %d", call, i, got, expected);
}

/* Checked against values computed by hand: rank r's element i is (r + 1) * (i + 1). */
static void on_the_host(ncclComm_t comm, int rank, int n) {
  static int32_t in[MOST * COUNT], out[MOST * COUNT];
  int sum = n * (n + 1) / 2;
  for (int i = 0; i < n * COUNT; i++) in[i] = (rank + 1) * (i + 1);
  OK(ncclAllReduce(in, out, COUNT, ncclInt32, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  for (int i = 0; i < COUNT; i++) is(out[i], sum * (i + 1), "AllReduce", i);
  OK(ncclReduceScatter(in, out, COUNT, ncclInt32, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  for (int i = 0; i < COUNT; i++) is(out[i], sum * (rank * COUNT + i + 1), "ReduceScatter", i);
  OK(ncclAllGather(in, out, COUNT, ncclInt32, comm, NULL));
  OK(railCommWait(comm));
  for (int i = 0; i < n * COUNT; i++) is(out[i], (i / COUNT + 1) * (i % COUNT + 1), "AllGather", i);
  for (int root = 0; root < n; root++) {
    OK(ncclBroadcast(in, out, COUNT, ncclInt32, root, comm, NULL));
    OK(railCommWait(comm));
    for (int i = 0; i < COUNT; i++) is(out[i], (root + 1) * (i + 1), "Broadcast", i);
    memset(out, 0, sizeof out);
    OK(ncclReduce(in, out, COUNT, ncclInt32, ncclSum, root, comm, NULL));
    OK(railCommWait(comm));
    for (int i = 0; i < COUNT; i++) is(out[i], rank == root ? sum * (i + 1) : 0, "Reduce", i);
  }
}

/* gpu_check judges by what came out on the host. */
static void on_the_device(ncclComm_t comm, int n) {
  struct gpu_buffers b = gpu_buffers_new(BYTES);
  void *stream = gpu_stream();
  for (int coll = 0; coll < C_COUNT; coll++) {
    struct gpu_call c = {.coll = coll, .root = coll % n, .type = ncclInt32, .op = ncclSum, .count = COUNT};
    gpu_check(&c, &b, comm, stream, (unsigned)coll);
  }
  gpu_buffers_free(&b);
  GPU(gpu.cuStreamSynchronize(stream));
  GPU(gpu.cuStreamDestroy_v2(stream));
}

/* More blocks than the devices have room for, did each call take all channels; so each has one. */
#define AT_ONCE 33
#define LARGE (64u << 10) /* elements */
static void a_large_group(ncclComm_t comm, int n) {
  struct gpu_buffers b = gpu_buffers_new((size_t)AT_ONCE * LARGE * sizeof(int32_t));
  void *stream = gpu_stream();
  int32_t *in = (int32_t *)(void *)b.host_send, *out = (int32_t *)(void *)b.got;
  for (int i = 0; i < AT_ONCE * (int)LARGE; i++) in[i] = i;
  gpu_put(b.send, in, b.size);
  OK(ncclGroupStart());
  for (size_t at = 0; at < b.size; at += LARGE * sizeof *in)
    OK(ncclAllReduce(b.send + at, b.recv + at, LARGE, ncclInt32, ncclSum, comm, stream));
  OK(ncclGroupEnd());
  GPU(gpu.cuStreamSynchronize(stream));
  gpu_get(out, b.recv, b.size);
  for (int i = 0; i < AT_ONCE * (int)LARGE; i++) ENSURE(out[i] == n * i, "element %d is %d", i, (int)out[i]);
  gpu_buffers_free(&b);
  GPU(gpu.cuStreamDestroy_v2(stream));
}

/* Every rank has a device of its own. */
static void use(const struct rank *rank, void *arg) {
  const struct expected *e = arg;
  void *context;
  int log = rank->rank == 0 ? log_to_file() : -1;
  gpu_open();
  GPU(gpu.cuDevicePrimaryCtxRetain(&context, gpu.calls ? rank->rank : 0));
  GPU(gpu.cuCtxSetCurrent(context));
  ncclComm_t comm = open_comm(rank);
  ncclComm_t on_host;
  OK(ncclCommSplit(comm, 0, rank->rank, &on_host, NULL));
  on_the_host(on_host, rank->rank, rank->nranks);
  OK(ncclCommDestroy(on_host));
  on_the_device(comm, rank->nranks);
  if (!getenv("RAIL_NCHANNELS")) a_large_group(comm, rank->nranks); /* a number that is given is taken as it is */
  close_comm(comm);
  gpu_nothing_left();
  if (log >= 0 && e->line) must_have_said(log, e->line);
}

static void in_turns_on_two_hosts(const struct rank *rank, void *arg) {
  setenv("NCCL_HOSTID", rank->rank % 2 ? "odd" : "even", 1);
  use(rank, arg);
}

static void run(const char *env, int n, rank_fn body, const char *line) {
  struct expected e = {line};
  job_run(env, n, kit_patience_ms(TIMEOUT_MS), body, &e);
}

TEST(nothing_is_known) { run("GHOST_DEVICES=6", 4, use, "Channel 01/02 : 0 1 2 3\n"); }
TEST(two_hosts) { run("GHOST_DEVICES=6", 5, in_turns_on_two_hosts, "Channel 00/01 : 0 2 4 1 3\n"); }
TEST(two_channels) {
  run("GHOST_DEVICES=6 RAIL_NCHANNELS=2", 4, in_turns_on_two_hosts, "Channel 01/02 : 0 2 1 3\n");
}
TEST(over_a_network) {
  run("GHOST_DEVICES=6 NCCL_SHM_DISABLE=1", 4, in_turns_on_two_hosts, "Channel 00/01 : 0 2 1 3\n");
}

/* GPUs in turns at two processors. It is known that nobody shares one, so there is more room than
 * where nothing is known. */
TEST(two_processors) {
  char root[PCI_TREE_PATH], path[PCI_TREE_PATH], place[64];
  pci_tree_open(root);
  for (int d = 0; d < 4; d++) {
    snprintf(place, sizeof place, "pciffff:%02x/ffff:f%d:0%d.0/ffff:%02x:00.0", 0x40 * (d % 2), d % 2, d, d);
    pci_tree_add(root, place, d % 2, path);
  }
  setenv("RAIL_SYSFS", root, 1);
  run("GHOST_DEVICES=6", 4, use, "Channel 07/08 : 0 1 3 2\n");
  unsetenv("RAIL_SYSFS");
  pci_tree_close(root);
}

TEST_MAIN(TEST_CASE(nothing_is_known), TEST_CASE(two_hosts), TEST_CASE(two_channels), TEST_CASE(over_a_network),
          TEST_CASE(two_processors))
