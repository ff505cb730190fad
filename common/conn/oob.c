/* SPDX-License-Identifier: Apache-2.0
 * An oob connection in use: frames, options, silence, reports. */
#include "common/conn/oob.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/sockopt.h"

#define MS 1000000ull
#define GRACE_MS 1000      /* the kernel's error comes after ours, whose line says more */
#define READS_AT_ONCE 8    /* frames; other connections wait meanwhile */
#define MAX_UNANSWERED 64  /* PINGs: they fill the buffer of a peer that does not read. The kernel goes on probing */
#define MIN_TICK_MS 10     /* whatever the limits: a tick visits every connection */
#define MAX_TICK_MS 1000   /* requests that begin do not wake the thread: silence counts from up to a tick later */

/* ---- frames ---------------------------------------------------------------- */

void rail_oob_frame_encode(const struct rail_protocol *protocol, const struct rail_oob_frame *frame,
                           uint8_t wire[RAIL_OOB_FRAME_SIZE]) {
  struct rail_oob_frame_wire w = {.version = htole16(protocol->version), .type = htole16((uint16_t)frame->type),
                                  .length = htole32(RAIL_OOB_FRAME_SIZE), .number = htole64(frame->number)};
  rail_magic(protocol, 'P', w.magic);
  memcpy(wire, &w, sizeof w);
}

bool rail_oob_frame_decode(const struct rail_protocol *protocol, const uint8_t wire[RAIL_OOB_FRAME_SIZE],
                           struct rail_oob_frame *frame) {
  struct rail_oob_frame_wire w;
  uint8_t magic[4];
  memcpy(&w, wire, sizeof w);
  rail_magic(protocol, 'P', magic);
  unsigned int type = le16toh(w.type);
  if (memcmp(w.magic, magic, sizeof magic) != 0 || le16toh(w.version) != protocol->version ||
      le32toh(w.length) != RAIL_OOB_FRAME_SIZE || w.zero || w.zero2)
    return false;
  if (type < RAIL_OOB_PING || (type > RAIL_OOB_DRAINED && type < RAIL_OOB_PLUGIN) || type > RAIL_OOB_PLUGIN_LAST)
    return false;
  *frame = (struct rail_oob_frame){.type = (enum rail_oob_frame_type)type, .number = le64toh(w.number)};
  return true;
}

/* ---- one connection ---------------------------------------------------------- */

/* It may be idle for hours, and the peer's host may vanish meanwhile: the kernel probes. */
void rail_oob_init(struct rail_oob *oob, const struct rail_oob_args *args, int fd, uint64_t now) {
  *oob = (struct rail_oob){.args = *args, .fd = fd, .last_heard = now, .last_host_ack = now, .last_activity = now};
  rail_sockopt_host_deadline(fd, args->limits->deadline_ms, GRACE_MS);
}

static const char *plugin_of(const struct rail_oob *oob) { return oob->args.ops->protocol->plugin; }

static struct rail_oob_work work_of(const struct rail_oob *oob) { return oob->args.ops->work(oob->args.comm); }

static void close_with(struct rail_oob *oob, uint32_t faults) {
  oob->closed = true;
  oob->args.ops->event(oob->args.comm, faults);
}

/* ---- in -------------------------------------------------------------------- */

/* The kernel's errors when no host answered, also of an idle connection. A peer whose process ended answers: with the
 * end of the stream or a reset. */
static bool is_of_network(int err) {
  return err == ETIMEDOUT || err == EHOSTUNREACH || err == ENETUNREACH || err == ENETDOWN;
}

/* The peer may be alive: transfers show it, or its host's silence becomes an error. */
static void network_down(struct rail_oob *oob, int err) {
  oob->net_down = true;
  oob->sending = oob->ping_due = oob->pong_due = oob->goodbye_due = oob->drained_due = false;
  RAIL_INFO(RAIL_SUB_NET, "%s: connection with %s over %s: the oob connection's network is down: %s; transfers go "
            "on", plugin_of(oob), oob->args.peer, oob->args.device, strerror(err));
}

static void handle_loss(struct rail_oob *oob, int err) {
  if (oob->write_errno) err = oob->write_errno; /* everything received before it has been read */
  if (oob->peer_closed) { /* the normal end */
    close_with(oob, RAIL_OOB_PEER_GONE);
    return;
  }
  if (is_of_network(err) && oob->args.limits->deadline_ms) {
    network_down(oob, err);
    return;
  }
  close_with(oob, RAIL_OOB_PEER_LOST);
  RAIL_INFO(RAIL_SUB_NET, "%s: connection with %s over %s: the oob connection ended without a goodbye: %s",
            plugin_of(oob), oob->args.peer, oob->args.device, err ? strerror(err) : "end of stream");
}

static void invalid_frame(struct rail_oob *oob) {
  close_with(oob, RAIL_OOB_PEER_LOST);
  RAIL_WARN("%s: connection with %s over %s: invalid frame on the oob connection (it begins %02x%02x%02x%02x); "
            "the connection is given up; do both sides run the same version?",
            plugin_of(oob), oob->args.peer, oob->args.device, oob->in[0], oob->in[1], oob->in[2],
            oob->in[3]);
}

/* A closed receiver answers retransmissions until the sender reports that everything is acknowledged. Nothing new can
 * be sent: every buffer of the receiver was matched, or the receiver would not linger. */
bool rail_oob_is_draining(const struct rail_oob *oob) { return oob->peer_closed && !oob->closed; }

void rail_oob_drain(struct rail_oob *oob) {
  if (rail_oob_is_draining(oob) && !oob->drained && !work_of(oob).outstanding) oob->drained_due = true;
}

static void handle_goodbye(struct rail_oob *oob, uint64_t given_up) {
  oob->args.ops->event(oob->args.comm, RAIL_OOB_PEER_CLOSED | (given_up ? RAIL_OOB_PEER_GAVE_UP : 0));
  oob->peer_closed = true;
  oob->ping_due = oob->pong_due = false;
  oob->closed = !oob->args.sender || oob->goodbye;
  rail_oob_drain(oob);
}

/* May this frame come now? */
static bool is_expected(const struct rail_oob *oob, const struct rail_oob_frame *frame) {
  if (frame->type == RAIL_OOB_PONG) return frame->number <= oob->ping;
  if (frame->type == RAIL_OOB_DRAINED) return !oob->args.sender && oob->goodbye;
  if (frame->type >= RAIL_OOB_PLUGIN) return oob->args.ops->frame && (oob->args.sender || !oob->peer_closed);
  return !oob->peer_closed;
}

static void handle_frame(struct rail_oob *oob) {
  struct rail_oob_frame frame;
  if (!rail_oob_frame_decode(oob->args.ops->protocol, oob->in, &frame) || !is_expected(oob, &frame)) {
    invalid_frame(oob);
    return;
  }
  if (frame.type == RAIL_OOB_GOODBYE) {
    handle_goodbye(oob, frame.number);
  } else if (frame.type == RAIL_OOB_DRAINED) {
    oob->closed = true;
  } else if (frame.type >= RAIL_OOB_PLUGIN) {
    if (!oob->args.ops->frame(oob->args.comm, &frame)) invalid_frame(oob);
  } else if (frame.type == RAIL_OOB_PING) { /* one PONG, to the latest, answers all */
    oob->pong_due = !oob->goodbye;
    oob->pong = frame.number;
  }
}

/* The peer's process runs. */
static void note_heard(struct rail_oob *oob, uint64_t now) {
  if (oob->reported == RAIL_OOB_REPORTED)
    RAIL_INFO(RAIL_SUB_NET, "%s: connection with %s over %s: the peer answers again, after %.1f s",
              plugin_of(oob), oob->args.peer,
              oob->args.device, (double)(now - oob->last_heard) / 1e9);
  oob->reported = RAIL_OOB_UNREPORTED;
  oob->unanswered = 0;
  oob->last_heard = oob->last_host_ack = now;
  oob->args.ops->silent(oob->args.comm, false);
  if (oob->args.ops->heard) oob->args.ops->heard(oob->args.comm);
}

void rail_oob_read(struct rail_oob *oob, uint64_t now) {
  for (int i = 0; i < READS_AT_ONCE && !oob->closed && !oob->net_down; i++) {
    size_t before = oob->received;
    errno = 0;
    rail_result_t result = rail_sock_recv_some(oob->fd, oob->in, sizeof oob->in, &oob->received);
    if (oob->received > before) note_heard(oob, now);
    if (result == RAIL_IN_PROGRESS) return;
    if (result != RAIL_OK) {
      handle_loss(oob, errno);
      return;
    }
    oob->received = 0;
    handle_frame(oob);
  }
}

/* ---- out ------------------------------------------------------------------- */

/* A sender that has said GOODBYE has nothing more to say. */
static bool next_of_plugin(struct rail_oob *oob, struct rail_oob_frame *frame) {
  const struct rail_oob_ops *ops = oob->args.ops;
  if (!ops->next || (oob->goodbye && oob->args.sender)) return false;
  enum rail_oob_next next = ops->next(oob->args.comm, frame);
  oob->ask_again = next == RAIL_OOB_LATER;
  return next == RAIL_OOB_FRAME;
}

/* Encodes the next frame that is due into `out`; false: none is due. */
static bool next_frame(struct rail_oob *oob) {
  struct rail_oob_frame frame;
  if (next_of_plugin(oob, &frame)) {
    /* it is in `frame` */
  } else if (oob->pong_due) {
    frame = (struct rail_oob_frame){RAIL_OOB_PONG, oob->pong};
    oob->pong_due = false;
  } else if (oob->goodbye_due) {
    frame = (struct rail_oob_frame){RAIL_OOB_GOODBYE, work_of(oob).outstanding};
    oob->goodbye_due = false;
  } else if (oob->drained_due) {
    frame = (struct rail_oob_frame){RAIL_OOB_DRAINED, 0};
    oob->drained_due = false;
    oob->drained = true;
  } else if (oob->ping_due) {
    frame = (struct rail_oob_frame){RAIL_OOB_PING, oob->ping};
    oob->ping_due = false;
  } else {
    return false;
  }
  rail_oob_frame_encode(oob->args.ops->protocol, &frame, oob->out);
  oob->sent = 0;
  oob->sending = true;
  return true;
}

bool rail_oob_write(struct rail_oob *oob) {
  while (!oob->closed && !oob->net_down && (oob->sending || next_frame(oob))) {
    rail_result_t result = rail_sock_send_some(oob->fd, oob->out, sizeof oob->out, &oob->sent);
    if (result == RAIL_IN_PROGRESS) return true;
    oob->sending = false;
    if (oob->drained) oob->closed = true;
    /* Bytes that the peer sent before the failure, such as GOODBYE, count first. */
    if (result != RAIL_OK) {
      oob->write_errno = errno;
      rail_oob_read(oob, oob->last_heard);
      if (!oob->closed && !oob->net_down) handle_loss(oob, oob->write_errno);
    }
  }
  return false;
}

static void add_ping(struct rail_oob *oob) {
  oob->unanswered++;
  oob->ping++;
  oob->ping_due = true;
}

void rail_oob_ping(struct rail_oob *oob) {
  if (oob->goodbye || oob->peer_closed || oob->unanswered >= MAX_UNANSWERED) return;
  add_ping(oob);
  (void)rail_oob_write(oob);
}

void rail_oob_goodbye(struct rail_oob *oob) {
  if (oob->goodbye) return;
  oob->goodbye = oob->goodbye_due = true;
  oob->ping_due = oob->pong_due = oob->drained_due = false; /* GOODBYE implies them */
  (void)rail_oob_write(oob);
}

/* ---- silence --------------------------------------------------------------- */

/* Silence before the first PING, and between PINGs: two are unanswered before the peer is reported. 0: never. */
static uint64_t ping_interval(const struct rail_oob_limits *limits) {
  const int64_t ms[] = {limits->deadline_ms / 6, limits->peer_ms / 3, limits->warn_ms / 2};
  int64_t least = 0;
  for (size_t i = 0; i < RAIL_COUNT_OF(ms); i++)
    if (ms[i] && (!least || ms[i] < least)) least = ms[i];
  return (uint64_t)least * MS;
}

uint64_t rail_oob_tick_ns(const struct rail_oob_limits *limits) {
  uint64_t interval = ping_interval(limits);
  if (!interval) return (uint64_t)limits->tick_ms * MS;
  return RAIL_MAX(RAIL_MIN(interval / 5, MAX_TICK_MS * MS), MIN_TICK_MS * MS);
}

/* A peer that runs again finds the connection closed at once. */
static void fail_peer(struct rail_oob *oob, uint32_t faults) {
  close_with(oob, faults);
  shutdown(oob->fd, SHUT_RDWR);
}

/* Does the caller wait for the peer? With requests outstanding, or repeating isend until a buffer is there. */
static bool is_waiting(struct rail_oob *oob, const struct rail_oob_work *work) {
  bool changed = work->waits != oob->waits;
  oob->waits = work->waits;
  return changed || work->outstanding;
}

/* The kernel of the peer's host acknowledges PINGs and keepalive probes even if its process does not read. An oob
 * connection without TCP is within this host, which is alive. */
static void update_host_ack(struct rail_oob *oob, uint64_t now) {
  uint32_t ms = 0;
  if (oob->net_down) return;
  (void)rail_sockopt_last_ack(oob->fd, &ms);
  if (ms * MS <= now) oob->last_host_ack = RAIL_MAX(oob->last_host_ack, now - ms * MS);
}

static bool has_passed(uint64_t since, int64_t limit_ms, uint64_t now) {
  return limit_ms && now - since >= (uint64_t)limit_ms * MS;
}

/* Early by two ticks, so that the error comes within the deadline. */
static bool is_host_lost(const struct rail_oob *oob, uint64_t now) {
  uint64_t deadline = (uint64_t)oob->args.limits->deadline_ms * MS;
  uint64_t early = RAIL_MIN(2 * rail_oob_tick_ns(oob->args.limits), deadline / 4);
  return deadline && now - oob->last_host_ack >= deadline - early;
}

static void check_silence(struct rail_oob *oob, uint64_t now) {
  uint64_t silence = now - oob->last_heard, interval = ping_interval(oob->args.limits);
  if (!interval || silence < interval) return;
  update_host_ack(oob, now);
  if (is_host_lost(oob, now)) {
    fail_peer(oob, RAIL_OOB_HOST_SILENT);
  } else if (has_passed(oob->last_heard, oob->args.limits->peer_ms, now)) {
    fail_peer(oob, RAIL_OOB_PEER_SILENT);
  } else if (now - oob->last_ping >= interval && oob->unanswered < MAX_UNANSWERED) {
    add_ping(oob);
    oob->last_ping = now;
  }
  if (silence >= 2 * interval) oob->args.ops->silent(oob->args.comm, true);
}

void rail_oob_tick(struct rail_oob *oob, uint64_t now) {
  const struct rail_oob_work work = work_of(oob);
  if (oob->closed || oob->goodbye || oob->peer_closed) return;
  if (!is_waiting(oob, &work) || work.activity != oob->activity) {
    oob->activity = work.activity;
    oob->last_activity = now;
    oob->last_heard = oob->last_host_ack = now;
    oob->args.ops->silent(oob->args.comm, false);
    return;
  }
  if (oob->args.limits->deadline_ms && now - oob->last_activity >= (uint64_t)oob->args.limits->deadline_ms * MS / 3) {
    oob->args.ops->event(oob->args.comm, RAIL_OOB_STALLED);
    oob->last_activity = now;
  }
  check_silence(oob, now);
}

/* ---- reports ----------------------------------------------------------------- */

static double seconds(uint64_t ns) { return (double)ns / 1e9; }

bool rail_oob_is_report_due(const struct rail_oob *oob, uint64_t now) {
  return !oob->closed && !oob->goodbye && !oob->peer_closed && oob->reported == RAIL_OOB_UNREPORTED &&
         has_passed(oob->last_heard, oob->args.limits->warn_ms, now);
}

/* "an error after 300.0 s (RAIL_..._PEER_TIMEOUT)". */
static const char *limit_text(const char *param, int64_t ms, char text[96]) {
  if (ms) snprintf(text, 96, "an error after %.1f s (%s)", (double)ms / 1e3, param);
  else snprintf(text, 96, "it is waited for without limit (%s)", param);
  return text;
}

void rail_oob_report(struct rail_oob *oob, uint64_t now) {
  const char *verb = oob->args.sender ? "sending to" : "receiving from";
  const char *plugin = plugin_of(oob);
  uint32_t outstanding = work_of(oob).outstanding;
  uint64_t of_host = now - oob->last_host_ack;
  char limit[96], waiting[64] = "sends wait for the peer's receives";
  if (outstanding) snprintf(waiting, sizeof waiting, "%u requests outstanding", outstanding);
  if (of_host < ping_interval(oob->args.limits) * 2)
    RAIL_WARN("%s: %s %s over %s: no sign of life from the peer's process for %.1f s, though its host answers "
              "(%.1f s ago); %s; %s; check: is it stopped (SIGSTOP, debugger, checkpoint)?", plugin, verb,
              oob->args.peer, oob->args.device, seconds(now - oob->last_heard), seconds(of_host), waiting,
              limit_text(oob->args.limits->peer_param, oob->args.limits->peer_ms, limit));
  else
    RAIL_WARN("%s: %s %s over %s: no answer from the peer's host for %.1f s; %s; %s; check: is "
              "the host up, and the network of the oob connection (NCCL_SOCKET_IFNAME)?", plugin, verb, oob->args.peer,
              oob->args.device, seconds(of_host), waiting,
              limit_text(oob->args.limits->deadline_param, oob->args.limits->deadline_ms, limit));
  oob->reported = RAIL_OOB_REPORTED;
}
