/* SPDX-License-Identifier: Apache-2.0
 * What a side and its parent, and two parents, say to each other: one frame a message, over a SOCK_SEQPACKET pair or
 * a TCP stream (kit_link.c). Shared by kit_side.c, kit_world*.c, kit_link.c, by nobody else. */
#ifndef RAIL_KIT_FRAME_H
#define RAIL_KIT_FRAME_H

#include <stddef.h>
#include <stdint.h>

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

#endif
