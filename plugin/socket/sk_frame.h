/* SPDX-License-Identifier: Apache-2.0
 *
 * Frames: what a stream carries after its handshake. A header of 24 bytes and `len` bytes of payload;
 * docs/protocol-socket.md, section 3, is the description.
 */
#ifndef SK_FRAME_H
#define SK_FRAME_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SK_MAX_GROUP 8                   /* receives in one irecv */
#define SK_MAX_BUFFERS (32 * SK_MAX_GROUP) /* posted receive buffers of one comm */
#define SK_MAX_ENTRIES 512               /* of one CONTROL frame */

enum sk_frame_type {
  SK_FRAME_MSG = 1,     /* announces message seq of `size` bytes with `tag`, carries its first `len` */
  SK_FRAME_DATA = 2,    /* `len` bytes of message seq at offset `size` */
  SK_FRAME_CONTROL = 3, /* receiver to sender: seen, credit, and entries */
  SK_FRAME_ERROR = 4,   /* both ways: the last frame before the comm fails */
  SK_FRAME_PING = 5,    /* both ways: keepalive, asks for PONG */
  SK_FRAME_PONG = 6,    /* both ways: the answer */
  SK_FRAME_LOST = 7,    /* both ways: stream `tag`, generation `size`, is given up. From the sender a request for the
                         * number of its frames that had arrived; from the receiver the report: `seq` of them */
  SK_FRAME_JOIN = 8,    /* first frame of a stream that has come back: `tag` its number, `size` its generation */
  SK_FRAME_TYPES
};

/* Flags. A bit's meaning depends on the frame's type. */
#define SK_FRAME_GRANTED 1u /* MSG: uses a grant, costs no credit */
#define SK_FRAME_RESET 1u   /* CONTROL: forget all grants that came before */

#define SK_FRAME_GUARD 0x5346u  /* "FS": a stream that is out of step is noticed at the next header */
#define SK_MAX_FRAME (1u << 30) /* payload bytes of one frame */

struct sk_frame {
  uint8_t type;
  uint8_t flags;
  uint16_t guard;
  uint32_t seq;
  uint64_t size; /* message size, or offset, or credit */
  uint32_t len;  /* payload bytes that follow */
  uint32_t tag;
};
_Static_assert(sizeof(struct sk_frame) == 24, "frame size");
_Static_assert(offsetof(struct sk_frame, size) == 8, "frame layout");
_Static_assert(offsetof(struct sk_frame, tag) == 20, "frame layout");

/* What a CONTROL frame says beside its entries. */
struct sk_control {
  uint32_t seen;        /* messages that the receiver has seen */
  uint64_t bytes_freed; /* credit that it has given back since the beginning, in bytes and in messages */
  uint32_t count_freed;
};
static inline struct sk_control sk_control_of(const struct sk_frame *frame) {
  return (struct sk_control){.seen = frame->seq, .bytes_freed = frame->size, .count_freed = frame->tag};
}

/* Entries of a CONTROL frame. */
enum sk_entry_kind {
  SK_ENTRY_GRANT = 0,  /* a buffer of `value` bytes is posted for tag `key` */
  SK_ENTRY_FRAMES = 1, /* `value` frames of stream `key` & 0xff, generation `key` >> 8, have arrived whole */
};

struct sk_entry {
  uint64_t value;
  uint32_t key;
  uint32_t kind;
};
_Static_assert(sizeof(struct sk_entry) == 16, "entry size");

/* Payload of ERROR; the frame's seq and tag name the message, `size` the code (enum rail_result). */
struct sk_error {
  uint64_t message_size;
  uint64_t capacity;
};
_Static_assert(sizeof(struct sk_error) == 16, "error size");

/* What a message without grant costs of the credit, in bytes: two lines of 64 for its record, and whole lines for its
 * own. */
static inline uint64_t sk_credit_of(uint64_t size) { return 128 + ((size + 63) & ~(uint64_t)63); }

static inline void sk_frame_encode(uint8_t *bytes, enum sk_frame_type type, unsigned int flags, uint32_t seq,
                                   uint64_t size, uint32_t len, uint32_t tag) {
  struct sk_frame wire = {
    .type = (uint8_t)type,
    .flags = (uint8_t)flags,
    .guard = htole16(SK_FRAME_GUARD),
    .seq = htole32(seq),
    .size = htole64(size),
    .len = htole32(len),
    .tag = htole32(tag),
  };
  memcpy(bytes, &wire, sizeof wire);
}

/* The same structure in host byte order; false if these bytes are no header. */
static inline bool sk_frame_decode(const uint8_t *bytes, struct sk_frame *frame) {
  memcpy(frame, bytes, sizeof *frame);
  frame->guard = le16toh(frame->guard);
  frame->seq = le32toh(frame->seq);
  frame->size = le64toh(frame->size);
  frame->len = le32toh(frame->len);
  frame->tag = le32toh(frame->tag);
  return frame->guard == SK_FRAME_GUARD && frame->type >= SK_FRAME_MSG && frame->type < SK_FRAME_TYPES &&
         frame->flags <= 1 && frame->len <= SK_MAX_FRAME;
}

#endif
