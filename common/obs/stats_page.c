/* SPDX-License-Identifier: Apache-2.0
 * Whose page is it, and is its process still there? */
#include "common/obs/stats_page.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HALF_WRITTEN_S 60 /* a page without magic is being made, or was left like that */

/* The text of /proc/PID/stat. False: errno is ESRCH if there is no such process. */
static bool read_stat(pid_t pid, char *text, size_t size) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT) errno = ESRCH;
    return false;
  }
  ssize_t n = read(fd, text, size - 1);
  int err = n < 0 ? errno : ESRCH;
  close(fd);
  errno = err;
  if (n <= 0) return false;
  text[n] = 0;
  return true;
}

bool rail_stats_process_start(pid_t pid, uint64_t *ticks) {
  char text[1024];
  if (!read_stat(pid, text, sizeof text)) return false;
  /* The name in brackets may hold anything; fields are counted from behind it. */
  char *at = strrchr(text, ')');
  char state = 0;
  long threads = 0;
  unsigned long long start = 0;
  if (!at || sscanf(at + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld %*s %llu", &state,
                    &threads, &start) != 3) {
    errno = EPROTO;
    return false;
  }
  errno = ESRCH;
  if (state == 'X' || (state == 'Z' && threads <= 1)) return false; /* Z with threads: only main has left */
  *ticks = start;
  return true;
}

uint64_t rail_stats_pid_ns(void) {
  struct stat st;
  return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

enum rail_stats_alive rail_stats_alive(int64_t pid, uint64_t start_time, uint64_t pid_ns) {
  uint64_t ours = rail_stats_pid_ns(), now = 0;
  if (ours == 0 || pid_ns != ours) return RAIL_STATS_ELSEWHERE;
  if (pid <= 0 || pid > INT32_MAX) return RAIL_STATS_DEAD;
  if (!rail_stats_process_start((pid_t)pid, &now)) return errno == ESRCH ? RAIL_STATS_DEAD : RAIL_STATS_ELSEWHERE;
  return now == start_time ? RAIL_STATS_LIVE : RAIL_STATS_DEAD;
}

bool rail_stats_file_name(const char *file, int64_t *pid, const char **name) {
  const size_t prefix = sizeof RAIL_STATS_PREFIX - 1;
  if (strncmp(file, RAIL_STATS_PREFIX, prefix) != 0 || file[prefix] < '1' || file[prefix] > '9') return false;
  char *end;
  errno = 0;
  long value = strtol(file + prefix, &end, 10);
  if (errno || value > INT32_MAX || *end != '.' || end[1] == 0) return false;
  for (const char *c = end + 1; *c; c++)
    if (!strchr(RAIL_STATS_NAME_LETTERS ".", *c)) return false;
  *pid = value;
  *name = end + 1;
  return true;
}

/* A page that can be read says whose it is; of one that cannot, only the name and the age do. */
static bool is_dead(int dir, const char *file, int64_t pid, const struct stat *st) {
  struct rail_stats_head head;
  int fd = openat(dir, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t n = pread(fd, &head, sizeof head, 0);
  close(fd);
  if (n == (ssize_t)sizeof head && head.magic == RAIL_STATS_MAGIC && head.pid == pid)
    return rail_stats_alive(head.pid, head.start_time, head.pid_ns) == RAIL_STATS_DEAD;
  uint64_t ticks;
  return rail_stats_pid_ns() != 0 && !rail_stats_process_start((pid_t)pid, &ticks) && errno == ESRCH &&
         time(NULL) - st->st_mtime > HALF_WRITTEN_S;
}

int rail_stats_clean(const char *dir, bool others, int most, int *failed) {
  int removed = 0, kept = 0, seen = 0;
  DIR *d = opendir(dir);
  for (struct dirent *entry; d && seen < most && (entry = readdir(d)) != NULL;) {
    int64_t pid;
    const char *name;
    struct stat st;
    if (!rail_stats_file_name(entry->d_name, &pid, &name)) continue;
    seen++;
    if (fstatat(dirfd(d), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) continue;
    if ((!others && st.st_uid != geteuid()) || !is_dead(dirfd(d), entry->d_name, pid, &st)) continue;
    if (unlinkat(dirfd(d), entry->d_name, 0) == 0) removed++;
    else if (errno != ENOENT) kept++;
  }
  if (d) closedir(d);
  if (failed) *failed = kept;
  return removed;
}
