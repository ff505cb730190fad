/* SPDX-License-Identifier: Apache-2.0
 * A listener and the half-open connections behind it. */
#ifndef SK_LISTEN_H
#define SK_LISTEN_H

#include <poll.h>

#include "plugin/socket/sk_ctx.h"
#include "plugin/socket/sk_wire.h"

#define SK_LISTEN_MAGIC 0x4e534c53u

/* A connection that has not said a whole HELLO yet. */
struct sk_stranger {
  union rail_addr peer;
  uint64_t deadline;
  size_t have;
  struct sk_hello_wire hello;
};

/* Streams of one connector, complete or not. */
struct sk_group {
  struct sk_group *next;
  uint8_t comm_id[SK_COMM_ID_SIZE];
  union rail_addr peer;
  uint64_t deadline; /* for the missing streams */
  uint32_t eager_size, eager_count, eager_bytes, features;
  unsigned int streams;
  unsigned int have;
  int fds[SK_MAX_STREAMS];
};

struct sk_listen {
  uint32_t magic;
  struct sk_ctx *ctx;
  struct sk_listen *next, *prev; /* in ctx->listens, under its lock */
  int dev;
  const struct sk_device *device;
  int fd;
  union rail_addr addr;
  struct sk_handle handle; /* as it was given out */

  /* polls[0] is the listening socket, polls[i + 1] belongs to strangers[i]; oldest first. */
  struct pollfd *polls;
  struct sk_stranger *strangers;
  uint32_t nstrangers, cap;
  struct sk_group *groups; /* in the order of their first HELLO */

  uint64_t next_line; /* when a line about a dropped stranger may be logged again */
  uint32_t unlogged;
  bool accept_failed; /* said so already */
};

#endif
