/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ib plugin puts into the handshake of common/conn/protocol.h: GIDs
 * in the handle, why a plan was refused in an ANSWER, and its own messages
 * OFFER, QPS and READY. What goes over the same TCP connection afterwards is in
 * common/conn/oob.h. A change of layout or meaning, here, in ib_cts.h or oob.h,
 * raises IB_WIRE_VERSION; docs/protocol-ib.md is the description.
 *
 * Encoders fill every byte. Decoders check lengths before anything else.
 */
#ifndef IB_WIRE_H
#define IB_WIRE_H

#include <stddef.h>

#include "common/conn/protocol.h"
#include "plugin/ib/ib_plan.h"

#define IB_TAG "RBK" /* begins the magic numbers of the handshake, and those in memory */
#define IB_WIRE_VERSION 5
#define IB_NAME_SIZE 64

extern const struct rail_protocol ib_protocol;

/* Reads the key of RAIL_IB_AUTH_FILE, once; call under the plugin's lock. False, after one line: it cannot be read,
 * so there must be no connections at all. */
bool ib_protocol_load(void);

enum ib_reason { /* beside enum rail_reason; on the wire */
  IB_REASON_PLAN = RAIL_REASON_PLUGIN, /* the two offers do not fit: with struct ib_refused_plan */
  IB_REASON_VERIFY,                    /* the first write over a queue pair failed */
  IB_REASON_CM,                        /* the RDMA CM did not connect a queue pair */
};

/* ---- the handle's payload ------------------------------------------------- */

#define IB_HANDLE_GIDS 4 /* of the listener's first rails: a hint for the connector's choice of its own GIDs */

struct ib_hints {
  unsigned int n; /* the handle's `param` */
  uint8_t gids[IB_HANDLE_GIDS][16];
};
void ib_hints_encode(const struct ib_hints *hints, struct rail_handle *handle);
/* Of a handle that rail_handle_decode accepted. */
void ib_hints_decode(const struct rail_handle *handle, struct ib_hints *hints);

/* ---- ANSWER's payload, with IB_REASON_PLAN ------------------------------ */

struct ib_refused_plan_wire {
  uint16_t refusal;
  uint8_t rail_here, rail_there; /* of the side that refuses, of the other; 0xff: none */
  uint32_t zero;
  char name[IB_NAME_SIZE]; /* of rail_here */
};
_Static_assert(sizeof(struct ib_refused_plan_wire) == 72, "payload of an ANSWER");

struct ib_refused_plan {
  unsigned int refusal;
  int rail_here, rail_there; /* -1: none */
  char name[IB_NAME_SIZE];
};
void ib_refused_plan_encode(const struct ib_refused_plan *refused, struct ib_refused_plan_wire *wire);
/* NULL, or what is wrong. */
const char *ib_refused_plan_decode(const void *payload, size_t size, struct ib_refused_plan *refused);

/* ---- messages ------------------------------------------------------------ */

enum ib_message_type { /* beside RAIL_MESSAGE_ANSWER */
  IB_MESSAGE_OFFER = 2,
  IB_MESSAGE_QPS = 3,
  IB_MESSAGE_READY = 4, /* without body */
};

#define IB_OFFER_SENDER 1u
#define IB_OFFER_SPLIT 2u
#define IB_OFFER_ECE 4u
#define IB_OFFER_VERIFY 8u
#define IB_OFFER_FAILOVER 16u
#define IB_OFFER_RDMACM 32u
#define IB_OFFER_NO_IMM 64u
#define IB_OFFER_TWO_SIDED 128u
#define IB_OFFER_FLAGS 255u
#define IB_RAIL_ROCE 1u
#define IB_RAIL_GRH 2u
#define IB_RAIL_IWARP 4u
#define IB_RAIL_FLAGS 7u

struct ib_offer_rail_wire {
  uint8_t flags, port, mtu, gid_type;
  uint16_t lid;
  uint16_t zero;
  uint64_t subnet_prefix;
  uint8_t gid[16];
  uint32_t speed;
  uint32_t zero2;
  char name[IB_NAME_SIZE];
};
_Static_assert(sizeof(struct ib_offer_rail_wire) == 104, "rail size");
_Static_assert(offsetof(struct ib_offer_rail_wire, name) == 40, "rail layout");

struct ib_offer_wire {
  uint16_t flags;
  uint16_t nrails;
  uint32_t qps_per_rail, max_qps, recv_depth;
  uint8_t timeout; /* local ACK timeout of its queue pairs */
  uint8_t zeros[3];
  uint8_t max_write_log2, sl, traffic_class, zero;
  uint64_t process; /* random, the same in all connections of a process */
  uint64_t cm_token; /* with RDMACM: random, what the peer's messages of the RDMA CM show */
  struct ib_offer_rail_wire rails[IB_MAX_RAILS]; /* nrails of them are sent */
};
_Static_assert(offsetof(struct ib_offer_wire, rails) == 40, "offer layout");

size_t ib_offer_encode(const struct ib_offer *offer, struct ib_offer_wire *wire);
/* NULL, or what is wrong with its form; ib_plan_make checks the values. */
const char *ib_offer_decode(const void *body, size_t size, struct ib_offer *offer);

struct ib_qp_wire {
  uint32_t qpn, psn; /* psn: of the first packet that this side sends */
  uint32_t ece_vendor, ece_options, ece_comp_mask;
  uint32_t zero;
};
struct ib_qps_wire {
  uint16_t nqps;
  uint16_t nrails;
  uint32_t zero;
  uint64_t token;       /* what the peer's test writes carry; random, not 0 */
  uint64_t ctrl_addr;    /* of ib_ctrl_buf: a sender's CTS ring is at its beginning */
  uint64_t verify_addr; /* in it: where our test writes are expected, 8 bytes per QP */
  uint32_t rkeys[IB_MAX_RAILS];
  uint16_t cm_ports[IB_MAX_RAILS]; /* an acceptor's with RDMACM: where it listens, by its rail */
  struct ib_qp_wire qps[IB_MAX_QPS]; /* nqps of them are sent */
};
_Static_assert(offsetof(struct ib_qps_wire, qps) == 80, "qps layout");
_Static_assert(sizeof(struct ib_qps_wire) <= RAIL_BODY_MAX, "the largest body");

struct ib_qps {
  unsigned int nqps, nrails;
  uint64_t token, ctrl_addr, verify_addr;
  uint32_t rkeys[IB_MAX_RAILS];
  uint16_t cm_ports[IB_MAX_RAILS]; /* 0: none */
  struct ib_qp_info {
    uint32_t qpn, psn;
    uint32_t ece_vendor, ece_options, ece_comp_mask;
  } qps[IB_MAX_QPS];
};
size_t ib_qps_encode(const struct ib_qps *qps, struct ib_qps_wire *wire);
const char *ib_qps_decode(const void *body, size_t size, struct ib_qps *qps);

/* ---- private data of the RDMA CM ------------------------------------------ */

#define IB_CM_MAGIC 0x434b4252u /* "RBKC" */

struct ib_cm_wire { /* in a request and in its response; there may be zeros behind it */
  uint32_t magic;
  uint16_t version;
  uint16_t qp;    /* its index */
  uint64_t token; /* of the other side's OFFER */
};
_Static_assert(sizeof(struct ib_cm_wire) == 16, "the InfiniBand CM carries 56 bytes in a request");

void ib_cm_encode(unsigned int qp, uint64_t token, struct ib_cm_wire *wire);
/* NULL and the index of the QP, or what is wrong. `token`: of this side's OFFER. */
const char *ib_cm_decode(const void *data, size_t size, uint64_t token, unsigned int *qp);

#endif
