/* SPDX-License-Identifier: Apache-2.0
 * Loss of a stream, what follows from it on both sides, and its return. */
#include "plugin/socket/sk_rail.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#include "common/base/log.h"
#include "plugin/socket/sk_acceptor.h"
#include "plugin/socket/sk_dial.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_recv.h"
#include "plugin/socket/sk_send.h"

#define UNSENT_BYTES (256 * 1024) /* in the kernel beyond what the network has taken: a slow rail must not hoard */
#define JOIN_ROOM (SK_OUT_FRAMES - 16) /* announcements that a stream can begin with */

static struct sk_send_comm *sender_of(struct sk_comm *comm) {
  return rail_container_of(comm, struct sk_send_comm, base);
}
static struct sk_recv_comm *receiver_of(struct sk_comm *comm) {
  return rail_container_of(comm, struct sk_recv_comm, base);
}

void sk_rail_set_options(const struct sk_comm *comm, int fd) {
  int bytes = UNSENT_BYTES;
  if (comm->rails) (void)setsockopt(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes); /* a wish */
}

rail_result_t sk_rails_init(struct sk_comm *comm, const struct sk_comm_args *args) {
  if (!(args->features & SK_FEATURE_FAILOVER)) return RAIL_OK;
  comm->rails = calloc(args->nstreams, sizeof *comm->rails);
  if (!comm->rails) return RAIL_SYSTEM_ERROR;
  for (uint32_t i = 0; i < args->nstreams; i++) {
    comm->rails[i].path = args->paths[i];
    sk_rail_set_options(comm, args->fds[i]);
    if (args->side == SK_RECEIVER) continue;
    comm->rails[i].pieces = calloc(SK_RAIL_PIECES, sizeof *comm->rails[i].pieces);
    if (!comm->rails[i].pieces) return RAIL_SYSTEM_ERROR;
  }
  return RAIL_OK;
}

void sk_rails_release(struct sk_comm *comm) {
  for (uint32_t i = 0; comm->rails && i < comm->nstreams; i++) free(comm->rails[i].pieces);
  free(comm->rails);
  comm->rails = NULL;
}

struct sk_stream *sk_rail_first_up(const struct sk_comm *comm) {
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (comm->rails[i].state == SK_RAIL_UP) return &comm->streams[i];
  return &comm->streams[0];
}

static bool is_last(const struct sk_comm *comm, const struct sk_stream *s) {
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (i != s->index && comm->rails[i].state == SK_RAIL_UP) return false;
  return true;
}

/* ---- words about a stream ------------------------------------------------ */

static void say(struct sk_stream *on, enum sk_frame_type type, uint32_t stream,
                uint64_t generation, uint32_t frames) {
  if (!sk_stream_can_queue(on)) return; /* said again after the next loss, or asked for */
  sk_frame_encode(sk_stream_queue(on, SK_HEAD, NULL, 0, NULL), type, 0, frames, generation, 0, stream);
  (void)sk_stream_flush(on, &(uint64_t){0});
}

/* The sender asks for the count of every stream that it gave up: an earlier question may have been lost with its
 * stream. */
static void ask_for_counts(struct sk_comm *comm) {
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (comm->rails[i].state == SK_RAIL_LOST)
      say(sk_main_stream(comm), SK_FRAME_LOST, i, comm->rails[i].generation, 0);
}

static void tell_count(struct sk_comm *comm, uint32_t stream, uint64_t generation) {
  const struct sk_rail *rail = &comm->rails[stream];
  say(sk_main_stream(comm), SK_FRAME_LOST, stream, generation, rail->generation == generation ? rail->frames : 0);
}

/* ---- loss ----------------------------------------------------------------- */

/* No byte goes out or comes in over it any more. */
static void retire(struct sk_comm *comm, struct sk_stream *s) {
  sk_comm_remove_socket(comm, s);
  if (comm->side == SK_RECEIVER) sk_recv_forget_partial(receiver_of(comm), s);
  atomic_store_explicit(&comm->rails[s->index].queued, 0, memory_order_relaxed);
  rail_stats_set(&s->counts.stream[SK_STREAM_ALIVE], 0);
  rail_stats_add(&s->counts.stream[SK_STREAM_LOST], 1);
  shutdown(s->fd, SHUT_RDWR);
  rail_sock_close(&s->fd);
  s->out_count = s->out_done = s->stage_head = s->stage_tail = 0;
  s->out_bytes = 0;
  s->head = s->tail = s->len = s->left = 0;
  s->owner = NULL;
  s->eof = false;
  s->in_errno = s->out_errno = 0;
}

static rail_result_t lose_sending(struct sk_comm *comm, struct sk_stream *s) {
  retire(comm, s);
  comm->rails[s->index].state = SK_RAIL_LOST;
  ask_for_counts(comm);
  return RAIL_OK;
}

static rail_result_t lose_receiving(struct sk_comm *comm, struct sk_stream *s) {
  struct sk_recv_comm *rc = receiver_of(comm);
  bool was_main = sk_main_stream(comm) == s;
  retire(comm, s);
  comm->rails[s->index].state = SK_RAIL_GONE;
  tell_count(comm, s->index, comm->rails[s->index].generation);
  for (uint32_t i = 0; i < comm->nstreams; i++) /* what was said about others may have been lost with it */
    if (was_main && i != s->index && comm->rails[i].state == SK_RAIL_GONE)
      tell_count(comm, i, comm->rails[i].generation);
  if (was_main) sk_recv_report_again(rc);
  return RAIL_OK;
}

rail_result_t sk_rail_lost(struct sk_comm *comm, struct sk_stream *s, const char *why) {
  char peer[RAIL_ADDR_TEXT];
  if (comm->rails[s->index].state != SK_RAIL_UP) return RAIL_OK;
  if (is_last(comm, s)) return sk_comm_fail_lost(comm, s);
  rail_stats_add(&comm->counts.comm[SK_COMM_FAILOVERS], 1);
  RAIL_WARN("RailSocket: %s %s: lost stream %u over %s: %s; going on over the others, what it had not delivered is "
            "sent again", comm->side == SK_SENDER ? "sending to" : "receiving from", rail_addr_text(&comm->peer, peer),
            s->index, comm->rails[s->index].path->name, why);
  return comm->side == SK_SENDER ? lose_sending(comm, s) : lose_receiving(comm, s);
}

/* ---- sender: pieces -------------------------------------------------------- */

void sk_rail_remember(struct sk_comm *comm, const struct sk_stream *s, struct sk_send *send, uint64_t offset,
                      uint32_t len) {
  struct sk_rail *rail = &comm->rails[s->index];
  rail->pieces[(rail->first + rail->count++) % SK_RAIL_PIECES] =
    (struct sk_piece){.send = send, .offset = offset, .len = len};
  sk_pending_add(&rail->queued); /* the stream drops it */
}

/* ---- sender: messages that have not arrived --------------------------------- */

static void unsettled_add(struct sk_send_comm *sc, struct sk_send *send) {
  send->later = NULL;
  send->earlier = sc->unsettled_last;
  if (sc->unsettled_last) sc->unsettled_last->later = send;
  else sc->unsettled = send;
  sc->unsettled_last = send;
  sc->unsettled_count++;
}

static void unsettled_remove(struct sk_send_comm *sc, struct sk_send *send) {
  if (send->earlier) send->earlier->later = send->later;
  else sc->unsettled = send->later;
  if (send->later) send->later->earlier = send->earlier;
  else sc->unsettled_last = send->earlier;
  sc->unsettled_count--;
}

static void piece_arrived(struct sk_send_comm *sc, struct sk_send *send) {
  if (atomic_load_explicit(&send->base.pending, memory_order_relaxed) == 1) unsettled_remove(sc, send);
  sk_pending_drop(&send->base.pending);
}

static void announce_on(struct sk_send_comm *sc, struct sk_stream *s, struct sk_send *send) {
  uint8_t *head = sk_stream_queue(s, SK_HEAD, NULL, 0, &sk_rail_of(&sc->base, s)->queued);
  sk_frame_encode(head, SK_FRAME_MSG, send->granted ? SK_FRAME_GRANTED : 0, send->seq, send->size, 0, send->node.tag);
  sk_rail_remember(&sc->base, s, NULL, 0, 0);
}

/* A message without bytes is only announced: it has arrived when one of its announcements has, whichever. To wait for
 * the others would be to wait for streams that may be dead, and for a peer that has all it wants and closes. */
static void empty_add(struct sk_send_comm *sc, struct sk_send *send) {
  send->next = NULL;
  if (sc->empty) sc->empty_last->next = send;
  else sc->empty = send;
  sc->empty_last = send;
}

void sk_rail_on_seen(struct sk_send_comm *sc) {
  while (sc->empty && (int32_t)(sc->empty->seq - sc->seen) < 0) {
    struct sk_send *send = sc->empty;
    sc->empty = send->next;
    piece_arrived(sc, send);
  }
}

void sk_rail_announce(struct sk_send_comm *sc, const struct sk_stream *but, struct sk_send *send) {
  for (uint32_t i = 0; i < sc->base.nstreams; i++) {
    struct sk_stream *s = &sc->base.streams[i];
    if (s != but && sc->base.rails[i].state == SK_RAIL_UP) announce_on(sc, s, send);
  }
  unsettled_add(sc, send);
  if (!send->size) empty_add(sc, send);
}

static void announce_all(struct sk_send_comm *sc, struct sk_stream *s) {
  for (struct sk_send *send = sc->unsettled; send; send = send->later) announce_on(sc, s, send);
}

static rail_result_t settle(struct sk_send_comm *sc, struct sk_rail *rail, uint32_t frames) {
  uint32_t arrived = frames - rail->frames;
  if ((int32_t)arrived < 0) return RAIL_OK; /* a report that another one has overtaken on its way */
  uint32_t left = rail->count - atomic_load_explicit(&rail->queued, memory_order_relaxed);
  if (arrived > left)
    return sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR, "protocol error: the peer counts %u frames that were not sent",
                        arrived - left);
  rail->frames = frames;
  for (; arrived > 0; arrived--) {
    struct sk_send *send = rail->pieces[rail->first].send;
    rail->first = (rail->first + 1) % SK_RAIL_PIECES;
    rail->count--;
    if (send) piece_arrived(sc, send);
  }
  return RAIL_OK;
}

rail_result_t sk_rail_on_frames(struct sk_send_comm *sc, uint32_t key, uint64_t frames) {
  uint32_t stream = key & 0xff;
  if (!sc->base.rails || stream >= sc->base.nstreams)
    return sk_comm_fail(&sc->base, RAIL_REMOTE_ERROR, "protocol error: a count of frames of stream %u", stream);
  struct sk_rail *rail = &sc->base.rails[stream];
  if (rail->state == SK_RAIL_GONE || key >> 8 != (rail->generation & 0xffffff)) return RAIL_OK; /* out of date */
  return settle(sc, rail, (uint32_t)frames);
}

bool sk_rail_next_resend(struct sk_send_comm *sc, struct sk_piece *piece) {
  for (uint32_t i = 0; i < sc->base.nstreams; i++) {
    struct sk_rail *rail = &sc->base.rails[i];
    while (rail->state == SK_RAIL_GONE && rail->count) {
      *piece = rail->pieces[rail->first];
      rail->first = (rail->first + 1) % SK_RAIL_PIECES;
      rail->count--;
      if (piece->send) return true;
    }
  }
  return false;
}

/* ---- receiver: counts ------------------------------------------------------ */

uint32_t sk_rail_untold(const struct sk_recv_comm *rc) {
  uint32_t n = 0;
  for (uint32_t i = 0; rc->base.rails && i < rc->base.nstreams; i++)
    if (rc->base.rails[i].state == SK_RAIL_UP) n += rc->base.rails[i].frames - rc->base.rails[i].told;
  return n;
}

void sk_rail_untell(struct sk_recv_comm *rc) {
  for (uint32_t i = 0; i < rc->base.nstreams; i++) rc->base.rails[i].told = rc->base.rails[i].frames - 1;
}

static void tell_counts_of_gone(struct sk_recv_comm *rc, struct sk_stream *on) {
  for (uint32_t i = 0; i < rc->base.nstreams; i++) {
    const struct sk_rail *rail = &rc->base.rails[i];
    if (rail->state == SK_RAIL_GONE) say(on, SK_FRAME_LOST, i, rail->generation, rail->frames);
  }
}

/* The caller may close now, and the stream that reports go over may be dead without anybody's knowing: all of them say
 * what has arrived, also over those that are gone, else the sender would take its last sends for lost. */
void sk_rail_farewell(struct sk_recv_comm *rc) {
  sk_rail_untell(rc);
  uint32_t len = sk_rail_entries(rc, rc->farewell) * (uint32_t)sizeof rc->farewell[0];
  for (uint32_t i = 0; i < rc->base.nstreams; i++) {
    struct sk_stream *s = &rc->base.streams[i];
    if (s->fd < 0 || s->out_errno) continue;
    tell_counts_of_gone(rc, s);
    if (!sk_stream_can_queue(s)) continue;
    uint8_t *head = sk_stream_queue(s, SK_HEAD, rc->farewell, len, NULL);
    sk_frame_encode(head, SK_FRAME_CONTROL, 0, rc->next_seq, rc->early.bytes_freed, len, rc->early.count_freed);
    (void)sk_stream_flush(s, &(uint64_t){0});
  }
}

uint32_t sk_rail_entries(struct sk_recv_comm *rc, struct sk_entry *entries) {
  uint32_t n = 0;
  for (uint32_t i = 0; rc->base.rails && i < rc->base.nstreams; i++) {
    struct sk_rail *rail = &rc->base.rails[i];
    if (rail->state != SK_RAIL_UP || rail->frames == rail->told) continue;
    entries[n++] = (struct sk_entry){.value = htole64(rail->frames),
                                     .key = htole32(i | (uint32_t)(rail->generation & 0xffffff) << 8),
                                     .kind = htole32(SK_ENTRY_FRAMES)};
    rail->told = rail->frames;
  }
  return n;
}

/* ---- what the peer says ----------------------------------------------------- */

static rail_result_t on_count(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame) {
  struct sk_rail *rail = &comm->rails[s->index];
  if (rail->state == SK_RAIL_GONE || frame->size != rail->generation) return RAIL_OK; /* known, or out of date */
  if (rail->state == SK_RAIL_UP) {
    if (is_last(comm, s)) return sk_comm_fail_lost(comm, s);
    RAIL_INFO(RAIL_SUB_NET, "RailSocket: the peer has lost stream %u over %s", s->index, rail->path->name);
    rail_stats_add(&comm->counts.comm[SK_COMM_FAILOVERS], 1);
    retire(comm, s);
  }
  rail->state = SK_RAIL_GONE; /* what is left of its pieces goes again */
  return settle(sender_of(comm), rail, frame->seq);
}

rail_result_t sk_rail_on_lost(struct sk_comm *comm, const struct sk_frame *frame) {
  if (!comm->rails || frame->tag >= comm->nstreams)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "protocol error: loss of stream %u", frame->tag);
  struct sk_stream *s = &comm->streams[frame->tag];
  struct sk_rail *rail = &comm->rails[frame->tag];
  if (comm->side == SK_SENDER) return on_count(comm, s, frame);
  if (frame->size > rail->generation) { /* it came back, and was lost before it said so */
    rail->generation = frame->size;
    rail->frames = rail->told = 0;
  }
  if (rail->state == SK_RAIL_UP && frame->size == rail->generation) return sk_rail_lost(comm, s, "the peer gave it up");
  tell_count(comm, frame->tag, frame->size);
  return RAIL_OK;
}

rail_result_t sk_rail_on_join(struct sk_comm *comm, struct sk_stream *s, const struct sk_frame *frame) {
  struct sk_rail *rail = sk_rail_of(comm, s);
  if (!rail || !rail->joining || frame->size <= rail->generation || frame->tag != s->index)
    return sk_comm_fail(comm, RAIL_REMOTE_ERROR, "protocol error: stream %u joins as stream %u", s->index, frame->tag);
  rail->joining = false;
  rail->generation = frame->size;
  rail->frames = rail->told = 0;
  return RAIL_OK;
}

/* ---- return ------------------------------------------------------------------ */

static void revive(struct sk_comm *comm, struct sk_stream *s, int fd) {
  s->fd = fd;
  sk_rail_set_options(comm, fd);
  sk_host_set_options(fd);
  s->host = (struct sk_host){0};
  rail_stats_set(&s->counts.stream[SK_STREAM_ALIVE], 1);
  comm->rails[s->index].state = SK_RAIL_UP;
  sk_comm_add_socket(comm, s);
  RAIL_INFO(RAIL_SUB_NET, "RailSocket: stream %u over %s has come back", s->index, comm->rails[s->index].path->name);
}

/* Before anything else it must carry the announcements of all messages that the receiver may not have seen: the other
 * streams may be lost before they have delivered them. */
static void join_sending(struct sk_comm *comm, struct sk_stream *s) {
  struct sk_rail *rail = &comm->rails[s->index];
  int fd;
  if (sender_of(comm)->unsettled_count > JOIN_ROOM || rail->count) return; /* pieces of its last life go first */
  if (sk_reconnect_lost(comm->reconnect, s->index, &fd) != RAIL_OK) return;
  revive(comm, s, fd);
  sk_send_welcomed(sender_of(comm), s);
  rail->generation++;
  rail->frames = 0;
  rail->first = rail->count = 0;
  say(s, SK_FRAME_JOIN, s->index, rail->generation, 0);
  announce_all(sender_of(comm), s);
}

static void join_receiving(struct sk_comm *comm) {
  unsigned int stream;
  int fd;
  while (sk_accepted_take(comm->accepted, &stream, &fd) == RAIL_OK) {
    struct sk_stream *s = &comm->streams[stream];
    if (comm->rails[stream].state == SK_RAIL_UP) {
      if (is_last(comm, s)) { /* it carries what the other side has not settled: one must stay */
        rail_sock_close(&fd);
        continue;
      }
      if (sk_rail_lost(comm, s, "the peer has connected it again") != RAIL_OK) return;
    }
    if (sk_params.rcvbuf < 0) (void)rail_sock_open_window(fd, sk_params.window);
    revive(comm, s, fd);
    comm->rails[stream].joining = true;
  }
}

/* ---- the look ------------------------------------------------------------------ */

/* NULL, or what is wrong. */
static const char *ails(const struct sk_comm *comm, struct sk_stream *s, uint64_t now) {
  struct ifreq ifr = {0};
  memcpy(ifr.ifr_name, comm->rails[s->index].path->name, sizeof ifr.ifr_name);
  if (ioctl(s->fd, SIOCGIFFLAGS, &ifr) == 0 && (ifr.ifr_flags & (IFF_UP | IFF_RUNNING)) != (IFF_UP | IFF_RUNNING))
    return ifr.ifr_flags & IFF_UP ? "the interface has no carrier" : "the interface is down";
  if (sk_host_silence(&s->host, s->fd, now, comm->pulse.idle_until) > (uint64_t)sk_params.rail_timeout_ms * 1000000)
    return "the network takes nothing any more (RAIL_SOCKET_RAIL_TIMEOUT)";
  return NULL;
}

void sk_rail_tick(struct sk_comm *comm, uint64_t now) {
  if (!comm->rails || sk_comm_error(comm) != RAIL_OK) return;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (comm->rails[i].state == SK_RAIL_UP) {
      const char *why = is_last(comm, s) ? NULL : ails(comm, s, now);
      if (why && sk_rail_lost(comm, s, why) != RAIL_OK) return;
    } else if (comm->side == SK_SENDER && comm->rails[i].state == SK_RAIL_GONE) {
      join_sending(comm, s);
    }
  }
  if (comm->side == SK_RECEIVER) join_receiving(comm);
  else ask_for_counts(comm);
}
