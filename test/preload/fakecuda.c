/* SPDX-License-Identifier: Apache-2.0
 *
 * The few calls of the CUDA driver that `rail-kit bench` makes, over plain
 * memory. Put where libcuda.so.1 is looked for, it lets the way that GPU
 * memory takes be tested without a GPU. FAKECUDA_NONE: there is no device.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NO_DEVICE = 100 };

int cuInit(unsigned int flags);
int cuInit(unsigned int flags) {
  (void)flags;
  return getenv("FAKECUDA_NONE") ? NO_DEVICE : SUCCESS;
}

int cuDeviceGet(int *device, int ordinal);
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRetain(void **context, int device) {
  (void)device;
  *context = NULL;
  return SUCCESS;
}

int cuCtxSetCurrent(void *context);
int cuCtxSetCurrent(void *context) {
  (void)context;
  return SUCCESS;
}

int cuMemAlloc_v2(uint64_t *address, size_t size);
int cuMemAlloc_v2(uint64_t *address, size_t size) {
  void *memory = malloc(size);
  *address = (uint64_t)(uintptr_t)memory;
  return memory ? SUCCESS : OUT_OF_MEMORY;
}

int cuMemFree_v2(uint64_t address);
int cuMemFree_v2(uint64_t address) {
  free((void *)(uintptr_t)address);
  return SUCCESS;
}

int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t size);
int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t size) {
  memset((void *)(uintptr_t)address, value, size);
  return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size);
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
  memcpy((void *)(uintptr_t)to, from, size);
  return SUCCESS;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size);
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
  memcpy(to, (const void *)(uintptr_t)from, size);
  return SUCCESS;
}

/* Eight devices, by the page: of no use but to see that the caller asks. */
int cuPointerGetAttribute(void *value, int attribute, uint64_t address);
int cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
  const int ordinal = (int)(address >> 12 & 7);
  if (attribute != 9) return 1; /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
  memcpy(value, &ordinal, sizeof ordinal);
  return SUCCESS;
}
