/* SPDX-License-Identifier: Apache-2.0
 *
 * A send from isend to its completion.
 *
 * isend looks for the grant of its buffer. With a grant, or on credit (eager) up to the eager size, the send is
 * matched: sk_send_post announces it on the main stream and cuts it into chunks for whichever stream is free. It is
 * done when its last byte is in the kernel (with FAILOVER: has arrived; zero copy: is no longer read by the kernel);
 * test finds that out (sk_progress.c) and calls sk_send_finish.
 *
 * Sends of up to BATCH_BYTES behind others that are outstanding are not written one by one: they stay in the stream's
 * queue until the caller tests, or until they are many.
 */
#include "plugin/socket/sk_send.h"

#include <limits.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "plugin/socket/sk_failover.h"
#include "plugin/socket/sk_param.h"

#define BATCH_BYTES (8 * 1024)   /* payloads up to here may wait for others: a system call costs more than their copy */
#define BATCH_FROM 4             /* when so many requests are outstanding, which the caller will test */
#define BATCH_MAX (32 * 1024)    /* but not when this much has come together */
#define SPREAD_BYTES (32 * 1024) /* messages from here on are spread: they go to the stream that is free first */
#define READ_AFTER_POSTS 64      /* then control frames are read, even if none is expected: the peer may have gone */

/* ---- the steps of a send, in their order; each is explained at its definition ---- */

static struct sk_send *new_send(struct sk_send_comm *sc, void *data, size_t size, int tag, struct sk_mr *mr);
static bool can_batch(const struct sk_send_comm *sc, size_t size);
static rail_result_t match_send(struct sk_send_comm *sc, struct sk_send *send);
static rail_result_t accept_grant(struct sk_send_comm *sc, struct sk_send *send, uint64_t capacity);
static void send_eager(struct sk_send_comm *sc, struct sk_send *send);
static void announce_all(struct sk_send_comm *sc);
static inline void announce(struct sk_send_comm *sc, struct sk_stream *main_stream, struct sk_send *send);
static void take_chunk(struct sk_send_comm *sc, struct sk_stream *s);
static void queue_frame(struct sk_send_comm *sc, struct sk_stream *s, struct sk_send *send, enum sk_frame_type type,
                        uint64_t offset, uint32_t len);
static void all_framed(struct sk_send_comm *sc, struct sk_send *send);
static void queue_resends(struct sk_send_comm *sc, struct sk_stream *s);
static rail_result_t update_credit(struct sk_send_comm *sc, const struct sk_frame *control);
static void reset_grants(struct sk_send_comm *sc);
static rail_result_t on_grant(struct sk_send_comm *sc, uint32_t tag, uint64_t size);
static void release_waiting(struct sk_send_comm *sc);

/* ---- isend ------------------------------------------------------------------------ */

rail_result_t sk_isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                       void **request) {
  struct sk_comm *comm = sk_comm_of(send_comm, SK_SEND_MAGIC, "isend");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!sk_buffer_is_good(comm, mhandle, data, size)))
    return sk_refuse_buffer("isend", comm, mhandle, data, size);
  struct sk_send_comm *sc = rail_container_of(comm, struct sk_send_comm, base);
  if (rail_unlikely(sk_comm_is_stopped(comm))) return RAIL_BAD_USAGE;
  if (rail_unlikely(sk_comm_error(comm) != RAIL_OK)) return sk_comm_error(comm);

  /* Take the request, also for a send that has to wait for its match. */
  struct sk_send *send = new_send(sc, data, size, tag, mhandle);
  if (!send) return RAIL_OK;
  *request = send;
  if (rail_unlikely(comm->profile != NULL)) sk_profile_start(&send->base, &phandle);
  sc->burst++;

  /* Left in `submitted`: a large message to the engine, any to the thread that owns the comm now. */
  if ((comm->engine && size > SK_ENGINE_INLINE_BYTES) || !sk_comm_try_own(comm)) {
    sk_comm_submit(comm, &send->base);
    return RAIL_OK;
  }
  sk_send_start_submitted(sc);

  /* Match, and post. A failure from here on is for test to report: the request exists. */
  if (match_send(sc, send) == RAIL_OK) {
    if (can_batch(sc, size)) {
      announce_all(sc);
      atomic_store_explicit(&comm->deferred, 1, memory_order_relaxed);
    } else if (sc->waiting.count || rail_unlikely(comm->not_established)) {
      (void)comm->progress(comm); /* sk_progress: a grant, credit or the peer's ANSWER may be in the socket already */
    } else {
      (void)sk_send_post(sc);
    }
  }
  sk_comm_disown(comm);
  return RAIL_OK;
}

/* Takes a request from the pool. NULL: all are in use. */
static struct sk_send *new_send(struct sk_send_comm *sc, void *data, size_t size, int tag, struct sk_mr *mr) {
  struct sk_request *r = sk_request_get(&sc->pool, SK_REQ_SEND);
  if (!r) return NULL;
  struct sk_send *send = rail_container_of(r, struct sk_send, base);
  atomic_store_explicit(&r->completion, 1, memory_order_relaxed); /* until all_framed; + 1 for each queued frame */
  send->node.tag = (uint32_t)tag;
  send->data = data;
  send->size = size;
  send->framed = 0;
  send->granted = false;
  send->mr = mr;
  sk_mr_hold(mr);
  return send;
}

/* May it stay in the stream's queue until the caller tests one of its requests? Where that pays: others are
 * outstanding, or the caller tends to send several before it tests. */
static bool can_batch(const struct sk_send_comm *sc, size_t size) {
  return size <= BATCH_BYTES && (sk_comm_in_use(&sc->base) > BATCH_FROM || sc->latest_burst >= BATCH_FROM) &&
         sk_main_stream(&sc->base)->out_bytes < BATCH_MAX;
}

/* ---- match: a send and the receiver's grant (on_grant keeps it), or credit ---------- */

static bool has_credit(const struct sk_send_comm *sc, uint64_t size) {
  const struct sk_credit *c = &sc->credit;
  return size <= sc->eager_size && c->count_used - c->count_freed < sc->eager_count &&
         c->bytes_used - c->bytes_freed + sk_credit_of(size) <= sc->eager_bytes;
}

static void free_grant(struct sk_send_comm *sc, struct sk_match_node *grant) {
  TAILQ_INSERT_HEAD(&sc->free_grants, grant, next);
}

/* Finds the send's grant, or credit; else it waits for one of them. */
static rail_result_t match_send(struct sk_send_comm *sc, struct sk_send *send) {
  uint32_t tag = send->node.tag;
  struct sk_match_node *grant = sk_match_take(&sc->grants, tag);
  if (grant) {
    uint64_t capacity = rail_container_of(grant, struct sk_grant, node)->size;
    free_grant(sc, grant);
    return accept_grant(sc, send, capacity);
  }
  /* A send may overtake its own grant, never an earlier send of its tag. */
  if (has_credit(sc, send->size) && (!sc->waiting.count || !sk_match_next(&sc->waiting, tag, NULL)))
    send_eager(sc, send);
  else sk_match_put(&sc->waiting, &send->node);
  return RAIL_OK;
}

void sk_send_start_submitted(struct sk_send_comm *sc) {
  struct sk_request *r;
  while ((r = sk_comm_submitted(&sc->base)))
    if (match_send(sc, rail_container_of(r, struct sk_send, base)) != RAIL_OK) return;
}

static void queue_announcement(struct sk_send_comm *sc, struct sk_send *send) {
  send->seq = sc->next_seq++;
  STAILQ_INSERT_TAIL(&sc->to_announce, send, next);
}

/* Messages in the table of those in flight, at most: each is on credit, or, with FAILOVER, was granted and is not
 * reported as seen. */
static uint32_t max_in_flight(const struct sk_send_comm *sc) {
  return sc->credit.count_used - sc->credit.count_freed + (sk_has_failover(&sc->base) ? SK_MAX_SENDS : 0);
}

/* The table has room for max_in_flight messages: one on credit adds 1 to the table and to max_in_flight, and
 * accept_grant adds one only below that. */
static void remember_in_flight(struct sk_send_comm *sc, const struct sk_send *send, bool has_grant) {
  struct sk_in_flight *f = &sc->in_flight_store[(sc->in_flight_first + sc->in_flight_count++) % sc->in_flight_cap];
  f->seq = send->seq;
  f->has_grant = has_grant;
  f->node.tag = send->node.tag;
  if (!has_grant) sk_match_put(&sc->in_flight, &f->node);
}

/* The pair is made: the send may go, unless it is too large for its buffer. */
static rail_result_t accept_grant(struct sk_send_comm *sc, struct sk_send *send, uint64_t capacity) {
  if (rail_unlikely(send->size > capacity))
    return sk_comm_fail_size(&sc->base, sk_main_stream(&sc->base), sc->next_seq, send->node.tag, send->size, capacity);
  if (rail_unlikely(sk_has_failover(&sc->base)) && sc->in_flight_count >= max_in_flight(sc))
    return sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR,
                        "protocol error: the peer has granted more than %d buffers without a report of what it has "
                        "seen", SK_MAX_SENDS);
  send->granted = true;
  rail_stats_add(&sc->base.counts.comm[SK_COMM_GRANTED_MESSAGES], 1);
  queue_announcement(sc, send);
  if (rail_unlikely(sk_has_failover(&sc->base))) remember_in_flight(sc, send, true);
  return RAIL_OK;
}

/* The send goes on credit. */
static void send_eager(struct sk_send_comm *sc, struct sk_send *send) {
  sc->credit.bytes_used += sk_credit_of(send->size);
  sc->credit.count_used++;
  rail_stats_add(&sc->base.counts.comm[SK_COMM_EAGER_MESSAGES], 1);
  queue_announcement(sc, send);
  remember_in_flight(sc, send, false);
}

/* ---- post: a matched send is announced, cut into chunks, written --------------------- */

/* *moved: the socket took all that it was offered, and there is more. */
static inline rail_result_t after_write(const struct sk_send_comm *sc, const struct sk_stream *s, rail_result_t result,
                                        bool *moved) {
  if (rail_unlikely(result == RAIL_REMOTE_ERROR && !sk_has_failover(&sc->base))) return result;
  if (result == RAIL_OK && (s->out_count || sk_send_has_unframed(sc))) *moved = true;
  return RAIL_OK;
}

/* Here a chunk gets its stream (a message's first: `announce`): one that is free, as the kernel has all that was queued
 * on it, and that may take more (sk_share.c) takes the next chunk of the oldest message that is not all in frames. Then
 * each stream is written. */
rail_result_t sk_send_post(struct sk_send_comm *sc) {
  struct sk_comm *comm = &sc->base;
  const bool can_share = comm->nstreams > 1 && sk_engine_can_share();
  uint64_t written = 0;
  bool moved = true;
  comm->more = false;
  sc->posts_since_read++;
  if (rail_unlikely(sc->shares.under_way)) sk_shares_sample(&sc->shares, comm->streams, rail_now_ns());
  while (moved && written < SK_CALL_BYTES) {
    struct sk_stream *shared[SK_MAX_STREAMS]; /* that the engine's threads write at the same time */
    rail_result_t results[SK_MAX_STREAMS];
    uint32_t nshared = 0;
    moved = false;
    announce_all(sc);
    for (uint32_t k = 0; k < comm->nstreams; k++) {
      struct sk_stream *s = &comm->streams[(sc->next_stream + k) % comm->nstreams];
      if (rail_unlikely(sk_has_failover(comm))) {
        if (s->fd < 0 || s->out_errno) continue; /* lost, or about to be: first what has come over it is read */
        queue_resends(sc, s);
      }
      if (rail_unlikely(s->zerocopy != NULL)) sk_zerocopy_reap(s);
      if (!s->out_count && !STAILQ_EMPTY(&sc->partly_framed) && sk_path_has_room(comm, s) &&
          sk_shares_may_take(&sc->shares, s))
        take_chunk(sc, s);
      /* Nothing is written, and so no send done, before all streams are established. Until then the peer may refuse the
       * connection, and a caller that has no request left would never learn that. */
      if (!s->out_count || rail_unlikely(comm->not_established)) continue;
      if (rail_unlikely(can_share) && sk_stream_shares_write(s)) shared[nshared++] = s;
      else RAIL_TRY(after_write(sc, s, sk_stream_flush(s, &written), &moved));
    }
    if (rail_unlikely(nshared > 0)) sk_streams_write_shared(shared, nshared, results, &written);
    for (uint32_t i = 0; i < nshared; i++) RAIL_TRY(after_write(sc, shared[i], results[i], &moved));
    if (comm->nstreams > 1) sc->next_stream = (sc->next_stream + 1) % comm->nstreams;
  }
  comm->more = moved;
  return RAIL_OK;
}

/* Of one stream a message's next chunk is all that is left, up to a frame; of several a small rest, else a share. */
static uint32_t chunk_size(const struct sk_send_comm *sc, const struct sk_stream *s, const struct sk_send *send) {
  uint64_t left = send->size - send->framed;
  return left <= sc->last_chunk_max ? (uint32_t)left : sk_shares_chunk_size(&sc->shares, s->index, send->size, left);
}

/* A frame with the next `len` bytes of the message. */
static void queue_chunk(struct sk_send_comm *sc, struct sk_stream *s, struct sk_send *send, enum sk_frame_type type,
                        uint32_t len) {
  queue_frame(sc, s, send, type, send->framed, len);
  send->framed += len;
  sk_completion_add(&send->base.completion); /* until it is written; with FAILOVER: has arrived (sk_path.c) */
}

static bool can_announce(struct sk_send_comm *sc, const struct sk_stream *main_stream) {
  if (rail_likely(!sk_has_failover(&sc->base))) return sk_stream_has_room(main_stream);
  for (uint32_t i = 0; i < sc->base.nstreams; i++) {
    const struct sk_stream *s = &sc->base.streams[i];
    bool up = sc->base.paths[i].state == SK_PATH_UP;
    if (up && !(sk_stream_has_room(s) && sk_path_has_room(&sc->base, s))) return false;
  }
  return true;
}

/* Queues the announcements of what is matched, mostly with all of the payload in the same call. */
static void announce_all(struct sk_send_comm *sc) {
  struct sk_stream *main_stream = sk_main_stream(&sc->base);
  struct sk_send *send;
  while ((send = STAILQ_FIRST(&sc->to_announce)) && can_announce(sc, main_stream)) {
    STAILQ_REMOVE_HEAD(&sc->to_announce, next);
    if (rail_unlikely(send->size >= sc->spread_from)) sk_shares_begin(&sc->shares);
    announce(sc, main_stream, send);
    if (send->framed == send->size) all_framed(sc, send);
    else STAILQ_INSERT_TAIL(&sc->partly_framed, send, next);
  }
}

/* Announces on the main stream. Along with the announcement goes
 *   - the first chunk of the payload, mostly all of it: one call does for both;
 *   - nothing, if it is to be spread and the main one of several streams may not take it: others do;
 *   - nothing, if it is to be spread and FAILOVER announces it on every stream: on the main stream, messages of one
 *     chunk would leave all other devices idle. */
static inline void announce(struct sk_send_comm *sc, struct sk_stream *main_stream, struct sk_send *send) {
  const bool spread = send->size >= sc->spread_from, failover = sk_has_failover(&sc->base);
  const bool others = spread && (failover || main_stream->out_count || !sk_shares_may_take(&sc->shares, main_stream));
  if (!(others && failover))
    queue_chunk(sc, main_stream, send, SK_FRAME_MSG, others ? 0 : chunk_size(sc, main_stream, send));
  if (rail_unlikely(failover)) sk_path_announce(sc, others ? NULL : main_stream, send);
}

/* Queues the next chunk of a message on a stream that is free: a slow one just takes fewer. */
static void take_chunk(struct sk_send_comm *sc, struct sk_stream *s) {
  struct sk_send *send = STAILQ_FIRST(&sc->partly_framed);
  sk_shares_begin(&sc->shares);
  queue_chunk(sc, s, send, SK_FRAME_DATA, chunk_size(sc, s, send));
  if (send->framed < send->size) return;
  STAILQ_REMOVE_HEAD(&sc->partly_framed, next);
  all_framed(sc, send);
}

/* Queues one frame with `len` bytes of the message from `offset`. A frame counts when it is in the kernel, or, if it
 * may have to go another way, when it has arrived. */
static void queue_frame(struct sk_send_comm *sc, struct sk_stream *s, struct sk_send *send, enum sk_frame_type type,
                        uint64_t offset, uint32_t len) {
  const uint8_t *data = send->data + offset;
  uint32_t copied = len <= SK_COPY_BYTES ? len : 0;
  bool failover = sk_has_failover(&sc->base);
  sk_completion *completion = rail_unlikely(failover) ? &sc->base.paths[s->index].queued : &send->base.completion;
  uint8_t *head = sk_stream_queue(s, SK_HEAD + copied, data, len - copied, completion);
  if (type == SK_FRAME_MSG)
    sk_frame_encode(head, type, send->granted ? SK_FRAME_GRANTED : 0, send->seq, send->size, len, send->node.tag);
  else sk_frame_encode(head, type, 0, send->seq, offset, len, send->node.tag);
  if (copied) memcpy(head + SK_HEAD, data, copied);
  rail_stats_add(&s->counts.stream[SK_STREAM_BYTES], len);
  rail_stats_add(&s->counts.stream[SK_STREAM_CHUNKS], len || !send->size); /* an announcement alone is none */
  if (rail_unlikely(failover)) sk_path_remember(&sc->base, s, send->size ? send : NULL, offset, len);
}

/* All frames are made. new_send's count of 1 is taken off; the request is done when sk_stream_wrote has taken off one
 * for each frame (with FAILOVER: sk_path.c, when it has arrived). */
static void all_framed(struct sk_send_comm *sc, struct sk_send *send) {
  rail_stats_add(&sc->base.counts.comm[SK_COMM_MESSAGES], 1);
  rail_stats_add(&sc->base.counts.comm[SK_COMM_SENT_BYTES], send->size);
  sk_completion_drop(&send->base.completion);
}

/* What a lost stream had not delivered is queued before anything new. */
static void queue_resends(struct sk_send_comm *sc, struct sk_stream *s) {
  struct sk_sent_frame frame;
  while (sk_stream_has_room(s) && sk_path_has_room(&sc->base, s) && s->out_bytes < sc->shares.max_chunk &&
         sk_path_next_resend(sc, &frame)) {
    queue_frame(sc, s, frame.send, SK_FRAME_DATA, frame.offset, frame.len);
    rail_stats_add(&sc->base.counts.comm[SK_COMM_RETRIES], 1);
  }
}

/* ---- from sk_progress: CONTROL frames, credit and grants ------------------------------ */

rail_result_t sk_send_on_control(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame) {
  struct sk_send_comm *sc = rail_container_of(comm, struct sk_send_comm, base);
  struct sk_entry entry;
  if (rail_unlikely(s->index != 0 && !sk_has_failover(comm)))
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "protocol error: a control frame on stream %u", s->index);
  if (frame->len % sizeof entry || frame->len > SK_MAX_ENTRIES * sizeof entry)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "protocol error: a control frame of %u bytes", frame->len);
  if (sk_stream_have(s) < SK_HEAD + frame->len) return RAIL_IN_PROGRESS;
  const uint8_t *at = s->buf + s->head + SK_HEAD;
  s->head += SK_HEAD + frame->len;
  /* With FAILOVER the last report comes over all streams, and may overtake others: what these grant is void. */
  bool overtaken = rail_unlikely(sk_has_failover(comm)) && (int32_t)(frame->seen - sc->seen) < 0;
  if (rail_likely(!overtaken)) RAIL_TRY(update_credit(sc, frame));
  if ((frame->flags & SK_FRAME_RESET) && !overtaken) reset_grants(sc);
  for (uint32_t n = frame->len / (uint32_t)sizeof entry; n > 0; n--, at += sizeof entry) {
    memcpy(&entry, at, sizeof entry);
    uint32_t kind = le32toh(entry.kind), key = le32toh(entry.key);
    if (rail_likely(kind == SK_ENTRY_GRANT)) RAIL_TRY(overtaken ? RAIL_OK : on_grant(sc, key, le64toh(entry.value)));
    else if (kind == SK_ENTRY_FRAMES) RAIL_TRY(sk_path_on_frames(sc, key, le64toh(entry.value)));
    else return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "protocol error: a control entry of kind %u", kind);
  }
  if (sc->waiting.count) release_waiting(sc);
  return RAIL_OK;
}

/* The peer had seen these messages when it wrote its latest report, so it grants no buffer to them any more: it has
 * matched them, or keeps them as unexpected ones. Messages are removed in the order in which they were sent, so the one
 * to take out of the table is the oldest of its tag. */
static void forget_seen(struct sk_send_comm *sc, uint32_t seen) {
  while (sc->in_flight_count) {
    struct sk_in_flight *f = &sc->in_flight_store[sc->in_flight_first];
    if ((int32_t)(f->seq - seen) >= 0) break;
    if (!f->has_grant) sk_match_take(&sc->in_flight, f->node.tag);
    sc->in_flight_first = (sc->in_flight_first + 1) % sc->in_flight_cap;
    sc->in_flight_count--;
  }
}

/* What a CONTROL frame says of the messages that the peer has seen, and of credit. */
static rail_result_t update_credit(struct sk_send_comm *sc, const struct sk_frame *control) {
  struct sk_credit *c = &sc->credit;
  if (control->seen - sc->seen > sc->next_seq - sc->seen ||
      control->bytes_freed - c->bytes_freed > c->bytes_used - c->bytes_freed ||
      control->count_freed - c->count_freed > c->count_used - c->count_freed)
    return sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR,
                        "protocol error: the peer reports messages that were not sent (%u seen; %u, %llu bytes, free)",
                        control->seen, control->count_freed, (unsigned long long)control->bytes_freed);
  rail_stats_add(&sc->base.counts.comm[SK_COMM_CONTROL_FRAMES], 1);
  sc->seen = control->seen;
  c->bytes_freed = control->bytes_freed;
  c->count_freed = control->count_freed;
  forget_seen(sc, sc->seen);
  if (rail_unlikely(sk_has_failover(&sc->base))) sk_path_on_seen(sc);
  if (sc->in_flight_count > max_in_flight(sc))
    return sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR,
                        "protocol error: the peer returns the credit of messages that it has not seen");
  return RAIL_OK;
}

/* Some grants may have been lost, so all are void: those that follow are for every buffer that is posted. */
static void reset_grants(struct sk_send_comm *sc) {
  struct sk_match_node *grant;
  for (unsigned int b = 0; b < SK_MATCH_BUCKETS; b++)
    while ((grant = TAILQ_FIRST(&sc->grants.bucket[b]))) free_grant(sc, sk_match_take(&sc->grants, grant->tag));
  sk_match_init(&sc->in_flight);
  for (uint32_t i = 0; i < sc->in_flight_count; i++) {
    struct sk_in_flight *f = &sc->in_flight_store[(sc->in_flight_first + i) % sc->in_flight_cap];
    f->has_grant = false;
    sk_match_put(&sc->in_flight, &f->node);
  }
}

/* A buffer is granted: to an eager message that is in flight, to a send that waits, or to a later one. */
static rail_result_t on_grant(struct sk_send_comm *sc, uint32_t tag, uint64_t size) {
  /* Made before an eager message of that tag arrived there: the two belong together. */
  struct sk_match_node *node = sk_match_take(&sc->in_flight, tag);
  if (node) {
    rail_container_of(node, struct sk_in_flight, node)->has_grant = true;
    return RAIL_OK;
  }
  node = sk_match_take(&sc->waiting, tag);
  if (node) return accept_grant(sc, rail_container_of(node, struct sk_send, node), size);
  node = TAILQ_FIRST(&sc->free_grants);
  if (!node)
    return sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR, "protocol error: the peer granted more than %d buffers",
                        SK_MAX_BUFFERS);
  TAILQ_REMOVE(&sc->free_grants, node, next);
  node->tag = tag;
  rail_container_of(node, struct sk_grant, node)->size = size;
  sk_match_put(&sc->grants, node);
  return RAIL_OK;
}

/* There is credit again: what waited for it goes, in the order of its tag. */
static void release_waiting(struct sk_send_comm *sc) {
  for (unsigned int b = 0; b < SK_MATCH_BUCKETS && sc->waiting.count; b++) {
    struct sk_match_node *node = TAILQ_FIRST(&sc->waiting.bucket[b]), *next;
    for (; node; node = next) {
      struct sk_send *send = rail_container_of(node, struct sk_send, node);
      next = TAILQ_NEXT(node, next);
      if (sk_match_next(&sc->waiting, node->tag, NULL) != node || !has_credit(sc, send->size)) continue;
      sk_match_take(&sc->waiting, node->tag);
      send_eager(sc, send);
    }
  }
}

bool sk_send_is_idle(const struct sk_send_comm *sc) {
  if (sc->waiting.count || sk_send_has_unframed(sc) || sc->undelivered_count) return false;
  for (uint32_t i = 0; i < sc->base.nstreams; i++)
    if (sc->base.streams[i].out_count) return false;
  return true;
}

bool sk_send_should_read(const struct sk_send_comm *sc) {
  return sc->posts_since_read >= READ_AFTER_POSTS || !sk_send_is_idle(sc);
}

/* ---- the end: test has found the request done ------------------------------------- */

void sk_send_finish(struct sk_send_comm *sc, struct sk_send *send, int *sizes) {
  if (sizes) sizes[0] = send->size > INT_MAX ? INT_MAX : (int)send->size;
  sk_mr_release(send->mr);
  sk_request_put(&sc->pool, &send->base);
}

/* ---- the sender's part of a comm: made and freed --------------------------------- */

rail_result_t sk_send_init(struct sk_send_comm *sc, const struct sk_comm_args *args) {
  sc->in_flight_cap = args->eager_count + SK_MAX_SENDS;
  sc->in_flight_store = calloc(sc->in_flight_cap, sizeof *sc->in_flight_store);
  for (int i = SK_MAX_SENDS; i-- > 0;) {
    struct sk_request *r = &sc->sends[i].base;
    *r = (struct sk_request){.magic = SK_REQ_FREE, .comm = &sc->base};
    SLIST_INSERT_HEAD(&sc->pool, r, next_free);
  }
  sk_match_init(&sc->waiting);
  sk_match_init(&sc->grants);
  sk_match_init(&sc->in_flight);
  TAILQ_INIT(&sc->free_grants);
  for (int i = 0; i < SK_MAX_BUFFERS; i++) TAILQ_INSERT_TAIL(&sc->free_grants, &sc->grant_store[i].node, next);
  STAILQ_INIT(&sc->to_announce);
  STAILQ_INIT(&sc->partly_framed);
  STAILQ_INIT(&sc->zero_length);
  TAILQ_INIT(&sc->undelivered);
  bool several = args->nstreams > 1;
  sk_shares_init(&sc->shares, args->nstreams, several ? (uint32_t)sk_params.chunk : SK_MAX_FRAME);
  sc->last_chunk_max = several ? RAIL_MIN(sc->shares.max_chunk, SK_LAST_CHUNK_MAX) : SK_MAX_FRAME;
  sc->spread_from = several ? SPREAD_BYTES : UINT64_MAX;
  sc->eager_size = args->eager_size;
  sc->eager_count = args->eager_count;
  sc->eager_bytes = args->eager_bytes & ~63u;
  return sc->in_flight_store ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

void sk_send_release(struct sk_send_comm *sc) {
  free(sc->in_flight_store);
  sc->in_flight_store = NULL;
}
