/* SPDX-License-Identifier: Apache-2.0
 *
 * Gives every TCP socket of a program one congestion control, whatever the
 * program is. Loaded with LD_PRELOAD by the benchmarks, which compare
 * programs that do not know each other.
 *
 *   BENCH_CC=NAME         what each socket gets when it is made; without it nothing is changed
 *   BENCH_CC_FILE=PATH    each process appends a line "PID NAME=N NAME=N…" when it exits: how many connected
 *                        sockets had which congestion control when they were closed, or at the end
 *
 * What a program sets later by itself wins, and is seen in the report.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <pthread.h>

enum { NAME_SIZE = 16, MAX_NAMES = 8, MAX_FD = 4096 };

static struct {
  char name[NAME_SIZE];
  unsigned long sockets;
} seen[MAX_NAMES];
static pthread_mutex_t seen_lock = PTHREAD_MUTEX_INITIALIZER;

#define PUBLIC __attribute__((visibility("default")))

/* The next definition of a function, looked up each time: none of these calls is on a data path. */
#define NEXT(name)                       \
  __typeof__(&name) real;                \
  void *found = dlsym(RTLD_NEXT, #name); \
  memcpy(&real, &found, sizeof real)

/* A TCP socket that has a peer, or had one; its congestion control. */
static bool connected_tcp(int fd, char name[NAME_SIZE]) {
  struct tcp_info info;
  int domain;
  socklen_t size = sizeof domain;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0 || (domain != AF_INET && domain != AF_INET6))
    return false;
  size = sizeof info;
  memset(&info, 0, sizeof info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_state == TCP_LISTEN) return false;
  if (info.tcpi_rcv_mss == 0 || info.tcpi_state == TCP_SYN_SENT) return false;
  size = NAME_SIZE - 1;
  memset(name, 0, NAME_SIZE);
  return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0;
}

static void tally(int fd) {
  char name[NAME_SIZE];
  int saved = errno;
  if (connected_tcp(fd, name)) {
    pthread_mutex_lock(&seen_lock);
    int i = 0;
    while (i < MAX_NAMES - 1 && seen[i].name[0] && strcmp(seen[i].name, name) != 0) i++;
    memcpy(seen[i].name, name, sizeof name);
    seen[i].sockets++;
    pthread_mutex_unlock(&seen_lock);
  }
  errno = saved;
}

static int give(int fd) {
  const char *name = getenv("BENCH_CC");
  int saved = errno;
  if (fd >= 0 && name && setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) != 0 &&
      errno != EOPNOTSUPP && errno != ENOPROTOOPT)
    fprintf(stderr, "congestion: %s: %s\n", name, strerror(errno));
  errno = saved;
  return fd;
}

PUBLIC int socket(int domain, int type, int protocol) {
  NEXT(socket);
  int fd = real(domain, type, protocol);
  bool tcp = (domain == AF_INET || domain == AF_INET6) && (type & 0xf) == SOCK_STREAM;
  return tcp ? give(fd) : fd;
}

PUBLIC int accept(int fd, struct sockaddr *restrict addr, socklen_t *restrict len) {
  NEXT(accept);
  int got = real(fd, addr, len);
  char name[NAME_SIZE];
  return got >= 0 && connected_tcp(got, name) ? give(got) : got;
}

PUBLIC int accept4(int fd, struct sockaddr *restrict addr, socklen_t *restrict len, int flags) {
  NEXT(accept4);
  int got = real(fd, addr, len, flags);
  char name[NAME_SIZE];
  return got >= 0 && connected_tcp(got, name) ? give(got) : got;
}

PUBLIC int close(int fd) {
  tally(fd);
  return (int)syscall(SYS_close, fd);
}

__attribute__((destructor)) static void report(void) {
  const char *path = getenv("BENCH_CC_FILE");
  char text[256];
  if (!path) return;
  for (int fd = 0; fd < MAX_FD; fd++) tally(fd);
  int n = snprintf(text, sizeof text, "%d", (int)getpid());
  for (int i = 0; i < MAX_NAMES && seen[i].name[0]; i++)
    n += snprintf(text + n, sizeof text - (size_t)n, " %s=%lu", seen[i].name, seen[i].sockets);
  if (n == 0 || (size_t)n >= sizeof text - 1) return;
  text[n++] = '\n';
  int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return;
  (void)!syscall(SYS_write, fd, text, (size_t)n); /* one write, so that processes do not mix */
  syscall(SYS_close, fd);
}
