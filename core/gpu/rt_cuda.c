/* SPDX-License-Identifier: Apache-2.0
 * Finds the driver's library in the process and fills the table of its calls, once; checks results; enters and leaves a
 * context. Any thread may call; only filling the table takes a lock. */
#include "core/gpu/rt_cuda.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "core/comm/rt_param.h"

static struct rt_cuda table;
static _Atomic(const struct rt_cuda *) driver;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool unusable;                 /* it was found, and lacks a call */
static atomic_ullong looked_at = ~0ull;      /* objects loaded so far, when the driver was last looked for */

static int count_objects(struct dl_phdr_info *info, size_t size, void *count) {
  (void)size;
  *(unsigned long long *)count = info->dlpi_adds;
  return 1; /* one is enough: the counter is the process' */
}

/* False: a call is missing, and that was said. */
static bool fill_table(void *library, const char *name) {
  static const struct { const char *symbol; size_t at; bool needed; } calls[] = {
#define ROW_(field, symbol, arguments) {#symbol, offsetof(struct rt_cuda, field), true},
#define NEW_ROW_(field, symbol, arguments) {#symbol, offsetof(struct rt_cuda, field), false},
      RT_CUDA_CALLS(ROW_) RT_CUDA_NEW_CALLS(NEW_ROW_)
#undef NEW_ROW_
#undef ROW_
  };
  for (size_t i = 0; i < RAIL_COUNT_OF(calls); i++) {
    void *found = dlsym(library, calls[i].symbol);
    if (!found && !calls[i].needed) continue;
    if (!found) {
      RAIL_WARN("%s has no %s: collectives run on host buffers only; a driver of CUDA 11.3 or later is needed, and "
                "580 or newer where CUDA 13 built the kernels",
                name, calls[i].symbol);
      return false;
    }
    memcpy((char *)&table + calls[i].at, &found, sizeof found);
  }
  return true;
}

/* Never loads it: a driver that the program has not loaded knows no memory of the program's. */
static void look_for_driver(unsigned long long objects) {
  const char *name = rt_params()->cuda_lib;
  pthread_mutex_lock(&lock);
  void *library = atomic_load(&driver) || atomic_load(&unusable) ? NULL : dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  /* The handle is kept: the table's calls stay valid although the program may close its own. */
  if (library && fill_table(library, name))
    atomic_store_explicit(&driver, &table, memory_order_release);
  else if (library)
    atomic_store(&unusable, true);
  atomic_store_explicit(&looked_at, objects, memory_order_release);
  pthread_mutex_unlock(&lock);
}

const struct rt_cuda *rt_cuda(void) {
  const struct rt_cuda *cu = atomic_load_explicit(&driver, memory_order_acquire);
  if (cu || atomic_load_explicit(&unusable, memory_order_relaxed)) return cu;
  unsigned long long objects = 0;
  dl_iterate_phdr(count_objects, &objects);
  if (objects != atomic_load_explicit(&looked_at, memory_order_acquire)) look_for_driver(objects);
  return atomic_load_explicit(&driver, memory_order_acquire);
}

static const char *name_of(int result) {
  const struct rt_cuda *cu = rt_cuda();
  const char *name = NULL;
  return cu && cu->get_error_name(result, &name) == RT_CU_SUCCESS && name ? name : "an unknown result";
}

rail_result_t rt_cuda_check(int result, const char *call, const char *advice) {
  if (rail_likely(result == RT_CU_SUCCESS)) return RAIL_OK;
  RAIL_WARN("%s: %s (%d); %s", call, name_of(result), result, advice);
  return RAIL_CUDA_ERROR;
}

bool rt_cuda_refused(int result, const char *call, char why[RT_WHY]) {
  if (rail_likely(result == RT_CU_SUCCESS)) return false;
  snprintf(why, RT_WHY, "%s: %s (%d)", call, name_of(result), result);
  return true;
}

rail_result_t rt_cuda_enter(struct rt_cuda_scope *scope, void *context) {
  const struct rt_cuda *cu = rt_cuda();
  scope->entered = false;
  RAIL_TRY(rt_cuda_check(cu->ctx_push(context), "cuCtxPushCurrent",
                         "the context of a communicator's buffers must live as long as the communicator"));
  scope->entered = true;
  scope->capture_mode = RT_CU_CAPTURE_MODE_RELAXED;
  cu->capture_mode(&scope->capture_mode);
  return RAIL_OK;
}

void rt_cuda_leave(struct rt_cuda_scope *scope) {
  if (!scope->entered) return;
  const struct rt_cuda *cu = rt_cuda();
  void *context;
  cu->capture_mode(&scope->capture_mode);
  cu->ctx_pop(&context);
  scope->entered = false;
}
