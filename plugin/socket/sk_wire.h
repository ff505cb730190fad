/* SPDX-License-Identifier: Apache-2.0
 *
 * Everything that leaves this process: the listen handle, the handshake
 * messages, the frames. Fixed widths, little-endian, no pointers. A change of
 * layout or meaning raises SK_WIRE_VERSION; docs/protocol-socket.md is the
 * description.
 *
 * Encoders fill every byte. Decoders look at nothing before its length, magic
 * and version were found right.
 */
#ifndef SK_WIRE_H
#define SK_WIRE_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "common/sock.h"

#define SK_WIRE_VERSION 1
#define SK_MAX_STREAMS 16
#define SK_MAX_GROUP 8                  /* receives in one irecv */
#define SK_MAX_SLOTS (32 * SK_MAX_GROUP) /* posted receive buffers of one comm */
#define SK_MAX_GRANTS 256                /* entries of one GRANT frame */
#define SK_MAX_EAGER (64 * 1024)         /* upper limits of what a HELLO may ask the acceptor to hold */
#define SK_MAX_EAGER_COUNT 256
#define SK_SECRET_SIZE 16
#define SK_COMM_ID_SIZE 16

/* ---- listen handle ---------------------------------------------------- */

#define SK_HANDLE_MAGIC 0x484b5352u /* "RSKH" */

struct sk_handle_wire {
  uint32_t magic;
  uint16_t version;
  uint16_t streams; /* that the listener wants */
  struct rail_addr_wire addr;
  uint8_t secret[SK_SECRET_SIZE];
  uint64_t attempt; /* 0 from listen; the connector's own number between two calls of connect */
  uint8_t zero[RAIL_NET_HANDLE_SIZE - 56];
};
_Static_assert(sizeof(struct sk_handle_wire) == RAIL_NET_HANDLE_SIZE, "handle size");
_Static_assert(offsetof(struct sk_handle_wire, addr) == 8, "handle layout");
_Static_assert(offsetof(struct sk_handle_wire, secret) == 32, "handle layout");
_Static_assert(offsetof(struct sk_handle_wire, attempt) == 48, "handle layout");

struct sk_handle {
  unsigned int streams;
  union rail_addr addr;
  uint8_t secret[SK_SECRET_SIZE];
  uint64_t attempt;
};

void sk_handle_encode(const struct sk_handle *handle, void *bytes);
/* false with *why a constant text that says what is wrong. `bytes` needs no alignment. */
bool sk_handle_decode(const void *bytes, struct sk_handle *handle, const char **why);
void sk_handle_set_attempt(void *bytes, uint64_t attempt);

/* ---- handshake -------------------------------------------------------- */

#define SK_HELLO_MAGIC 0x314b5352u  /* "RSK1" */
#define SK_ANSWER_MAGIC 0x414b5352u /* "RSKA" */

/* First bytes of every stream, connector to acceptor. */
struct sk_hello_wire {
  uint32_t magic;
  uint16_t version;
  uint16_t length; /* of this structure */
  uint8_t secret[SK_SECRET_SIZE];
  uint8_t comm_id[SK_COMM_ID_SIZE];
  uint16_t stream;  /* index of this stream */
  uint16_t streams; /* of the comm */
  uint32_t features; /* none yet: 0; an acceptor ignores bits that it does not know */
  uint32_t eager_size;  /* the sender sends no larger message before its grant */
  uint32_t eager_count; /* nor has more such messages without grant */
  uint8_t zero[8];
};
_Static_assert(sizeof(struct sk_hello_wire) == 64, "hello size");
_Static_assert(offsetof(struct sk_hello_wire, secret) == 8, "hello layout");
_Static_assert(offsetof(struct sk_hello_wire, comm_id) == 24, "hello layout");
_Static_assert(offsetof(struct sk_hello_wire, stream) == 40, "hello layout");
_Static_assert(offsetof(struct sk_hello_wire, eager_size) == 48, "hello layout");

struct sk_hello {
  uint16_t version;
  uint8_t secret[SK_SECRET_SIZE];
  uint8_t comm_id[SK_COMM_ID_SIZE];
  unsigned int stream, streams;
  uint32_t features, eager_size, eager_count;
};

/* Why an acceptor says no. The numbers are on the wire. */
enum sk_reason {
  SK_REASON_NONE = 0,
  SK_REASON_GARBAGE = 1, /* not a hello at all: never sent, the stranger would not understand */
  SK_REASON_VERSION = 2,
  SK_REASON_SECRET = 3,
  SK_REASON_STREAMS = 4, /* index or count out of range, or not what the listener asked for */
  SK_REASON_DUPLICATE = 5,
  SK_REASON_EAGER = 6,
  SK_REASON_TIMEOUT = 7, /* the comm's other streams did not arrive */
  SK_REASON_BUSY = 8,    /* too many half-open peers */
  SK_REASON_COUNT
};
const char *sk_reason_text(unsigned int reason);

void sk_hello_encode(const struct sk_hello *hello, struct sk_hello_wire *wire);
/* Judges a whole hello against what the listener expects. Compares the secret in constant time. */
enum sk_reason sk_hello_decode(const struct sk_hello_wire *wire, const uint8_t *secret, unsigned int streams,
                               struct sk_hello *hello);
/* Can the first `have` bytes still become a hello? Lets garbage go before its deadline. */
bool sk_hello_plausible(const void *bytes, size_t have);

/* First bytes of every stream in the other direction. */
struct sk_answer_wire {
  uint32_t magic;
  uint16_t version;
  uint16_t length;
  uint16_t reason; /* 0: welcome */
  uint16_t stream;
  uint32_t features;
  uint8_t zero[8];
};
_Static_assert(sizeof(struct sk_answer_wire) == 24, "answer size");

void sk_answer_encode(enum sk_reason reason, unsigned int stream, struct sk_answer_wire *wire);
/* false: not an answer. *version is the acceptor's. */
bool sk_answer_decode(const struct sk_answer_wire *wire, unsigned int stream, unsigned int *reason,
                      unsigned int *version);

/* ---- frames ----------------------------------------------------------- */

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
