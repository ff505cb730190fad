/* SPDX-License-Identifier: Apache-2.0
 * The ofi plugin's OFFER and control messages: round trips, every field out of its range, every length. */
#include "plugin/ofi/ofi_wire.h"
#include "test/harness/tap.h"

/* ---- OFFER ------------------------------------------------------------------------ */

static struct ofi_offer model_offer(unsigned int nnics) {
  struct ofi_offer o = {.process = 0x1122334455667788u, .token = UINT64_MAX - 1, .comm = OFI_MAX_COMMS - 1,
                        .max_inline = OFI_MAX_INLINE, .eager_count = OFI_MAX_EAGER, .nnics = nnics,
                        .provider = "tcp;ofi_rxm", .domain = "eth0"};
  for (unsigned int i = 0; i < nnics; i++) {
    o.addrs[i].size = (uint16_t)(i % 2 ? OFI_ADDR_SIZE : 16);
    memset(o.addrs[i].bytes, (int)(i + 1), o.addrs[i].size);
  }
  return o;
}

TEST(offer_round_trip) {
  for (unsigned int n = 1; n <= OFI_MAX_PATHS; n++) {
    struct ofi_offer in = model_offer(n), out;
    struct ofi_offer_wire wire;
    size_t size = ofi_offer_encode(&in, &wire);
    CHECK_INT(size, 160 + n * 264);
    CHECK(memcmp(&wire, "\x88\x77\x66\x55\x44\x33\x22\x11\xfe", 9) == 0); /* little-endian */
    const char *why = ofi_offer_decode(&wire, size, &out);
    CHECK_MSG(!why, "%s", why);
    CHECK(out.process == in.process && out.token == in.token && out.comm == in.comm && out.nnics == n);
    CHECK_INT(out.max_inline, in.max_inline);
    CHECK_INT(out.eager_count, in.eager_count);
    CHECK_STR(out.provider, in.provider);
    CHECK_STR(out.domain, in.domain);
    for (unsigned int i = 0; i < n; i++) {
      CHECK_INT(out.addrs[i].size, in.addrs[i].size);
      CHECK(memcmp(out.addrs[i].bytes, in.addrs[i].bytes, in.addrs[i].size) == 0);
    }
    for (size_t less = 0; less < size; less++) CHECK(ofi_offer_decode(&wire, less, &out));
    if (n < OFI_MAX_PATHS) CHECK(ofi_offer_decode(&wire, size + 264, &out)); /* an address too many */
    CHECK(ofi_offer_decode(&wire, size + 1, &out));
  }
}

/* A name of 63 bytes fits; one that is longer is cut. */
TEST(offer_names) {
  struct ofi_offer in = model_offer(1), out;
  struct ofi_offer_wire wire;
  memset(in.provider, 'p', sizeof in.provider);
  memset(in.domain, 'd', sizeof in.domain - 1);
  CHECK(!ofi_offer_decode(&wire, ofi_offer_encode(&in, &wire), &out));
  CHECK_INT(strlen(out.provider), 63);
  CHECK_INT(strlen(out.domain), 63);
}

TEST(offer_refuses) {
  struct ofi_offer in = model_offer(2), out;
  struct ofi_offer_wire good, w;
  size_t size = ofi_offer_encode(&in, &good);
#define REFUSED(change)                             \
  do {                                              \
    w = good;                                       \
    change;                                         \
    const char *why_ = ofi_offer_decode(&w, size, &out); \
    CHECK_MSG(why_ && why_[0], "%s was taken", #change); \
  } while (0)
  CHECK(!ofi_offer_decode(&good, size, &out));
  REFUSED(w.nnics = 0);
  REFUSED(w.nnics = 1);
  REFUSED(w.nnics = 3);
  REFUSED(w.nnics = 255);
  REFUSED(w.comm = OFI_MAX_COMMS);
  REFUSED(w.comm = UINT32_MAX);
  REFUSED(w.max_inline = OFI_MAX_INLINE + 1);
  REFUSED(w.eager_count = OFI_MAX_EAGER + 1);
  REFUSED(w.eager_count = UINT16_MAX);
  REFUSED(w.addrs[0].size = 0);
  REFUSED(w.addrs[1].size = OFI_ADDR_SIZE + 1);
  REFUSED(w.addrs[1].size = UINT16_MAX);
  REFUSED(w.provider[0] = 0);
  REFUSED(w.provider[1] = '\n');
  REFUSED(w.provider[1] = '\x7f');
  REFUSED(w.domain[0] = (char)0x80);
  REFUSED(memset(w.domain, 'x', sizeof w.domain)); /* no end */
  REFUSED(memset(w.provider, 'x', sizeof w.provider));
#undef REFUSED
}

/* libfabric reads a peer's address without a length: a string must end, others must be as long as this side's. */
TEST(addresses) {
  const struct ofi_address own = {.size = 16};
  struct ofi_address a = {.size = OFI_ADDR_SIZE};
  memset(a.bytes, 'a', OFI_ADDR_SIZE);
  CHECK(!ofi_address_fits(&a, &own, true) && !ofi_address_fits(&a, &own, false));
  CHECK(strlen((const char *)a.bytes) == OFI_ADDR_SIZE); /* it ends all the same */
  a.bytes[OFI_ADDR_SIZE - 1] = 0;
  CHECK(ofi_address_fits(&a, &own, true));
  a.size = 5;
  CHECK(!ofi_address_fits(&a, &own, true) && !ofi_address_fits(&a, &own, false));
  a.size = 16;
  CHECK(!ofi_address_fits(&a, &own, true) && ofi_address_fits(&a, &own, false));
}

/* ---- frames --------------------------------------------------------------------------- */

static uint8_t bytes[OFI_FRAME_MAX + OFI_MAX_INLINE + 64];

static bool names_buffer(int type) {
  return type == OFI_FRAME_DATA || type == OFI_FRAME_FIN || type == OFI_FRAME_TOO_LARGE;
}
static bool has_report(int type) { return type == OFI_FRAME_GRANT || type == OFI_FRAME_ACK; }
static bool has_count(int type) {
  return type == OFI_FRAME_EAGER || type == OFI_FRAME_ASK || type == OFI_FRAME_PONG;
}
static bool carries(int type) { return type == OFI_FRAME_DATA || type == OFI_FRAME_EAGER; }

static struct ofi_frame model(enum ofi_frame_type type) {
  struct ofi_frame f = {.type = type, .comm = 77, .token = 0x0102030405060708u};
  if (type == OFI_FRAME_PING || type == OFI_FRAME_PONG) f.index = OFI_MAX_PATHS - 1;
  if (names_buffer(type) || has_report(type) || has_count(type))
    f.seq = OFI_FIRST_SEQ + 5;
  if (names_buffer(type)) f.index = OFI_MAX_GROUP - 1;
  if (carries(type)) f.size = 100;
  if (type == OFI_FRAME_EAGER || type == OFI_FRAME_PONG) f.tag = UINT32_MAX - 1;
  if (has_count(type)) f.count = 0x80000001u;
  if (type == OFI_FRAME_FIN) f.parts = OFI_MAX_PATHS;
  if (type == OFI_FRAME_FIN || type == OFI_FRAME_TOO_LARGE) f.size = RAIL_NET_MAX_BYTES;
  if (has_report(type)) f.report = (struct ofi_report){.seen = UINT32_MAX, .freed = 0x80000002u, .filled = 7};
  if (type == OFI_FRAME_GRANT) {
    f.nkeys = OFI_MAX_PATHS;
    for (f.nbuffers = 0; f.nbuffers < OFI_MAX_GROUP; f.nbuffers++) {
      f.buffers[f.nbuffers] = (struct ofi_buffer){
        .addr = UINT64_MAX - f.nbuffers, .size = RAIL_NET_MAX_BYTES - f.nbuffers, .tag = UINT32_MAX - f.nbuffers,
        .kind = (enum ofi_buffer_kind)(1 + f.nbuffers % OFI_BUFFER_FILLED), .path = f.nbuffers % OFI_MAX_PATHS,
        .takes_data = f.nbuffers % 2, .last = f.nbuffers + 1 == OFI_MAX_GROUP};
      for (unsigned int k = 0; k < OFI_MAX_PATHS; k++) f.buffers[f.nbuffers].keys[k] = (uint64_t)f.nbuffers << 60 | k;
    }
  }
  return f;
}

/* Its bytes, the payload too. */
static size_t encode(const struct ofi_frame *f) {
  size_t size = ofi_frame_encode(f, bytes);
  if (carries(f->type)) {
    memset(bytes + size, 0xda, f->size);
    size += f->size;
  }
  return size;
}

/* As frame_done (ofi_op.c) reads it. */
static bool decode(const void *from, size_t size, struct ofi_frame *frame, const void **payload) {
  const struct ofi_frame_wire *wire = from;
  if (!ofi_is_eager(wire, size)) return ofi_frame_decode(from, size, frame, payload);
  CHECK(!ofi_frame_decode(from, size, frame, payload));
  const struct ofi_eager eager = ofi_eager_decode(wire, size);
  *frame = (struct ofi_frame){.type = OFI_FRAME_EAGER, .comm = le32toh(wire->comm), .token = le64toh(wire->token),
                              .eager = eager.seq, .tag = eager.tag, .first_unknown = eager.first_unknown,
                              .size = eager.size};
  *payload = eager.payload;
  return true;
}

static bool decodes(const struct ofi_frame *f) {
  struct ofi_frame out;
  const void *payload;
  size_t size = encode(f);
  return decode(bytes, size, &out, &payload);
}

TEST(frames_round_trip) {
  for (int type = OFI_FRAME_PING; type < OFI_FRAME_TYPES; type++) {
    struct ofi_frame in = model((enum ofi_frame_type)type), out;
    const void *payload;
    size_t size = encode(&in);
    CHECK(size <= OFI_FRAME_MAX + 100);
    if (type == OFI_FRAME_GRANT) CHECK_INT(size, OFI_FRAME_MAX);
    if (!has_report(type)) CHECK_INT(size, OFI_FRAME_SIZE + (carries(type) ? 100 : 0));
    CHECK_MSG(decode(bytes, size, &out, &payload), "type %d", type);
    CHECK(out.type == in.type && out.comm == in.comm && out.token == in.token && out.seq == in.seq);
    CHECK(out.index == in.index && out.parts == in.parts && out.size == in.size && out.nkeys == in.nkeys);
    CHECK(out.nbuffers == in.nbuffers && out.tag == in.tag && out.count == in.count);
    if (has_report(type))
      CHECK(out.report.seen == in.report.seen && out.report.freed == in.report.freed &&
            out.report.filled == in.report.filled);
    for (unsigned int i = 0; i < in.nbuffers; i++) {
      const struct ofi_buffer *a = &in.buffers[i], *b = &out.buffers[i];
      CHECK(a->addr == b->addr && a->size == b->size && a->tag == b->tag && a->kind == b->kind && a->path == b->path);
      CHECK(a->takes_data == b->takes_data && a->last == b->last);
      CHECK(memcmp(a->keys, b->keys, sizeof a->keys) == 0);
    }
    if (carries(type)) CHECK(payload == bytes + OFI_FRAME_SIZE);
    /* An EAGER has no length but its own: a shorter one is another message. */
    for (size_t less = 0; less < (type == OFI_FRAME_EAGER ? OFI_FRAME_SIZE : size); less++)
      CHECK(!decode(bytes, less, &out, &payload));
    if (type == OFI_FRAME_EAGER) continue;
    memset(bytes + size, 0, 64);
    for (size_t more = 1; more <= 64; more++) CHECK(!decode(bytes, size + more, &out, &payload));
  }
}

/* The same bytes by their layout: what a peer of another build sees. */
TEST(layout) {
  struct ofi_frame f = {.type = OFI_FRAME_GRANT, .comm = 0x04030201, .token = 0x1817161514131211u, .seq = 0xffffff00u,
                        .nbuffers = 1, .nkeys = 1, .report = {.seen = 0xa4a3a2a1u, .freed = 3, .filled = 5},
                        .buffers = {{.addr = 0xb1, .size = 0xb2, .keys = {0xb3}, .tag = 0xb4,
                                     .kind = OFI_BUFFER_RMA, .path = 1, .takes_data = true, .last = true}}};
  static const uint8_t expected[] = {
    0xf1, OFI_WIRE_VERSION, 2, 0, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0, 0xff, 0xff, 0xff,
    0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0xa1, 0xa2, 0xa3, 0xa4, 3, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0,
    0xb1, 0, 0, 0, 0, 0, 0, 0, 0xb2, 0, 0, 0, 0, 0, 0, 0, 0xb4, 0, 0, 0, 2, 1, 1, 1, 0xb3, 0, 0, 0, 0, 0, 0, 0};
  CHECK_INT(ofi_frame_encode(&f, bytes), sizeof expected);
  for (size_t i = 0; i < sizeof expected; i++) CHECK_MSG(bytes[i] == expected[i], "byte %zu is %#x", i, bytes[i]);
  struct ofi_frame eager = {.type = OFI_FRAME_EAGER, .comm = 1, .token = 2, .seq = 3, .tag = 0xc4c3c2c1u,
                            .count = 0xd4d3d2d1u, .size = 9};
  static const uint8_t head[] = {0xf1, OFI_WIRE_VERSION, 9, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0,
                                 0, 0, 0, 0, 0xc1, 0xc2, 0xc3, 0xc4, 0xd1, 0xd2, 0xd3, 0xd4};
  CHECK_INT(ofi_frame_encode(&eager, bytes), sizeof head);
  for (size_t i = 0; i < sizeof head; i++) CHECK_MSG(bytes[i] == head[i], "byte %zu is %#x", i, bytes[i]);
}

TEST(payloads_of_every_size) {
  static const enum ofi_frame_type types[] = {OFI_FRAME_DATA, OFI_FRAME_EAGER};
  for (int t = 0; t < 2; t++) {
    struct ofi_frame f = model(types[t]);
    for (size_t size = 0; size <= OFI_MAX_INLINE; size = size < 3 ? size + 1 : 2 * size) {
      f.size = size;
      CHECK_MSG(decodes(&f), "%zu bytes", size);
    }
    f.size = OFI_MAX_INLINE + 1;
    CHECK(!decodes(&f));
  }
}

/* No frame of any type has what is another's. */
TEST(fields_of_other_types) {
  for (int type = OFI_FRAME_PING; type < OFI_FRAME_TYPES; type++) {
    struct ofi_frame f;
    bool grant = type == OFI_FRAME_GRANT, sends = names_buffer(type);
#define TAKEN(change, expected)                                                          \
  do {                                                                                   \
    f = model((enum ofi_frame_type)type);                                                \
    change;                                                                              \
    CHECK_MSG(decodes(&f) == (expected), "type %d with %s", type, #change);              \
  } while (0)
    TAKEN((void)0, true);
    TAKEN((f.nbuffers = 1, f.buffers[0] = model(OFI_FRAME_GRANT).buffers[OFI_MAX_GROUP - 1]), grant);
    TAKEN(f.nbuffers = 0, !grant);
    TAKEN(f.nbuffers = 0; f.nkeys = 0, !grant);
    TAKEN(f.parts = 1, type == OFI_FRAME_FIN || type == OFI_FRAME_PONG);
    TAKEN(f.parts = 2, type == OFI_FRAME_FIN);
    TAKEN(f.parts = 0, type != OFI_FRAME_FIN);
    TAKEN(f.parts = OFI_MAX_PATHS + 1, false);
    TAKEN(f.index = 1, sends || type == OFI_FRAME_PING || type == OFI_FRAME_PONG);
    TAKEN(f.index = OFI_MAX_PATHS, sends);
    TAKEN(f.index = OFI_MAX_GROUP, false);
    /* Those that carry a payload have as much; where there is a count the field is another's. */
    if (!has_count(type)) {
      TAKEN(f.size = 1, sends);
      TAKEN(f.size = RAIL_NET_MAX_BYTES + 1ull; if (type == OFI_FRAME_DATA) f.size = OFI_MAX_INLINE + 1, false);
      TAKEN(f.tag = f.count = 1, true); /* not sent */
    }
    TAKEN(f.tag = 1, type != OFI_FRAME_ASK);
    TAKEN(f.count = 1, true);
#undef TAKEN
  }
}

TEST(bytes_out_of_range) {
  struct ofi_frame grant = model(OFI_FRAME_GRANT), out;
  const void *payload;
  const size_t buffer = OFI_FRAME_SIZE + sizeof(struct ofi_report_wire);
  size_t size = encode(&grant);
  static const struct { size_t at; uint8_t value; } wrong[] = {
    {0, 0xf0}, {0, 0}, {1, OFI_WIRE_VERSION + 1}, {1, 0}, {2, 0}, {2, OFI_FRAME_TYPES}, {2, 255}, {3, 1}, {3, 8},
    {20, 1}, {21, 0}, {21, OFI_MAX_GROUP - 1}, {21, OFI_MAX_GROUP + 1}, {21, OFI_FRAME_BUFFERS + 1},
    {21, 255}, {22, 0}, {22, OFI_MAX_PATHS - 1}, {22, OFI_MAX_PATHS + 1}, {22, 255}, {23, 1},
    {23, 255}, {24, 1}, {31, 1}, {44, 1}, {47, 255}};
  static const struct { size_t at; uint8_t value; } in_buffer[] = {
    {14, 1}, {15, 255}, {20, 0}, {20, 5}, {20, 255}, {21, OFI_MAX_PATHS}, {21, 255}, {22, 2}, {22, 255}, {23, 2},
    {23, 255}};
  CHECK(decode(bytes, size, &out, &payload));
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    (void)encode(&grant);
    bytes[wrong[i].at] = wrong[i].value;
    CHECK_MSG(!decode(bytes, size, &out, &payload), "byte %zu = %u was taken", wrong[i].at, wrong[i].value);
  }
  for (size_t i = 0; i < sizeof in_buffer / sizeof in_buffer[0]; i++)
    for (size_t b = 0; b < OFI_MAX_GROUP; b++) {
      (void)encode(&grant);
      bytes[buffer + b * (sizeof(struct ofi_buffer_wire) + 8 * OFI_MAX_PATHS) + in_buffer[i].at] = in_buffer[i].value;
      CHECK_MSG(!decode(bytes, size, &out, &payload), "buffer %zu, byte %zu = %u was taken", b,
                in_buffer[i].at, in_buffer[i].value);
    }
}

/* No other value of any byte that an EAGER has no use for. Where its type is changed its tag and count are a length
 * that no message has. */
TEST(every_byte_of_an_eager) {
  static const size_t fixed[] = {0, 1, 2, 3, 20, 21, 22, 23};
  struct ofi_frame eager = model(OFI_FRAME_EAGER), out;
  const void *payload;
  size_t size = encode(&eager);
  CHECK(decode(bytes, size, &out, &payload));
  for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++)
    for (unsigned int value = 0; value < 256; value++) {
      (void)encode(&eager);
      if (bytes[fixed[i]] == value) continue;
      bytes[fixed[i]] = (uint8_t)value;
      CHECK_MSG(!decode(bytes, size, &out, &payload), "byte %zu = %u was taken", fixed[i], value);
    }
}

/* A frame of n buffers with so many keys each, of receives of `group` buffers; the last has the rest. */
static struct ofi_frame several(unsigned int n, unsigned int keys, unsigned int group) {
  struct ofi_frame f = model(OFI_FRAME_GRANT), one = f;
  f.nbuffers = n;
  f.nkeys = keys;
  for (unsigned int i = 0; i < n; i++) {
    f.buffers[i] = one.buffers[i % OFI_MAX_GROUP];
    f.buffers[i].last = i + 1 == n || (i + 1) % group == 0;
  }
  return f;
}

/* As many buffers as fit, whatever receives they are of: each of 1 to 8, and the last buffer ends one. */
TEST(grants_of_several_receives) {
  for (unsigned int keys = 1; keys <= OFI_MAX_PATHS; keys++) {
    unsigned int most = (unsigned int)(OFI_BUFFERS_MAX / OFI_BUFFER_SIZE(keys));
    for (unsigned int n = 1; n <= most; n++)
      for (unsigned int group = 1; group <= n; group++) {
        struct ofi_frame f = several(n, keys, group), out;
        const void *payload;
        size_t size = encode(&f);
        CHECK(size <= OFI_FRAME_MAX);
        bool taken = decode(bytes, size, &out, &payload);
        CHECK_MSG(taken == (group <= OFI_MAX_GROUP), "%u buffers of %u keys in groups of %u", n, keys, group);
        for (unsigned int i = 0; taken && i < n; i++) CHECK(out.buffers[i].last == f.buffers[i].last);
        if (taken) CHECK_INT(out.nbuffers, n);
        f.buffers[n - 1].last = false;
        CHECK_MSG(!decodes(&f), "%u buffers, the last receive without an end", n);
      }
    if (most == OFI_FRAME_BUFFERS) continue;
    struct ofi_frame more = several(most + 1, keys, 1);
    CHECK_MSG(!decodes(&more), "%u buffers of %u keys", most + 1, keys);
  }
}

/* ---- tags -------------------------------------------------------------------------------- */

TEST(tags) {
  CHECK_INT(ofi_tag(0, 0, 0, 0), 0);
  CHECK_INT(ofi_tag(OFI_MAX_COMMS - 1, UINT64_MAX, UINT32_MAX, OFI_MAX_GROUP - 1), (1ull << 44) - 1);
  /* Receives that may be outstanding at one time have different ones, across the wrap, too. */
  for (uint32_t seq = OFI_FIRST_SEQ; seq != 256; seq++)
    for (uint32_t k = 1; k < 2 * OFI_MAX_RECVS; k++) {
      CHECK(ofi_tag(1, 5, seq, 0) != ofi_tag(1, 5, seq + k, 0) && ofi_tag(1, 5, seq, 0) != ofi_tag(2, 5, seq + k, 0));
      CHECK(ofi_tag(1, 5, seq, 7) != ofi_tag(1, 5, seq + k, 0));
    }
  /* A later comm of the same index has a receive with each number: its token tells them apart. */
  for (uint32_t seq = 0; seq != 1u << 16; seq++) CHECK(ofi_tag(1, 5, OFI_FIRST_SEQ, 0) != ofi_tag(1, 6, seq, 0));
}

TEST_MAIN(TEST_CASE(offer_round_trip), TEST_CASE(offer_names), TEST_CASE(offer_refuses), TEST_CASE(addresses),
          TEST_CASE(frames_round_trip), TEST_CASE(layout), TEST_CASE(payloads_of_every_size),
          TEST_CASE(fields_of_other_types), TEST_CASE(bytes_out_of_range), TEST_CASE(every_byte_of_an_eager),
          TEST_CASE(grants_of_several_receives), TEST_CASE(tags))
