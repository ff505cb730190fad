/* SPDX-License-Identifier: Apache-2.0
 * The list of contexts in which this process has loaded the kernels, counted, under a lock. rt_gpu.c calls it when a
 * communicator's GPU is opened and closed; rt_buffer.c asks whether there are kernels, rt_device_plan.c for one. */
#include "core/gpu/rt_module.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "core/comm/rt_param.h"
#include "core/gpu/rt_cuda.h"
#include "core/host/rt_device.h"

/* The kernel's image, put into the library when it was built with a toolkit; of no bytes otherwise. */
extern const unsigned char rt_device_image[];
extern const uint64_t rt_device_image_size;

#define CHECK(call, what, advice) rt_cuda_check(rt_cuda()->call, what, advice)

/* The driver's error need not tell which of them is missing. */
#define NEEDS \
  "the kernels need a GPU of compute capability 8.0 or higher, and a driver no older than the CUDA that built them: " \
  "580 or newer for CUDA 13"

struct rt_module {
  struct rt_module *next;
  void *context, *module, *kernel;
  int users;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while one is loaded: others wait for that one */
static struct rt_module *modules;

bool rt_module_exists(void) { return rt_params()->cuda_kernels || rt_device_image_size > 0; }

void *rt_module_kernel(const struct rt_module *m) { return m->kernel; }

static rail_result_t load(struct rt_module *m) {
  const char *file = rt_params()->cuda_kernels;
  if (!rt_module_exists()) {
    RAIL_WARN("this build has no kernels for GPUs: buffers in device memory cannot be used; build where nvcc is, or "
              "name a file with the kernels in RAIL_CUDA_KERNELS");
    return RAIL_BAD_USAGE;
  }
  if (file)
    RAIL_TRY(CHECK(module_load(&m->module, file), "cuModuleLoad", "RAIL_CUDA_KERNELS names the file"));
  else
    RAIL_TRY(CHECK(module_load_data(&m->module, rt_device_image), "cuModuleLoadData", NEEDS));
  return CHECK(module_function(&m->kernel, m->module, RT_DEVICE_KERNEL), "cuModuleGetFunction",
               "the image has no " RT_DEVICE_KERNEL);
}

static rail_result_t new_module(void *context, struct rt_module **out) {
  struct rt_module *m = calloc(1, sizeof *m);
  if (!m) return RAIL_SYSTEM_ERROR;
  m->context = context;
  rail_result_t r = load(m);
  if (r != RAIL_OK) {
    if (m->module) rt_cuda()->module_unload(m->module);
    free(m);
    return r;
  }
  m->next = modules;
  modules = *out = m;
  return RAIL_OK;
}

rail_result_t rt_module_get(void *context, struct rt_module **out) {
  rail_result_t r = RAIL_OK;
  pthread_mutex_lock(&lock);
  *out = modules;
  while (*out && (*out)->context != context) *out = (*out)->next;
  if (!*out) r = new_module(context, out);
  if (r == RAIL_OK) (*out)->users++;
  pthread_mutex_unlock(&lock);
  return r;
}

void rt_module_put(struct rt_module *m, bool alive) {
  if (!m) return;
  pthread_mutex_lock(&lock);
  bool last = --m->users == 0;
  struct rt_module **at = &modules;
  while (last && *at != m) at = &(*at)->next;
  if (last) *at = m->next;
  if (last && alive) rt_cuda()->module_unload(m->module);
  pthread_mutex_unlock(&lock);
  if (last) free(m);
}
