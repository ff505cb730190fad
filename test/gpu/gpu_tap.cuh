/* SPDX-License-Identifier: Apache-2.0
 * What the programs of this folder have in common: TAP, CUDA's errors, the end where there is no GPU. */
#ifndef GPU_TAP_CUH
#define GPU_TAP_CUH

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

static int gpu_number, gpu_failed;

static inline void gpu_report(bool good, const char *group, const char *name, const char *why) {
  if (!good) printf("# %s\n", why);
  printf("%s %d - %s: %s\n", good ? "ok" : "not ok", ++gpu_number, group, name);
  gpu_failed += !good;
}

static inline bool cuda_ok(cudaError_t e) {
  if (e != cudaSuccess) printf("# CUDA: %s\n", cudaGetErrorString(e));
  return e == cudaSuccess;
}

/* Each program's first call. False, and one line with the reason, where there is no GPU that can be used: then the exit
 * status is 77. */
static inline bool gpu_is_there(void) {
  int devices = 0;
  setvbuf(stdout, NULL, _IOLBF, 0); /* into a file, too: who kills what hangs wants to know how far it came */
  cudaError_t e = cudaGetDeviceCount(&devices);
  if (e == cudaSuccess && devices > 0) e = cudaFree(0); /* makes the context */
  if (e == cudaSuccess && devices > 0) return true;
  printf("%s\n", e == cudaSuccess ? "CUDA sees no device" : cudaGetErrorString(e));
  return false;
}

/* Was --few given? */
static inline bool gpu_few(int argc, char **argv) { return argc > 1 && strcmp(argv[1], "--few") == 0; }

#endif
