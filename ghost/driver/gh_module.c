/* SPDX-License-Identifier: Apache-2.0
 * The emulated driver's modules and their functions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ghost/driver/gh_cuda.h"
#include "ghost/driver/gh_driver.h"
#include "ghost/driver/gh_kernel.h"

static const char image_mark[] = "fakegpu image"; /* what a file must begin with */
struct function {
  struct function *next;
  uint64_t alive;
  const struct module *module;
  char name[];
};
struct module {
  uint64_t alive;
  struct gh_context *context;
  struct function *functions; /* that were asked for: these are loaded */
};
#define ALIVE 0x616c697665ull
#define ALIVE_FUNCTION 0x66756e6374696f6eull

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int make_module(void **module) {
  gh_wait_for("cuModuleLoad", gh_context());
  struct module *m = malloc(sizeof *m);
  if (!m) return OUT_OF_MEMORY;
  *m = (struct module){.alive = ALIVE, .context = gh_context()};
  *module = m;
  gh_count_live("modules", 1);
  return OK;
}

GH_API int cuModuleLoad(void **module, const char *file) {
  int r = gh_enter_unsafe("cuModuleLoad");
  if (r) return r;
  char text[sizeof image_mark] = "";
  FILE *f = fopen(file, "r");
  if (!f) return FILE_NOT_FOUND;
  size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  return n == sizeof text - 1 && strcmp(text, image_mark) == 0 ? make_module(module) : INVALID_IMAGE;
}

/* Of real images it knows the number that a fatbin begins with, no more. */
GH_API int cuModuleLoadData(void **module, const void *image) {
  int r = gh_enter_unsafe("cuModuleLoadData");
  uint32_t magic;
  memcpy(&magic, image, sizeof magic);
  return r ? r : magic == 0xba55ed50u ? make_module(module) : INVALID_IMAGE;
}

GH_API int cuModuleUnload(void *module) {
  int r = gh_enter_ending("cuModuleUnload");
  struct module *m = module;
  if (r || m->alive != ALIVE) return r ? r : INVALID_HANDLE;
  gh_wait_for("cuModuleUnload", m->context);
  m->alive = 0;
  while (m->functions) {
    struct function *f = m->functions;
    m->functions = f->next;
    f->alive = 0;
    free(f);
  }
  free(m);
  gh_count_live("modules", -1);
  return OK;
}

static struct function *find_function(struct module *m, const char *name) {
  struct function *f = m->functions;
  while (f && strcmp(f->name, name) != 0) f = f->next;
  return f;
}

GH_API int cuModuleGetFunction(void **function, void *module, const char *name) {
  int r = gh_enter_context("cuModuleGetFunction");
  struct module *m = module;
  if (r == OK && m->alive != ALIVE) r = INVALID_HANDLE;
  if (r == OK && gh_kernel_parameters(name, NULL) < 0) r = NOT_FOUND;
  if (r) return r;
  pthread_mutex_lock(&lock);
  struct function *f = find_function(m, name);
  bool first = !m->functions;
  if (!f && (f = malloc(sizeof *f + strlen(name) + 1))) {
    *f = (struct function){.next = m->functions, .alive = ALIVE_FUNCTION, .module = m};
    strcpy(f->name, name);
    m->functions = f;
  }
  pthread_mutex_unlock(&lock);
  /* Kernels are loaded when they are asked for (CUDA_MODULE_LOADING=LAZY, which it is unless told). */
  if (first) gh_wait_for("cuModuleGetFunction", m->context);
  *function = f;
  return f ? OK : OUT_OF_MEMORY;
}

const char *gh_function_name(const void *function, const struct gh_context **context) {
  const struct function *f = function;
  if (!f || f->alive != ALIVE_FUNCTION) return NULL;
  *context = f->module->context;
  return f->name;
}

GH_API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
  (void)shared;
  int r = gh_enter_context("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  const struct gh_context *of;
  if (r == OK && (!gh_function_name(function, &of) || threads < 1 || threads > 1024)) r = INVALID_VALUE;
  if (r == OK) *blocks = 1024 / threads;
  return r;
}
