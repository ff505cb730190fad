/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection: its state, its requests, and the two kinds of comm. Created by ib_build.c during the handshake, used
 * by ib_send.c, ib_recv.c, ib_flush.c and ib_progress.c, destroyed by ib_close.c.
 *
 * Threads, as common/net/net_ops.h has them: isend, irecv, iflush and test run in the caller's progress thread; regMr,
 * deregMr and close in its service thread. Any thread of the plugin sets bits of `pending_work`: the watch thread, the
 * progress thread, the thread of ib_return.c that makes a returning QP ready; the progress thread clears those of
 * IB_COMM_WORK. The watch thread writes `peer_silent`. Each field names its thread where that is not the progress
 * thread.
 * isend, irecv, iflush and a test without a loss take no lock; ib_mr.c has one for `mhandles`, and one lock orders
 * stopping, dropping and replacing QPs (ib_comm.c).
 */
#ifndef IB_COMM_H
#define IB_COMM_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "common/base/sock.h"
#include "common/conn/first_error.h"
#include "common/conn/oob.h"
#include "common/conn/watch.h"
#include "common/net/net_memory.h"
#include "common/net/net_ops.h"
#include "common/obs/stats.h"
#include "plugin/ib/ib_cts.h"
#include "plugin/ib/ib_device.h"
#include "plugin/ib/ib_plan.h"
#include "plugin/ib/ib_qp.h"
#include "plugin/ib/ib_stats.h"
#include "plugin/ib/ib_wire.h"

#define IB_SEND_COMM_MAGIC RAIL_OBJECT_MAGIC(IB_TAG, 'S')
#define IB_RECV_COMM_MAGIC RAIL_OBJECT_MAGIC(IB_TAG, 'R')

/* ib_comm.pending_work: what the progress thread handles when it has polled and found nothing. Fault bits, which the
 * watch thread sets, and which end the connection: */
#define IB_COMM_QP_FATAL 1u      /* IBV_EVENT_QP_FATAL, QP_REQ_ERR or QP_ACCESS_ERR of one of its QPs */
#define IB_COMM_CQ_ERROR 2u      /* IBV_EVENT_CQ_ERR: completions were lost */
#define IB_COMM_DEVICE_FATAL 4u  /* IBV_EVENT_DEVICE_FATAL of the HCA of one of its rails */
/* Of the oob connection: common/conn/oob.h. */
#define IB_COMM_PEER_CLOSED RAIL_OOB_PEER_CLOSED
#define IB_COMM_PEER_GONE RAIL_OOB_PEER_GONE /* it acknowledges no retransmission any more */
#define IB_COMM_PEER_LOST RAIL_OOB_PEER_LOST
#define IB_COMM_PEER_SILENT RAIL_OOB_PEER_SILENT
#define IB_COMM_HOST_SILENT RAIL_OOB_HOST_SILENT
/* The others: */
#define IB_COMM_FAILOVER 8u              /* ib_failover_run has something to do */
#define IB_COMM_STALLED RAIL_OOB_STALLED /* the HCA is to be probed */
#define IB_COMM_WORK (IB_COMM_FAILOVER | IB_COMM_STALLED)

/* One local port in this connection. */
struct ib_rail {
  struct ib_port *port;
  struct ibv_cq *cq;
  struct ibv_comp_channel *channel; /* its events (ib_wait.c); NULL: it has none, and is polled */
  unsigned int unacknowledged;      /* events that were read */
  int gid_index;
  uint8_t gid[16];
  uint16_t lid; /* InfiniBand: at the handshake, as the peer's address vectors have it */
  struct ibv_mr *ctrl_mr; /* registration of ib_comm.ctrl_buf */
  struct ibv_mr *notice_mr; /* of ib_recv_comm.notices; NULL: there are none */
};

/* A registration as regMr returns it. */
struct ib_mr_entry;
struct ib_mhandle {
  struct rail_net_memory memory;
  LIST_ENTRY(ib_mhandle) link; /* in comm->mhandles, under the lock of ib_mr.c */
  struct ib_mr_entry *entries[IB_MAX_RAILS];
  uint32_t lkeys[IB_MAX_RAILS], rkeys[IB_MAX_RAILS]; /* by local rail */
};

/* The connection's registered memory, on pages of its own. */
struct ib_ctrl_buf {
  struct ib_cts_ring ring; /* a sender's: the peer writes here. A receiver's: the source of its CTS writes */
  uint32_t refused[IB_MAX_RECVS][IB_MAX_GROUP]; /* number of a receive whose message was too large (ib_two_sided.c) */
  struct ib_verify {       /* target and source of the handshake's first writes */
    uint64_t in[IB_MAX_QPS]; /* the peer's token, one per QP */
    uint64_t out;
  } verify;
  _Alignas(64) uint64_t flushed; /* a receiver's: target of the reads of flushes; its value is never used */
};
_Static_assert(offsetof(struct ib_ctrl_buf, refused) == sizeof(struct ib_cts_ring), "docs/protocol-ib.md says where");

/* What ib_wait.c has of a comm. */
struct ib_wait {
  struct ib_wait_set *set; /* its thread's; NULL: no test has found nothing yet */
  LIST_ENTRY(ib_comm) link; /* in it */
  _Atomic bool armed;      /* its CQs are to notify, and were empty after that */
};

struct ib_comm {
  uint32_t magic;
  bool sender;
  uint64_t max_bytes; /* of a buffer */
  const struct ib_device *device;
  struct ib_plan plan;
  unsigned int nrails, nremote_rails;
  struct ib_rail rails[IB_MAX_RAILS];
  struct ib_offer_rail remote_rails[IB_MAX_RAILS];
  struct ib_qp *qps; /* plan.nqps */
  struct ib_cm *cm;             /* ib_cm.c; NULL: QPs were set up without the RDMA CM */
  struct ib_failover *failover; /* ib_failover.h; NULL: the first QP that fails ends the connection */
  struct ib_ctrl_buf *ctrl_buf;

  char peer_text[RAIL_ADDR_TEXT]; /* address of the oob connection */
  uint64_t peer_process;  /* the same in all connections with one process */
  uint8_t sender_timeout, receiver_timeout; /* local ACK timeouts of each side's QPs */
  int oob_fd;             /* the watch thread's from ib_watch_add to rail_watch_remove */
  struct rail_watched *watched;

  _Atomic uint32_t pending_work;    /* IB_COMM_*: fault bits, and those of IB_COMM_WORK, which are no faults */
  _Atomic bool peer_silent;         /* the watch thread's: PINGs are unanswered */
  _Atomic bool stopped;             /* deregMr or close stopped the QPs: nothing may be posted any more */
  _Atomic uint64_t drain_deadline;  /* of ib_comm_drain (ib_progress.c), of all calls together; 0: not called yet */
  bool forked;                      /* in a child of fork, and thus stopped: its verbs objects are the parent's */
  struct rail_first_error error;
  uint64_t last_progress;           /* rail_now_ns() of the last good completion, at a coarse grain; for error lines */
  uint32_t completions;             /* since last_progress was set */
  uint32_t sample_above;            /* after more completions than this it is set; else when a poll finds none */
  bool last_poll_empty;             /* the last poll found nothing, though there were completions since last_progress */
  bool event_driven;                /* all rails have a channel: a test that finds nothing may wait (ib_wait.c) */
  uint32_t test_has_more;           /* not 0: a test does more than to poll rail 0: it polls other rails, waits for an
                                       event, checks turns (SEND protocol), looks for silent paths */
  struct ib_wait wait;
  uint64_t probe_deadline;          /* the HCA must complete something by then; 0: no limit yet */
  LIST_HEAD(, ib_mhandle) mhandles; /* under the lock of ib_mr.c */
  _Atomic uint32_t outstanding;     /* requests given out and not done: written by the progress thread */
  uint64_t *stats;                  /* of the group "comm"; never NULL */
  bool stats_private;               /* not in the shared page */
  rail_profiler_fn profiler;
  rail_result_t (*progress)(struct ib_comm *comm); /* ib_progress: for the files that it calls itself */
};

/* Where the peer's control buffer is, which begins with the CTS ring. */
struct ib_remote_ring {
  uint64_t addr;
  uint32_t rkeys[IB_MAX_RAILS]; /* by the peer's rail */
};

/* ---- requests --------------------------------------------------------------
 *
 * Fixed pools inside their comm, used by the progress thread only. A request is done when nothing is pending. It is
 * freed by the test that reports it done, in that thread, and one that no test has reported done with the comm: by the
 * thread that closes it, or, where it lingers (ib_close.c), by the watch thread. All kinds begin with struct
 * ib_request, whose magic tells them apart from each other and from a pointer that was returned already.
 */

#define IB_REQ_FREE RAIL_OBJECT_MAGIC(IB_TAG, 0)
#define IB_REQ_SEND RAIL_OBJECT_MAGIC(IB_TAG, 1) /* outstanding: from here to the last */
#define IB_REQ_RECV RAIL_OBJECT_MAGIC(IB_TAG, 2)
#define IB_REQ_FLUSH RAIL_OBJECT_MAGIC(IB_TAG, 3)

struct ib_request {
  uint32_t magic;
  uint32_t pending;     /* 0: done. Else a send's signaled writes, and 1 until all is posted; a receive's buffers; a
                         * flush's reads */
  rail_result_t result; /* an error of this request alone: the connection lives */
  struct ib_comm *comm;
  SLIST_ENTRY(ib_request) free; /* in its pool */
};
SLIST_HEAD(ib_request_pool, ib_request);

static inline bool ib_request_is_outstanding(const struct ib_request *r) {
  return r->magic - IB_REQ_SEND <= IB_REQ_FLUSH - IB_REQ_SEND;
}

/* How far the part is posted that is begun. All of it goes over one QP. */
struct ib_cursor {
  uint64_t body_posted; /* bytes of its body, or one of these: */
  uint16_t qp;          /* over which it goes; of a part that is begun alone */
};
#define IB_BETWEEN_PARTS 0u /* none is begun: of each part all is posted, or nothing */
/* A QP has refused the first writes: some may be posted, and no completion tells how far. The QP is lost, and the part
 * begins again. */
#define IB_PERHAPS_POSTED 1u

static inline bool ib_is_begun(const struct ib_cursor *cursor) { return cursor->body_posted != IB_BETWEEN_PARTS; }

/* Place and size of a part, where parts are not equal (ib_stripe.h). */
struct ib_share {
  uint64_t offset, size;
  uint16_t qp;
};

/* A send. Life: CTS matched → (with the SEND protocol: waits for its turn) → (in `unposted`) → posted → done. */
struct ib_send {
  struct ib_request base;
  STAILQ_ENTRY(ib_send) link; /* in `unposted` */
  const uint8_t *data;
  uint64_t size;
  uint64_t length;       /* bytes that are written: size, or 0 if that is more than the buffer holds */
  struct ib_cursor cursor; /* of `next_part` */
  uint16_t first_place;  /* part i goes over QP live[first_place + i], modulo their number; or IB_QP_BY_SHARE */
  uint16_t nparts, next_part; /* next_part: the first that is not all posted */
  uint16_t number;       /* of the request: its place in `sends` */
  const struct ib_cts *buffer;
  struct ib_mhandle *mr;
  struct ib_share *shares; /* of its parts, with striping; NULL: without, where parts are equal */
};
#define IB_QP_BY_SHARE 0x8000u /* first_place: the share of a part names its QP. Above all numbers of QPs */

/* From here on its `pending` is signaled writes, or SENDs, that have not completed, and nothing else. */
static inline void ib_send_all_posted(struct ib_send *send) { send->base.pending--; }

/* One buffer of an irecv. */
struct ib_buffer {
  uint64_t capacity, arrived;
  uint32_t tag;
  uint16_t parts, left; /* of its message; parts is 0 until the first has arrived, or with the SEND protocol irecv's */
  struct ib_mhandle *mr;
};

/* A receive. Its index in the table is its slot in the CTS ring. */
struct ib_recv {
  struct ib_request base;
  uint32_t n;
  struct ib_buffer buffers[IB_MAX_GROUP];
};

/* How long isend has found the same in the CTS ring, and no buffer to send to. */
struct ib_match_timer {
  uint64_t last_seen; /* 0: it does not run */
  uint64_t waited;    /* ns in which this process called isend and the peer's process was alive */
  uint32_t tag, next, takes;
};

/* The QPs that flushes read over, one per rail, each connected to itself. */
struct ib_flush {
  struct ib_comm *comm;
  unsigned int ready;              /* rails whose QP was in RTS when the connection was made */
  uint8_t rails;                   /* one bit per rail that is not lost */
  uint8_t waiting[IB_MAX_FLUSHES]; /* one bit per rail whose read has not completed */
  struct ib_qp qps[IB_MAX_RAILS];
  struct ib_qp next[IB_MAX_RAILS]; /* of a rail that comes back: not in use before it is in RTS */
};

/* ---- the two kinds of comm --------------------------------------------------- */

struct ib_send_comm {
  struct ib_comm base;
  struct ib_request_pool free;
  STAILQ_HEAD(, ib_send) unposted; /* matched and not all posted, in order */
  uint64_t min_part;
  bool rotates_qps;                      /* parts are equal, over the next QPs: neither `stripe` nor `two_sided` */
  uint64_t separate_above[IB_MAX_RAILS]; /* larger messages end with a write of their own: adaptive routing */
  uint64_t whole_below[IB_MAX_RAILS];    /* smaller messages are one write, if they have one part */
  unsigned int next_qp;                  /* in live */
  unsigned int nlive, most_parts;        /* of a message */
  struct ib_qp *live[IB_MAX_QPS];        /* QPs that are in use */
  struct ib_stripe *stripe;              /* ib_stripe.h; NULL: parts are equal */
  struct ib_two_sided *two_sided;        /* ib_two_sided.c; NULL: messages are written */
  struct ib_posted *posted;              /* of all QPs: the entries of ib_qp.posted */
  struct ib_cursor resend;               /* of the part that is being resent */
  uint16_t resend_of;                    /* the lost QP whose it was */
  struct ib_match_timer tag_timer;       /* receives are posted, none of the send's tag */
  struct ib_match_timer torn_timer;      /* the next receive is torn */
  struct ib_match_timer turn_timer;      /* all sends wait for one before them (ib_two_sided.c) */
  uint32_t unmatched_calls;              /* isends that found no receive of their tag */
  uint64_t closed_deadline; /* after GOODBYE: the peer acknowledges retransmissions until then; 0: no GOODBYE */
  bool peer_gone;           /* IB_COMM_PEER_GONE is in closed_deadline */
  struct ib_cts_match match;
  struct ib_send sends[IB_MAX_SENDS];
  void *profiler_events[IB_MAX_SENDS]; /* ib_stats.c */
};

struct ib_recv_comm {
  struct ib_comm base;
  struct ib_remote_ring remote_ring;
  uint32_t next_seq;         /* number of the next receive */
  struct ib_qp *cts_qp;      /* carries CTS writes; NULL: the one that did is lost, and not yet DOWN */
  unsigned int cts_qp_index; /* of the QP that carries them, or did */
  uint32_t cts_unsignaled;   /* CTS writes since the last signaled one */
  struct ibv_send_wr cts_wr; /* the next CTS write over it, but for slot, length and flags */
  struct ibv_sge cts_sge;    /* of that */
  uint32_t cts_resend;        /* one bit per receive whose CTS is to be resent */
  unsigned int next_qp;      /* where the next buffer's first part is received (ib_two_sided.c) */
  struct ibv_recv_wr recv_wrs[IB_RECV_BATCH]; /* a chain: the receive WRs that are posted again next */
  struct ib_flush *flush;    /* NULL: no flush is needed */
  struct ib_notice_wire *notices; /* ib_notice.c: IB_RECV_DEPTH of each QP; NULL: immediates report parts */
  struct ib_request_pool free_flushes;
  struct ib_recv recvs[IB_MAX_RECVS];
  struct ib_request flushes[IB_MAX_FLUSHES];
  struct ib_mhandle *flushed[IB_MAX_FLUSHES];  /* what each of them reads from */
  void *profiler_events[IB_MAX_RECVS * IB_MAX_GROUP]; /* ib_stats.c */
};

static inline struct ib_send_comm *ib_send_comm_of(struct ib_comm *comm) {
  return rail_container_of(comm, struct ib_send_comm, base);
}
static inline struct ib_recv_comm *ib_recv_comm_of(struct ib_comm *comm) {
  return rail_container_of(comm, struct ib_recv_comm, base);
}

/* ---- what both kinds share: ib_comm.c ----------------------------------------- */

/* A caller's pointer; NULL after one line if it is not an open comm. kind_magic 0: either kind. */
static inline struct ib_comm *ib_comm_of(void *arg, uint32_t kind_magic, const char *call) {
  return rail_net_comm_of("RailIB", arg, IB_SEND_COMM_MAGIC, IB_RECV_COMM_MAGIC, kind_magic, call);
}

/* The first error ends the connection; later calls of isend, irecv, test return it. Returns it. */
static inline rail_result_t ib_comm_fail(struct ib_comm *comm, rail_result_t result) {
  (void)rail_first_error_set(&comm->error, result);
  return rail_first_error(&comm->error);
}

/* Nothing may be posted any more, and later calls say so, unless there was an error before. True: this call stopped it.
 * What is stopped has an error, so nothing is logged of what its QPs do then. */
static inline bool ib_comm_set_stopped(struct ib_comm *comm) {
  (void)ib_comm_fail(comm, RAIL_BAD_USAGE);
  return !atomic_exchange(&comm->stopped, true);
}

/* How long a closed receiver answers what its sender's HCA retransmits (RAIL_IB_LINGER). */
uint64_t ib_comm_linger_ms(const struct ib_comm *comm);
/* All QPs to ERR: nothing new begins. Any thread; idempotent. */
void ib_comm_stop(struct ib_comm *comm);
/* One QP to ERR, by the progress thread, while another may stop them all. */
void ib_comm_stop_qp(struct ib_comm *comm, unsigned int qp);
/* Destroys a QP of the comm that is lost; its place stays. */
void ib_comm_drop_qp(struct ib_qp *qp);
/* Moves `next`, which is in RTS, to the place of a QP that was dropped. False: the comm is stopped. */
bool ib_comm_replace_qp(struct ib_comm *comm, struct ib_qp *qp, struct ib_qp *next);

/* Sets what both kinds need before the handshake: magic, ctrl_buf (zeroed), oob_fd -1. False: out of memory. */
bool ib_comm_init(struct ib_comm *comm, uint32_t magic);
/* NCCL_IB_USE_INLINE=0: no inline data, whatever the device allows. */
void ib_comm_limit_inline(struct ib_comm *comm);

/* Fills the pool with `count` requests of `size` bytes each, beginning at `first`. */
void ib_request_pool_init(struct ib_request_pool *pool, void *first, size_t size, uint32_t count,
                          struct ib_comm *comm);

/* Release: who sees that nothing is outstanding sees what was counted before. */
static inline void ib_outstanding_set(struct ib_comm *comm, uint64_t *stats, uint32_t n) {
  atomic_store_explicit(&comm->outstanding, n, memory_order_release);
  rail_stats_set(&stats[IB_COMM_OUTSTANDING], n);
}

static inline void ib_request_begin(struct ib_comm *comm, struct ib_request *r, uint32_t magic, uint32_t pending) {
  r->magic = magic;
  r->pending = pending;
  r->result = RAIL_OK;
  ib_outstanding_set(comm, comm->stats, atomic_load_explicit(&comm->outstanding, memory_order_relaxed) + 1);
}

/* Nothing of a request is pending any more, and none of the caller's memory will be touched for it. `stats`:
 * comm->stats, which callers have read already. */
static inline void ib_outstanding_drop(struct ib_comm *comm, uint64_t *stats) {
  ib_outstanding_set(comm, stats, atomic_load_explicit(&comm->outstanding, memory_order_relaxed) - 1);
}

/* One line about a buffer that cannot be used, and RAIL_BAD_ARGUMENT. */
rail_result_t ib_comm_refuse_buffer(const struct ib_comm *comm, const char *call, const void *mhandle,
                                    const void *data, uint64_t size);

/* ---- registrations: ib_mr.c -------------------------------------------------------
 *
 * Those of a connection, and below them the cache of each HCA's protection domain: page-rounded, reference counted,
 * found by range, access and dma-buf, each registered once. Used by service threads only, never by the data path.
 */

rail_result_t ib_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle);
rail_result_t ib_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
rail_result_t ib_dereg_mr(void *comm, void *mhandle);
/* Frees all handles that the comm's caller did not deregister; the QPs are destroyed. */
void ib_mhandles_free(struct ib_comm *comm);

struct ib_mr_key {
  uint64_t addr, size; /* the caller's */
  int access;          /* IBV_ACCESS_* */
  int fd;              /* -1: ordinary memory */
  uint64_t offset;     /* in the dma-buf */
};

/* Deregisters what is left, when the HCA is about to be closed. */
void ib_mr_cache_close(struct ib_hca *hca);

/* One reference. Logs a failure with range, device and what to check (memlock, peer memory module, dma-buf). */
rail_result_t ib_mr_cache_get(struct ib_hca *hca, const struct ib_mr_key *key, struct ib_mr_entry **entry);
/* The last reference deregisters. `entry` is unusable afterwards either way. */
void ib_mr_cache_put(struct ib_hca *hca, struct ib_mr_entry *entry);
struct ibv_mr *ib_mr_entry_mr(const struct ib_mr_entry *entry);
/* For tests. */
unsigned int ib_mr_cache_count(struct ib_hca *hca);

/* ---- the watch thread: ib_watch.c -------------------------------------------------- */

extern struct rail_watch ib_watch;

/* Gives the comm's oob connection to the watch thread. Activity is read from the comm's counters. HCA events find the
 * comm in qp_context of all of its QPs and cq_context of its CQs. rail_watch_remove takes it back. */
rail_result_t ib_watch_add(struct ib_comm *comm);

/* ---- the end of a connection: ib_close.c ---------------------------------------- */

rail_result_t ib_close_send(void *send_comm);
rail_result_t ib_close_recv(void *recv_comm);
/* Everything of a comm, whole or half made. */
void ib_comm_destroy(struct ib_comm *comm);
/* Frees the comm's memory; its verbs objects are destroyed. */
void ib_comm_free(struct ib_comm *comm);

#endif
