/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of an emulated GPU (ghost's, where its driver is in the process): kernels do not
 * see what a device writes there until the device has answered a read. Ghost keeps account of that
 * (ghost/driver/gh_nic.h); the functions here report to it.
 */
#include "emu/emu.h"

#include <dlfcn.h>

static struct {
  bool (*is_device)(const void *p, size_t size);
  void *(*dma_buf)(int fd, uint64_t offset, size_t size);
  void (*wrote)(const void *nic, const void *p, size_t size);
  void (*read)(const void *nic);
} ghost;

/* The driver may come later than the first registration. NVIDIA's has none of these. */
static bool find_ghost(void) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  void *driver = ghost.read ? NULL : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  if (driver) {
    *(void **)(void *)&ghost.is_device = dlsym(driver, "ghost_nic_is_device");
    *(void **)(void *)&ghost.dma_buf = dlsym(driver, "ghost_nic_dma_buf");
    *(void **)(void *)&ghost.wrote = dlsym(driver, "ghost_nic_wrote");
    *(void **)(void *)&ghost.read = dlsym(driver, "ghost_nic_read");
    dlclose(driver);
  }
  bool found = ghost.is_device && ghost.dma_buf && ghost.wrote && ghost.read;
  pthread_mutex_unlock(&lock);
  return found;
}

bool emu_gpu_holds(const void *p, size_t size) { return find_ghost() && ghost.is_device(p, size); }

char *emu_gpu_dma_buf(int fd, uint64_t offset, size_t size) {
  return find_ghost() ? ghost.dma_buf(fd, offset, size) : NULL;
}

void emu_gpu_wrote(const struct emu_device *d, const void *p, size_t size) { ghost.wrote(d, p, size); }
void emu_gpu_read(const struct emu_device *d) { ghost.read(d); }
