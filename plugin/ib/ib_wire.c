/* SPDX-License-Identifier: Apache-2.0
 * The plugin's part of the handshake to bytes and back. */
#include "plugin/ib/ib_wire.h"

#include <endian.h>
#include <string.h>

#include "plugin/ib/ib_param.h"

static struct rail_key key = {.plugin = "RailIB", .param = "RAIL_IB_AUTH_FILE"};

static const char *reason_text(unsigned int reason) {
  switch (reason) {
    case RAIL_REASON_GARBAGE: return "not a RailIB hello";
    case RAIL_REASON_AUTH: return "RAIL_IB_AUTH_FILE is set on one side only";
    case RAIL_REASON_MAC:
      return "the other side has another key in RAIL_IB_AUTH_FILE, or its message was changed on the way";
    case RAIL_REASON_TIMEOUT: return "the handshake was not finished in time (RAIL_IB_CONNECT_TIMEOUT)";
    case RAIL_REASON_FAILED: return "the other side could not create its queue pairs; its log says why";
    case IB_REASON_PLAN: return "the ports of the two sides do not fit";
    case IB_REASON_VERIFY:
      return "the first RDMA write between the two did not arrive; the side that waited logs its ports";
    case IB_REASON_CM:
      return "the RDMA CM did not connect a queue pair between the two; the side that waited logs its ports";
    default: return NULL;
  }
}

static const char *check_handle(const struct rail_handle *handle) {
  static const uint8_t zeros[IB_HANDLE_GIDS][16];
  if (handle->param > IB_HANDLE_GIDS) return "it has more than 4 GIDs";
  if (memcmp(handle->payload + handle->param * 16, zeros, (IB_HANDLE_GIDS - handle->param) * 16u) != 0)
    return "it was changed on its way: reserved bytes are not zero";
  return NULL;
}

const struct rail_protocol ib_protocol = {
  .plugin = "RailIB",
  .tag = IB_TAG,
  .version = IB_WIRE_VERSION,
  .key = &key,
  .handle_payload = IB_HANDLE_GIDS * 16,
  .answer_payload = sizeof(struct ib_refused_plan_wire),
  .max_body = sizeof(struct ib_qps_wire),
  .check_handle = check_handle,
  .reason_text = reason_text,
};

bool ib_protocol_load(void) { return rail_key_load(&key, ib_params.auth_file); }

/* ---- payloads of handle and ANSWER ----------------------------------------- */

void ib_hints_encode(const struct ib_hints *hints, struct rail_handle *handle) {
  memset(handle->payload, 0, sizeof handle->payload);
  handle->param = (uint8_t)hints->n;
  memcpy(handle->payload, hints->gids, hints->n * sizeof hints->gids[0]);
}

void ib_hints_decode(const struct rail_handle *handle, struct ib_hints *hints) {
  hints->n = handle->param;
  memcpy(hints->gids, handle->payload, sizeof hints->gids);
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

void ib_refused_plan_encode(const struct ib_refused_plan *refused, struct ib_refused_plan_wire *wire) {
  *wire = (struct ib_refused_plan_wire){
    .refusal = htole16((uint16_t)refused->refusal),
    .rail_here = put_rail(refused->rail_here),
    .rail_there = put_rail(refused->rail_there),
  };
  put_name(wire->name, refused->name);
}

const char *ib_refused_plan_decode(const void *payload, size_t size, struct ib_refused_plan *refused) {
  struct ib_refused_plan_wire wire;
  *refused = (struct ib_refused_plan){.rail_here = -1, .rail_there = -1};
  if (size != sizeof wire) return "a refused plan of an invalid length";
  memcpy(&wire, payload, sizeof wire);
  if (!name_is_good(wire.name)) return "an answer with a name that is not text";
  refused->refusal = le16toh(wire.refusal);
  refused->rail_here = get_rail(wire.rail_here);
  refused->rail_there = get_rail(wire.rail_there);
  memcpy(refused->name, wire.name, sizeof refused->name);
  return NULL;
}

/* ---- OFFER --------------------------------------------------------------- */

static void encode_rail(const struct ib_offer_rail *rail, struct ib_offer_rail_wire *wire) {
  *wire = (struct ib_offer_rail_wire){
    .flags = (uint8_t)((rail->roce ? IB_RAIL_ROCE : 0) | (rail->grh_required ? IB_RAIL_GRH : 0) |
                       (rail->iwarp ? IB_RAIL_IWARP : 0)),
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
    .iwarp = wire->flags & IB_RAIL_IWARP,
    .port = wire->port,
    .mtu = wire->mtu,
    .gid_type = wire->gid_type,
    .grh_required = wire->flags & IB_RAIL_GRH,
    .lid = le16toh(wire->lid),
    .subnet_prefix = le64toh(wire->subnet_prefix),
    .speed = le32toh(wire->speed),
  };
  memcpy(rail->gid, wire->gid, sizeof rail->gid);
  if (wire->flags & ~IB_RAIL_FLAGS || (rail->roce && rail->iwarp))
    return "an offer with a port of unknown flags, or of two kinds";
  if (!name_is_good(wire->name)) return "an offer with a port whose name is not text";
  memcpy(rail->name, wire->name, sizeof rail->name);
  return NULL;
}

size_t ib_offer_encode(const struct ib_offer *offer, struct ib_offer_wire *wire) {
  memset(wire, 0, sizeof *wire);
  wire->flags = htole16((uint16_t)((offer->sender ? IB_OFFER_SENDER : 0) | (offer->split ? IB_OFFER_SPLIT : 0) |
                                   (offer->ece ? IB_OFFER_ECE : 0) | (offer->verify ? IB_OFFER_VERIFY : 0) |
                                   (offer->failover ? IB_OFFER_FAILOVER : 0) |
                                   (offer->rdmacm ? IB_OFFER_RDMACM : 0) | (offer->no_imm ? IB_OFFER_NO_IMM : 0) |
                                   (offer->two_sided ? IB_OFFER_TWO_SIDED : 0)));
  wire->nrails = htole16((uint16_t)offer->nrails);
  wire->qps_per_rail = htole32(offer->qps_per_rail);
  wire->max_qps = htole32(offer->max_qps);
  wire->recv_depth = htole32(offer->recv_depth);
  wire->timeout = offer->timeout;
  wire->max_write_log2 = (uint8_t)offer->max_write_log2;
  wire->sl = offer->sl;
  wire->traffic_class = offer->traffic_class;
  wire->process = htole64(offer->process);
  wire->cm_token = htole64(offer->cm_token);
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
    .failover = flags & IB_OFFER_FAILOVER,
    .rdmacm = flags & IB_OFFER_RDMACM,
    .no_imm = flags & IB_OFFER_NO_IMM,
    .two_sided = flags & IB_OFFER_TWO_SIDED,
    .max_write_log2 = wire.max_write_log2,
    .recv_depth = le32toh(wire.recv_depth),
    .timeout = wire.timeout,
    .sl = wire.sl,
    .traffic_class = wire.traffic_class,
    .process = le64toh(wire.process),
    .cm_token = le64toh(wire.cm_token),
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
  for (unsigned int i = 0; i < qps->nrails; i++) {
    wire->rkeys[i] = htole32(qps->rkeys[i]);
    wire->cm_ports[i] = htole16(qps->cm_ports[i]);
  }
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
  for (unsigned int i = 0; i < qps->nrails; i++) {
    qps->rkeys[i] = le32toh(wire.rkeys[i]);
    qps->cm_ports[i] = le16toh(wire.cm_ports[i]);
  }
  for (unsigned int i = 0; i < qps->nqps; i++) {
    const struct ib_qp_wire *w = &wire.qps[i];
    qps->qps[i] = (struct ib_qp_info){le32toh(w->qpn), le32toh(w->psn), le32toh(w->ece_vendor), le32toh(w->ece_options),
                                      le32toh(w->ece_comp_mask)};
    if (!qp_is_good(&qps->qps[i])) return "an invalid queue pair or packet number";
  }
  return NULL;
}

/* ---- private data of the RDMA CM ------------------------------------------ */

void ib_cm_encode(unsigned int qp, uint64_t token, struct ib_cm_wire *wire) {
  *wire = (struct ib_cm_wire){.magic = htole32(IB_CM_MAGIC), .version = htole16(IB_WIRE_VERSION),
                              .qp = htole16((uint16_t)qp), .token = htole64(token)};
}

const char *ib_cm_decode(const void *data, size_t size, uint64_t token, unsigned int *qp) {
  struct ib_cm_wire wire;
  if (!data || size < sizeof wire) return "private data that is too short";
  memcpy(&wire, data, sizeof wire);
  if (wire.magic != htole32(IB_CM_MAGIC) || wire.version != htole16(IB_WIRE_VERSION))
    return "private data that is not of this protocol";
  if (wire.token != htole64(token)) return "a token that is not this connection's";
  *qp = le16toh(wire.qp);
  return *qp < IB_MAX_QPS ? NULL : "a queue pair that does not exist";
}
