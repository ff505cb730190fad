/* SPDX-License-Identifier: Apache-2.0
 *
 * What two processes send before a connection carries data, in bytes. Every
 * plugin has the same three pieces and fills in a payload of its own:
 *
 *   handle   128 bytes that listen writes and NCCL carries to the connector:
 *            addresses, a random secret, whether a key is wanted
 *   HELLO    the first bytes on every TCP connection, connector to acceptor
 *   message  what follows, either way: ANSWER (welcome or refusal) first from
 *            the acceptor; then any types that the plugin defines
 *
 * This file is pure: bytes in, bytes out, no socket. A plugin describes itself
 * with one static struct rail_protocol and then uses listener.h (accepting
 * side), connector.h (connecting side) and handshake.h (messages on a socket),
 * which call what is here. What each side logs of a refusal: setup.h.
 *
 * Security, the same for all plugins. The secret keeps other clients, stale
 * handles and reused ports out; it is compared in constant time. A refusal
 * names our version only to a client that sent the secret. With a key (hmac.h) HELLO
 * and every message but a refusal carry an HMAC-SHA-256 over all that was agreed before:
 *
 *   mac of HELLO   = HMAC(key, "PLUGIN VERSION hello" | handle, attempt 0 | HELLO without mac)
 *   mac of message = HMAC(key, "PLUGIN VERSION connector" or "... acceptor", the side that sends it
 *                              | mac of HELLO | nonce of the welcome | number (4) | head and body)
 *
 * Labels are padded with zeros to 32 bytes. The nonce is zero until the welcome
 * was sent or received; `number` counts the side's messages from 0, without
 * refusals. So a message is worth nothing in another handshake, in the other
 * direction or at another place. A listener refuses a HELLO that it has seen.
 *
 * All integers little-endian. Encoders fill every byte. Decoders look at
 * nothing before its length, magic and version were found right. Any thread;
 * nothing here logs but a failing HMAC.
 */
#ifndef RAIL_PROTOCOL_H
#define RAIL_PROTOCOL_H

#include "common/base/sock.h"
#include "common/conn/hmac.h"

#define RAIL_SECRET_SIZE 16
#define RAIL_COMM_ID_SIZE 16
#define RAIL_NONCE_SIZE 16

/* ---- how a plugin describes itself ------------------------------------- */

/* Why a side refuses. The numbers are on the wire. */
enum rail_reason {
  RAIL_REASON_NONE = 0,    /* welcome */
  RAIL_REASON_GARBAGE = 1, /* not a HELLO at all: never sent */
  RAIL_REASON_VERSION = 2,
  RAIL_REASON_SECRET = 3,
  RAIL_REASON_AUTH = 4,    /* one side authenticates, the other does not */
  RAIL_REASON_MAC = 5,     /* not made with our key */
  RAIL_REASON_REPLAY = 6,  /* a HELLO that was received before */
  RAIL_REASON_BUSY = 7,    /* no room for another half-open connection; the connector tries again */
  RAIL_REASON_TIMEOUT = 8, /* the handshake was not finished in time */
  RAIL_REASON_GONE = 9,    /* the listener or connection it is meant for is closed */
  RAIL_REASON_MESSAGE = 10, /* an invalid message, or one out of order */
  RAIL_REASON_FAILED = 11,  /* this side failed; its log says why */
  RAIL_REASON_COMMON,
  RAIL_REASON_PLUGIN = 32, /* and up: the plugin's own */
};

/* First word of what callers hold of a plugin, by its tag and the kind of object: a pointer of another plugin, or to
 * what is closed, is found out. */
#define RAIL_OBJECT_MAGIC(tag, kind) \
  ((uint32_t)(tag)[0] << 24 | (uint32_t)(tag)[1] << 16 | (uint32_t)(tag)[2] << 8 | (uint32_t)(kind))

struct rail_handle;

/* One per plugin, static and constant. */
struct rail_protocol {
  const char *plugin; /* "RailSocket": begins log lines and the labels of macs */
  char tag[4];        /* three letters, e.g. "RSK": magic numbers are "RSKH" handle, "RSK1" HELLO, "RSKM" message */
  uint8_t version;    /* of the whole protocol, payloads and data path included; any change raises it */
  struct rail_key *key;
  /* Sizes of the plugin's payloads. */
  size_t handle_payload; /* + 24 per address: at most RAIL_HANDLE_BODY */
  size_t hello_payload;  /* at most RAIL_HELLO_PAYLOAD_MAX */
  size_t answer_payload; /* at most RAIL_ANSWER_PAYLOAD_MAX */
  size_t max_body;       /* of the largest message of the plugin's own types, at most RAIL_BODY_MAX */
  /* What is wrong with a handle's param and payload; NULL: nothing. NULL function: the plugin uses neither. */
  const char *(*check_handle)(const struct rail_handle *handle);
  /* Text of a reason for the log; NULL: the common one. NULL function: no reasons of its own. */
  const char *(*reason_text)(unsigned int reason);
};

/* The tag and one more letter: H handle, 1 HELLO, M message, P frame of oob.h; others are the plugin's. */
void rail_magic(const struct rail_protocol *protocol, char kind, uint8_t magic[4]);
/* Never NULL. */
const char *rail_reason_text(const struct rail_protocol *protocol, unsigned int reason);

/* ---- handle ------------------------------------------------------------ */

#define RAIL_HANDLE_SIZE 128
#define RAIL_HANDLE_ADDRS 4
#define RAIL_HANDLE_BODY 96
#define RAIL_HANDLE_AUTH 1u /* the listener wants every HELLO authenticated */

struct rail_handle_wire {
  uint8_t magic[4];
  uint8_t version, flags, naddrs;
  uint8_t param; /* the plugin's */
  uint8_t secret[RAIL_SECRET_SIZE];
  uint8_t body[RAIL_HANDLE_BODY]; /* naddrs times struct rail_addr_wire, the plugin's payload, zeros */
  uint64_t attempt; /* 0 from listen; the connector's own number between two calls of connect */
};
_Static_assert(sizeof(struct rail_handle_wire) == RAIL_HANDLE_SIZE, "handle size");

struct rail_handle {
  bool auth;
  unsigned int naddrs; /* 1..RAIL_HANDLE_ADDRS */
  union rail_addr addrs[RAIL_HANDLE_ADDRS];
  uint8_t param;
  uint8_t secret[RAIL_SECRET_SIZE];
  uint8_t payload[RAIL_HANDLE_BODY]; /* protocol->handle_payload bytes of it */
  uint64_t attempt;
};

/* `bytes` (RAIL_HANDLE_SIZE) need no alignment. */
void rail_handle_encode(const struct rail_protocol *protocol, const struct rail_handle *handle, void *bytes);
/* False with *why a constant text that says what is wrong. */
bool rail_handle_decode(const struct rail_protocol *protocol, const void *bytes, struct rail_handle *handle,
                        const char **why);
void rail_handle_set_attempt(void *bytes, uint64_t attempt);

/* ---- HELLO -------------------------------------------------------------- */

#define RAIL_HELLO_PAYLOAD_MAX 64
#define RAIL_HELLO_AUTH 1u      /* nonce and mac are set */
#define RAIL_HELLO_RECONNECT 2u /* a lost connection comes back; replay is the plugin's to check, by its own counter */

struct rail_hello_wire { /* then the payload, then RAIL_MAC_SIZE bytes of mac */
  uint8_t magic[4];
  uint16_t version;
  uint16_t length; /* of all of it */
  uint8_t secret[RAIL_SECRET_SIZE];
  uint8_t comm_id[RAIL_COMM_ID_SIZE];
  uint16_t stream, streams;
  uint32_t flags;
  uint8_t nonce[RAIL_NONCE_SIZE];
};
_Static_assert(sizeof(struct rail_hello_wire) == 64, "hello size");
#define RAIL_HELLO_PREFIX 24 /* magic to secret: the same in all versions */
#define RAIL_HELLO_MAX (sizeof(struct rail_hello_wire) + RAIL_HELLO_PAYLOAD_MAX + RAIL_MAC_SIZE)

struct rail_hello {
  uint8_t comm_id[RAIL_COMM_ID_SIZE]; /* random; the same in all TCP connections of one comm */
  unsigned int stream, streams;       /* index and number of those: 0 and 1 if there is one */
  bool reconnect;
  bool auth;
  uint8_t mac[RAIL_MAC_SIZE];         /* for rail_session_init */
  uint8_t payload[RAIL_HELLO_PAYLOAD_MAX];
};

static inline size_t rail_hello_size(const struct rail_protocol *protocol) {
  return sizeof(struct rail_hello_wire) + protocol->hello_payload + RAIL_MAC_SIZE;
}
/* Encodes and, with a key, signs; hello->auth and hello->mac are set. `bytes`: rail_hello_size. An error is one of the
 * kernel's random bytes or of HMAC. */
rail_result_t rail_hello_encode(const struct rail_protocol *protocol, const struct rail_handle *listener,
                                struct rail_hello *hello, void *bytes);
/* Can the first `have` bytes still become a HELLO for this listener? NONE, GARBAGE; VERSION, or SECRET where a HELLO of
 * another version has a wrong one. A HELLO of this version is checked when it is whole. */
enum rail_reason rail_hello_check_prefix(const struct rail_protocol *protocol, const struct rail_handle *listener,
                                         const void *bytes, size_t have);
/* A whole HELLO: everything is checked but the replay filter and the payload, the mac too. */
enum rail_reason rail_hello_decode(const struct rail_protocol *protocol, const struct rail_handle *listener,
                                   const void *bytes, struct rail_hello *hello);

/* ---- messages ----------------------------------------------------------- */

#define RAIL_BODY_MAX 4096
#define RAIL_ANSWER_PAYLOAD_MAX 128
#define RAIL_MESSAGE_ANSWER 1 /* the plugin's own types are 2 and up */

struct rail_head_wire { /* then the body, then RAIL_MAC_SIZE bytes of mac (zeros without a key) */
  uint8_t magic[4];
  uint16_t version; /* 0: refused, and no word about our version */
  uint16_t type;
  uint32_t length; /* of body and mac */
  uint32_t zero;
};
_Static_assert(sizeof(struct rail_head_wire) == 16, "head size");
#define RAIL_MESSAGE_MAX (sizeof(struct rail_head_wire) + RAIL_BODY_MAX + RAIL_MAC_SIZE)

struct rail_answer_wire { /* then the payload */
  uint16_t reason; /* the same in all versions, as are the head's magic, type and length */
  uint16_t zero;
  uint32_t zero2;
  uint8_t nonce[RAIL_NONCE_SIZE]; /* a welcome with a key: random */
};
_Static_assert(sizeof(struct rail_answer_wire) == 24, "answer size");
#define RAIL_ANSWER_MAX (sizeof(struct rail_head_wire) + sizeof(struct rail_answer_wire) + \
                         RAIL_ANSWER_PAYLOAD_MAX + RAIL_MAC_SIZE)

/* What the macs of one handshake have in common. One per TCP connection and side. */
struct rail_session {
  const struct rail_protocol *protocol;
  bool connector;
  bool keyed;
  uint8_t hello_mac[RAIL_MAC_SIZE];
  uint8_t nonce[RAIL_NONCE_SIZE];
  uint32_t sent, received; /* messages with a mac of their own */
};
void rail_session_init(struct rail_session *session, const struct rail_protocol *protocol, bool connector,
                       const struct rail_hello *hello);

struct rail_message {
  unsigned int type;
  const void *body; /* of an ANSWER: its payload. Aligned as its message is, to 8 bytes; not copied */
  size_t size;
  unsigned int reason;  /* of an ANSWER; NONE: welcome */
  unsigned int version; /* the other side's; 0: not sent */
};

/* Size of a message with that body. */
static inline size_t rail_message_size(size_t body) { return sizeof(struct rail_head_wire) + body + RAIL_MAC_SIZE; }
static inline size_t rail_answer_size(const struct rail_protocol *protocol) {
  return rail_message_size(sizeof(struct rail_answer_wire) + protocol->answer_payload);
}

/* One message, of rail_message_size(size) bytes. Not for ANSWER. */
rail_result_t rail_message_encode(struct rail_session *session, unsigned int type, const void *body, size_t size,
                                  void *bytes);
/* The acceptor's welcome, of rail_answer_size bytes; `payload` has protocol->answer_payload bytes, NULL: zeros. */
rail_result_t rail_welcome_encode(struct rail_session *session, const void *payload, void *bytes);
/* A refusal, which any side may send in place of its next message; rail_answer_size bytes. It carries no mac: it is
 * for everybody, also for those whose key is another. */
void rail_refusal_encode(const struct rail_protocol *protocol, unsigned int reason, const void *payload, void *bytes);

/* Do these four bytes begin a message? */
bool rail_is_message(const struct rail_protocol *protocol, const uint8_t magic[4]);
/* How many bytes must be there before rail_message_decode can look at the message that begins with these `have`:
 * first its head, then all of it. A bad head needs no more than itself. */
size_t rail_message_need(const struct rail_protocol *protocol, const void *bytes, size_t have);
/* A message of rail_message_need bytes. RAIL_OK: it is well formed and, with a key, the other side's next one. A
 * refusal is an ANSWER with reason != NONE. RAIL_REMOTE_ERROR: *reason is what to refuse it with and *why a text. */
rail_result_t rail_message_decode(struct rail_session *session, const void *bytes, struct rail_message *message,
                                  enum rail_reason *reason, const char **why);

#endif
