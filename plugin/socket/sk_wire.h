/* SPDX-License-Identifier: Apache-2.0
 *
 * What two processes say before a connection carries messages: the listen
 * handle and the handshake. What they say afterwards is in sk_frame.h. Fixed
 * widths, little-endian, no pointers. A change of layout or meaning, here or
 * there, raises SK_WIRE_VERSION; docs/protocol-socket.md is the description.
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

#include "common/base/sock.h"

#define SK_WIRE_VERSION 2
#define SK_MAX_STREAMS 16
#define SK_MAX_RAILS 4            /* interfaces of one fused device */
#define SK_MAX_EAGER (64 * 1024) /* upper limits of what a HELLO may ask the acceptor to hold */
#define SK_MAX_EAGER_COUNT 4096
#define SK_MAX_EAGER_BYTES (16 * 1024 * 1024)
#define SK_SECRET_SIZE 16
#define SK_COMM_ID_SIZE 16
#define SK_NONCE_SIZE 16
#define SK_MAC_SIZE 32

/* The least eager bytes that go with an eager size: four of the largest messages with what is kept beside them. */
#define SK_MIN_EAGER_BYTES(size) (4 * ((size) + 128u))

/* What both sides must be able to do; agreed in HELLO and answer. */
#define SK_FEATURE_FAILOVER 1u /* streams over several devices: a lost one is dialled again and resent */

/* ---- listen handle ---------------------------------------------------- */

#define SK_HANDLE_MAGIC 0x484b5352u /* "RSKH" */
#define SK_HANDLE_AUTH 1u           /* the listener wants every HELLO authenticated */

struct sk_handle_wire {
  uint32_t magic;
  uint8_t version;
  uint8_t flags;
  uint16_t streams; /* that the listener wants, per rail */
  struct rail_addr_wire addrs[SK_MAX_RAILS]; /* family 0: none, from there on */
  uint8_t secret[SK_SECRET_SIZE];
  uint64_t attempt; /* 0 from listen; the connector's own number between two calls of connect */
};
_Static_assert(sizeof(struct sk_handle_wire) == RAIL_NET_HANDLE_SIZE, "handle size");
_Static_assert(offsetof(struct sk_handle_wire, addrs) == 8, "handle layout");
_Static_assert(offsetof(struct sk_handle_wire, secret) == 104, "handle layout");
_Static_assert(offsetof(struct sk_handle_wire, attempt) == 120, "handle layout");

struct sk_handle {
  unsigned int flags;
  unsigned int streams; /* per rail, 1..SK_MAX_STREAMS */
  unsigned int naddrs;  /* rails, 1..SK_MAX_RAILS */
  union rail_addr addrs[SK_MAX_RAILS];
  uint8_t secret[SK_SECRET_SIZE];
  uint64_t attempt;
};

void sk_handle_encode(const struct sk_handle *handle, void *bytes);
/* false with *why a constant text that says what is wrong. `bytes` needs no alignment. */
bool sk_handle_decode(const void *bytes, struct sk_handle *handle, const char **why);
void sk_handle_set_attempt(void *bytes, uint64_t attempt);

/* Streams of a connection whose larger side has `rails` rails. */
static inline unsigned int sk_streams_of(unsigned int per_rail, unsigned int rails) {
  return per_rail * rails < SK_MAX_STREAMS ? per_rail * rails : SK_MAX_STREAMS;
}

/* ---- handshake -------------------------------------------------------- */

#define SK_HELLO_MAGIC 0x314b5352u  /* "RSK1" */
#define SK_ANSWER_MAGIC 0x414b5352u /* "RSKA" */

#define SK_HELLO_AUTH 1u   /* mac is set */
#define SK_HELLO_REJOIN 2u /* this stream of a living connection was lost and comes back */

#define SK_HELLO_PREFIX 24 /* bytes of HELLO that mean the same in all versions */

/* First bytes of every stream, connector to acceptor. */
struct sk_hello_wire {
  uint32_t magic;
  uint16_t version;
  uint16_t length; /* of this structure */
  uint8_t secret[SK_SECRET_SIZE];
  uint8_t comm_id[SK_COMM_ID_SIZE];
  uint16_t stream;  /* index of this stream */
  uint16_t streams; /* of the comm */
  uint32_t features; /* that the sender wants; an acceptor ignores bits that it does not know */
  uint32_t eager_size;  /* the sender sends no larger message before its grant */
  uint32_t eager_count; /* nor has more such messages without grant */
  uint32_t eager_bytes; /* nor more bytes of them */
  uint32_t flags;
  uint64_t counter; /* REJOIN: grows with each try; else 0 */
  uint8_t nonce[SK_NONCE_SIZE]; /* AUTH: random; makes the answer's mac one of its own */
  uint8_t zero[40];
  uint8_t mac[SK_MAC_SIZE]; /* AUTH: sk_auth.h; else 0 */
};
_Static_assert(sizeof(struct sk_hello_wire) == 160, "hello size");
_Static_assert(offsetof(struct sk_hello_wire, secret) == 8, "hello layout");
_Static_assert(offsetof(struct sk_hello_wire, comm_id) == SK_HELLO_PREFIX, "hello layout");
_Static_assert(offsetof(struct sk_hello_wire, stream) == 40, "hello layout");
_Static_assert(offsetof(struct sk_hello_wire, eager_size) == 48, "hello layout");
_Static_assert(offsetof(struct sk_hello_wire, counter) == 64, "hello layout");
_Static_assert(offsetof(struct sk_hello_wire, nonce) == 72, "hello layout");
_Static_assert(offsetof(struct sk_hello_wire, mac) == 128, "hello layout");

struct sk_hello {
  uint16_t version;
  uint8_t comm_id[SK_COMM_ID_SIZE];
  unsigned int stream, streams;
  uint32_t features, eager_size, eager_count, eager_bytes;
  uint32_t flags;
  uint64_t counter;
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
  SK_REASON_AUTH = 9,    /* one side authenticates, the other does not */
  SK_REASON_MAC = 10,    /* not made with our key */
  SK_REASON_REPLAY = 11, /* heard before */
  SK_REASON_GONE = 12,   /* the listener is closed, or has no such connection any more */
  SK_REASON_COUNT
};
const char *sk_reason_text(unsigned int reason);

void sk_hello_encode(const struct sk_hello *hello, const uint8_t *secret, struct sk_hello_wire *wire);
/* Judges a whole hello against what the listener's handle asks for, all but its
 * mac. Compares the secret in constant time. */
enum sk_reason sk_hello_decode(const struct sk_hello_wire *wire, const struct sk_handle *listener,
                               struct sk_hello *hello);
/* Can the first `have` bytes still become a hello? Lets garbage go before its deadline. */
bool sk_hello_plausible(const void *bytes, size_t have);

struct sk_answer_wire {
  uint32_t magic;
  uint16_t version;
  uint16_t length;
  uint16_t reason; /* 0: welcome */
  uint16_t stream;
  uint32_t features; /* HELLO's, those that the acceptor knows */
  uint8_t zero[16];
  uint8_t mac[SK_MAC_SIZE]; /* a welcome to a HELLO with AUTH: sk_auth.h; else 0 */
};
_Static_assert(sizeof(struct sk_answer_wire) == 64, "answer size");
_Static_assert(offsetof(struct sk_answer_wire, reason) == 8, "answer layout");
_Static_assert(offsetof(struct sk_answer_wire, mac) == 32, "answer layout");

#define SK_ANSWER_PREFIX 10 /* bytes that mean the same in all versions */

/* A welcome, or the refusal of `reason`. Our version is told only to those who have the secret: else it is 0. */
void sk_answer_encode(enum sk_reason reason, unsigned int stream, uint32_t features, struct sk_answer_wire *wire);
/* How many bytes must be there before decode can judge them: another version's answer may be shorter. */
size_t sk_answer_size(const void *bytes, size_t have);
/* `expected` is the welcome that the HELLO of this stream hopes for, mac included. False: not an answer to it.
 * *reason SK_REASON_NONE: welcome. Else refused, or (SK_REASON_MAC) a welcome by somebody without the key. A refusal
 * is no longer than sk_answer_size said; *version is the acceptor's. */
bool sk_answer_decode(const void *bytes, const struct sk_answer_wire *expected, unsigned int *reason,
                      unsigned int *version);

#endif
