/* SPDX-License-Identifier: Apache-2.0
 *
 * What both sides of a connection have. Made by ib_setup.c during the
 * handshake, driven by ib_send.c, ib_recv.c and ib_progress.c, taken down by
 * ib_close.c.
 *
 * Threads. isend, irecv, iflush, test are one thread's (the caller's progress
 * thread); regMr, deregMr and close another's. The watch thread writes `health`
 * and `peer_silent`; of the former the progress thread takes IB_COMM_STALLED back. What
 * belongs to whom is said at each field; there is no lock.
 */
#ifndef IB_COMM_H
#define IB_COMM_H

#include <stdatomic.h>

#include "common/net/net_ops.h"
#include "common/base/sock.h"
#include "common/obs/stats.h"
#include "plugin/ib/ib_cts.h"
#include "plugin/ib/ib_device.h"
#include "plugin/ib/ib_plan.h"
#include "plugin/ib/ib_qp.h"
#include "plugin/ib/ib_stats.h"

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
#define IB_COMM_STALLED 64u

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
  struct ibv_mr *ctrl_mr; /* the comm's own memory: the CTS ring, or the copy of it that is sent */
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
  _Atomic bool peer_silent;  /* the watch thread's: asked for a sign of life, the peer gives none */
  _Atomic bool stopped;     /* deregMr or close stopped the QPs: nothing may be posted any more */
  _Atomic uint64_t drain_deadline; /* deregMr waits for the HCA until then, however many buffers there are; 0: not yet */
  bool forked;              /* in a child of fork, and thus stopped: its verbs objects are the parent's */
  rail_result_t failed;     /* the first error: final. The progress thread's */
  uint64_t last_progress;   /* rail_now_ns() of the last good completion, kept at a coarse grain; for error lines */
  uint32_t moved;           /* completions since */
  uint64_t probe_deadline;   /* nothing moves, and the HCA owes a completion: by then it is here, or never. 0: no */
  struct ib_mhandle *mhandles;
  _Atomic uint32_t outstanding; /* requests given out and not done: written by the progress thread */
  uint64_t *stats;          /* of the group "comm"; never NULL */
  bool stats_private;       /* it is memory of our own: nobody sees it */
  rail_profiler_fn profiler;
};

/* What the handshake's messages need of the other kind, kept here so that setup knows neither kind:
 * the address and keys of the sender's CTS ring. */
struct ib_remote_ring {
  uint64_t addr;
  uint32_t rkeys[IB_MAX_RAILS]; /* by the sender's rail */
};

/* The own memory of both kinds ends with this, 8-byte aligned: where the handshake's test writes go and come from. */
struct ib_verify {
  uint64_t in[IB_MAX_QPS]; /* the peer's, one per QP */
  uint64_t out;
};

/* ---- requests --------------------------------------------------------------
 *
 * Fixed pools inside their comm, which belong to the caller's progress thread. A request is done when nothing is
 * pending; test hands it back. All kinds begin with struct ib_request, whose magic tells them apart from each other and
 * from a pointer that was given back already.
 */

#define IB_REQ_SEND 0x51455249u
#define IB_REQ_RECV 0x51455252u
#define IB_REQ_FLUSH 0x51455246u
#define IB_REQ_FREE 0x46455249u

struct ib_request {
  uint32_t magic;
  uint32_t pending;     /* completions to come, and 1 until all is posted; a receive: buffers. 0: done */
  rail_result_t result; /* an error of this request alone: the connection lives */
  struct ib_comm *comm;
  struct ib_request *next_free;
};

/* A send. Life: granted → (waits in `unposted`) → posted → done. */
struct ib_send {
  struct ib_request base;
  struct ib_send *next; /* in `unposted` */
  const uint8_t *data;
  uint64_t size;
  uint64_t length;   /* bytes that are written: size, or 0 if that is more than the buffer holds */
  uint64_t posted;   /* bytes of `part` */
  uint16_t first_qp; /* part i goes over QP first_qp + i */
  uint16_t nparts, part; /* `part`: the first that is not all posted */
  struct ib_grant grant;
  struct ib_mhandle *mr;
};

/* One buffer of an irecv. */
struct ib_buffer {
  uint64_t capacity, arrived;
  uint32_t tag;
  uint16_t parts, left; /* of its message; parts is 0 until the first has come */
  struct ib_mhandle *mr;
};

/* A receive. Its place in the table is its row of CTS entries. */
struct ib_recv {
  struct ib_request base;
  uint32_t n;
  struct ib_buffer buffers[IB_MAX_GROUP];
};

/* The own memory of either kind: registered, on pages of its own. */
struct ib_ctrl_buf {
  struct ib_cts_ring ring; /* a sender's: the peer writes here. A receiver's: what it writes from */
  struct ib_verify verify;
};

/* Since when sends have found receives, but none of their tag. */
struct ib_tag_wait {
  uint64_t last_seen; /* when that was last seen; 0: none has */
  uint64_t waited; /* ns in which this process looked, and the peer's was alive */
  uint32_t tag, head, takes;
};

/* One QP per rail that is connected to itself, one word that is read into. */
struct ib_flush {
  struct ib_comm *comm;
  unsigned int ready; /* rails whose QP is in RTS */
  struct ib_qp qps[IB_MAX_RAILS];
  struct ibv_mr *mrs[IB_MAX_RAILS];
  uint64_t *word; /* on a page of its own: what is read goes here, and nobody looks at it */
};

/* ---- the two kinds of comm --------------------------------------------------- */

struct ib_send_comm {
  struct ib_comm base;
  struct ib_ctrl_buf *ctrl_buf;
  struct ib_request *free;
  struct ib_send *unposted, **unposted_end; /* granted and not all posted, in order */
  uint64_t min_part;
  uint64_t separate_above[IB_MAX_RAILS]; /* larger messages have their immediate apart: adaptive routing */
  unsigned int next_qp;
  struct ib_tag_wait tag_wait;
  uint64_t closed_deadline; /* the peer said goodbye: by then what it will acknowledge is acknowledged. 0: it did not */
  bool peer_gone; /* and its side channel has ended */
  struct ib_cts_match match;
  struct ib_send sends[IB_MAX_SENDS];
  void *events[IB_MAX_SENDS]; /* the profiler's, ib_stats.c */
};

struct ib_recv_comm {
  struct ib_comm base;
  struct ib_ctrl_buf *ctrl_buf;
  struct ib_remote_ring remote_ring; /* the sender's ring */
  rail_result_t (*progress)(struct ib_comm *comm); /* ib_progress */
  uint32_t next_seq;         /* number of the next receive */
  uint32_t cts_unsignaled;   /* CTS writes since the last that will complete */
  struct ib_flush *flush;    /* NULL: none is needed */
  struct ib_request *free_flushes;
  struct ib_recv recvs[IB_MAX_RECVS];
  struct ib_request flushes[IB_MAX_FLUSHES];
  struct ib_mhandle *flushed[IB_MAX_FLUSHES]; /* what each of them reads from */
  void *events[IB_MAX_RECVS * IB_MAX_GROUP]; /* the profiler's, ib_stats.c */
};

static inline struct ib_send_comm *ib_send_comm_of(struct ib_comm *comm) {
  return rail_container_of(comm, struct ib_send_comm, base);
}
static inline struct ib_recv_comm *ib_recv_comm_of(struct ib_comm *comm) {
  return rail_container_of(comm, struct ib_recv_comm, base);
}

/* ---- what both kinds share: ib_comm.c ----------------------------------------- */

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

/* NCCL_IB_USE_INLINE=0: whatever the device would allow. */
void ib_limit_inline(struct ib_comm *comm);

/* NULL: out of memory. */
struct ib_ctrl_buf *ib_ctrl_buf_alloc(size_t *size);

/* `count` requests of `size` bytes each, beginning at `first`; returns the list of them. */
struct ib_request *ib_request_pool_init(void *first, size_t size, uint32_t count, struct ib_comm *comm);

/* A caller's request pointer; NULL after one line if it is none of ours. */
struct ib_request *ib_request_of(void *request, const char *call);

static inline void ib_outstanding_set(struct ib_comm *comm, uint32_t n) {
  atomic_store_explicit(&comm->outstanding, n, memory_order_relaxed);
  rail_stats_set(&comm->stats[IB_COMM_OUTSTANDING], n);
}

static inline void ib_request_begin(struct ib_request *r, uint32_t magic, uint32_t pending) {
  r->magic = magic;
  r->pending = pending;
  r->result = RAIL_OK;
  ib_outstanding_set(r->comm, atomic_load_explicit(&r->comm->outstanding, memory_order_relaxed) + 1);
}

/* Nothing is pending any more, and nothing of the caller's will be touched. */
static inline void ib_request_end(struct ib_request *r) {
  ib_outstanding_set(r->comm, atomic_load_explicit(&r->comm->outstanding, memory_order_relaxed) - 1);
}

/* ---- the caller's registrations ---------------------------------------- */

/* Is [data, data + size) memory that this connection may use? No memory at all needs no registration. */
static inline bool ib_mr_covers(const struct ib_comm *comm, const struct ib_mhandle *mr, const void *data,
                                uint64_t size) {
  if (!size) return true;
  if (!mr || mr->magic != IB_MHANDLE_MAGIC || mr->comm != comm) return false;
  uint64_t offset = (uintptr_t)data - mr->addr;
  return offset <= mr->size && size <= mr->size - offset;
}

/* `mr` may be NULL. */
static inline void ib_mr_hold(struct ib_mhandle *mr) {
  if (!mr) return;
  uint32_t n = atomic_load_explicit(&mr->outstanding, memory_order_relaxed);
  atomic_store_explicit(&mr->outstanding, n + 1, memory_order_relaxed);
}
static inline void ib_mr_release(struct ib_mhandle *mr) {
  if (!mr) return;
  uint32_t n = atomic_load_explicit(&mr->outstanding, memory_order_relaxed);
  atomic_store_explicit(&mr->outstanding, n - 1, memory_order_release);
}

/* One line about a buffer that cannot be used, and RAIL_BAD_ARGUMENT. */
rail_result_t ib_mr_refuse(const struct ib_comm *comm, const char *call, const struct ib_mhandle *mr, const void *data,
                           uint64_t size);

/* ---- ib_send.c, ib_recv.c ------------------------------------------------------- */

/* ib_send.c, ib_recv.c: everything of a comm but its base, which the caller fills in. `own` is allocated and
 * zeroed here so that setup can register it. side_fd is -1. */
struct ib_comm *ib_send_comm_alloc(void);
struct ib_comm *ib_recv_comm_alloc(void);
void ib_comm_free_kind(struct ib_comm *comm); /* memory only; verbs objects are gone */
/* All of it, with struct ib_verify in its last bytes; the CTS ring, or its copy, is at the beginning. */
void ib_comm_ctrl_memory(struct ib_comm *comm, void **memory, size_t *size);
/* The QPs are in RTS, the keys are known. A recv comm posts its receive WRs here, when its QPs are in INIT. */
rail_result_t ib_recv_comm_prepost(struct ib_comm *comm);
/* `progress`: ib_progress, for an irecv that finds the send queue full. */
void ib_recv_comm_start(struct ib_comm *comm, const struct ib_remote_ring *place,
                        rail_result_t (*progress)(struct ib_comm *comm));
void ib_send_comm_start(struct ib_comm *comm);

/* ib_close.c */
rail_result_t ib_close_send(void *send_comm);
rail_result_t ib_close_recv(void *recv_comm);
/* Everything of a comm, whole or half made. */
void ib_comm_destroy(struct ib_comm *comm);

/* ---- ib_flush.c ------------------------------------------------------------------ */

enum ib_flush_mode { IB_FLUSH_AUTO, IB_FLUSH_ALWAYS, IB_FLUSH_NEVER }; /* RAIL_IB_FLUSH */

/* Does a connection need flush QPs at all? */
bool ib_flush_wanted(enum ib_flush_mode mode, bool disabled, bool gpu_direct, bool dmabuf);

/* NULL in *flush where it is not wanted. Made by setup, step by step: RAIL_IN_PROGRESS calls again. */
rail_result_t ib_flush_open(struct ib_comm *comm, struct ib_flush **flush);
void ib_flush_close(struct ib_flush *flush); /* NULL is fine */
/* Kept by the recv comm; closed by ib_close.c, after the data QPs. */
void ib_recv_comm_set_flush(struct ib_comm *comm, struct ib_flush *flush);
struct ib_flush *ib_recv_comm_flush(const struct ib_comm *comm);

#endif
