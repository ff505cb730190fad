/* SPDX-License-Identifier: Apache-2.0
 * Handle, HELLO and messages to bytes and back. */
#include "common/conn/protocol.h"

#include <endian.h>
#include <stdio.h>
#include <string.h>

/* ---- reasons ------------------------------------------------------------ */

const char *rail_reason_text(const struct rail_protocol *protocol, unsigned int reason) {
  static const char *const common[] = {
    [RAIL_REASON_NONE] = "welcome",
    [RAIL_REASON_GARBAGE] = "not a hello of this plugin",
    [RAIL_REASON_VERSION] = "another protocol version; install the same release on both sides",
    [RAIL_REASON_SECRET] = "wrong secret (a stale handle, or not a peer)",
    [RAIL_REASON_AUTH] = "a key file is set on one side only",
    [RAIL_REASON_MAC] = "the other side has another key, or its message was changed on the way",
    [RAIL_REASON_REPLAY] = "a hello that was received before",
    [RAIL_REASON_BUSY] = "too many half-open connections",
    [RAIL_REASON_TIMEOUT] = "the handshake was not finished in time",
    [RAIL_REASON_GONE] = "the listener or connection is closed",
    [RAIL_REASON_MESSAGE] = "an invalid message, or one out of order",
    [RAIL_REASON_FAILED] = "the other side could not create its part of the connection; its log says why",
  };
  _Static_assert(RAIL_COUNT_OF(common) == RAIL_REASON_COMMON, "a text for each reason");
  const char *text = protocol->reason_text ? protocol->reason_text(reason) : NULL;
  if (text) return text;
  return reason < RAIL_COUNT_OF(common) ? common[reason] : "a reason that this version does not know";
}

void rail_magic(const struct rail_protocol *protocol, char kind, uint8_t magic[4]) {
  memcpy(magic, protocol->tag, 3);
  magic[3] = (uint8_t)kind;
}

static bool has_magic(const uint8_t *bytes, size_t have, const struct rail_protocol *protocol, char kind) {
  uint8_t magic[4];
  rail_magic(protocol, kind, magic);
  return memcmp(bytes, magic, RAIL_MIN(have, sizeof magic)) == 0;
}

static void make_label(char label[RAIL_LABEL_SIZE], const struct rail_protocol *protocol, const char *what) {
  memset(label, 0, RAIL_LABEL_SIZE);
  snprintf(label, RAIL_LABEL_SIZE, "%s %u %s", protocol->plugin, protocol->version, what);
}

/* ---- handle ------------------------------------------------------------- */

void rail_handle_encode(const struct rail_protocol *protocol, const struct rail_handle *handle, void *bytes) {
  struct rail_handle_wire wire = {
    .version = protocol->version,
    .flags = handle->auth ? RAIL_HANDLE_AUTH : 0,
    .naddrs = (uint8_t)handle->naddrs,
    .param = handle->param,
    .attempt = htole64(handle->attempt),
  };
  rail_magic(protocol, 'H', wire.magic);
  memcpy(wire.secret, handle->secret, sizeof wire.secret);
  uint8_t *at = wire.body;
  for (unsigned int i = 0; i < handle->naddrs; i++, at += sizeof(struct rail_addr_wire)) {
    struct rail_addr_wire addr;
    rail_addr_pack(&handle->addrs[i], &addr);
    memcpy(at, &addr, sizeof addr);
  }
  memcpy(at, handle->payload, protocol->handle_payload);
  memcpy(bytes, &wire, sizeof wire);
}

bool rail_handle_decode(const struct rail_protocol *protocol, const void *bytes, struct rail_handle *handle,
                        const char **why) {
  struct rail_handle_wire wire;
  memcpy(&wire, bytes, sizeof wire);
  *handle = (struct rail_handle){.auth = wire.flags & RAIL_HANDLE_AUTH, .naddrs = wire.naddrs, .param = wire.param,
                                 .attempt = le64toh(wire.attempt)};
  memcpy(handle->secret, wire.secret, sizeof handle->secret);
  *why = NULL;
  if (!has_magic(wire.magic, sizeof wire.magic, protocol, 'H')) *why = "it was not made by this plugin's listen";
  else if (wire.version != protocol->version) *why = "the peer runs another version of this plugin";
  else if (wire.flags & ~RAIL_HANDLE_AUTH) *why = "it has unknown flags";
  else if (wire.naddrs < 1 || wire.naddrs > RAIL_HANDLE_ADDRS) *why = "its number of addresses is not 1..4";
  if (*why) return false;

  const uint8_t *at = wire.body, *end = wire.body + sizeof wire.body;
  if ((size_t)(end - at) < wire.naddrs * sizeof(struct rail_addr_wire) + protocol->handle_payload)
    *why = "it has more addresses than this plugin's handles";
  for (unsigned int i = 0; i < wire.naddrs && !*why; i++, at += sizeof(struct rail_addr_wire)) {
    struct rail_addr_wire addr;
    memcpy(&addr, at, sizeof addr);
    if (!rail_addr_unpack(&addr, &handle->addrs[i])) *why = "an address is malformed";
    else if (rail_addr_port(&handle->addrs[i]) == 0) *why = "a port is 0";
  }
  if (*why) return false;
  memcpy(handle->payload, at, protocol->handle_payload);
  for (at += protocol->handle_payload; at < end; at++)
    if (*at) *why = "it was changed on its way: reserved bytes are not zero";
  if (!*why && protocol->check_handle) *why = protocol->check_handle(handle);
  return *why == NULL;
}

void rail_handle_set_attempt(void *bytes, uint64_t attempt) {
  uint64_t wire = htole64(attempt);
  memcpy((uint8_t *)bytes + offsetof(struct rail_handle_wire, attempt), &wire, sizeof wire);
}

/* ---- HELLO -------------------------------------------------------------- */

/* Of all that stands before the mac, and of the handle that it answers. */
static rail_result_t hello_mac(const struct rail_protocol *protocol, const struct rail_handle *listener,
                               const void *bytes, uint8_t mac[RAIL_MAC_SIZE]) {
  struct rail_handle as_given = *listener;
  uint8_t handle[RAIL_HANDLE_SIZE];
  char label[RAIL_LABEL_SIZE];
  as_given.attempt = 0;
  rail_handle_encode(protocol, &as_given, handle);
  make_label(label, protocol, "hello");
  const struct rail_mac_part parts[] = {{handle, sizeof handle}, {bytes, rail_hello_size(protocol) - RAIL_MAC_SIZE}};
  return rail_key_mac_of(protocol->key, label, parts, RAIL_COUNT_OF(parts), mac);
}

rail_result_t rail_hello_encode(const struct rail_protocol *protocol, const struct rail_handle *listener,
                                struct rail_hello *hello, void *bytes) {
  uint8_t *at = bytes;
  hello->auth = rail_key_on(protocol->key);
  memset(hello->mac, 0, sizeof hello->mac);
  struct rail_hello_wire wire = {
    .version = htole16(protocol->version),
    .length = htole16((uint16_t)rail_hello_size(protocol)),
    .stream = htole16((uint16_t)hello->stream),
    .streams = htole16((uint16_t)hello->streams),
    .flags = htole32((hello->auth ? RAIL_HELLO_AUTH : 0) | (hello->reconnect ? RAIL_HELLO_RECONNECT : 0)),
  };
  rail_magic(protocol, '1', wire.magic);
  memcpy(wire.secret, listener->secret, sizeof wire.secret);
  memcpy(wire.comm_id, hello->comm_id, sizeof wire.comm_id);
  if (hello->auth) RAIL_TRY(rail_random_bytes(wire.nonce, sizeof wire.nonce));
  memcpy(at, &wire, sizeof wire);
  memcpy(at + sizeof wire, hello->payload, protocol->hello_payload);
  if (hello->auth) RAIL_TRY(hello_mac(protocol, listener, bytes, hello->mac));
  memcpy(at + sizeof wire + protocol->hello_payload, hello->mac, sizeof hello->mac);
  return RAIL_OK;
}

enum rail_reason rail_hello_check_prefix(const struct rail_protocol *protocol, const struct rail_handle *listener,
                                         const void *bytes, size_t have) {
  struct rail_hello_wire wire = {.version = 0};
  if (!has_magic(bytes, have, protocol, '1')) return RAIL_REASON_GARBAGE;
  if (have < RAIL_HELLO_PREFIX) return RAIL_REASON_NONE;
  memcpy(&wire, bytes, RAIL_HELLO_PREFIX);
  if (le16toh(wire.version) == protocol->version) return RAIL_REASON_NONE;
  /* Another version's HELLO may be shorter than ours, and its sender waits for an answer. */
  bool known = rail_same_bytes(wire.secret, listener->secret, sizeof wire.secret);
  return known ? RAIL_REASON_VERSION : RAIL_REASON_SECRET;
}

enum rail_reason rail_hello_decode(const struct rail_protocol *protocol, const struct rail_handle *listener,
                                   const void *bytes, struct rail_hello *hello) {
  struct rail_hello_wire wire;
  const uint8_t *at = bytes;
  memcpy(&wire, at, sizeof wire);
  uint32_t flags = le32toh(wire.flags);
  *hello = (struct rail_hello){.stream = le16toh(wire.stream), .streams = le16toh(wire.streams),
                               .reconnect = flags & RAIL_HELLO_RECONNECT, .auth = flags & RAIL_HELLO_AUTH};
  memcpy(hello->comm_id, wire.comm_id, sizeof hello->comm_id);
  memcpy(hello->payload, at + sizeof wire, protocol->hello_payload);
  memcpy(hello->mac, at + sizeof wire + protocol->hello_payload, sizeof hello->mac);
  enum rail_reason reason = rail_hello_check_prefix(protocol, listener, bytes, sizeof wire);
  if (reason != RAIL_REASON_NONE) return reason;
  if (!rail_same_bytes(wire.secret, listener->secret, sizeof wire.secret)) return RAIL_REASON_SECRET;
  if (le16toh(wire.length) != rail_hello_size(protocol) || (flags & ~(RAIL_HELLO_AUTH | RAIL_HELLO_RECONNECT)))
    return RAIL_REASON_MESSAGE;
  if (hello->auth != listener->auth) return RAIL_REASON_AUTH;
  uint8_t mac[RAIL_MAC_SIZE];
  if (hello->auth && (hello_mac(protocol, listener, bytes, mac) != RAIL_OK ||
                      !rail_same_bytes(mac, hello->mac, sizeof mac)))
    return RAIL_REASON_MAC;
  return hello->stream < hello->streams ? RAIL_REASON_NONE : RAIL_REASON_MESSAGE;
}

/* ---- messages ------------------------------------------------------------ */

void rail_session_init(struct rail_session *session, const struct rail_protocol *protocol, bool connector,
                       const struct rail_hello *hello) {
  *session = (struct rail_session){.protocol = protocol, .connector = connector, .keyed = hello->auth};
  memcpy(session->hello_mac, hello->mac, sizeof session->hello_mac);
}

/* Of the `number`-th message of a side: `size` bytes of head and body. */
static rail_result_t message_mac(const struct rail_session *session, bool connector, uint32_t number,
                                 const void *bytes, size_t size, uint8_t mac[RAIL_MAC_SIZE]) {
  char label[RAIL_LABEL_SIZE];
  uint32_t place = htole32(number);
  make_label(label, session->protocol, connector ? "connector" : "acceptor");
  const struct rail_mac_part parts[] = {{session->hello_mac, sizeof session->hello_mac},
                                        {session->nonce, sizeof session->nonce},
                                        {&place, sizeof place},
                                        {bytes, size}};
  return rail_key_mac_of(session->protocol->key, label, parts, RAIL_COUNT_OF(parts), mac);
}
_Static_assert(RAIL_LABEL_SIZE + RAIL_MAC_SIZE + RAIL_NONCE_SIZE + 4 + RAIL_MESSAGE_MAX <= RAIL_MAC_INPUT_MAX,
               "every message can be signed");

static void put_head(const struct rail_protocol *protocol, unsigned int type, unsigned int version, size_t body,
                     uint8_t *bytes) {
  struct rail_head_wire head = {.version = htole16((uint16_t)version), .type = htole16((uint16_t)type),
                                .length = htole32((uint32_t)(body + RAIL_MAC_SIZE))};
  rail_magic(protocol, 'M', head.magic);
  memcpy(bytes, &head, sizeof head);
}

rail_result_t rail_message_encode(struct rail_session *session, unsigned int type, const void *body, size_t size,
                                  void *bytes) {
  uint8_t *at = bytes, *mac = at + sizeof(struct rail_head_wire) + size;
  put_head(session->protocol, type, session->protocol->version, size, at);
  if (size) memcpy(at + sizeof(struct rail_head_wire), body, size);
  memset(mac, 0, RAIL_MAC_SIZE);
  if (!session->keyed) return RAIL_OK;
  return message_mac(session, session->connector, session->sent++, at, (size_t)(mac - at), mac);
}

static void put_answer(const struct rail_protocol *protocol, const struct rail_answer_wire *answer,
                       const void *payload, uint8_t *body) {
  memcpy(body, answer, sizeof *answer);
  if (payload) memcpy(body + sizeof *answer, payload, protocol->answer_payload);
  else memset(body + sizeof *answer, 0, protocol->answer_payload);
}

rail_result_t rail_welcome_encode(struct rail_session *session, const void *payload, void *bytes) {
  struct rail_answer_wire answer = {.reason = RAIL_REASON_NONE};
  uint8_t body[sizeof answer + RAIL_ANSWER_PAYLOAD_MAX];
  if (session->keyed) RAIL_TRY(rail_random_bytes(answer.nonce, sizeof answer.nonce));
  put_answer(session->protocol, &answer, payload, body);
  RAIL_TRY(rail_message_encode(session, RAIL_MESSAGE_ANSWER, body, sizeof answer + session->protocol->answer_payload,
                               bytes));
  memcpy(session->nonce, answer.nonce, sizeof session->nonce);
  return RAIL_OK;
}

void rail_refusal_encode(const struct rail_protocol *protocol, unsigned int reason, const void *payload, void *bytes) {
  const struct rail_answer_wire answer = {.reason = htole16((uint16_t)reason)};
  uint8_t *at = bytes;
  size_t body = sizeof answer + protocol->answer_payload;
  put_head(protocol, RAIL_MESSAGE_ANSWER, reason == RAIL_REASON_SECRET ? 0 : protocol->version, body, at);
  put_answer(protocol, &answer, payload, at + sizeof(struct rail_head_wire));
  memset(at + sizeof(struct rail_head_wire) + body, 0, RAIL_MAC_SIZE);
}

bool rail_is_message(const struct rail_protocol *protocol, const uint8_t magic[4]) {
  return has_magic(magic, 4, protocol, 'M');
}

/* NULL, or what is wrong. *body: its size. A refusal is understood from every version. */
static const char *check_head(const struct rail_protocol *protocol, const void *bytes, struct rail_head_wire *head,
                              size_t *body) {
  memcpy(head, bytes, sizeof *head);
  uint32_t length = le32toh(head->length), type = le16toh(head->type);
  size_t max_body = RAIL_MAX(protocol->max_body, sizeof(struct rail_answer_wire) + RAIL_ANSWER_PAYLOAD_MAX);
  *body = 0;
  if (!has_magic(head->magic, sizeof head->magic, protocol, 'M')) return "what came is no message of this plugin";
  if (le16toh(head->version) != protocol->version && type != RAIL_MESSAGE_ANSWER) return "it is of another version";
  if (type < RAIL_MESSAGE_ANSWER) return "a message of an unknown type";
  if (length < RAIL_MAC_SIZE || length > max_body + RAIL_MAC_SIZE) return "a message of an invalid length";
  *body = length - RAIL_MAC_SIZE;
  return NULL;
}

size_t rail_message_need(const struct rail_protocol *protocol, const void *bytes, size_t have) {
  struct rail_head_wire head;
  size_t body;
  if (have < sizeof head || check_head(protocol, bytes, &head, &body)) return sizeof head;
  return rail_message_size(body);
}

static rail_result_t bad(enum rail_reason reason, const char *what, enum rail_reason *to, const char **why) {
  *to = reason;
  *why = what;
  return RAIL_REMOTE_ERROR;
}

/* An ANSWER: the message's body becomes the payload. NULL, or what is wrong. */
static const char *split_answer(const struct rail_protocol *protocol, struct rail_message *message,
                                struct rail_answer_wire *answer) {
  *answer = (struct rail_answer_wire){.reason = 0};
  if (message->size < sizeof answer->reason) return "an answer without reason";
  memcpy(answer, message->body, RAIL_MIN(message->size, sizeof *answer));
  message->reason = le16toh(answer->reason);
  if (message->size == sizeof *answer + protocol->answer_payload) {
    message->body = (const uint8_t *)message->body + sizeof *answer;
    message->size = protocol->answer_payload;
    return NULL;
  }
  message->size = 0; /* another version's refusal may be of any form */
  return message->reason == RAIL_REASON_NONE ? "a welcome of an invalid length" : NULL;
}

rail_result_t rail_message_decode(struct rail_session *session, const void *bytes, struct rail_message *message,
                                  enum rail_reason *reason, const char **why) {
  const struct rail_protocol *protocol = session->protocol;
  struct rail_head_wire head;
  struct rail_answer_wire answer = {.reason = 0};
  uint8_t mac[RAIL_MAC_SIZE];
  size_t body;
  *message = (struct rail_message){.type = 0};
  const char *wrong = check_head(protocol, bytes, &head, &body);
  if (wrong) return bad(RAIL_REASON_MESSAGE, wrong, reason, why);
  const size_t size = sizeof head + body;
  *message = (struct rail_message){.type = le16toh(head.type), .body = (const uint8_t *)bytes + sizeof head,
                                   .size = body, .version = le16toh(head.version)};
  if (message->type == RAIL_MESSAGE_ANSWER) {
    wrong = split_answer(protocol, message, &answer);
    if (wrong) return bad(RAIL_REASON_MESSAGE, wrong, reason, why);
    if (message->reason != RAIL_REASON_NONE) return RAIL_OK; /* refusals carry no mac */
    if (message->version != protocol->version)
      return bad(RAIL_REASON_VERSION, rail_reason_text(protocol, RAIL_REASON_VERSION), reason, why);
  }
  if (session->keyed) {
    if (message_mac(session, !session->connector, session->received++, bytes, size, mac) != RAIL_OK)
      return bad(RAIL_REASON_FAILED, "no HMAC", reason, why);
    if (!rail_same_bytes(mac, (const uint8_t *)bytes + size, sizeof mac))
      return bad(RAIL_REASON_MAC, rail_reason_text(protocol, RAIL_REASON_MAC), reason, why);
  }
  if (message->type == RAIL_MESSAGE_ANSWER) memcpy(session->nonce, answer.nonce, sizeof session->nonce);
  return RAIL_OK;
}
