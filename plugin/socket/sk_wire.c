/* SPDX-License-Identifier: Apache-2.0
 * Handle and handshake messages to bytes and back. */
#include "plugin/socket/sk_wire.h"

/* ---- listen handle ---------------------------------------------------- */

void sk_handle_encode(const struct sk_handle *handle, void *bytes) {
  struct sk_handle_wire wire = {
    .magic = htole32(SK_HANDLE_MAGIC),
    .version = htole16(SK_WIRE_VERSION),
    .streams = htole16((uint16_t)handle->streams),
    .attempt = htole64(handle->attempt),
  };
  rail_addr_pack(&handle->addr, &wire.addr);
  memcpy(wire.secret, handle->secret, sizeof wire.secret);
  memcpy(bytes, &wire, sizeof wire);
}

bool sk_handle_decode(const void *bytes, struct sk_handle *handle, const char **why) {
  struct sk_handle_wire wire;
  memcpy(&wire, bytes, sizeof wire);
  handle->streams = le16toh(wire.streams);
  handle->attempt = le64toh(wire.attempt);
  memcpy(handle->secret, wire.secret, sizeof handle->secret);
  *why = NULL;
  if (le32toh(wire.magic) != SK_HANDLE_MAGIC) *why = "it was not made by RailSocket's listen";
  else if (le16toh(wire.version) != SK_WIRE_VERSION) *why = "the peer runs another version of RailSocket";
  else if (handle->streams < 1 || handle->streams > SK_MAX_STREAMS) *why = "its stream count is not 1..16";
  else if (!rail_addr_unpack(&wire.addr, &handle->addr)) *why = "its address is malformed";
  else if (rail_addr_port(&handle->addr) == 0) *why = "its port is 0";
  return *why == NULL;
}

void sk_handle_set_attempt(void *bytes, uint64_t attempt) {
  uint64_t wire = htole64(attempt);
  memcpy((uint8_t *)bytes + offsetof(struct sk_handle_wire, attempt), &wire, sizeof wire);
}

/* ---- handshake -------------------------------------------------------- */

static const char *const reason_text[] = {
  [SK_REASON_NONE] = "welcome",
  [SK_REASON_GARBAGE] = "not a RailSocket hello",
  [SK_REASON_VERSION] = "another protocol version",
  [SK_REASON_SECRET] = "wrong secret (a stale handle, or a stranger)",
  [SK_REASON_STREAMS] = "stream index or count that the listener did not ask for",
  [SK_REASON_DUPLICATE] = "a stream that is there already",
  [SK_REASON_EAGER] = "eager limits out of range",
  [SK_REASON_TIMEOUT] = "the handshake was not finished in time",
  [SK_REASON_BUSY] = "too many half-open connections",
};
_Static_assert(RAIL_COUNT_OF(reason_text) == SK_REASON_COUNT, "a text for each reason");

const char *sk_reason_text(unsigned int reason) {
  return reason < SK_REASON_COUNT ? reason_text[reason] : "a reason that this version does not know";
}

void sk_hello_encode(const struct sk_hello *hello, struct sk_hello_wire *wire) {
  *wire = (struct sk_hello_wire){
    .magic = htole32(SK_HELLO_MAGIC),
    .version = htole16(SK_WIRE_VERSION),
    .length = htole16(sizeof *wire),
    .stream = htole16((uint16_t)hello->stream),
    .streams = htole16((uint16_t)hello->streams),
    .features = htole32(hello->features),
    .eager_size = htole32(hello->eager_size),
    .eager_count = htole32(hello->eager_count),
  };
  memcpy(wire->secret, hello->secret, sizeof wire->secret);
  memcpy(wire->comm_id, hello->comm_id, sizeof wire->comm_id);
}

/* No early exit: the time tells nothing about how many bytes were right. */
static bool secret_equal(const uint8_t *a, const uint8_t *b) {
  volatile uint8_t differ = 0;
  for (size_t i = 0; i < SK_SECRET_SIZE; i++) differ = differ | (a[i] ^ b[i]);
  return differ == 0;
}

enum sk_reason sk_hello_decode(const struct sk_hello_wire *wire, const uint8_t *secret, unsigned int streams,
                               struct sk_hello *hello) {
  hello->version = le16toh(wire->version);
  hello->stream = le16toh(wire->stream);
  hello->streams = le16toh(wire->streams);
  hello->features = le32toh(wire->features);
  hello->eager_size = le32toh(wire->eager_size);
  hello->eager_count = le32toh(wire->eager_count);
  memcpy(hello->secret, wire->secret, sizeof hello->secret);
  memcpy(hello->comm_id, wire->comm_id, sizeof hello->comm_id);
  if (le32toh(wire->magic) != SK_HELLO_MAGIC) return SK_REASON_GARBAGE;
  if (hello->version != SK_WIRE_VERSION || le16toh(wire->length) != sizeof *wire) return SK_REASON_VERSION;
  if (!secret_equal(hello->secret, secret)) return SK_REASON_SECRET;
  if (hello->streams != streams || hello->stream >= streams) return SK_REASON_STREAMS;
  if (hello->eager_size > SK_MAX_EAGER || hello->eager_count > SK_MAX_EAGER_COUNT) return SK_REASON_EAGER;
  return SK_REASON_NONE;
}

bool sk_hello_plausible(const void *bytes, size_t have) {
  uint32_t magic = htole32(SK_HELLO_MAGIC);
  return memcmp(bytes, &magic, have < sizeof magic ? have : sizeof magic) == 0;
}

void sk_answer_encode(enum sk_reason reason, unsigned int stream, struct sk_answer_wire *wire) {
  *wire = (struct sk_answer_wire){
    .magic = htole32(SK_ANSWER_MAGIC),
    .version = htole16(SK_WIRE_VERSION),
    .length = htole16(sizeof *wire),
    .reason = htole16((uint16_t)reason),
    .stream = htole16((uint16_t)stream),
  };
}

bool sk_answer_decode(const struct sk_answer_wire *wire, unsigned int stream, unsigned int *reason,
                      unsigned int *version) {
  *reason = le16toh(wire->reason);
  *version = le16toh(wire->version);
  if (le32toh(wire->magic) != SK_ANSWER_MAGIC || le16toh(wire->length) != sizeof *wire) return false;
  /* A refusal is understood whatever the version; a welcome only from our own. */
  return *reason != SK_REASON_NONE || (*version == SK_WIRE_VERSION && le16toh(wire->stream) == stream);
}
