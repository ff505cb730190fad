/* SPDX-License-Identifier: Apache-2.0
 * Looks at the TCP sockets of this process from outside the plugin, and plays strangers. */
#ifndef RAIL_TEST_TCP_H
#define RAIL_TEST_TCP_H

#include <netinet/in.h>

#include "kit/kit_ensure.h"

struct tcp_socket {
  int fd;
  bool listening, connected;
  struct sockaddr_storage local;
  socklen_t local_len;
  unsigned long inode;
};

/* The TCP sockets this process has open, at most cap. */
int tcp_sockets(struct tcp_socket *out, int cap);
/* Of these, a listening one that is not among `before`; fails when there is none. */
struct tcp_socket tcp_new_listener(const struct tcp_socket *before, int nbefore);
/* A fresh blocking connection to a listener of this process. */
int tcp_dial(const struct tcp_socket *to);
int tcp_port(const struct tcp_socket *s);
/* Makes close() of this socket send a reset. */
void tcp_reset_on_close(int fd);

#endif
