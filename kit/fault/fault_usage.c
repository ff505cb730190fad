/* SPDX-License-Identifier: Apache-2.0
 * Counts descriptors, listeners, threads and shared memory of this process, how long a thread waited for a processor,
 * and what the other threads used. */
#include "kit/fault/fault_usage.h"

#include <dirent.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"

#define SETTLE_MS 1000
#define MAX_FDS 4096 /* that are looked at */

static int listeners(void) {
  static struct kit_tcp_socket all[MAX_FDS];
  int n = kit_tcp_sockets(all, MAX_FDS), found = 0;
  for (int i = 0; i < n; i++) found += all[i].listening;
  return found;
}

static void nothing(void *arg) { (void)arg; }

void kit_usage_first_thread(void) { kit_run_threads(1, nothing, NULL, 0); }

struct kit_usage kit_usage_now(void) {
  struct mallinfo2 heap = mallinfo2();
  return (struct kit_usage){.fds = kit_fd_count(), .threads = kit_thread_count(), .listeners = listeners(),
                            .heap = (int64_t)(heap.uordblks + heap.hblkhd)};
}

struct kit_usage kit_usage_settled(const struct kit_usage *before) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(SETTLE_MS));
  struct kit_usage now = kit_usage_now();
  while ((now.threads > before->threads || now.fds > before->fds) && !rail_deadline_passed(deadline)) {
    usleep(1000);
    now = kit_usage_now();
  }
  return now;
}

#define FD_NAME 128 /* of a link in /proc/self/fd */

static int nnoted;
static struct {
  int fd;
  char name[FD_NAME];
} noted[MAX_FDS];

static bool was_noted(int fd, const char *name) {
  for (int i = 0; i < nnoted; i++)
    if (noted[i].fd == fd && strcmp(noted[i].name, name) == 0) return true;
  return false;
}

static void note_fd(int fd, const char *name, void *arg) {
  (void)arg;
  if (nnoted == (int)RAIL_COUNT_OF(noted)) return;
  noted[nnoted].fd = fd;
  snprintf(noted[nnoted++].name, FD_NAME, "%s", name);
}

struct text {
  char *at;
  size_t size;
};

static void append_fd(int fd, const char *name, void *arg) {
  struct text *t = arg;
  size_t used = strlen(t->at);
  if (used + 1 == t->size || was_noted(fd, name)) return;
  struct kit_tcp_socket socket;
  int port = kit_tcp_socket_of(fd, &socket) ? kit_tcp_port(&socket) : 0;
  const char *comma = used ? ", " : "";
  if (port) snprintf(t->at + used, t->size - used, "%sTCP port %d", comma, port);
  else snprintf(t->at + used, t->size - used, "%s%s", comma, name);
}

/* Of all but the directory itself. */
static void each_fd(void (*function)(int fd, const char *name, void *arg), void *arg) {
  DIR *d = opendir("/proc/self/fd");
  for (struct dirent *e; d && (e = readdir(d));) {
    char name[FD_NAME];
    ssize_t length = readlinkat(dirfd(d), e->d_name, name, sizeof name - 1);
    if (length < 0 || atoi(e->d_name) == dirfd(d)) continue;
    name[length] = 0;
    function(atoi(e->d_name), name, arg);
  }
  if (d) closedir(d);
}

void kit_fds_note(void) {
  nnoted = 0;
  each_fd(note_fd, NULL);
}

void kit_fds_new(char *text, size_t size) {
  text[0] = 0;
  each_fd(append_fd, &(struct text){text, size});
}

void kit_shm_mapped(char *name, size_t size) {
  FILE *f = fopen("/proc/self/maps", "re");
  char line[512];
  name[0] = 0;
  while (f && !name[0] && fgets(line, sizeof line, f)) {
    const char *path = strstr(line, "/dev/shm/");
    size_t len = path ? strcspn(path, "\n") : 0;
    if (len > 0 && len < size && !strstr(path, " (deleted)")) snprintf(name, size, "%.*s", (int)len, path);
  }
  if (f) fclose(f);
}

int64_t kit_run_delay_ns(void) {
  FILE *f = fopen("/proc/thread-self/schedstat", "re");
  long long ran = 0, waited = 0;
  if (f && fscanf(f, "%lld %lld", &ran, &waited) != 2) waited = 0;
  if (f) fclose(f);
  return waited;
}

double kit_cpu_of_others(void) {
  struct timespec mine;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &mine);
  double all = (double)kit_cpu_ns() / 1e9, me = (double)mine.tv_sec + (double)mine.tv_nsec / 1e9;
  return all > me ? all - me : 0;
}
