/* SPDX-License-Identifier: Apache-2.0
 *
 * File descriptors from another process of the host. A process' inbox is a listening unix socket with an abstract
 * name; who has a descriptor for it connects, leaves it there with a key, and goes on at once: what was left waits in
 * the socket, and nobody needs a thread or has to wait for the other. The key is known to the two alone, from memory
 * that only they share.
 *
 * An abstract name belongs to nobody, and everybody of the host's network namespace may read it. So the sender asks the
 * kernel who listens there, and the inbox asks it who has connected, before anything is said: only a process of
 * the same user, and only the one that is meant.
 */
#ifndef RT_INBOX_H
#define RT_INBOX_H

#include <stdbool.h>
#include <stdint.h>

#include "core/gpu/rt_cuda.h"

#define RT_INBOX_NAME 16
#define RT_INBOX_KEY 16

struct rt_parcel;

struct rt_inbox {
  bool open;
  int fd;
  uint8_t name[RT_INBOX_NAME];
  struct rt_parcel *arrived; /* and not yet asked for */
  int narrived;
};

/* False, with errno: there is none. */
bool rt_inbox_open(struct rt_inbox *inbox);
/* With all that nobody has asked for. Accepts a zeroed struct. */
void rt_inbox_close(struct rt_inbox *inbox);

/* Leaves a copy of fd in the inbox of that name, of process `pid`. Waits a second at most, for a moment's room. */
bool rt_inbox_send(const uint8_t name[RT_INBOX_NAME], int64_t pid, const uint8_t key[RT_INBOX_KEY], int fd,
                   char why[RT_WHY]);
/* The descriptor that `pid` has left with this key, now the caller's; -1: there is none. Does not wait for it, but for
 * some strangers, five seconds at most. */
int rt_inbox_take(struct rt_inbox *inbox, int64_t pid, const uint8_t key[RT_INBOX_KEY]);

#endif
