/* SPDX-License-Identifier: Apache-2.0
 * Handle and handshake messages to bytes and back. */
#include "plugin/ib/ib_wire.h"

#include <endian.h>
#include <string.h>

#include "plugin/ib/ib_gid.h"

/* ---- listen handle ------------------------------------------------------- */

void ib_handle_encode(const struct ib_handle *handle, void *bytes) {
  struct ib_handle_wire wire = {
    .magic = htole32(IB_HANDLE_MAGIC),
    .version = IB_WIRE_VERSION,
    .flags = (uint8_t)handle->flags,
    .ngids = (uint8_t)handle->ngids,
    .attempt = htole64(handle->attempt),
  };
  rail_addr_pack(&handle->addr, &wire.addr);
  memcpy(wire.secret, handle->secret, sizeof wire.secret);
  memcpy(wire.gids, handle->gids, handle->ngids * sizeof wire.gids[0]);
  memcpy(bytes, &wire, sizeof wire);
}

bool ib_handle_decode(const void *bytes, struct ib_handle *handle, const char **why) {
  static const uint8_t zeros[sizeof(struct ib_handle_wire)];
  struct ib_handle_wire wire;
  memcpy(&wire, bytes, sizeof wire);
  memset(handle, 0, sizeof *handle);
  handle->flags = wire.flags;
  handle->attempt = le64toh(wire.attempt);
  memcpy(handle->secret, wire.secret, sizeof handle->secret);
  *why = NULL;
  if (le32toh(wire.magic) != IB_HANDLE_MAGIC) *why = "it was not made by RailIB's listen";
  else if (wire.version != IB_WIRE_VERSION) *why = "the peer runs another version of RailIB";
  else if (handle->flags & ~IB_HANDLE_AUTH) *why = "it has flags that do not exist";
  else if (wire.ngids > IB_HANDLE_GIDS) *why = "it has more than 4 GIDs";
  else if (!rail_addr_unpack(&wire.addr, &handle->addr)) *why = "its address is malformed";
  else if (rail_addr_port(&handle->addr) == 0) *why = "its port is 0";
  else if (memcmp(wire.gids[wire.ngids], zeros, (IB_HANDLE_GIDS - wire.ngids) * sizeof wire.gids[0]) != 0 ||
           memcmp(wire.zeros, zeros, sizeof wire.zeros) != 0 || wire.zero)
    *why = "it was changed on its way: bytes that are zero are not";
  if (*why) return false;
  handle->ngids = wire.ngids;
  memcpy(handle->gids, wire.gids, sizeof handle->gids);
  return true;
}

void ib_handle_set_attempt(void *bytes, uint64_t attempt) {
  uint64_t wire = htole64(attempt);
  memcpy((uint8_t *)bytes + offsetof(struct ib_handle_wire, attempt), &wire, sizeof wire);
}

/* ---- HELLO --------------------------------------------------------------- */

static const char *const reason_text[] = {
  [IB_REASON_NONE] = "welcome",
  [IB_REASON_GARBAGE] = "not a RailIB hello",
  [IB_REASON_VERSION] = "another protocol version; install the same release on both sides",
  [IB_REASON_SECRET] = "wrong secret (a stale handle, or not a peer)",
  [IB_REASON_PLAN] = "the ports of the two sides do not fit",
  [IB_REASON_FAILED] = "the other side could not create its queue pairs; its log says why",
  [IB_REASON_TIMEOUT] = "the handshake was not finished in time (RAIL_IB_CONNECT_TIMEOUT)",
  [IB_REASON_BUSY] = "too many pending connections",
  [IB_REASON_AUTH] = "RAIL_IB_AUTH_FILE is set on one side only",
  [IB_REASON_MAC] = "the other side has another key in RAIL_IB_AUTH_FILE, or its message was changed on the way",
  [IB_REASON_REPLAY] = "a hello that was received before",
  [IB_REASON_GONE] = "the listener is closed",
  [IB_REASON_MESSAGE] = "an invalid message, or one out of order",
  [IB_REASON_VERIFY] = "the first RDMA write between the two did not arrive; the side that waited logs its ports",
};
_Static_assert(RAIL_COUNT_OF(reason_text) == IB_REASON_COUNT, "a text for each reason");

const char *ib_reason_text(unsigned int reason) {
  return reason < IB_REASON_COUNT ? reason_text[reason] : "a reason that this version does not know";
}

void ib_hello_encode(const uint8_t secret[IB_SECRET_SIZE], const uint8_t comm_id[IB_COMM_ID_SIZE],
                     struct ib_hello_wire *wire) {
  *wire = (struct ib_hello_wire){
    .magic = htole32(IB_HELLO_MAGIC), .version = htole16(IB_WIRE_VERSION), .length = htole16(sizeof *wire)};
  memcpy(wire->secret, secret, sizeof wire->secret);
  memcpy(wire->comm_id, comm_id, sizeof wire->comm_id);
}

enum ib_reason ib_hello_check(const struct ib_hello_wire *wire, const struct ib_handle *listener) {
  uint32_t flags = le32toh(wire->flags);
  enum ib_reason reason = ib_hello_plausible(wire, sizeof *wire, listener);
  if (reason != IB_REASON_NONE) return reason;
  if (!rail_same_bytes(wire->secret, listener->secret, sizeof wire->secret)) return IB_REASON_SECRET;
  if (le16toh(wire->length) != sizeof *wire || (flags & ~IB_HELLO_AUTH)) return IB_REASON_VERSION;
  return !(flags & IB_HELLO_AUTH) == !(listener->flags & IB_HANDLE_AUTH) ? IB_REASON_NONE : IB_REASON_AUTH;
}

/* A peer without the secret does not learn the version. */
enum ib_reason ib_hello_plausible(const void *bytes, size_t have, const struct ib_handle *listener) {
  const struct ib_hello_wire good = {.magic = htole32(IB_HELLO_MAGIC), .version = htole16(IB_WIRE_VERSION)};
  const size_t magic = sizeof good.magic, version = magic + sizeof good.version;
  const uint8_t *secret = (const uint8_t *)bytes + offsetof(struct ib_hello_wire, secret);
  if (memcmp(bytes, &good, RAIL_MIN(have, magic)) != 0) return IB_REASON_GARBAGE;
  if (have < IB_HELLO_COMMON || memcmp(bytes, &good, version) == 0) return IB_REASON_NONE;
  return rail_same_bytes(secret, listener->secret, IB_SECRET_SIZE) ? IB_REASON_VERSION : IB_REASON_SECRET;
}

/* ---- messages ------------------------------------------------------------ */

void ib_head_encode(enum ib_message_type type, size_t body, struct ib_head_wire *head) {
  *head = (struct ib_head_wire){
    .magic = htole32(IB_MESSAGE_MAGIC),
    .version = htole16(IB_WIRE_VERSION),
    .type = htole16((uint16_t)type),
    .length = htole32((uint32_t)(body + RAIL_MAC_SIZE)),
  };
}

const char *ib_head_decode(const struct ib_head_wire *head, unsigned int *type, size_t *body) {
  uint32_t length = le32toh(head->length);
  *type = le16toh(head->type);
  *body = 0;
  if (le32toh(head->magic) != IB_MESSAGE_MAGIC) return "this is no message of RailIB";
  if (le16toh(head->version) != IB_WIRE_VERSION && *type != IB_MESSAGE_ANSWER) return "it is of another version";
  if (*type < IB_MESSAGE_ANSWER || *type > IB_MESSAGE_READY) return "a message of an unknown type";
  if (length < RAIL_MAC_SIZE || length > IB_BODY_MAX + RAIL_MAC_SIZE) return "a message of an invalid length";
  *body = length - RAIL_MAC_SIZE;
  return NULL;
}

/* Text that may be printed: no more than this, and a NUL at its end. */
static bool name_is_good(const char *name) {
  const char *end = memchr(name, 0, IB_NAME_SIZE);
  if (!end) return false;
  for (const char *c = name; c < end; c++)
    if (*c <= ' ' || *c > '~') return false;
  for (const char *c = end; c < name + IB_NAME_SIZE; c++)
    if (*c) return false;
  return true;
}

/* A longer name is truncated. */
static void put_name(char to[IB_NAME_SIZE], const char *name) {
  size_t n = strnlen(name, IB_NAME_SIZE - 1);
  memcpy(to, name, n);
  memset(to + n, 0, IB_NAME_SIZE - n);
}

static uint8_t put_rail(int rail) { return rail >= 0 && rail < IB_MAX_RAILS ? (uint8_t)rail : 0xff; }
static int get_rail(uint8_t rail) { return rail < IB_MAX_RAILS ? rail : -1; }

void ib_answer_encode(const struct ib_answer *answer, struct ib_answer_wire *wire) {
  *wire = (struct ib_answer_wire){
    .reason = htole16((uint16_t)answer->reason),
    .refusal = htole16((uint16_t)answer->refusal),
    .rail_here = put_rail(answer->rail_here),
    .rail_there = put_rail(answer->rail_there),
  };
  memcpy(wire->nonce, answer->nonce, sizeof wire->nonce);
  put_name(wire->name, answer->name);
}

const char *ib_answer_decode(const void *body, size_t size, struct ib_answer *answer) {
  struct ib_answer_wire wire = {0};
  *answer = (struct ib_answer){.rail_here = -1, .rail_there = -1};
  if (size < sizeof wire.reason) return "an answer without reason";
  memcpy(&wire.reason, body, sizeof wire.reason);
  answer->reason = le16toh(wire.reason);
  /* Another version's refusal may be of any other form. */
  if (size != sizeof wire) return answer->reason == IB_REASON_NONE ? "a welcome of an invalid length" : NULL;
  memcpy(&wire, body, sizeof wire);
  answer->refusal = le16toh(wire.refusal);
  answer->rail_here = get_rail(wire.rail_here);
  answer->rail_there = get_rail(wire.rail_there);
  memcpy(answer->nonce, wire.nonce, sizeof answer->nonce);
  if (!name_is_good(wire.name)) return "an answer with a name that is not text";
  memcpy(answer->name, wire.name, sizeof answer->name);
  return NULL;
}

void ib_refusal_encode(const struct ib_answer *answer, uint8_t bytes[IB_REFUSAL_SIZE]) {
  struct ib_head_wire head;
  struct ib_answer_wire wire;
  ib_head_encode(IB_MESSAGE_ANSWER, sizeof wire, &head);
  if (answer->reason == IB_REASON_SECRET) head.version = 0; /* the version is for peers with the secret */
  ib_answer_encode(answer, &wire);
  memset(bytes, 0, IB_REFUSAL_SIZE);
  memcpy(bytes, &head, sizeof head);
  memcpy(bytes + sizeof head, &wire, sizeof wire);
}

/* ---- OFFER --------------------------------------------------------------- */

static void encode_rail(const struct ib_offer_rail *rail, struct ib_offer_rail_wire *wire) {
  *wire = (struct ib_offer_rail_wire){
    .flags = (uint8_t)((rail->roce ? IB_RAIL_ROCE : 0) | (rail->grh_required ? IB_RAIL_GRH : 0)),
    .port = rail->port,
    .mtu = rail->mtu,
    .gid_type = rail->gid_type,
    .lid = htole16(rail->lid),
    .subnet_prefix = htole64(rail->subnet_prefix),
    .speed = htole32(rail->speed),
  };
  memcpy(wire->gid, rail->gid, sizeof wire->gid);
  put_name(wire->name, rail->name);
}

static const char *decode_rail(const struct ib_offer_rail_wire *wire, struct ib_offer_rail *rail) {
  *rail = (struct ib_offer_rail){
    .roce = wire->flags & IB_RAIL_ROCE,
    .port = wire->port,
    .mtu = wire->mtu,
    .gid_type = wire->gid_type,
    .grh_required = wire->flags & IB_RAIL_GRH,
    .lid = le16toh(wire->lid),
    .subnet_prefix = le64toh(wire->subnet_prefix),
    .speed = le32toh(wire->speed),
  };
  memcpy(rail->gid, wire->gid, sizeof rail->gid);
  if (wire->flags & ~IB_RAIL_FLAGS) return "an offer with a port of unknown flags";
  if (!name_is_good(wire->name)) return "an offer with a port whose name is not text";
  memcpy(rail->name, wire->name, sizeof rail->name);
  return NULL;
}

size_t ib_offer_encode(const struct ib_offer *offer, struct ib_offer_wire *wire) {
  memset(wire, 0, sizeof *wire);
  wire->flags = htole16((uint16_t)((offer->sender ? IB_OFFER_SENDER : 0) | (offer->split ? IB_OFFER_SPLIT : 0) |
                                   (offer->ece ? IB_OFFER_ECE : 0) | (offer->verify ? IB_OFFER_VERIFY : 0)));
  wire->nrails = htole16((uint16_t)offer->nrails);
  wire->qps_per_rail = htole32(offer->qps_per_rail);
  wire->max_qps = htole32(offer->max_qps);
  wire->recv_depth = htole32(offer->recv_depth);
  wire->timeout = offer->timeout;
  wire->max_write_log2 = (uint8_t)offer->max_write_log2;
  wire->sl = offer->sl;
  wire->traffic_class = offer->traffic_class;
  wire->process = htole64(offer->process);
  for (unsigned int i = 0; i < offer->nrails; i++) encode_rail(&offer->rails[i], &wire->rails[i]);
  return offsetof(struct ib_offer_wire, rails) + offer->nrails * sizeof wire->rails[0];
}

const char *ib_offer_decode(const void *body, size_t size, struct ib_offer *offer) {
  struct ib_offer_wire wire;
  const size_t head = offsetof(struct ib_offer_wire, rails);
  if (size < head || size > sizeof wire) return "an offer of an invalid length";
  memset(&wire, 0, sizeof wire);
  memcpy(&wire, body, size);
  unsigned int flags = le16toh(wire.flags);
  *offer = (struct ib_offer){
    .sender = flags & IB_OFFER_SENDER,
    .nrails = le16toh(wire.nrails),
    .qps_per_rail = le32toh(wire.qps_per_rail),
    .max_qps = le32toh(wire.max_qps),
    .split = flags & IB_OFFER_SPLIT,
    .ece = flags & IB_OFFER_ECE,
    .verify = flags & IB_OFFER_VERIFY,
    .max_write_log2 = wire.max_write_log2,
    .recv_depth = le32toh(wire.recv_depth),
    .timeout = wire.timeout,
    .sl = wire.sl,
    .traffic_class = wire.traffic_class,
    .process = le64toh(wire.process),
  };
  if (flags & ~IB_OFFER_FLAGS) return "an offer with unknown flags";
  if (offer->nrails < 1 || offer->nrails > IB_MAX_RAILS) return "an offer whose number of ports is not 1..8";
  if (size != head + offer->nrails * sizeof wire.rails[0]) return "an offer whose length is not that of its ports";
  for (unsigned int i = 0; i < offer->nrails; i++) {
    const char *why = decode_rail(&wire.rails[i], &offer->rails[i]);
    if (why) return why;
  }
  return NULL;
}

/* ---- QPS ----------------------------------------------------------------- */

size_t ib_qps_encode(const struct ib_qps *qps, struct ib_qps_wire *wire) {
  memset(wire, 0, sizeof *wire);
  wire->nqps = htole16((uint16_t)qps->nqps);
  wire->nrails = htole16((uint16_t)qps->nrails);
  wire->token = htole64(qps->token);
  wire->ctrl_addr = htole64(qps->ctrl_addr);
  wire->verify_addr = htole64(qps->verify_addr);
  for (unsigned int i = 0; i < qps->nrails; i++) wire->rkeys[i] = htole32(qps->rkeys[i]);
  for (unsigned int i = 0; i < qps->nqps; i++) {
    const struct ib_qp_info *q = &qps->qps[i];
    wire->qps[i] = (struct ib_qp_wire){.qpn = htole32(q->qpn),
                                       .psn = htole32(q->psn),
                                       .ece_vendor = htole32(q->ece_vendor),
                                       .ece_options = htole32(q->ece_options),
                                       .ece_comp_mask = htole32(q->ece_comp_mask)};
  }
  return offsetof(struct ib_qps_wire, qps) + qps->nqps * sizeof wire->qps[0];
}

/* Queue pairs 0 and 1 of a port are the subnet manager's. */
static bool qp_is_good(const struct ib_qp_info *q) { return q->qpn >= 2 && q->qpn < 1u << 24 && q->psn < 1u << 24; }

const char *ib_qps_decode(const void *body, size_t size, struct ib_qps *qps) {
  struct ib_qps_wire wire;
  const size_t head = offsetof(struct ib_qps_wire, qps);
  if (size < head || size > sizeof wire) return "a list of queue pairs of an invalid length";
  memset(&wire, 0, sizeof wire);
  memcpy(&wire, body, size);
  memset(qps, 0, sizeof *qps);
  qps->nqps = le16toh(wire.nqps);
  qps->nrails = le16toh(wire.nrails);
  qps->token = le64toh(wire.token);
  qps->ctrl_addr = le64toh(wire.ctrl_addr);
  qps->verify_addr = le64toh(wire.verify_addr);
  if (qps->nqps < 1 || qps->nqps > IB_MAX_QPS || qps->nrails < 1 || qps->nrails > IB_MAX_RAILS)
    return "a list of queue pairs with invalid counts";
  if (size != head + qps->nqps * sizeof wire.qps[0])
    return "a list of queue pairs whose length does not match its count";
  if (!qps->token || !qps->ctrl_addr || !qps->verify_addr || qps->ctrl_addr % 8 || qps->verify_addr % 8)
    return "a list of queue pairs with an invalid address";
  for (unsigned int i = 0; i < qps->nrails; i++) qps->rkeys[i] = le32toh(wire.rkeys[i]);
  for (unsigned int i = 0; i < qps->nqps; i++) {
    const struct ib_qp_wire *w = &wire.qps[i];
    qps->qps[i] = (struct ib_qp_info){le32toh(w->qpn), le32toh(w->psn), le32toh(w->ece_vendor), le32toh(w->ece_options),
                                      le32toh(w->ece_comp_mask)};
    if (!qp_is_good(&qps->qps[i])) return "an invalid queue pair or packet number";
  }
  return NULL;
}
