/* SPDX-License-Identifier: Apache-2.0
 *
 * What goes over the TCP connection behind HELLO and welcome, which are common/conn/protocol.h's: frames of 16 bytes,
 * little-endian. One irecv has a slot, and one buffer in it for each of its messages:
 *
 *   GRANT  receiver → sender   buffer `buffer` of `slot` takes the next message with `tag`, up to `size` bytes
 *   DATA   sender → receiver   `size` bytes for that buffer follow
 *   DONE   receiver → sender   they are there; the buffer may be granted again
 *
 * So nothing is sent that the receiver has no place for, and a send that is done has arrived: close has nothing to
 * wait for. Whatever changes here raises TPL_VERSION.
 */
#ifndef TPL_WIRE_H
#define TPL_WIRE_H

#include <endian.h>
#include <stdbool.h>
#include <string.h>

#include "rail/net.h"

#define TPL_TAG "RTP" /* begins the magic numbers of the handshake, and those in memory; a plugin's own */
#define TPL_VERSION 1
#define TPL_SLOTS RAIL_NET_MAX_REQUESTS
#define TPL_MAX_RECVS 8
#define TPL_FRAME_SIZE 16

enum tpl_frame_type { TPL_GRANT = 1, TPL_DATA = 2, TPL_DONE = 3 };

struct tpl_frame {
  unsigned int type, buffer, slot;
  int tag;       /* of a GRANT, else 0 */
  uint64_t size; /* 0 of a DONE */
};

struct tpl_frame_wire {
  uint8_t type, buffer;
  uint16_t slot;
  uint32_t tag;
  uint64_t size;
};
_Static_assert(sizeof(struct tpl_frame_wire) == TPL_FRAME_SIZE, "frame size");

static inline void tpl_frame_encode(const struct tpl_frame *frame, uint8_t bytes[TPL_FRAME_SIZE]) {
  const struct tpl_frame_wire wire = {.type = (uint8_t)frame->type, .buffer = (uint8_t)frame->buffer,
                                      .slot = htole16((uint16_t)frame->slot), .tag = htole32((uint32_t)frame->tag),
                                      .size = htole64(frame->size)};
  memcpy(bytes, &wire, sizeof wire);
}

/* False: no frame that this version sends. Whether it comes at the right time is for the receiver of it to see. */
static inline bool tpl_frame_decode(const uint8_t bytes[TPL_FRAME_SIZE], struct tpl_frame *frame) {
  struct tpl_frame_wire wire;
  memcpy(&wire, bytes, sizeof wire);
  *frame = (struct tpl_frame){.type = wire.type, .buffer = wire.buffer, .slot = le16toh(wire.slot),
                              .tag = (int)le32toh(wire.tag), .size = le64toh(wire.size)};
  if (frame->slot >= TPL_SLOTS || frame->buffer >= TPL_MAX_RECVS || frame->size > RAIL_NET_MAX_BYTES) return false;
  if (frame->type == TPL_GRANT) return true;
  if (frame->type == TPL_DATA) return frame->tag == 0;
  return frame->type == TPL_DONE && frame->tag == 0 && frame->size == 0;
}

#endif
