/* SPDX-License-Identifier: Apache-2.0
 *
 * A receive from irecv to its completion.
 *
 * irecv takes an unexpected message or posts its buffers. A MSG frame claims the oldest buffer of its tag; payloads are
 * received straight into it. The request is done when all its buffers are; test finds that out (sk_progress.c) and
 * calls sk_recv_finish. Reports to the sender, of buffers and credit, are in sk_grant.c.
 */
#include "plugin/socket/sk_recv.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/ordered_copy.h"
#include "plugin/socket/sk_failover.h"
#include "plugin/socket/sk_param.h"

/* ---- the steps of a receive, in their order; each is explained at its definition ---- */

static struct sk_recv *new_recv(struct sk_recv_comm *rc, int n, void **data, const size_t *sizes, const int *tags,
                                void **mhandles);
static rail_result_t start_recv(struct sk_recv_comm *rc, struct sk_recv *recv);
static rail_result_t post_buffer(struct sk_recv_comm *rc, struct sk_recv_buffer *buffer);
static struct sk_target *match_msg(struct sk_recv_comm *rc, const struct sk_frame *frame);
static rail_result_t claim(struct sk_recv_comm *rc, struct sk_recv_buffer *buffer, uint32_t seq, uint64_t size);
static rail_result_t begin_payload(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame *frame,
                                   uint8_t *to, struct sk_target *target);
static void expect_chunks(struct sk_recv_comm *rc, struct sk_target *target);
static rail_result_t begin_chunk(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame *frame,
                                 uint64_t offset);
static bool add_chunk(struct sk_recv_comm *rc, struct sk_target *target, uint64_t offset, uint64_t n);
static void complete(struct sk_recv_comm *rc, struct sk_target *target);
static void copy_bounce(struct sk_recv_comm *rc, struct sk_bounce *bounce, struct sk_recv_buffer *buffer);
static void finish_buffer(struct sk_recv_comm *rc, struct sk_recv_buffer *buffer);

/* ---- irecv ----------------------------------------------------------------------- */

/* The first whose bytes cannot be used; n: none. */
static int first_bad_buffer(const struct sk_comm *comm, int n, void **data, const size_t *sizes, void **mhandles) {
  for (int i = 0; i < n; i++)
    if (!sk_buffer_is_good(comm, mhandles ? mhandles[i] : NULL, data[i], sizes[i])) return i;
  return n;
}

rail_result_t sk_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **phandles, void **request) {
  /* RAIL_NET_OPTIONAL_RECV in *request allows what TCP cannot use: completing before the bytes are in place. */
  *request = NULL;
  struct sk_comm *comm = sk_comm_of(recv_comm, SK_RECV_MAGIC, "irecv");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!rail_net_recv_args_ok(n, SK_MAX_GROUP, data, sizes, tags)))
    return rail_net_refuse_recv_args("RailSocket", n, SK_MAX_GROUP, data, sizes, tags);
  const int bad = first_bad_buffer(comm, n, data, sizes, mhandles);
  if (rail_unlikely(bad < n))
    return sk_refuse_buffer("irecv", comm, mhandles ? mhandles[bad] : NULL, data[bad], sizes[bad]);
  struct sk_recv_comm *rc = rail_container_of(comm, struct sk_recv_comm, base);
  if (rail_unlikely(sk_comm_is_stopped(comm))) return RAIL_BAD_USAGE;
  if (rail_unlikely(sk_comm_error(comm) != RAIL_OK)) return sk_comm_error(comm);

  /* Take the request. */
  struct sk_recv *recv = new_recv(rc, n, data, sizes, tags, mhandles);
  if (!recv) return RAIL_OK;
  *request = recv;
  if (rail_unlikely(comm->profile != NULL)) sk_profile_start(&recv->base, phandles);
  if (!sk_comm_try_own(comm)) {
    sk_comm_submit(comm, &recv->base);
    return RAIL_OK;
  }

  /* Post its buffers, and tell the sender. */
  sk_recv_start_submitted(rc);
  if (start_recv(rc, recv) == RAIL_OK) sk_grant_report_after_irecv(rc); /* a failure is for test to report */
  /* For the engine's thread, if there is one: the message that was left unread has its buffer now, and no event tells
   * of it any more. */
  const bool waits = rc->unread == SK_UNREAD_MESSAGE;
  comm->more |= waits;
  atomic_store_explicit(&comm->deferred, rc->ungranted_needed || comm->ended || waits, memory_order_relaxed);
  sk_comm_disown(comm);
  return RAIL_OK;
}

/* Takes a request from the pool. NULL: all are in use. */
static struct sk_recv *new_recv(struct sk_recv_comm *rc, int n, void **data, const size_t *sizes, const int *tags,
                                void **mhandles) {
  struct sk_request *r = sk_request_get(&rc->pool, SK_REQ_RECV);
  if (!r) return NULL;
  struct sk_recv *recv = rail_container_of(r, struct sk_recv, base);
  recv->n = (uint32_t)n;
  atomic_store_explicit(&r->completion, (uint32_t)n, memory_order_relaxed);
  for (int i = 0; i < n; i++) {
    recv->buffers[i] = (struct sk_recv_buffer){.target.data = data[i],
                                               .node.tag = (uint32_t)tags[i],
                                               .recv = recv,
                                               .capacity = sizes[i],
                                               .mr = mhandles ? mhandles[i] : NULL};
    sk_mr_hold(recv->buffers[i].mr);
  }
  return recv;
}

/* Posts the buffers of a receive. */
static rail_result_t start_recv(struct sk_recv_comm *rc, struct sk_recv *recv) {
  uint32_t n = recv->n; /* the last buffer that is filled makes it the caller's */
  for (uint32_t i = 0; i < n; i++) RAIL_TRY(post_buffer(rc, &recv->buffers[i]));
  return RAIL_OK;
}

void sk_recv_start_submitted(struct sk_recv_comm *rc) {
  struct sk_request *r;
  while ((r = sk_comm_submitted(&rc->base)))
    if (start_recv(rc, rail_container_of(r, struct sk_recv, base)) != RAIL_OK) return;
}

/* Takes the message that came before this buffer, else posts the buffer. */
static rail_result_t post_buffer(struct sk_recv_comm *rc, struct sk_recv_buffer *buffer) {
  struct sk_bounce *bounce = sk_unexpected_take(&rc->unexpected, buffer->node.tag);
  if (!bounce) {
    sk_match_put(&rc->posted, &buffer->node);
    sk_grant_add(rc, buffer);
    return RAIL_OK;
  }
  RAIL_TRY(claim(rc, buffer, bounce->target.seq, bounce->target.size));
  if (bounce->target.received < bounce->target.size)
    bounce->buffer = buffer;
  else
    copy_bounce(rc, bounce, buffer);
  return RAIL_OK;
}

/* ---- from sk_progress: frame MSG -------------------------------------------------- */

RAIL_COLD static rail_result_t bad_frame(struct sk_recv_comm *rc, const struct sk_frame *frame, const char *why) {
  return sk_comm_fail(&rc->base, RAIL_REMOTE_ERROR,
                      "protocol error: %s (frame type %u, message %u, size or offset %llu, %u bytes, tag %u)", why,
                      frame->type, frame->seq, (unsigned long long)frame->size, frame->len, frame->tag);
}

/* A bulk message whose buffer is not posted yet stays in the kernel, where it costs nothing. It is received straight
 * into its buffer when that is posted, and when the socket is full its sender waits. So does a small one when the ring
 * holds SK_KEPT_BYTES: what is in the ring should still be in the cache when it is copied out. What lies behind it
 * waits as well, so this is for connections of one stream, with AHEAD, and only as long as nobody can need that: no
 * buffer is posted, which might be for a message behind it; none is half filled; and the watch thread, which sets
 * read_all, has not come by to look for PING, ERROR and the end of the stream. Otherwise the message goes into the
 * ring. */
static inline bool may_leave_unread(const struct sk_recv_comm *rc, const struct sk_frame *frame) {
  const struct sk_unexpected *u = &rc->unexpected;
  return !rc->posted.count && rc->can_leave_unread && !rc->read_all && !rc->incomplete &&
         (frame->size >= SK_BULK_BYTES || u->tail - u->head >= SK_KEPT_BYTES) && !(frame->flags & SK_FRAME_GRANTED);
}

/* With FAILOVER every stream announces every message, in order: one that is behind only repeats what is known, and may
 * bring the first chunk. None can be ahead of its own announcements. */
static rail_result_t on_repeated_msg(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame *frame) {
  if ((int32_t)(frame->seq - rc->next_seq) > 0) return bad_frame(rc, frame, "an announcement that skips others");
  if (frame->len) return begin_chunk(rc, s, frame, 0);
  return begin_payload(rc, s, frame, NULL, NULL);
}

rail_result_t sk_recv_on_msg(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame) {
  struct sk_recv_comm *rc = rail_container_of(comm, struct sk_recv_comm, base);
  if (rail_unlikely(sk_has_failover(comm))) {
    if (comm->paths[s->index].joining) return bad_frame(rc, frame, "a stream that has come back begins without JOIN");
    if (frame->seq != rc->next_seq) return on_repeated_msg(rc, s, frame);
  }
  if ((s->index != 0 && !sk_has_failover(comm)) || frame->seq != rc->next_seq || frame->len > frame->size ||
      frame->size > RAIL_NET_MAX_BYTES)
    return bad_frame(rc, frame, "an announcement out of order or of a wrong size");
  if (may_leave_unread(rc, frame)) {
    rc->unread = SK_UNREAD_MESSAGE;
    return RAIL_IN_PROGRESS;
  }
  struct sk_target *target = match_msg(rc, frame);
  if (rail_unlikely(!target)) return sk_comm_error(comm);
  rc->next_seq++;
  rc->incomplete++;
  target->announced_bytes = frame->len;
  target->received = target->coverage_sum = 0;
  target->in_chunks = false;
  if (frame->len < frame->size) expect_chunks(rc, target);
  return begin_payload(rc, s, frame, target->data, target);
}

/* Where message frame->seq will go: its buffer, or the ring. NULL: the comm has failed. */
static struct sk_target *match_msg(struct sk_recv_comm *rc, const struct sk_frame *frame) {
  bool granted = frame->flags & SK_FRAME_GRANTED;
  struct sk_match_node *node = sk_match_take(&rc->posted, frame->tag);
  if (rail_unlikely(granted && !node)) {
    bad_frame(rc, frame, "a message whose buffer was not granted");
    return NULL;
  }
  if (!granted && !sk_unexpected_charge(&rc->unexpected, frame->size)) {
    bad_frame(rc, frame, "a message without grant beyond the agreed limits");
    return NULL;
  }
  rc->sender_waited = granted;
  rail_stats_add(&rc->base.counts.comm[granted ? SK_COMM_GRANTED_MESSAGES : SK_COMM_EAGER_MESSAGES], 1);
  if (!node) return &sk_unexpected_put(&rc->unexpected, frame->tag, frame->seq, (uint32_t)frame->size)->target;
  if (!granted) sk_unexpected_pass(&rc->unexpected, frame->size);
  struct sk_recv_buffer *buffer = rail_container_of(node, struct sk_recv_buffer, node);
  return claim(rc, buffer, frame->seq, frame->size) == RAIL_OK ? &buffer->target : NULL;
}

/* The pair is made: message seq of `size` bytes will fill the buffer. */
static rail_result_t claim(struct sk_recv_comm *rc, struct sk_recv_buffer *buffer, uint32_t seq, uint64_t size) {
  sk_grant_remove(rc, buffer);
  if (rail_unlikely(size > buffer->capacity))
    return sk_comm_fail_size(&rc->base, sk_main_stream(&rc->base), seq, buffer->node.tag, size, buffer->capacity);
  buffer->target.size = size;
  buffer->target.seq = seq;
  return RAIL_OK;
}

/* The header is read; its payload goes to `to`. */
static rail_result_t begin_payload(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame *frame,
                                   uint8_t *to, struct sk_target *target) {
  s->head += SK_HEAD;
  sk_stream_expect(s, to, frame->len, target);
  /* Without payload: a message of 0 bytes is complete, an announcement alone completes nothing (add_chunk). */
  return frame->len ? RAIL_OK : sk_recv_on_payload(rc, s);
}

/* ---- from sk_progress: a message in several frames, MSG and DATA ----------------------- */

static struct sk_target *find_in_chunks(struct sk_recv_comm *rc, uint32_t seq) {
  struct sk_target *target;
  LIST_FOREACH(target, &rc->by_seq[seq % SK_SEQ_BUCKETS], by_seq)
    if (target->seq == seq) break;
  return target;
}

rail_result_t sk_recv_on_data(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame) {
  struct sk_recv_comm *rc = rail_container_of(comm, struct sk_recv_comm, base);
  if (rail_unlikely(sk_has_failover(comm)) && comm->paths[s->index].joining)
    return bad_frame(rc, frame, "a stream that has come back begins without JOIN");
  if ((int32_t)(frame->seq - rc->next_seq) >= 0) {
    if (s->index == 0 || sk_has_failover(comm)) return bad_frame(rc, frame, "data of a message that was not announced");
    return RAIL_IN_PROGRESS;
  }
  return begin_chunk(rc, s, frame, frame->offset);
}

/* The bytes of a message come in several frames: those with DATA find it by its number. */
static void expect_chunks(struct sk_recv_comm *rc, struct sk_target *target) {
  LIST_INSERT_HEAD(&rc->by_seq[target->seq % SK_SEQ_BUCKETS], target, by_seq);
  target->in_chunks = true;
  rc->chunked_count++;
}

/* A chunk of an announced message. */
static rail_result_t begin_chunk(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame *frame,
                                 uint64_t offset) {
  struct sk_target *target = find_in_chunks(rc, frame->seq);
  if (!target) return bad_frame(rc, frame, "data of a message that is complete");
  if (!frame->len || offset > target->size || frame->len > target->size - offset ||
      frame->len > target->size - target->announced_bytes)
    return bad_frame(rc, frame, "data outside its message");
  target->announced_bytes += frame->len;
  return begin_payload(rc, s, frame, target->data + offset, target);
}

/* Keyed hash of an offset in a message, which the sender cannot predict (the key, mixed as MurmurHash3 ends). */
static uint64_t edge_hash(const struct sk_recv_comm *rc, uint64_t offset) {
  uint64_t x = rc->hash_key ^ offset;
  x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
  x = (x ^ x >> 33) * 0xc4ceb9fe1a85ec53ull;
  return x ^ x >> 33;
}

/* One of several chunks. Their lengths must add up to the size of the message, and they must tile it. coverage_sum is
 * the sum over chunks of h(end) - h(begin). It telescopes to h(size) - h(0) exactly when the chunks tile the message. h
 * is keyed, so the peer cannot forge a cancellation. True: all of them are here. False: some are not, or the comm has
 * failed. */
static bool add_chunk(struct sk_recv_comm *rc, struct sk_target *target, uint64_t offset, uint64_t n) {
  target->coverage_sum += edge_hash(rc, offset + n) - edge_hash(rc, offset);
  target->received += n;
  if (target->received < target->size) return false;
  LIST_REMOVE(target, by_seq);
  target->in_chunks = false;
  rc->chunked_count--;
  if (rail_likely(target->coverage_sum == edge_hash(rc, target->size) - edge_hash(rc, 0))) return true;
  sk_comm_fail(&rc->base, RAIL_REMOTE_ERROR,
               "protocol error: the chunks of message %u, %llu bytes, overlap and leave a hole", target->seq,
               (unsigned long long)target->size);
  return false;
}

/* ---- from sk_progress: a payload is here ---------------------------------------------- */

rail_result_t sk_recv_on_payload(struct sk_recv_comm *rc, struct sk_stream *s) {
  struct sk_target *target = s->target;
  uint32_t len = s->len;
  s->target = NULL;
  s->len = 0;
  rail_stats_add(&s->counts.stream[SK_STREAM_BYTES], len);
  rail_stats_add(&s->counts.stream[SK_STREAM_CHUNKS], len || (target && !target->in_chunks));
  if (rail_unlikely(sk_has_failover(&rc->base))) rc->base.paths[s->index].frames++;
  if (rail_unlikely(!target)) return RAIL_OK;
  if (rail_unlikely(target->in_chunks)) {
    if (!add_chunk(rc, target, (uint64_t)(s->to - target->data) - len, len)) return sk_comm_error(&rc->base);
  } else {
    target->received = target->size; /* it came in one frame */
  }
  complete(rc, target);
  return RAIL_OK;
}

void sk_recv_forget_partial(struct sk_recv_comm *rc, struct sk_stream *s) {
  struct sk_target *target = s->target;
  if (!s->len || !target) return;
  target->announced_bytes -= s->len;
  if (!target->in_chunks) expect_chunks(rc, target); /* its one frame will come as a chunk */
}

/* The last byte of a message is here: its buffer is filled, or it waits in the ring for its irecv. */
static void complete(struct sk_recv_comm *rc, struct sk_target *target) {
  rc->incomplete--;
  if (!target->unexpected) {
    finish_buffer(rc, rail_container_of(target, struct sk_recv_buffer, target));
    return;
  }
  struct sk_bounce *bounce = rail_container_of(target, struct sk_bounce, target);
  if (bounce->buffer) copy_bounce(rc, bounce, bounce->buffer);
}

/* Copies a message from the ring into its buffer. */
static void copy_bounce(struct sk_recv_comm *rc, struct sk_bounce *bounce, struct sk_recv_buffer *buffer) {
  assert(buffer->target.data || bounce->target.size == 0); /* irecv took no other */
  if (bounce->target.size) rail_ordered_copy(buffer->target.data, bounce->target.data, bounce->target.size);
  sk_unexpected_free(&rc->unexpected, bounce);
  finish_buffer(rc, buffer);
}

/* All of a message is in its buffer: with the last buffer the receive is done, and its request may be the caller's
 * again. */
static void finish_buffer(struct sk_recv_comm *rc, struct sk_recv_buffer *buffer) {
  rail_stats_add(&rc->base.counts.comm[SK_COMM_MESSAGES], 1);
  rail_stats_add(&rc->base.counts.comm[SK_COMM_RECEIVED_BYTES], buffer->target.size);
  rc->completed = true;
  sk_completion_drop(&buffer->recv->base.completion);
}

/* ---- unexpected messages ------------------------------------------------------ */

_Static_assert(sizeof(struct sk_bounce) <= 128, "sk_credit_of counts two lines for it");

/* A message that begins before the end of the ring may extend beyond it: its bytes stay in one piece, and the beginning
 * of the ring, which they are counted for, stays unused meanwhile. */
rail_result_t sk_unexpected_init(struct sk_unexpected *u, uint32_t eager_size, uint32_t eager_count,
                                 uint32_t eager_bytes) {
  sk_match_init(&u->table);
  u->eager_size = eager_size;
  u->eager_count = eager_count;
  u->eager_bytes = eager_bytes & ~63u;
  u->ring = aligned_alloc(64, (size_t)u->eager_bytes + sk_credit_of(eager_size));
  return u->ring ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

void sk_unexpected_release(struct sk_unexpected *u) {
  free(u->ring);
  u->ring = NULL;
}

static struct sk_bounce *bounce_at(const struct sk_unexpected *u, uint64_t position) {
  return (struct sk_bounce *)(void *)(u->ring + position % u->eager_bytes);
}

bool sk_unexpected_charge(struct sk_unexpected *u, uint64_t size) {
  if (size > u->eager_size) return false;
  u->bytes_used += sk_credit_of(size);
  u->count_used++;
  return u->bytes_used - u->bytes_reported <= u->eager_bytes &&
         u->count_used - u->count_reported <= u->eager_count;
}

void sk_unexpected_pass(struct sk_unexpected *u, uint64_t size) {
  u->bytes_freed += sk_credit_of(size);
  u->count_freed++;
}

struct sk_bounce *sk_unexpected_put(struct sk_unexpected *u, uint32_t tag, uint32_t seq, uint32_t size) {
  struct sk_bounce *bounce = bounce_at(u, u->tail);
  *bounce = (struct sk_bounce){
    .target = {.data = (uint8_t *)bounce + 128, .size = size, .seq = seq, .unexpected = true},
    .node.tag = tag,
    .cost = (uint32_t)sk_credit_of(size)};
  u->tail += bounce->cost;
  sk_match_put(&u->table, &bounce->node);
  return bounce;
}

struct sk_bounce *sk_unexpected_take(struct sk_unexpected *u, uint32_t tag) {
  struct sk_match_node *node = sk_match_take(&u->table, tag);
  return node ? rail_container_of(node, struct sk_bounce, node) : NULL;
}

/* Credit comes back in the order of the ring: what is free behind a message that waits cannot be used yet. */
void sk_unexpected_free(struct sk_unexpected *u, struct sk_bounce *bounce) {
  bounce->free = true;
  while (u->head != u->tail) {
    struct sk_bounce *first = bounce_at(u, u->head);
    if (!first->free) break;
    u->head += first->cost;
    u->bytes_freed += first->cost;
    u->count_freed++;
  }
  if (u->head == u->tail) u->head = u->tail = 0; /* memory that is in the cache, and no more of it than is needed */
}

/* ---- the end: test has found the request done ------------------------------------- */

void sk_recv_finish(struct sk_recv_comm *rc, struct sk_recv *recv, int *sizes) {
  for (uint32_t i = 0; i < recv->n; i++) {
    struct sk_recv_buffer *buffer = &recv->buffers[i];
    if (sizes) sizes[i] = buffer->target.size > INT_MAX ? INT_MAX : (int)buffer->target.size;
    sk_mr_release(buffer->mr);
  }
  sk_request_put(&rc->pool, &recv->base);
}

/* ---- the receiver's part of a comm: made and freed -------------------------------- */

rail_result_t sk_recv_init(struct sk_recv_comm *rc, const struct sk_comm_args *args) {
  if (rail_random_bytes(&rc->hash_key, sizeof rc->hash_key) != RAIL_OK) rc->hash_key = rail_now_ns() ^ (uintptr_t)rc;
  for (int i = SK_MAX_RECVS; i-- > 0;) {
    struct sk_request *r = &rc->recvs[i].base;
    *r = (struct sk_request){.magic = SK_REQ_FREE, .comm = &rc->base};
    SLIST_INSERT_HEAD(&rc->pool, r, next_free);
  }
  sk_match_init(&rc->posted);
  TAILQ_INIT(&rc->ungranted);
  rc->can_leave_unread = args->nstreams == 1 && (args->features & SK_FEATURE_AHEAD);
  for (unsigned int i = 0; i < args->nstreams && sk_params.rcvbuf < 0; i++)
    (void)rail_sock_open_window(args->fds[i], sk_params.window); /* streams work without */
  return sk_unexpected_init(&rc->unexpected, args->eager_size, args->eager_count, args->eager_bytes);
}

void sk_recv_release(struct sk_recv_comm *rc) { sk_unexpected_release(&rc->unexpected); }
