/* SPDX-License-Identifier: Apache-2.0
 *
 * A send from isend to its completion.
 *
 * isend looks for the grant of its buffer. With a grant, or small enough to go
 * ahead of it, the send is ready: pump announces it on stream 0 and cuts the
 * rest into chunks for whichever stream is free. It is done when its last byte
 * is in the kernel.
 *
 * Small sends behind others that are outstanding are not written one by one:
 * they stand in the stream until the caller tests, or until they are many.
 */
#include "plugin/socket/sk_send.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "plugin/socket/sk_dial.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_profile.h"
#include "plugin/socket/sk_rail.h"
#include "plugin/socket/sk_watch.h"
#include "plugin/socket/sk_zerocopy.h"

/* Most that one call writes: a call must return within a millisecond. */
#define PUMP_BYTES (2 * SK_IO_BYTES)
/* Pieces begin at multiples of this: NCCL's LL128 protocol needs lines of 128 bytes whole. */
#define PIECE_ALIGN 128
#define LATER_BYTES (8 * 1024)   /* payloads up to here may wait for others */
#define LATER_FROM 4             /* when so many requests are outstanding, which the caller will test */
#define NOW_BYTES (32 * 1024)    /* but not when this much has come together */
#define SPREAD_BYTES (32 * 1024) /* with FAILOVER: payloads from here on go to the stream that is free first */
#define UNREAD_PUMPS 64          /* an errand to the control stream, even if nothing is expected from there */

rail_result_t sk_send_create(const struct sk_comm_args *args, void **send_comm) {
  struct sk_send_comm *sc = calloc(1, sizeof *sc);
  *send_comm = NULL;
  if (!sc) {
    for (unsigned int i = 0; i < args->nstreams; i++) rail_sock_close(&(int){args->fds[i]});
    sk_reconnect_free(args->reconnect);
    goto no_memory;
  }
  /* GRANT frames are read whole: the buffer holds the largest more than twice. */
  sc->flying_cap = args->eager_count + SK_MAX_SENDS;
  sc->flying_store = calloc(sc->flying_cap, sizeof *sc->flying_store);
  if (sk_comm_init(&sc->base, args, 32 * 1024) != RAIL_OK || !sc->flying_store) {
    sk_comm_destroy(&sc->base);
    sk_send_release(sc);
    free(sc);
    goto no_memory;
  }
  sk_request_pool_init(&sc->pool, sc->sends, sizeof sc->sends[0], SK_MAX_SENDS, &sc->base);
  sk_match_init(&sc->waiting);
  sk_match_init(&sc->grants);
  sk_match_init(&sc->flying);
  for (int i = 0; i < SK_MAX_SLOTS; i++) {
    sc->grant_store[i].node.next = sc->free_grants;
    sc->free_grants = &sc->grant_store[i].node;
  }
  sc->ready_end = &sc->ready;
  sc->bulk_end = &sc->bulk;
  sc->chunk = args->nstreams == 1 ? SK_MAX_FRAME : (uint32_t)sk_params.chunk / PIECE_ALIGN * PIECE_ALIGN;
  sc->eager_size = args->eager_size;
  sc->eager_count = args->eager_count;
  sc->eager_bytes = args->eager_bytes & ~63u;
  sk_zerocopy_init(&sc->base, args);
  sk_comm_attach(&sc->base);
  sk_watch_add(&sc->base);
  *send_comm = sc;
  return RAIL_OK;

no_memory:
  RAIL_WARN("RailSocket: connect: out of memory for a connection");
  return RAIL_SYSTEM_ERROR;
}

void sk_send_release(struct sk_send_comm *sc) {
  free(sc->flying_store);
  sc->flying_store = NULL;
}

static void make_ready(struct sk_send_comm *sc, struct sk_send *send) {
  send->next = NULL;
  send->seq = sc->next_seq++;
  *sc->ready_end = send;
  sc->ready_end = &send->next;
}

/* ---- ready → announced → in frames ------------------------------------ */

/* The last of its frames is made: the request is done when they are written, but not before the peer has accepted the
 * connection. It may still refuse it, and a caller that has no request left would never hear of that. (With FAILOVER a
 * frame is over when it has arrived, which says as much.) */
static void all_framed(struct sk_send_comm *sc, struct sk_send *send) {
  rail_stats_add(&sc->base.counts.comm[SK_COMM_MESSAGES], 1);
  rail_stats_add(&sc->base.counts.comm[SK_COMM_SENT_BYTES], send->size);
  if (rail_unlikely(sc->base.unanswered && !sc->base.rails)) {
    send->next = sc->unaccepted;
    sc->unaccepted = send;
    return;
  }
  sk_pending_drop(&send->base.pending);
}

void sk_send_welcomed(struct sk_send_comm *sc, struct sk_stream *s) {
  struct sk_send *send = sc->unaccepted, *next;
  if (s->welcomed) return; /* it has come back */
  s->welcomed = true;
  if (--sc->base.unanswered) return;
  sc->base.hold = false;
  if (!sc->base.rails) {
    sk_reconnect_free(sc->base.reconnect);
    sc->base.reconnect = NULL;
  }
  sc->unaccepted = NULL;
  for (; send; send = next) {
    next = send->next;
    sk_pending_drop(&send->base.pending);
  }
}

/* One frame with `len` bytes of the message from `offset`. A frame is over when it is in the kernel, or, if it may have
 * to go another way, when it has arrived. */
static void queue_frame(struct sk_send_comm *sc, struct sk_stream *s, struct sk_send *send, enum sk_frame_type type,
                        uint64_t offset, uint32_t len) {
  const uint8_t *data = send->data + offset;
  uint32_t copied = len <= SK_COPY_BYTES ? len : 0;
  bool failover = sc->base.rails != NULL;
  sk_pending *pending = failover ? &sk_rail_of(&sc->base, s)->queued : &send->base.pending;
  uint8_t *head = sk_stream_queue(s, SK_HEAD + copied, data, len - copied, pending);
  if (type == SK_FRAME_MSG)
    sk_frame_encode(head, type, send->granted ? SK_FRAME_GRANTED : 0, send->seq, send->size, len, send->node.tag);
  else sk_frame_encode(head, type, 0, send->seq, offset, len, send->node.tag);
  if (copied) memcpy(head + SK_HEAD, data, copied);
  rail_stats_add(&s->counts.stream[SK_STREAM_BYTES], len);
  rail_stats_add(&s->counts.stream[SK_STREAM_CHUNKS], 1);
  if (rail_unlikely(failover)) sk_rail_remember(&sc->base, s, send->size ? send : NULL, offset, len);
}

static void queue_payload(struct sk_send_comm *sc, struct sk_stream *s, struct sk_send *send, enum sk_frame_type type,
                          uint32_t len) {
  queue_frame(sc, s, send, type, send->framed, len);
  send->framed += len;
  sk_pending_add(&send->base.pending);
}

static bool can_announce(struct sk_send_comm *sc, const struct sk_stream *main_stream) {
  if (rail_likely(!sc->base.rails)) return sk_stream_has_room(main_stream);
  for (uint32_t i = 0; i < sc->base.nstreams; i++) {
    const struct sk_stream *s = &sc->base.streams[i];
    bool up = sc->base.rails[i].state == SK_RAIL_UP;
    if (up && !(sk_stream_has_room(s) && sk_rail_has_room(&sc->base, s))) return false;
  }
  return true;
}

/* A payload that is worth a call of its own waits for the first stream that is free, as its later chunks do: bound to
 * the main stream, messages of one chunk would leave all other rails idle. */
static bool goes_anywhere(const struct sk_send_comm *sc, const struct sk_send *send) {
  return rail_unlikely(sc->base.rails != NULL) && send->size >= SPREAD_BYTES;
}

static void announce_ready(struct sk_send_comm *sc) {
  struct sk_stream *s = sk_main_stream(&sc->base);
  while (sc->ready && can_announce(sc, s)) {
    struct sk_send *send = sc->ready;
    sc->ready = send->next;
    if (!sc->ready) sc->ready_end = &sc->ready;
    bool anywhere = goes_anywhere(sc, send);
    if (!anywhere) queue_payload(sc, s, send, SK_FRAME_MSG, (uint32_t)RAIL_MIN(send->size, sc->chunk));
    if (rail_unlikely(sc->base.rails != NULL)) sk_rail_announce(sc, anywhere ? NULL : s, send);
    if (send->framed == send->size) {
      all_framed(sc, send);
      continue;
    }
    send->next = NULL;
    *sc->bulk_end = send;
    sc->bulk_end = &send->next;
  }
}

/* The free stream takes the next chunk: a slow one just takes fewer. */
static void take_chunk(struct sk_send_comm *sc, struct sk_stream *s) {
  struct sk_send *send = sc->bulk;
  uint64_t rest = send->size - send->framed;
  queue_payload(sc, s, send, SK_FRAME_DATA, (uint32_t)RAIL_MIN(rest, sc->chunk));
  if (send->framed < send->size) return;
  sc->bulk = send->next;
  if (!sc->bulk) sc->bulk_end = &sc->bulk;
  all_framed(sc, send);
}

/* What a lost stream had not delivered goes before anything new. */
static void take_lost(struct sk_send_comm *sc, struct sk_stream *s) {
  struct sk_piece piece;
  while (sk_stream_has_room(s) && sk_rail_has_room(&sc->base, s) && s->out_bytes < sc->chunk &&
         sk_rail_next_resend(sc, &piece)) {
    queue_frame(sc, s, piece.send, SK_FRAME_DATA, piece.offset, piece.len);
    rail_stats_add(&sc->base.counts.comm[SK_COMM_RETRIES], 1);
  }
}

rail_result_t sk_send_pump(struct sk_send_comm *sc) {
  struct sk_comm *comm = &sc->base;
  uint64_t written = 0;
  bool moved = true;
  sc->unread++;
  while (moved && written < PUMP_BYTES) {
    moved = false;
    announce_ready(sc);
    for (uint32_t k = 0; k < comm->nstreams; k++) {
      struct sk_stream *s = &comm->streams[(sc->next_stream + k) % comm->nstreams];
      if (rail_unlikely(comm->rails != NULL)) {
        if (s->fd < 0 || s->out_errno) continue; /* gone, or about to be: first what it has brought is read */
        take_lost(sc, s);
      }
      if (rail_unlikely(s->zerocopy != NULL)) sk_zerocopy_reap(s);
      if (!s->out_count && sc->bulk && sk_rail_has_room(comm, s)) take_chunk(sc, s);
      if (!s->out_count || rail_unlikely(comm->hold)) continue;
      rail_result_t result = sk_stream_flush(s, &written);
      if (rail_unlikely(result == RAIL_REMOTE_ERROR && !comm->rails)) return result;
      /* A frame that is only half out means that the socket is full, or nearly. */
      if (result == RAIL_OK && (s->out_count || sc->ready || sc->bulk)) moved = true;
    }
    if (comm->nstreams > 1) sc->next_stream = (sc->next_stream + 1) % comm->nstreams;
  }
  comm->more = moved;
  return RAIL_OK;
}

bool sk_send_is_idle(const struct sk_send_comm *sc) {
  if (sc->waiting.count || sc->ready || sc->bulk || sc->unsettled || sc->unaccepted) return false;
  for (uint32_t i = 0; i < sc->base.nstreams; i++)
    if (sc->base.streams[i].out_count) return false;
  return true;
}

void sk_send_read_soon(struct sk_send_comm *sc) { sc->unread = UNREAD_PUMPS; }

bool sk_send_should_read(const struct sk_send_comm *sc) {
  return sc->unread >= UNREAD_PUMPS || !sk_send_is_idle(sc);
}

/* ---- grants ----------------------------------------------------------- */

/* The table has room: there are never more of them than credit counts plus sends, which sk_send_on_control checks. */
static void remember_flying(struct sk_send_comm *sc, const struct sk_send *send, bool met) {
  struct sk_flying *f = &sc->flying_store[(sc->flying_first + sc->flying_count++) % sc->flying_cap];
  f->seq = send->seq;
  f->met = met;
  f->node.tag = send->node.tag;
  if (!met) sk_match_put(&sc->flying, &f->node);
}

/* The pair is made: the send may go, unless it is too large for its buffer. */
static rail_result_t accept_grant(struct sk_send_comm *sc, struct sk_send *send, uint64_t capacity) {
  if (rail_unlikely(send->size > capacity))
    return sk_comm_fail_size(&sc->base, sc->next_seq, send->node.tag, send->size, capacity);
  send->granted = true;
  rail_stats_add(&sc->base.counts.comm[SK_COMM_GRANTED_MESSAGES], 1);
  make_ready(sc, send);
  if (rail_unlikely(sc->base.rails != NULL)) remember_flying(sc, send, true);
  return RAIL_OK;
}

rail_result_t sk_send_on_grant(struct sk_send_comm *sc, uint32_t tag, uint64_t size) {
  /* Made before a message of that tag arrived there that had gone ahead: the two belong together, and have met. */
  struct sk_match_node *node = sk_match_take(&sc->flying, tag);
  if (node) {
    rail_container_of(node, struct sk_flying, node)->met = true;
    return RAIL_OK;
  }
  node = sk_match_take(&sc->waiting, tag);
  if (node) return accept_grant(sc, rail_container_of(node, struct sk_send, node), size);
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

/* ---- messages that go ahead of their buffer ---------------------------- */

static bool has_credit(const struct sk_send_comm *sc, uint64_t size) {
  const struct sk_credit *c = &sc->credit;
  return size <= sc->eager_size && c->count_used - c->count_freed < sc->eager_count &&
         c->bytes_used - c->bytes_freed + sk_credit_of(size) <= sc->eager_bytes;
}

/* What the peer had seen when it wrote its latest report met its buffer then, or lies there as early. Within a tag
 * they are forgotten in the order of the table, so the oldest of its tag is the one to take. */
static void forget_seen(struct sk_send_comm *sc, uint32_t seen) {
  while (sc->flying_count) {
    struct sk_flying *f = &sc->flying_store[sc->flying_first];
    if ((int32_t)(f->seq - seen) >= 0) break;
    if (!f->met) sk_match_take(&sc->flying, f->node.tag);
    sc->flying_first = (sc->flying_first + 1) % sc->flying_cap;
    sc->flying_count--;
  }
}

static void go_ahead(struct sk_send_comm *sc, struct sk_send *send) {
  sc->credit.bytes_used += sk_credit_of(send->size);
  sc->credit.count_used++;
  rail_stats_add(&sc->base.counts.comm[SK_COMM_EAGER_MESSAGES], 1);
  make_ready(sc, send);
  remember_flying(sc, send, false);
}

/* All grants so far are void, because some may have been lost: those that follow are for every buffer that is
 * posted. */
void sk_send_reset_grants(struct sk_send_comm *sc) {
  for (unsigned int b = 0; b < SK_MATCH_BUCKETS; b++)
    while (sc->grants.first[b]) {
      struct sk_match_node *node = sk_match_take(&sc->grants, sc->grants.first[b]->tag);
      node->next = sc->free_grants;
      sc->free_grants = node;
    }
  sk_match_init(&sc->flying);
  for (uint32_t i = 0; i < sc->flying_count; i++) {
    struct sk_flying *f = &sc->flying_store[(sc->flying_first + i) % sc->flying_cap];
    f->met = false;
    sk_match_put(&sc->flying, &f->node);
  }
}

/* There is credit again: what waited for it goes, in the order of its tag. */
static void release_waiting(struct sk_send_comm *sc) {
  for (unsigned int b = 0; b < SK_MATCH_BUCKETS && sc->waiting.count; b++) {
    struct sk_match_node *node = sc->waiting.first[b], *next;
    for (; node; node = next) {
      struct sk_send *send = rail_container_of(node, struct sk_send, node);
      next = node->next;
      if (sk_match_next(&sc->waiting, node->tag, NULL) != node || !has_credit(sc, send->size)) continue;
      sk_match_take(&sc->waiting, node->tag);
      go_ahead(sc, send);
    }
  }
}

rail_result_t sk_send_on_control(struct sk_send_comm *sc, const struct sk_frame *frame) {
  struct sk_credit *c = &sc->credit;
  uint32_t count = frame->tag;
  /* With FAILOVER the last report comes over all streams, and may overtake others. */
  if (rail_unlikely(sc->base.rails != NULL) && (int32_t)(frame->seq - sc->seen) < 0) return RAIL_OK;
  if (frame->seq - sc->seen > sc->next_seq - sc->seen ||
      frame->size - c->bytes_freed > c->bytes_used - c->bytes_freed ||
      count - c->count_freed > c->count_used - c->count_freed)
    return sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR,
                        "protocol error: the peer reports messages that were not sent (%u seen; %u, %llu bytes, free)",
                        frame->seq, count, (unsigned long long)frame->size);
  rail_stats_add(&sc->base.counts.comm[SK_COMM_CONTROL_FRAMES], 1);
  sc->seen = frame->seq;
  c->bytes_freed = frame->size;
  c->count_freed = count;
  forget_seen(sc, sc->seen);
  if (rail_unlikely(sc->base.rails != NULL)) sk_rail_on_seen(sc);
  /* Each of them is still on credit, or, with FAILOVER, granted to a send that is not done. */
  if (sc->flying_count > c->count_used - c->count_freed + (sc->base.rails ? SK_MAX_SENDS : 0))
    return sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR,
                        "protocol error: the peer returns the credit of messages that it has not seen");
  return RAIL_OK;
}

void sk_send_after_control(struct sk_send_comm *sc) {
  if (sc->waiting.count) release_waiting(sc);
}

/* ---- isend and its end ------------------------------------------------ */

static rail_result_t start_send(struct sk_send_comm *sc, struct sk_send *send) {
  uint32_t tag = send->node.tag;
  struct sk_match_node *node = sk_match_take(&sc->grants, tag);
  if (node) {
    uint64_t capacity = rail_container_of(node, struct sk_grant, node)->size;
    node->next = sc->free_grants;
    sc->free_grants = node;
    return accept_grant(sc, send, capacity);
  }
  /* A send may overtake its own grant, never an earlier send of its tag. */
  if (has_credit(sc, send->size) && (!sc->waiting.count || !sk_match_next(&sc->waiting, tag, NULL))) go_ahead(sc, send);
  else sk_match_put(&sc->waiting, &send->node);
  return RAIL_OK;
}

void sk_send_drain(struct sk_send_comm *sc) {
  struct sk_request *r;
  while ((r = sk_comm_submitted(&sc->base)))
    if (start_send(sc, rail_container_of(r, struct sk_send, base)) != RAIL_OK) return;
}

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
  atomic_store_explicit(&r->pending, 1, memory_order_relaxed);
  send->node.tag = (uint32_t)tag;
  send->data = data;
  send->size = size;
  send->framed = 0;
  send->granted = false;
  send->mr = mr;
  sk_mr_hold(mr);
  return send;
}

/* May this send stand in the stream until the caller tests one of its requests? Only where that is worth while: others
 * are outstanding, or the caller has a way of sending several before it tests. */
static bool can_wait(const struct sk_send_comm *sc, size_t size) {
  return size <= LATER_BYTES && (sk_comm_in_use(&sc->base) > LATER_FROM || sc->latest_burst >= LATER_FROM) &&
         sk_main_stream(&sc->base)->out_bytes < NOW_BYTES;
}

void sk_send_tested(struct sk_send_comm *sc) {
  if (sc->burst) sc->latest_burst = sc->burst;
  sc->burst = 0;
}

rail_result_t sk_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                       void **request) {
  if (request) *request = NULL;
  struct sk_comm *comm = sk_comm_of(send_comm, SK_SEND_MAGIC, "isend");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!request || size > RAIL_NET_MAX_BYTES || (!data && size))) return bad_send(data, size, request);
  struct sk_send_comm *sc = rail_container_of(comm, struct sk_send_comm, base);
  if (rail_unlikely(sk_comm_is_stopped(comm))) return RAIL_BAD_USAGE;
  if (rail_unlikely(sk_comm_error(comm) != RAIL_OK)) return sk_comm_error(comm);
  struct sk_send *send = new_send(sc, data, size, tag, mhandle);
  if (!send) return RAIL_OK;
  *request = send;
  if (rail_unlikely(comm->profile != NULL)) sk_profile_start(&send->base, &phandle);
  sc->burst++;
  if ((comm->poll && size > SK_ENGINE_INLINE_BYTES) || !sk_comm_try_own(comm)) {
    sk_comm_submit(comm, &send->base);
    return RAIL_OK;
  }
  sk_send_drain(sc);
  /* A failure from here on is for test to report: the request exists. */
  if (start_send(sc, send) == RAIL_OK) {
    if (!can_wait(sc, size)) {
      (void)sk_progress(comm);
    } else {
      announce_ready(sc);
      atomic_store_explicit(&comm->deferred, 1, memory_order_relaxed);
    }
  }
  sk_comm_disown(comm);
  return RAIL_OK;
}

void sk_send_finish(struct sk_send_comm *sc, struct sk_send *send, int *sizes) {
  if (sizes) sizes[0] = send->size > INT_MAX ? INT_MAX : (int)send->size;
  sk_mr_release(send->mr);
  sk_request_put(&sc->pool, &send->base);
}
