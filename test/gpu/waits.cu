/* SPDX-License-Identifier: Apache-2.0
 *
 * Which calls wait for a kernel that runs? CUDA leaves that open for most, and the runtime depends on some that do
 * not wait: ranks of one process have kernels that wait for each other (core/gpu/rt_launch_lock.h). A kernel spins in
 * one stream, and each call is made beside it. Those that must not wait are cases; of the others it is said, as the
 * fake driver (test/device/gpu/wait.c) takes them for calls that do. Prints TAP. Exit status 77 and one line with the
 * reason where there is no GPU that can be used.
 */
#include <atomic>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "test/gpu/gpu_tap.cuh"

#define SPIN_NS 500000000ull /* then the kernel ends by itself */
#define SIZE ((size_t)4 << 20)

extern "C" const unsigned char rt_device_image[]; /* the runtime's kernels */

struct gate { volatile unsigned begun, end; };

__global__ void spin(struct gate *g, unsigned long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  g->begun = 1;
  __threadfence_system();
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (!g->end && now - begin < ns);
}

static struct gate *gate;
static cudaStream_t spinning, side;
static cudaEvent_t event;
static cudaLibrary_t library;
static cudaKernel_t kernel;
static char *memory, *device, *more;
static std::atomic<int> called;

static void nap(void) {
  struct timespec t = {0, 100000};
  nanosleep(&t, NULL);
}

/* What is put on the side stream comes to its end beside the kernel. */
static cudaError_t side_ends(cudaError_t e) {
  while (e == cudaSuccess && (e = cudaStreamQuery(side)) == cudaErrorNotReady) {
    if (cudaStreamQuery(spinning) == cudaSuccess) return cudaSuccess; /* which is found out afterwards */
    e = cudaSuccess;
    nap();
  }
  return e;
}

static void CUDART_CB note(void *arg) { static_cast<std::atomic<int> *>(arg)->fetch_add(1); }

static cudaError_t allocate(void) { return cudaMalloc(&more, SIZE); }
static cudaError_t release(void) { return cudaFree(more); }
static cudaError_t reg(void) {
  return cudaHostRegister(memory, SIZE, cudaHostRegisterPortable | cudaHostRegisterMapped);
}
static cudaError_t unreg(void) { return cudaHostUnregister(memory); }
static cudaError_t load(void) { return cudaLibraryLoadData(&library, rt_device_image, NULL, NULL, 0, NULL, NULL, 0); }
static cudaError_t find(void) { return cudaLibraryGetKernel(&kernel, library, "rd_collective"); }
static cudaError_t unload(void) { return cudaLibraryUnload(library); }
static cudaError_t make_event(void) { return cudaEventCreateWithFlags(&event, cudaEventDisableTiming); }
static cudaError_t end_event(void) { return cudaEventDestroy(event); }
static cudaError_t set(void) { return side_ends(cudaMemsetAsync(device, 0, SIZE, side)); }
static cudaError_t get(void) { return side_ends(cudaMemcpyAsync(memory, device, SIZE, cudaMemcpyDeviceToHost, side)); }
static cudaError_t call_host(void) { return side_ends(cudaLaunchHostFunc(side, note, &called)); }
static cudaError_t pageable(void) {
  static char text[4096];
  return cudaMemcpy(device, text, sizeof text, cudaMemcpyHostToDevice);
}
static cudaError_t ipc_export(void) {
  cudaIpcMemHandle_t handle;
  return cudaIpcGetMemHandle(&handle, device);
}
static cudaError_t second_kernel(void) {
  spin<<<1, 1, 0, side>>>(gate + 1, 1000);
  return side_ends(cudaGetLastError());
}
static cudaError_t make_stream(void) {
  cudaStream_t s;
  cudaError_t e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  return e == cudaSuccess ? cudaStreamDestroy(s) : e;
}
static cudaError_t run_graph(void) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaError_t e = cudaStreamBeginCapture(side, cudaStreamCaptureModeRelaxed);
  if (e != cudaSuccess) return e;
  cudaLaunchHostFunc(side, note, &called);
  spin<<<1, 1, 0, side>>>(gate + 1, 1000);
  e = cudaStreamEndCapture(side, &graph);
  if (e == cudaSuccess) e = cudaGraphInstantiate(&exec, graph, 0);
  if (e == cudaSuccess) e = side_ends(cudaGraphLaunch(exec, side));
  if (e == cudaSuccess) e = cudaGraphExecDestroy(exec);
  return e == cudaSuccess ? cudaGraphDestroy(graph) : e;
}

struct call {
  const char *name;
  cudaError_t (*make)(void);
  bool must_not; /* wait */
};

/* In this order: some undo what others did. */
static const struct call calls[] = {
    {"a kernel in another stream", second_kernel, true},
    {"cuStreamCreate, cuStreamDestroy", make_stream, true},
    {"cuEventCreate", make_event, true},
    {"cuEventDestroy", end_event, true},
    {"cuMemsetD8Async in another stream", set, true},
    {"cuLaunchHostFunc in another stream", call_host, true},
    {"a graph with a host function in another stream", run_graph, true},
    {"cuMemHostRegister", reg, true},
    {"cuMemcpyDtoHAsync in another stream", get, true},
    {"cuMemHostUnregister", unreg, false},
    {"cuMemAlloc", allocate, true},
    {"cuMemFree", release, false},
    {"cuIpcGetMemHandle", ipc_export, true},
    {"cuMemcpyHtoD", pageable, false},
    {"loading a library", load, false},
    {"finding its kernel", find, false},
    {"unloading it", unload, false},
};

static bool begin(void) {
  gate->begun = gate->end = 0;
  spin<<<1, 1, 0, spinning>>>(gate, SPIN_NS);
  if (!cuda_ok(cudaGetLastError())) return false;
  while (!gate->begun)
    if (cudaStreamQuery(spinning) != cudaErrorNotReady) return gate->begun;
    else nap();
  return true;
}

static void look_at(const struct call *c) {
  char why[200] = "the kernel does not begin";
  struct timespec t0, t1;
  if (!begin()) return gpu_report(false, "beside a kernel", c->name, why);
  clock_gettime(CLOCK_MONOTONIC, &t0);
  cudaError_t e = c->make();
  clock_gettime(CLOCK_MONOTONIC, &t1);
  const bool waits = cudaStreamQuery(spinning) == cudaSuccess; /* it has ended by itself meanwhile */
  const double ms = (double)(t1.tv_sec - t0.tv_sec) * 1e3 + (double)(t1.tv_nsec - t0.tv_nsec) / 1e6;
  gate->end = 1;
  if (e == cudaSuccess) e = cudaStreamSynchronize(spinning);
  if (e == cudaSuccess) e = cudaStreamSynchronize(side);
  snprintf(why, sizeof why, "%s", e != cudaSuccess ? cudaGetErrorString(e) : "it waits until the kernel has ended");
  gpu_report(e == cudaSuccess && !(waits && c->must_not), "beside a kernel", c->name, why);
  printf("# %s: %.2f ms, %s\n", c->name, ms, waits ? "WAITS for the kernel" : "does not wait");
}

static bool prepare(void) {
  memory = static_cast<char *>(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  void *page = NULL;
  if (memory == MAP_FAILED) return false;
  bool good = cuda_ok(cudaHostAlloc(&page, 4096, cudaHostAllocMapped | cudaHostAllocPortable)) &&
              cuda_ok(cudaMalloc(&device, SIZE)) &&
              cuda_ok(cudaStreamCreateWithFlags(&spinning, cudaStreamNonBlocking)) &&
              cuda_ok(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  gate = static_cast<struct gate *>(page);
  if (!good) return false;
  /* What is loaded when it is first used is so now, the driver's own kernels included. */
  spin<<<1, 1, 0, side>>>(gate + 1, 1000);
  good = cuda_ok(cudaGetLastError()) && cuda_ok(cudaMemsetAsync(device, 0, SIZE, side));
  return good && cuda_ok(cudaStreamSynchronize(side));
}

int main(void) {
  if (!gpu_is_there()) return 77;
  if (!prepare()) {
    gpu_report(false, "beside a kernel", "what it takes", "memory and streams cannot be had");
    return 1;
  }
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) look_at(&calls[i]);
  printf("1..%d\n", gpu_number);
  return gpu_failed ? 1 : 0;
}
