/* SPDX-License-Identifier: Apache-2.0
 * The unix socket that takes file descriptors of exported memory, and the sending of one. rt_export.c opens it while
 * the communicator is made, and uses it in the thread that connects; rt_comm.c closes it. */
#include "core/gpu/rt_fd_receiver.h"

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

#define BACKLOG 4096        /* connections that wait in the socket, if the system allows it */
#define MAX_UNCLAIMED 1024 /* messages that wait here */
#define SEND_S 1            /* to reach a process of this host: its backlog is full, or it is stopped */
#define TAKE_MS 5000u       /* most time for one visit to the socket, however many connect without end */
#define SILENT_MS 1000 /* for one that has connected: a sender sends right after that */

struct rt_fd_message {
  struct rt_fd_message *next;
  int64_t pid;
  uint8_t key[RT_FD_KEY];
  int fd;
};

/* Bytes of the address; a leading 0 makes the name abstract. */
static socklen_t address_of(const uint8_t name[RT_FD_NAME], struct sockaddr_un *a) {
  *a = (struct sockaddr_un){.sun_family = AF_UNIX};
  int n = snprintf(&a->sun_path[1], sizeof a->sun_path - 1, "railyard-");
  for (int i = 0; i < RT_FD_NAME; i++)
    n += snprintf(&a->sun_path[1 + n], sizeof a->sun_path - 1 - (size_t)n, "%02x", name[i]);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* The peer's process, if it is one of this user's; else 0. */
static int64_t pid_of(int fd) {
  struct ucred who;
  socklen_t size = sizeof who;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return 0;
  return who.uid == geteuid() ? who.pid : 0;
}

/* ---- the socket ---------------------------------------------------------------------- */

bool rt_fd_receiver_open(struct rt_fd_receiver *receiver) {
  struct sockaddr_un a;
  *receiver = (struct rt_fd_receiver){.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
  receiver->open = receiver->fd >= 0;
  if (!receiver->open) return false;
  if (rail_random_bytes(receiver->name, sizeof receiver->name) == RAIL_OK) {
    socklen_t size = address_of(receiver->name, &a);
    if (bind(receiver->fd, (const struct sockaddr *)&a, size) == 0 && listen(receiver->fd, BACKLOG) == 0) return true;
  }
  int error = errno;
  rt_fd_receiver_close(receiver);
  errno = error;
  return false;
}

static void message_free(struct rt_fd_message *p) {
  close(p->fd);
  free(p);
}

void rt_fd_receiver_close(struct rt_fd_receiver *receiver) {
  if (!receiver->open) return;
  while (receiver->unclaimed) {
    struct rt_fd_message *p = receiver->unclaimed;
    receiver->unclaimed = p->next;
    message_free(p);
  }
  close(receiver->fd); /* the kernel closes descriptors that still wait in it */
  *receiver = (struct rt_fd_receiver){.open = false};
}

/* ---- sending -------------------------------------------------------------------------- */

union control {
  struct cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int))];
};

static bool send_fd(int to, const uint8_t key[RT_FD_KEY], int fd) {
  union control control = {.bytes = {0}};
  struct iovec data = {.iov_base = (void *)(uintptr_t)key, .iov_len = RT_FD_KEY};
  struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
  memcpy(CMSG_DATA(c), &fd, sizeof fd);
  return sendmsg(to, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == RT_FD_KEY;
}

static bool reach(int to, const uint8_t name[RT_FD_NAME], int64_t pid, char why[RT_WHY]) {
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

bool rt_fd_send(const uint8_t name[RT_FD_NAME], int64_t pid, const uint8_t key[RT_FD_KEY], int fd, char why[RT_WHY]) {
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

/* Is there a message, or its end? A signal of the program's does not end the wait. */
static bool wait_for_message(int from) {
  struct pollfd p = {.fd = from, .events = POLLIN};
  const uint64_t until = rail_deadline_in_ms(SILENT_MS);
  int n = poll(&p, 1, SILENT_MS);
  while (n < 0 && errno == EINTR) n = poll(&p, 1, rail_deadline_left_ms(until));
  return n == 1;
}

static int receive(int from, uint8_t key[RT_FD_KEY]) {
  union control control;
  struct iovec data = {.iov_base = key, .iov_len = RT_FD_KEY};
  struct msghdr m = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  if (!wait_for_message(from)) return -1;
  ssize_t n = recvmsg(from, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  int fd = n < 0 ? -1 : only_fd(&m);
  if (fd >= 0 && n != RT_FD_KEY) {
    close(fd);
    return -1;
  }
  return fd;
}

static void keep(struct rt_fd_receiver *receiver, int64_t pid, int from) {
  struct rt_fd_message *p = receiver->nunclaimed < MAX_UNCLAIMED ? malloc(sizeof *p) : NULL;
  if (!p) return;
  *p = (struct rt_fd_message){.next = receiver->unclaimed, .pid = pid};
  p->fd = receive(from, p->key);
  if (p->fd < 0) {
    RAIL_INFO(RAIL_SUB_INIT, "process %lld sent no file descriptor, or garbage", (long long)pid);
    free(p);
    return;
  }
  receiver->unclaimed = p;
  receiver->nunclaimed++;
}

static void receive_all(struct rt_fd_receiver *receiver) {
  const uint64_t until = rail_deadline_in_ms(TAKE_MS);
  while (!rail_deadline_passed(until)) {
    int from = accept4(receiver->fd, NULL, NULL, SOCK_CLOEXEC);
    if (from < 0) {
      if (errno == EAGAIN) return;
      if (errno != EINTR && errno != ECONNABORTED) break;
      continue;
    }
    int64_t pid = pid_of(from);
    if (pid)
      keep(receiver, pid, from);
    else
      RAIL_INFO(RAIL_SUB_INIT, "a process of another user connected to this one's unix socket; it was refused");
    close(from);
  }
}

int rt_fd_receive(struct rt_fd_receiver *receiver, int64_t pid, const uint8_t key[RT_FD_KEY]) {
  if (!receiver->open) return -1;
  receive_all(receiver);
  struct rt_fd_message **at = &receiver->unclaimed, *p;
  while ((p = *at) && !(p->pid == pid && memcmp(p->key, key, RT_FD_KEY) == 0)) at = &p->next;
  if (!p) return -1;
  int fd = p->fd;
  *at = p->next;
  receiver->nunclaimed--;
  free(p);
  return fd;
}
