/* SPDX-License-Identifier: Apache-2.0
 *
 * Queue pairs: one function per transition, which takes all of its attributes from ib_qp_attr. Under NCCL_DEBUG=TRACE
 * every transition is logged, read back and compared.
 *
 *   (none) -create-> RESET -init-> INIT -rtr-> RTR -rts-> RTS -err-> ERR -destroy-> (none)
 */
#ifndef IB_QP_H
#define IB_QP_H

#include "common/base/result.h"
#include "plugin/ib/ib_device.h"

#define IB_MIN_RNR_TIMER 12 /* 0.64 ms: how long a receiver without a receive WR makes a sender wait */
#define IB_RNR_RETRY 7      /* endless: a slow receiver is not a failure */
#define IB_MAX_RETRIES 7    /* NCCL_IB_RETRY_CNT, which has 3 bits */
#define IB_RD_ATOMIC 1

/* Times. An ACK timeout is 4.096 us x 2^exponent, and an HCA may take up to 4 times that (InfiniBand specification,
 * vol. 1, 9.7.6.1.3). The grace is added to limits computed from these: what the two processes need to run. */
#define IB_ACK_NS 4096ull
#define IB_ACK_TOLERANCE 4
#define IB_GRACE_MS 1000

enum ib_qp_state { IB_QP_NONE, IB_QP_RESET, IB_QP_INIT, IB_QP_RTR, IB_QP_RTS, IB_QP_ERR, IB_QP_STATES };

/* The attributes of a QP and of its peer. */
struct ib_qp_attr {
  uint8_t port; /* local */
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
  uint32_t sq_psn, rq_psn; /* first packet numbers: local, random; the peer's */
  struct ibv_ece ece;
  bool use_ece;
};

struct ib_qp_sizes {
  uint32_t send_depth, recv_depth, inline_bytes; /* inline: wanted; less is accepted */
};

/* A sender's signaled write: of which send and part, and whether it is the part's tail. */
struct ib_posted {
  uint16_t send : 8, part : 7, tail : 1;
};
_Static_assert(IB_MAX_SENDS == 1 << 8 && IB_MAX_QPS == 1 << 7 && sizeof(struct ib_posted) == 2, "numbers fit");

/* Those of one QP that have not completed, which they do in the order in which they were posted. What is resent when
 * the QP is lost, and what striping and detection measure, is found by it. */
struct ib_posted_ring {
  struct ib_posted *entries; /* IB_SEND_DEPTH */
  uint32_t first, end;       /* the oldest; behind the newest. They count up and are never reset */
};
static inline struct ib_posted *ib_posted_at(const struct ib_posted_ring *ring, uint32_t number) {
  return &ring->entries[number % IB_SEND_DEPTH];
}

struct ib_qp {
  struct ibv_qp *qp;
  enum ib_qp_state state;
  uint16_t index;               /* in its comm */
  uint8_t rail, remote_rail;    /* which port of each side */
  uint16_t max_inline;          /* bytes, as the device reports it */
  uint64_t wr_id_base;          /* of what the data path posts: IB_WR_SEND or _CTS, and the index; set with it */
  /* The progress thread's: */
  uint32_t sq_avail;           /* free entries of the send queue */
  uint32_t rq_consumed;        /* receive WRs consumed and not posted again yet */
  uint16_t next_notice;        /* place of the notice that is posted again next (ib_notice.c) */
  bool ignore_completions;     /* set once the tail count is fixed: a receiver's when it sends STOPPED, a sender's
                                * when reconciled (ib_failover.h) */
  _Atomic uint32_t tails;      /* last writes of parts: posted by a sender, counted by a receiver; modulo 2^32 */
  struct ib_posted_ring posted; /* a sender's (ib_send.c) */
  uint32_t modify_tries;        /* of a transition that timed out */
  uint64_t modify_at;           /* when the next try is due */
  _Atomic(const struct ibv_qp *) event_qp; /* as qp, for the watch thread: never followed */
  struct ib_qp_sizes sizes;
  struct ib_qp_attr attr;
  /* The progress thread's and, when the comm is stopped, ib_comm_drain's, in any thread: */
  _Atomic uint32_t receives; /* receive WRs that irecv posted, and that have not completed (ib_two_sided.c) */
  _Atomic bool flushed;      /* a receive WR was flushed after ib_qp_to_err */
};

/* The watch thread may read it. */
static inline void ib_qp_count_tail(struct ib_qp *qp) {
  atomic_store_explicit(&qp->tails, atomic_load_explicit(&qp->tails, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* Each logs its failure: device, QP, transition, errno, what to check. ETIMEDOUT of modify is tried again as
 * NCCL_IB_MQP_RETRY_* say, in later calls: RAIL_IN_PROGRESS, never a sleep. */
rail_result_t ib_qp_create(struct ib_qp *qp, const struct ib_port *port, struct ibv_cq *cq,
                           const struct ib_qp_sizes *sizes, void *context);
rail_result_t ib_qp_to_init(struct ib_qp *qp, const struct ib_port *port, int access);
rail_result_t ib_qp_to_rtr(struct ib_qp *qp, const struct ib_port *port);
rail_result_t ib_qp_to_rts(struct ib_qp *qp, const struct ib_port *port);
/* A transition with attributes that are not from ib_qp_attr: the RDMA CM's. */
rail_result_t ib_qp_modify(struct ib_qp *qp, const struct ib_port *port, enum ib_qp_state to, struct ibv_qp_attr *attr,
                           int mask);
bool ib_qp_modify_waits(const struct ib_qp *qp); /* such a next try is not due yet */
/* The ECE options of this QP's device; false, and all zero, where it has none. */
bool ib_qp_query_ece(const struct ib_qp *qp, struct ibv_ece *ece);
/* Stops it: the HCA begins nothing new for it. A packet that is being handled may still be written to memory; flushed
 * receive WRs complete after that (ib_comm_drain). Failures are only traced. */
void ib_qp_to_err(struct ib_qp *qp);
void ib_qp_destroy(struct ib_qp *qp); /* does nothing for a zeroed one */

/* Seconds, at least, until a QP reports an unacknowledged transfer; 0: never. Pure. */
double ib_qp_retry_s(unsigned int timeout, unsigned int retry_cnt);
/* Milliseconds after which a QP has reported it, at the latest, and its process has run; 0: no limit. Pure. */
uint64_t ib_qp_limit_ms(const struct ib_qp_attr *attr);

#endif
