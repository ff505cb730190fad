/* SPDX-License-Identifier: Apache-2.0
 *
 * What the socket plugin puts into the handshake of common/conn/protocol.h: the
 * streams that a handle asks for, the sender's limits in HELLO, features in the
 * answer. What follows on each stream is in sk_frame.h. A change of layout or
 * meaning, here or there, raises SK_WIRE_VERSION; docs/protocol-socket.md is the
 * description.
 */
#ifndef SK_WIRE_H
#define SK_WIRE_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "common/base/sock.h"
#include "common/conn/protocol.h"

#define SK_TAG "RSK" /* begins the magic numbers of the handshake, and those in memory */
#define SK_WIRE_VERSION 3
#define SK_MAX_STREAMS 16
#define SK_MAX_RAILS RAIL_HANDLE_ADDRS /* interfaces of one fused device */
#define SK_MAX_EAGER (64 * 1024)       /* upper limits of what a HELLO may ask the acceptor to hold: without AHEAD, */
#define SK_MAX_AHEAD (2 * 1024 * 1024) /* and with it */
#define SK_MAX_EAGER_COUNT 4096
#define SK_MAX_EAGER_BYTES (16 * 1024 * 1024)

/* The least eager bytes that go with an eager size: four of the largest messages with what is kept beside them. */
#define SK_MIN_EAGER_BYTES(size) (4 * ((size) + 128u))

/* What both sides must be able to do; agreed in HELLO and answer. */
#define SK_FEATURE_FAILOVER 1u /* streams over several devices: a lost one is dialled again and resent */
#define SK_FEATURE_TLS 2u      /* after HELLO and answer all is TLS (sk_tls.h); both want it, or neither */
#define SK_FEATURE_AHEAD 4u    /* eager size up to SK_MAX_AHEAD: the receiver may leave messages unread */
#define SK_FEATURES (SK_FEATURE_FAILOVER | SK_FEATURE_TLS | SK_FEATURE_AHEAD)

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

/* A refusal that another try, or waiting, may cure. */
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

/* The payload of an answer: HELLO's features, those that the acceptor knows. */
rail_result_t sk_welcome_encode(struct rail_session *session, uint32_t features, void *bytes);
/* Of rail_message_need(&sk_protocol, ...) bytes: RAIL_REASON_NONE is a welcome for a HELLO with `features`, GARBAGE no
 * answer of RailSocket's at all, else why the stream was refused. *version: the acceptor's; 0: not sent. */
unsigned int sk_answer_decode(struct rail_session *session, const void *bytes, uint32_t features,
                              unsigned int *version);

#endif
