/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan of a connection, as a pure function of what each side offers: both compute the same plan, or the same
 * refusal, from the same two offers, before a QP is created.
 */
#ifndef IB_PLAN_H
#define IB_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "rail/net.h"

/* Numbers that both sides of a connection build on, and the sizes of tables. */
#define IB_MAX_PORTS 32   /* active ports of this machine that are used */
#define IB_MAX_DEVICES 256 /* ports and the devices fused from them */
#define IB_MAX_RAILS 8    /* ports of one fused device (net v12) */
#define IB_MAX_QPS 128    /* data QPs of one connection */
#define IB_MAX_GIDS 256   /* of a port that are looked at */

#define IB_MAX_GROUP 8                       /* buffers of one receive: maxRecvs */
#define IB_MAX_RECVS RAIL_NET_MAX_REQUESTS   /* receives outstanding on one connection: 32 */
#define IB_MAX_SENDS (IB_MAX_RECVS * IB_MAX_GROUP) /* sends outstanding on one connection: 256 */
#define IB_MAX_FLUSHES IB_MAX_RECVS

#define IB_MAX_WRITE_LOG2 30 /* of the bytes of one write, or SEND */
#define IB_ALIGN 128 /* parts of a message end at multiples of it, so that no LL128 line is split between QPs */

/* Depths of queues, where the device allows them: as many WRs as can be outstanding without a wait. A WR costs 64 bytes
 * and more of locked memory, and as much in the completion queue. */
#define IB_RECV_BATCH 32                             /* receive WRs are posted again in batches of this many */
#define IB_RECV_DEPTH (IB_MAX_SENDS + IB_RECV_BATCH) /* receive queue of a receiver's data QP */
#define IB_CTS_SIGNALED 16                           /* of so many CTS writes one is signaled */
#define IB_CTS_DEPTH (IB_MAX_RECVS + IB_CTS_SIGNALED) /* its send queue: a CTS write for each receive that is not done,
                                                       * and those before them that no completion stands for yet */
/* Send queue of a sender's data QP: body and tail of a message for each receive of one buffer. Of receives of several
 * buffers more messages can be outstanding; those wait for room (ib_send.c) behind 64 writes that are on their way. */
#define IB_SEND_DEPTH (2 * IB_MAX_RECVS)

/* RAIL_IB_PROTOCOL */
enum ib_protocol_kind { IB_PROTOCOL_WRITE, IB_PROTOCOL_SEND };

/* With the SEND protocol a buffer is as large as this many SENDs at most, so that the receive WRs of a group fit into
 * one QP. Soft-RoCE has the shortest messages, of 8 MiB: IB_TWO_SIDED_MAX_P2P is possible everywhere. */
#define IB_LARGE_PARTS 32
#define IB_TWO_SIDED_MAX_P2P ((uint64_t)IB_LARGE_PARTS << 23)
_Static_assert(IB_MAX_GROUP * IB_LARGE_PARTS <= IB_RECV_DEPTH, "the receive WRs of a group");

/* ib_offer_rail.gid_type, also on the wire. */
enum ib_gid_type { IB_GID_IB = 0, IB_GID_ROCE_V1 = 1, IB_GID_ROCE_V2 = 2, IB_GID_UNKNOWN = 3 };

/* One port of a side. */
struct ib_offer_rail {
  bool roce, iwarp; /* else InfiniBand */
  uint8_t port;     /* number on its HCA: the address vector's port is always our own side's */
  uint8_t mtu;      /* enum ibv_mtu 1..5 */
  uint8_t gid_type; /* enum ib_gid_type */
  bool grh_required;
  uint16_t lid;
  uint64_t subnet_prefix;
  uint8_t gid[16];
  uint32_t speed; /* Mb/s */
  char name[64];
};

struct ib_offer {
  bool sender; /* the connecting side */
  unsigned int nrails;
  struct ib_offer_rail rails[IB_MAX_RAILS];
  unsigned int qps_per_rail; /* NCCL_IB_QPS_PER_CONNECTION */
  unsigned int max_qps;      /* that this side can create for one connection */
  bool split;                /* NCCL_IB_SPLIT_DATA_ON_QPS */
  bool ece, verify, failover;
  bool rdmacm;               /* its QPs are set up by the RDMA CM */
  bool no_imm;               /* its HCAs have no write with immediate */
  bool two_sided;            /* RAIL_IB_PROTOCOL=send */
  uint64_t cm_token;         /* random; what the peer's messages of the RDMA CM must show */
  unsigned int max_write_log2; /* 12..30: bytes of one RDMA write */
  unsigned int recv_depth;     /* receive WRs that each of its QPs holds */
  uint8_t sl, traffic_class; /* of the sender's packets; a receiver without settings of its own uses the same */
  uint8_t timeout;           /* NCCL_IB_TIMEOUT: local ACK timeout of its queue pairs, 0..31 */
  uint64_t process;          /* random, the same in all connections of a process */
};

struct ib_plan_qp {
  uint8_t local_rail, remote_rail;
  uint8_t mtu; /* the smaller one */
  bool grh;
};

struct ib_plan {
  unsigned int nqps;
  struct ib_plan_qp qps[IB_MAX_QPS]; /* qp i: rail i % nrails of each side */
  unsigned int qps_per_message;      /* most parts of one message: one per rail of the larger side, or all (split) */
  unsigned int max_write_log2;
  bool ece, verify;
  bool failover; /* the connection outlives the loss of a QP, as long as there is another */
  bool rdmacm;   /* QPs are set up by the RDMA CM */
  bool two_sided; /* payload goes by SEND into posted receives (ib_two_sided.c) */
  bool notices;  /* a SEND reports each part, in place of a write with immediate (ib_notice.c) */
};

/* Why two ports cannot be connected. Numbers are on the wire. */
enum ib_refusal {
  IB_REFUSAL_NONE = 0,
  IB_REFUSAL_LINK = 1,   /* different kinds: InfiniBand, RoCE, iWARP */
  IB_REFUSAL_SUBNET = 2, /* InfiniBand: different subnets, and no routable GID */
  IB_REFUSAL_FAMILY = 3, /* RoCE, iWARP: one GID is IPv4, the other IPv6 */
  IB_REFUSAL_ROCE = 4,   /* RoCE v1 and v2 */
  IB_REFUSAL_GID = 5,    /* one has no GID, or one is link-local and the other is not */
  IB_REFUSAL_MTU = 6,    /* not an MTU */
  IB_REFUSAL_DEPTH = 7,  /* a device holds too few receive WRs */
  IB_REFUSAL_QPS = 8,    /* more rails than QPs allowed */
  IB_REFUSAL_OFFER = 9,  /* a value out of its range */
  IB_REFUSAL_CM = 10,    /* one side uses the RDMA CM, the other does not */
  IB_REFUSAL_PROTOCOL = 11, /* one side sends payload by SEND, the other by RDMA write */
  IB_REFUSAL_COUNT
};
const char *ib_refusal_text(unsigned int refusal);

/* `mine` and `theirs` must differ in `sender`. On a refusal *rail_mine and *rail_theirs name the pair (-1: none). */
enum ib_refusal ib_plan_make(const struct ib_offer *mine, const struct ib_offer *theirs, struct ib_plan *plan,
                             int *rail_mine, int *rail_theirs);

/* Where packets from a rail of ours to one of theirs go. Pure. */
uint16_t ib_plan_dlid(const struct ib_offer_rail *mine, const struct ib_offer_rail *theirs);

#endif
