/* SPDX-License-Identifier: Apache-2.0
 * The plugin's part of handle, HELLO and ANSWER to bytes and back. */
#include "plugin/socket/sk_wire.h"

#include "plugin/socket/sk_param.h"

static struct rail_key key = {.plugin = "RailSocket", .param = "RAIL_SOCKET_AUTH_FILE"};

static const char *reason_text(unsigned int reason) {
  switch (reason) {
    case RAIL_REASON_GARBAGE: return "not a RailSocket hello";
    case RAIL_REASON_AUTH:
      return "RAIL_SOCKET_AUTH_FILE is set on one side only (RAIL_SOCKET_TLS=psk needs it, too)";
    case RAIL_REASON_MAC:
      return "the other side has another key in RAIL_SOCKET_AUTH_FILE, or its message was changed on the way";
    case SK_REASON_STREAMS: return "stream index or count that the listener did not ask for";
    case SK_REASON_DUPLICATE: return "a stream of a connection that was accepted already";
    case SK_REASON_LIMITS:
      return "eager limits out of range (a side of another release? RAIL_SOCKET_AHEAD=0 on the sending one may help)";
    case SK_REASON_TLS: return "one side encrypts and the other does not: RAIL_SOCKET_TLS must be the same on both";
    default: return NULL;
  }
}

static const char *check_handle(const struct rail_handle *handle) {
  unsigned int streams = sk_handle_streams(handle);
  return streams >= 1 && streams <= SK_MAX_STREAMS ? NULL : "its stream count is not 1..16";
}

const struct rail_protocol sk_protocol = {
  .plugin = "RailSocket",
  .tag = SK_TAG,
  .version = SK_WIRE_VERSION,
  .key = &key,
  .hello_payload = sizeof(struct sk_limits_wire),
  .answer_payload = sizeof(uint32_t),
  .check_handle = check_handle,
  .reason_text = reason_text,
};

bool sk_protocol_load(void) { return rail_key_load(&key, sk_params.auth_file); }

/* ---- HELLO ---------------------------------------------------------------- */

void sk_limits_encode(const struct sk_limits *limits, uint64_t counter, struct rail_hello *hello) {
  const struct sk_limits_wire wire = {
    .features = htole32(limits->features),
    .eager_size = htole32(limits->eager_size),
    .eager_count = htole32(limits->eager_count),
    .eager_bytes = htole32(limits->eager_bytes),
    .counter = htole64(counter),
  };
  memcpy(hello->payload, &wire, sizeof wire);
}

/* The listener's streams per rail, times the rails of whichever side has more. */
static bool streams_fit(const struct rail_hello *hello, const struct rail_handle *listener) {
  for (unsigned int rails = listener->naddrs; rails <= SK_MAX_RAILS; rails++)
    if (hello->streams == sk_streams_of(sk_handle_streams(listener), rails)) return true;
  return false;
}

unsigned int sk_limits_decode(const struct rail_hello *hello, const struct rail_handle *listener,
                              struct sk_limits *limits, uint64_t *counter) {
  struct sk_limits_wire wire;
  memcpy(&wire, hello->payload, sizeof wire);
  *counter = le64toh(wire.counter);
  *limits = (struct sk_limits){
    .features = le32toh(wire.features) & SK_FEATURES,
    .eager_size = le32toh(wire.eager_size),
    .eager_count = le32toh(wire.eager_count),
    .eager_bytes = le32toh(wire.eager_bytes),
  };
  if (sk_handle_tls(listener) != ((limits->features & SK_FEATURE_TLS) != 0)) return SK_REASON_TLS;
  if (!streams_fit(hello, listener)) return SK_REASON_STREAMS;
  uint32_t max_size = limits->features & SK_FEATURE_AHEAD ? SK_MAX_AHEAD : SK_MAX_EAGER;
  bool fit = limits->eager_size <= max_size && limits->eager_count <= SK_MAX_EAGER_COUNT &&
             limits->eager_bytes <= SK_MAX_EAGER_BYTES && limits->eager_bytes >= SK_MIN_EAGER_BYTES(limits->eager_size);
  return fit ? (unsigned int)RAIL_REASON_NONE : SK_REASON_LIMITS;
}

/* ---- ANSWER --------------------------------------------------------------- */

rail_result_t sk_welcome_encode(struct rail_session *session, uint32_t features, void *bytes) {
  uint32_t payload = htole32(features);
  return rail_welcome_encode(session, &payload, bytes);
}

unsigned int sk_answer_decode(struct rail_session *session, const void *bytes, uint32_t features,
                              unsigned int *version) {
  struct rail_message answer;
  enum rail_reason reason = RAIL_REASON_NONE;
  const char *why;
  uint32_t payload;
  rail_result_t result = rail_message_decode(session, bytes, &answer, &reason, &why);
  *version = answer.version;
  if (result != RAIL_OK) return reason == RAIL_REASON_MESSAGE ? RAIL_REASON_GARBAGE : reason;
  if (answer.type != RAIL_MESSAGE_ANSWER) return RAIL_REASON_GARBAGE;
  if (answer.reason != RAIL_REASON_NONE) return answer.reason;
  memcpy(&payload, answer.body, sizeof payload);
  if ((le32toh(payload) ^ features) & SK_FEATURE_TLS) return SK_REASON_TLS;
  return le32toh(payload) == features ? RAIL_REASON_NONE : RAIL_REASON_GARBAGE;
}
