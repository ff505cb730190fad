/* SPDX-License-Identifier: Apache-2.0
 * Loss of a stream, what follows from it on both sides, and its return. */
#include "plugin/socket/sk_failover.h"

#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "common/base/log.h"
#include "plugin/socket/sk_connect.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_recv.h"
#include "plugin/socket/sk_send.h"

#define JOIN_ROOM (SK_OUT_FRAMES - 16) /* announcements that a stream can begin with */

static struct sk_send_comm *sender_of(struct sk_comm *comm) {
  return rail_container_of(comm, struct sk_send_comm, base);
}
static struct sk_recv_comm *receiver_of(struct sk_comm *comm) {
  return rail_container_of(comm, struct sk_recv_comm, base);
}

/* Has the peer accepted? One welcome says that it has the HELLOs of all streams. Before that a stream that is missing
 * keeps it from accepting, so none is given up. */
static bool is_accepted(const struct sk_comm *comm) {
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (comm->streams[i].welcomed) return true;
  return false;
}

static bool is_last(const struct sk_comm *comm, const struct sk_stream *s) {
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (i != s->index && comm->paths[i].state == SK_PATH_UP) return false;
  return true;
}

/* ---- sockets --------------------------------------------------------------- */

/* The stream has no socket any more, and nothing that was read or queued. */
static void drop_socket(struct sk_comm *comm, struct sk_stream *s) {
  if (comm->engine) sk_engine_remove(comm->engine, s->fd);
  if (s->tls) sk_tls_reset(s->tls);
  rail_sock_close(&s->fd);
  s->head = s->tail = 0;
  s->eof = false;
  s->in_errno = s->out_errno = 0;
}

static void set_socket(struct sk_comm *comm, struct sk_stream *s, int fd) {
  s->fd = fd;
  sk_stream_set_options(s, comm->nstreams);
  if (!comm->engine) return;
  if (!sk_engine_add(comm->engine, fd)) sk_stream_out_failed(s, errno);
  sk_engine_notify(comm->engine);
}

/* ---- counts ------------------------------------------------------------------ */

/* The sender asks for the count of every stream that it gave up: an earlier LOST may have been lost with its stream.
 * Like all that a sender writes, LOST waits in the queue until all streams are established. */
static void request_counts(struct sk_comm *comm) {
  struct sk_stream *s = sk_main_stream(comm);
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (comm->paths[i].state == SK_PATH_AWAITING_COUNT)
      sk_stream_queue_frame(s, SK_FRAME_LOST, 0, comm->paths[i].generation, i);
  if (!comm->not_established) (void)sk_stream_flush(s, &(uint64_t){0});
}

/* Where there is no room: it is sent again after the next loss, or when it is asked for. */
static void report_count(struct sk_comm *comm, uint32_t stream, uint64_t generation) {
  const struct sk_path *path = &comm->paths[stream];
  uint32_t frames = path->generation == generation ? path->frames : 0;
  sk_stream_send_frame(sk_main_stream(comm), SK_FRAME_LOST, frames, generation, stream);
}

void sk_failover_established(struct sk_comm *comm, struct sk_stream *s) {
  if (s->established) return;
  s->established = true;
  if (comm->side != SK_SENDER || --comm->not_established || sk_has_failover(comm)) return;
  sk_reconnect_free(comm->reconnect);
  comm->reconnect = NULL;
}

/* ---- loss ----------------------------------------------------------------- */

/* If the main stream is down: the lowest stream that is up. */
static void choose_main_stream(struct sk_comm *comm) {
  if (comm->paths[comm->main_stream].state == SK_PATH_UP) return;
  uint32_t i = 0;
  while (i < comm->nstreams && comm->paths[i].state != SK_PATH_UP) i++;
  if (i < comm->nstreams) comm->main_stream = i;
}

/* No byte goes out or comes in over it any more. `state`: what its path is from here on. */
static void take_down(struct sk_comm *comm, struct sk_stream *s, enum sk_path_state state) {
  s->welcomed = true; /* nothing waits for its welcome or TLS handshake any more: it comes back with both done */
  sk_failover_established(comm, s);
  if (comm->side == SK_RECEIVER) sk_recv_forget_partial(receiver_of(comm), s);
  else sk_shares_renew(&sender_of(comm)->shares);
  atomic_store_explicit(&comm->paths[s->index].queued, 0, memory_order_relaxed);
  rail_stats_set(&s->counts.stream[SK_STREAM_ALIVE], 0);
  rail_stats_add(&s->counts.stream[SK_STREAM_LOST], 1);
  shutdown(s->fd, SHUT_RDWR);
  drop_socket(comm, s);
  (void)sk_stream_drop_queue(s);
  s->len = s->left = 0;
  s->target = NULL;
  comm->paths[s->index].state = state;
  choose_main_stream(comm);
}

/* The stream is dead here: over to the others. RAIL_OK, or the comm's failure if it was the last. */
static rail_result_t lose_stream(struct sk_comm *comm, struct sk_stream *s, const char *why) {
  struct sk_path *path = &comm->paths[s->index];
  char peer[RAIL_ADDR_TEXT];
  if (path->state != SK_PATH_UP) return RAIL_OK;
  if (is_last(comm, s)) return sk_comm_fail_lost(comm, s);
  rail_stats_add(&comm->counts.comm[SK_COMM_FAILOVERS], 1);
  RAIL_WARN("RailSocket: %s %s: lost stream %u over %s: %s; going on over the others, what it had not delivered is "
            "sent again", comm->side == SK_SENDER ? "sending to" : "receiving from", rail_addr_text(&comm->peer, peer),
            s->index, path->nic->name, why);
  bool was_main = sk_main_stream(comm) == s;
  take_down(comm, s, comm->side == SK_SENDER ? SK_PATH_AWAITING_COUNT : SK_PATH_DOWN);
  if (comm->side == SK_SENDER) {
    request_counts(comm);
    return RAIL_OK;
  }
  report_count(comm, s->index, path->generation);
  if (!was_main) return RAIL_OK;
  for (uint32_t i = 0; i < comm->nstreams; i++) /* reports about others may have been lost with it */
    if (i != s->index && comm->paths[i].state == SK_PATH_DOWN) report_count(comm, i, comm->paths[i].generation);
  sk_grant_report_after_loss(receiver_of(comm));
  return RAIL_OK;
}

rail_result_t sk_failover_check(struct sk_comm *comm, bool *ended) {
  *ended = true;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (s->fd < 0) continue;
    int err = s->in_errno ? s->in_errno : s->out_errno;
    if (rail_unlikely((s->eof && s->in_errno) || s->out_errno))
      RAIL_TRY(lose_stream(comm, s, sk_stream_error_text(s, err)));
    *ended &= s->fd < 0 || s->eof;
  }
  return RAIL_OK;
}

/* ---- frames --------------------------------------------------------------------- */

/* Sender: the receiver's count of a stream that either side has lost. Frames that had not arrived are sent again. */
static rail_result_t on_final_count(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame) {
  struct sk_path *path = &comm->paths[s->index];
  if (path->state == SK_PATH_DOWN || frame->generation != path->generation) return RAIL_OK; /* known, or out of date */
  if (path->state == SK_PATH_UP) {
    if (is_last(comm, s)) return sk_comm_fail_lost(comm, s);
    RAIL_INFO(RAIL_SUB_NET, "RailSocket: the peer has lost stream %u over %s", s->index, path->nic->name);
    rail_stats_add(&comm->counts.comm[SK_COMM_FAILOVERS], 1);
    take_down(comm, s, SK_PATH_DOWN);
  }
  path->state = SK_PATH_DOWN;
  return sk_path_arrived(sender_of(comm), path, frame->frames);
}

rail_result_t sk_failover_on_lost(struct sk_comm *comm, struct sk_stream *on, const struct sk_frame *frame) {
  on->head += SK_HEAD;
  if (frame->len || !sk_has_failover(comm) || frame->stream >= comm->nstreams)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "protocol error: loss of stream %u", frame->stream);
  struct sk_stream *s = &comm->streams[frame->stream];
  struct sk_path *path = &comm->paths[frame->stream];
  if (comm->side == SK_SENDER) return on_final_count(comm, s, frame);
  if (frame->generation > path->generation) { /* it came back, and was lost before its JOIN arrived */
    path->generation = frame->generation;
    path->frames = path->reported = 0;
  }
  if (path->state == SK_PATH_UP && frame->generation == path->generation)
    return lose_stream(comm, s, "the peer gave it up");
  report_count(comm, frame->stream, frame->generation);
  return RAIL_OK;
}

rail_result_t sk_failover_on_join(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame) {
  struct sk_path *path = sk_has_failover(comm) ? &comm->paths[s->index] : NULL;
  s->head += SK_HEAD;
  if (frame->len || !path || !path->joining || frame->generation <= path->generation || frame->stream != s->index)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "protocol error: stream %u joins as stream %u", s->index,
                        frame->stream);
  path->joining = false;
  path->generation = frame->generation;
  path->frames = path->reported = 0;
  return RAIL_OK;
}

/* ---- return ------------------------------------------------------------------ */

/* After take_down. `tls`, if there is one, is past its handshake. */
static void bring_up(struct sk_comm *comm, struct sk_stream *s, int fd, struct sk_tls *tls) {
  sk_tls_free(s->tls);
  s->tls = tls;
  set_socket(comm, s, fd);
  rail_stats_set(&s->counts.stream[SK_STREAM_ALIVE], 1);
  comm->paths[s->index].state = SK_PATH_UP;
  RAIL_INFO(RAIL_SUB_NET, "RailSocket: stream %u over %s has come back", s->index, comm->paths[s->index].nic->name);
}

/* Before anything else it must carry the announcements of all messages that the receiver may not have seen: the other
 * streams may be lost before they have delivered them. */
static void join_sending(struct sk_comm *comm, struct sk_stream *s) {
  struct sk_path *path = &comm->paths[s->index];
  struct sk_send_comm *sc = sender_of(comm);
  struct sk_tls *tls;
  int fd;
  if (comm->not_established || sc->undelivered_count > JOIN_ROOM) return;
  if (path->count) return; /* frames of its last generation are resent first */
  if (sk_reconnect_lost(comm->reconnect, s->index, &fd, &tls) != RAIL_OK) return;
  bring_up(comm, s, fd, tls);
  sk_shares_renew(&sc->shares);
  path->generation++;
  path->frames = path->first = path->count = 0;
  sk_stream_send_frame(s, SK_FRAME_JOIN, 0, path->generation, s->index);
  sk_path_announce_all(sc, s);
}

/* At a tick no more than the connection has, however often the peer connects them: close waits for the comm. */
static void join_receiving(struct sk_comm *comm) {
  unsigned int stream;
  struct sk_tls *tls;
  int fd;
  for (uint32_t n = 0; n < comm->nstreams; n++) {
    if (sk_accepted_take(comm->accepted, &stream, &fd, &tls) != RAIL_OK) return;
    struct sk_stream *s = &comm->streams[stream];
    if (comm->paths[stream].state == SK_PATH_UP) {
      if (is_last(comm, s)) { /* it carries what the sender does not know to have arrived: one must stay */
        sk_tls_free(tls);
        rail_sock_close(&fd);
        continue;
      }
      (void)lose_stream(comm, s, "the peer has connected it again"); /* fails for the last stream only */
    }
    bring_up(comm, s, fd, tls);
    comm->paths[stream].joining = true;
  }
}

/* ---- the watch thread's check ------------------------------------------------- */

/* NULL, or what is wrong. */
static const char *link_error(const struct sk_comm *comm, struct sk_stream *s, uint64_t now) {
  struct ifreq ifr = {0};
  memcpy(ifr.ifr_name, comm->paths[s->index].nic->name, sizeof ifr.ifr_name);
  if (ioctl(s->fd, SIOCGIFFLAGS, &ifr) == 0 && (ifr.ifr_flags & (IFF_UP | IFF_RUNNING)) != (IFF_UP | IFF_RUNNING))
    return ifr.ifr_flags & IFF_UP ? "the interface has no carrier" : "the interface is down";
  if (sk_stream_host_silence(s, now, comm->keepalive.idle_until) > (uint64_t)sk_params.rail_timeout_ms * 1000000)
    return "the network takes nothing any more (RAIL_SOCKET_RAIL_TIMEOUT)";
  return NULL;
}

void sk_failover_tick(struct sk_comm *comm, uint64_t now) {
  if (!sk_has_failover(comm) || sk_comm_error(comm) != RAIL_OK) return;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (comm->paths[i].state == SK_PATH_UP) {
      const char *why = is_last(comm, s) || !is_accepted(comm) ? NULL : link_error(comm, s, now);
      if (why && lose_stream(comm, s, why) != RAIL_OK) return;
    } else if (comm->side == SK_SENDER && comm->paths[i].state == SK_PATH_DOWN) {
      join_sending(comm, s);
    }
  }
  if (comm->side == SK_RECEIVER) join_receiving(comm);
  else if (!comm->not_established) request_counts(comm);
}

/* ---- streams that the acceptor has not answered ---------------------------------- */

/* The acceptor has handed the connection out, and reads no other HELLO for it. */
static rail_result_t cut_when_accepted(struct sk_comm *comm, struct sk_stream *s) {
  if (sk_has_failover(comm)) return lose_stream(comm, s, "it was cut before its answer was here");
  int err = s->in_errno ? s->in_errno : s->out_errno;
  return sk_comm_fail(comm, RAIL_REMOTE_ERROR,
                      "stream %u was cut (%s) after the peer had accepted the connection, before its answer was here; "
                      "try to connect again, or look for the first error in the peer's log",
                      s->index, err ? sk_stream_error_text(s, err) : "the peer closed it");
}

rail_result_t sk_failover_retry_hellos(struct sk_comm *comm) {
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    int fd;
    if (s->welcomed || (s->fd >= 0 && !s->eof && !s->out_errno)) continue;
    if (is_accepted(comm)) {
      RAIL_TRY(cut_when_accepted(comm, s));
      continue;
    }
    if (s->fd >= 0) {
      int err = s->in_errno ? s->in_errno : s->out_errno;
      drop_socket(comm, s);
      s->in_errno = err; /* for cut_when_accepted, if no other socket comes before that */
    }
    rail_result_t result = sk_reconnect_unanswered(comm->reconnect, i, &comm->sessions[i], &fd);
    if (result == RAIL_IN_PROGRESS) continue;
    if (result != RAIL_OK) {
      s->in_errno = errno == ECONNREFUSED ? 0 : errno;
      return sk_comm_fail_lost(comm, s);
    }
    s->in_errno = 0;
    set_socket(comm, s, fd);
    sk_zerocopy_reconnected(s);
  }
  return RAIL_OK;
}
