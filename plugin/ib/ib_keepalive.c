/* SPDX-License-Identifier: Apache-2.0
 * An oob connection in use: frames, options, silence, reports. */
#include "plugin/ib/ib_keepalive.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/sockopt.h"
#include "common/conn/handshake.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_stats.h"

#define MS 1000000ull
#define READS_AT_ONCE 8    /* frames; other connections wait meanwhile */
#define MAX_UNANSWERED 64  /* PINGs: they fill the buffer of a peer that does not read. The kernel goes on probing */
#define MIN_TICK_MS 10
#define MAX_TICK_MS 1000

/* ---- frames ---------------------------------------------------------------- */

void ib_frame_encode(const struct ib_frame *frame, uint8_t wire[IB_FRAME_SIZE]) {
  struct ib_frame_wire w = {.magic = htole32(IB_FRAME_MAGIC), .version = htole16(IB_FRAME_VERSION),
                            .type = htole16((uint16_t)frame->type), .length = htole32(IB_FRAME_SIZE),
                            .number = htole64(frame->number)};
  memcpy(wire, &w, sizeof w);
}

bool ib_frame_decode(const uint8_t wire[IB_FRAME_SIZE], struct ib_frame *frame) {
  struct ib_frame_wire w;
  memcpy(&w, wire, sizeof w);
  unsigned int type = le16toh(w.type);
  if (le32toh(w.magic) != IB_FRAME_MAGIC || le16toh(w.version) != IB_FRAME_VERSION ||
      le32toh(w.length) != IB_FRAME_SIZE || w.zero || w.zero2)
    return false;
  if (type < IB_FRAME_PING || type > IB_FRAME_DRAINED) return false;
  *frame = (struct ib_frame){.type = (enum ib_frame_type)type, .number = le64toh(w.number)};
  return true;
}

/* The oob connection of a comm may be idle for hours, and the peer's host may vanish meanwhile: the kernel probes. */
void ib_keepalive_init(struct ib_keepalive *k, int fd, uint64_t now) {
  *k = (struct ib_keepalive){.fd = fd, .last_heard = now, .last_host_ack = now, .last_activity = now};
  rail_watch_host(fd, ib_params.deadline_ms, IB_GRACE_MS); /* our error comes first: its line says more */
}

static void close_with(struct ib_keepalive *k, struct ib_comm *comm, uint32_t health) {
  k->closed = true;
  atomic_fetch_or(&comm->health, health);
}

/* ---- in -------------------------------------------------------------------- */

/* The kernel's errors when no host answered, also of an idle connection. A peer whose process ended answers: with the
 * end of the stream or a reset. */
static bool is_of_network(int err) {
  return err == ETIMEDOUT || err == EHOSTUNREACH || err == ENETUNREACH || err == ENETDOWN;
}

/* The peer may be alive: transfers show it, or its host's silence becomes an error. */
static void network_down(struct ib_keepalive *k, const struct ib_comm *comm, int err) {
  k->net_down = true;
  k->sending = k->ping_due = k->pong_due = k->goodbye_due = k->drained_due = false;
  RAIL_INFO(RAIL_SUB_NET, "RailIB: connection with %s over %s: the oob connection's network is down: %s; transfers go "
            "on", comm->peer_text, comm->device->name, strerror(err));
}

static void handle_loss(struct ib_keepalive *k, struct ib_comm *comm, int err) {
  if (k->write_errno) err = k->write_errno; /* everything received before it has been read */
  if (k->peer_closed) { /* the normal end */
    close_with(k, comm, IB_COMM_PEER_GONE);
    return;
  }
  if (is_of_network(err) && ib_params.deadline_ms) {
    network_down(k, comm, err);
    return;
  }
  close_with(k, comm, IB_COMM_PEER_LOST);
  RAIL_INFO(RAIL_SUB_NET, "RailIB: connection with %s over %s: the oob connection ended without a goodbye: %s",
            comm->peer_text, comm->device->name, err ? strerror(err) : "end of stream");
}

static void invalid_frame(struct ib_keepalive *k, struct ib_comm *comm) {
  close_with(k, comm, IB_COMM_PEER_LOST);
  RAIL_WARN("RailIB: connection with %s over %s: what came over the oob connection is no message of ours (it begins "
            "%02x%02x%02x%02x); the connection is given up; do both sides run the same version?",
            comm->peer_text, comm->device->name, k->in[0], k->in[1], k->in[2], k->in[3]);
}

/* A closed receiver answers retransmissions until the sender reports that everything is acknowledged. Nothing new can
 * be sent: every buffer of the receiver was matched, or the receiver would not linger. */
bool ib_keepalive_is_draining(const struct ib_keepalive *k) { return k->peer_closed && !k->closed; }

void ib_keepalive_drain(struct ib_keepalive *k, const struct ib_comm *comm) {
  if (ib_keepalive_is_draining(k) && !k->drained && !atomic_load(&comm->outstanding)) k->drained_due = true;
}

static void handle_goodbye(struct ib_keepalive *k, struct ib_comm *comm) {
  atomic_fetch_or(&comm->health, IB_COMM_PEER_CLOSED);
  k->peer_closed = true;
  k->ping_due = k->pong_due = false;
  k->closed = !comm->sender || k->goodbye;
  ib_keepalive_drain(k, comm);
}

/* May this frame come now? */
static bool is_expected(const struct ib_keepalive *k, const struct ib_comm *comm, const struct ib_frame *frame) {
  if (frame->type == IB_FRAME_PONG) return frame->number <= k->ping;
  if (frame->type == IB_FRAME_DRAINED) return !comm->sender && k->goodbye;
  return !k->peer_closed;
}

static void handle_frame(struct ib_keepalive *k, struct ib_comm *comm) {
  struct ib_frame frame;
  if (!ib_frame_decode(k->in, &frame) || !is_expected(k, comm, &frame)) {
    invalid_frame(k, comm);
    return;
  }
  if (frame.type == IB_FRAME_GOODBYE) {
    handle_goodbye(k, comm);
  } else if (frame.type == IB_FRAME_DRAINED) {
    k->closed = true;
  } else if (frame.type == IB_FRAME_PING) { /* one PONG, to the latest, answers all */
    k->pong_due = !k->goodbye;
    k->pong = frame.number;
  }
}

/* The peer's process runs. */
static void note_heard(struct ib_keepalive *k, struct ib_comm *comm, uint64_t now) {
  if (k->reported == IB_REPORTED)
    RAIL_INFO(RAIL_SUB_NET, "RailIB: connection with %s over %s: the peer answers again, after %.1f s", comm->peer_text,
              comm->device->name, (double)(now - k->last_heard) / 1e9);
  k->reported = IB_UNREPORTED;
  k->unanswered = 0;
  k->last_heard = k->last_host_ack = now;
  atomic_store_explicit(&comm->peer_silent, false, memory_order_relaxed);
}

void ib_keepalive_read(struct ib_keepalive *k, struct ib_comm *comm, uint64_t now) {
  for (int i = 0; i < READS_AT_ONCE && !k->closed && !k->net_down; i++) {
    size_t before = k->received;
    errno = 0;
    rail_result_t result = rail_sock_recv_some(k->fd, k->in, sizeof k->in, &k->received);
    if (k->received > before) note_heard(k, comm, now);
    if (result == RAIL_IN_PROGRESS) return;
    if (result != RAIL_OK) {
      handle_loss(k, comm, errno);
      return;
    }
    k->received = 0;
    handle_frame(k, comm);
  }
}

/* ---- out ------------------------------------------------------------------- */

/* Encodes the next frame that is due into `out`; false: none is due. */
static bool next_frame(struct ib_keepalive *k) {
  struct ib_frame frame;
  if (k->pong_due) {
    frame = (struct ib_frame){IB_FRAME_PONG, k->pong};
    k->pong_due = false;
  } else if (k->goodbye_due) {
    frame = (struct ib_frame){IB_FRAME_GOODBYE, 0};
    k->goodbye_due = false;
  } else if (k->drained_due) {
    frame = (struct ib_frame){IB_FRAME_DRAINED, 0};
    k->drained_due = false;
    k->drained = true;
  } else if (k->ping_due) {
    frame = (struct ib_frame){IB_FRAME_PING, k->ping};
    k->ping_due = false;
  } else {
    return false;
  }
  ib_frame_encode(&frame, k->out);
  k->sent = 0;
  k->sending = true;
  return true;
}

bool ib_keepalive_write(struct ib_keepalive *k, struct ib_comm *comm) {
  while (!k->closed && !k->net_down && (k->sending || next_frame(k))) {
    rail_result_t result = rail_sock_send_some(k->fd, k->out, sizeof k->out, &k->sent);
    if (result == RAIL_IN_PROGRESS) return true;
    k->sending = false;
    if (k->drained) k->closed = true;
    /* Bytes that the peer sent before the failure, such as GOODBYE, count first. */
    if (result != RAIL_OK) {
      k->write_errno = errno;
      ib_keepalive_read(k, comm, k->last_heard);
      if (!k->closed && !k->net_down) handle_loss(k, comm, k->write_errno);
    }
  }
  return false;
}

void ib_keepalive_goodbye(struct ib_keepalive *k, struct ib_comm *comm) {
  if (k->goodbye) return;
  k->goodbye = k->goodbye_due = true;
  k->ping_due = k->pong_due = k->drained_due = false; /* GOODBYE implies them */
  (void)ib_keepalive_write(k, comm);
}

/* ---- silence --------------------------------------------------------------- */

/* Silence before the first PING, and between PINGs: two are unanswered before the peer is reported. 0: never. */
static uint64_t ping_interval(void) {
  const int64_t ms[] = {ib_params.deadline_ms / 6, ib_params.peer_ms / 3, ib_params.peer_warn_ms / 2};
  int64_t least = 0;
  for (size_t i = 0; i < RAIL_COUNT_OF(ms); i++)
    if (ms[i] && (!least || ms[i] < least)) least = ms[i];
  return (uint64_t)least * MS;
}

uint64_t ib_keepalive_tick_ns(void) {
  uint64_t interval = ping_interval();
  return interval ? RAIL_MAX(RAIL_MIN(interval / 5, MAX_TICK_MS * MS), MIN_TICK_MS * MS) : 0;
}

/* Changes whenever the comm posts or completes anything. */
static uint64_t activity_of(const struct ib_comm *comm) {
  return rail_stats_get(&comm->stats[IB_COMM_MESSAGES]) + rail_stats_get(&comm->stats[IB_COMM_WRITES]) +
         rail_stats_get(&comm->stats[IB_COMM_LAST_PROGRESS]);
}

/* A peer that runs again finds the connection closed at once. */
static void fail_peer(struct ib_keepalive *k, struct ib_comm *comm, uint32_t health) {
  close_with(k, comm, health);
  shutdown(k->fd, SHUT_RDWR);
}

/* Does the caller wait for the peer? With requests outstanding, or repeating isend until a buffer is there. */
static bool is_waiting(struct ib_keepalive *k, struct ib_comm *comm) {
  uint64_t waits = rail_stats_get(&comm->stats[IB_COMM_WAITS_CTS]);
  bool changed = waits != k->tag_waits;
  k->tag_waits = waits;
  return changed || atomic_load_explicit(&comm->outstanding, memory_order_relaxed);
}

/* The kernel of the peer's host acknowledges PINGs and keepalive probes even if its process does not read. An oob
 * connection without TCP is within this host, which is alive. */
static void update_host_ack(struct ib_keepalive *k, uint64_t now) {
  uint32_t ms = 0;
  if (k->net_down) return;
  (void)rail_sockopt_last_ack(k->fd, &ms);
  if (ms * MS <= now) k->last_host_ack = RAIL_MAX(k->last_host_ack, now - ms * MS);
}

static bool has_passed(uint64_t since, int64_t limit_ms, uint64_t now) {
  return limit_ms && now - since >= (uint64_t)limit_ms * MS;
}

/* Early by two ticks, so that the error comes within the deadline. */
static bool is_host_lost(const struct ib_keepalive *k, uint64_t now) {
  uint64_t deadline = (uint64_t)ib_params.deadline_ms * MS, early = RAIL_MIN(2 * ib_keepalive_tick_ns(), deadline / 4);
  return deadline && now - k->last_host_ack >= deadline - early;
}

static void check_silence(struct ib_keepalive *k, struct ib_comm *comm, uint64_t now) {
  uint64_t silence = now - k->last_heard, interval = ping_interval();
  if (!interval || silence < interval) return;
  update_host_ack(k, now);
  if (is_host_lost(k, now)) {
    fail_peer(k, comm, IB_COMM_HOST_SILENT);
  } else if (has_passed(k->last_heard, ib_params.peer_ms, now)) {
    fail_peer(k, comm, IB_COMM_PEER_SILENT);
  } else if (now - k->last_ping >= interval && k->unanswered < MAX_UNANSWERED) {
    k->unanswered++;
    k->ping++;
    k->ping_due = true;
    k->last_ping = now;
  }
  if (silence >= 2 * interval) atomic_store_explicit(&comm->peer_silent, true, memory_order_relaxed);
}

void ib_keepalive_tick(struct ib_keepalive *k, struct ib_comm *comm, uint64_t now) {
  uint64_t activity = activity_of(comm);
  if (k->closed || k->goodbye || k->peer_closed) return;
  if (!is_waiting(k, comm) || activity != k->activity) {
    k->activity = activity;
    k->last_activity = now;
    k->last_heard = k->last_host_ack = now;
    atomic_store_explicit(&comm->peer_silent, false, memory_order_relaxed);
    return;
  }
  if (ib_params.deadline_ms && now - k->last_activity >= (uint64_t)ib_params.deadline_ms * MS / 3) {
    atomic_fetch_or(&comm->health, IB_COMM_STALLED);
    k->last_activity = now;
  }
  check_silence(k, comm, now);
}

/* ---- reports ----------------------------------------------------------------- */

static double seconds(uint64_t ns) { return (double)ns / 1e9; }

bool ib_keepalive_is_report_due(const struct ib_keepalive *k, uint64_t now) {
  return !k->closed && !k->goodbye && !k->peer_closed && k->reported == IB_UNREPORTED &&
         has_passed(k->last_heard, ib_params.peer_warn_ms, now);
}

/* Such as "an error after 300.0 s (RAIL_IB_PEER_TIMEOUT)". */
static const char *limit_text(const char *param, int64_t ms, char text[96]) {
  if (ms) snprintf(text, 96, "an error after %.1f s (%s)", (double)ms / 1e3, param);
  else snprintf(text, 96, "it is waited for without limit (%s)", param);
  return text;
}

void ib_keepalive_report(struct ib_keepalive *k, const struct ib_comm *comm, uint64_t now) {
  const char *verb = comm->sender ? "sending to" : "receiving from";
  uint32_t outstanding = atomic_load_explicit(&comm->outstanding, memory_order_relaxed);
  uint64_t of_host = now - k->last_host_ack;
  char limit[96], waiting[64] = "sends wait for the peer's receives";
  if (outstanding) snprintf(waiting, sizeof waiting, "%u requests outstanding", outstanding);
  if (of_host < ping_interval() * 2)
    RAIL_WARN("RailIB: %s %s over %s: no sign of life from the peer's process for %.1f s, though its host answers "
              "(%.1f s ago); %s; %s; check: is it stopped (SIGSTOP, debugger, checkpoint)?", verb,
              comm->peer_text, comm->device->name, seconds(now - k->last_heard), seconds(of_host), waiting,
              limit_text("RAIL_IB_PEER_TIMEOUT", ib_params.peer_ms, limit));
  else
    RAIL_WARN("RailIB: %s %s over %s: no answer from the peer's host for %.1f s; %s; %s; check: is "
              "the host up, and the network of the oob connection (NCCL_SOCKET_IFNAME)?", verb, comm->peer_text,
              comm->device->name, seconds(of_host), waiting,
              limit_text("RAIL_IB_DEADLINE", ib_params.deadline_ms, limit));
  k->reported = IB_REPORTED;
}
