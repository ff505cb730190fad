/* SPDX-License-Identifier: Apache-2.0
 * The fake driver's modules and their one kernel. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/device/gpu/driver.h"
#include "test/device/gpu/fake.h"

static const char image_mark[] = "fakegpu image"; /* what a file must begin with */
struct module {
  uint64_t alive;
  struct context *context;
  bool loaded; /* its kernels */
};
#define ALIVE 0x616c697665ull

static int make_module(void **module) {
  fake_wait_for("cuModuleLoad", fake_context());
  struct module *m = malloc(sizeof *m);
  *m = (struct module){.alive = ALIVE, .context = fake_context()};
  *module = m;
  fake_left("modules", 1);
  return OK;
}

API int cuModuleLoad(void **module, const char *file) {
  int r = fake_enter_unsafe("cuModuleLoad");
  if (r) return r;
  char text[sizeof image_mark] = "";
  FILE *f = fopen(file, "r");
  if (!f) return FILE_NOT_FOUND;
  size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  return n == sizeof text - 1 && strcmp(text, image_mark) == 0 ? make_module(module) : INVALID_IMAGE;
}

/* Of real images it knows the number that a fatbin begins with, no more. */
API int cuModuleLoadData(void **module, const void *image) {
  int r = fake_enter_unsafe("cuModuleLoadData");
  uint32_t magic;
  memcpy(&magic, image, sizeof magic);
  return r ? r : magic == 0xba55ed50u ? make_module(module) : INVALID_IMAGE;
}

API int cuModuleUnload(void *module) {
  int r = fake_enter_ending("cuModuleUnload");
  struct module *m = module;
  if (r || m->alive != ALIVE) return r ? r : INVALID_HANDLE;
  fake_wait_for("cuModuleUnload", m->context);
  m->alive = 0;
  free(m);
  fake_left("modules", -1);
  return OK;
}

API int cuModuleGetFunction(void **function, void *module, const char *name) {
  int r = fake_enter_context("cuModuleGetFunction");
  struct module *m = module;
  if (r == OK && m->alive != ALIVE) r = INVALID_HANDLE;
  if (r == OK && strcmp(name, "rd_collective") != 0) r = NOT_FOUND;
  if (r) return r;
  /* Kernels are loaded when they are asked for (CUDA_MODULE_LOADING=LAZY, which it is unless told). */
  if (!m->loaded) fake_wait_for("cuModuleGetFunction", m->context);
  m->loaded = true;
  *function = m;
  return OK;
}

struct context *fake_function_context(const void *function) {
  const struct module *m = function;
  return m && m->alive == ALIVE ? m->context : NULL;
}

API int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function, int threads, size_t shared) {
  (void)shared;
  int r = fake_enter_context("cuOccupancyMaxActiveBlocksPerMultiprocessor");
  const struct module *m = function;
  if (r == OK && (m->alive != ALIVE || threads < 1 || threads > 1024)) r = INVALID_VALUE;
  if (r == OK) *blocks = 1024 / threads;
  return r;
}
