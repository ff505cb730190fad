/* SPDX-License-Identifier: Apache-2.0 */
#include "core/gpu/rt_inbox.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/compiler.h"
#include "common/base/log.h"
#include "common/base/sock.h"

#define BACKLOG 4096   /* what may wait there, if the system allows it */
#define ARRIVED 1024   /* and here */
#define SEND_S 1
#define TAKE_MS 5000u
#define SILENT_MS 1000 /* for one that has connected and says nothing: it sends right after it has connected */

struct rt_parcel {
  struct rt_parcel *next;
  int64_t pid;
  uint8_t key[RT_INBOX_KEY];
  int fd;
};

/* Bytes of the address; a leading 0 makes the name abstract. */
static socklen_t address_of(const uint8_t name[RT_INBOX_NAME], struct sockaddr_un *a) {
  *a = (struct sockaddr_un){.sun_family = AF_UNIX};
  int n = snprintf(&a->sun_path[1], sizeof a->sun_path - 1, "railyard-");
  for (int i = 0; i < RT_INBOX_NAME; i++)
    n += snprintf(&a->sun_path[1 + n], sizeof a->sun_path - 1 - (size_t)n, "%02x", name[i]);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Who is at the other end, if it is a process of this user; 0: somebody else. */
static int64_t pid_of(int fd) {
  struct ucred who;
  socklen_t size = sizeof who;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return 0;
  return who.uid == geteuid() ? who.pid : 0;
}

/* ---- the inbox ---------------------------------------------------------------------- */

bool rt_inbox_open(struct rt_inbox *inbox) {
  struct sockaddr_un a;
  *inbox = (struct rt_inbox){.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  inbox->open = inbox->fd >= 0;
  if (!inbox->open) return false;
  if (rail_random_bytes(inbox->name, sizeof inbox->name) == RAIL_OK) {
    socklen_t size = address_of(inbox->name, &a);
    if (bind(inbox->fd, (const struct sockaddr *)&a, size) == 0 && listen(inbox->fd, BACKLOG) == 0) return true;
  }
  int error = errno;
  rt_inbox_close(inbox);
  errno = error;
  return false;
}

static void parcel_free(struct rt_parcel *p) {
  close(p->fd);
  free(p);
}

void rt_inbox_close(struct rt_inbox *inbox) {
  if (!inbox->open) return;
  while (inbox->arrived) {
    struct rt_parcel *p = inbox->arrived;
    inbox->arrived = p->next;
    parcel_free(p);
  }
  close(inbox->fd); /* descriptors that still wait in it are the kernel's to close */
  *inbox = (struct rt_inbox){.open = false};
}

/* ---- sending -------------------------------------------------------------------------- */

union control {
  struct cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int))];
};

static bool send_fd(int to, const uint8_t key[RT_INBOX_KEY], int fd) {
  union control control = {.bytes = {0}};
  struct iovec data = {.iov_base = (void *)(uintptr_t)key, .iov_len = RT_INBOX_KEY};
  struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
  return sendmsg(to, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == RT_INBOX_KEY;
}

static bool reach(int to, const uint8_t name[RT_INBOX_NAME], int64_t pid, char why[RT_WHY]) {
  struct sockaddr_un a;
  const struct timeval limit = {.tv_sec = SEND_S};
  socklen_t size = address_of(name, &a);
  if (setsockopt(to, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
      connect(to, (const struct sockaddr *)&a, size) != 0) {
    snprintf(why, RT_WHY, "process %lld cannot be reached by a unix socket: %s", (long long)pid, strerror(errno));
    return false;
  }
  if (pid_of(to) == pid) return true;
  snprintf(why, RT_WHY, "the unix socket of process %lld is another process'", (long long)pid);
  return false;
}

bool rt_inbox_send(const uint8_t name[RT_INBOX_NAME], int64_t pid, const uint8_t key[RT_INBOX_KEY], int fd,
                   char why[RT_WHY]) {
  int to = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (to < 0) {
    snprintf(why, RT_WHY, "no unix socket: %s", strerror(errno));
    return false;
  }
  bool good = reach(to, name, pid, why);
  if (good && !send_fd(to, key, fd)) {
    snprintf(why, RT_WHY, "process %lld takes no file descriptor: %s", (long long)pid, strerror(errno));
    good = false;
  }
  close(to);
  return good;
}

/* ---- taking ----------------------------------------------------------------------------- */

/* The one descriptor of a message; -1: it has none or more, which are closed. */
static int only_fd(struct msghdr *m) {
  int fds[sizeof(union control) / sizeof(int)], n = 0;
  for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t bytes = RAIL_MIN(c->cmsg_len - CMSG_LEN(0), sizeof fds - (size_t)n * sizeof *fds);
    memcpy(&fds[n], CMSG_DATA(c), bytes);
    n += (int)(bytes / sizeof *fds);
  }
  if (n == 1 && !(m->msg_flags & (MSG_CTRUNC | MSG_TRUNC))) return fds[0];
  while (n > 0) close(fds[--n]);
  return -1;
}

static int receive(int from, uint8_t key[RT_INBOX_KEY]) {
  struct pollfd p = {.fd = from, .events = POLLIN};
  union control control;
  struct iovec data = {.iov_base = key, .iov_len = RT_INBOX_KEY};
  struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  if (poll(&p, 1, SILENT_MS) != 1) return -1;
  ssize_t n = recvmsg(from, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  int fd = n < 0 ? -1 : only_fd(&m);
  if (fd >= 0 && n != RT_INBOX_KEY) {
    close(fd);
    return -1;
  }
  return fd;
}

static void keep(struct rt_inbox *inbox, int64_t pid, int from) {
  struct rt_parcel *p = inbox->narrived < ARRIVED ? malloc(sizeof *p) : NULL;
  if (!p) return;
  *p = (struct rt_parcel){.next = inbox->arrived, .pid = pid};
  p->fd = receive(from, p->key);
  if (p->fd < 0) {
    RAIL_INFO(RAIL_SUB_INIT, "process %lld left no file descriptor, or garbage", (long long)pid);
    free(p);
    return;
  }
  inbox->arrived = p;
  inbox->narrived++;
}

static void empty(struct rt_inbox *inbox) {
  const uint64_t until = rail_deadline_in_ms(TAKE_MS);
  while (!rail_deadline_passed(until)) {
    int from = accept4(inbox->fd, NULL, NULL, SOCK_CLOEXEC);
    if (from < 0) {
      if (errno == EAGAIN) return;
      if (errno != EINTR && errno != ECONNABORTED) break;
      continue;
    }
    int64_t pid = pid_of(from);
    if (pid)
      keep(inbox, pid, from);
    else
      RAIL_INFO(RAIL_SUB_INIT, "somebody else's process connected to this one's unix socket; it was not listened to");
    close(from);
  }
}

int rt_inbox_take(struct rt_inbox *inbox, int64_t pid, const uint8_t key[RT_INBOX_KEY]) {
  if (!inbox->open) return -1;
  empty(inbox);
  struct rt_parcel **at = &inbox->arrived, *p;
  while ((p = *at) && !(p->pid == pid && memcmp(p->key, key, RT_INBOX_KEY) == 0)) at = &p->next;
  if (!p) return -1;
  int fd = p->fd;
  *at = p->next;
  inbox->narrived--;
  free(p);
  return fd;
}
