/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 60
 *
 * Proves: the NET transport as a plugin sees it. All bytes of a communicator go through test/preload/memnet.c, which
 * refuses memory outside of its registration and copies late: results are right with and without registered buffers,
 * no receive reaches behind its buffer, every comm and registration is given back, also after an abort; ranks
 * whose plugins differ get an error that says so; an operation registers its memory only where that is cheap; lines of
 * LL are aligned whatever the buffers' size; which of the plugin's devices are used.
 */
#include <dlfcn.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "core/comm/rt_comm.h"
#include "core/transport/rt_net_devices.h"
#include "loader/netload.h"
#include "test/harness/comms.h"
#include "test/harness/log_lines.h"
#include "test/harness/program.h"
#include "test/preload/memnet.h"

#define TIMEOUT_MS 20000
#define RANKS 3
#define MOST 20000 /* elements */

static char plugin[RANKS_PATH];

/* In a process of its own, with the plugin loaded once more, so that its counters outlive the communicators. */
static void with_plugin(const char *env, int nranks, rank_fn body, void *arg) {
  char all[2 * RANKS_PATH];
  CHECK(ranks_built("test/libmemnet.so", plugin));
  snprintf(all, sizeof all, "NCCL_DEBUG=NONE NCCL_SHM_DISABLE=1 RAIL_DIRECT_MIN=64 NCCL_NET_PLUGIN=%s %s", plugin, env);
  job_run(all, nranks, kit_patience_ms(TIMEOUT_MS), body, arg);
}

static struct memnet *counters(void) {
  void *handle = dlopen(plugin, RTLD_NOW);
  ENSURE(handle, "%s", dlerror());
  struct memnet *m = dlsym(handle, "memnet");
  ENSURE(m, "%s", dlerror());
  return m;
}

static void all_given_back(const struct memnet *m) {
  ENSURE(!m->misuse[0], "%s", m->misuse);
  ENSURE_INT(m->contexts, 0);
  ENSURE_INT(m->listens, 0);
  ENSURE_INT(m->sends, 0);
  ENSURE_INT(m->recvs, 0);
  ENSURE_INT(m->registrations, 0);
}

static void wait_all(ncclComm_t *comm, int n) {
  for (int r = 0; r < n; r++) OK(railCommWait(comm[r]));
}

static void destroy_all(ncclComm_t *comm, int n) {
  for (int r = 0; r < n; r++) OK(ncclCommDestroy(comm[r]));
}

/* ---- results ---- */

static int32_t in[RANKS][MOST], out[RANKS][RANKS * MOST];

static void fill(size_t count) {
  for (int r = 0; r < RANKS; r++)
    for (size_t i = 0; i < count; i++) in[r][i] = (int32_t)i * 3 + r * 1000;
  memset(out, 0x5a, sizeof out);
}

static void all_reduce(ncclComm_t *comm, size_t count, bool in_place) {
  fill(count);
  for (int r = 0; r < RANKS && in_place; r++) memcpy(out[r], in[r], count * 4);
  OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++)
    OK(ncclAllReduce(in_place ? out[r] : in[r], out[r], count, ncclInt32, ncclSum, comm[r], NULL));
  OK(ncclGroupEnd());
  wait_all(comm, RANKS);
  for (int r = 0; r < RANKS; r++) {
    for (size_t i = 0; i < count; i++) ENSURE_INT(out[r][i], RANKS * 3 * (int)i + 3000);
    ENSURE_INT(out[r][count], 0x5a5a5a5a);
  }
}

static void all_gather(ncclComm_t *comm, size_t count) {
  fill(count);
  OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) OK(ncclAllGather(in[r], out[r], count, ncclInt32, comm[r], NULL));
  OK(ncclGroupEnd());
  wait_all(comm, RANKS);
  for (int r = 0; r < RANKS; r++)
    for (size_t i = 0; i < RANKS * count; i++)
      ENSURE_INT(out[r][i], (int)(i % count) * 3 + (int)(i / count) * 1000);
}

static void send_around(ncclComm_t *comm, size_t count) {
  fill(count);
  OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) {
    OK(ncclSend(in[r], count, ncclInt32, (r + 1) % RANKS, comm[r], NULL));
    OK(ncclRecv(out[r], count, ncclInt32, (r + RANKS - 1) % RANKS, comm[r], NULL));
  }
  OK(ncclGroupEnd());
  wait_all(comm, RANKS);
  for (int r = 0; r < RANKS; r++) {
    for (size_t i = 0; i < count; i++) ENSURE_INT(out[r][i], (int)i * 3 + (r + RANKS - 1) % RANKS * 1000);
    ENSURE_INT(out[r][count], 0x5a5a5a5a);
  }
}

static void use(ncclComm_t *comm) {
  static const size_t counts[] = {1, 7, 1000, 4099, MOST - 1};
  for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
    all_reduce(comm, counts[c], false);
    all_reduce(comm, counts[c], true);
    all_gather(comm, counts[c]);
    send_around(comm, counts[c]);
  }
}

/* Once without registrations but those that a plan makes, once with whole buffers, once with parts: an operation's
 * beginning, its end, and a part that lies inside. */
static void results(const struct rank *rank, void *direct) {
  (void)rank;
  struct memnet *m = counters();
  ncclComm_t comm[RANKS];
  OK(ncclCommInitAll(comm, RANKS, NULL));
  use(comm);
  void *whole[RANKS][2], *part[RANKS][3];
  m->watch = (char *)out;
  m->watch_size = sizeof out;
  for (int r = 0; r < RANKS; r++) {
    OK(ncclCommRegister(comm[r], out[r], 700 * 4, &part[r][0]));
    OK(ncclCommRegister(comm[r], out[r] + 2000, sizeof out[r] - 8000, &part[r][1]));
    OK(ncclCommRegister(comm[r], in[r] + 100, 300 * 4, &part[r][2]));
  }
  use(comm);
  for (int r = 0; r < RANKS; r++) {
    OK(ncclCommRegister(comm[r], in[r], sizeof in[r], &whole[r][0]));
    OK(ncclCommRegister(comm[r], out[r], sizeof out[r], &whole[r][1]));
  }
  int sends = m->watched_sends, recvs = m->watched_recvs;
  use(comm);
  if (direct) ENSURE(m->watched_sends > sends && m->watched_recvs > recvs, "nothing went without a copy");
  int before = m->registrations;
  for (int r = 0; r < RANKS; r++) {
    OK(ncclCommDeregister(comm[r], whole[r][1]));
    OK(ncclCommDeregister(comm[r], part[r][0]));
  }
  if (direct) ENSURE(m->registrations < before, "%d registrations, as many as before they were given back", before);
  use(comm);
  destroy_all(comm, RANKS); /* what is registered still, goes with it */
  all_given_back(m);
}

TEST(results_are_right_with_and_without_registrations) {
  bool direct = true;
  with_plugin("NCCL_PROTO=Simple RAIL_CHUNK=4K", 1, results, &direct);
  with_plugin("NCCL_PROTO=LL", 1, results, NULL);
  with_plugin("RAIL_NCHANNELS=2 RAIL_PROXY=thread", 1, results, &direct);
}

/* The buffers are registered already when the cost is measured. */
static void registered_for_an_operation(const struct rank *rank, void *expected) {
  (void)rank;
  const struct memnet *m = counters();
  ncclComm_t comm[RANKS];
  OK(ncclCommInitAll(comm, RANKS, NULL));
  all_reduce(comm, MOST - 1, false); /* connected */
  int before = m->registrations_made;
  all_reduce(comm, MOST - 1, false);
  if (*(bool *)expected)
    ENSURE(m->registrations_made > before, "nothing was registered, though it costs nothing");
  else
    ENSURE_INT(m->registrations_made, before);
  destroy_all(comm, RANKS);
  all_given_back(m);
}

TEST(an_operation_registers_its_memory_only_where_that_is_cheap) {
  bool yes = true, no = false;
  with_plugin("NCCL_PROTO=Simple", 1, registered_for_an_operation, &yes);
  with_plugin("NCCL_PROTO=Simple MEMNET_REG_US=200", 1, registered_for_an_operation, &no);
}

/* ---- calls that differ ---- */

/* A receive into a registered buffer, and a peer that sends more than that: an error, and nothing behind the buffer. */
static void larger(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  struct memnet *m = counters();
  enum { LESS = 1000, MORE = 3000, GUARD = 4000 };
  static int32_t from[MORE], to[LESS + GUARD];
  ncclComm_t comm[2];
  void *handle;
  OK(ncclCommInitAll(comm, 2, NULL));
  memset(from, 1, sizeof from);
  memset(to, 0x5a, sizeof to);
  OK(ncclCommRegister(comm[1], to, LESS * 4, &handle));
  m->watch = (char *)to;
  m->watch_size = sizeof to;
  OK(ncclGroupStart());
  OK(ncclSend(from, MORE, ncclInt32, 1, comm[0], NULL));
  OK(ncclRecv(to, LESS, ncclInt32, 0, comm[1], NULL));
  OK(ncclGroupEnd());
  ENSURE(railCommWait(comm[1]) != ncclSuccess, "a message that is too large was received");
  ENSURE(m->watched_recvs > 0, "it did not go into the registered buffer");
  for (int i = LESS; i < LESS + GUARD; i++)
    ENSURE(to[i] == 0x5a5a5a5a, "element %d behind the registered buffer was written", i - LESS);
  for (int r = 0; r < 2; r++) OK(ncclCommAbort(comm[r]));
  all_given_back(m);
}

TEST(nothing_is_written_behind_a_registered_buffer) {
  with_plugin("NCCL_PROTO=Simple", 1, larger, NULL);
  with_plugin("NCCL_PROTO=Simple RAIL_PROXY=thread", 1, larger, NULL);
}

/* ---- ends ---- */

/* Operations under way, with registrations of their own, when the communicators are aborted. */
static void aborted(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  struct memnet *m = counters();
  ncclComm_t comm[RANKS];
  OK(ncclCommInitAll(comm, RANKS, NULL));
  all_reduce(comm, 5000, false); /* connected */
  atomic_store(&m->hold, true);
  int idle = m->registrations;
  OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) OK(ncclAllReduce(in[r], out[r], MOST, ncclInt32, ncclSum, comm[r], NULL));
  OK(ncclGroupEnd());
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(5000));
  while (m->registrations == idle && !rail_deadline_passed(deadline)) usleep(1000);
  ENSURE(m->registrations > idle, "the operations registered nothing");
  for (int r = 0; r < RANKS; r++) OK(ncclCommAbort(comm[r]));
  all_given_back(m);
}

/* The first operation, whose connections never come. */
struct starter {
  ncclComm_t comm;
  ncclResult_t result;
};

static void start(void *arg) {
  struct starter *s = arg;
  int32_t v = 1;
  s->result = ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, s->comm, NULL);
}

static void stop(struct starter *s, struct memnet *m) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(5000));
  while (m->listens < 2 && !rail_deadline_passed(deadline)) usleep(1000);
  usleep(20000);
  for (int r = 0; r < 2; r++) OK(ncclCommAbort(s[r].comm));
}

static void start_or_stop(void *arg) {
  struct starter *s = arg;
  if (s->comm)
    start(s);
  else
    stop(s - 2, counters());
}

static void never_accepted(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  struct memnet *m = counters();
  ncclComm_t comm[2];
  struct starter s[3] = {0};
  OK(ncclCommInitAll(comm, 2, NULL));
  atomic_store(&m->never_accept, true);
  for (int r = 0; r < 2; r++) s[r].comm = comm[r];
  kit_run_threads(3, start_or_stop, s, sizeof s[0]);
  ENSURE(s[0].result != ncclSuccess && s[1].result != ncclSuccess, "%d and %d", s[0].result, s[1].result);
  ENSURE_INT(m->contexts, 0);
  ENSURE_INT(m->listens, 0);
  ENSURE_INT(m->sends, 0);
  ENSURE_INT(m->registrations, 0);
}

TEST(an_abort_gives_all_back) {
  with_plugin("NCCL_PROTO=Simple", 1, aborted, NULL);
  with_plugin("NCCL_PROTO=Simple RAIL_PROXY=thread", 1, aborted, NULL);
  with_plugin("", 1, never_accepted, NULL);
}

/* ---- ranks with different plugins ---- */

static void different(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  int32_t v = 1;
  rank_barrier(rank); /* all have it: the first call of one ends it for all */
  ncclResult_t result = ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL);
  if (result == ncclSuccess) result = railCommWait(comm); /* all of this rank's own connections were right */
  /* They may even have moved something: memnet is for one process. The others' error is on its way. */
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS / 2));
  while (result == ncclSuccess && !rail_deadline_passed(deadline)) OK(ncclCommGetAsyncError(comm, &result));
  ENSURE_INT(result, ncclInvalidUsage);
  const char *said = ncclGetLastError(comm);
  ENSURE(strstr(said, "Mem0") && strstr(said, "Mem1"), "\"%s\" does not name both plugins", said);
  ENSURE(strstr(said, "NCCL_NET_PLUGIN"), "\"%s\" does not say what to do", said);
  rank_barrier(rank); /* one that left could be an error of its own */
  OK(ncclCommAbort(comm));
}

TEST(ranks_with_different_plugins_are_told) {
  with_plugin("MEMNET_NAME=Mem%h", 2, different, NULL);
  with_plugin("MEMNET_NAME=Mem%h", 5, different, NULL);
}

/* ---- buffers ---- */

/* Of a size that is no multiple of anything, also over shared memory. */
static void aligned(const struct rank *rank, void *arg) {
  (void)arg;
  ncclComm_t comm = open_comm(rank);
  int32_t v = 1;
  OK(ncclAllReduce(&v, &v, 1, ncclInt32, ncclSum, comm, NULL));
  OK(railCommWait(comm));
  const struct rt_connector *ends[] = {comm->channels[0].send[1 - rank->rank], comm->channels[0].recv[1 - rank->rank]};
  for (int e = 0; e < 2; e++) {
    const uintptr_t lines = (uintptr_t)ends[e]->conn.buff[RT_LL];
    ENSURE(lines % RAIL_CACHELINE == 0, "%s: lines of LL begin at %#lx", ends[e]->transport->name, (long)lines);
  }
  close_comm(comm);
}

TEST(lines_are_aligned) {
  static const char odd[] = "NCCL_DEBUG=NONE NCCL_BUFFSIZE=100001 NCCL_LL_BUFFSIZE=20001 RAIL_SMALL_MAX=0 ";
  char net[2 * sizeof odd];
  snprintf(net, sizeof net, "%sNCCL_SHM_DISABLE=1", odd);
  job_run(odd, 2, kit_patience_ms(TIMEOUT_MS), aligned, NULL);
  job_run(net, 2, kit_patience_ms(TIMEOUT_MS), aligned, NULL);
}

/* ---- devices ---- */

static void used_devices(const char *merge, int n, const int *want) {
  char why[256];
  struct rail_net *net;
  struct rt_net_devices d;
  ENSURE(rail_net_load(plugin, 0, &net, why, sizeof why) == RAIL_OK, "%s", why);
  ENSURE_INT(rt_net_devices_open(net, merge, &d), RAIL_OK);
  ENSURE_INT(d.n, n);
  for (int i = 0; i < n; i++) ENSURE_INT(d.dev[i], want[i]);
  rail_net_unload(net);
}

static void devices_with_a_fused_one(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  used_devices(NULL, 4, (const int[]){0, 1, 2, 3});
  used_devices("mem0,mem2", 3, (const int[]){4, 1, 3}); /* there already */
  used_devices("mem1,mem10", 3, (const int[]){0, 5, 2}); /* made now */
  used_devices("mem10,mem1;mem2,mem0", 2, (const int[]){4, 5});
}

/* As of a plugin that merges ports by itself. */
static void only_fused_devices(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  used_devices(NULL, 2, (const int[]){0, 1});
}

static void no_devices(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  char why[256];
  struct rail_net *net;
  struct rt_net_devices d;
  int ndev;
  ENSURE(rail_net_load(plugin, 0, &net, why, sizeof why) == RAIL_OK, "%s", why);
  ENSURE(rail_net_devices(net, &ndev) == RAIL_OK && ndev > 0, "it should have devices at first");
  rail_log_set_sink(log_capture);
  ENSURE_INT(rt_net_devices_open(net, NULL, &d), RAIL_BAD_USAGE);
  ENSURE(log_said("the plugin Mem lists 0 devices"), "it said: %s", log_lines);
  rail_net_unload(net);
}

static void devices_cannot_be_used(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  const struct memnet *m = counters();
  ncclComm_t comm[2];
  OK(ncclCommInitAll(comm, 2, NULL));
  OK(ncclGroupStart());
  for (int r = 0; r < 2; r++) OK(ncclAllReduce(in[r], out[r], 1, ncclInt32, ncclSum, comm[r], NULL));
  ENSURE_INT(ncclGroupEnd(), ncclInvalidUsage);
  ENSURE_INT(m->contexts, 0);
  for (int r = 0; r < 2; r++) {
    ENSURE(!railCommNetPlugin(comm[r])[0], "rank %d still has %s", r, railCommNetPlugin(comm[r]));
    OK(ncclCommAbort(comm[r]));
  }
  all_given_back(m);
}

TEST(a_plugin_whose_devices_cannot_be_used_is_closed) {
  with_plugin("NCCL_NET_FORCE_MERGE=nosuch", 1, devices_cannot_be_used, NULL);
}
TEST(devices_that_are_all_fused_are_used) { with_plugin("MEMNET_FUSED=only", 1, only_fused_devices, NULL); }
TEST(a_plugin_without_devices_is_refused) { with_plugin("MEMNET_FUSED=none", 1, no_devices, NULL); }
TEST(devices_are_fused_only_when_asked_for) { with_plugin("MEMNET_FUSED=1", 1, devices_with_a_fused_one, NULL); }

TEST_MAIN(TEST_CASE(results_are_right_with_and_without_registrations),
          TEST_CASE(an_operation_registers_its_memory_only_where_that_is_cheap),
          TEST_CASE(nothing_is_written_behind_a_registered_buffer), TEST_CASE(an_abort_gives_all_back),
          TEST_CASE(ranks_with_different_plugins_are_told), TEST_CASE(lines_are_aligned),
          TEST_CASE(devices_are_fused_only_when_asked_for),
          TEST_CASE(devices_that_are_all_fused_are_used), TEST_CASE(a_plugin_without_devices_is_refused),
          TEST_CASE(a_plugin_whose_devices_cannot_be_used_is_closed))
