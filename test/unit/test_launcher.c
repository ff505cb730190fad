/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves: ranks are read from torchrun's, Open MPI's and Slurm's variables and from nothing else; every way to one
 * unique id gives all ranks the same; what an earlier job left behind does no harm.
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/sock.h"
#include "core/bootstrap/rt_boot_wire.h"
#include "core/comm/rt_param.h"
#include "core/launcher/rt_launcher.h"
#include "test/harness/tap.h"

static char base[64];

/* ---- variables ---- */

static const char *const all_names[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_STEP_ID",
    "SLURM_JOB_ID",
    "SLURM_TASKS_PER_NODE",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "NCCL_COMM_ID",
    "RAIL_STORE",
    "RAIL_BOOTSTRAP_TIMEOUT",
};

/* Only these: "NAME=value", ... NULL. */
static void set_env(const char *const *pairs) {
  for (size_t i = 0; i < sizeof all_names / sizeof *all_names; i++) unsetenv(all_names[i]);
  for (; pairs && *pairs; pairs++) {
    char name[64];
    size_t n = strcspn(*pairs, "=");
    CHECK(n < sizeof name);
    memcpy(name, *pairs, n);
    name[n] = 0;
    setenv(name, *pairs + n + 1, 1);
  }
}

#define ENV(...) set_env((const char *const[]){__VA_ARGS__, NULL})

#define CHECK_LAUNCH(want_source, r, n, lr, ls)     \
  do {                                              \
    railLaunch_t l_ = {0};                          \
    CHECK_INT(railLaunchFromEnv(&l_), ncclSuccess); \
    CHECK_STR(l_.source, want_source);              \
    CHECK_INT(l_.rank, r);                          \
    CHECK_INT(l_.nranks, n);                        \
    CHECK_INT(l_.localRank, lr);                    \
    CHECK_INT(l_.localSize, ls);                    \
  } while (0)

TEST(launchers) {
  railLaunch_t l;
  set_env(NULL);
  CHECK_INT(railLaunchFromEnv(&l), ncclInvalidUsage);
  CHECK_INT(railLaunchFromEnv(NULL), ncclInvalidArgument);
  ENV("RANK=3", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2");
  CHECK_LAUNCH("torchrun", 3, 8, 1, 2);
  ENV("OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=1", "OMPI_COMM_WORLD_LOCAL_RANK=0",
      "OMPI_COMM_WORLD_LOCAL_SIZE=1");
  CHECK_LAUNCH("openmpi", 0, 1, 0, 1);
  ENV("SLURM_PROCID=5", "SLURM_NTASKS=6", "SLURM_STEP_ID=0", "SLURM_LOCALID=1", "SLURM_NODEID=2",
      "SLURM_STEP_TASKS_PER_NODE=2(x3)");
  CHECK_LAUNCH("slurm", 5, 6, 1, 2);
  ENV("SLURM_PROCID=5", "SLURM_NTASKS=8", "SLURM_STEP_NUM_TASKS=6",
      "SLURM_STEP_ID=0"); /* a step smaller than the job */
  CHECK_LAUNCH("slurm", 5, 6, -1, -1);
  ENV("SLURM_PROCID=0", "SLURM_NTASKS=6"); /* a batch script, not a step */
  CHECK_INT(railLaunchFromEnv(&l), ncclInvalidUsage);
  ENV("SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4");
  CHECK_LAUNCH("openmpi", 3, 4, -1, -1); /* mpirun whose daemons Slurm started */
  ENV("RANK=1", "WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4");
  CHECK_LAUNCH("torchrun", 1, 2, -1, -1);
  ENV("RANK=1");
  CHECK_INT(railLaunchFromEnv(&l), ncclInvalidUsage);
}

TEST(wrong_values) {
  railLaunch_t l;
  static const char *const bad[][2] = {
      {"2", "2"}, {"-1", "2"}, {"x", "2"}, {"1x", "2"}, {"0", "0"}, {"0", "4097"}, {"0", "99999999999999999999"},
      {" ", "2"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    set_env(NULL);
    setenv("RANK", bad[i][0], 1);
    setenv("WORLD_SIZE", bad[i][1], 1);
    CHECK_MSG(railLaunchFromEnv(&l) == ncclInvalidArgument, "rank %s of %s was taken", bad[i][0], bad[i][1]);
  }
  ENV("RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=many"); /* only a help; ignored */
  CHECK_LAUNCH("torchrun", 1, 2, -1, -1);
}

TEST(host_lists) {
  static const char *const good[][2] = {
      {"host", "host"},
      {"a,b", "a"},
      {"gpu[07-09,12],login", "gpu07"},
      {"n[3]", "n3"},
      {"r[0-1]n[4-5]-ib,x", "r0n4-ib"},
      {"a-1.example.org,b", "a-1.example.org"},
  };
  static const char *const bad[] = {"", ",a", "n[", "n[]", "n[x]", "n]", "n[1"};
  char host[32];
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    CHECK(rt_launcher_first_host(good[i][0], host, sizeof host));
    CHECK_STR(host, good[i][1]);
  }
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    CHECK_MSG(!rt_launcher_first_host(bad[i], host, sizeof host), "\"%s\" was taken", bad[i]);
  CHECK(!rt_launcher_first_host("12345678", host, 8));
  CHECK(rt_launcher_first_host("1234567", host, 8));
  CHECK(!rt_launcher_first_host("n[1234567-9]", host, 8));

  CHECK_INT(rt_launcher_tasks_of_node("4", 0), 4);
  CHECK_INT(rt_launcher_tasks_of_node("2(x3),1", 2), 2);
  CHECK_INT(rt_launcher_tasks_of_node("2(x3),1", 3), 1);
  CHECK_INT(rt_launcher_tasks_of_node("2(x3),1,7", 4), 7);
  CHECK_INT(rt_launcher_tasks_of_node("2(x3),1", 4), -1);
  CHECK_INT(rt_launcher_tasks_of_node("2(x3),1", -1), -1);
  CHECK_INT(rt_launcher_tasks_of_node("2(x3", 0), -1);
  CHECK_INT(rt_launcher_tasks_of_node("2(x0)", 0), -1);
  CHECK_INT(rt_launcher_tasks_of_node("x", 0), -1);
  CHECK_INT(rt_launcher_tasks_of_node("", 0), -1);
}

/* ---- the exchange, ranks as threads ---- */

struct rank {
  int rank, nranks;
  const char *dir;
  uint64_t timeout_ms, delay_us;
  char id[RT_UNIQUE_ID_BYTES];
  rail_result_t result;
  pthread_t thread;
};

static void *exchange_main(void *arg) {
  struct rank *r = arg;
  struct rt_store *s;
  usleep((useconds_t)r->delay_us);
  r->result = rt_store_open(r->dir, true, &s);
  if (r->result != RAIL_OK) return NULL;
  r->result = rt_launcher_exchange(s, "id-1", r->rank, r->nranks, r->id, r->timeout_ms);
  rt_store_close(s);
  return NULL;
}

static struct rank ranks[16];

static void run_exchange(int n, int absent, uint64_t timeout_ms, const uint64_t *delays_us) {
  static char generation;
  memset(ranks, 0, sizeof ranks);
  generation++;
  for (int i = 0; i < n; i++) {
    ranks[i].rank = i;
    ranks[i].nranks = n;
    ranks[i].dir = base;
    ranks[i].timeout_ms = timeout_ms;
    ranks[i].delay_us = delays_us ? delays_us[i % 4] : 0;
    ranks[i].result = RAIL_IN_PROGRESS;
    if (i == 0) memset(ranks[i].id, 'a' + generation, RT_UNIQUE_ID_BYTES);
    if (i != absent && pthread_create(&ranks[i].thread, NULL, exchange_main, &ranks[i]) != 0) abort();
  }
  for (int i = 0; i < n; i++)
    if (i != absent) pthread_join(ranks[i].thread, NULL);
}

static void check_exchanged(int n) {
  for (int i = 0; i < n; i++) {
    CHECK_INT(ranks[i].result, RAIL_OK);
    CHECK(memcmp(ranks[i].id, ranks[0].id, RT_UNIQUE_ID_BYTES) == 0);
  }
}

static int entries(const char *dir) {
  DIR *d = opendir(dir);
  int n = 0;
  if (!d) return -1;
  for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
  closedir(d);
  return n;
}

static void make_base(void) {
  strcpy(base, "/tmp/rail-test-launch-XXXXXX");
  CHECK(mkdtemp(base));
}

TEST(exchange) {
  static const uint64_t early_root[] = {0, 100000, 30000, 1000}, late_root[] = {100000, 0, 0, 50000};
  make_base();
  for (int n = 1; n <= 16; n *= 2) {
    run_exchange(n, -1, 30000, n % 3 ? early_root : late_root);
    check_exchanged(n);
    CHECK_INT(entries(base), 0);
  }
  CHECK_INT(rmdir(base), 0);
}

/* What a job that failed half-way may leave: questions, and answers to them. */
static void leave_stale_files(void) {
  struct rt_store *s;
  char stale[16 + RT_UNIQUE_ID_BYTES];
  CHECK_OK(rt_store_open(base, true, &s));
  memset(stale, 0x77, sizeof stale);
  CHECK_OK(rt_store_set(s, "id-1-ask-1", stale, 16));
  CHECK_OK(rt_store_set(s, "id-1-id-1", stale, sizeof stale));
  CHECK_OK(rt_store_set(s, "id-1-ask-3", stale, 16));
  CHECK_OK(rt_store_set(s, "id-1-id-3", stale, sizeof stale));
  rt_store_close(s);
}

/* The next job in the same directory takes none of it, in whichever order ranks start. */
TEST(stale_files) {
  static const uint64_t late_ranks[] = {0, 100000, 0, 200000}, late_root[] = {200000, 0, 0, 0};
  make_base();
  run_exchange(4, 2, 300, NULL); /* rank 2 never came */
  CHECK_INT(ranks[0].result, RAIL_REMOTE_ERROR);
  CHECK_OK(ranks[1].result);
  leave_stale_files();
  run_exchange(4, -1, 30000, late_ranks);
  check_exchanged(4);
  leave_stale_files();
  run_exchange(4, -1, 30000, late_root);
  check_exchanged(4);
  CHECK_INT(entries(base), 0);
  CHECK_INT(rmdir(base), 0);
}

TEST(missing_ranks) {
  make_base();
  uint64_t start = rail_now_ns();
  run_exchange(3, 0, 300, NULL); /* nobody answers */
  CHECK_INT(ranks[1].result, RAIL_REMOTE_ERROR);
  CHECK_INT(ranks[2].result, RAIL_REMOTE_ERROR);
  CHECK(rail_now_ns() - start < 20000000000ull);
  CHECK_INT(entries(base), 0); /* they withdraw their questions */
  CHECK_INT(rmdir(base), 0);
}

/* ---- the public call, ranks as processes ---- */

/* Each of n processes asks `rounds` times for an id and sends the ids to this one; all must agree in each round. */
static void public_ids(int n, int rounds, const char *source, bool distinct) {
  static ncclUniqueId first[4], got;
  int pipes[8][2];
  pid_t pids[8];
  CHECK(n <= 8 && rounds <= 4);
  for (int i = 0; i < n; i++) {
    CHECK_INT(pipe(pipes[i]), 0);
    pids[i] = fork();
    CHECK(pids[i] >= 0);
    if (pids[i] > 0) continue;
    railLaunch_t launch = {.rank = i, .nranks = n, .localRank = i, .localSize = n, .source = source};
    for (int round = 0; round < rounds; round++) {
      ncclUniqueId id;
      if (railUniqueIdFromEnv(&launch, &id) != ncclSuccess) _exit(1);
      if (write(pipes[i][1], &id, sizeof id) != sizeof id) _exit(2);
    }
    _exit(0);
  }
  bool same = true, differ = true;
  for (int i = 0; i < n; i++) {
    close(pipes[i][1]);
    for (int round = 0; round < rounds; round++) {
      bool whole = read(pipes[i][0], &got, sizeof got) == sizeof got;
      same &= whole;
      if (i == 0) first[round] = got;
      same &= whole && memcmp(&got, &first[round], sizeof got) == 0;
      if (i == 0 && round > 0) differ &= memcmp(&first[round], &first[round - 1], sizeof got) != 0;
    }
    close(pipes[i][0]);
  }
  int bad = 0;
  for (int i = 0; i < n; i++) {
    int status;
    waitpid(pids[i], &status, 0);
    bad += status != 0;
  }
  CHECK_INT(bad, 0);
  CHECK(same);
  if (distinct) CHECK(differ);
}

TEST(id_through_a_store) {
  char setting[128];
  make_base();
  snprintf(setting, sizeof setting, "RAIL_STORE=%s", base);
  ENV(setting, "OMPI_COMM_WORLD_RANK=0");
  public_ids(4, 3, "openmpi", true);
  public_ids(3, 2, NULL, true);
  CHECK_INT(entries(base), 0);
  CHECK_INT(rmdir(base), 0);
}

TEST(id_through_the_temporary_directory) {
  make_base();
  set_env(NULL);
  setenv("TMPDIR", base, 1);
  public_ids(4, 3, "openmpi", true);
  public_ids(1, 1, "slurm", false);
  unsetenv("TMPDIR");
  CHECK_INT(entries(base), 0);
  CHECK_INT(rmdir(base), 0);
}

TEST(id_of_an_address) {
  struct rt_boot_id parts;
  union rail_addr addr;
  char text[RAIL_ADDR_TEXT];
  ncclUniqueId a, b;
  railLaunch_t zero = {.rank = 0, .nranks = 2, .localRank = 0, .localSize = 1, .source = "torchrun"}, one = zero;
  one.rank = 1;
  ENV("MASTER_ADDR=127.0.0.1", "MASTER_PORT=29500");
  public_ids(4, 2, "torchrun",
             true); /* the second communicator's secret differs, so that late ranks of the first fail */
  CHECK_INT(railUniqueIdFromEnv(&zero, &a), ncclSuccess);
  memcpy(&parts, &a, sizeof parts);
  CHECK(rail_addr_unpack(&parts.addr, &addr));
  CHECK_STR(rail_addr_text(&addr, text), "127.0.0.1:29501"); /* 29500 is torchrun's own store */
  CHECK_INT(parts.well_known, 1);
  ENV("MASTER_ADDR=::1", "MASTER_PORT=29500");
  CHECK_INT(railUniqueIdFromEnv(&one, &b), ncclSuccess);
  memcpy(&parts, &b, sizeof parts);
  CHECK(rail_addr_unpack(&parts.addr, &addr));
  CHECK_STR(rail_addr_text(&addr, text), "[::1]:29501");
  ENV("MASTER_ADDR=127.0.0.1", "MASTER_PORT=65535");
  CHECK_INT(railUniqueIdFromEnv(&one, &b), ncclInvalidUsage);
  ENV("MASTER_ADDR=127.0.0.1", "MASTER_PORT=http");
  CHECK_INT(railUniqueIdFromEnv(&one, &b), ncclInvalidUsage);
  ENV("SLURM_JOB_ID=77", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=localhost,other[1-3]");
  zero.source = "slurm";
  CHECK_INT(railUniqueIdFromEnv(&zero, &a), ncclSuccess);
  memcpy(&parts, &a, sizeof parts);
  CHECK(rail_addr_unpack(&parts.addr, &addr));
  CHECK(rail_addr_port(&addr) >= 20000 && rail_addr_port(&addr) < 32000);
}

TEST(no_way_to_an_id) {
  ncclUniqueId id;
  railLaunch_t launch = {.rank = 1, .nranks = 4, .localRank = 1, .localSize = 2, .source = "openmpi"};
  set_env(NULL);
  CHECK_INT(railUniqueIdFromEnv(&launch, &id), ncclInvalidUsage); /* two hosts and nothing that both see */
  CHECK_INT(railUniqueIdFromEnv(NULL, &id), ncclInvalidArgument);
  CHECK_INT(railUniqueIdFromEnv(&launch, NULL), ncclInvalidArgument);
  launch.rank = 4;
  CHECK_INT(railUniqueIdFromEnv(&launch, &id), ncclInvalidArgument);
}

/* The parameters are read once, so this needs a process of its own. */
TEST(id_of_nccl_comm_id) {
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    set_env(NULL);
    setenv("NCCL_COMM_ID", "127.0.0.1:23456", 1);
    ncclUniqueId a;
    char b[RT_UNIQUE_ID_BYTES];
    railLaunch_t launch = {.rank = 1, .nranks = 4, .localRank = 0, .localSize = 1, .source = "openmpi"};
    bool good = railUniqueIdFromEnv(&launch, &a) == ncclSuccess && rt_unique_id_create(b) == RAIL_OK &&
                memcmp(&a, b, sizeof a) == 0; /* ncclGetUniqueId's is the same */
    _exit(good ? 0 : 1);
  }
  int status;
  waitpid(pid, &status, 0);
  CHECK_INT(status, 0);
}

TEST(empty_variables_are_not_set) {
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    set_env(NULL);
    setenv("NCCL_COMM_ID", "", 1);
    setenv("RAIL_STORE", "", 1);
    setenv("RAIL_CUDA_LIB", "", 1);
    const struct rt_params *p = rt_params();
    char id[RT_UNIQUE_ID_BYTES];
    bool good = !p->comm_id && !p->store && strcmp(p->cuda_lib, "libcuda.so.1") == 0;
    _exit(good && rt_unique_id_create(id) == RAIL_OK ? 0 : 1);
  }
  int status;
  waitpid(pid, &status, 0);
  CHECK_INT(status, 0);
}

#ifdef __SANITIZE_THREAD__
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) { return "die_after_fork=0"; }
#endif

/* Those that fork come first: the parameters are read once per process, here after them. */
TEST_MAIN(TEST_CASE(id_of_nccl_comm_id), TEST_CASE(empty_variables_are_not_set), TEST_CASE(id_through_a_store),
          TEST_CASE(id_through_the_temporary_directory), TEST_CASE(launchers), TEST_CASE(wrong_values),
          TEST_CASE(host_lists), TEST_CASE(exchange), TEST_CASE(stale_files), TEST_CASE(missing_ranks),
          TEST_CASE(id_of_an_address), TEST_CASE(no_way_to_an_id))
