/* SPDX-License-Identifier: Apache-2.0
 * One side channel: messages, silence. */
#include "plugin/ib/ib_channel.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/sockopt.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_oob.h"
#include "plugin/ib/ib_stats.h"

#define MS 1000000ull
#define READS_AT_ONCE 8 /* messages; the others' channels wait meanwhile */
#define MAX_UNANSWERED 64 /* PINGs, which fill the buffer of a peer that does not read. The kernel asks its host, too */
#define MIN_TICK_MS 10
#define MAX_TICK_MS 1000

/* A comm's channel says nothing for hours, and its peer's host may vanish meanwhile: the kernel asks. Its verdict comes
 * after ours, which has more to say. */
void ib_channel_init(struct ib_channel *c, int fd, uint64_t now) {
  *c = (struct ib_channel){.fd = fd, .life = now, .host = now, .motion = now};
  ib_keepalive_enable(fd, 1000);
}

static void end(struct ib_channel *c, struct ib_comm *comm, uint32_t health) {
  c->over = true;
  atomic_fetch_or(&comm->health, health);
}

/* ---- in -------------------------------------------------------------------- */

/* What the kernel says when nobody answered, of connections that were idle, too. A peer that is gone answers: with the
 * end of the stream or a reset. */
static bool is_of_network(int err) {
  return err == ETIMEDOUT || err == EHOSTUNREACH || err == ENETUNREACH || err == ENETDOWN;
}

/* Whether the peer is still there, transfers will tell, or the silence in which it cannot be asked any more. */
static void cut(struct ib_channel *c, const struct ib_comm *comm, int err) {
  c->cut = true;
  c->sending = c->ping_due = c->pong_due = c->goodbye_due = c->drained_due = false;
  RAIL_INFO(RAIL_SUB_NET, "RailIB: connection with %s over %s: the side channel's network is down: %s; transfers go on",
            comm->peer_text, comm->device->name, strerror(err));
}

static void lose(struct ib_channel *c, struct ib_comm *comm, int err) {
  if (c->broken) err = c->broken; /* of a write; what came before it has been read */
  if (c->peer_closed) { /* as was to be expected */
    end(c, comm, IB_COMM_PEER_GONE);
    return;
  }
  if (is_of_network(err) && ib_params.deadline_ms) {
    cut(c, comm, err);
    return;
  }
  end(c, comm, IB_COMM_PEER_LOST);
  RAIL_INFO(RAIL_SUB_NET, "RailIB: connection with %s over %s: the side channel ended without a goodbye: %s",
            comm->peer_text, comm->device->name, err ? strerror(err) : "end of stream");
}

static void garbage(struct ib_channel *c, struct ib_comm *comm) {
  end(c, comm, IB_COMM_PEER_LOST);
  RAIL_WARN("RailIB: connection with %s over %s: what came over the side channel is no message of ours (it begins "
            "%02x%02x%02x%02x); the connection is given up; do both sides run the same version?",
            comm->peer_text, comm->device->name, c->in[0], c->in[1], c->in[2], c->in[3]);
}

/* A closed receiver answers what the sender's HCA sends again until it hears that nothing is unacknowledged. Nothing
 * new can be sent: each buffer of the receiver was taken, or the receiver would not have closed in peace. */
bool ib_channel_is_draining(const struct ib_channel *c) { return c->peer_closed && !c->over; }

void ib_channel_drain(struct ib_channel *c, const struct ib_comm *comm) {
  if (ib_channel_is_draining(c) && !c->drained && !atomic_load(&comm->outstanding)) c->drained_due = true;
}

static void hear_goodbye(struct ib_channel *c, struct ib_comm *comm) {
  atomic_fetch_or(&comm->health, IB_COMM_PEER_CLOSED);
  c->peer_closed = true;
  c->ping_due = c->pong_due = false;
  c->over = !comm->sender || c->goodbye;
  ib_channel_drain(c, comm);
}

/* Is it a message that may come now? */
static bool is_in_turn(const struct ib_channel *c, const struct ib_comm *comm, const struct ib_pulse *pulse) {
  if (pulse->type == IB_PULSE_PONG) return pulse->number <= c->ping;
  if (pulse->type == IB_PULSE_DRAINED) return !comm->sender && c->goodbye;
  return !c->peer_closed;
}

static void take(struct ib_channel *c, struct ib_comm *comm) {
  struct ib_pulse pulse;
  if (!ib_pulse_decode(c->in, &pulse) || !is_in_turn(c, comm, &pulse)) {
    garbage(c, comm);
    return;
  }
  if (pulse.type == IB_PULSE_GOODBYE) {
    hear_goodbye(c, comm);
  } else if (pulse.type == IB_PULSE_DRAINED) {
    c->over = true;
  } else if (pulse.type == IB_PULSE_PING) { /* several unanswered ones have one answer */
    c->pong_due = !c->goodbye;
    c->pong = pulse.number;
  }
}

/* The peer's process runs. */
static void hear_life(struct ib_channel *c, struct ib_comm *comm, uint64_t now) {
  if (c->reported == IB_REPORTED)
    RAIL_INFO(RAIL_SUB_NET, "RailIB: connection with %s over %s: the peer answers again, after %.1f s", comm->peer_text,
              comm->device->name, (double)(now - c->life) / 1e9);
  c->reported = IB_UNREPORTED;
  c->unanswered = 0;
  c->life = c->host = now;
  atomic_store_explicit(&comm->peer_silent, false, memory_order_relaxed);
}

void ib_channel_read(struct ib_channel *c, struct ib_comm *comm, uint64_t now) {
  for (int i = 0; i < READS_AT_ONCE && !c->over && !c->cut; i++) {
    size_t before = c->got;
    errno = 0;
    rail_result_t result = rail_sock_recv_some(c->fd, c->in, sizeof c->in, &c->got);
    if (c->got > before) hear_life(c, comm, now);
    if (result == RAIL_IN_PROGRESS) return;
    if (result != RAIL_OK) {
      lose(c, comm, errno);
      return;
    }
    c->got = 0;
    take(c, comm);
  }
}

/* ---- out ------------------------------------------------------------------- */

/* The next message that is due goes to `out`; false: there is none. */
static bool next_out(struct ib_channel *c) {
  struct ib_pulse pulse;
  if (c->pong_due) {
    pulse = (struct ib_pulse){IB_PULSE_PONG, c->pong};
    c->pong_due = false;
  } else if (c->goodbye_due) {
    pulse = (struct ib_pulse){IB_PULSE_GOODBYE, 0};
    c->goodbye_due = false;
  } else if (c->drained_due) {
    pulse = (struct ib_pulse){IB_PULSE_DRAINED, 0};
    c->drained_due = false;
    c->drained = true;
  } else if (c->ping_due) {
    pulse = (struct ib_pulse){IB_PULSE_PING, c->ping};
    c->ping_due = false;
  } else {
    return false;
  }
  ib_pulse_encode(&pulse, c->out);
  c->sent = 0;
  c->sending = true;
  return true;
}

bool ib_channel_write(struct ib_channel *c, struct ib_comm *comm) {
  while (!c->over && !c->cut && (c->sending || next_out(c))) {
    rail_result_t result = rail_sock_send_some(c->fd, c->out, sizeof c->out, &c->sent);
    if (result == RAIL_IN_PROGRESS) return true;
    c->sending = false;
    if (c->drained) c->over = true;
    /* A peer that said goodbye before it went has its goodbye read, not this. */
    if (result != RAIL_OK) {
      c->broken = errno;
      ib_channel_read(c, comm, c->life);
      if (!c->over && !c->cut) lose(c, comm, c->broken);
    }
  }
  return false;
}

void ib_channel_goodbye(struct ib_channel *c, struct ib_comm *comm) {
  if (c->goodbye) return;
  c->goodbye = c->goodbye_due = true;
  c->ping_due = c->pong_due = c->drained_due = false; /* GOODBYE says it, too */
  (void)ib_channel_write(c, comm);
}

/* ---- silence --------------------------------------------------------------- */

/* After how long a silence the peer is asked, and how often then: twice before it is reported. 0: never. */
static uint64_t ping_interval(void) {
  const int64_t ms[] = {ib_params.deadline_ms / 6, ib_params.peer_ms / 3, ib_params.peer_warn_ms / 2};
  int64_t least = 0;
  for (size_t i = 0; i < RAIL_COUNT_OF(ms); i++)
    if (ms[i] && (!least || ms[i] < least)) least = ms[i];
  return (uint64_t)least * MS;
}

uint64_t ib_channel_tick_ns(void) {
  uint64_t interval = ping_interval();
  return interval ? RAIL_MAX(RAIL_MIN(interval / 5, MAX_TICK_MS * MS), MIN_TICK_MS * MS) : 0;
}

/* What moves when the comm's transfers do. Any change counts. */
static uint64_t movement(const struct ib_comm *comm) {
  return rail_stats_get(&comm->stats[IB_COMM_MESSAGES]) + rail_stats_get(&comm->stats[IB_COMM_WRITES]) +
         rail_stats_get(&comm->stats[IB_COMM_LAST_PROGRESS]);
}

/* Should the peer wake up again it learns at once that this is over. */
static void give_up(struct ib_channel *c, struct ib_comm *comm, uint32_t health) {
  end(c, comm, health);
  shutdown(c->fd, SHUT_RDWR);
}

/* Does the caller wait for anything? With requests, or in isend, again and again, for a buffer of the peer's. */
static bool is_wanted(struct ib_channel *c, struct ib_comm *comm) {
  uint64_t waits = rail_stats_get(&comm->stats[IB_COMM_WAITS_CTS]);
  bool asked = waits != c->waits;
  c->waits = waits;
  return asked || atomic_load_explicit(&comm->outstanding, memory_order_relaxed);
}

/* The kernel of the peer's host acknowledges what its process does not read, PINGs and keepalive probes. A side channel
 * without TCP is within this host, which answers. */
static void note_host(struct ib_channel *c, uint64_t now) {
  uint32_t ms = 0;
  if (c->cut) return;
  (void)rail_sockopt_last_ack(c->fd, &ms);
  if (ms * MS <= now) c->host = RAIL_MAX(c->host, now - ms * MS);
}

static void note_life(struct ib_channel *c, uint64_t now) { c->life = c->host = now; }

static bool is_over(uint64_t since, int64_t limit_ms, uint64_t now) {
  return limit_ms && now - since >= (uint64_t)limit_ms * MS;
}

/* Within the deadline, not some ticks after it. */
static bool is_host_lost(const struct ib_channel *c, uint64_t now) {
  uint64_t deadline = (uint64_t)ib_params.deadline_ms * MS, early = RAIL_MIN(2 * ib_channel_tick_ns(), deadline / 4);
  return deadline && now - c->host >= deadline - early;
}

static void check_silence(struct ib_channel *c, struct ib_comm *comm, uint64_t now) {
  uint64_t silence = now - c->life, interval = ping_interval();
  if (!interval || silence < interval) return;
  note_host(c, now);
  if (is_host_lost(c, now)) {
    give_up(c, comm, IB_COMM_HOST_SILENT);
  } else if (is_over(c->life, ib_params.peer_ms, now)) {
    give_up(c, comm, IB_COMM_PEER_SILENT);
  } else if (now - c->asked >= interval && c->unanswered < MAX_UNANSWERED) {
    c->unanswered++;
    c->ping++;
    c->ping_due = true;
    c->asked = now;
  }
  if (silence >= 2 * interval) atomic_store_explicit(&comm->peer_silent, true, memory_order_relaxed);
}

void ib_channel_tick(struct ib_channel *c, struct ib_comm *comm, uint64_t now) {
  uint64_t moved = movement(comm);
  if (c->over || c->goodbye || c->peer_closed) return;
  if (!is_wanted(c, comm) || moved != c->moved) {
    c->moved = moved;
    c->motion = now;
    note_life(c, now);
    atomic_store_explicit(&comm->peer_silent, false, memory_order_relaxed);
    return;
  }
  if (ib_params.deadline_ms && now - c->motion >= (uint64_t)ib_params.deadline_ms * MS / 3) {
    atomic_fetch_or(&comm->health, IB_COMM_STALLED);
    c->motion = now;
  }
  check_silence(c, comm, now);
}

/* ---- reports ----------------------------------------------------------------- */

static double seconds(uint64_t ns) { return (double)ns / 1e9; }

bool ib_channel_is_report_due(const struct ib_channel *c, uint64_t now) {
  return !c->over && !c->goodbye && !c->peer_closed && c->reported == IB_UNREPORTED &&
         is_over(c->life, ib_params.peer_warn_ms, now);
}

/* "an error after 300.0 s (RAIL_IB_PEER_TIMEOUT)". */
static const char *limit_text(const char *param, int64_t ms, char text[96]) {
  if (ms) snprintf(text, 96, "an error after %.1f s (%s)", (double)ms / 1e3, param);
  else snprintf(text, 96, "it is waited for without limit (%s)", param);
  return text;
}

void ib_channel_report(struct ib_channel *c, const struct ib_comm *comm, uint64_t now) {
  const char *verb = comm->sender ? "sending to" : "receiving from";
  uint32_t outstanding = atomic_load_explicit(&comm->outstanding, memory_order_relaxed);
  uint64_t of_host = now - c->host;
  char limit[96], waiting[64] = "sends wait for the peer's receives";
  if (outstanding) snprintf(waiting, sizeof waiting, "%u requests outstanding", outstanding);
  if (of_host < ping_interval() * 2)
    RAIL_WARN("RailIB: %s %s over %s: no sign of life from the peer's process for %.1f s, though its host answers "
              "(%.1f s ago); %s; %s; check: is it stopped (SIGSTOP, debugger, checkpoint)?", verb,
              comm->peer_text, comm->device->name, seconds(now - c->life), seconds(of_host), waiting,
              limit_text("RAIL_IB_PEER_TIMEOUT", ib_params.peer_ms, limit));
  else
    RAIL_WARN("RailIB: %s %s over %s: no answer from the peer's host for %.1f s; %s; %s; check: is "
              "the host up, and the network of the side channel (NCCL_SOCKET_IFNAME)?", verb, comm->peer_text,
              comm->device->name, seconds(of_host), waiting,
              limit_text("RAIL_IB_DEADLINE", ib_params.deadline_ms, limit));
  c->reported = IB_REPORTED;
}
