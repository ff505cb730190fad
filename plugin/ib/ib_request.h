/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests: fixed pools inside their comm, which belong to the caller's
 * progress thread, and the two kinds of comm that hold them. A request is done
 * when nothing is pending; test hands it back.
 *
 * All kinds begin with struct ib_request, whose magic tells them apart from each
 * other and from a pointer that was given back already.
 */
#ifndef IB_REQUEST_H
#define IB_REQUEST_H

#include "common/obs/stats.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_flush.h"
#include "plugin/ib/ib_stats.h"

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
struct ib_own {
  struct ib_cts_ring ring; /* a sender's: the peer writes here. A receiver's: what it writes from */
  struct ib_verify verify;
};

/* Since when sends have found receives, but none of their tag. */
struct ib_stuck {
  uint64_t looked; /* when that was last seen; 0: none has */
  uint64_t waited; /* ns in which this process looked, and the peer's was alive */
  uint32_t tag, head, takes;
};

struct ib_send_comm {
  struct ib_comm base;
  struct ib_own *own;
  struct ib_request *free;
  struct ib_send *unposted, **unposted_end; /* granted and not all posted, in order */
  uint64_t min_part;
  uint64_t separate_above[IB_MAX_RAILS]; /* larger messages have their immediate apart: adaptive routing */
  unsigned int next_qp;
  struct ib_stuck stuck;
  uint64_t closed_deadline; /* the peer said goodbye: by then what it will acknowledge is acknowledged. 0: it did not */
  bool peer_gone; /* and its side channel has ended */
  struct ib_cts_match match;
  struct ib_send sends[IB_MAX_SENDS];
  void *events[IB_MAX_SENDS]; /* ib_profile.h */
};

struct ib_recv_comm {
  struct ib_comm base;
  struct ib_own *own;
  struct ib_cts_place place; /* the sender's ring */
  rail_result_t (*progress)(struct ib_comm *comm); /* ib_progress */
  uint32_t next_seq;         /* number of the next receive */
  uint32_t cts_unsignaled;   /* CTS writes since the last that will complete */
  struct ib_flush *flush;    /* NULL: none is needed */
  struct ib_request *free_flushes;
  struct ib_recv recvs[IB_MAX_RECVS];
  struct ib_request flushes[IB_MAX_FLUSHES];
  struct ib_mhandle *flushed[IB_MAX_FLUSHES]; /* what each of them reads from */
  void *events[IB_MAX_RECVS * IB_MAX_GROUP]; /* ib_profile.h */
};

static inline struct ib_send_comm *ib_send_comm_of(struct ib_comm *comm) {
  return rail_container_of(comm, struct ib_send_comm, base);
}
static inline struct ib_recv_comm *ib_recv_comm_of(struct ib_comm *comm) {
  return rail_container_of(comm, struct ib_recv_comm, base);
}

/* NCCL_IB_USE_INLINE=0: whatever the device would allow. */
void ib_limit_inline(struct ib_comm *comm);

/* NULL: out of memory. */
struct ib_own *ib_own_alloc(size_t *size);

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

#endif
