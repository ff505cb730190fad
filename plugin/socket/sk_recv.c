/* SPDX-License-Identifier: Apache-2.0
 *
 * A receive from irecv to its completion.
 *
 * irecv takes what came early or posts its buffers. A MSG frame claims the
 * oldest buffer of its tag; payloads go straight into it. The request is done
 * when all its buffers are. What the sender must know, buffers and credit, is
 * in sk_report.c.
 */
#include "plugin/socket/sk_recv.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/socket/sk_acceptor.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_profile.h"
#include "plugin/socket/sk_rail.h"
#include "plugin/socket/sk_watch.h"
#include "plugin/socket/upward.h"

#define READ_AHEAD (64 * 1024)

rail_result_t sk_recv_create(const struct sk_comm_args *args, void **recv_comm) {
  struct sk_recv_comm *rc = calloc(1, sizeof *rc);
  *recv_comm = NULL;
  if (!rc) {
    for (unsigned int i = 0; i < args->nstreams; i++) rail_sock_close(&(int){args->fds[i]});
    sk_accepted_free(args->accepted);
    goto no_memory;
  }
  if (sk_comm_init(&rc->base, args, READ_AHEAD) != RAIL_OK ||
      sk_early_init(&rc->early, args->eager_size, args->eager_count, args->eager_bytes) != RAIL_OK) {
    sk_comm_destroy(&rc->base);
    sk_recv_release(rc);
    free(rc);
    goto no_memory;
  }
  if (rail_random_bytes(&rc->secret, sizeof rc->secret) != RAIL_OK) rc->secret = rail_now_ns() ^ (uintptr_t)rc;
  sk_request_pool_init(&rc->pool, rc->recvs, sizeof rc->recvs[0], SK_MAX_RECVS, &rc->base);
  sk_match_init(&rc->posted);
  for (unsigned int i = 0; i < args->nstreams && sk_params.rcvbuf < 0; i++)
    (void)rail_sock_open_window(args->fds[i], sk_params.window); /* a wish: streams work without */
  sk_comm_attach(&rc->base);
  sk_watch_add(&rc->base);
  *recv_comm = rc;
  return RAIL_OK;

no_memory:
  RAIL_WARN("RailSocket: accept: out of memory for a connection");
  return RAIL_SYSTEM_ERROR;
}

void sk_recv_release(struct sk_recv_comm *rc) { sk_early_release(&rc->early); }

/* ---- sinks: announced messages with bytes to come ---------------------- */

static void hash_insert(struct sk_recv_comm *rc, struct sk_sink *sink) {
  struct sk_sink **bucket = &rc->by_seq[sink->seq % SK_SEQ_BUCKETS];
  sink->hash_next = *bucket;
  *bucket = sink;
  sink->hashed = true;
}

static struct sk_sink **hash_find(struct sk_recv_comm *rc, uint32_t seq) {
  struct sk_sink **at = &rc->by_seq[seq % SK_SEQ_BUCKETS];
  while (*at && (*at)->seq != seq) at = &(*at)->hash_next;
  return at;
}

/* The pair is made: message seq of `size` bytes will fill the slot. */
static rail_result_t claim(struct sk_recv_comm *rc, struct sk_slot *slot, uint32_t seq, uint64_t size) {
  sk_recv_forget_grant(rc, slot);
  if (rail_unlikely(size > slot->capacity))
    return sk_comm_fail_size(&rc->base, seq, slot->node.tag, size, slot->capacity);
  slot->sink.size = size;
  slot->sink.seq = seq;
  return RAIL_OK;
}

/* All of it is in place. The request may be the caller's again from here on. */
static void finish_slot(struct sk_recv_comm *rc, struct sk_slot *slot) {
  rail_stats_add(&rc->base.counts.comm[SK_COMM_MESSAGES], 1);
  rail_stats_add(&rc->base.counts.comm[SK_COMM_RECEIVED_BYTES], slot->sink.size);
  rc->finished = true;
  sk_pending_drop(&slot->recv->base.pending);
}

static void empty_bounce(struct sk_recv_comm *rc, struct sk_bounce *bounce, struct sk_slot *slot) {
  assert(slot->sink.data || bounce->sink.size == 0); /* irecv took no other */
  if (bounce->sink.size) rail_copy_upward(slot->sink.data, bounce->sink.data, bounce->sink.size);
  sk_early_free(&rc->early, bounce);
  finish_slot(rc, slot);
}

/* A mark for a place in a message that the sender cannot know (the secret, mixed as MurmurHash3 ends). */
static uint64_t mark(const struct sk_recv_comm *rc, uint64_t offset) {
  uint64_t x = rc->secret ^ offset;
  x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
  return x ^ x >> 33;
}

/* One of several pieces. Their lengths must add up to the message, and so must they themselves: where each begins
 * another one ends, but for 0 and the size. So the marks cancel in the sum, and with a piece that overlaps another, or
 * is one again, they do not. True: all of them are here; or the comm has failed. */
static bool add_piece(struct sk_recv_comm *rc, struct sk_sink *sink, uint64_t offset, uint64_t n) {
  sink->edges += mark(rc, offset + n) - mark(rc, offset);
  sink->received += n;
  if (sink->received < sink->size) return false;
  struct sk_sink **at = hash_find(rc, sink->seq);
  if (*at == sink) *at = sink->hash_next;
  sink->hashed = false;
  if (rail_likely(sink->edges == mark(rc, sink->size) - mark(rc, 0))) return true;
  sk_comm_fail(&rc->base, RAIL_REMOTE_ERROR,
               "protocol error: the pieces of message %u, %llu bytes, overlap and leave a hole", sink->seq,
               (unsigned long long)sink->size);
  return false;
}

/* The last byte is here. */
static void complete(struct sk_recv_comm *rc, struct sk_sink *sink) {
  rc->partial--;
  if (!sink->early) {
    finish_slot(rc, rail_container_of(sink, struct sk_slot, sink));
    return;
  }
  struct sk_bounce *bounce = rail_container_of(sink, struct sk_bounce, sink);
  if (bounce->slot) empty_bounce(rc, bounce, bounce->slot);
}

/* ---- what comes in ---------------------------------------------------- */

RAIL_COLD static rail_result_t broken(struct sk_recv_comm *rc, const struct sk_frame *frame, const char *why) {
  return sk_comm_fail(&rc->base, RAIL_REMOTE_ERROR,
                      "protocol error: %s (frame type %u, message %u, %llu, %u bytes, tag %u)", why, frame->type,
                      frame->seq, (unsigned long long)frame->size, frame->len, frame->tag);
}

/* Where message frame->seq will go: its buffer, or the ring. NULL: the comm has failed. */
static struct sk_sink *find_sink(struct sk_recv_comm *rc, const struct sk_frame *frame) {
  bool granted = frame->flags & SK_FRAME_GRANTED;
  struct sk_match_node *node = sk_match_take(&rc->posted, frame->tag);
  if (rail_unlikely(granted && !node)) {
    broken(rc, frame, "a message whose buffer was not granted");
    return NULL;
  }
  if (!granted && !sk_early_charge(&rc->early, frame->size)) {
    broken(rc, frame, "a message without grant beyond the agreed limits");
    return NULL;
  }
  rc->rush = granted;
  rail_stats_add(&rc->base.counts.comm[granted ? SK_COMM_GRANTED_MESSAGES : SK_COMM_EAGER_MESSAGES], 1);
  if (!node) return &sk_early_put(&rc->early, frame->tag, frame->seq, (uint32_t)frame->size)->sink;
  if (!granted) sk_early_pass(&rc->early, frame->size);
  struct sk_slot *slot = rail_container_of(node, struct sk_slot, node);
  return claim(rc, slot, frame->seq, frame->size) == RAIL_OK ? &slot->sink : NULL;
}

/* A piece of an announced message. */
static rail_result_t expect_piece(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame *frame,
                                  uint64_t offset) {
  struct sk_sink *sink = *hash_find(rc, frame->seq);
  if (!sink) return broken(rc, frame, "data of a message that is complete");
  if (!frame->len || offset > sink->size || frame->len > sink->size - offset ||
      frame->len > sink->size - sink->promised)
    return broken(rc, frame, "data outside its message");
  sink->promised += frame->len;
  sk_stream_expect(s, sink->data + offset, frame->len, sink);
  return RAIL_OK;
}

/* With FAILOVER every stream announces every message, in order: one that is behind only says what is known, and may
 * bring the first piece; none can be ahead of its own announcements, and waiting for them would be for ever. */
static rail_result_t on_repeat(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame *frame) {
  if ((int32_t)(frame->seq - rc->next_seq) > 0) return broken(rc, frame, "an announcement that skips others");
  if (frame->len) return expect_piece(rc, s, frame, 0);
  sk_stream_expect(s, NULL, 0, NULL);
  return RAIL_OK;
}

static rail_result_t on_msg(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame *frame) {
  if (rc->base.rails && frame->seq != rc->next_seq) return on_repeat(rc, s, frame);
  if ((s->index != 0 && !rc->base.rails) || frame->seq != rc->next_seq || frame->len > frame->size ||
      frame->size > RAIL_NET_MAX_BYTES)
    return broken(rc, frame, "an announcement out of order or of a wrong size");
  struct sk_sink *sink = find_sink(rc, frame);
  if (rail_unlikely(!sink)) return sk_comm_error(&rc->base);
  rc->next_seq++;
  rc->partial++;
  sink->promised = frame->len;
  sink->received = sink->edges = 0;
  sink->hashed = false;
  if (frame->len < frame->size) hash_insert(rc, sink);
  sk_stream_expect(s, sink->data, frame->len, sink);
  return RAIL_OK;
}

static rail_result_t on_data(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame *frame) {
  if ((int32_t)(frame->seq - rc->next_seq) >= 0) {
    if (s->index == 0 || rc->base.rails) return broken(rc, frame, "data of a message that was not announced");
    return RAIL_IN_PROGRESS;
  }
  return expect_piece(rc, s, frame, frame->size);
}

void sk_recv_forget_partial(struct sk_recv_comm *rc, struct sk_stream *s) {
  struct sk_sink *sink = s->owner;
  if (!s->len || !sink) return;
  sink->promised -= s->len;
  if (!sink->hashed) hash_insert(rc, sink); /* its one frame will come as a piece */
}

rail_result_t sk_recv_on_frame(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame *frame) {
  switch (frame->type) {
    case SK_FRAME_MSG: return on_msg(rc, s, frame);
    case SK_FRAME_DATA: return on_data(rc, s, frame);
    default: return broken(rc, frame, "a frame that a sender does not send");
  }
}

rail_result_t sk_recv_on_payload(struct sk_recv_comm *rc, struct sk_stream *s) {
  struct sk_sink *sink = s->owner;
  s->owner = NULL;
  rail_stats_add(&s->counts.stream[SK_STREAM_BYTES], s->len);
  rail_stats_add(&s->counts.stream[SK_STREAM_CHUNKS], 1);
  if (rc->base.rails) rc->base.rails[s->index].frames++;
  if (rail_unlikely(!sink)) return RAIL_OK;
  if (rail_unlikely(sink->hashed)) {
    if (!add_piece(rc, sink, (uint64_t)(s->to - sink->data) - s->len, s->len)) return sk_comm_error(&rc->base);
  } else {
    sink->received = sink->size;
  }
  complete(rc, sink);
  return RAIL_OK;
}

/* ---- irecv and its end ------------------------------------------------ */

RAIL_COLD static rail_result_t bad_recv(int n, void **data, const size_t *sizes, const int *tags, void **request) {
  if (!request || !data || !sizes || !tags)
    RAIL_WARN("RailSocket: irecv: data %p, sizes %p, tags %p, request %p; none may be NULL", (void *)data,
              (const void *)sizes, (const void *)tags, (void *)request);
  else if (n < 1 || n > SK_MAX_GROUP) RAIL_WARN("RailSocket: irecv: n is %d; allowed: 1..%d", n, SK_MAX_GROUP);
  else RAIL_WARN("RailSocket: irecv: a buffer is NULL with a size above 0, or larger than %llu bytes",
                 (unsigned long long)RAIL_NET_MAX_BYTES);
  return RAIL_BAD_ARGUMENT;
}

static bool recv_args_ok(int n, void **data, const size_t *sizes, const int *tags, void **request) {
  if (!request || !data || !sizes || !tags || n < 1 || n > SK_MAX_GROUP) return false;
  for (int i = 0; i < n; i++)
    if ((!data[i] && sizes[i]) || sizes[i] > RAIL_NET_MAX_BYTES) return false;
  return true;
}

static struct sk_recv *new_recv(struct sk_recv_comm *rc, int n, void **data, const size_t *sizes, const int *tags,
                                void **mhandles) {
  struct sk_request *r = sk_request_get(&rc->pool, SK_REQ_RECV);
  if (!r) return NULL;
  struct sk_recv *recv = rail_container_of(r, struct sk_recv, base);
  recv->n = (uint32_t)n;
  atomic_store_explicit(&r->pending, (uint32_t)n, memory_order_relaxed);
  for (int i = 0; i < n; i++) {
    recv->slots[i] = (struct sk_slot){.sink.data = data[i],
                                      .node.tag = (uint32_t)tags[i],
                                      .recv = recv,
                                      .capacity = sizes[i],
                                      .mr = mhandles ? mhandles[i] : NULL};
    sk_mr_hold(recv->slots[i].mr);
  }
  return recv;
}

/* What came before this buffer, else posts the buffer. */
static rail_result_t post_slot(struct sk_recv_comm *rc, struct sk_slot *slot) {
  struct sk_bounce *bounce = sk_early_take(&rc->early, slot->node.tag);
  if (!bounce) {
    sk_match_put(&rc->posted, &slot->node);
    sk_recv_want_grant(rc, slot);
    return RAIL_OK;
  }
  RAIL_TRY(claim(rc, slot, bounce->sink.seq, bounce->sink.size));
  if (bounce->sink.received < bounce->sink.size) bounce->slot = slot;
  else empty_bounce(rc, bounce, slot);
  return RAIL_OK;
}

static rail_result_t start_recv(struct sk_recv_comm *rc, struct sk_recv *recv) {
  uint32_t n = recv->n; /* the last slot that is filled makes it the caller's */
  for (uint32_t i = 0; i < n; i++) RAIL_TRY(post_slot(rc, &recv->slots[i]));
  return RAIL_OK;
}

rail_result_t sk_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **phandles, void **request) {
  /* RAIL_NET_OPTIONAL_RECV, if it stands there, allows what TCP cannot use:
   * completing before the bytes are in place. */
  if (request) *request = NULL;
  struct sk_comm *comm = sk_comm_of(recv_comm, SK_RECV_MAGIC, "irecv");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!recv_args_ok(n, data, sizes, tags, request))) return bad_recv(n, data, sizes, tags, request);
  struct sk_recv_comm *rc = rail_container_of(comm, struct sk_recv_comm, base);
  if (rail_unlikely(sk_comm_is_stopped(comm))) return RAIL_BAD_USAGE;
  if (rail_unlikely(sk_comm_error(comm) != RAIL_OK)) return sk_comm_error(comm);
  struct sk_recv *recv = new_recv(rc, n, data, sizes, tags, mhandles);
  if (!recv) return RAIL_OK;
  *request = recv;
  if (rail_unlikely(comm->profile != NULL)) sk_profile_start(&recv->base, phandles);
  if (!sk_comm_try_own(comm)) {
    sk_comm_submit(comm, &recv->base);
    return RAIL_OK;
  }
  sk_recv_drain(rc);
  if (start_recv(rc, recv) == RAIL_OK) sk_recv_report_posted(rc); /* else test will say so */
  atomic_store_explicit(&comm->deferred, rc->wanted || comm->ended, memory_order_relaxed);
  sk_comm_disown(comm);
  return RAIL_OK;
}

void sk_recv_drain(struct sk_recv_comm *rc) {
  struct sk_request *r;
  while ((r = sk_comm_submitted(&rc->base)))
    if (start_recv(rc, rail_container_of(r, struct sk_recv, base)) != RAIL_OK) return;
}

void sk_recv_finish(struct sk_recv_comm *rc, struct sk_recv *recv, int *sizes) {
  for (uint32_t i = 0; i < recv->n; i++) {
    struct sk_slot *slot = &recv->slots[i];
    if (sizes) sizes[i] = slot->sink.size > INT_MAX ? INT_MAX : (int)slot->sink.size;
    sk_mr_release(slot->mr);
  }
  sk_request_put(&rc->pool, &recv->base);
}
