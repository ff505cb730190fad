/* SPDX-License-Identifier: Apache-2.0
 *
 * File descriptors from other processes of the host. The receiver is a listening unix socket with an abstract name. A
 * sender connects, sends the descriptor with a key, and goes on at once: the message waits in the socket until the
 * receiver asks for that key. Neither needs a thread, nor waits for the other. Both know the key from the connect
 * record.
 *
 * Any process in the host's network namespace may connect to an abstract name. So the sender asks the
 * kernel which process listens, and the receiver asks which has connected, before it reads or writes: only a process of
 * the same user, and only the expected one, is accepted.
 */
#ifndef RT_FD_RECEIVER_H
#define RT_FD_RECEIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/gpu/rt_cuda.h"

#define RT_FD_NAME 16
#define RT_FD_KEY 16

struct rt_fd_message;

struct rt_fd_receiver {
  bool open;
  int fd;
  uint8_t name[RT_FD_NAME];
  struct rt_fd_message *unclaimed; /* received and not yet asked for */
  int nunclaimed;
};

/* False, with errno: there is no socket. */
bool rt_fd_receiver_open(struct rt_fd_receiver *receiver);
/* Closes unclaimed descriptors, too. Accepts a zeroed struct. */
void rt_fd_receiver_close(struct rt_fd_receiver *receiver);

/* Sends a copy of fd to the receiver of that name, in process `pid`. Waits a second at most, for its backlog. */
bool rt_fd_send(const uint8_t name[RT_FD_NAME], int64_t pid, const uint8_t key[RT_FD_KEY], int fd, char why[RT_WHY]);
/* The descriptor that `pid` has sent with this key, now the caller's; -1: there is none. Does not wait for it, but
 * at most five seconds for other processes that connect and send nothing. */
int rt_fd_receive(struct rt_fd_receiver *receiver, int64_t pid, const uint8_t key[RT_FD_KEY]);

#endif
