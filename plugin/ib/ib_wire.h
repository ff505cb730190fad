/* SPDX-License-Identifier: Apache-2.0
 *
 * The handshake on the wire: the listen handle, HELLO, and the messages that follow it on the oob connection. The
 * frames of a connection in use are in ib_keepalive.h. Fixed widths, little-endian, no pointers. A change of layout or
 * meaning, here, in ib_cts.h or ib_keepalive.h, raises IB_WIRE_VERSION; docs/protocol-ib.md is the description.
 *
 * Encoders fill every byte. Decoders check length, magic and version before anything else.
 */
#ifndef IB_WIRE_H
#define IB_WIRE_H

#include <stddef.h>

#include "common/conn/hmac.h"
#include "common/base/sock.h"
#include "plugin/ib/ib_plan.h"

#define IB_WIRE_VERSION 2
#define IB_SECRET_SIZE 16
#define IB_COMM_ID_SIZE 16
#define IB_NONCE_SIZE 16

/* ---- listen handle ------------------------------------------------------- */

#define IB_HANDLE_MAGIC 0x484b4252u /* "RBKH" */
#define IB_HANDLE_AUTH 1u           /* the listener wants every HELLO authenticated */
#define IB_HANDLE_GIDS 4            /* of the listener's first rails */

struct ib_handle_wire {
  uint32_t magic;
  uint8_t version;
  uint8_t flags;
  uint8_t ngids;
  uint8_t zero;
  struct rail_addr_wire addr;
  uint8_t secret[IB_SECRET_SIZE];
  uint8_t gids[IB_HANDLE_GIDS][16];
  uint8_t zeros[8];
  uint64_t attempt; /* 0 from listen; the connector's own number between two calls of connect */
};
_Static_assert(sizeof(struct ib_handle_wire) == RAIL_NET_HANDLE_SIZE, "handle size");
_Static_assert(offsetof(struct ib_handle_wire, addr) == 8, "handle layout");
_Static_assert(offsetof(struct ib_handle_wire, secret) == 32, "handle layout");
_Static_assert(offsetof(struct ib_handle_wire, gids) == 48, "handle layout");
_Static_assert(offsetof(struct ib_handle_wire, attempt) == 120, "handle layout");

struct ib_handle {
  unsigned int flags;
  union rail_addr addr;
  uint8_t secret[IB_SECRET_SIZE];
  unsigned int ngids; /* a hint for the connector's choice of its own GIDs */
  uint8_t gids[IB_HANDLE_GIDS][16];
  uint64_t attempt;
};

void ib_handle_encode(const struct ib_handle *handle, void *bytes);
/* false with *why a constant text that says what is wrong. `bytes` needs no alignment. */
bool ib_handle_decode(const void *bytes, struct ib_handle *handle, const char **why);
void ib_handle_set_attempt(void *bytes, uint64_t attempt);

/* ---- HELLO: the first bytes, connector to acceptor ----------------------- */

#define IB_HELLO_MAGIC 0x314b4252u /* "RBK1" */
#define IB_HELLO_AUTH 1u           /* nonce and mac are set */

struct ib_hello_wire {
  uint32_t magic;
  uint16_t version;
  uint16_t length; /* of this structure */
  uint8_t secret[IB_SECRET_SIZE];
  uint8_t comm_id[IB_COMM_ID_SIZE]; /* random, of this connection */
  uint32_t flags;
  uint32_t zero;
  uint8_t nonce[IB_NONCE_SIZE];
  uint8_t mac[RAIL_MAC_SIZE]; /* ib_auth.h */
};
_Static_assert(sizeof(struct ib_hello_wire) == 96, "hello size");
_Static_assert(offsetof(struct ib_hello_wire, secret) == 8, "hello layout");
_Static_assert(offsetof(struct ib_hello_wire, comm_id) == 24, "hello layout");
_Static_assert(offsetof(struct ib_hello_wire, flags) == 40, "hello layout");
_Static_assert(offsetof(struct ib_hello_wire, nonce) == 48, "hello layout");
_Static_assert(offsetof(struct ib_hello_wire, mac) == 64, "hello layout");

/* Why a side refuses. The numbers are on the wire. */
enum ib_reason {
  IB_REASON_NONE = 0,
  IB_REASON_GARBAGE = 1, /* not a hello at all: never sent */
  IB_REASON_VERSION = 2,
  IB_REASON_SECRET = 3,
  IB_REASON_PLAN = 4,    /* the two offers do not fit: with enum ib_refusal and the two rails */
  IB_REASON_FAILED = 5,  /* this side failed; its log says why */
  IB_REASON_TIMEOUT = 6, /* the handshake was not finished in time */
  IB_REASON_BUSY = 7,    /* too many pending connections */
  IB_REASON_AUTH = 8,    /* one side authenticates, the other does not */
  IB_REASON_MAC = 9,     /* made with another key */
  IB_REASON_REPLAY = 10, /* received before */
  IB_REASON_GONE = 11,   /* the listener is closed */
  IB_REASON_MESSAGE = 12, /* an invalid message, or one out of order */
  IB_REASON_VERIFY = 13, /* the first write over a queue pair failed */
  IB_REASON_COUNT
};
const char *ib_reason_text(unsigned int reason);

void ib_hello_encode(const uint8_t secret[IB_SECRET_SIZE], const uint8_t comm_id[IB_COMM_ID_SIZE],
                     struct ib_hello_wire *wire);
/* Checks a whole hello against the listener's handle, all but its mac. Compares the secret in constant time. */
enum ib_reason ib_hello_check(const struct ib_hello_wire *wire, const struct ib_handle *listener);
/* Can the first `have` bytes still become a valid hello? GARBAGE: of no version. VERSION: of another version. SECRET:
 * of another version and with a wrong secret; both take IB_HELLO_COMMON bytes, which mean the same in all versions. */
#define IB_HELLO_COMMON offsetof(struct ib_hello_wire, comm_id)
enum ib_reason ib_hello_plausible(const void *bytes, size_t have, const struct ib_handle *listener);

/* ---- messages ------------------------------------------------------------ */

#define IB_MESSAGE_MAGIC 0x4d4b4252u /* "RBKM" */

enum ib_message_type {
  IB_MESSAGE_ANSWER = 1, /* the acceptor's welcome; either side's refusal, at any time */
  IB_MESSAGE_OFFER = 2,
  IB_MESSAGE_QPS = 3,
  IB_MESSAGE_READY = 4,
};

struct ib_head_wire { /* then the body, then RAIL_MAC_SIZE bytes of mac (ib_auth.h; zeros without a key) */
  uint32_t magic;
  uint16_t version;
  uint16_t type;
  uint32_t length; /* of body and mac */
  uint32_t zero;
};
_Static_assert(sizeof(struct ib_head_wire) == 16, "head size");

#define IB_BODY_MAX 3136 /* the largest, QPS with all of them */
#define IB_MESSAGE_MAX (sizeof(struct ib_head_wire) + IB_BODY_MAX + RAIL_MAC_SIZE)

void ib_head_encode(enum ib_message_type type, size_t body, struct ib_head_wire *head);
/* NULL, or what is wrong. *body is its size, at most IB_BODY_MAX. A refusal is understood from every version. */
const char *ib_head_decode(const struct ib_head_wire *head, unsigned int *type, size_t *body);

#define IB_NAME_SIZE 64

struct ib_answer_wire {
  uint16_t reason; /* 0: welcome. The first two bytes mean the same in all versions */
  uint16_t refusal;
  uint8_t rail_here, rail_there; /* of the sender of this message, of its receiver; 0xff: none */
  uint8_t zero[2];
  uint8_t nonce[IB_NONCE_SIZE]; /* a welcome to a HELLO with AUTH: random */
  char name[IB_NAME_SIZE];      /* of rail_here */
};
_Static_assert(sizeof(struct ib_answer_wire) == 88, "answer size");

struct ib_answer {
  unsigned int reason, refusal;
  int rail_here, rail_there; /* -1: none */
  uint8_t nonce[IB_NONCE_SIZE];
  char name[IB_NAME_SIZE];
};
void ib_answer_encode(const struct ib_answer *answer, struct ib_answer_wire *wire);
/* NULL, or what is wrong. */
const char *ib_answer_decode(const void *body, size_t size, struct ib_answer *answer);

/* A refusal, whole and without mac, so that any peer understands it. */
#define IB_REFUSAL_SIZE (sizeof(struct ib_head_wire) + sizeof(struct ib_answer_wire) + RAIL_MAC_SIZE)
void ib_refusal_encode(const struct ib_answer *answer, uint8_t bytes[IB_REFUSAL_SIZE]);

#define IB_OFFER_SENDER 1u
#define IB_OFFER_SPLIT 2u
#define IB_OFFER_ECE 4u
#define IB_OFFER_VERIFY 8u
#define IB_OFFER_FLAGS 15u
#define IB_RAIL_ROCE 1u
#define IB_RAIL_GRH 2u
#define IB_RAIL_FLAGS 3u

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
  struct ib_offer_rail_wire rails[IB_MAX_RAILS]; /* nrails of them are sent */
};
_Static_assert(offsetof(struct ib_offer_wire, rails) == 32, "offer layout");

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
  struct ib_qp_wire qps[IB_MAX_QPS]; /* nqps of them are sent */
};
_Static_assert(offsetof(struct ib_qps_wire, qps) == 64, "qps layout");
_Static_assert(sizeof(struct ib_qps_wire) == IB_BODY_MAX, "the largest body");

struct ib_qps {
  unsigned int nqps, nrails;
  uint64_t token, ctrl_addr, verify_addr;
  uint32_t rkeys[IB_MAX_RAILS];
  struct ib_qp_info {
    uint32_t qpn, psn;
    uint32_t ece_vendor, ece_options, ece_comp_mask;
  } qps[IB_MAX_QPS];
};
size_t ib_qps_encode(const struct ib_qps *qps, struct ib_qps_wire *wire);
const char *ib_qps_decode(const void *body, size_t size, struct ib_qps *qps);

#endif
