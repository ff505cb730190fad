/* SPDX-License-Identifier: Apache-2.0
 * Shared by kit_world.c, kit_spawn.c, kit_side.c and kit_link.c, by nobody else. */
#ifndef RAIL_KIT_GROUP_IMPL_H
#define RAIL_KIT_GROUP_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kit/kit_trail.h"
#include "kit/kit_world.h"

/* What a side and its parent, and two parents, say to each other: one frame a message, over a SOCK_SEQPACKET pair
 * or a TCP stream (kit_link.c). */

#define KIT_FRAME_ROOM 16384
#define KIT_PARENT (-1) /* as `from` and `to`: who started the world */
#define KIT_ALL (-2)    /* as `to`: every side */

enum kit_frame_kind {
  KIT_FRAME_JOB = 1, /* parent → side, leader → follower: struct kit_job */
  KIT_FRAME_BYTES,   /* side → side */
  KIT_FRAME_MEET,    /* side → leader */
  KIT_FRAME_GO,      /* leader → sides: all have met */
  KIT_FRAME_GONE,    /* leader → sides: side `from` has ended */
  KIT_FRAME_NOTE,    /* side → leader: text */
  KIT_FRAME_METRIC,  /* double, unit[16], name */
  KIT_FRAME_LOG,     /* text */
  KIT_FRAME_ROLE,    /* bytes */
  KIT_FRAME_END,     /* side → its parent: int32 kit_end, text */
  KIT_FRAME_DYING,   /* side → its parent: my death is wanted */
  KIT_FRAME_ENDED,   /* follower → leader: struct kit_side_end */
  KIT_FRAME_KILL,    /* leader → follower: end all sides */
  KIT_FRAME_OVER,    /* leader → follower: this world is done */
  KIT_FRAME_KINDS
};

struct kit_frame {
  uint32_t kind;
  int32_t from, to; /* ranks; KIT_PARENT, KIT_ALL */
  uint32_t size;    /* of data */
  uint8_t data[KIT_FRAME_ROOM];
};
#define KIT_FRAME_HEAD offsetof(struct kit_frame, data)

#define KIT_SIDE_FD 3  /* a side's end of the pair */
#define KIT_TRAIL_FD 4 /* and its trail */

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
