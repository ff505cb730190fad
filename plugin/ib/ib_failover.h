/* SPDX-License-Identifier: Apache-2.0
 *
 * Failover: a connection goes on without a queue pair (QP) that is lost, and uses it again when it is back. What both
 * sides do and say, in order, and why it is safe: docs/protocol-ib.md, 8. Here: how far a QP is in that.
 *
 *   UP           in use
 *   AWAIT_FLUSH  lost: in ERR, and a flushed receive WR is polled for
 *   AWAIT_PEER   STOPPED is sent, and the peer's is awaited
 *   DOWN         both are there: its parts, or the CTS of all receives, go over other QPs
 *   REBUILDING   a new QP takes its place, and its number is exchanged with the peer's
 *   VERIFYING    that is in RTS, and a first write goes over it; then it is UP
 *
 * The progress thread moves a QP from state to state. The watch thread writes what it reads into atomics here. Which
 * frame is to be sent ib_failover_next says, under the watch lock: to the progress thread, which calls
 * rail_watch_send_frames, or to the watch thread, after what it has read and on its tick.
 */
#ifndef IB_FAILOVER_H
#define IB_FAILOVER_H

#include "plugin/ib/ib_comm.h"

/* Frames over the oob connection. Their number: QP, and from bit 32 on a receiver's count of tails (a sender: 0). */
#define IB_FRAME_STOPPED RAIL_OOB_PLUGIN /* this side has stopped that QP */
/* This side's connection has failed: there is nothing to go on with. */
#define IB_FRAME_REFUSED ((enum rail_oob_frame_type)(RAIL_OOB_PLUGIN + 1))
/* A new QP in its place is in INIT. The number: index, from bit 8 on its QP number, from bit 32 on its first PSN. */
#define IB_FRAME_NEW ((enum rail_oob_frame_type)(RAIL_OOB_PLUGIN + 2))
/* A sender's: it is in RTS. A receiver's: and a first write over it has completed. The number: index. */
#define IB_FRAME_READY ((enum rail_oob_frame_type)(RAIL_OOB_PLUGIN + 3))

enum ib_failover_state {
  IB_FAILOVER_UP,
  IB_FAILOVER_AWAIT_FLUSH,
  IB_FAILOVER_AWAIT_PEER,
  IB_FAILOVER_DOWN,
  IB_FAILOVER_REBUILDING,
  IB_FAILOVER_VERIFYING,
};

/* ib_failover_qp.faults: why a QP is to be given up. */
#define IB_FAULT_EVENT 1u         /* IBV_EVENT_QP_FATAL */
#define IB_FAULT_PORT 2u          /* its port went down */
#define IB_FAULT_DEVICE 4u        /* its HCA failed */
#define IB_FAULT_POST 8u          /* a work request could not be posted; written by the progress thread */
#define IB_FAULT_PEER_STOPPED 16u /* the peer's STOPPED is there */
#define IB_FAULT_PEER_REFUSED 32u /* the peer's REFUSED is there */
#define IB_FAULT_SILENT 64u       /* nothing completes over it; written by the progress thread (ib_detect.c) */

/* ib_failover_qp.return_events: what the watch thread has read that concerns its return. */
#define IB_EVENT_PEER_NEW 1u
#define IB_EVENT_PEER_READY 2u
#define IB_EVENT_PORT_UP 4u /* its port has come up, or has other GIDs */

/* What failover knows of one QP of a connection. */
struct ib_failover_qp {
  /* The watch thread has read: */
  _Atomic uint32_t faults;             /* IB_FAULT_*; set by the progress thread, too */
  _Atomic uint32_t return_events;      /* IB_EVENT_* */
  _Atomic uint32_t peer_count;         /* of the peer's STOPPED, before its bit is set */
  _Atomic uint32_t peer_qpn, peer_psn; /* of its NEW, before its bit is set */
  /* To send: */
  _Atomic bool stopped_or_refused;     /* one of the two is sent, or to be sent: once */
  _Atomic bool stopped_due;            /* STOPPED is to be sent, with own_count */
  _Atomic uint32_t own_count;          /* tails that a receiver has had on this QP */
  _Atomic bool new_due, ready_due;     /* NEW, or READY, is to be sent */
  _Atomic uint32_t own_qpn, own_psn;   /* what NEW says: the new QP's number, and its first PSN */

  /* The progress thread's: */
  enum ib_failover_state state;
  bool has_wc;                /* wc is the completion that showed the loss */
  struct ibv_wc wc;
  int post_errno;             /* with IB_FAULT_POST */
  uint64_t deadline;          /* AWAIT_FLUSH: for the flush. UP, its port down: for the port to be up again; 0: unset */
  const char *why_lost;       /* DOWN */
  struct ib_qp next;          /* REBUILDING: the new QP, until it is in RTS */
  bool has_peer_new;          /* the peer's NEW is in next.attr */
  bool rtr_begun;             /* rtr_thread, not joined yet, moves next to RTR; next is the thread's until rtr_done */
  pthread_t rtr_thread;
  _Atomic bool rtr_done;      /* written by that thread, behind rtr_result */
  rail_result_t rtr_result;
  bool next_broke;            /* REBUILDING: a receive WR of the new QP was flushed, and none will be again */
  bool verified;              /* VERIFYING: the first write has completed */
  unsigned int tries;         /* to rebuild it, since it was in use for long */
  uint64_t lost_at, up_since, began, retry_at; /* rail_now_ns() */
  /* UP, ib_detect.c's: */
  uint64_t mark;              /* changes when something completes */
  uint64_t quiet_since;       /* rail_now_ns(): it has been the same since; 0: nothing is outstanding */
  uint64_t probed_at;         /* ... of the probe since then; 0: none */
  uint64_t probed_again_at;   /* ... and of one since a witness has answered */
};

/* A connection's failover state. */
struct ib_failover {
  bool recovering;             /* from a loss: a QP that was UP awaits flush or peer, or something is to be resent */
  /* What is logged of the loss: */
  unsigned int lost, first;    /* QPs; the first of them */
  uint32_t resent;             /* parts, or CTS */
  uint64_t idle_ns;            /* without a completion, when it was noticed */
  uint64_t noticed, switched;  /* rail_now_ns(): the first was noticed, the last was DOWN */

  /* ib_detect.c's: */
  uint32_t empty_tests;        /* tests that found nothing */
  unsigned int witness;        /* the QP over which the last probe for another went */
  uint64_t witness_probed_at;  /* rail_now_ns() of that */
  bool witness_answered;

  _Atomic bool frames_due;     /* some QP may have a frame to send: ib_failover_next looks at each */
  _Atomic uint64_t retry_at;   /* rail_now_ns(): a QP is to be rebuilt then; 0: none */
  struct ib_failover_qp qps[]; /* plan.nqps */
};

static inline struct ib_failover_qp *ib_failover_qp(const struct ib_comm *comm, unsigned int qp) {
  return &comm->failover->qps[qp];
}
static inline struct ib_port *ib_qp_port(const struct ib_comm *comm, unsigned int qp) {
  return comm->rails[comm->qps[qp].rail].port;
}
static inline unsigned int ib_count_qps_up(const struct ib_comm *comm) {
  unsigned int n = 0;
  for (unsigned int i = 0; i < comm->plan.nqps; i++) n += ib_failover_qp(comm, i)->state == IB_FAILOVER_UP;
  return n;
}

/* Not stopped by both sides yet. */
static inline unsigned int ib_count_qps_awaiting(const struct ib_comm *comm) {
  unsigned int n = 0;
  for (unsigned int i = 0; i < comm->plan.nqps; i++) {
    const enum ib_failover_state state = ib_failover_qp(comm, i)->state;
    n += state == IB_FAILOVER_AWAIT_FLUSH || state == IB_FAILOVER_AWAIT_PEER;
  }
  return n;
}

/* The peer has stopped the QP, or its connection has failed. */
static inline bool ib_peer_has_ended(const struct ib_failover_qp *fq) {
  return atomic_load(&fq->faults) & (IB_FAULT_PEER_STOPPED | IB_FAULT_PEER_REFUSED);
}

/* Any thread. The next call that finds nothing to poll looks at it. */
static inline void ib_qp_fault(struct ib_comm *comm, unsigned int qp, uint32_t faults) {
  atomic_fetch_or(&comm->failover->qps[qp].faults, faults);
  atomic_fetch_or(&comm->pending_work, IB_COMM_FAILOVER);
}

/* For a connection whose plan has failover, before its peer may write. Logs why not. */
rail_result_t ib_failover_init(struct ib_comm *comm);

/* ---- the progress thread ------------------------------------------------------ */

/* A failed completion. True: the connection goes on, or waits for what the peer says; else it is an error. */
bool ib_failover_completion(struct ib_comm *comm, const struct ibv_wc *wc);
/* Does what is to be done about QPs that are in fault or lost. RAIL_OK, or the comm's failure. */
rail_result_t ib_failover_run(struct ib_comm *comm);
/* Does a loss wait for a flush or for the peer's STOPPED, which have limits of their own? What waits for room in a send
 * queue afterwards is the HCA's to end. */
static inline bool ib_failover_awaits(const struct ib_comm *comm) {
  return comm->failover && comm->failover->recovering && ib_count_qps_awaiting(comm);
}

/* A QP is lost. False: it is the last one, and is not. */
bool ib_failover_lose(struct ib_comm *comm, unsigned int qp);

/* What a sender has to resend. Of a lost QP of whose tails the receiver has counted so many: keeps in qp->posted the
 * tails that have not arrived, and writes all other entries, which are done, into `done` (IB_SEND_DEPTH). Returns how
 * many are kept. Touches nothing but qp->posted. */
unsigned int ib_posted_split(struct ib_qp *qp, uint32_t count, struct ib_posted *done, unsigned int *ndone);
#define IB_COUNT_INVALID UINT32_MAX /* a count that cannot be: nothing is changed */

/* ---- the watch thread ---------------------------------------------------------- */

/* A port went down, came up or has other GIDs, or a HCA failed, that the comm uses. */
void ib_failover_port(void *comm, void *port);
void ib_failover_hca_fatal(void *comm, void *hca);
/* QP_FATAL of one of its QPs. False: that ends the connection. */
bool ib_failover_qp_fatal(struct ib_comm *comm, const struct ibv_qp *qp);
/* rail_oob_ops. */
bool ib_failover_frame(void *comm, const struct rail_oob_frame *frame);
enum rail_oob_next ib_failover_next(void *comm, struct rail_oob_frame *frame);

/* ---- ib_detect.c: by the progress thread ----------------------------------------- */

/* Are there several paths? */
static inline bool ib_detect_is_possible(const struct ib_comm *comm) {
  return comm->failover && (comm->nrails > 1 || comm->nremote_rails > 1);
}
/* A test has found nothing, of a comm for which it is possible. */
void ib_detect_empty_test(struct ib_comm *comm);
/* A probe over that QP has completed. */
void ib_detect_probe_done(struct ib_comm *comm, unsigned int qp);

/* ---- ib_return.c: by the progress thread ----------------------------------------- */

enum ib_return {
  IB_RETURN_WAITS,   /* for a frame, a completion, an event, or ib_return_next */
  IB_RETURN_GOES_ON, /* call again, behind a poll that found nothing */
  IB_RETURN_FAILED,
};
/* Moves a QP that is on its way back as far as it can go. */
enum ib_return ib_return_step(struct ib_comm *comm, unsigned int qp);
/* Says when a QP that is DOWN is to be rebuilt. */
void ib_return_schedule(struct ib_failover_qp *fq);
/* When the first is; 0: none, or not by time. */
uint64_t ib_return_next(const struct ib_comm *comm);
/* A first write has completed. */
void ib_return_verified(struct ib_comm *comm, unsigned int qp);
/* Posts the receive WRs of one QP, in INIT; errno of ibv_post_recv, or 0. */
int ib_return_prepost(struct ib_comm *comm, struct ib_qp *qp);
#define IB_RETURN_TICK_MS 1000 /* so often, at least, the watch thread asks whether a QP is to be rebuilt */
/* Does a thread of the return work on the new QP? Its end is seen by the next run. */
static inline bool ib_return_is_busy(const struct ib_failover_qp *fq) {
  return fq->rtr_begun && !atomic_load(&fq->rtr_done);
}
/* Destroys a new QP that is half made; waits for its thread, a second or so at most. */
void ib_return_drop(struct ib_failover_qp *fq);
/* Waits for such threads of a comm that is stopped, before the plugin may be unloaded. */
void ib_return_join(struct ib_comm *comm);
/* ib_return_drop for each QP of a comm. */
void ib_return_close(struct ib_comm *comm);

#endif
