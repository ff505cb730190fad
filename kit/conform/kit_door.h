/* SPDX-License-Identifier: Apache-2.0
 *
 * A listen comm, and the TCP ports behind it at which strangers knock: port
 * scanners, health checks, somebody else's job. For checks of what keeps a
 * real peer out. A plugin that opens no TCP port of its own skips them.
 */
#ifndef RAIL_KIT_DOOR_H
#define RAIL_KIT_DOOR_H

#include "kit/kit_net.h"
#include "kit/kit_tcp.h"

struct kit_door {
  struct kit_net *net;
  void *listen;
  char handle[RAIL_NET_HANDLE_SIZE];
  struct kit_tcp_socket socket[8]; /* all that listen since the plugin came */
  int nsockets, dialled;
};

/* Opens the plugin into *n and one door of it; skips the check when there is no port to knock at. */
void kit_door_open(struct kit_net *n, struct kit_door *d);
/* Turns a copy of an open door into another door of the same plugin. */
void kit_door_again(struct kit_door *d);
/* Closes the listen comm, and fails if that fails. */
void kit_door_close(struct kit_door *d);

/* A stranger's connection to one of the ports, each in turn. */
int kit_door_knock(struct kit_door *d);
/* Polls accept, once at least, for `ms`; nobody may come out. */
void kit_door_stays_shut(struct kit_door *d, int ms);

/* What it takes a real peer to come in, in this thread's processor time: it never sleeps, so that is how long it would
 * take where nobody else wants the core. */
struct kit_entry { double ms; int calls, long_calls; /* of accept; and those over 1 ms */ double longest_ms; };
/* A real peer comes through, sends something, and leaves. */
struct kit_entry kit_door_peer(struct kit_door *d);

/* Lets a connecting plugin talk to a port of ours instead, by changing the port in the handle, and records what it
 * says first. Skips the check when the handle does not show the port. */
size_t kit_door_greeting(struct kit_door *d, uint8_t *text, size_t cap);

/* Raises the limit of open files; skips the check when there is no room for `files`. */
void kit_need_files(int files);
/* How many are open, once they are no more than `expected`, or after 2 s: a thread may have to give them back. */
int kit_files_after(int expected);

#endif
