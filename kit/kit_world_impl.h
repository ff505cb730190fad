/* SPDX-License-Identifier: Apache-2.0
 * Shared by kit_world.c, kit_spawn.c and kit_link.c, by nobody else. */
#ifndef RAIL_KIT_WORLD_IMPL_H
#define RAIL_KIT_WORLD_IMPL_H

#include <stdbool.h>

#include "kit/kit_frame.h"
#include "kit/kit_trail.h"
#include "kit/kit_world.h"

/* Frames that the other end has no room for yet, one behind the other. */
struct kit_queue {
  uint8_t *data;
  size_t first, end, room;
};
bool kit_queue_add(struct kit_queue *q, const struct kit_frame *f); /* false: out of memory */
void kit_queue_free(struct kit_queue *q);

/* One side, as its own parent knows it; of a side on the other host only `over` and `end` mean something. */
struct kit_child {
  pid_t pid; /* -1: not running here */
  int fd;
  struct kit_trail *trail;
  struct kit_queue out;
  bool here;
  bool met;      /* waits in a meeting */
  bool spoke;    /* `end` holds its own word */
  bool dying;    /* its death is wanted */
  bool killed;   /* at the limit, or because another one failed; `end` says which */
  bool over;     /* `end` is final */
  struct kit_side_end end;
};

/* Starts a side: on success pid, fd and trail are set; else `end` says why not. */
bool kit_spawn(struct kit_child *child, const struct kit_job *job, const struct kit_setup *setup);
/* Ends the process and everything it has started. */
void kit_child_kill(struct kit_child *child);
/* Frees what the parent holds; the process has ended. */
void kit_child_release(struct kit_child *child);
/* Has it ended by itself? Then *status is waitpid's. */
bool kit_child_reap(struct kit_child *child, int *status);
/* One frame: 1; none yet: 0; the other end is closed: -1. */
int kit_child_receive(struct kit_child *child, struct kit_frame *f);
void kit_child_send(struct kit_child *child, const struct kit_frame *f);
void kit_child_flush(struct kit_child *child);

int kit_link_fd(const struct kit_link *link);
int kit_link_receive(struct kit_link *link, struct kit_frame *f); /* as kit_child_receive */
void kit_link_send(struct kit_link *link, const struct kit_frame *f);
bool kit_link_flush(struct kit_link *link); /* false: something is left to send */

#endif
