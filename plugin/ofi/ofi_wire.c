/* SPDX-License-Identifier: Apache-2.0
 * The plugin's part of the handshake, and control messages, to bytes and back. */
#include "plugin/ofi/ofi_wire.h"

#include "plugin/ofi/ofi_param.h"

static struct rail_key key = {.plugin = "RailOFI", .param = "RAIL_OFI_AUTH_FILE"};

static const char *reason_text(unsigned int reason) {
  switch (reason) {
    case RAIL_REASON_GARBAGE: return "not a RailOFI hello";
    case RAIL_REASON_AUTH: return "RAIL_OFI_AUTH_FILE is set on one side only";
    case RAIL_REASON_MAC:
      return "the other side has another key in RAIL_OFI_AUTH_FILE, or its message was changed on the way";
    case RAIL_REASON_TIMEOUT: return "the handshake was not finished in time (RAIL_OFI_CONNECT_TIMEOUT)";
    case RAIL_REASON_FAILED: return "the other side could not open its endpoint; its log says why";
    case OFI_REASON_PROVIDER: return "the two sides have different libfabric providers (FI_PROVIDER)";
    case OFI_REASON_FABRIC: return "the fabric carried no message between the two in time; the side that waited logs "
                                   "its provider and addresses";
    default: return NULL;
  }
}

const struct rail_protocol ofi_protocol = {
  .plugin = "RailOFI",
  .tag = OFI_TAG,
  .version = OFI_WIRE_VERSION,
  .key = &key,
  .max_body = sizeof(struct ofi_offer_wire),
  .reason_text = reason_text,
};

bool ofi_protocol_load(void) { return rail_key_load(&key, ofi_params.auth_file); }

/* ---- OFFER ------------------------------------------------------------------ */

size_t ofi_offer_encode(const struct ofi_offer *offer, struct ofi_offer_wire *wire) {
  memset(wire, 0, sizeof *wire);
  wire->process = htole64(offer->process);
  wire->token = htole64(offer->token);
  wire->comm = htole32(offer->comm);
  wire->max_inline = htole32(offer->max_inline);
  wire->nnics = (uint8_t)offer->nnics;
  wire->eager_count = htole16((uint16_t)offer->eager_count);
  memcpy(wire->provider, offer->provider, strnlen(offer->provider, sizeof wire->provider - 1));
  memcpy(wire->domain, offer->domain, strnlen(offer->domain, sizeof wire->domain - 1));
  for (unsigned int i = 0; i < offer->nnics; i++) {
    wire->addrs[i].size = htole16(offer->addrs[i].size);
    memcpy(wire->addrs[i].bytes, offer->addrs[i].bytes, offer->addrs[i].size);
  }
  return offsetof(struct ofi_offer_wire, addrs) + offer->nnics * sizeof wire->addrs[0];
}

static bool is_name(const char name[OFI_NAME_SIZE]) {
  size_t n = strnlen(name, OFI_NAME_SIZE);
  for (size_t i = 0; i < n; i++)
    if (name[i] < 0x20 || name[i] > 0x7e) return false;
  return n > 0 && n < OFI_NAME_SIZE;
}

const char *ofi_offer_decode(const void *body, size_t size, struct ofi_offer *offer) {
  struct ofi_offer_wire wire = {0};
  const size_t fixed = offsetof(struct ofi_offer_wire, addrs);
  memset(offer, 0, sizeof *offer);
  if (size < fixed || size > sizeof wire) return "an offer of a wrong size";
  memcpy(&wire, body, size);
  if (wire.nnics < 1 || wire.nnics > OFI_MAX_PATHS || size != fixed + wire.nnics * sizeof wire.addrs[0])
    return "an offer with a wrong number of NICs";
  if (!is_name(wire.provider) || !is_name(wire.domain)) return "an offer with a name that is none";
  offer->process = le64toh(wire.process);
  offer->token = le64toh(wire.token);
  offer->comm = le32toh(wire.comm);
  offer->max_inline = le32toh(wire.max_inline);
  offer->nnics = wire.nnics;
  offer->eager_count = le16toh(wire.eager_count);
  if (offer->max_inline > OFI_MAX_INLINE || offer->comm >= OFI_MAX_COMMS || offer->eager_count > OFI_MAX_EAGER)
    return "an offer with a value out of range";
  memcpy(offer->provider, wire.provider, sizeof offer->provider);
  memcpy(offer->domain, wire.domain, sizeof offer->domain);
  for (unsigned int i = 0; i < offer->nnics; i++) {
    offer->addrs[i].size = le16toh(wire.addrs[i].size);
    if (offer->addrs[i].size < 1 || offer->addrs[i].size > OFI_ADDR_SIZE)
      return "an offer with an address that is none";
    memcpy(offer->addrs[i].bytes, wire.addrs[i].bytes, offer->addrs[i].size);
  }
  return NULL;
}

bool ofi_address_fits(const struct ofi_address *address, const struct ofi_address *own, bool is_string) {
  if (is_string) return strnlen((const char *)address->bytes, address->size) < address->size;
  return address->size == own->size;
}

/* ---- frames ------------------------------------------------------------------- */

static uint8_t *encode_buffers(const struct ofi_frame *frame, uint8_t *at) {
  for (unsigned int i = 0; i < frame->nbuffers; i++) {
    const struct ofi_buffer *b = &frame->buffers[i];
    const struct ofi_buffer_wire wire = {.addr = htole64(b->addr), .size = htole64(b->size), .tag = htole32(b->tag),
                                         .kind = (uint8_t)b->kind, .path = (uint8_t)b->path,
                                         .takes_data = b->takes_data, .last = b->last};
    memcpy(at, &wire, sizeof wire);
    at += sizeof wire;
    for (unsigned int k = 0; k < frame->nkeys; k++, at += 8) {
      uint64_t key_wire = htole64(b->keys[k]);
      memcpy(at, &key_wire, sizeof key_wire);
    }
  }
  return at;
}

static bool has_report(unsigned int type) { return type == OFI_FRAME_GRANT || type == OFI_FRAME_ACK; }

size_t ofi_frame_encode(const struct ofi_frame *frame, void *bytes) {
  uint8_t *at = (uint8_t *)bytes + OFI_FRAME_SIZE;
  ofi_head_encode(frame, bytes);
  if (!has_report(frame->type)) return OFI_FRAME_SIZE;
  const struct ofi_report_wire report = {.seen = htole32(frame->report.seen), .freed = htole32(frame->report.freed),
                                         .filled = htole32(frame->report.filled)};
  memcpy(at, &report, sizeof report);
  return (size_t)(encode_buffers(frame, at + sizeof report) - (uint8_t *)bytes);
}

static bool decode_buffer(const uint8_t *at, unsigned int nkeys, struct ofi_buffer *b) {
  struct ofi_buffer_wire wire;
  memcpy(&wire, at, sizeof wire);
  *b = (struct ofi_buffer){.addr = le64toh(wire.addr), .size = le64toh(wire.size), .tag = le32toh(wire.tag),
                           .kind = (enum ofi_buffer_kind)wire.kind, .path = wire.path,
                           .takes_data = wire.takes_data != 0, .last = wire.last != 0};
  for (unsigned int k = 0; k < nkeys; k++) {
    uint64_t key_wire;
    memcpy(&key_wire, at + sizeof wire + 8 * k, sizeof key_wire);
    b->keys[k] = le64toh(key_wire);
  }
  return b->kind >= OFI_BUFFER_TAGGED && b->kind <= OFI_BUFFER_FILLED && b->path < OFI_MAX_PATHS &&
         b->size <= RAIL_NET_MAX_BYTES && wire.takes_data <= 1 && wire.last <= 1;
}

/* What each type must have, and nothing else. */
static bool fits_type(const struct ofi_frame *frame, size_t payload) {
  if (frame->type == OFI_FRAME_GRANT ? !frame->nbuffers : frame->nbuffers) return false;
  if (frame->parts > (frame->type == OFI_FRAME_FIN ? OFI_MAX_PATHS : frame->type == OFI_FRAME_PONG)) return false;
  switch (frame->type) {
    case OFI_FRAME_DATA: return payload == frame->size && payload <= OFI_MAX_INLINE;
    case OFI_FRAME_FIN:
      return !payload && frame->parts && frame->size <= RAIL_NET_MAX_BYTES;
    case OFI_FRAME_TOO_LARGE: return !payload && frame->size <= RAIL_NET_MAX_BYTES;
    case OFI_FRAME_PING: return !payload && !frame->size && frame->path < OFI_MAX_PATHS;
    case OFI_FRAME_PONG: return !payload && frame->path < OFI_MAX_PATHS;
    case OFI_FRAME_EAGER: return false; /* ofi_is_eager has refused it */
    default: return !payload && !frame->size && !frame->index && !frame->tag;
  }
}

/* What follows the frame of a GRANT or an ACK. Not inlined: a message with a payload needs none of its registers. */
__attribute__((noinline)) static bool decode_report(const uint8_t *at, size_t size, struct ofi_frame *frame) {
  struct ofi_report_wire report;
  size_t each = OFI_BUFFER_SIZE(frame->nkeys), all = frame->nbuffers * each;
  unsigned int group = 0; /* buffers of the same receive so far */
  if (all > OFI_BUFFERS_MAX || size != sizeof report + all) return false;
  memcpy(&report, at, sizeof report);
  if (report.zero) return false;
  frame->report = (struct ofi_report){.seen = le32toh(report.seen), .freed = le32toh(report.freed),
                                      .filled = le32toh(report.filled)};
  at += sizeof report;
  for (unsigned int i = 0; i < frame->nbuffers; i++, at += each) {
    if (!decode_buffer(at, frame->nkeys, &frame->buffers[i]) || ++group > OFI_MAX_GROUP) return false;
    if (frame->buffers[i].last) group = 0;
  }
  return !group && fits_type(frame, 0);
}

bool ofi_frame_decode_head(const void *bytes, size_t size, struct ofi_frame *frame) {
  const struct ofi_frame_wire *wire = bytes;
  if (size < sizeof *wire) return false;
  if (wire->magic != OFI_FRAME_MAGIC || wire->version != OFI_WIRE_VERSION) return false;
  ofi_frame_begin(frame, (enum ofi_frame_type)wire->type);
  frame->comm = le32toh(wire->comm);
  frame->token = le64toh(wire->token);
  return true;
}

bool ofi_frame_decode(const void *bytes, size_t size, struct ofi_frame *frame, const void **payload) {
  const struct ofi_frame_wire *wire = bytes;
  *payload = NULL;
  if (size < sizeof *wire) return false;
  size -= sizeof *wire;
  if (wire->magic != OFI_FRAME_MAGIC || wire->version != OFI_WIRE_VERSION || wire->type < OFI_FRAME_PING ||
      wire->type >= OFI_FRAME_TYPES || wire->nbuffers > OFI_FRAME_BUFFERS || wire->index >= OFI_MAX_GROUP ||
      wire->nkeys > OFI_MAX_PATHS || (wire->nkeys && !wire->nbuffers) || wire->zero)
    return false;
  ofi_frame_begin(frame, (enum ofi_frame_type)wire->type);
  frame->comm = le32toh(wire->comm);
  frame->token = le64toh(wire->token);
  frame->seq = le32toh(wire->seq);
  frame->index = wire->index;
  frame->parts = wire->parts;
  frame->nbuffers = wire->nbuffers;
  frame->nkeys = wire->nkeys;
  *payload = (const uint8_t *)bytes + sizeof *wire;
  if (ofi_frame_has_count(wire->type)) {
    frame->tag = le32toh(wire->tag);
    frame->count = le32toh(wire->count);
  } else {
    frame->size = le64toh(wire->size);
  }
  if (has_report(wire->type)) return decode_report(*payload, size, frame);
  return fits_type(frame, size);
}
