/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages between processes, on Unix sockets that keep their limits. A socket's name stands for port space, address
 * and port, and has no file: it is free again when its process is gone. Only processes of the same user that have the
 * same RAIL_EMU_DIR meet, in one network namespace. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "emu/cm/cm.h"

enum { CM_MAGIC = 0x316d6372, FIRST_FREE_PORT = 32768, FREE_PORTS = 28000, CM_QUEUE = 4096 };

static socklen_t name_of(const struct cm_id *id, const struct cm_addr *a, struct sockaddr_un *name) {
  char ip[INET6_ADDRSTRLEN] = "any";
  struct stat st = {0};
  const char *dir = getenv("RAIL_EMU_DIR");
  (void)stat(dir && *dir ? dir : "/dev/shm", &st);
  if (!cm_addr_is_any(a)) inet_ntop(AF_INET6, &a->ip, ip, sizeof ip);
  *name = (struct sockaddr_un){.sun_family = AF_UNIX};
  int n = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "rail-emu-cm.%u.%llx.%x.%u.%s",
                   (unsigned int)geteuid(), (unsigned long long)(st.st_ino ^ (uint64_t)st.st_dev << 40),
                   (unsigned int)id->id.ps, a->port, ip);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

static int try_port(const struct cm_id *id, uint16_t port) {
  struct sockaddr_un name;
  struct cm_addr a = id->src;
  a.port = port;
  socklen_t size = name_of(id, &a, &name);
  return bind(id->fd, (const struct sockaddr *)(const void *)&name, size) == 0 ? 0 : errno;
}

int cm_wire_bind(struct cm_id *id) {
  uint16_t random = 0;
  id->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (id->fd < 0) return errno;
  int err = EADDRINUSE;
  if (id->src.port) err = try_port(id, id->src.port);
  else if (getrandom(&random, sizeof random, 0) != sizeof random) random = (uint16_t)getpid();
  for (int i = 0; !id->src.port && i < FREE_PORTS && err == EADDRINUSE; i++) {
    uint16_t port = (uint16_t)(FIRST_FREE_PORT + (random + i) % FREE_PORTS);
    err = try_port(id, port);
    if (!err) id->src.port = port;
  }
  if (!err) return 0;
  close(id->fd);
  id->fd = -1;
  return err;
}

int cm_wire_listen(struct cm_id *id) { return listen(id->fd, CM_QUEUE) == 0 ? 0 : errno; }

int cm_wire_accept(const struct cm_id *id) {
  for (;;) {
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    int fd = accept4(id->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 || (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid())) return fd;
    close(fd);
  }
}

int cm_wire_connect(const struct cm_id *id) {
  struct sockaddr_un name;
  const struct cm_addr any = {.port = id->dst.port};
  socklen_t size = name_of(id, &id->dst, &name);
  if (connect(id->fd, (const struct sockaddr *)(const void *)&name, size) == 0) return 0;
  if (errno != ECONNREFUSED) return errno;
  size = name_of(id, &any, &name);
  return connect(id->fd, (const struct sockaddr *)(const void *)&name, size) == 0 ? 0 : errno;
}

bool cm_wire_send(const struct cm_id *id, struct cm_message *m) {
  m->magic = CM_MAGIC;
  return send(id->fd, m, sizeof *m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof *m;
}

int cm_wire_receive(const struct cm_id *id, struct cm_message *m) {
  ssize_t n = recv(id->fd, m, sizeof *m, MSG_DONTWAIT | MSG_TRUNC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  bool good = n == (ssize_t)sizeof *m && m->magic == CM_MAGIC && m->type >= CM_REQ && m->type <= CM_DREP &&
              m->mtu <= IBV_MTU_4096 && m->retry_count <= 7 && m->rnr_retry_count <= 7;
  if (good) return 1;
  static bool said;
  if (n > 0 && !said)
    fprintf(stderr, "rail-emu: a message of the RDMA CM makes no sense: that connection is closed, and further such\n");
  said |= n > 0;
  return -1;
}
