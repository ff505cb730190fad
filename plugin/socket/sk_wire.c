/* SPDX-License-Identifier: Apache-2.0
 * Handle and handshake messages to bytes and back. */
#include "plugin/socket/sk_wire.h"

#include "common/conn/hmac.h"

/* ---- listen handle ---------------------------------------------------- */

void sk_handle_encode(const struct sk_handle *handle, void *bytes) {
  struct sk_handle_wire wire = {
    .magic = htole32(SK_HANDLE_MAGIC),
    .version = SK_WIRE_VERSION,
    .flags = (uint8_t)handle->flags,
    .streams = htole16((uint16_t)handle->streams),
    .attempt = htole64(handle->attempt),
  };
  for (unsigned int i = 0; i < handle->naddrs; i++) rail_addr_pack(&handle->addrs[i], &wire.addrs[i]);
  memcpy(wire.secret, handle->secret, sizeof wire.secret);
  memcpy(bytes, &wire, sizeof wire);
}

/* One to four, without gaps. */
static const char *decode_addrs(const struct sk_handle_wire *wire, struct sk_handle *handle) {
  static const struct rail_addr_wire none;
  bool ended = false;
  for (unsigned int i = 0; i < SK_MAX_RAILS; i++) {
    if (memcmp(&wire->addrs[i], &none, sizeof none) == 0) {
      ended = true;
      continue;
    }
    if (ended || !rail_addr_unpack(&wire->addrs[i], &handle->addrs[i])) return "an address is malformed";
    if (rail_addr_port(&handle->addrs[i]) == 0) return "a port is 0";
    handle->naddrs++;
  }
  return handle->naddrs ? NULL : "it names no address";
}

bool sk_handle_decode(const void *bytes, struct sk_handle *handle, const char **why) {
  struct sk_handle_wire wire;
  memcpy(&wire, bytes, sizeof wire);
  memset(handle, 0, sizeof *handle);
  handle->flags = wire.flags;
  handle->streams = le16toh(wire.streams);
  handle->attempt = le64toh(wire.attempt);
  memcpy(handle->secret, wire.secret, sizeof handle->secret);
  *why = NULL;
  if (le32toh(wire.magic) != SK_HANDLE_MAGIC) *why = "it was not made by RailSocket's listen";
  else if (wire.version != SK_WIRE_VERSION) *why = "the peer runs another version of RailSocket";
  else if (handle->flags & ~SK_HANDLE_AUTH) *why = "it has flags that do not exist";
  else if (handle->streams < 1 || handle->streams > SK_MAX_STREAMS) *why = "its stream count is not 1..16";
  else *why = decode_addrs(&wire, handle);
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
  [SK_REASON_AUTH] = "RAIL_SOCKET_AUTH_FILE is set on one side only",
  [SK_REASON_MAC] = "the other side has not the key of RAIL_SOCKET_AUTH_FILE, or somebody changed what it said",
  [SK_REASON_REPLAY] = "a hello that was heard before",
  [SK_REASON_GONE] = "the listener or connection it is meant for is closed",
};
_Static_assert(RAIL_COUNT_OF(reason_text) == SK_REASON_COUNT, "a text for each reason");

const char *sk_reason_text(unsigned int reason) {
  return reason < SK_REASON_COUNT ? reason_text[reason] : "a reason that this version does not know";
}

void sk_hello_encode(const struct sk_hello *hello, const uint8_t *secret, struct sk_hello_wire *wire) {
  *wire = (struct sk_hello_wire){
    .magic = htole32(SK_HELLO_MAGIC),
    .version = htole16(SK_WIRE_VERSION),
    .length = htole16(sizeof *wire),
    .stream = htole16((uint16_t)hello->stream),
    .streams = htole16((uint16_t)hello->streams),
    .features = htole32(hello->features),
    .eager_size = htole32(hello->eager_size),
    .eager_count = htole32(hello->eager_count),
    .eager_bytes = htole32(hello->eager_bytes),
    .flags = htole32(hello->flags),
    .counter = htole64(hello->counter),
  };
  memcpy(wire->secret, secret, sizeof wire->secret);
  memcpy(wire->comm_id, hello->comm_id, sizeof wire->comm_id);
}

/* The listener's streams per rail, times the rails of whichever side has more. */
static bool streams_fit(const struct sk_hello *hello, const struct sk_handle *listener) {
  if (hello->stream >= hello->streams) return false;
  for (unsigned int rails = listener->naddrs; rails <= SK_MAX_RAILS; rails++)
    if (hello->streams == sk_streams_of(listener->streams, rails)) return true;
  return false;
}

enum sk_reason sk_hello_decode(const struct sk_hello_wire *wire, const struct sk_handle *listener,
                               struct sk_hello *hello) {
  *hello = (struct sk_hello){
    .version = le16toh(wire->version),
    .stream = le16toh(wire->stream),
    .streams = le16toh(wire->streams),
    .features = le32toh(wire->features),
    .eager_size = le32toh(wire->eager_size),
    .eager_count = le32toh(wire->eager_count),
    .eager_bytes = le32toh(wire->eager_bytes),
    .flags = le32toh(wire->flags),
    .counter = le64toh(wire->counter),
  };
  memcpy(hello->comm_id, wire->comm_id, sizeof hello->comm_id);
  if (le32toh(wire->magic) != SK_HELLO_MAGIC) return SK_REASON_GARBAGE;
  if (!rail_same_bytes(wire->secret, listener->secret, SK_SECRET_SIZE)) return SK_REASON_SECRET;
  if (hello->version != SK_WIRE_VERSION || le16toh(wire->length) != sizeof *wire) return SK_REASON_VERSION;
  if (hello->flags & ~(SK_HELLO_AUTH | SK_HELLO_REJOIN)) return SK_REASON_VERSION;
  if (!!(hello->flags & SK_HELLO_AUTH) != !!(listener->flags & SK_HANDLE_AUTH)) return SK_REASON_AUTH;
  if (!streams_fit(hello, listener)) return SK_REASON_STREAMS;
  if (hello->eager_size > SK_MAX_EAGER || hello->eager_count > SK_MAX_EAGER_COUNT ||
      hello->eager_bytes > SK_MAX_EAGER_BYTES || hello->eager_bytes < SK_MIN_EAGER_BYTES(hello->eager_size))
    return SK_REASON_EAGER;
  return SK_REASON_NONE;
}

bool sk_hello_plausible(const void *bytes, size_t have) {
  uint32_t magic = htole32(SK_HELLO_MAGIC);
  return memcmp(bytes, &magic, have < sizeof magic ? have : sizeof magic) == 0;
}

void sk_answer_encode(enum sk_reason reason, unsigned int stream, uint32_t features, struct sk_answer_wire *wire) {
  *wire = (struct sk_answer_wire){
    .magic = htole32(SK_ANSWER_MAGIC),
    .version = htole16(reason == SK_REASON_SECRET ? 0 : SK_WIRE_VERSION),
    .length = htole16(sizeof *wire),
    .reason = htole16((uint16_t)reason),
    .stream = htole16((uint16_t)stream),
    .features = htole32(features),
  };
}

size_t sk_answer_size(const void *bytes, size_t have) {
  struct sk_answer_wire wire = {0};
  if (have < SK_ANSWER_PREFIX) return SK_ANSWER_PREFIX;
  memcpy(&wire, bytes, SK_ANSWER_PREFIX);
  bool ours = le32toh(wire.magic) == SK_ANSWER_MAGIC && le16toh(wire.version) == SK_WIRE_VERSION;
  return ours ? sizeof wire : SK_ANSWER_PREFIX;
}

bool sk_answer_decode(const void *bytes, const struct sk_answer_wire *expected, unsigned int *reason,
                      unsigned int *version) {
  struct sk_answer_wire wire = {0};
  memcpy(&wire, bytes, sk_answer_size(bytes, SK_ANSWER_PREFIX));
  *reason = le16toh(wire.reason);
  *version = le16toh(wire.version);
  if (le32toh(wire.magic) != SK_ANSWER_MAGIC) return false;
  /* A refusal is understood whatever the version; a welcome only from our own. */
  if (*reason != SK_REASON_NONE) return true;
  if (*version != SK_WIRE_VERSION || wire.length != expected->length || wire.stream != expected->stream ||
      wire.features != expected->features)
    return false;
  if (!rail_same_bytes(wire.mac, expected->mac, sizeof wire.mac)) *reason = SK_REASON_MAC;
  return true;
}
