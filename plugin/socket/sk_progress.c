/* SPDX-License-Identifier: Apache-2.0
 *
 * test, and the one progress function: queued frames out, readable streams in, each frame to the function for its
 * type (frame_ops). A stream is read until it is empty or the call has done enough.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "plugin/socket/sk_failover.h"
#include "plugin/socket/sk_recv.h"
#include "plugin/socket/sk_send.h"

#define HELP_TESTS 1024 /* without progress: the engine's thread seems not to run. 10 to 20 us of nothing but tests */
#define PONGS_AT_ONCE 4 /* per call and comm: a peer asks a few times a minute */

enum parse_result {
  PARSE_NEEDS_BYTES, /* of the frame that comes next */
  PARSE_BLOCKED,     /* until the message has its buffer, or another stream has announced it; until TLS goes on, or the
                      * connection is tried again */
  PARSE_FAILED,      /* the comm has failed: sk_comm_error */
};

/* ---- the steps of test, in their order; each is explained at its definition ---- */

static rail_result_t help_engine(struct sk_comm *comm);
static rail_result_t progress_if_free(struct sk_comm *comm);
static rail_result_t progress_send(struct sk_send_comm *sc);
static rail_result_t progress_recv(struct sk_recv_comm *rc);
static rail_result_t read_stream(struct sk_comm *comm, struct sk_stream *s, uint64_t *bytes);
static enum parse_result parse(struct sk_comm *comm, struct sk_stream *s);
RAIL_COLD static bool set_up(struct sk_comm *comm, struct sk_stream *s, enum parse_result *parsed);
static rail_result_t on_keepalive(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame);
static void report_idle(struct sk_comm *comm, bool stuck);

/* ---- test ------------------------------------------------------------- */

rail_result_t sk_test(void *request, int *done, int *sizes) {
  struct sk_request *r = request;
  if (rail_unlikely(!r || r == RAIL_NET_OPTIONAL_RECV || (r->magic != SK_REQ_SEND && r->magic != SK_REQ_RECV)))
    return rail_net_refuse_request("RailSocket", request);
  struct sk_comm *comm = r->comm;
  bool is_send = r->magic == SK_REQ_SEND;
  if (is_send) sk_send_tested(rail_container_of(comm, struct sk_send_comm, base));
  if (!sk_request_is_done(r)) {
    rail_result_t result = comm->engine ? help_engine(comm) : progress_if_free(comm);
    /* A request that finished is finished, whatever became of the others. */
    if (!sk_request_is_done(r)) {
      if (rail_unlikely(result != RAIL_OK && comm->profile)) sk_profile_stop(r);
      return result;
    }
  }
  comm->idle_polls = 0;
  if (rail_unlikely(comm->profile != NULL)) sk_profile_stop(r);
  if (is_send)
    sk_send_finish(rail_container_of(comm, struct sk_send_comm, base), rail_container_of(r, struct sk_send, base),
                   sizes);
  else
    sk_recv_finish(rail_container_of(comm, struct sk_recv_comm, base), rail_container_of(r, struct sk_recv, base),
                   sizes);
  *done = 1;
  return RAIL_OK;
}

static rail_result_t comm_status(const struct sk_comm *comm) {
  return rail_unlikely(sk_comm_is_stopped(comm)) ? RAIL_BAD_USAGE : sk_comm_error(comm);
}

/* Where the engine moves the comm, the caller does so only with what was kept for this moment, and when the engine's
 * thread does not come to run. */
static rail_result_t help_engine(struct sk_comm *comm) {
  if (!atomic_load_explicit(&comm->deferred, memory_order_relaxed) && ++comm->idle_polls < HELP_TESTS)
    return comm_status(comm);
  rail_result_t result = progress_if_free(comm);
  comm->idle_polls = 0;
  return result;
}

/* Moves the comm, unless another thread does. The result is that of the comm. */
static rail_result_t progress_if_free(struct sk_comm *comm) {
  if (!sk_comm_try_own(comm)) return comm_status(comm);
  rail_result_t result = sk_progress(comm);
  if (comm->engine && result == RAIL_OK) report_idle(comm, comm->idle_polls >= HELP_TESTS);
  sk_comm_disown(comm);
  return result;
}

rail_result_t sk_progress(struct sk_comm *comm) {
  comm->more = false;
  comm->pongs = 0;
  if (rail_unlikely(sk_comm_error(comm) != RAIL_OK)) {
    sk_comm_send_error(comm);
    return sk_comm_error(comm);
  }
  if (comm->side == SK_RECEIVER) return progress_recv(rail_container_of(comm, struct sk_recv_comm, base));
  return progress_send(rail_container_of(comm, struct sk_send_comm, base));
}

/* ---- sender ----------------------------------------------------------- */

/* A stream cannot be written any more. The peer may have sent an ERROR, and its last grants may finish requests: read
 * what is there, then fail. */
RAIL_COLD static rail_result_t write_failed(struct sk_comm *comm) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < comm->nstreams; i++) RAIL_TRY(read_stream(comm, &comm->streams[i], &bytes));
  if (sk_comm_error(comm) != RAIL_OK) return sk_comm_error(comm);
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (comm->streams[i].out_errno) return sk_comm_fail_lost(comm, &comm->streams[i]);
  return RAIL_OK;
}

/* Has the peer gone with something outstanding? */
static rail_result_t check_peer(struct sk_send_comm *sc) {
  struct sk_comm *comm = &sc->base;
  if (rail_unlikely(sk_has_failover(comm))) {
    bool ended;
    RAIL_TRY(sk_failover_check(comm, &ended));
    return ended && !sk_send_is_idle(sc) ? sk_comm_fail_lost(comm, sk_main_stream(comm)) : RAIL_OK;
  }
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (rail_unlikely(comm->streams[i].eof) && !sk_send_is_idle(sc)) return sk_comm_fail_lost(comm, &comm->streams[i]);
  return RAIL_OK;
}

/* Moves a sender: writes, then reads CONTROL frames if it is time to. */
static rail_result_t progress_send(struct sk_send_comm *sc) {
  struct sk_comm *comm = &sc->base;
  uint64_t bytes = 0;
  bool was_established = !comm->not_established;
  sk_send_start_submitted(sc);
  if (sk_send_post(sc) != RAIL_OK) return write_failed(comm);
  if (!sk_send_should_read(sc)) return sk_comm_error(comm);
  sc->posts_since_read = 0;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (i == 0 || !s->established || sk_has_failover(comm)) RAIL_TRY(read_stream(comm, s, &bytes));
  }
  if (rail_unlikely(comm->not_established && comm->reconnect)) RAIL_TRY(sk_failover_retry_hellos(comm));
  bool more = bytes >= SK_CALL_BYTES || (bytes && sk_has_failover(comm)); /* there may be something to send again */
  bool post = !STAILQ_EMPTY(&sc->to_announce) || rail_unlikely(!was_established && !comm->not_established);
  if (post && sk_send_post(sc) != RAIL_OK) return write_failed(comm);
  comm->more |= more;
  return check_peer(sc);
}

/* ---- receiver --------------------------------------------------------- */

/* A stream has ended. Can what is outstanding still arrive? */
RAIL_COLD static rail_result_t check_ends(struct sk_recv_comm *rc) {
  struct sk_comm *comm = &rc->base;
  const struct sk_stream *first = &comm->streams[0];
  bool all_ended = true;
  if (sk_has_failover(comm)) {
    RAIL_TRY(sk_failover_check(comm, &all_ended));
    return all_ended && (rc->incomplete || rc->posted.count) ? sk_comm_fail_lost(comm, sk_main_stream(comm)) : RAIL_OK;
  }
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    const struct sk_stream *s = &comm->streams[i];
    bool broke = s->eof && s->in_errno;
    if (s->eof && s->len) return sk_comm_fail_lost(comm, s); /* in the middle of a payload */
    /* A TLS stream that ended without close_notify may have lost a message for a posted buffer. */
    if (broke && s->tls && (rc->incomplete || rc->posted.count)) return sk_comm_fail_lost(comm, s);
    /* It may have lost a chunk. Not the first stream: that is written too, and a peer which has delivered everything
     * and closed answers what is written with a reset. */
    if (broke && i > 0 && rc->incomplete) return sk_comm_fail_lost(comm, s);
    if (!s->eof && first->eof && sk_stream_have(s) >= SK_HEAD)
      return sk_comm_fail_lost(comm, first); /* waits for an announcement that will not come */
    all_ended &= s->eof;
  }
  /* Announced messages may still come in over the other streams; unannounced ones never. */
  if (rc->incomplete ? all_ended : first->eof && rc->posted.count) return sk_comm_fail_lost(comm, first);
  return RAIL_OK;
}

/* Streams other than the first, where it is not in vain. */
static rail_result_t read_others(struct sk_recv_comm *rc, uint64_t *bytes, bool *ended) {
  struct sk_comm *comm = &rc->base;
  bool others = sk_recv_should_read_others(rc);
  for (uint32_t i = 1; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (others || !s->established) RAIL_TRY(read_stream(comm, s, bytes));
    *ended |= s->eof;
  }
  return RAIL_OK;
}

/* Payloads of several streams are received at the same time, by the engine's threads, until all streams are empty or
 * SK_CALL_BYTES are done. */
static rail_result_t read_shared(struct sk_comm *comm, uint64_t *bytes, bool *ended) {
  bool empty[SK_MAX_STREAMS] = {false};
  while (*bytes < SK_CALL_BYTES) {
    struct sk_stream *shared[SK_MAX_STREAMS];
    rail_result_t results[SK_MAX_STREAMS];
    bool more[SK_MAX_STREAMS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < comm->nstreams; i++)
      if (!empty[i] && sk_stream_shares_fill(&comm->streams[i])) shared[n++] = &comm->streams[i];
    if (!n) return RAIL_OK;
    sk_streams_fill_shared(shared, n, results, bytes, more);
    for (uint32_t i = 0; i < n; i++) {
      struct sk_stream *s = shared[i];
      empty[s->index] = !more[i];
      if (results[i] != RAIL_IN_PROGRESS) RAIL_TRY(read_stream(comm, s, bytes));
      *ended |= s->eof;
    }
  }
  return RAIL_OK;
}

/* Moves a receiver: reads, then reports. */
static rail_result_t progress_recv(struct sk_recv_comm *rc) {
  struct sk_comm *comm = &rc->base;
  uint64_t bytes = 0;
  bool ended;
  comm->shares_reads = comm->nstreams > 1 && sk_engine_can_share();
  sk_recv_start_submitted(rc);
  const enum sk_unread before = rc->unread;
  rc->unread = SK_UNREAD_NONE;
  RAIL_TRY(read_stream(comm, &comm->streams[0], &bytes));
  ended = comm->streams[0].eof;
  if (comm->nstreams > 1) RAIL_TRY(read_others(rc, &bytes, &ended));
  const uint32_t announced = rc->next_seq;
  if (rail_unlikely(comm->shares_reads)) RAIL_TRY(read_shared(comm, &bytes, &ended));
  if (before && bytes && !rc->unread) rc->unread = SK_UNREAD_REST;
  comm->more = bytes >= SK_CALL_BYTES ||
               (bytes && sk_has_failover(comm)) || /* one that waited for another may go on */
               rc->next_seq != announced ||        /* so may DATA that waited for what read_shared has read */
               rc->unread == SK_UNREAD_REST;
  comm->ended = ended;
  /* Not while DATA may wait for an announcement that read_shared has just brought. */
  if (rail_unlikely(ended) && rc->next_seq == announced) RAIL_TRY(check_ends(rc));
  sk_grant_report_after_read(rc, bytes);
  return sk_comm_error(comm);
}

/* ---- reading ------------------------------------------------------------------ */

/* Reads and parses until the stream is empty, waits, has ended, or SK_CALL_BYTES are done. *bytes grows. Only errors of
 * the comm come back. */
static rail_result_t read_stream(struct sk_comm *comm, struct sk_stream *s, uint64_t *bytes) {
  bool more = true;
  for (;;) {
    enum parse_result parsed = parse(comm, s);
    if (rail_unlikely(parsed == PARSE_FAILED)) return sk_comm_error(comm);
    if (rail_unlikely(parsed == PARSE_BLOCKED)) return RAIL_OK;
    if (s->eof || s->fd < 0 || !more || *bytes >= SK_CALL_BYTES) return RAIL_OK;
    if (rail_unlikely(comm->shares_reads) && sk_stream_shares_fill(s)) return RAIL_OK; /* read_shared */
    if (sk_stream_fill(s, bytes, &more) != RAIL_OK && !s->eof) return RAIL_OK;
  }
}

/* What each frame means to each side. A function consumes the frame's bytes in the stream's buffer. RAIL_IN_PROGRESS:
 * not all of it is here, or it must wait for its buffer (MSG) or another stream (DATA); else the comm's failure. */
typedef rail_result_t (*frame_fn)(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame);
static const frame_fn frame_ops[][SK_FRAME_TYPES] = {
  [SK_SENDER] = {
    [SK_FRAME_CONTROL] = sk_send_on_control,
    [SK_FRAME_ERROR] = sk_error_on_frame,
    [SK_FRAME_PING] = on_keepalive,
    [SK_FRAME_PONG] = on_keepalive,
    [SK_FRAME_LOST] = sk_failover_on_lost,
  },
  [SK_RECEIVER] = {
    [SK_FRAME_MSG] = sk_recv_on_msg,
    [SK_FRAME_DATA] = sk_recv_on_data,
    [SK_FRAME_ERROR] = sk_error_on_frame,
    [SK_FRAME_PING] = on_keepalive,
    [SK_FRAME_PONG] = on_keepalive,
    [SK_FRAME_LOST] = sk_failover_on_lost,
    [SK_FRAME_JOIN] = sk_failover_on_join,
  },
};

RAIL_COLD static enum parse_result bad_header(struct sk_comm *comm, const struct sk_stream *s,
                                              const struct sk_frame *frame) {
  const char *what = frame->guard == SK_FRAME_GUARD && frame->reserved
                       ? "a frame header whose reserved bytes are not zero"
                       : "no frame header where one must be";
  sk_comm_fail(comm, RAIL_REMOTE_ERROR, "protocol error: %s, on stream %u", what, s->index);
  return PARSE_FAILED;
}

RAIL_COLD static enum parse_result bad_type(struct sk_comm *comm, const struct sk_frame *frame) {
  sk_comm_fail(comm, RAIL_REMOTE_ERROR,
               "protocol error: a frame that a %s does not send (frame type %u, message %u, size or offset %llu, "
               "%u bytes, tag %u)", comm->side == SK_SENDER ? "receiver" : "sender", frame->type, frame->seq,
               (unsigned long long)frame->size, frame->len, frame->tag);
  return PARSE_FAILED;
}

/* All that is in the buffer: frames, each a header and its payload. on_frame reads a header and says where its payload
 * goes (sk_stream_expect); that is taken in the loop's next turn, or its rest by the next call. */
static enum parse_result parse(struct sk_comm *comm, struct sk_stream *s) {
  struct sk_frame frame;
  rail_result_t result;
  enum parse_result parsed;
  if (rail_unlikely(!s->established) && !set_up(comm, s, &parsed)) return parsed;
  for (;;) {
    if (s->len) {
      if (!sk_stream_take_payload(s)) return PARSE_NEEDS_BYTES;
      result = sk_recv_on_payload(rail_container_of(comm, struct sk_recv_comm, base), s);
      if (rail_unlikely(result != RAIL_OK)) return PARSE_FAILED;
    }
    if (sk_stream_have(s) < SK_HEAD) return PARSE_NEEDS_BYTES;
    if (rail_unlikely(!sk_frame_decode(s->buf + s->head, &frame))) return bad_header(comm, s, &frame);
    frame_fn on_frame = frame_ops[comm->side][frame.type];
    if (rail_unlikely(!on_frame)) return bad_type(comm, &frame);
    result = on_frame(comm, s, &frame);
    /* MSG and DATA wait for a buffer or another stream, the others for the rest of their bytes. */
    if (result == RAIL_IN_PROGRESS) return frame.type <= SK_FRAME_DATA ? PARSE_BLOCKED : PARSE_NEEDS_BYTES;
    if (rail_unlikely(result != RAIL_OK)) return PARSE_FAILED;
  }
}

/* ---- before the first frame: the acceptor's ANSWER, TLS ------------------------- */

/* From here on all is TLS: what came in clear behind ANSWER is not the peer's. */
RAIL_COLD static rail_result_t begin_tls(struct sk_comm *comm, struct sk_stream *s) {
  if (sk_stream_have(s))
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "protocol error: bytes in clear on stream %u, where TLS must begin",
                        s->index);
  rail_result_t result = sk_tls_begin_stream(s->tls, s->fd, &comm->sessions[s->index]);
  if (result == RAIL_OK) return RAIL_OK;
  return sk_comm_fail(comm, result, "stream %u cannot begin TLS; the line before says why", s->index);
}

/* The acceptor's ANSWER to this stream's HELLO is here whole. RAIL_IN_PROGRESS: the acceptor was busy, and the stream
 * is connected again (sk_failover_retry_hellos). */
RAIL_COLD static rail_result_t on_answer(struct sk_comm *comm, struct sk_stream *s) {
  unsigned int version;
  const uint8_t *answer = s->buf + s->head;
  s->head += (uint32_t)rail_message_need(&sk_protocol, answer, sk_stream_have(s));
  unsigned int reason = sk_answer_decode(&comm->sessions[s->index], answer, comm->features, &version);
  if (reason == RAIL_REASON_GARBAGE)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR,
                        "stream %u was not answered by RailSocket; is another program at that address?", s->index);
  char versions[64] = "";
  if (version && version != SK_WIRE_VERSION)
    snprintf(versions, sizeof versions, " (its protocol version %u, ours %d)", version, SK_WIRE_VERSION);
  if (sk_reason_is_passing(reason) && comm->reconnect) {
    s->eof = true;
    return RAIL_IN_PROGRESS;
  }
  if (reason != RAIL_REASON_NONE)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "the peer refused stream %u: %s%s",
                        s->index, rail_reason_text(&sk_protocol, reason), versions);
  s->welcomed = true;
  return s->tls ? begin_tls(comm, s) : RAIL_OK;
}

/* What comes before the first frame: the sender reads the acceptor's ANSWER; then TLS has its handshake. True: frames
 * may follow. A failed handshake ends the stream (eof, in_errno); check_peer or check_ends reports it only if a request
 * is outstanding. */
RAIL_COLD static bool set_up(struct sk_comm *comm, struct sk_stream *s, enum parse_result *parsed) {
  *parsed = PARSE_NEEDS_BYTES;
  if (s->fd < 0) return false; /* to be connected again */
  if (!s->welcomed) {
    if (sk_stream_have(s) < rail_message_need(&sk_protocol, s->buf + s->head, sk_stream_have(s))) return false;
    rail_result_t result = on_answer(comm, s);
    *parsed = result == RAIL_IN_PROGRESS ? PARSE_BLOCKED : PARSE_FAILED;
    if (result != RAIL_OK) return false;
  }
  *parsed = PARSE_BLOCKED;
  rail_result_t result = s->tls ? sk_tls_handshake(s->tls) : RAIL_OK;
  if (result != RAIL_OK && result != RAIL_IN_PROGRESS) {
    s->eof = true;
    s->in_errno = errno;
  }
  if (result != RAIL_OK) return false;
  sk_failover_established(comm, s);
  return true;
}

/* ---- PING and PONG ------------------------------------------------------- */

/* Where there is no room, or streams are not established, the peer asks again, or is asked again. Counted before its
 * bytes are: the watch thread, which compares the two without owning the comm, must not take a PING for progress. */
static void send_keepalive(struct sk_comm *comm, struct sk_stream *s, enum sk_frame_type type) {
  if (comm->not_established || !sk_stream_can_queue(s)) return;
  rail_stats_add(&comm->traffic.keepalives_out, 1);
  sk_stream_send_frame(s, type, 0, 0, 0);
}

/* A PING or a PONG has come. */
static rail_result_t on_keepalive(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame) {
  if (frame->len)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "protocol error: frame type %u with a payload", frame->type);
  s->head += SK_HEAD;
  rail_stats_add(&comm->traffic.keepalives_in, 1);
  if (frame->type == SK_FRAME_PING && comm->pongs++ < PONGS_AT_ONCE) send_keepalive(comm, s, SK_FRAME_PONG);
  return RAIL_OK;
}

void sk_progress_ping(struct sk_comm *comm) {
  send_keepalive(comm, sk_main_stream(comm), SK_FRAME_PING);
}

/* ---- other threads that move a comm: the watch thread, the engine's ---------------- */

/* The owner may not come back soon: it reports all that the peer can use. */
static void report_idle(struct sk_comm *comm, bool stuck) {
  atomic_store_explicit(&comm->deferred, 0, memory_order_relaxed);
  if (comm->side == SK_RECEIVER && !comm->more)
    sk_grant_report_when_idle(rail_container_of(comm, struct sk_recv_comm, base), stuck);
}

/* The next call reads whatever has come. */
static void read_soon(struct sk_comm *comm) {
  if (comm->side == SK_SENDER) sk_send_read_soon(rail_container_of(comm, struct sk_send_comm, base));
  else sk_recv_read_soon(rail_container_of(comm, struct sk_recv_comm, base));
}

/* The watch thread calls this rarely, so whatever a progress call may put off is done now: the sender reads control
 * frames, the receiver reports. If the call stopped at SK_CALL_BYTES, a PING may lie behind what it read, and would be
 * answered only by the next call: PONG is sent at once. */
rail_result_t sk_progress_watch(struct sk_comm *comm) {
  uint64_t before = rail_stats_get(&comm->traffic.in);
  struct sk_recv_comm *rc = comm->side == SK_RECEIVER ? rail_container_of(comm, struct sk_recv_comm, base) : NULL;
  read_soon(comm);
  if (rc) {
    rc->idle_calls = SK_MANY_CALLS;
    rc->read_all = true;
  }
  rail_result_t result = sk_progress(comm);
  if (rc) rc->read_all = false;
  RAIL_TRY(result);
  if (rail_stats_get(&comm->traffic.in) - before >= SK_CALL_BYTES)
    send_keepalive(comm, sk_main_stream(comm), SK_FRAME_PONG);
  return RAIL_OK;
}

enum sk_poll_result sk_progress_engine(void *arg, bool readable) {
  struct sk_comm *comm = arg;
  if (sk_comm_is_stopped(comm)) return SK_POLL_IDLE;
  if (!sk_comm_try_own(comm)) return SK_POLL_BUSY;
  if (readable) read_soon(comm);
  if (sk_progress(comm) == RAIL_OK) report_idle(comm, false);
  else comm->more = false;
  bool more = comm->more;
  atomic_store_explicit(&comm->owner, 0, memory_order_release); /* disown without a notification: `more` is returned */
  return more ? SK_POLL_MORE : SK_POLL_IDLE;
}
