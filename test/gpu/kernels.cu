/* SPDX-License-Identifier: Apache-2.0
 *
 * The device's kernels on a GPU: the cases of test/device/cases.c and bulk.c, and a
 * producer and a consumer block over a FIFO. Prints TAP. Exit status 77 and one
 * line with the reason where there is no GPU that can be used.
 *
 *   kernels [--few]   fewer cases: for compute-sanitizer, under which each takes longer
 */
#include "test/device/launch.cuh"
#include "core/host/rt_device.h"
#include "test/device/bulk.h"
#include "test/device/cases.h"
#include "test/device/fifo_pair.cuh"
#include "test/gpu/gpu_tap.cuh"

#define SLOT 4096u
#define STEPS 200u
#define THREADS 128u

static void report(bool good, const char *name, const char *why) { gpu_report(good, "device kernels", name, why); }

/* ---- reduceCopy ---- */

static bool memory_write(char *to, const char *from, size_t n) {
  return cuda_ok(cudaMemcpy(to, from, n, cudaMemcpyHostToDevice));
}

static bool memory_read(char *to, const char *from, size_t n) {
  return cuda_ok(cudaMemcpy(to, from, n, cudaMemcpyDeviceToHost));
}

static bool launch_reduce_copy(const struct rt_reduce_copy *w, unsigned blocks, unsigned threads) {
  return cuda_ok(launch_reduce_copy(w, blocks, threads, 0)) && cuda_ok(cudaDeviceSynchronize());
}

static void test_reduce_copy(bool few) {
  struct cases_machine m = {NULL, memory_write, memory_read, launch_reduce_copy};
  if (!cuda_ok(cudaMalloc(&m.memory, CASES_MEMORY))) {
    report(false, "reduceCopy", "no memory");
    return;
  }
  for (int type = 0; type < RT_TYPE_COUNT; type++) {
    char name[64], why[500] = "";
    int cases = 0, done = 0;
    for (int op = 0; op < RT_OP_COUNT && done >= 0; op++) {
      done = cases_run(&m, type, op, few, why, sizeof why);
      cases += done;
    }
    snprintf(name, sizeof name, "reduceCopy of %s", rt_type_name(type));
    report(done >= 0, name, why);
    if (done >= 0) printf("# %d cases\n", cases);
  }
  cuda_ok(cudaFree(m.memory));
}

/* Blocks of whole warps, as the loops for aligned data want them: the least, and those of collectives. */
static void test_bulk(bool few) {
  struct cases_machine m = {NULL, memory_write, memory_read, launch_reduce_copy};
  if (!cuda_ok(cudaMalloc(&m.memory, BULK_MEMORY))) {
    report(false, "bulk", "no memory");
    return;
  }
  for (int type = 0; type < RT_TYPE_COUNT; type++) {
    char name[64], why[500] = "";
    const int done = bulk_run(&m, type, 32, few, why, sizeof why);
    const int wide = done < 0 ? -1 : bulk_run(&m, type, RT_DEVICE_THREADS, few, why, sizeof why);
    snprintf(name, sizeof name, "bulk of %s", rt_type_name(type));
    report(wide >= 0, name, why);
    if (wide >= 0) printf("# %d cases\n", done + wide);
  }
  cuda_ok(cudaFree(m.memory));
}

/* ---- FIFO: counters and sizes in mapped host memory; the slots there, too, or on the device ---- */

struct shared_words {
  struct rt_slot slot[RT_STEPS];
  uint64_t tail, credit;
  uint32_t abort, gave_up[2];
};

static const char *pass(int proto, struct shared_words *words, char *buff, char *src, char *dst, uint64_t steps) {
  static char host[STEPS * SLOT], got[STEPS * SLOT];
  struct fifo_pair p;
  memset(&p, 0, sizeof p);
  memset(words, 0, sizeof *words);
  words->credit = RT_STEPS;
  p.proto = proto;
  p.roles = FIFO_PRODUCER | FIFO_CONSUMER;
  p.buff = buff;
  p.slot_size = SLOT;
  p.slot = words->slot;
  p.tail = &words->tail;
  p.credit = &words->credit;
  p.abort = &words->abort;
  p.src = src;
  p.dst = dst;
  p.steps = steps;
  p.most = proto == RT_LL ? SLOT / 2 : proto == FIFO_LL128 ? SLOT / 128 * 120 : SLOT;
  p.gave_up = words->gave_up;
  uint64_t bytes = 0;
  for (uint64_t s = 0; s < steps; s++) bytes += fifo_pair_bytes(&p, s);
  for (size_t i = 0; i < sizeof host; i++) host[i] = (char)(i * 7 + i / 251 + 1);
  if (!memory_write(src, host, sizeof host) || !cuda_ok(cudaMemset(dst, 0, sizeof got)) ||
      !cuda_ok(cudaMemset(buff, 0, RT_STEPS * SLOT)))
    return "the memory cannot be written";
  fifo_pair_kernel<<<2, THREADS>>>(p);
  if (!cuda_ok(cudaGetLastError()) || !cuda_ok(cudaDeviceSynchronize()) || !memory_read(got, dst, sizeof got))
    return "the kernel failed";
  if (words->gave_up[0] || words->gave_up[1]) return "a block gave up";
  if (words->tail != steps || words->credit != steps + RT_STEPS) return "the counters do not say that all is done";
  return memcmp(got, host, bytes) == 0 ? NULL : "what arrived is not what was sent";
}

static void test_fifo(bool few) {
  struct shared_words *words = NULL;
  char *on_host = NULL, *on_device = NULL, *src = NULL, *dst = NULL;
  if (!cuda_ok(cudaHostAlloc(&words, sizeof *words, cudaHostAllocMapped | cudaHostAllocPortable)) ||
      !cuda_ok(cudaHostAlloc(&on_host, RT_STEPS * SLOT, cudaHostAllocMapped | cudaHostAllocPortable)) ||
      !cuda_ok(cudaMalloc(&on_device, RT_STEPS * SLOT)) || !cuda_ok(cudaMalloc(&src, STEPS * SLOT)) ||
      !cuda_ok(cudaMalloc(&dst, STEPS * SLOT))) {
    report(false, "FIFO", "no memory");
    return;
  }
  /* Not LL128 over host memory: there its lines are no unit (rd_fence.cuh). */
  const struct { const char *name; int proto; char *buff; } variants[] = {
    {"FIFO, Simple, slots on the device", RT_SIMPLE, on_device},
    {"FIFO, Simple, slots in host memory", RT_SIMPLE, on_host},
    {"FIFO, LL, slots on the device", RT_LL, on_device},
    {"FIFO, LL, slots in host memory", RT_LL, on_host},
    {"FIFO, LL128, slots on the device", FIFO_LL128, on_device},
  };
  for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
    const char *why = pass(variants[i].proto, words, variants[i].buff, src, dst, few ? 20 : STEPS);
    report(!why, variants[i].name, why);
  }
  cuda_ok(cudaFree(dst));
  cuda_ok(cudaFree(src));
  cuda_ok(cudaFree(on_device));
  cuda_ok(cudaFreeHost(on_host));
  cuda_ok(cudaFreeHost(words));
}

int main(int argc, char **argv) {
  const bool few = gpu_few(argc, argv);
  if (!gpu_is_there()) return 77;
  test_reduce_copy(few);
  test_bulk(few);
  test_fifo(few);
  return gpu_failed ? 1 : 0;
}
