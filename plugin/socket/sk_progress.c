/* SPDX-License-Identifier: Apache-2.0
 *
 * test and the one progress function: writable streams out, readable streams
 * in, headers to the side they concern. The functions below read from a stream
 * until it is dry or the call has done enough.
 */
#include <errno.h>
#include <stdio.h>

#include "common/base/log.h"
#include "plugin/socket/sk_dial.h"
#include "plugin/socket/sk_profile.h"
#include "plugin/socket/sk_rail.h"
#include "plugin/socket/sk_recv.h"
#include "plugin/socket/sk_send.h"
#include "plugin/socket/sk_zerocopy.h"

#define HELP_TESTS 1024              /* 10 to 20 us for a caller that does nothing else */
#define PONGS_AT_ONCE 4             /* per call and comm: a peer asks a few times a minute */
#define READ_BYTES (2 * SK_IO_BYTES) /* per call and comm: a call must return within a millisecond */

/* Control frames without payload, both ways. Best effort: where there is no room, the peer asks again. */
static void send_word(struct sk_comm *comm, struct sk_stream *s, enum sk_frame_type type) {
  if (!sk_stream_can_queue(s)) return;
  sk_frame_encode(sk_stream_queue(s, SK_HEAD, NULL, 0, NULL), type, 0, 0, 0, 0, 0);
  rail_stats_add(&comm->moved.words_out, 1);
  (void)sk_stream_flush(s, &(uint64_t){0});
}

/* LOST and JOIN: RAIL_OK when it was one, RAIL_IN_PROGRESS when not, or the comm's failure. */
static rail_result_t on_rail_word(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame) {
  struct sk_rail *rail = sk_rail_of(comm, s);
  if (frame->len || (frame->type != SK_FRAME_LOST && frame->type != SK_FRAME_JOIN)) return RAIL_IN_PROGRESS;
  s->head += SK_HEAD;
  if (frame->type == SK_FRAME_LOST) return sk_rail_on_lost(comm, frame);
  if (rail && comm->side == SK_RECEIVER) return sk_rail_on_join(comm, s, frame);
  return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "protocol error: stream %u joins where none was lost", s->index);
}

/* True if it was one of those that say nothing but that the peer is there. */
static bool on_word(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame) {
  if (frame->len || (frame->type != SK_FRAME_PING && frame->type != SK_FRAME_PONG)) return false;
  rail_stats_add(&comm->moved.words_in, 1);
  if (frame->type == SK_FRAME_PING && comm->answered++ < PONGS_AT_ONCE) send_word(comm, s, SK_FRAME_PONG);
  return true;
}

void sk_ping(struct sk_comm *comm) {
  if (!comm->hold) send_word(comm, sk_main_stream(comm), SK_FRAME_PING);
}

void sk_flush_all(struct sk_comm *comm) {
  uint64_t written = 0;
  for (uint32_t i = 0; i < comm->nstreams; i++)
    while (comm->streams[i].out_count && sk_stream_flush(&comm->streams[i], &written) == RAIL_OK) continue;
}

RAIL_COLD static rail_result_t lost_its_place(struct sk_comm *comm, const struct sk_stream *s) {
  return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "protocol error: no frame header where one must be, on stream %u",
                      s->index);
}

/* The peer's last word. */
RAIL_COLD static rail_result_t on_error(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame) {
  struct sk_error body;
  if (sk_stream_have(s) < sizeof(struct sk_frame) + sizeof body) return RAIL_IN_PROGRESS;
  memcpy(&body, s->buf + s->head + sizeof(struct sk_frame), sizeof body);
  if (frame->size == RAIL_BAD_USAGE)
    return sk_comm_fail(comm, RAIL_BAD_USAGE,
                        "the peer says: a message of %llu bytes with tag %u meets a receive buffer of %llu bytes; "
                        "send and receive do not fit together",
                        (unsigned long long)le64toh(body.message_size), frame->tag,
                        (unsigned long long)le64toh(body.capacity));
  return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "the peer gave up: %s",
                      rail_result_name(frame->size < RAIL_IN_PROGRESS ? (int)frame->size : RAIL_REMOTE_ERROR));
}

/* ---- parsing: RAIL_OK all consumed, RAIL_IN_PROGRESS waits for another stream ---- */

static rail_result_t parse_in(struct sk_recv_comm *rc, struct sk_stream *s) {
  struct sk_frame frame;
  for (;;) {
    if (s->len) {
      if (!sk_stream_take_payload(s)) return RAIL_OK;
      RAIL_TRY(sk_recv_on_payload(rc, s));
      s->len = 0;
    }
    if (sk_stream_have(s) < sizeof frame) return RAIL_OK;
    if (rail_unlikely(!sk_frame_decode(s->buf + s->head, &frame))) return lost_its_place(&rc->base, s);
    if (rail_unlikely(frame.type == SK_FRAME_ERROR)) {
      rail_result_t result = on_error(&rc->base, s, &frame);
      return result == RAIL_IN_PROGRESS ? RAIL_OK : result;
    }
    if (rail_unlikely(frame.type > SK_FRAME_DATA)) {
      if (on_word(&rc->base, s, &frame)) {
        s->head += SK_HEAD;
        continue;
      }
      rail_result_t result = on_rail_word(&rc->base, s, &frame);
      if (result == RAIL_OK) continue;
      if (result != RAIL_IN_PROGRESS) return result;
    }
    if (rail_unlikely(rc->base.rails && rc->base.rails[s->index].joining)) return lost_its_place(&rc->base, s);
    RAIL_TRY(sk_recv_on_frame(rc, s, &frame));
    s->head += sizeof frame;
    if (!frame.len) RAIL_TRY(sk_recv_on_payload(rc, s)); /* a message of 0 bytes is complete */
  }
}

static rail_result_t on_answer(struct sk_comm *comm, struct sk_stream *s) {
  unsigned int version;
  const uint8_t *answer = s->buf + s->head;
  s->head += (uint32_t)rail_message_need(&sk_protocol, answer, sk_stream_have(s));
  unsigned int reason = sk_answer_decode(&comm->sessions[s->index], answer, comm->features, &version);
  if (reason == RAIL_REASON_GARBAGE)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR,
                        "stream %u was not answered by RailSocket; is another program at that address?", s->index);
  char versions[64] = "";
  if (version) snprintf(versions, sizeof versions, " (its protocol version %u, ours %d)", version, SK_WIRE_VERSION);
  if ((reason == RAIL_REASON_BUSY || reason == RAIL_REASON_TIMEOUT) && comm->reconnect) {
    s->eof = true;
    return RAIL_IN_PROGRESS; /* once more, see retry_hellos */
  }
  if (reason != RAIL_REASON_NONE)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "the peer refused stream %u: %s%s",
                        s->index, rail_reason_text(&sk_protocol, reason), versions);
  sk_send_welcomed(rail_container_of(comm, struct sk_send_comm, base), s);
  return RAIL_OK;
}

static rail_result_t on_control(struct sk_send_comm *sc, struct sk_stream *s, const struct sk_frame *frame) {
  struct sk_entry entry;
  if (frame->len % sizeof entry || frame->len > SK_MAX_ENTRIES * sizeof entry)
    return sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR, "protocol error: a control frame of %u bytes", frame->len);
  if (sk_stream_have(s) < SK_HEAD + frame->len) return RAIL_IN_PROGRESS;
  const uint8_t *at = s->buf + s->head + SK_HEAD;
  s->head += SK_HEAD + frame->len;
  RAIL_TRY(sk_send_on_control(sc, frame));
  if (frame->flags & SK_FRAME_RESET) sk_send_reset_grants(sc);
  for (uint32_t n = frame->len / (uint32_t)sizeof entry; n > 0; n--, at += sizeof entry) {
    memcpy(&entry, at, sizeof entry);
    uint32_t kind = le32toh(entry.kind), key = le32toh(entry.key);
    if (rail_likely(kind == SK_ENTRY_GRANT)) RAIL_TRY(sk_send_on_grant(sc, key, le64toh(entry.value)));
    else if (kind == SK_ENTRY_FRAMES) RAIL_TRY(sk_rail_on_frames(sc, key, le64toh(entry.value)));
    else return sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR, "protocol error: a control entry of kind %u", kind);
  }
  sk_send_after_control(sc);
  return RAIL_OK;
}

static rail_result_t parse_out(struct sk_send_comm *sc, struct sk_stream *s) {
  struct sk_frame frame;
  if (!s->welcomed) {
    if (sk_stream_have(s) < rail_message_need(&sk_protocol, s->buf + s->head, sk_stream_have(s))) return RAIL_OK;
    RAIL_TRY(on_answer(&sc->base, s));
  }
  while (sk_stream_have(s) >= sizeof frame) {
    rail_result_t result = RAIL_OK;
    if (rail_unlikely(!sk_frame_decode(s->buf + s->head, &frame))) return lost_its_place(&sc->base, s);
    if (rail_likely(frame.type == SK_FRAME_CONTROL && (s->index == 0 || sc->base.rails)))
      result = on_control(sc, s, &frame);
    else if (frame.type == SK_FRAME_ERROR) result = on_error(&sc->base, s, &frame);
    else if (on_word(&sc->base, s, &frame)) s->head += SK_HEAD;
    else if ((result = on_rail_word(&sc->base, s, &frame)) == RAIL_IN_PROGRESS)
      result = sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR, "protocol error: frame type %u from a receiver", frame.type);
    if (result == RAIL_IN_PROGRESS) return RAIL_OK; /* not all of it is here */
    if (result != RAIL_OK) return result;
  }
  return RAIL_OK;
}

static rail_result_t parse(struct sk_comm *comm, struct sk_stream *s) {
  if (comm->side == SK_RECEIVER) return parse_in(rail_container_of(comm, struct sk_recv_comm, base), s);
  return parse_out(rail_container_of(comm, struct sk_send_comm, base), s);
}

/* Reads and parses until the stream is dry, waits, has ended, or `limit` bytes
 * are done. *bytes grows. Only errors of the comm come back. */
static rail_result_t read_stream(struct sk_comm *comm, struct sk_stream *s, uint64_t limit, uint64_t *bytes) {
  bool more = true;
  for (;;) {
    rail_result_t result = parse(comm, s);
    if (rail_unlikely(result != RAIL_OK)) return result == RAIL_IN_PROGRESS ? RAIL_OK : result;
    if (s->eof || s->fd < 0 || !more || *bytes >= limit) return RAIL_OK;
    if (sk_stream_fill(s, bytes, &more) != RAIL_OK && !s->eof) return RAIL_OK;
  }
}

/* ---- sender ----------------------------------------------------------- */

/* A stream cannot be written any more. The peer may have said why, and its
 * last grants may finish requests: read what is there, then give up. */
RAIL_COLD static rail_result_t write_failed(struct sk_comm *comm) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < comm->nstreams; i++) RAIL_TRY(read_stream(comm, &comm->streams[i], READ_BYTES, &bytes));
  if (sk_comm_error(comm) != RAIL_OK) return sk_comm_error(comm);
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (comm->streams[i].out_errno) return sk_comm_fail_lost(comm, &comm->streams[i]);
  return RAIL_OK;
}

/* With FAILOVER. A stream that broke is lost; one that ended properly was closed by the peer, or given up, and then the
 * peer says LOST over another. *ended: no stream is left that might say anything. */
static rail_result_t check_rails(struct sk_comm *comm, bool *ended) {
  *ended = true;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (s->fd < 0) continue;
    int err = s->in_errno ? s->in_errno : s->out_errno;
    if (rail_unlikely((s->eof && s->in_errno) || s->out_errno)) RAIL_TRY(sk_rail_lost(comm, s, strerror(err)));
    *ended &= s->fd < 0 || s->eof;
  }
  return RAIL_OK;
}

/* Streams that ended before the acceptor answered: others took their places, or it was busy. Nothing but HELLO was
 * written, so that is said again. Where nobody listens any more the peer has gone. */
RAIL_COLD static rail_result_t retry_hellos(struct sk_comm *comm) {
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (s->welcomed || (s->fd >= 0 && !s->eof)) continue;
    if (s->fd >= 0) {
      sk_comm_remove_socket(comm, s);
      rail_sock_close(&s->fd);
      s->head = s->tail = 0;
      s->eof = false;
      s->in_errno = s->out_errno = 0;
    }
    int fd;
    rail_result_t result = sk_reconnect_unanswered(comm->reconnect, i, &comm->sessions[i], &fd);
    if (result == RAIL_IN_PROGRESS) continue;
    if (result != RAIL_OK) {
      s->in_errno = errno == ECONNREFUSED ? 0 : errno;
      return sk_comm_fail_lost(comm, s);
    }
    s->fd = fd;
    s->host = (struct sk_host){0};
    sk_host_set_options(fd);
    sk_rail_set_options(comm, fd);
    sk_zerocopy_reconnected(s);
    sk_comm_add_socket(comm, s);
  }
  return RAIL_OK;
}

/* Has the peer gone with something outstanding? */
static rail_result_t check_peer(struct sk_send_comm *sc) {
  struct sk_comm *comm = &sc->base;
  if (rail_unlikely(comm->rails != NULL)) {
    bool ended;
    RAIL_TRY(check_rails(comm, &ended));
    return ended && !sk_send_is_idle(sc) ? sk_comm_fail_lost(comm, sk_main_stream(comm)) : RAIL_OK;
  }
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (rail_unlikely(comm->streams[i].eof) && !sk_send_is_idle(sc)) return sk_comm_fail_lost(comm, &comm->streams[i]);
  return RAIL_OK;
}

static rail_result_t progress_out(struct sk_send_comm *sc) {
  struct sk_comm *comm = &sc->base;
  uint64_t bytes = 0;
  bool held = comm->hold;
  sk_send_drain(sc);
  if (sk_send_pump(sc) != RAIL_OK) return write_failed(comm);
  if (!sk_send_should_read(sc)) return sk_comm_error(comm);
  sc->unread = 0;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (i == 0 || !s->welcomed || comm->rails) RAIL_TRY(read_stream(comm, s, READ_BYTES, &bytes));
  }
  if (rail_unlikely(comm->unanswered && comm->reconnect)) RAIL_TRY(retry_hellos(comm));
  comm->more |= bytes >= READ_BYTES || (bytes && comm->rails); /* there may be something to send again */
  bool go = sc->ready || rail_unlikely(held && !comm->hold);
  if (go && sk_send_pump(sc) != RAIL_OK) return write_failed(comm);
  return check_peer(sc);
}

/* ---- receiver --------------------------------------------------------- */

/* Some stream has ended. Can what is outstanding still arrive? */
RAIL_COLD static rail_result_t check_ends(struct sk_recv_comm *rc) {
  struct sk_comm *comm = &rc->base;
  const struct sk_stream *first = &comm->streams[0];
  bool all_ended = true;
  if (comm->rails) {
    RAIL_TRY(check_rails(comm, &all_ended));
    return all_ended && (rc->partial || rc->posted.count) ? sk_comm_fail_lost(comm, sk_main_stream(comm)) : RAIL_OK;
  }
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    const struct sk_stream *s = &comm->streams[i];
    if (s->eof && s->len) return sk_comm_fail_lost(comm, s); /* in the middle of a payload */
    if (!s->eof && first->eof && sk_stream_have(s) >= sizeof(struct sk_frame))
      return sk_comm_fail_lost(comm, first); /* waits for an announcement that will not come */
    all_ended &= s->eof;
  }
  /* Announced messages may still come in over the other streams; unannounced ones never. */
  if (rc->partial ? all_ended : first->eof && rc->posted.count) return sk_comm_fail_lost(comm, first);
  return RAIL_OK;
}

static rail_result_t progress_in(struct sk_recv_comm *rc) {
  struct sk_comm *comm = &rc->base;
  uint64_t bytes = 0;
  bool ended = false;
  sk_recv_drain(rc);
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    RAIL_TRY(read_stream(comm, &comm->streams[i], READ_BYTES, &bytes));
    ended |= comm->streams[i].eof;
  }
  comm->more = bytes >= READ_BYTES || (bytes && comm->rails); /* one that waited for another may go on */
  comm->ended = ended;
  if (rail_unlikely(ended)) RAIL_TRY(check_ends(rc));
  sk_recv_report(rc, bytes);
  return sk_comm_error(comm);
}

rail_result_t sk_progress(struct sk_comm *comm) {
  comm->more = false;
  comm->answered = 0;
  if (rail_unlikely(sk_comm_error(comm) != RAIL_OK)) {
    sk_flush_all(comm); /* the ERROR frame */
    return sk_comm_error(comm);
  }
  if (comm->side == SK_RECEIVER) return progress_in(rail_container_of(comm, struct sk_recv_comm, base));
  return progress_out(rail_container_of(comm, struct sk_send_comm, base));
}

/* What calls that come now and then leave for the next one is due now. Where that was not all that lies in the sockets
 * a PING may lie behind it, and looks are few: the sign of life that it asks for is given at once. */
rail_result_t sk_attend(struct sk_comm *comm) {
  uint64_t before = rail_stats_get(&comm->moved.in);
  if (comm->side == SK_SENDER) rail_container_of(comm, struct sk_send_comm, base)->unread = UINT32_MAX / 2;
  else rail_container_of(comm, struct sk_recv_comm, base)->idle = UINT32_MAX / 2;
  RAIL_TRY(sk_progress(comm));
  if (rail_stats_get(&comm->moved.in) - before >= READ_BYTES && !comm->hold)
    send_word(comm, sk_main_stream(comm), SK_FRAME_PONG);
  return RAIL_OK;
}

static void be_quiet(struct sk_comm *comm, bool stuck) {
  atomic_store_explicit(&comm->deferred, 0, memory_order_relaxed);
  if (comm->side == SK_RECEIVER && !comm->more)
    sk_recv_report_quiet(rail_container_of(comm, struct sk_recv_comm, base), stuck);
}

enum sk_poll_result sk_progress_poll(void *arg, bool readable) {
  struct sk_comm *comm = arg;
  if (sk_comm_is_stopped(comm)) return SK_POLL_IDLE;
  if (!sk_comm_try_own(comm)) return SK_POLL_BUSY;
  if (readable && comm->side == SK_SENDER) sk_send_read_soon(rail_container_of(comm, struct sk_send_comm, base));
  if (sk_progress(comm) == RAIL_OK) be_quiet(comm, false);
  else comm->more = false;
  bool more = comm->more;
  atomic_store_explicit(&comm->owner, 0, memory_order_release); /* disown without the kick: `more` is ours to return */
  return more ? SK_POLL_MORE : SK_POLL_IDLE;
}

/* ---- test ------------------------------------------------------------- */

static void finish(struct sk_request *r, int *sizes) {
  struct sk_comm *comm = r->comm;
  if (r->magic == SK_REQ_SEND)
    sk_send_finish(rail_container_of(comm, struct sk_send_comm, base), rail_container_of(r, struct sk_send, base),
                   sizes);
  else
    sk_recv_finish(rail_container_of(comm, struct sk_recv_comm, base), rail_container_of(r, struct sk_recv, base),
                   sizes);
}

static rail_result_t standing(const struct sk_comm *comm) {
  return rail_unlikely(sk_comm_is_stopped(comm)) ? RAIL_BAD_USAGE : sk_comm_error(comm);
}

/* Moves the comm if nobody else does. The result is that of the comm. */
static rail_result_t push(struct sk_comm *comm) {
  if (!sk_comm_try_own(comm)) return standing(comm);
  rail_result_t result = sk_progress(comm);
  if (comm->poll && result == RAIL_OK) be_quiet(comm, comm->idle_polls >= HELP_TESTS);
  sk_comm_disown(comm);
  return result;
}

/* Where an engine moves the comm, the caller lends a hand only with what was kept for this moment, and when the
 * engine's thread does not come to run. */
static rail_result_t look(struct sk_comm *comm) {
  if (!atomic_load_explicit(&comm->deferred, memory_order_relaxed) && ++comm->idle_polls < HELP_TESTS)
    return standing(comm);
  rail_result_t result = push(comm);
  comm->idle_polls = 0;
  return result;
}

rail_result_t sk_test(void *request, int *done, int *sizes) {
  if (!done) {
    RAIL_WARN("RailSocket: test: done is NULL; allowed: the address of an int");
    return RAIL_BAD_ARGUMENT;
  }
  *done = 0;
  struct sk_request *r = sk_request_of(request, "test");
  if (!r) return RAIL_BAD_ARGUMENT;
  if (r->magic == SK_REQ_SEND) sk_send_tested(rail_container_of(r->comm, struct sk_send_comm, base));
  if (!sk_request_is_done(r)) {
    rail_result_t result = r->comm->poll ? look(r->comm) : push(r->comm);
    /* A request that finished is finished, whatever became of the others. */
    if (!sk_request_is_done(r)) {
      if (rail_unlikely(result != RAIL_OK && r->comm->profile)) sk_profile_stop(r);
      return result;
    }
  }
  r->comm->idle_polls = 0;
  if (rail_unlikely(r->comm->profile != NULL)) sk_profile_stop(r);
  finish(r, sizes);
  *done = 1;
  return RAIL_OK;
}
