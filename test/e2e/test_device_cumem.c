/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 120
 * TEST-SAN: asan
 *
 * Proves: ranks of several processes get at each other's GPU memory by the best way that both have: fabric handles,
 * file descriptors, CUDA IPC; where a way fails the next one is taken, and in the end memory of the host, with a line
 * that says why; nothing is left, neither memory nor descriptors, after a refusal, a death, or an uninvited message.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "test/device/gpu/side.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 60000
#define FABRIC "cuMem fabric handles"
#define FD "cuMem file descriptors"
#define IPC "CUDA IPC"
#define FABRIC_ENV "GHOST_ATTRIBUTES=128:1 "

struct expected {
  const char *transports, *way;
  const char *fail, *words; /* of rank 1: its calls that fail; what it says of it */
};

static void is_said(const char *text, const char *words, const char *what) {
  ENSURE(strstr(text, words), "no line has \"%s\" (%s): %s", words, what, text);
}

/* Each rank has a device of its own, if there are several. */
static void use_device(const struct rank *rank) {
  const char *devices = getenv("GHOST_DEVICES");
  void *context;
  GPU(gpu.cuDevicePrimaryCtxRetain(&context, devices ? rank->rank % atoi(devices) : 0));
  GPU(gpu.cuCtxSetCurrent(context));
}

/* The sums are right, the memory was come by as expected, and nothing is left of it. */
static void work(const struct rank *rank, void *arg) {
  const struct expected *e = arg;
  char way[64], text[64 * 1024] = "";
  struct side s;
  int kept, log;
  gpu_open();
  use_device(rank);
  int fds = kit_fd_count();
  setenv("NCCL_DEBUG", "INFO", 1);
  if (rank->rank == 1 && e->fail) setenv("GHOST_FAIL", e->fail, 1);
  log = catch_stderr(&kept);
  side_open(&s, open_comm(rank));
  for (int i = 0; i < 3; i++) sum(&s, MANY);
  if (rank->rank == 1 || !e->fail) is_transport(&s, e->transports);
  close_comm(s.comm);
  side_free(&s);
  rank_barrier(rank);
  release_stderr(log, kept, text);
  snprintf(way, sizeof way, ": %s", e->way ? e->way : "");
  if (rank->rank == 1 || !e->fail) is_said(text, way, "the way");
  if (rank->rank == 1 && e->words) is_said(text, e->words, "the reason");
  gpu_nothing_left();
  rank_back_to(fds, kit_thread_count(), "the communicator");
}

static void by(const char *env, int n, const struct expected *e) {
  char all[256];
  snprintf(all, sizeof all, SMALL "NCCL_DEBUG=NONE RAIL_NCHANNELS=1 %s", env); /* areas are counted */
  job_run(all, n, kit_patience_ms(TIMEOUT_MS), work, (void *)(uintptr_t)e);
}

TEST(file_descriptors) { by("", 3, &(struct expected){"P2P", FD, NULL, NULL}); }
TEST(fabric_handles) {
  by(FABRIC_ENV, 3, &(struct expected){"P2P", FABRIC, NULL, NULL});
  by("GHOST_ATTRIBUTES=128:1,103:0", 2, &(struct expected){"P2P", FABRIC, NULL, NULL});
}
TEST(cuda_ipc_where_memory_is_not_mapped) {
  static const char *const env[] = {"NCCL_CUMEM_ENABLE=0", "GHOST_ATTRIBUTES=102:0", "GHOST_ATTRIBUTES=103:0",
                                    "GHOST_VERSION=11080", "NCCL_CUMEM_ENABLE=%h"};
  for (size_t i = 0; i < sizeof env / sizeof *env; i++) by(env[i], 2, &(struct expected){"P2P", IPC, NULL, NULL});
}
TEST(an_old_driver_may_be_asked_all_the_same) {
  by("GHOST_VERSION=11080 NCCL_CUMEM_ENABLE=1", 2, &(struct expected){"P2P", FD, NULL, NULL});
}
TEST(several_devices) {
  by("GHOST_DEVICES=2 NCCL_P2P_READ_ENABLE=1 RAIL_NCHANNELS=2", 2, &(struct expected){"P2P", FD, NULL, NULL});
}

/* ---- what fails is done otherwise ---- */

TEST(the_owner_takes_the_next_way) {
  static const struct expected all[] = {
      {"P2P", IPC, "cuMemCreate:1", FD ": cuMemCreate"},
      {"P2P", IPC, "cuMemExportToShareableHandle:1", FD ": cuMemExportToShareableHandle"},
      {"P2P", IPC, "cuMemsetD8Async:1", FD ": cuMemsetD8Async"},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) by("", 2, &all[i]);
  by(FABRIC_ENV, 2, &(struct expected){"P2P", FD, "cuMemCreate:2", FABRIC ": cuMemCreate"});
  by(FABRIC_ENV, 2, &(struct expected){"P2P", IPC, "cuMemCreate:2 cuMemCreate:3", FD ": cuMemCreate"});
}

/* Which is tried when the communicator is made: the other rank must know. */
TEST(a_fabric_that_is_not_there) {
  static const char *const calls[] = {"cuMemCreate:1", "cuMemExportToShareableHandle:1",
                                      "cuMemImportFromShareableHandle:1"};
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
    by(FABRIC_ENV, 2, &(struct expected){"P2P", FD, calls[i], "has no fabric: cuMem"});
}

/* It uses the host's memory towards the other rank. Which of its calls is the owner's, and which the importer's, is
 * chance: both fail. */
TEST(the_importer_cannot) {
  static const struct expected all[] = {
      {"P2P+SHM", FD, "cuMemImportFromShareableHandle:1", "use shared memory of the host on channel 0: cuMemImport"},
      {"P2P+SHM", IPC, "cuMemGetAllocationGranularity:1 cuMemGetAllocationGranularity:2",
       "use shared memory of the host on channel 0: cuMemGetAllocationGranularity"},
      {"P2P+SHM", IPC, "cuMemAddressReserve:1 cuMemAddressReserve:2",
       "use shared memory of the host on channel 0: cuMemAddressReserve"},
      {"P2P+SHM", IPC, "cuMemMap:1 cuMemMap:2", "use shared memory of the host on channel 0: cuMemMap"},
      {"P2P+SHM", IPC, "cuMemSetAccess:1 cuMemSetAccess:2",
       "use shared memory of the host on channel 0: cuMemSetAccess"},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) by("", 2, &all[i]);
}

TEST(a_device_that_is_too_far) { /* an unclaimed descriptor is closed */
  static const struct expected e = {"SHM", NULL, NULL, "use shared memory of the host"};
  by("GHOST_DEVICES=2 GHOST_PEERS=none", 2, &e);
}

TEST(no_way_is_left) {
  by("", 2, &(struct expected){"P2P+SHM", FD, "cuMemCreate:1 cuMemAlloc_v2:2",
                               "use shared memory of the host on channel 0: cuMemAlloc"});
}

/* ---- an importer that no descriptor reaches ---- */

/* From a network of its own, an abstract name leads nowhere. */
static void in_its_own_network(const struct rank *rank, void *arg) {
  char text[64 * 1024] = "";
  struct side s;
  int kept, log;
  (void)arg;
  gpu_open();
  setenv("NCCL_DEBUG", "INFO", 1);
  log = catch_stderr(&kept);
  side_open(&s, open_comm(rank));
  for (int to = 0; to < 2; to++) { /* makes the bootstrap's connections, and those of channel 0 without device memory */
    if (rank->rank == to) OK(ncclRecv(NULL, 0, ncclInt32, 1 - to, s.comm, s.stream));
    if (rank->rank != to) OK(ncclSend(NULL, 0, ncclInt32, to, s.comm, s.stream));
  }
  OK(railCommWait(s.comm));
  if (rank->rank == 1) ENSURE(unshare(CLONE_NEWNET) == 0, "unshare: %s", strerror(errno));
  for (int i = 0; i < 3; i++) {
    sum(&s, MANY);
    rank_barrier(rank);
  }
  is_transport(&s, "P2P+SHM");
  close_comm(s.comm);
  side_free(&s);
  release_stderr(log, kept, text);
  if (rank->rank == 1) is_said(text, FD ": process", "the socket");
  is_said(text, ": " IPC, "the way instead");
  rank_barrier(rank);
  gpu_nothing_left();
}
TEST(networks_of_their_own) {
  if (geteuid() != 0) tap_skip_case("only root can have another network");
  job_run(SMALL "NCCL_DEBUG=NONE RAIL_NCHANNELS=2", 2, kit_patience_ms(TIMEOUT_MS), in_its_own_network, NULL);
}

/* ---- other senders ---- */

static void throw_at(const char *name, size_t bytes, bool with_fd) {
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  union { struct cmsghdr align; char bytes[CMSG_SPACE(sizeof(int))]; } control = {.bytes = {0}};
  char data[64] = "what no key is, or only by chance";
  struct iovec iov = {data, bytes};
  struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  int n = snprintf(&a.sun_path[1], sizeof a.sun_path - 1, "%s", name);
  if (with_fd) {
    m.msg_control = &control;
    m.msg_controllen = sizeof control;
    *CMSG_FIRSTHDR(&m) = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS,
                                          .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof fd);
  }
  const socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
  if (connect(fd, (const struct sockaddr *)&a, size) == 0) (void)sendmsg(fd, &m, MSG_NOSIGNAL);
  close(fd);
}

/* At every receiver of this host; those of other tests stand it as well. */
static int disturb(void) {
  static char line[512], name[256];
  FILE *f = fopen("/proc/net/unix", "re");
  int found = 0;
  while (f && fgets(line, sizeof line, f)) {
    const char *at = strstr(line, "@railyard-");
    if (!at || sscanf(at + 1, "%255s", name) != 1) continue;
    throw_at(name, 16, true);
    throw_at(name, 16, false);
    throw_at(name, 7, true);
    throw_at(name, 40, true);
    found++;
  }
  if (f) fclose(f);
  return found;
}

static void disturbed(const struct rank *rank, void *arg) {
  struct side s;
  (void)arg;
  gpu_open();
  int fds = kit_fd_count();
  side_open(&s, open_comm(rank));
  ENSURE(disturb() >= rank->nranks, "the ranks have no receivers");
  rank_barrier(rank);
  sum(&s, MANY);
  is_transport(&s, "P2P");
  ENSURE(gpu.calls("cuMemImportFromShareableHandle") > 0, "no descriptor came");
  disturb();
  close_comm(s.comm);
  side_free(&s);
  rank_barrier(rank);
  gpu_nothing_left();
  rank_back_to(fds, kit_thread_count(), "the communicator");
}
TEST(other_senders_are_refused) { job_run(SMALL "NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), disturbed, NULL); }

/* ---- how ranks end ---- */

static void *die_soon(void *arg) {
  usleep(300000);
  raise(SIGKILL);
  return arg;
}

/* Rank 1 has exported its memory, and waits for rank 0's part of the connection when it dies. */
static void exported_only(const struct rank *rank, void *arg) {
  struct side s;
  pthread_t thread;
  (void)arg;
  gpu_open();
  int fds = kit_fd_count();
  side_open(&s, open_comm(rank));
  rank_barrier(rank);
  if (rank->rank == 1) {
    ENSURE(pthread_create(&thread, NULL, die_soon, NULL) == 0, "no thread");
    (void)ncclAllReduce(s.device, s.device, MANY, ncclInt32, ncclSum, s.comm, s.stream);
    pause();
  }
  usleep(600000);
  ENSURE(gpu.calls("cuMemImportFromShareableHandle") <= 1, "it was imported: this proves nothing"); /* fabric: own */
  OK(ncclCommAbort(s.comm));
  side_free(&s);
  gpu_nothing_left();
  rank_back_to(fds, kit_thread_count(), "the communicator");
}
TEST(a_rank_dies_between_export_and_import) {
  job_end(job_start(SMALL "NCCL_DEBUG=NONE", 2, exported_only, NULL), kit_patience_ms(TIMEOUT_MS), 1u << 1);
  job_end(job_start(SMALL FABRIC_ENV "NCCL_DEBUG=NONE", 2, exported_only, NULL), kit_patience_ms(TIMEOUT_MS), 1u << 1);
}

/* What another process has mapped need not be waited for: the driver keeps it. */
static void late(const struct rank *rank, void *arg) {
  struct side s;
  (void)arg;
  gpu_open();
  side_open(&s, open_comm(rank));
  sum(&s, MANY);
  rank_barrier(rank);
  if (rank->rank == 0) OK(ncclCommAbort(s.comm));
  if (rank->rank == 0) ENSURE(gpu.live("mapped") == 0, "the owner still has it mapped");
  rank_barrier(rank);
  if (rank->rank == 1) ENSURE(gpu.live("mapped") > 0, "the importer has it no more");
  if (rank->rank == 1) OK(ncclCommAbort(s.comm));
  side_free(&s);
  gpu_nothing_left();
}
TEST(memory_that_others_have_mapped_stays_with_them) {
  job_run(SMALL "NCCL_DEBUG=NONE", 2, kit_patience_ms(TIMEOUT_MS), late, NULL);
}

TEST_MAIN(TEST_CASE(file_descriptors), TEST_CASE(fabric_handles), TEST_CASE(cuda_ipc_where_memory_is_not_mapped),
          TEST_CASE(an_old_driver_may_be_asked_all_the_same), TEST_CASE(several_devices),
          TEST_CASE(the_owner_takes_the_next_way), TEST_CASE(a_fabric_that_is_not_there),
          TEST_CASE(the_importer_cannot), TEST_CASE(a_device_that_is_too_far), TEST_CASE(no_way_is_left),
          TEST_CASE(networks_of_their_own), TEST_CASE(other_senders_are_refused),
          TEST_CASE(a_rank_dies_between_export_and_import), TEST_CASE(memory_that_others_have_mapped_stays_with_them))
