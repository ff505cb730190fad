/* SPDX-License-Identifier: Apache-2.0
 *
 * A listen comm, and the TCP ports behind it that foreign clients connect to:
 * port scanners, health checks, another job. For checks of what keeps a real
 * peer out. A plugin that opens no TCP port of its own skips them.
 */
#ifndef RAIL_KIT_LISTENER_H
#define RAIL_KIT_LISTENER_H

#include "kit/kit_net.h"
#include "kit/kit_tcp.h"

struct kit_listener {
  struct kit_net *net;
  void *listen;
  char handle[RAIL_NET_HANDLE_SIZE];
  struct kit_tcp_socket socket[8]; /* all that listen since the plugin was loaded */
  int nsockets, dials;
};

/* Opens the plugin into *n and a listen comm; skips the check when there is no TCP port to connect to. */
void kit_listener_open(struct kit_net *n, struct kit_listener *d);
/* Turns a copy of an open listener into another listener of the same plugin. */
void kit_listener_open_another(struct kit_listener *d);
/* Closes the listen comm, and fails if that fails. */
void kit_listener_close(struct kit_listener *d);

/* A foreign client's connection to one of the ports, each in turn. */
int kit_listener_dial(struct kit_listener *d);
/* Polls accept, once at least, for `ms`; it must not give a connection. */
void kit_listener_accepts_none(struct kit_listener *d, int ms);

/* What it takes to accept a real peer, in this thread's processor time: it never sleeps, so that is how long it would
 * take on an idle machine. */
struct kit_accept_timing { double ms; int calls, long_calls; /* of accept; and those over 1 ms */ double longest_ms; };
/* A real peer is accepted, sends something, and closes. */
struct kit_accept_timing kit_listener_accept_peer(struct kit_listener *d);

/* Makes a connecting plugin connect to a port of ours instead, by changing the port in the handle, and records what it
 * sends first. Skips the check when the handle does not show the port. */
size_t kit_listener_record_hello(struct kit_listener *d, uint8_t *text, size_t cap);

/* Raises the limit of open files; skips the check when there is no room for `files`. */
void kit_need_files(int files);
/* How many are open, once they are no more than `expected`, or after KIT_SETTLE_MS: a thread may have to close them. */
int kit_files_after(int expected);

#endif
