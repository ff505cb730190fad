/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * What launchers and people leave in the environment of the runtime. Input: a
 * byte that picks the reader, then its text; for the launcher's variables
 * "NUMBER value NUL" each.
 */
#include <stdlib.h>

#include "common/base/compiler.h"
#include "core/bootstrap/rt_boot_wire.h"
#include "core/launcher/rt_launcher.h"
#include "core/plan/rt_tune.h"
#include "test/fuzz/lib/fuzz.h"

enum { FIRST_HOST, TASKS, MASKS, ENVIRONMENT, READERS };

static const char *const variables[] = {
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_ID",
    "SLURM_STEP_TASKS_PER_NODE",
    "SLURM_TASKS_PER_NODE",
    "SLURM_NODEID",
};

static void check_host(const char *text, size_t cap) {
  char *host = (char *)fuzz_guarded(cap);
  if (rt_launcher_first_host(text, host, cap)) {
    FUZZ_CHECK(strnlen(host, cap) > 0 && strnlen(host, cap) < cap);
    FUZZ_CHECK(!strpbrk(host, ",[]"));
  }
  fuzz_guarded_free((uint8_t *)host, cap);
}

static void check_environment(struct fuzz_in *in) {
  railLaunch_t launch = {.nranks = -7};
  while (in->left) {
    const char *name = variables[fuzz_u8(in) % RAIL_COUNT_OF(variables)];
    char *value = fuzz_text(in->at, in->left);
    size_t used = strlen(value) + 1;
    setenv(name, value, 1);
    free(value);
    fuzz_take(in, &used);
  }
  if (railLaunchFromEnv(&launch) == ncclSuccess) {
    FUZZ_CHECK(launch.nranks >= 1 && launch.nranks <= RT_BOOT_MAX_RANKS);
    FUZZ_CHECK(launch.rank >= 0 && launch.rank < launch.nranks);
    FUZZ_CHECK(launch.localRank >= -1 && launch.localRank < launch.nranks);
    FUZZ_CHECK(launch.localSize >= -1 && launch.localSize <= RT_BOOT_MAX_RANKS);
  }
  for (size_t i = 0; i < RAIL_COUNT_OF(variables); i++) unsetenv(variables[i]);
}

/* Nothing may be left. But what is, is there: LL128 only beside Simple, which stands in for it; all algorithms but PAT
 * for AllReduce, Ring and PAT for the others. */
static void check_masks(const char *text, bool algos) {
  const uint32_t masks = algos ? rt_algo_masks(text) : rt_proto_masks(text);
  for (int f = 0; f < RT_NFUNC; f++) {
    const unsigned bits = rt_func_mask(masks, (enum rt_func)f);
    const unsigned others = 1u << RT_ALGO_RING | 1u << RT_ALGO_PAT;
    const unsigned there = f == RT_F_ALLREDUCE ? ((1u << RT_NALGO) - 1) & ~(1u << RT_ALGO_PAT) : others;
    if (algos) FUZZ_CHECK(!(bits & ~there));
    else FUZZ_CHECK(bits < 2u << RD_LL128 && (!(bits & 1u << RD_LL128) || bits & 1u << RT_SIMPLE));
  }
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct fuzz_in in = {data, size};
  uint8_t head = fuzz_u8(&in);
  if (head % READERS == ENVIRONMENT) {
    check_environment(&in);
    return;
  }
  char *text = fuzz_text(in.at, in.left);
  if (head % READERS == FIRST_HOST) check_host(text, 1 + head / READERS);
  if (head % READERS == TASKS) {
    int tasks = rt_launcher_tasks_of_node(text, head / READERS - 1);
    FUZZ_CHECK(tasks == -1 || (tasks >= 1 && tasks <= RT_BOOT_MAX_RANKS));
  }
  if (head % READERS == MASKS) check_masks(text, head / READERS % 2 != 0);
  free(text);
}

static void seed(const char *name, unsigned int reader, unsigned int argument, const char *text, size_t size) {
  struct fuzz_out out = {.size = 0};
  fuzz_put8(&out, reader + READERS * argument);
  fuzz_put(&out, text, size);
  fuzz_seed(name, out.bytes, out.size);
}
#define SEED(name, reader, argument, text) seed(name, reader, argument, text, sizeof text - 1)

void fuzz_make_seeds(void) {
  SEED("host", FIRST_HOST, 60, "gpu[07-09,12],login");
  SEED("host-plain", FIRST_HOST, 5, "node1");
  SEED("tasks", TASKS, 3, "2(x3),1");
  SEED("tasks-many", TASKS, 60, "4096(x9223372036854775807),1");
  SEED("protos", MASKS, 0, "LL,Simple");
  SEED("protos-not", MASKS, 0, "^LL128,ll");
  SEED("algos", MASKS, 1, "ring,tree;allreduce:^exchange;broadcast:nvls");
  SEED("torchrun", ENVIRONMENT, 0, "\x00" "3\0" "\x01" "8\0" "\x02" "1\0" "\x03" "4\0");
  SEED("openmpi", ENVIRONMENT, 0, "\x04" "0\0" "\x05" "2\0" "\x06" "0\0" "\x07" "2\0");
  SEED("slurm", ENVIRONMENT, 0,
       "\x08" "5\0" "\x09" "16\0" "\x0b" "1\0" "\x0c" "0\0" "\x0d" "4(x3),2(x2)\0" "\x0f" "1\0");
}
