/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 120
 * TEST-SAN: asan tsan
 *
 * Proves: with a plugin that takes GPU memory, what device buffers send and receive goes through slots there, and no
 * kernel sees a step before its flush is over; who needs no flush makes none; a plugin, a driver or a user that does
 * not want it gets slots in host memory; a flush that fails ends the communicator; nothing is left registered,
 * allocated or open. test/preload/gdrnet.c is the plugin.
 */
#include <dirent.h>

#include "common/base/clock.h"
#include "test/device/gpu/check.h"
#include "test/harness/pci_tree.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 60000
#define BYTES (64u * 1024)

/* What a rank is to find in the end. */
struct expected {
  bool cuda, dmabuf; /* this is how slots were registered; neither: they were not */
  bool sends;        /* through them, too */
  bool flushes;
};

static long (*gdr_count)(const char *name);

/* The plugin, around the build's own. Before the first call of the runtime. */
static void *plugin_open(void) {
  char path[RANKS_PATH];
  ENSURE(ranks_built("test/libgdrnet.so", path), "the build has no test/libgdrnet.so");
  setenv("GDRNET_INNER", ranks_plugin(), 1);
  setenv("NCCL_NET_PLUGIN", path, 1);
  void *library = dlopen(path, RTLD_NOW);
  ENSURE(library, "%s: %s", path, dlerror());
  *(void **)&gdr_count = gpu_symbol(library, "gdrnet_count");
  return library;
}

static int open_files(void) {
  DIR *dir = opendir("/proc/self/fd");
  int n = 0;
  while (dir && readdir(dir)) n++;
  if (dir) closedir(dir);
  return n;
}

static void collectives(ncclComm_t comm, void *stream) {
  static const size_t counts[] = {1, 4000};
  struct gpu_buffers b = gpu_buffers_new(BYTES);
  int n;
  OK(ncclCommCount(comm, &n));
  for (int coll = 0; coll < C_COUNT; coll++)
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
      struct gpu_call c = {.coll = coll, .root = (int)i % n, .type = ncclInt32, .op = ncclSum, .count = counts[i]};
      gpu_check(&c, &b, comm, stream, (unsigned)(coll * 10 + (int)i));
    }
  gpu_buffers_free(&b);
}

#define EXPECT(name, wanted) \
  ENSURE((gdr_count(name) > 0) == (wanted), "%s: %ld", name, gdr_count(name))

static void check_expected(const struct expected *e) {
  EXPECT("cuda", e->cuda);
  EXPECT("dmabuf", e->dmabuf);
  EXPECT("gpu receives", e->cuda || e->dmabuf);
  EXPECT("gpu sends", (e->cuda || e->dmabuf) && e->sends);
  EXPECT("flushes", e->flushes);
  ENSURE(!e->flushes || gdr_count("flushes") <= gdr_count("gpu receives"), "more flushes than receives");
  ENSURE(gdr_count("left") == 0, "%ld registrations are left", gdr_count("left"));
}

static void use(const struct rank *rank, void *arg) {
  gpu_open();
  void *library = plugin_open(), *stream = gpu_stream();
  for (int round = 0; round < 2; round++) {
    int files = open_files();
    ncclComm_t comm;
    OK(ncclCommInitRank(&comm, rank->nranks, make_id(rank, round), rank->rank));
    collectives(comm, stream);
    close_comm(comm);
    ENSURE(round == 0 || open_files() <= files, "%d files are left open", open_files() - files);
  }
  gpu_nothing_left();
  check_expected(arg);
  GPU(gpu.cuStreamDestroy_v2(stream));
  dlclose(library);
}

#define FAR "NCCL_SHM_DISABLE=1 NCCL_NET_GDR_LEVEL=SYS NCCL_BUFFSIZE=64K "
static void with(const char *env, int nranks, struct expected e) {
  job_run(env, nranks, kit_patience_ms(TIMEOUT_MS), use, &e);
}

TEST(peer_memory) {
  with(FAR "GDRNET_OFFERS=cuda", 3, (struct expected){.cuda = true, .sends = true, .flushes = true});
}
TEST(dma_buf) {
  with(FAR "GDRNET_OFFERS=dmabuf", 2, (struct expected){.dmabuf = true, .sends = true, .flushes = true});
}
TEST(proxy_thread_and_slow_flushes) {
  with(FAR "RAIL_PROXY=thread GDRNET_OFFERS=cuda GDRNET_FLUSH=300 RAIL_NCHANNELS=2", 2,
       (struct expected){.cuda = true, .sends = true, .flushes = true});
}
TEST(flushes_that_are_over_at_once) {
  with(FAR "GDRNET_OFFERS=cuda GDRNET_FLUSH=0", 2,
       (struct expected){.cuda = true, .sends = true, .flushes = true});
}
TEST(later_gpus_need_no_flush) {
  with(FAR "GDRNET_OFFERS=cuda GDRNET_KIND=1 GHOST_ATTRIBUTES=75:9", 2,
       (struct expected){.cuda = true, .sends = true});
}
TEST(unless_the_nic_asks_for_it) {
  with(FAR "GDRNET_OFFERS=cuda GDRNET_FORCE_FLUSH=1 GHOST_ATTRIBUTES=75:9", 2,
       (struct expected){.cuda = true, .sends = true, .flushes = true});
}
TEST(or_the_user) {
  with(FAR "GDRNET_OFFERS=cuda NCCL_NET_FORCE_FLUSH=1 GHOST_ATTRIBUTES=75:9", 2,
       (struct expected){.cuda = true, .sends = true, .flushes = true});
}
TEST(no_reading) {
  with(FAR "GDRNET_OFFERS=cuda NCCL_NET_GDR_READ=0", 2, (struct expected){.cuda = true, .flushes = true});
}

/* ---- not wanted, not possible ---- */

/* Without NCCL_NET_GDR_LEVEL: behind the GPU's switches, no farther. */
static void at(const char *nic, struct expected e) {
  char root[PCI_TREE_PATH], path[PCI_TREE_PATH];
  pci_tree_open(root);
  pci_tree_add(root, "pciffff:00/ffff:f0:01.0/ffff:f1:00.0/ffff:f2:00.0/ffff:00:00.0", 0, path); /* fake.h's GPU 0 */
  pci_tree_add(root, nic, 0, path);
  setenv("RAIL_SYSFS", root, 1);
  setenv("GDRNET_PCI_PATH", path, 1);
  with("NCCL_SHM_DISABLE=1 GDRNET_OFFERS=cuda", 2, e);
  unsetenv("RAIL_SYSFS");
  unsetenv("GDRNET_PCI_PATH");
  pci_tree_close(root);
}
TEST(near) {
  at("pciffff:00/ffff:f0:01.0/ffff:f1:00.0/ffff:f2:08.0/ffff:f7:00.0",
     (struct expected){.cuda = true, .sends = true, .flushes = true});
}
TEST(not_so_near) { at("pciffff:00/ffff:f0:02.0/ffff:f7:00.0", (struct expected){.cuda = false}); }
TEST(too_far) { with("NCCL_SHM_DISABLE=1 GDRNET_OFFERS=cuda", 2, (struct expected){.cuda = false}); }
TEST(refused) { with(FAR "GDRNET_OFFERS=cuda GDRNET_REFUSES=cuda", 2, (struct expected){.cuda = false}); }
TEST(one_way_refused_the_other_taken) {
  with(FAR "GDRNET_OFFERS=cuda,dmabuf GDRNET_REFUSES=dmabuf", 2,
       (struct expected){.cuda = true, .sends = true, .flushes = true});
}
TEST(no_dma_buf_from_the_driver) {
  with(FAR "GDRNET_OFFERS=dmabuf GHOST_ATTRIBUTES=124:0", 2, (struct expected){.cuda = false});
}
TEST(no_dma_buf_wanted) {
  with(FAR "GDRNET_OFFERS=cuda,dmabuf NCCL_DMABUF_ENABLE=0", 2,
       (struct expected){.cuda = true, .sends = true, .flushes = true});
}
/* The first end that asks stays with the host's slots, the others do not. */
TEST(no_device_memory_once) {
  with(FAR "GDRNET_OFFERS=cuda GHOST_FAIL=cuMemAlloc_v2:3", 2,
       (struct expected){.cuda = true, .sends = true, .flushes = true});
}
TEST(no_dma_buf_once) {
  with(FAR "GDRNET_OFFERS=dmabuf GHOST_FAIL=cuMemGetHandleForAddressRange:1", 2,
       (struct expected){.dmabuf = true, .sends = true, .flushes = true});
}

/* ---- the ends differ ---- */

static void half(const struct rank *rank, void *arg) {
  struct expected *both = arg;
  use(rank, &both[rank->rank]);
}
TEST(the_ends_may_differ) {
  struct expected each[2] = {{.cuda = false}, {.cuda = true, .sends = true, .flushes = true}};
  job_run(FAR "GDRNET_OFFERS=cuda GHOST_ATTRIBUTES=116:%d", 2, kit_patience_ms(TIMEOUT_MS), half, each);
}

/* ---- failures ---- */

/* On rank 0; the other hears of it. */
static void fails(const struct rank *rank, void *arg) {
  (void)arg;
  if (rank->rank > 0) unsetenv("GDRNET_FLUSH_FAILS");
  if (rank->rank > 0) unsetenv("GDRNET_FLUSH_TEST_FAILS");
  gpu_open();
  void *library = plugin_open(), *stream = gpu_stream();
  ncclComm_t comm = open_comm(rank);
  int *buffer = gpu_alloc(BYTES);
  ncclResult_t r = ncclSuccess;
  uint64_t until = rail_deadline_in_ms(kit_patience_ms(20000));
  OK(ncclAllReduce(buffer, buffer, BYTES / sizeof *buffer, ncclInt32, ncclSum, comm, stream));
  while (r == ncclSuccess) {
    ENSURE(!rail_deadline_passed(until), "no error was reported");
    OK(ncclCommGetAsyncError(comm, &r));
    usleep(2000);
  }
  ENSURE(r == ncclSystemError, "the error is %d", (int)r);
  OK(ncclCommAbort(comm));
  ENSURE(gdr_count("flushes") > 0 || rank->rank > 0, "there was no flush");
  ENSURE(gdr_count("left") == 0, "%ld registrations are left", gdr_count("left"));
  gpu_free(buffer);
  gpu_nothing_left();
  GPU(gpu.cuStreamDestroy_v2(stream));
  dlclose(library);
}
TEST(a_flush_that_fails_ends_it) {
  job_run(FAR "NCCL_DEBUG=NONE GDRNET_OFFERS=cuda GDRNET_FLUSH_FAILS=2", 2, kit_patience_ms(TIMEOUT_MS), fails, NULL);
}
TEST(so_does_one_that_fails_later) {
  job_run(FAR "NCCL_DEBUG=NONE GDRNET_OFFERS=cuda GDRNET_FLUSH=3 GDRNET_FLUSH_TEST_FAILS=2", 2,
          kit_patience_ms(TIMEOUT_MS), fails, NULL);
}

TEST_MAIN(TEST_CASE(peer_memory), TEST_CASE(dma_buf), TEST_CASE(proxy_thread_and_slow_flushes),
          TEST_CASE(flushes_that_are_over_at_once), TEST_CASE(later_gpus_need_no_flush),
          TEST_CASE(unless_the_nic_asks_for_it), TEST_CASE(or_the_user), TEST_CASE(no_reading), TEST_CASE(near),
          TEST_CASE(not_so_near), TEST_CASE(too_far),
          TEST_CASE(refused), TEST_CASE(one_way_refused_the_other_taken), TEST_CASE(no_dma_buf_from_the_driver),
          TEST_CASE(no_dma_buf_wanted), TEST_CASE(no_device_memory_once),
          TEST_CASE(no_dma_buf_once), TEST_CASE(the_ends_may_differ), TEST_CASE(a_flush_that_fails_ends_it),
          TEST_CASE(so_does_one_that_fails_later))
