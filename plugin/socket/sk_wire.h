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

#include "common/sock.h"

#define SK_WIRE_VERSION 1
#define SK_MAX_STREAMS 16
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

#endif
