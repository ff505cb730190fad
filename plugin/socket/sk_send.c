/* SPDX-License-Identifier: Apache-2.0
 *
 * A send from isend to its completion.
 *
 * isend looks for the grant of its buffer. With a grant, or small enough to go
 * ahead of it, the send is ready: pump announces it on stream 0 and cuts the
 * rest into chunks for whichever stream is free. It is done when its last byte
 * is in the kernel and its grant is here.
 */
#include "plugin/socket/sk_send.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "common/log.h"
#include "plugin/socket/sk_close.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_rejoin.h"

/* Most that one call writes: a call must return within a millisecond. */
#define PUMP_BYTES (2 * SK_IO_BYTES)
/* Pieces begin at multiples of this: NCCL's LL128 protocol needs lines of 128 bytes whole. */
#define PIECE_ALIGN 128
/* One place in stream 0's ring stays free for ERROR. */
#define OUT_LIMIT (SK_OUT_FRAMES - 1)

rail_result_t sk_send_create(const struct sk_comm_args *args, void **send_comm) {
  struct sk_send_comm *sc = calloc(1, sizeof *sc);
  *send_comm = NULL;
  if (!sc) {
    for (unsigned int i = 0; i < args->nstreams; i++) rail_sock_close(&(int){args->fds[i]});
    sk_rejoin_free(args->rejoin);
    goto no_memory;
  }
  /* GRANT frames are read whole: the buffer holds the largest more than twice. */
  if (sk_comm_init(&sc->base, args, 16 * 1024) != RAIL_OK) {
    sk_comm_destroy(&sc->base);
    free(sc);
    goto no_memory;
  }
  sk_request_pool_init(&sc->pool, sc->sends, sizeof sc->sends[0], SK_MAX_SENDS, &sc->base);
  sk_match_init(&sc->waiting);
  sk_match_init(&sc->grants);
  for (int i = 0; i < SK_MAX_SLOTS; i++) {
    sc->grant_store[i].node.next = sc->free_grants;
    sc->free_grants = &sc->grant_store[i].node;
  }
  sc->ready_end = &sc->ready;
  sc->bulk_end = &sc->bulk;
  sc->chunk = args->nstreams == 1 ? SK_MAX_FRAME : (uint32_t)sk_params.chunk / PIECE_ALIGN * PIECE_ALIGN;
  sc->first_len = sc->chunk;
  sc->eager_size = args->eager_size;
  sc->eager_count = args->eager_count;
  sk_close_register(&sc->base);
  *send_comm = sc;
  return RAIL_OK;

no_memory:
  RAIL_WARN("RailSocket: connect: out of memory for a connection");
  return RAIL_SYSTEM_ERROR;
}

/* ---- ready → announced → in frames ------------------------------------ */

static void make_ready(struct sk_send_comm *sc, struct sk_send *send) {
  send->queued = true;
  send->next = NULL;
  *sc->ready_end = send;
  sc->ready_end = &send->next;
}

static void queue_payload(struct sk_stream *s, struct sk_send *send, enum sk_frame_type type, uint64_t size,
                          uint32_t len) {
  struct sk_out *out = sk_stream_queue(s);
  sk_frame_encode(out->head, type, send->seq, size, len, send->node.tag);
  out->data = send->data + send->framed;
  out->len = len;
  out->unwritten = &send->unwritten;
  send->framed += len;
  send->unwritten++;
}

static void announce_ready(struct sk_send_comm *sc) {
  struct sk_stream *s = &sc->base.streams[0];
  while (sc->ready && s->out_count < OUT_LIMIT) {
    struct sk_send *send = sc->ready;
    sc->ready = send->next;
    if (!sc->ready) sc->ready_end = &sc->ready;
    send->seq = sc->next_seq++;
    send->announced = true;
    queue_payload(s, send, SK_FRAME_MSG, send->size, (uint32_t)RAIL_MIN(send->size, sc->first_len));
    if (send->framed == send->size) continue;
    send->next = NULL;
    *sc->bulk_end = send;
    sc->bulk_end = &send->next;
  }
}

/* The free stream takes the next chunk: a slow one just takes fewer. */
static void take_chunk(struct sk_send_comm *sc, struct sk_stream *s) {
  struct sk_send *send = sc->bulk;
  uint64_t rest = send->size - send->framed;
  queue_payload(s, send, SK_FRAME_DATA, send->framed, (uint32_t)RAIL_MIN(rest, sc->chunk));
  if (send->framed < send->size) return;
  sc->bulk = send->next;
  if (!sc->bulk) sc->bulk_end = &sc->bulk;
}

rail_result_t sk_send_pump(struct sk_send_comm *sc) {
  struct sk_comm *comm = &sc->base;
  uint64_t written = 0;
  bool moved = true;
  while (moved && written < PUMP_BYTES) {
    moved = false;
    announce_ready(sc);
    for (uint32_t k = 0; k < comm->nstreams; k++) {
      struct sk_stream *s = &comm->streams[(sc->next_stream + k) % comm->nstreams];
      if (!s->out_count && sc->bulk) take_chunk(sc, s);
      if (!s->out_count) continue;
      rail_result_t result = sk_stream_flush(s, &written);
      if (rail_unlikely(result == RAIL_REMOTE_ERROR)) return result;
      /* A frame that is only half out means that the socket is full, or nearly. */
      if (result == RAIL_OK && (s->out_count || sc->ready || sc->bulk)) moved = true;
    }
    if (comm->nstreams > 1) sc->next_stream = (sc->next_stream + 1) % comm->nstreams;
  }
  comm->moved += written;
  return RAIL_OK;
}

bool sk_send_is_idle(const struct sk_send_comm *sc) {
  if (sc->waiting.count || sc->ready || sc->bulk) return false;
  for (uint32_t i = 0; i < sc->base.nstreams; i++)
    if (sc->base.streams[i].out_count) return false;
  return true;
}

/* ---- grants ----------------------------------------------------------- */

/* The pair is made: the send may go, unless it is too large for its buffer. */
static rail_result_t accept_grant(struct sk_send_comm *sc, struct sk_send *send, uint64_t capacity) {
  if (rail_unlikely(send->size > capacity))
    return sk_comm_fail_size(&sc->base, send->seq, send->node.tag, send->size, capacity);
  send->granted = true;
  if (!send->queued) make_ready(sc, send);
  return RAIL_OK;
}

rail_result_t sk_send_on_grant(struct sk_send_comm *sc, uint32_t tag, uint64_t size) {
  struct sk_match_node *node = sk_match_take(&sc->waiting, tag);
  if (node) {
    struct sk_send *send = rail_container_of(node, struct sk_send, node);
    if (send->queued) sc->eager_used--;
    else sc->held_back--;
    return accept_grant(sc, send, size);
  }
  node = sc->free_grants;
  if (!node)
    return sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR, "protocol error: the peer granted more than %d buffers",
                        SK_MAX_SLOTS);
  sc->free_grants = node->next;
  node->tag = tag;
  rail_container_of(node, struct sk_grant, node)->size = size;
  sk_match_put(&sc->grants, node);
  return RAIL_OK;
}

/* A send may overtake its own grant, never an earlier send of its tag. */
static bool may_go_ahead(const struct sk_send_comm *sc, uint32_t tag, size_t size) {
  if (size > sc->eager_size || sc->eager_used >= sc->eager_count) return false;
  if (rail_likely(!sc->held_back)) return true;
  for (struct sk_match_node *n = sk_match_next(&sc->waiting, tag, NULL); n; n = sk_match_next(&sc->waiting, tag, n))
    if (!rail_container_of(n, struct sk_send, node)->queued) return false;
  return true;
}

static rail_result_t find_grant(struct sk_send_comm *sc, struct sk_send *send) {
  uint32_t tag = send->node.tag;
  struct sk_match_node *node = sk_match_take(&sc->grants, tag);
  if (node) {
    uint64_t capacity = rail_container_of(node, struct sk_grant, node)->size;
    node->next = sc->free_grants;
    sc->free_grants = node;
    return accept_grant(sc, send, capacity);
  }
  if (may_go_ahead(sc, tag, send->size)) {
    sc->eager_used++;
    make_ready(sc, send);
  } else {
    sc->held_back++;
  }
  sk_match_put(&sc->waiting, &send->node);
  return RAIL_OK;
}

/* ---- isend and its end ------------------------------------------------ */

RAIL_COLD static rail_result_t bad_send(const void *data, size_t size, void **request) {
  if (!request) RAIL_WARN("RailSocket: isend: request is NULL; allowed: the address of a pointer");
  else if (size > RAIL_NET_MAX_BYTES)
    RAIL_WARN("RailSocket: isend: size %zu; allowed: up to %llu", size, (unsigned long long)RAIL_NET_MAX_BYTES);
  else RAIL_WARN("RailSocket: isend: data %p with size %zu; allowed: NULL only with size 0", data, size);
  return RAIL_BAD_ARGUMENT;
}

static struct sk_send *new_send(struct sk_send_comm *sc, void *data, size_t size, int tag, struct sk_mr *mr) {
  struct sk_request *r = sk_request_get(&sc->pool, SK_REQ_SEND);
  if (!r) return NULL;
  struct sk_send *send = rail_container_of(r, struct sk_send, base);
  send->node.tag = (uint32_t)tag;
  send->data = data;
  send->size = size;
  send->framed = 0;
  send->unwritten = 0;
  send->seq = 0;
  send->queued = send->announced = send->granted = false;
  send->mr = mr;
  sk_mr_hold(mr);
  return send;
}

rail_result_t sk_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                       void **request) {
  (void)phandle;
  if (request) *request = NULL;
  struct sk_comm *comm = sk_comm_of(send_comm, SK_SEND_MAGIC, "isend");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!request || size > RAIL_NET_MAX_BYTES || (!data && size))) return bad_send(data, size, request);
  struct sk_send_comm *sc = rail_container_of(comm, struct sk_send_comm, base);
  if (!sk_comm_enter(comm)) return RAIL_BAD_USAGE;
  rail_result_t result = comm->error;
  struct sk_send *send = result == RAIL_OK ? new_send(sc, data, size, tag, mhandle) : NULL;
  if (rail_likely(send)) {
    *request = send;
    /* A failure from here on is for test to report: the request exists. */
    if (find_grant(sc, send) == RAIL_OK) {
      if (!send->queued || sk_send_pump(sc) != RAIL_OK) (void)sk_progress(comm);
    }
  }
  sk_comm_leave(comm);
  return result;
}

void sk_send_finish(struct sk_send_comm *sc, struct sk_send *send, int *sizes) {
  sc->base.messages++;
  sc->base.bytes += send->size;
  if (sizes) sizes[0] = send->size > INT_MAX ? INT_MAX : (int)send->size;
  sk_mr_release(send->mr);
  sk_request_put(&sc->pool, &send->base);
}
