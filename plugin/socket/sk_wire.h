/* SPDX-License-Identifier: Apache-2.0
 *
 * What two socket plugins send each other. In the handshake of common/conn/protocol.h: the streams that a handle asks
 * for, the sender's limits in HELLO, features in ANSWER. Then, on each stream, frames: a header of 32 bytes and
 * `len` bytes of payload. A change of layout or meaning raises SK_WIRE_VERSION; docs/protocol-socket.md is the
 * description.
 */
#ifndef SK_WIRE_H
#define SK_WIRE_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/sock.h"
#include "common/conn/protocol.h"

#define SK_TAG "RSK" /* begins the magic numbers of the handshake, and those in memory */
#define SK_WIRE_VERSION 4
#define SK_MAX_STREAMS 16
#define SK_MAX_RAILS RAIL_HANDLE_ADDRS /* interfaces of one fused device */
#define SK_MAX_EAGER (64 * 1024)       /* upper limits of what a HELLO may ask the acceptor to hold: without AHEAD, */
#define SK_MAX_AHEAD (2 * 1024 * 1024) /* and with it */
#define SK_MAX_EAGER_COUNT 4096
#define SK_MAX_EAGER_BYTES (16 * 1024 * 1024)

/* The least eager bytes that go with an eager size: four of the largest messages with what is kept beside them. */
#define SK_MIN_EAGER_BYTES(size) (4 * ((size) + 128u))

/* What both sides must be able to do; agreed in HELLO and ANSWER. */
#define SK_FEATURE_FAILOVER 1u /* streams over several devices: a lost one is dialled again and resent */
#define SK_FEATURE_TLS 2u      /* after HELLO and ANSWER all is TLS (sk_tls.h); both want it, or neither */
#define SK_FEATURE_AHEAD 4u    /* eager size up to SK_MAX_AHEAD: the receiver may leave messages unread */
#define SK_FEATURES (SK_FEATURE_FAILOVER | SK_FEATURE_TLS | SK_FEATURE_AHEAD)

/* ---- handshake ------------------------------------------------------------- */

extern const struct rail_protocol sk_protocol;

/* Reads the key of RAIL_SOCKET_AUTH_FILE, once per process, under the plugin's lock. False, after one line:
 * authentication is wanted and not to be had, so there must be no connections at all. */
bool sk_protocol_load(void);

enum sk_reason { /* beside enum rail_reason; on the wire */
  SK_REASON_STREAMS = RAIL_REASON_PLUGIN, /* index or count that the listener did not ask for */
  SK_REASON_DUPLICATE,                    /* a stream of a connection that was accepted already */
  SK_REASON_LIMITS,                       /* eager limits out of range, or not those of the other streams */
  SK_REASON_TLS,                          /* one side encrypts, the other does not */
};

/* A refusal after which another try, later, may succeed. */
static inline bool sk_reason_is_passing(unsigned int reason) {
  return reason == RAIL_REASON_TIMEOUT || reason == RAIL_REASON_BUSY || reason == RAIL_REASON_REPLAY ||
         reason == SK_REASON_DUPLICATE;
}

/* The handle's `param`: streams that the listener wants per rail, 1..SK_MAX_STREAMS, and whether it encrypts. */
#define SK_HANDLE_TLS 0x80u
static inline unsigned int sk_handle_streams(const struct rail_handle *handle) {
  return handle->param & ~SK_HANDLE_TLS;
}
static inline bool sk_handle_tls(const struct rail_handle *handle) { return handle->param & SK_HANDLE_TLS; }

/* Streams of a connection whose larger side has `rails` rails. */
static inline unsigned int sk_streams_of(unsigned int per_rail, unsigned int rails) {
  return per_rail * rails < SK_MAX_STREAMS ? per_rail * rails : SK_MAX_STREAMS;
}

/* The payload of HELLO. */
struct sk_limits_wire {
  uint32_t features;    /* that the sender wants; an acceptor ignores bits that it does not know */
  uint32_t eager_size;  /* the sender sends no larger message before its grant */
  uint32_t eager_count; /* nor has more such messages without grant */
  uint32_t eager_bytes; /* nor more bytes of them */
  uint64_t counter;     /* RECONNECT: grows with each try of the stream; else 0 */
};
_Static_assert(sizeof(struct sk_limits_wire) == 24, "payload of HELLO");

struct sk_limits {
  uint32_t features, eager_size, eager_count, eager_bytes;
};
static inline bool sk_limits_equal(const struct sk_limits *a, const struct sk_limits *b) {
  return memcmp(a, b, sizeof *a) == 0;
}
void sk_limits_encode(const struct sk_limits *limits, uint64_t counter, struct rail_hello *hello);
/* RAIL_REASON_NONE, or why this HELLO's streams, limits or encryption do not suit the listener. Keeps the features that
 * we know. */
unsigned int sk_limits_decode(const struct rail_hello *hello, const struct rail_handle *listener,
                              struct sk_limits *limits, uint64_t *counter);

/* The payload of an ANSWER: HELLO's features, those that the acceptor knows. */
rail_result_t sk_welcome_encode(struct rail_session *session, uint32_t features, void *bytes);
/* Of rail_message_need(&sk_protocol, ...) bytes: RAIL_REASON_NONE is a welcome for a HELLO with `features`, GARBAGE no
 * ANSWER of RailSocket's at all, else why the stream was refused. *version: the acceptor's; 0: not sent. */
unsigned int sk_answer_decode(struct rail_session *session, const void *bytes, uint32_t features,
                              unsigned int *version);

/* ---- frames (docs/protocol-socket.md, section 3) --------------------------- */

#define SK_MAX_GROUP 8                   /* receives in one irecv */
#define SK_MAX_BUFFERS (32 * SK_MAX_GROUP) /* posted receive buffers of one comm */
#define SK_MAX_ENTRIES 512               /* of one CONTROL frame */

enum sk_frame_type {
  /* Those that carry a message's bytes come first: only they may wait for anything but bytes (sk_progress.c). */
  SK_FRAME_MSG = 1,     /* announces message `seq` of `size` bytes with `tag`, carries its first `len` */
  SK_FRAME_DATA = 2,    /* `len` bytes of message `seq` from `offset` on */
  SK_FRAME_CONTROL = 3, /* receiver to sender: `seen`, credit, and entries */
  SK_FRAME_ERROR = 4,   /* both ways: the last frame before the comm fails */
  SK_FRAME_PING = 5,    /* both ways: keepalive, asks for PONG */
  SK_FRAME_PONG = 6,    /* both ways: the answer */
  SK_FRAME_LOST = 7,    /* both ways: `stream`, in this `generation`, is given up. From the sender a request for the
                         * number of its frames that had arrived; from the receiver the report: `frames` */
  SK_FRAME_JOIN = 8,    /* first frame of a `stream` that has come back, with its new `generation` */
  SK_FRAME_TYPES
};

/* Flags. A bit's meaning depends on the frame's type. */
#define SK_FRAME_GRANTED 1u /* MSG: uses a grant, costs no credit */
#define SK_FRAME_RESET 1u   /* CONTROL: forget all grants that came before */

#define SK_FRAME_GUARD 0x5346u  /* "FS": a stream that is out of step is noticed at the next header */
#define SK_MAX_FRAME (1u << 30) /* payload bytes of one frame */

/* What three of the fields mean, and so their names, depends on the type; 0 where the type has none. The size is for
 * the kernel, which often copies a payload from the begin of a page to behind a header at the begin of one: AMD's `rep
 * movsb` takes up to 20 times as long 1 to 24 bytes off, not 32 (docs/results/2026-11-29-socket-header.md). */
struct sk_frame {
  uint8_t type;
  uint8_t flags;
  uint16_t guard;
  union {
    uint32_t seq;    /* MSG, DATA, ERROR: number of the message */
    uint32_t seen;   /* CONTROL: messages that the receiver has seen */
    uint32_t frames; /* LOST of the receiver: that have arrived over the stream, in this generation */
  };
  union {
    uint64_t size;        /* MSG: of the message */
    uint64_t offset;      /* DATA: of the payload in its message */
    uint64_t bytes_freed; /* CONTROL: credit that the receiver has given back since the beginning, in bytes */
    uint64_t code;        /* ERROR: enum rail_result */
    uint64_t generation;  /* LOST, JOIN: of the stream */
  };
  uint32_t len; /* payload bytes that follow */
  union {
    uint32_t tag;         /* MSG, DATA, ERROR: of the message */
    uint32_t count_freed; /* CONTROL: the same credit in messages */
    uint32_t stream;      /* LOST, JOIN: its index */
  };
  uint64_t reserved; /* 0, and checked: so much more of a stream that is out of step is noticed */
};
_Static_assert(sizeof(struct sk_frame) == 32, "frame size");
_Static_assert(offsetof(struct sk_frame, size) == 8, "frame layout");
_Static_assert(offsetof(struct sk_frame, tag) == 20, "frame layout");
_Static_assert(offsetof(struct sk_frame, reserved) == 24, "frame layout");

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

/* Payload of ERROR. */
struct sk_error {
  uint64_t message_size;
  uint64_t capacity;
};
_Static_assert(sizeof(struct sk_error) == 16, "error size");

/* What a message without grant costs of the credit, in bytes: two lines of 64 for its record, and whole lines for its
 * own. */
static inline uint64_t sk_credit_of(uint64_t size) { return 128 + ((size + 63) & ~(uint64_t)63); }

/* seq, size, tag: or what the type has in their places. */
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
         frame->flags <= 1 && frame->len <= SK_MAX_FRAME && !frame->reserved;
}

#endif
