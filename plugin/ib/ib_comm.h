/* SPDX-License-Identifier: Apache-2.0
 *
 * What both sides of a connection have. Made by ib_setup.c during the
 * handshake, driven by ib_send.c, ib_recv.c and ib_progress.c, taken down by
 * ib_close.c.
 *
 * Threads. isend, irecv, iflush, test are one thread's (the caller's progress
 * thread); regMr, deregMr and close another's. The watch thread writes `health`
 * and `peer_quiet`; of the former the progress thread takes IB_COMM_STILL back. What
 * belongs to whom is said at each field; there is no lock.
 */
#ifndef IB_COMM_H
#define IB_COMM_H

#include <stdatomic.h>

#include "common/net/net_ops.h"
#include "common/base/sock.h"
#include "plugin/ib/ib_cts.h"
#include "plugin/ib/ib_device.h"
#include "plugin/ib/ib_plan.h"
#include "plugin/ib/ib_qp.h"

#define IB_SEND_COMM_MAGIC 0x43534249u
#define IB_RECV_COMM_MAGIC 0x43524249u

struct rail_net_ctx;

/* ib_comm.health: what the watch thread found. The caller's thread reads it when there is nothing to poll. */
#define IB_COMM_QP_FATAL 1u    /* IBV_EVENT_QP_FATAL, QP_REQ_ERR, QP_ACCESS_ERR of one of its QPs */
#define IB_COMM_CQ_ERROR 2u    /* IBV_EVENT_CQ_ERR: completions were lost */
#define IB_COMM_PEER_CLOSED 4u /* the peer said goodbye */
#define IB_COMM_PEER_LOST 8u   /* the side channel broke without goodbye: the peer's process is dead, or its host */
#define IB_COMM_PEER_SILENT 16u /* the peer's process answers nothing any more, though its host does: stopped */
#define IB_COMM_DEVICE_FATAL 32u /* IBV_EVENT_DEVICE_FATAL of an HCA of one of its rails */
/* Nothing has moved for a while, with requests outstanding: a question, not an end. The caller's thread takes it back
 * when something has moved, or the HCA has answered. */
#define IB_COMM_STILL 64u

/* Beside PEER_CLOSED, of a sender's peer: its side channel has ended, and with it the time for which it answers what is
 * sent again. */
#define IB_COMM_PEER_GONE 256u
#define IB_COMM_HOST_SILENT 128u /* the peer's host answers nothing any more */

/* One of our ports in this connection. */
struct ib_rail {
  struct ib_port *port;
  struct ibv_cq *cq;
  int gid_index;
  uint8_t gid[16];
  struct ibv_mr *own_mr; /* the comm's own memory: the CTS ring, or the copy of it that is sent */
};

/* A registration as regMr gives it out. */
#define IB_MHANDLE_MAGIC 0x484d4249u
struct ib_mr_entry;
struct ib_mhandle {
  uint32_t magic;
  int type; /* RAIL_PTR_* */
  struct ib_comm *comm;
  struct ib_mhandle *next, *prev; /* in comm->mhandles: the service thread's */
  uint64_t addr, size;
  _Atomic uint32_t outstanding; /* requests that use it: the progress thread counts */
  struct ib_mr_entry *entries[IB_MAX_RAILS];
  uint32_t lkeys[IB_MAX_RAILS], rkeys[IB_MAX_RAILS]; /* by our rail */
};

struct ib_comm {
  uint32_t magic;
  bool sender;
  struct rail_net_ctx *ctx;
  const struct ib_device *device;
  struct ib_plan plan;
  unsigned int nrails, nremote_rails;
  struct ib_rail rails[IB_MAX_RAILS];
  struct ib_offer_rail remote_rails[IB_MAX_RAILS];
  struct ib_qp *qps; /* plan.nqps */

  union rail_addr peer; /* of the side channel */
  char peer_text[RAIL_ADDR_TEXT];
  uint64_t peer_process;    /* the same in all connections with one process */
  uint8_t sender_timeout;   /* local ACK timeout of the sender's QPs */
  int side_fd;              /* the watch thread's from ib_watch_add to ib_watch_remove */
  struct ib_watched *watched;

  _Atomic uint32_t health;  /* IB_COMM_* */
  _Atomic bool peer_quiet;  /* the watch thread's: asked for a sign of life, the peer gives none */
  _Atomic bool stopped;     /* deregMr or close stopped the QPs: nothing may be posted any more */
  _Atomic uint64_t settled_by; /* deregMr waits for the HCA until then, however many buffers there are; 0: not yet */
  bool forked;              /* in a child of fork, and thus stopped: its verbs objects are the parent's */
  rail_result_t failed;     /* the first error: final. The progress thread's */
  uint64_t last_progress;   /* rail_now_ns() of the last good completion, kept at a coarse grain; for error lines */
  uint32_t moved;           /* completions since */
  uint64_t owed_deadline;   /* nothing moves, and the HCA owes a completion: by then it is here, or never. 0: no */
  struct ib_mhandle *mhandles;
  _Atomic uint32_t outstanding; /* requests given out and not done: written by the progress thread */
  uint64_t *stats;          /* of the group "comm"; never NULL */
  bool stats_private;       /* it is memory of our own: nobody sees it */
  rail_profiler_fn profiler;
};

/* The `own` memory of a send comm is its CTS ring; the receiver writes into it. */
struct ib_send_comm;
/* The `own` memory of a recv comm is the copy of the CTS rows that it sends. */
struct ib_recv_comm;

/* A caller's pointer; NULL after one line if it is none of ours. kind 0: either. */
struct ib_comm *ib_comm_of(void *comm, uint32_t kind_magic, const char *call);

/* The first error ends the connection; later calls of isend, irecv, test return it. Returns it. */
static inline rail_result_t ib_comm_fail(struct ib_comm *comm, rail_result_t result) {
  if (comm->failed == RAIL_OK) comm->failed = result;
  return comm->failed;
}
/* How long a closed receiver answers what its sender's HCA sends again (RAIL_IB_LINGER). */
uint64_t ib_comm_linger_ms(const struct ib_comm *comm);
/* All QPs to ERR: nothing new begins. Any thread; idempotent. */
void ib_comm_stop(struct ib_comm *comm);

/* What the handshake's messages need of the other kind, kept here so that setup knows neither kind:
 * the address and keys of the sender's CTS ring. */
struct ib_cts_place {
  uint64_t addr;
  uint32_t rkeys[IB_MAX_RAILS]; /* by the sender's rail */
};

/* The own memory of both kinds ends with this, 8-byte aligned: where the handshake's test writes go and come from. */
struct ib_verify {
  uint64_t in[IB_MAX_QPS]; /* the peer's, one per QP */
  uint64_t out;
};

/* ib_send.c, ib_recv.c: everything of a comm but its base, which the caller fills in. `own` is allocated and
 * zeroed here so that setup can register it. side_fd is -1. */
struct ib_comm *ib_send_comm_alloc(void);
struct ib_comm *ib_recv_comm_alloc(void);
void ib_comm_free_kind(struct ib_comm *comm); /* memory only; verbs objects are gone */
/* All of it, with struct ib_verify in its last bytes; the CTS ring, or its copy, is at the beginning. */
void ib_comm_own_memory(struct ib_comm *comm, void **memory, size_t *size);
/* The QPs are in RTS, the keys are known. A recv comm posts its receive WRs here, when its QPs are in INIT. */
rail_result_t ib_recv_comm_prepost(struct ib_comm *comm);
/* `progress`: ib_progress, for an irecv that finds the send queue full. */
void ib_recv_comm_start(struct ib_comm *comm, const struct ib_cts_place *place,
                        rail_result_t (*progress)(struct ib_comm *comm));
void ib_send_comm_start(struct ib_comm *comm);

/* ib_close.c */
rail_result_t ib_close_send(void *send_comm);
rail_result_t ib_close_recv(void *recv_comm);
/* Everything of a comm, whole or half made. */
void ib_comm_destroy(struct ib_comm *comm);

#endif
