/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests: fixed pools inside their comm, a free list each, which belong to
 * the caller's progress thread. A request is done when nothing is pending;
 * test hands it back.
 *
 * Both kinds begin with struct sk_request, whose magic tells them apart from
 * each other and from a pointer that was given back already.
 */
#ifndef SK_REQUEST_H
#define SK_REQUEST_H

#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_match.h"

#define SK_MAX_SENDS (RAIL_NET_MAX_REQUESTS * SK_MAX_GROUP)
#define SK_MAX_RECVS RAIL_NET_MAX_REQUESTS
_Static_assert(SK_MAX_SENDS <= SK_SUBMIT_SLOTS, "all of a comm's requests may be submitted at once");

#define SK_REQ_SEND 0x51455253u
#define SK_REQ_RECV 0x51455252u
#define SK_REQ_FREE 0x46455252u

struct sk_request {
  uint32_t magic;
  sk_pending pending; /* a send: its frames that are not in the kernel, and 1 until all are made; a receive: buffers */
  struct sk_comm *comm;
  struct sk_request *next_free;
};

/* A send. Life: waiting (for a grant, or for credit) → ready (to be announced) → announced → done. */
struct sk_send {
  struct sk_request base;
  struct sk_match_node node; /* in `waiting` */
  struct sk_send *next;      /* in `ready`, then in `bulk` */
  struct sk_send *later, *earlier; /* in `unsettled` */
  const uint8_t *data;
  uint64_t size;
  uint64_t framed; /* bytes that are in frames */
  uint32_t seq;
  bool granted;
  struct sk_mr *mr;
};

/* Where the bytes of one announced message go: a posted buffer, or a place in the ring of early ones. */
struct sk_sink {
  struct sk_sink *hash_next; /* of those with bytes to come in other frames, by seq */
  uint8_t *data;
  uint64_t size;     /* of the message */
  uint64_t promised; /* bytes whose headers were seen */
  uint64_t received;
  uint64_t edges;    /* of the pieces that are here: their ends' marks less their beginnings' (sk_recv.c) */
  uint32_t seq;
  bool early;  /* part of a struct sk_bounce, else of a struct sk_slot */
  bool hashed; /* its bytes come in more than one frame */
};

/* One buffer of an irecv. */
struct sk_slot {
  struct sk_sink sink;
  struct sk_match_node node; /* in `posted` until matched */
  struct sk_recv *recv;
  struct sk_slot *grant_next, *grant_prev; /* in `ungranted` until granted or matched */
  uint64_t capacity;
  bool ungranted, wanted; /* it is in that list; the list must be sent for it */
  struct sk_mr *mr;
};

struct sk_recv {
  struct sk_request base;
  uint32_t n;
  struct sk_slot slots[SK_MAX_GROUP];
};

struct sk_request_pool {
  struct sk_request *free;
};

/* `count` requests of `size` bytes each, beginning at `first`. */
void sk_request_pool_init(struct sk_request_pool *pool, void *first, size_t size, uint32_t count, struct sk_comm *comm);

static inline struct sk_request *sk_request_get(struct sk_request_pool *pool, uint32_t magic) {
  struct sk_request *r = pool->free;
  if (rail_unlikely(!r)) return NULL;
  pool->free = r->next_free;
  atomic_store_explicit(&r->comm->in_use, sk_comm_in_use(r->comm) + 1, memory_order_relaxed);
  r->magic = magic;
  return r;
}

static inline void sk_request_put(struct sk_request_pool *pool, struct sk_request *r) {
  r->magic = SK_REQ_FREE;
  r->next_free = pool->free;
  pool->free = r;
  atomic_store_explicit(&r->comm->in_use, sk_comm_in_use(r->comm) - 1, memory_order_relaxed);
}

static inline bool sk_request_is_done(const struct sk_request *r) {
  return atomic_load_explicit(&r->pending, memory_order_acquire) == 0;
}

/* A caller's request pointer; NULL after one line if it is none of ours. */
struct sk_request *sk_request_of(void *request, const char *call);

#endif
