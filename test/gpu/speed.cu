/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast reduceCopy is, measured in turns with the driver's copy within the device's memory: bytes read and written
 * a second, of buffers that no cache holds. Prints TAP, and each figure as a line "# figure NAME VALUE UNIT".
 * Exit status 77 and one line with the reason where there is no GPU that can be used.
 *
 *   speed [MEBIBYTES]   size of each buffer (256)
 */
#include <algorithm>
#include <stdlib.h>
#include <vector>

#include "test/device/launch.cuh"
#include "test/gpu/gpu_tap.cuh"

#define ROUNDS 9
#define LAUNCHES 10 /* between two events: one alone would be measured with what the host takes to launch it */
#define THREADS 512u

struct rig {
  size_t bytes;
  char *a, *b, *to;
  cudaEvent_t start, end;
};

/* Floats: two sources are added, one is copied. */
static struct rt_reduce_copy work_of(const struct rig *g, int nsrc) {
  struct rt_reduce_copy w;
  memset(&w, 0, sizeof w);
  w.src[0] = g->a;
  w.src[1] = g->b;
  w.dst[0] = g->to;
  w.count = g->bytes / sizeof(float);
  w.type = RT_FLOAT32;
  w.op = RT_SUM;
  w.nsrc = nsrc;
  w.ndst = 1;
  w.last = true;
  return w;
}

/* GB/s of some launches in a row: with `blocks` by reduceCopy of `nsrc` sources, without by the driver. 0: failed. */
static double once(const struct rig *g, int nsrc, unsigned blocks) {
  const struct rt_reduce_copy w = work_of(g, nsrc);
  float ms = 0;
  bool good = cuda_ok(cudaEventRecord(g->start, 0));
  for (int i = 0; i < LAUNCHES && good; i++) {
    if (blocks) good = cuda_ok(launch_reduce_copy(&w, blocks, THREADS, 0));
    else good = cuda_ok(cudaMemcpyAsync(g->to, g->a, g->bytes, cudaMemcpyDeviceToDevice, 0));
  }
  good = good && cuda_ok(cudaEventRecord(g->end, 0)) && cuda_ok(cudaEventSynchronize(g->end)) &&
         cuda_ok(cudaEventElapsedTime(&ms, g->start, g->end));
  return good && ms > 0 ? (double)g->bytes * (nsrc + 1) * LAUNCHES / ms / 1e6 : 0;
}

static double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

/* The grid that does best in a few runs. */
static unsigned best_grid(const struct rig *g, int nsrc, int processors) {
  unsigned best = 1;
  double most = 0;
  for (unsigned each = 1; each <= 16; each *= 2) {
    unsigned blocks = each * (unsigned)processors;
    std::vector<double> runs;
    for (int i = 0; i < 4; i++) runs.push_back(once(g, nsrc, blocks));
    double rate = median(runs);
    printf("# %d sources, %5u blocks of %u: %8.1f GB/s\n", nsrc, blocks, THREADS, rate);
    if (rate > most) {
      most = rate;
      best = blocks;
    }
  }
  return best;
}

static void test_speed(const struct rig *g, int nsrc, const char *name, int processors) {
  char text[100];
  std::vector<double> ours, driver, ratio;
  unsigned blocks = best_grid(g, nsrc, processors);
  for (int i = -1; i < ROUNDS; i++) { /* the first warms up */
    double copy = once(g, 1, 0), mine = once(g, nsrc, blocks);
    if (i < 0 || copy == 0 || mine == 0) continue;
    driver.push_back(copy);
    ours.push_back(mine);
    ratio.push_back(mine / copy);
  }
  snprintf(text, sizeof text, "%s is measured against a copy within the device", name);
  gpu_report(ours.size() == ROUNDS, "speed", text, "some runs failed");
  if (ours.size() != ROUNDS) return;
  printf("# figure %s %.1f GB/s\n# figure %s_copy %.1f GB/s\n# figure %s_ratio %.3f x\n", name, median(ours), name,
         median(driver), name, median(ratio));
}

static bool rig_open(struct rig *g, size_t bytes) {
  memset(g, 0, sizeof *g);
  g->bytes = bytes;
  return cuda_ok(cudaMalloc(&g->a, bytes)) && cuda_ok(cudaMalloc(&g->b, bytes)) && cuda_ok(cudaMalloc(&g->to, bytes)) &&
         cuda_ok(cudaMemset(g->a, 1, bytes)) && cuda_ok(cudaMemset(g->b, 2, bytes)) &&
         cuda_ok(cudaEventCreate(&g->start)) && cuda_ok(cudaEventCreate(&g->end));
}

int main(int argc, char **argv) {
  size_t mebibytes = argc > 1 ? (size_t)atoi(argv[1]) : 256;
  int processors = 0;
  struct rig g;
  if (!gpu_is_there()) return 77;
  if (mebibytes == 0 || !cuda_ok(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 0)) ||
      !rig_open(&g, mebibytes << 20)) {
    gpu_report(false, "speed", "buffers and events", "they cannot be had");
    return 1;
  }
  test_speed(&g, 1, "reduce_copy_1", processors);
  test_speed(&g, 2, "reduce_copy_2", processors);
  cuda_ok(cudaFree(g.a));
  cuda_ok(cudaFree(g.b));
  cuda_ok(cudaFree(g.to));
  cuda_ok(cudaEventDestroy(g.start));
  cuda_ok(cudaEventDestroy(g.end));
  return gpu_failed ? 1 : 0;
}
