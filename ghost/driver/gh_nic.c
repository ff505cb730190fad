/* SPDX-License-Identifier: Apache-2.0
 * What NICs wrote and no kernel can see yet; dma-bufs. */
#include "ghost/driver/gh_nic.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ghost/driver/gh_driver.h"

#define MARK 0x67686f7374646d61ull
#define ORDERED_FROM 9 /* the compute capability from which NCCL needs no flush (its ncclTopoNeedFlush) */

struct span {
  const void *nic;
  uintptr_t begin, end;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct span *hidden; /* those of one NIC neither overlap nor touch */
static size_t count, room;

/* ---- with the lock ---- */

static void add(struct span span) {
  if (count == room) {
    size_t more = room ? 2 * room : 64;
    struct span *larger = realloc(hidden, more * sizeof *larger);
    if (!larger) {
      fprintf(stderr, "ghost: out of memory for what NICs wrote\n");
      abort();
    }
    hidden = larger;
    room = more;
  }
  hidden[count++] = span;
}

static void drop(size_t i) { hidden[i] = hidden[--count]; }

/* ---- what NICs do ---- */

void ghost_nic_wrote(const void *nic, const void *p, size_t size) {
  struct span new = {nic, (uintptr_t)p, (uintptr_t)p + size};
  if (!size || gh_attribute(GH_COMPUTE_MAJOR) >= ORDERED_FROM) return;
  pthread_mutex_lock(&lock);
  for (size_t i = count; i-- > 0;) {
    const struct span *s = &hidden[i];
    if (s->nic != nic || s->end < new.begin || s->begin > new.end) continue;
    if (s->begin < new.begin) new.begin = s->begin;
    if (s->end > new.end) new.end = s->end;
    drop(i);
  }
  add(new);
  pthread_mutex_unlock(&lock);
}

void ghost_nic_read(const void *nic) {
  pthread_mutex_lock(&lock);
  for (size_t i = count; i-- > 0;)
    if (hidden[i].nic == nic) drop(i);
  pthread_mutex_unlock(&lock);
}

/* CUDA's own flush: of all that has arrived, whoever wrote it. */
GH_API int cuFlushGPUDirectRDMAWrites(int target, int scope) {
  int r = gh_enter_context("cuFlushGPUDirectRDMAWrites");
  if (r == OK && (target != 0 || (scope != 100 && scope != 200))) r = INVALID_VALUE;
  if (r) return r;
  pthread_mutex_lock(&lock);
  count = 0;
  pthread_mutex_unlock(&lock);
  return OK;
}

size_t ghost_nic_hidden(const void *p, size_t size) {
  uintptr_t begin = (uintptr_t)p, end = begin + size;
  size_t sum = 0;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < count; i++) {
    uintptr_t from = hidden[i].begin > begin ? hidden[i].begin : begin, to = hidden[i].end < end ? hidden[i].end : end;
    if (from < to) sum += to - from;
  }
  pthread_mutex_unlock(&lock);
  return sum;
}

void gh_nic_forget(const void *p, size_t size) {
  uintptr_t begin = (uintptr_t)p, end = begin + size;
  pthread_mutex_lock(&lock);
  for (size_t i = count; i-- > 0;) {
    const struct span s = hidden[i];
    if (s.end <= begin || s.begin >= end) continue;
    drop(i);
    if (s.begin < begin) add((struct span){s.nic, s.begin, begin});
    if (s.end > end) add((struct span){s.nic, end, s.end});
  }
  pthread_mutex_unlock(&lock);
}

/* ---- dma-bufs: a file of the range's size, whose first bytes say what it stands for ---- */

struct dma_buf {
  uint64_t mark;
  int64_t pid;
  uint64_t address, size;
};

int gh_dma_buf(uint64_t address, size_t size) {
  const struct dma_buf what = {MARK, getpid(), address, size};
  int fd = memfd_create("dma-buf", MFD_CLOEXEC);
  if (fd < 0) return -1;
  if (ftruncate(fd, (off_t)size) == 0 && pwrite(fd, &what, sizeof what, 0) == (ssize_t)sizeof what) return fd;
  close(fd);
  return -1;
}

bool ghost_nic_is_device(const void *p, size_t size) {
  return gh_on_device(p) && !gh_exceeds_allocation(p, size);
}

void *ghost_nic_dma_buf(int fd, uint64_t offset, size_t size) {
  struct dma_buf what;
  if (pread(fd, &what, sizeof what, 0) != (ssize_t)sizeof what || what.mark != MARK || what.pid != getpid() ||
      offset > what.size || size > what.size - offset)
    return NULL;
  void *p = (void *)(uintptr_t)(what.address + offset);
  return ghost_nic_is_device(p, size) ? p : NULL;
}
