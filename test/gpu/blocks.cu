/* SPDX-License-Identifier: Apache-2.0
 *
 * rd_collective on a GPU: the cases of test/device/block_case.c, ranks as blocks of one
 * launch, host kernels and proxies beside it. All memory is host memory that the
 * GPU has mapped; LL128 is left out, whose lines are no unit there (rd_fence.cuh). Prints TAP.
 * Exit status 77 and one line with the reason where there is no GPU that can be used.
 *
 *   blocks [--few]   fewer cases: for compute-sanitizer, under which each takes longer
 */
#include "test/device/launch.cuh"
#include "test/device/block_case.h"
#include "test/gpu/gpu_tap.cuh"

static void *get(size_t n) {
  void *p = NULL;
  return cuda_ok(cudaHostAlloc(&p, n, cudaHostAllocMapped | cudaHostAllocPortable)) ? p : NULL;
}

static void put(void *p) { cuda_ok(cudaFreeHost(p)); }

static bool run(struct rt_device_launch *launch, unsigned threads) {
  (void)threads;
  return cuda_ok(launch_collective(launch, 0)) && cuda_ok(cudaDeviceSynchronize());
}

struct outcome {
  int cases;
  const char *why;
  char text[1000];
};

static bool each(const struct block_case *c, void *arg) {
  static const struct block_machine machine = {get, put, run};
  struct outcome *o = static_cast<struct outcome *>(arg);
  if (c->proto == RD_LL128) return true;
  o->cases++;
  o->why = block_case_run(&machine, c);
  if (o->why) snprintf(o->text, sizeof o->text, "%s: %s", block_case_text(c), o->why);
  return !o->why;
}

static void report(const char *name, const struct outcome *o) {
  gpu_report(!o->why && o->cases > 0, "device blocks", name, o->text);
  if (!o->why) printf("# %d cases\n", o->cases);
}

static void test_coll(enum rt_coll coll, const char *name, bool few) {
  struct outcome o = {};
  block_cases(coll, few, each, &o);
  report(name, &o);
}

int main(int argc, char **argv) {
  const bool few = gpu_few(argc, argv);
  if (!gpu_is_there()) return 77;
  test_coll(RT_ALLREDUCE, "all-reduce", few);
  test_coll(RT_REDUCE_SCATTER, "reduce-scatter", few);
  test_coll(RT_ALLGATHER, "all-gather", few);
  test_coll(RT_BROADCAST, "broadcast", few);
  test_coll(RT_REDUCE, "reduce", few);
  test_coll(RT_SEND, "send and receive", few);
  test_coll(RT_COPY, "copy", few);
  test_coll(RT_EXCHANGE, "exchange", few);
  struct outcome o = {};
  block_cases_of_types(few, each, &o);
  report("types and operators", &o);
  return gpu_failed ? 1 : 0;
}
