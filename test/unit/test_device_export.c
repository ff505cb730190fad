/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * Proves: a record of exported GPU memory that cannot be true is refused by the importer, with its reason, and nothing
 * comes of it; a true one is imported all the same afterwards, by each type, and closed; its memory is freed when both
 * ends have closed it.
 */
#include "core/gpu/rt_export.h"

#include <sys/mman.h>

#include "core/comm/rt_comm.h"
#include "test/device/gpu/user.h"
#include "test/harness/program.h"

#define TIMEOUT_MS 20000
#define SIZE 100000

enum { OWNER, IMPORTER };

/* What the two share. */
struct table {
  struct rt_peer peers[2];
  struct rt_export_record record;
  uint64_t closed;
};
_Static_assert(sizeof(struct table) <= RANKS_SHARED, "it fits");

/* As much of a communicator as this needs. */
static struct ncclComm *meet(const struct rank *rank, struct table *t) {
  struct ncclComm *comm = calloc(1, sizeof *comm);
  ENSURE(comm, "out of memory");
  comm->rank = rank->rank;
  comm->peers = t->peers;
  comm->gpu.context = gpu.context;
  struct rt_peer *me = &t->peers[rank->rank];
  me->pid = getpid();
  me->export_types = rt_export_open(0, &comm->fd_receiver);
  memcpy(me->fd_receiver, comm->fd_receiver.name, sizeof me->fd_receiver);
  rank_barrier(rank);
  return comm;
}

static void part(struct ncclComm *comm) {
  rt_fd_receiver_close(&comm->fd_receiver);
  if (comm->gpu.own_stream) GPU(gpu.cuStreamDestroy_v2(comm->gpu.own_stream));
  free(comm);
}

static void refuses(struct ncclComm *comm, struct rt_export_record lie, const char *words) {
  struct rt_import import;
  char why[RT_WHY] = "";
  lie.key[0] ^= 1; /* whatever else is wrong: the descriptor is for the true one */
  ENSURE(!rt_import_open(comm, &lie, SIZE, OWNER, RT_SYS, &import, why), "\"%s\" was imported", words);
  ENSURE(strstr(why, words), "\"%s\" does not say \"%s\"", why, words);
  ENSURE(!import.base, "it has an address");
}

static void refuses_lies(struct ncclComm *comm, const struct rt_export_record *truth) {
  struct rt_export_record lie = *truth;
  static const uint32_t types[] = {RT_EXPORT_NONE, RT_EXPORT_MAPPED, RT_EXPORT_PLAIN, RT_EXPORT_TYPES, UINT32_MAX};
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    lie.type = types[i];
    refuses(comm, lie, "cannot");
  }
  lie = *truth;
  lie.size *= 2;
  refuses(comm, lie, "instead of");
  lie.size = SIZE;
  refuses(comm, lie, "instead of");
  lie = *truth;
  lie.granularity = 0;
  refuses(comm, lie, "instead of");
  lie = *truth;
  memset(lie.bus_id, 'x', sizeof lie.bus_id);
  refuses(comm, lie, "garbled");
  lie = *truth;
  memcpy(lie.bus_id, "0000:99:00.0", 13);
  refuses(comm, lie, "CUDA_VISIBLE_DEVICES");
  lie = *truth;
  if (lie.type == RT_EXPORT_FD) refuses(comm, lie, "has not come");
  if (lie.type != RT_EXPORT_FD) refuses(comm, lie, "CUDA_ERROR_INVALID_VALUE");
}

/* Where the driver does not count, the owner leaves the memory to the importer, and waits for it. */
static void owner(const struct rank *rank, struct ncclComm *comm, struct table *t, enum rt_export_type type) {
  char why[RT_WHY] = "";
  struct rt_export *e = rt_export_make(comm, IMPORTER, SIZE, &t->record, why);
  ENSURE(e, "%s", why);
  ENSURE(t->record.type == type, "it goes by %s", rt_export_text(t->record.type));
  rank_barrier(rank);
  rank_barrier(rank);
  int32_t seen;
  gpu_get(&seen, rt_export_base(e), sizeof seen);
  ENSURE(seen == 4711, "the importer's word is %d", seen);
  struct rt_range page = {mmap(NULL, RT_PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), RT_PAGE};
  bool later = rt_export_free(e, t->peers[IMPORTER].pid, &t->closed, page);
  ENSURE(later == (type == RT_EXPORT_IPC), "freed later: %d", later);
  if (!later) munmap(page.base, page.size);
  rank_barrier(rank);
  rt_export_wait();
}

static void importer(const struct rank *rank, struct ncclComm *comm, struct table *t) {
  struct rt_import import;
  char why[RT_WHY] = "";
  const int32_t word = 4711;
  rank_barrier(rank);
  refuses_lies(comm, &t->record);
  ENSURE(rt_import_open(comm, &t->record, SIZE, OWNER, RT_SYS, &import, why), "%s", why);
  int32_t first;
  gpu_get(&first, import.base, sizeof first);
  ENSURE(first == 0, "it is not zeroed: %d", first);
  gpu_put(import.base, &word, sizeof word);
  rank_barrier(rank);
  rank_barrier(rank);
  rt_import_close(&import);
  __atomic_store_n(&t->closed, 1, __ATOMIC_RELEASE);
}

static void both(const struct rank *rank, void *arg) {
  struct table *t = rank->shared;
  gpu_open();
  int fds = kit_fd_count();
  struct ncclComm *comm = meet(rank, t);
  if (rank->rank == OWNER)
    owner(rank, comm, t, *(const enum rt_export_type *)arg);
  else
    importer(rank, comm, t);
  part(comm);
  gpu_nothing_left();
  rank_back_to(fds, kit_thread_count(), "the export");
}

static void by(const char *env, enum rt_export_type type) {
  char all[128];
  snprintf(all, sizeof all, "NCCL_DEBUG=NONE %s", env);
  job_run(all, 2, kit_patience_ms(TIMEOUT_MS), both, &type);
}

TEST(file_descriptors) { by("", RT_EXPORT_FD); }
TEST(fabric_handles) { by("GHOST_ATTRIBUTES=128:1", RT_EXPORT_FABRIC); }
TEST(cuda_ipc) { by("NCCL_CUMEM_ENABLE=0", RT_EXPORT_IPC); }

TEST_MAIN(TEST_CASE(file_descriptors), TEST_CASE(fabric_handles), TEST_CASE(cuda_ipc))
