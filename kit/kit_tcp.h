/* SPDX-License-Identifier: Apache-2.0
 * Lists the TCP sockets of this process from outside the plugin, and connects as a foreign client. */
#ifndef RAIL_KIT_TCP_H
#define RAIL_KIT_TCP_H

#include <netinet/in.h>

#include "kit/kit_ensure.h"

struct kit_tcp_socket {
  int fd;
  bool listening, connected;
  struct sockaddr_storage local;
  socklen_t local_len;
  unsigned long inode;
};

/* False: fd is no TCP socket, and *out stays as it was. */
bool kit_tcp_socket_of(int fd, struct kit_tcp_socket *out);
/* The TCP sockets this process has open, at most cap. */
int kit_tcp_sockets(struct kit_tcp_socket *out, int cap);
/* Of these, the listening ones that are not among `before`, at most cap. */
int kit_tcp_new_listeners(const struct kit_tcp_socket *before, int nbefore, struct kit_tcp_socket *out, int cap);
/* A fresh blocking connection to a listener of this process. */
int kit_tcp_dial(const struct kit_tcp_socket *to);
int kit_tcp_port(const struct kit_tcp_socket *s);
/* Makes close() of this socket send a reset. */
void kit_tcp_reset_on_close(int fd);

#endif
