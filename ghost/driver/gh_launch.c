/* SPDX-License-Identifier: Apache-2.0
 * What the emulated driver's streams are given: copies, kernels, host functions. */
#include <stdlib.h>
#include <string.h>

#include "ghost/driver/gh_queue.h"

/* Bytes behind a blob; *data: where they lie, aligned as a kernel's parameters may have to be. NULL: out of memory. */
static struct gh_blob *blob_alloc(size_t size, char **data) {
  size_t head = (sizeof(struct gh_blob) + 15) / 16 * 16;
  struct gh_blob *b = aligned_alloc(16, head + (size + 15) / 16 * 16);
  if (!b) return NULL;
  *b = (struct gh_blob){.refs = 1};
  *data = (char *)b + head;
  return b;
}

/* ---- copies ---- */

/* `on_device`: the side that is the device's memory; on the other side, memory that the driver does not know is the
 * host's own. */
static int add_copy(const char *call, void *stream, const struct item *item, const void *on_device) {
  struct stream *s;
  int r = gh_queue_enter(call, stream, &s);
  if (r) return r;
  return gh_queue_leave(gh_reachable(on_device, item->size, gh_context()) ? gh_queue_add(s, item) : INVALID_VALUE);
}

/* Of the host's memory that is not registered the item gets a copy, since that is the caller's again when the call
 * returns. */
static int stage(struct item *item) {
  char *staged;
  if (gh_reachable(item->from, item->size, NULL)) return OK;
  item->blob = blob_alloc(item->size, &staged);
  if (!item->blob) return OUT_OF_MEMORY;
  item->from = memcpy(staged, item->from, item->size);
  return OK;
}

/* What goes to the host's memory that is not registered is waited for. */
GH_API int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *stream) {
  struct item item = {.kind = COPY, .to = (void *)(uintptr_t)to, .from = (void *)(uintptr_t)from, .size = size};
  struct stream *s;
  if (size == 0) return gh_enter_context("cuMemcpyAsync");
  int r = gh_queue_enter("cuMemcpyAsync", stream, &s);
  if (r) return r;
  if (gh_exceeds_allocation(item.to, size) || gh_exceeds_allocation(item.from, size)) r = INVALID_VALUE;
  if (r == OK) r = stage(&item);
  if (r == OK) r = gh_queue_add(s, &item);
  gh_queue_leave(r);
  gh_blob_unref(item.blob);
  return r || gh_reachable(item.to, size, NULL) ? r : cuStreamSynchronize(stream);
}

GH_API int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
  const void *p = (const void *)(uintptr_t)from;
  struct item item = {.kind = COPY, .to = to, .from = p, .size = size};
  return add_copy("cuMemcpyDtoHAsync_v2", stream, &item, p);
}

GH_API int cuMemsetD8Async(uint64_t address, unsigned char value, size_t size, void *stream) {
  void *p = (void *)(uintptr_t)address;
  struct item item = {.kind = SET, .to = p, .value = value, .size = size};
  return add_copy("cuMemsetD8Async", stream, &item, p);
}

/* ---- kernels, host functions ---- */

/* The bytes of the parameters: each aligned to its size, as compilers lay them out. */
static size_t gather(const size_t *sizes, int n, void **arguments, char *to) {
  size_t at = 0;
  for (int i = 0; i < n; i++) {
    at = (at + sizes[i] - 1) / sizes[i] * sizes[i];
    if (to) memcpy(to + at, arguments[i], sizes[i]);
    at += sizes[i];
  }
  return at;
}

/* A list of keys and values; false: it has none that leads to arguments. */
static bool find_buffer(void **extra, const void **buffer, size_t *size) {
  *buffer = NULL;
  *size = 0;
  for (; *extra != GH_PARAM_END; extra += 2) {
    if (*extra == GH_PARAM_BUFFER) *buffer = extra[1];
    else if (*extra == GH_PARAM_SIZE) *size = *(const size_t *)extra[1];
    else return false;
  }
  return *buffer != NULL && *size > 0;
}

static int make_blob(struct gh_blob **blob, const char *name, void **arguments, void **extra) {
  const size_t *sizes = NULL;
  const void *buffer = NULL;
  size_t size = 0;
  int n = gh_kernel_parameters(name, &sizes);
  if (extra && (arguments || !find_buffer(extra, &buffer, &size))) return INVALID_VALUE;
  if (!extra && (!arguments || !sizes)) return INVALID_VALUE;
  if (!extra) size = gather(sizes, n, arguments, NULL);
  char *at;
  struct gh_blob *b = blob_alloc((size + 15) / 16 * 16 + strlen(name) + 1, &at);
  if (!b) return OUT_OF_MEMORY;
  b->launch = (struct gh_launch){.name = strcpy(at + (size + 15) / 16 * 16, name), .arguments = at, .size = size};
  if (extra) memcpy(at, buffer, size);
  else gather(sizes, n, arguments, at);
  *blob = b;
  return OK;
}

static int launch(const char *call, const struct gh_launch_config *c, void *function, void **arguments, void **extra) {
  struct stream *s;
  struct gh_blob *blob;
  const struct gh_context *of = NULL;
  const char *name = gh_function_name(function, &of);
  int r = gh_queue_enter(call, c->stream, &s);
  if (r) return r;
  bool one_dimension = c->grid[1] == 1 && c->grid[2] == 1 && c->block[1] == 1 && c->block[2] == 1;
  if (!function || !one_dimension || !c->grid[0] || !c->block[0] || c->block[0] > 1024)
    return gh_queue_leave(INVALID_VALUE);
  const struct gh_context *context = s->context ? s->context : gh_context();
  if (!name || of != context) return gh_queue_leave(INVALID_HANDLE);
  r = make_blob(&blob, name, arguments, extra);
  if (r) return gh_queue_leave(r);
  struct gh_launch *l = &blob->launch;
  l->blocks = c->grid[0];
  l->threads = c->block[0];
  l->shared = c->shared;
  l->context = context;
  struct item item = {.kind = KERNEL, .blob = blob};
  r = gh_kernel_check(l);
  if (r == OK) r = gh_queue_add(s, &item);
  gh_blob_unref(blob);
  return gh_queue_leave(r);
}

GH_API int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **arguments,
                          void **extra) {
  struct gh_launch_config c = {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream, NULL, 0};
  return launch("cuLaunchKernel", &c, function, arguments, extra);
}

/* Attributes are about where and beside what a kernel runs; an event that shall be recorded when it has begun is
 * recorded once it has ended, which is late enough for who waits for it. */
GH_API int cuLaunchKernelEx(const struct gh_launch_config *c, void *function, void **arguments, void **extra) {
  int r = launch("cuLaunchKernelEx", c, function, arguments, extra);
  for (unsigned i = 0; r == OK && i < c->nattributes; i++)
    if (c->attributes[i].id == GH_LAUNCH_COMPLETION_EVENT)
      r = cuEventRecord(c->attributes[i].value.completion.event, c->stream);
  return r;
}

GH_API int cuLaunchHostFunc(void *stream, void (*call)(void *), void *argument) {
  struct stream *s;
  int r = gh_queue_enter("cuLaunchHostFunc", stream, &s);
  struct item item = {.kind = HOST, .call = call, .argument = argument};
  return r ? r : gh_queue_leave(call ? gh_queue_add(s, &item) : INVALID_VALUE);
}
