/* SPDX-License-Identifier: Apache-2.0
 * The process' own file, and those of others. */
#include "emu/emu_segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEGMENT_MAGIC 0x32756d652d6c6961u

struct emu_own emu_own = {.fd = -1};

static const char *directory(void) {
  const char *dir = getenv("RAIL_EMU_DIR");
  return dir && *dir ? dir : "/dev/shm";
}

static void name_of(char path[PATH_MAX], uint32_t slot) {
  snprintf(path, PATH_MAX, "%s/rail-emu.%u.%u", directory(), (unsigned int)geteuid(), slot);
}

static bool lock_file(int fd) {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  return fcntl(fd, F_SETLK, &lock) == 0;
}

static bool is_locked(int fd) {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  return fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* Whether the file has this name still. */
static bool is_named(int fd, const char *path) {
  struct stat by_fd, by_name;
  return fstat(fd, &by_fd) == 0 && stat(path, &by_name) == 0 && by_fd.st_ino == by_name.st_ino &&
         by_fd.st_dev == by_name.st_dev;
}

/* Tells those that look at the memory still, before anybody else can have the name. */
static void mark_ended(int fd) {
  struct stat st;
  struct emu_segment *segment = MAP_FAILED;
  if (fstat(fd, &st) == 0 && (uint64_t)st.st_size >= EMU_RINGS_AT)
    segment = mmap(NULL, EMU_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (segment == MAP_FAILED) return;
  atomic_store(&segment->has_ended, 1);
  munmap(segment, EMU_PAGE);
}

/* Its process was killed: nobody holds its lock. */
static void remove_stale(const char *path) {
  int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return;
  if (lock_file(fd) && is_named(fd, path)) {
    mark_ended(fd);
    unlink(path);
  }
  close(fd);
}

static void remove_all_stale(void) {
  char prefix[64], path[PATH_MAX];
  DIR *dir = opendir(directory());
  snprintf(prefix, sizeof prefix, "rail-emu.%u.", (unsigned int)geteuid());
  for (struct dirent *e; dir && (e = readdir(dir)) != NULL;)
    if (strncmp(e->d_name, prefix, strlen(prefix)) == 0) {
      snprintf(path, sizeof path, "%s/%s", directory(), e->d_name);
      remove_stale(path);
    }
  if (dir) closedir(dir);
}

/* The file gets its name when it is complete and locked. */
static int take_slot(int fd) {
  char path[PATH_MAX], self[64];
  snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
  for (uint32_t i = 0; i < EMU_SLOTS; i++) {
    emu_own.slot = ((uint32_t)getpid() + i) % EMU_SLOTS;
    name_of(path, emu_own.slot);
    if (linkat(AT_FDCWD, self, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0) return 0;
    if (errno != EEXIST) return errno;
  }
  return EUSERS;
}

int emu_segment_reserve(uint64_t offset, uint64_t size) {
  int err;
  do err = posix_fallocate(emu_own.fd, (off_t)offset, (off_t)size);
  while (err == EINTR);
  return err;
}

int emu_segment_open(void) {
  if (emu_own.segment) return 0;
  remove_all_stale();
  emu_own.fd = open(directory(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (emu_own.fd < 0) return errno;
  emu_own.end = EMU_RINGS_AT;
  int err = lock_file(emu_own.fd) ? emu_segment_reserve(0, EMU_RINGS_AT) : errno;
  void *memory = err ? MAP_FAILED : mmap(NULL, EMU_RINGS_AT, PROT_READ | PROT_WRITE, MAP_SHARED, emu_own.fd, 0);
  if (!err && memory == MAP_FAILED) err = errno;
  if (!err) {
    struct emu_segment *own = memory;
    own->magic = SEGMENT_MAGIC;
    own->pid = getpid();
    if (getrandom(&own->incarnation, sizeof own->incarnation, 0) != sizeof own->incarnation) err = errno;
    own->incarnation |= 1;
    emu_own.segment = own;
  }
  if (!err) err = take_slot(emu_own.fd);
  if (err) {
    if (emu_own.segment) munmap(emu_own.segment, EMU_RINGS_AT);
    emu_own.segment = NULL;
    close(emu_own.fd);
    emu_own.fd = -1;
  }
  return err;
}

void emu_segment_unlink(void) {
  char path[PATH_MAX];
  if (!emu_own.segment) return;
  name_of(path, emu_own.slot);
  atomic_store(&emu_own.segment->has_ended, 1);
  if (is_named(emu_own.fd, path)) unlink(path); /* else it was unlinked before, and is another process' now */
}

void emu_segment_close(bool remove) {
  if (!emu_own.segment) return;
  if (remove) emu_segment_unlink();
  munmap(emu_own.segment, EMU_RINGS_AT);
  emu_own.segment = NULL;
  close(emu_own.fd);
  emu_own.fd = -1;
}

struct emu_segment *emu_segment_map(uint32_t slot, int *fd) {
  char path[PATH_MAX];
  struct stat st;
  char *memory = MAP_FAILED;
  name_of(path, slot);
  int file = slot < EMU_SLOTS ? open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW) : -1;
  if (file >= 0 && is_locked(file) && fstat(file, &st) == 0 && (uint64_t)st.st_size >= EMU_RINGS_AT)
    memory = mmap(NULL, EMU_RINGS_AT, PROT_READ, MAP_SHARED, file, 0);
  struct emu_segment *segment = memory == MAP_FAILED ? NULL : (struct emu_segment *)(void *)memory;
  if (segment && (segment->magic != SEGMENT_MAGIC || mprotect(memory, EMU_PAGE, PROT_READ | PROT_WRITE) != 0)) {
    munmap(memory, EMU_RINGS_AT);
    segment = NULL;
  }
  if (segment && fd) *fd = file;
  else if (file >= 0) close(file);
  return segment;
}

void emu_segment_unmap(struct emu_segment *segment) { munmap(segment, EMU_RINGS_AT); }
