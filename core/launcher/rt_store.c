/* SPDX-License-Identifier: Apache-2.0
 *
 * The file store. All names are resolved from a descriptor of the directory,
 * so that it cannot be replaced between two calls.
 */
#include "core/launcher/rt_store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/sock.h"
#include "core/comm/rt_error.h"

#define STORE_MAGIC 0x4f545352u /* "RSTO" */
#define FILE_NAME (3 * RT_STORE_MAX_KEY + 8)

struct rt_store {
  int dir_fd;
  char *path;
};

/* In front of each value, so that another program's file is not taken for one. */
struct value_header {
  uint32_t magic, size;
};

/* ---- open, close ---- */

rail_result_t rt_store_open(const char *dir, bool personal, struct rt_store **out) {
  struct stat st;
  struct rt_store *s = calloc(1, sizeof *s);
  *out = NULL;
  if (s) s->dir_fd = -1;
  if (!s || !(s->path = strdup(dir))) {
    free(s);
    return (rail_result_t)rt_error(RAIL_SYSTEM_ERROR, "store: out of memory for the directory %s", dir);
  }
  if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
    rt_error(RAIL_SYSTEM_ERROR, "store: cannot make the directory %s: %m", dir);
    goto failed;
  }
  s->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (personal ? O_NOFOLLOW : 0));
  if (s->dir_fd < 0 || fstat(s->dir_fd, &st) != 0) {
    rt_error(RAIL_SYSTEM_ERROR, "store: cannot open the directory %s: %m", dir);
    goto failed;
  }
  if (personal && (st.st_uid != geteuid() || (st.st_mode & 077) != 0)) {
    rt_error(RAIL_SYSTEM_ERROR,
             "store: %s belongs to user %u with mode %04o; it must be this user's (%u) and 0700. Remove it, or set "
             "RAIL_STORE to another directory",
             dir, st.st_uid, st.st_mode & 07777u, geteuid());
    goto failed;
  }
  *out = s;
  return RAIL_OK;

failed:
  rt_store_close(s);
  return RAIL_SYSTEM_ERROR;
}

void rt_store_close(struct rt_store *s) {
  if (!s) return;
  rail_sock_close(&s->dir_fd);
  free(s->path);
  free(s);
}

const char *rt_store_path(const struct rt_store *s) { return s->path; }

/* ---- values ---- */

/* A key as a file name: letters, digits, '-' and '_' as they are, others as %XX. False: too long or empty. */
static bool file_name(const char *key, char name[FILE_NAME]) {
  static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
  size_t at = 0, len = strlen(key);
  if (len == 0 || len > RT_STORE_MAX_KEY) {
    rt_error(RAIL_BAD_ARGUMENT, "store: a key has 1 to %d characters, \"%.80s\" has %zu", RT_STORE_MAX_KEY, key, len);
    return false;
  }
  for (; *key; key++) {
    if (strchr(plain, *key))
      name[at++] = *key;
    else
      at += (size_t)snprintf(name + at, 4, "%%%02X", (unsigned char)*key);
  }
  name[at] = 0;
  return true;
}

static bool write_all(int fd, const void *data, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t n = write(fd, (const char *)data + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += (size_t)n;
  }
  return true;
}

rail_result_t rt_store_set(struct rt_store *s, const char *key, const void *data, size_t size) {
  struct value_header head = {.magic = STORE_MAGIC, .size = (uint32_t)size};
  char name[FILE_NAME], aside[64];
  uint64_t unique;
  if (!file_name(key, name) || size > RT_STORE_MAX_VALUE) return RAIL_BAD_ARGUMENT;
  RAIL_TRY(rail_random_bytes(&unique, sizeof unique));
  snprintf(aside, sizeof aside, ".new-%016" PRIx64, unique); /* no key's name begins with a dot */
  int fd = openat(s->dir_fd, aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) {
    rt_error(RAIL_SYSTEM_ERROR, "store: cannot write in %s: %m", s->path);
    return RAIL_SYSTEM_ERROR;
  }
  /* fsync: on a network file system the data must be there before the name is. */
  bool good = write_all(fd, &head, sizeof head) && write_all(fd, data, size) && fsync(fd) == 0;
  if (close(fd) != 0) good = false;
  if (good && renameat(s->dir_fd, aside, s->dir_fd, name) == 0) return RAIL_OK;
  rt_error(RAIL_SYSTEM_ERROR, "store: cannot write %s/%s: %m", s->path, name);
  unlinkat(s->dir_fd, aside, 0);
  return RAIL_SYSTEM_ERROR;
}

static bool read_all(int fd, void *data, size_t size) {
  for (size_t done = 0; done < size;) {
    ssize_t n = read(fd, (char *)data + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += (size_t)n;
  }
  return true;
}

rail_result_t rt_store_try_get(struct rt_store *s, const char *key, void *data, size_t *size) {
  struct value_header head;
  char name[FILE_NAME], extra;
  if (!file_name(key, name)) return RAIL_BAD_ARGUMENT;
  int fd = openat(s->dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  /* ESTALE: a network file system returns it for a file that was just replaced. */
  if (fd < 0 && (errno == ENOENT || errno == ESTALE)) return RAIL_IN_PROGRESS;
  if (fd < 0) {
    rt_error(RAIL_SYSTEM_ERROR, "store: cannot read %s/%s: %m", s->path, name);
    return RAIL_SYSTEM_ERROR;
  }
  bool good = read_all(fd, &head, sizeof head) && head.magic == STORE_MAGIC && head.size <= *size &&
              read_all(fd, data, head.size) && read(fd, &extra, 1) == 0;
  close(fd);
  if (!good) {
    rt_error(RAIL_SYSTEM_ERROR, "store: %s/%s is no value of this store, or larger than %zu bytes; remove it", s->path,
             name, *size);
    return RAIL_SYSTEM_ERROR;
  }
  *size = head.size;
  return RAIL_OK;
}

rail_result_t rt_store_get(struct rt_store *s, const char *key, void *data, size_t *size, uint64_t deadline,
                           const _Atomic int *abort_flag) {
  for (int pause = RT_STORE_POLL_FIRST_MS;; pause = RAIL_MIN(2 * pause, RT_STORE_POLL_MAX_MS)) {
    rail_result_t result = rt_store_try_get(s, key, data, size);
    if (result != RAIL_IN_PROGRESS) return result;
    if (abort_flag && atomic_load(abort_flag)) {
      errno = ECANCELED;
      return RAIL_REMOTE_ERROR;
    }
    if (rail_deadline_passed(deadline)) {
      errno = ETIMEDOUT;
      return RAIL_REMOTE_ERROR;
    }
    poll(NULL, 0, pause);
  }
}

void rt_store_remove(struct rt_store *s, const char *key) {
  char name[FILE_NAME];
  if (file_name(key, name)) unlinkat(s->dir_fd, name, 0);
}

void rt_store_remove_dir(struct rt_store *s) { rmdir(s->path); }
