/* SPDX-License-Identifier: Apache-2.0
 * Finds TCP sockets among this process's descriptors, and connects to their ports. */
#include "kit/kit_tcp.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

bool kit_tcp_socket_of(int fd, struct kit_tcp_socket *out) {
  struct kit_tcp_socket s = {.fd = fd, .local_len = sizeof s.local};
  struct stat st;
  if (fstat(fd, &st) != 0 || !S_ISSOCK(st.st_mode)) return false;
  int type = 0, listening = 0;
  socklen_t len = sizeof type;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) != 0 || type != SOCK_STREAM) return false;
  if (getsockname(fd, (struct sockaddr *)&s.local, &s.local_len) != 0) return false;
  if (s.local.ss_family != AF_INET && s.local.ss_family != AF_INET6) return false;
  len = sizeof listening;
  getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &len);
  struct sockaddr_storage peer;
  socklen_t peer_len = sizeof peer;
  s.listening = listening != 0;
  s.connected = getpeername(fd, (struct sockaddr *)&peer, &peer_len) == 0;
  s.inode = (unsigned long)st.st_ino;
  *out = s;
  return true;
}

int kit_tcp_sockets(struct kit_tcp_socket *out, int cap) {
  DIR *d = opendir("/proc/self/fd");
  ENSURE(d, "opendir /proc/self/fd: %s", strerror(errno));
  int n = 0;
  struct dirent *e;
  while ((e = readdir(d)) && n < cap)
    if (e->d_name[0] != '.' && kit_tcp_socket_of(atoi(e->d_name), &out[n])) n++;
  closedir(d);
  return n;
}

int kit_tcp_new_listeners(const struct kit_tcp_socket *before, int nbefore, struct kit_tcp_socket *out, int cap) {
  static struct kit_tcp_socket all[4096];
  int n = kit_tcp_sockets(all, 4096), found = 0;
  for (int i = 0; i < n && found < cap; i++) {
    bool old = false;
    for (int j = 0; j < nbefore; j++) old |= before[j].inode == all[i].inode;
    if (all[i].listening && !old) out[found++] = all[i];
  }
  return found;
}

int kit_tcp_port(const struct kit_tcp_socket *s) {
  return s->local.ss_family == AF_INET ? ntohs(((const struct sockaddr_in *)&s->local)->sin_port)
                                       : ntohs(((const struct sockaddr_in6 *)&s->local)->sin6_port);
}

int kit_tcp_dial(const struct kit_tcp_socket *to) {
  struct sockaddr_storage addr = to->local;
  if (addr.ss_family == AF_INET && ((struct sockaddr_in *)&addr)->sin_addr.s_addr == INADDR_ANY)
    ((struct sockaddr_in *)&addr)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ENSURE(fd >= 0, "socket: %s", strerror(errno));
  int rc = connect(fd, (struct sockaddr *)&addr, to->local_len);
  ENSURE(rc == 0, "connect to port %d: %s", kit_tcp_port(to), strerror(errno));
  return fd;
}

void kit_tcp_reset_on_close(int fd) {
  struct linger l = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
}
