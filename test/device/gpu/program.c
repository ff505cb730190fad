/* SPDX-License-Identifier: Apache-2.0
 * The fake driver's calls by which a program chooses its device. */
#include <stdio.h>
#include <string.h>

#include "test/device/gpu/driver.h"
#include "test/device/gpu/fake.h"

API int cuDeviceGetCount(int *count) {
  int r = fake_enter("cuDeviceGetCount");
  if (r == OK) *count = fake_devices();
  return r;
}

API int cuDeviceGet(int *device, int ordinal) {
  int r = fake_enter("cuDeviceGet");
  if (r == OK && (ordinal < 0 || ordinal >= fake_devices())) r = INVALID_DEVICE;
  if (r == OK) *device = ordinal;
  return r;
}

API int cuDeviceGetName(char *text, int size, int device) {
  int r = fake_enter("cuDeviceGetName");
  if (r == OK && (device < 0 || device >= fake_devices())) r = INVALID_DEVICE;
  if (r == OK) snprintf(text, (size_t)size, "fake GPU %d", device);
  return r;
}

/* Devices' contexts are there as long as the process. */
API int cuDevicePrimaryCtxRelease_v2(int device) {
  int r = fake_enter_ending("cuDevicePrimaryCtxRelease");
  return r == OK && (device < 0 || device >= fake_devices()) ? INVALID_DEVICE : r;
}
