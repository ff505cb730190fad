/* SPDX-License-Identifier: Apache-2.0
 * Private to kit_group.c, kit_spawn.c, kit_process.c and kit_link.c. */
#ifndef RAIL_KIT_GROUP_IMPL_H
#define RAIL_KIT_GROUP_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kit/kit_call_trace.h"
#include "kit/kit_group.h"

/* The protocol of a process with its parent, and of two parents: one frame a message, over a SOCK_SEQPACKET pair or a
 * TCP stream (kit_link.c). */

#define KIT_FRAME_ROOM 16384
#define KIT_PARENT (-1) /* as `from` and `to`: the parent of the process group */
#define KIT_ALL (-2)    /* as `to`: every process */

enum kit_frame_kind {
  KIT_FRAME_JOB = 1,      /* parent → process, leader → follower: struct kit_job */
  KIT_FRAME_BYTES,        /* process → process */
  KIT_FRAME_BARRIER,      /* process → leader: it has reached the barrier */
  KIT_FRAME_RELEASE,      /* leader → processes: all have reached it */
  KIT_FRAME_EXITED,       /* leader → processes: process `from` has ended */
  KIT_FRAME_NOTE,         /* process → leader: text */
  KIT_FRAME_METRIC,       /* double, unit[16], name */
  KIT_FRAME_LOG,          /* text */
  KIT_FRAME_RECORD,       /* bytes */
  KIT_FRAME_END,          /* process → its parent: int32 kit_end, text */
  KIT_FRAME_EXPECT_DEATH, /* process → its parent: the job is to kill it */
  KIT_FRAME_ENDED,        /* follower → leader: struct kit_process_end */
  KIT_FRAME_KILL,         /* leader → follower: end all processes */
  KIT_FRAME_DONE,         /* leader → follower: this process group is done */
  KIT_FRAME_BYE,          /* the last one of a link: its end is meant */
  KIT_FRAME_KINDS
};

struct kit_frame {
  uint32_t kind;
  int32_t from, to; /* ranks; KIT_PARENT, KIT_ALL */
  uint32_t size;    /* of data */
  uint8_t data[KIT_FRAME_ROOM];
};
#define KIT_FRAME_HEAD offsetof(struct kit_frame, data)

#define KIT_PROCESS_FD 3  /* a process's end of the pair */
#define KIT_CALL_TRACE_FD 4 /* and its call trace */

/* Frames that the other end has no room for yet, one behind the other. */
struct kit_queue {
  uint8_t *data;
  size_t first, end, room;
};
bool kit_queue_add(struct kit_queue *q, const struct kit_frame *f); /* false: out of memory */
void kit_queue_free(struct kit_queue *q);

/* One process, as its own parent knows it; of a process on the other host only `over` and `end` mean something. */
struct kit_child {
  pid_t pid; /* -1: not running here */
  int fd;
  struct kit_call_trace *calls;
  struct kit_queue out;
  bool here;
  bool at_barrier;     /* waits in a barrier */
  bool reported;       /* `end` holds its own report */
  uint64_t exit_by;    /* deadline of one that has reported */
  bool death_expected; /* the job is to kill it */
  bool killed;         /* at the limit, or because another one failed; `end` holds which */
  bool over;           /* `end` is final */
  struct kit_process_end end;
};

/* Starts a process: on success pid, fd and calls are set; else `end` has the reason. */
bool kit_spawn(struct kit_child *child, const struct kit_job *job, const struct kit_process_setup *setup);
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
void kit_link_abandon(struct kit_link *link); /* the other host is silent: kit_link_lost from now on */
void kit_link_send(struct kit_link *link, const struct kit_frame *f);
bool kit_link_flush(struct kit_link *link); /* false: something is left to send */

#endif
