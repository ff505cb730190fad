/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a queue pair: one function per transition, each with all of its
 * attributes from one place. Every transition is traced, and read back and
 * compared under NCCL_DEBUG=TRACE.
 *
 *   (none) -create-> RESET -init-> INIT -rtr-> RTR -rts-> RTS -err-> ERR -destroy-> (none)
 */
#ifndef IB_QP_H
#define IB_QP_H

#include "common/base/result.h"
#include "plugin/ib/ib_device.h"

enum ib_qp_state { IB_QP_NONE, IB_QP_RESET, IB_QP_INIT, IB_QP_RTR, IB_QP_RTS, IB_QP_ERR, IB_QP_STATES };

/* What a QP needs to know of itself and of its peer. */
struct ib_qp_path {
  uint8_t port; /* ours */
  uint16_t pkey_index;
  uint8_t sgid_index;
  bool grh;
  uint8_t mtu; /* enum ibv_mtu */
  uint8_t sl, traffic_class;
  uint8_t timeout, retry_cnt;
  /* the peer's */
  uint16_t dlid;
  uint8_t dgid[16];
  uint32_t dest_qpn;
  uint32_t sq_psn, rq_psn; /* of our first packet, random; of the peer's */
  struct ibv_ece ece;
  bool use_ece;
};

struct ib_qp {
  struct ibv_qp *qp;
  enum ib_qp_state state;
  uint16_t index;               /* in its comm */
  uint8_t rail, remote_rail;    /* which port of each side */
  uint16_t max_inline;          /* bytes, as the device gave it */
  /* The progress thread's: */
  uint32_t sq_avail;           /* free places in the send queue */
  uint32_t rq_consumed;        /* receive WRs consumed and not given back yet */
  uint32_t modify_tries;        /* the handshake's: of the transition under way that timed out */
  uint64_t modify_at;           /* when it is tried again */
  _Atomic bool flushed;         /* stopped, and a receive WR has come back unused since */
  struct ib_qp_path path;
};

struct ib_qp_sizes {
  uint32_t send_depth, recv_depth, inline_bytes; /* inline: asked for; less is fine */
};

/* Each logs its failure: device, QP, transition, errno, what to check. ETIMEDOUT of modify is tried again as
 * NCCL_IB_MQP_RETRY_* say, in later calls: RAIL_IN_PROGRESS, never a sleep. */
rail_result_t ib_qp_create(struct ib_qp *qp, const struct ib_port *port, struct ibv_cq *cq,
                           const struct ib_qp_sizes *sizes, void *context);
rail_result_t ib_qp_to_init(struct ib_qp *qp, const struct ib_port *port, int access);
rail_result_t ib_qp_to_rtr(struct ib_qp *qp, const struct ib_port *port);
rail_result_t ib_qp_to_rts(struct ib_qp *qp, const struct ib_port *port);
/* What this QP's device can do with one of its own kind; false, and all zero, where it knows nothing of that. */
bool ib_qp_query_ece(const struct ib_qp *qp, struct ibv_ece *ece);
/* Stops it: the HCA begins nothing new for it. A packet that it has in hand may still go to memory; the receive WRs
 * that come back unused are behind that (ib_qp_drain). Never fails loudly. */
void ib_qp_to_err(struct ib_qp *qp);
void ib_qp_destroy(struct ib_qp *qp); /* a zeroed one is fine */

const char *ib_qp_state_name(enum ib_qp_state state);

#endif
