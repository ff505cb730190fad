/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames: what a stream carries after its handshake. A header of 24 bytes and
 * `len` bytes of payload; docs/protocol-socket.md, section 3, is the description.
 */
#ifndef SK_FRAME_H
#define SK_FRAME_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SK_MAX_GROUP 8                   /* receives in one irecv */
#define SK_MAX_SLOTS (32 * SK_MAX_GROUP) /* posted receive buffers of one comm */
#define SK_MAX_GRANTS 256                /* entries of one GRANT frame */

enum sk_frame_type {
  SK_FRAME_MSG = 1,   /* stream 0: announces message seq of `size` bytes with `tag`, carries its first `len` */
  SK_FRAME_DATA = 2,  /* any stream: `len` bytes of message seq at offset `size` */
  SK_FRAME_GRANT = 3, /* stream 0, receiver to sender: `len` bytes of sk_grant_wire */
  SK_FRAME_ERROR = 4, /* stream 0, both ways: the last word before the comm fails */
};

#define SK_FRAME_GUARD 0x5346u   /* "FS": a stream that lost its place is noticed at the next header */
#define SK_MAX_FRAME (1u << 30)  /* payload bytes of one frame */

struct sk_frame_wire {
  uint8_t type;
  uint8_t flags; /* 0 */
  uint16_t guard;
  uint32_t seq;
  uint64_t size; /* message size, or offset */
  uint32_t len;  /* payload bytes that follow */
  uint32_t tag;
};
_Static_assert(sizeof(struct sk_frame_wire) == 24, "frame size");
_Static_assert(offsetof(struct sk_frame_wire, size) == 8, "frame layout");
_Static_assert(offsetof(struct sk_frame_wire, tag) == 20, "frame layout");

struct sk_grant_wire {
  uint64_t size;
  uint32_t tag;
  uint32_t zero;
};
_Static_assert(sizeof(struct sk_grant_wire) == 16, "grant size");

/* Payload of ERROR; the frame's seq and tag name the message, `size` the code (enum rail_result). */
struct sk_error_wire {
  uint64_t message_size;
  uint64_t capacity;
};
_Static_assert(sizeof(struct sk_error_wire) == 16, "error size");

static inline void sk_frame_encode(uint8_t *bytes, enum sk_frame_type type, uint32_t seq, uint64_t size, uint32_t len,
                                   uint32_t tag) {
  struct sk_frame_wire wire = {
    .type = (uint8_t)type,
    .guard = htole16(SK_FRAME_GUARD),
    .seq = htole32(seq),
    .size = htole64(size),
    .len = htole32(len),
    .tag = htole32(tag),
  };
  memcpy(bytes, &wire, sizeof wire);
}

/* The same structure in host byte order; false if these bytes are no header. */
static inline bool sk_frame_decode(const uint8_t *bytes, struct sk_frame_wire *frame) {
  memcpy(frame, bytes, sizeof *frame);
  frame->guard = le16toh(frame->guard);
  frame->seq = le32toh(frame->seq);
  frame->size = le64toh(frame->size);
  frame->len = le32toh(frame->len);
  frame->tag = le32toh(frame->tag);
  return frame->guard == SK_FRAME_GUARD && frame->type >= SK_FRAME_MSG && frame->type <= SK_FRAME_ERROR &&
         frame->flags == 0 && frame->len <= SK_MAX_FRAME;
}

#endif
