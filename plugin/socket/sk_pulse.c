/* SPDX-License-Identifier: Apache-2.0
 * One comm at one tick. */
#include "plugin/socket/sk_pulse.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_rail.h"
#include "plugin/socket/sk_recv.h"
#include "plugin/socket/sk_send.h"

#define MS 1000000ull
#define TICK (SK_TICK_MS * MS)
#define IDLE_TICKS 2 /* without news or requests, after which a comm is glanced at less often: */
#define SKIP_TICKS 3 /* not for so many ticks */
#define TRIES 2000 /* to take a comm from its caller, who lets go of it between any two calls */

/* Made by the owner, written when the comm is free again. */
struct sk_pulse_line {
  bool warn; /* else it is information */
  char text[640];
};

static const struct sk_send_comm *sender(const struct sk_comm *comm) {
  return rail_container_of(comm, const struct sk_send_comm, base);
}
static const struct sk_recv_comm *receiver(const struct sk_comm *comm) {
  return rail_container_of(comm, const struct sk_recv_comm, base);
}

/* ---- how old is it? ------------------------------------------------------ */

/* How long may it be quiet until the peer is asked? So that a warning can say what came of it, and then thrice. 0: it
 * is never asked. */
static uint64_t ping_interval(void) {
  const int64_t shares[] = {sk_params.deadline_ms / 3, sk_params.peer_timeout_ms / 3, sk_params.stall_ms / 2};
  int64_t least = 0;
  for (size_t i = 0; i < RAIL_COUNT_OF(shares); i++)
    if (shares[i] && (!least || shares[i] < least)) least = shares[i];
  return (uint64_t)least * MS;
}

static void begin_anew(struct sk_pulse *p, uint64_t now) {
  p->since = p->life = now;
  p->pinged = p->asked = 0;
  p->warn_at = (uint64_t)sk_params.stall_ms * MS;
}

/* Takes note of what has moved since the last time; true if anything has. */
static bool note(struct sk_comm *comm, uint64_t now) {
  struct sk_pulse *p = &comm->pulse;
  uint64_t in = rail_stats_get(&comm->moved.in);
  uint64_t out = rail_stats_get(&comm->moved.out);
  uint64_t useful_out = out - SK_HEAD * rail_stats_get(&comm->moved.words_out);
  uint64_t useful = useful_out + in - SK_HEAD * rail_stats_get(&comm->moved.words_in);
  /* A word that is queued and not yet in the kernel is subtracted before its bytes are counted: less is nothing. */
  bool moved_out = (int64_t)(useful_out - p->useful_out) > 0, moved = in != p->in || moved_out;
  if (moved) {
    if (p->silent) p->was_silent = now - p->life;
    p->silent = false;
    p->life = now;
    p->asked = 0;
  }
  if (in != p->in || !p->since) p->heard = now;
  if (out != p->out) p->unsettled = sk_params.deadline_ms != 0;
  if (moved_out) p->useful_out = useful_out;
  p->in = in;
  p->out = out;
  if ((int64_t)(useful - p->useful) > 0) {
    p->useful = useful;
    p->progress_at = rail_now_ns();
    begin_anew(p, now);
  }
  bool in_use = sk_comm_in_use(comm) != 0;
  if (!p->since || !in_use) begin_anew(p, now);
  if (!in_use && !p->unsettled) p->idle_until = now;
  return moved;
}

/* Nothing has come in for a while: is it time to see whether the peer's host has what it was sent? */
static bool host_is_due(const struct sk_comm *comm, uint64_t now) {
  const struct sk_pulse *p = &comm->pulse;
  return sk_params.deadline_ms && (p->unsettled || sk_comm_in_use(comm)) && now - p->heard + TICK > ping_interval();
}

/* ---- glance -------------------------------------------------------------- */

/* A comm that has been idle for a while: how many ticks may pass? Its peer shall not wait for long until its PING is
 * answered. A request that begins in between is taken for so much older. */
static uint32_t ticks_to_skip(struct sk_pulse *p) {
  if (p->idle < IDLE_TICKS) {
    p->idle++;
    return 0;
  }
  return !sk_params.deadline_ms || sk_params.deadline_ms >= 24 * SK_TICK_MS ? SKIP_TICKS : 0;
}

/* The owner's: is there something to do that no byte from the peer would announce? */
static bool has_errand(const struct sk_comm *comm) {
  const struct sk_submitted *submitted = &comm->submitted;
  if (atomic_load_explicit(&submitted->tail, memory_order_relaxed) !=
      atomic_load_explicit(&submitted->head, memory_order_relaxed))
    return true;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    const struct sk_stream *s = &comm->streams[i];
    if ((s->out_count && !s->out_errno) || (s->fd < 0 && !s->welcomed)) return true; /* or to be connected again */
  }
  if (sk_comm_error(comm) != RAIL_OK) return false;
  if (comm->side == SK_SENDER) return sender(comm)->ready || sender(comm)->bulk;
  return receiver(comm)->ungranted_count != 0;
}

/* The owner's: what may still be sent ahead of the receiver's buffers. */
static uint64_t credit_left(const struct sk_comm *comm) {
  if (comm->side == SK_SENDER) {
    const struct sk_send_comm *sc = sender(comm);
    return sc->eager_bytes - (sc->credit.bytes_used - sc->credit.bytes_freed);
  }
  const struct sk_early *early = &receiver(comm)->early;
  return early->bytes - (early->bytes_used - early->bytes_told);
}

enum sk_glance sk_pulse_glance(struct sk_comm *comm, uint64_t now, struct pollfd *fds, uint32_t *nfds) {
  struct sk_pulse *p = &comm->pulse;
  uint64_t ping = ping_interval(), *values = comm->counts.comm;
  *nfds = 0;
  if (sk_comm_is_stopped(comm)) return SK_GLANCE_REST;
  if (p->skip) {
    p->skip--;
    return SK_GLANCE_REST;
  }
  bool moved = note(comm, now), in_use = sk_comm_in_use(comm) != 0;
  if (moved || in_use) p->idle = 0;
  else p->skip = ticks_to_skip(p);
  bool failed = sk_comm_error(comm) != RAIL_OK, due = in_use && ping && !failed && now - p->since + TICK > ping;
  bool fresh = p->idle < IDLE_TICKS; /* else all is as it was */
  if (fresh) {
    rail_stats_set(&values[SK_COMM_OUTSTANDING], sk_comm_in_use(comm));
    rail_stats_set(&values[SK_COMM_PROGRESS_TIME], p->progress_at);
    sk_count_fold(comm);
  }
  /* Of rails the kernel is asked for more than poll tells. */
  bool must = due || comm->rails || p->was_silent || (!failed && host_is_due(comm, now));
  if (!sk_comm_try_own(comm)) return must ? SK_GLANCE_LOOK : SK_GLANCE_REST;
  if (fresh) rail_stats_set(&values[SK_COMM_CREDIT_BYTES], credit_left(comm));
  bool errand = has_errand(comm);
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    const struct sk_stream *s = &comm->streams[i];
    if (s->fd >= 0 && !s->eof && !failed) fds[(*nfds)++] = (struct pollfd){.fd = s->fd, .events = POLLIN};
  }
  sk_comm_disown(comm);
  if (moved) *nfds = 0; /* somebody is at it */
  return must || (errand && !moved) ? SK_GLANCE_LOOK : *nfds ? SK_GLANCE_POLL : SK_GLANCE_REST;
}

/* ---- look ---------------------------------------------------------------- */

/* What is outstanding, for the owner. */
struct plight {
  uint32_t waiting;     /* sends, or buffers, that wait for the peer's */
  uint64_t least, most; /* and their sizes */
  uint32_t moving;      /* messages that are under way */
  uint64_t missing;     /* and what is to come of them */
  bool unanswered;      /* the handshake */
};

static void add_size(struct plight *plight, uint64_t size) {
  plight->least = plight->waiting++ ? RAIL_MIN(plight->least, size) : size;
  plight->most = RAIL_MAX(plight->most, size);
}

static void look_at_sends(const struct sk_send_comm *sc, struct plight *plight) {
  uint32_t all = 0;
  for (uint32_t b = 0; b < SK_MATCH_BUCKETS; b++)
    for (struct sk_match_node *node = sc->waiting.first[b]; node; node = node->next)
      add_size(plight, rail_container_of(node, struct sk_send, node)->size);
  for (uint32_t i = 0; i < SK_MAX_SENDS; i++) all += !sk_request_is_done(&sc->sends[i].base);
  plight->moving = all > plight->waiting ? all - plight->waiting : 0;
  for (const struct sk_send *send = sc->ready; send; send = send->next) plight->missing += send->size;
  for (const struct sk_send *send = sc->bulk; send; send = send->next) plight->missing += send->size - send->framed;
  for (uint32_t i = 0; i < sc->base.nstreams; i++) {
    plight->missing += sc->base.streams[i].out_bytes;
    plight->unanswered |= !sc->base.streams[i].welcomed;
  }
}

static void look_at_recvs(const struct sk_recv_comm *rc, struct plight *plight) {
  for (uint32_t b = 0; b < SK_MATCH_BUCKETS; b++)
    for (struct sk_match_node *node = rc->posted.first[b]; node; node = node->next)
      add_size(plight, rail_container_of(node, struct sk_slot, node)->capacity);
  plight->moving = rc->partial;
  for (uint32_t b = 0; b < SK_SEQ_BUCKETS; b++)
    for (const struct sk_sink *sink = rc->by_seq[b]; sink; sink = sink->hash_next)
      plight->missing += sink->size - sink->received;
  for (uint32_t i = 0; i < rc->base.nstreams; i++) {
    const struct sk_stream *s = &rc->base.streams[i];
    if (s->left && !((const struct sk_sink *)s->owner)->hashed) plight->missing += s->left;
  }
}

static struct plight look_at(const struct sk_comm *comm) {
  struct plight plight = {0};
  if (comm->side == SK_SENDER) look_at_sends(sender(comm), &plight);
  else look_at_recvs(receiver(comm), &plight);
  return plight;
}

static const char *describe(const struct sk_comm *comm, const struct plight *plight, char *text, size_t size) {
  static const char *const what[] = {[SK_SENDER] = "sends", [SK_RECEIVER] = "receive buffers"};
  static const char *const for_what[] = {[SK_SENDER] = "the peer's receives", [SK_RECEIVER] = "the peer's sends"};
  int n = 0;
  text[0] = 0;
  if (plight->waiting)
    n = snprintf(text, size, "%u %s of %llu to %llu bytes wait for %s%s", plight->waiting, what[comm->side],
                 (unsigned long long)plight->least, (unsigned long long)plight->most, for_what[comm->side],
                 plight->moving ? ", " : "");
  if (plight->moving && (size_t)n < size)
    snprintf(text + n, size - (size_t)n, "%u messages are under way with %llu bytes to %s", plight->moving,
             (unsigned long long)plight->missing, comm->side == SK_SENDER ? "leave" : "come");
  return text;
}

static double seconds(uint64_t ns) { return (double)ns / 1e9; }

/* Should the peer wake up again, or the network come back, it learns at once that this is over. */
static void shut_down(const struct sk_comm *comm) {
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (comm->streams[i].fd >= 0) shutdown(comm->streams[i].fd, SHUT_RDWR);
}

RAIL_COLD static void give_up_process(struct sk_comm *comm, const struct plight *plight, uint64_t now) {
  char text[160];
  sk_comm_fail(comm, RAIL_REMOTE_ERROR,
               "no sign of life from the peer's process for %.1f s%s; last progress %.1f s ago; %s; is it stopped, or "
               "in a debugger? RAIL_SOCKET_PEER_TIMEOUT is %.1f s",
               seconds(now - comm->pulse.life), plight->unanswered ? ", which has not accepted the connection" : "",
               seconds(now - comm->pulse.since), describe(comm, plight, text, sizeof text),
               seconds((uint64_t)sk_params.peer_timeout_ms * MS));
  shut_down(comm);
}

RAIL_COLD static void give_up_host(struct sk_comm *comm, uint64_t silence) {
  char text[160];
  struct plight plight = look_at(comm);
  describe(comm, &plight, text, sizeof text);
  sk_comm_fail(comm, RAIL_REMOTE_ERROR,
               "no sign of life from the peer's host for %.1f s%s%s; is the machine down, or the network between cut? "
               "RAIL_SOCKET_DEADLINE is %.1f s",
               seconds(silence), text[0] ? "; " : "", text, seconds((uint64_t)sk_params.deadline_ms * MS));
  shut_down(comm);
}

/* Of a peer that is silent: what is known, and what will become of it. */
static void describe_silence(const struct sk_pulse *p, const struct plight *plight, char *text, size_t size) {
  char end[64] = "";
  bool host = p->host_silence != 0;
  int64_t after_ms = host ? sk_params.deadline_ms : sk_params.peer_timeout_ms;
  if (after_ms)
    snprintf(end, sizeof end, "; an error after %.1f s (RAIL_SOCKET_%s)", (double)after_ms / 1e3,
             host ? "DEADLINE" : "PEER_TIMEOUT");
  if (host)
    snprintf(text, size, "the peer's host does not answer (is it down, or the network between cut?)%s", end);
  else
    snprintf(text, size, "no sign of life from the peer's process%s%s (is it stopped, in a debugger, being "
             "checkpointed?)%s", sk_params.deadline_ms ? ", though its host answers" : "",
             plight->unanswered ? ", which has not accepted yet" : "", end);
}

/* The line is made by the owner and written when the comm is free again. */
static void complain(const struct sk_comm *comm, const struct plight *plight, uint64_t now, char *line, size_t size) {
  char peer[RAIL_ADDR_TEXT], text[160], sign[240];
  const struct sk_pulse *p = &comm->pulse;
  if (p->silent) describe_silence(p, plight, sign, sizeof sign);
  else
    snprintf(sign, sizeof sign, "the peer is alive (heard %.1f s ago) but %s", seconds(now - p->life),
             comm->side == SK_SENDER ? "has not posted a receive for them" : "has sent nothing");
  snprintf(line, size,
           "RailSocket: %s %s over %s: nothing has moved for %.1f s: %s; %s (%llu messages, %llu bytes done)",
           comm->side == SK_SENDER ? "sending to" : "receiving from", rail_addr_text(&comm->peer, peer),
           comm->device_name, seconds(now - p->since), describe(comm, plight, text, sizeof text), sign,
           (unsigned long long)sk_count_messages(&comm->counts), (unsigned long long)sk_count_bytes(&comm->counts));
}

/* One silent process has many connections, and makes one warning: the line about the first of them to its host. The
 * table is the watch thread's; an entry holds for as long as it is looked for. */
static bool is_first_of_host(const union rail_addr *peer, uint64_t now) {
  static struct {
    union rail_addr host;
    uint64_t seen;
  } reported[16];
  size_t oldest = 0;
  for (size_t i = 0; i < RAIL_COUNT_OF(reported); i++) {
    if (reported[i].seen && now - reported[i].seen < 8 * TICK && rail_addr_same_host(&reported[i].host, peer)) {
      reported[i].seen = now;
      return false;
    }
    if (reported[i].seen < reported[oldest].seen) oldest = i;
  }
  reported[oldest].host = *peer;
  reported[oldest].seen = now;
  return true;
}

/* A silent peer is reported once, one that is alive and makes others wait again and again. */
static void report(struct sk_comm *comm, const struct plight *plight, uint64_t now, struct sk_pulse_line *line) {
  struct sk_pulse *p = &comm->pulse;
  uint64_t stall = (uint64_t)sk_params.stall_ms * MS;
  if (!stall || now - p->since < p->warn_at) return;
  bool silent = p->asked && now - p->life >= stall, reported = p->silent;
  line->warn = !silent || is_first_of_host(&comm->peer, now);
  if (!silent) p->warn_at *= 2;
  p->silent = silent;
  if (reported) return;
  complain(comm, plight, now, line->text, sizeof line->text);
  rail_stats_add(&comm->counts.comm[SK_COMM_STALLS], 1);
}

/* Is the time over, or will it be before the next tick? Nobody is given up who was not asked and had time to answer: a
 * peer whose caller stays away looks at its own ticks only, and one of them may be late on a busy machine. */
static bool is_overdue(const struct sk_pulse *p, uint64_t now) {
  uint64_t timeout = (uint64_t)sk_params.peer_timeout_ms * MS, silence = now - p->life;
  if (!timeout || silence + RAIL_MIN(TICK, timeout / 4) <= timeout) return false;
  return p->asked && now - p->asked >= RAIL_MIN(3 * TICK, timeout);
}

/* The owner's: does the peer's host take what it is sent? Over several devices each stream has a deadline of its own
 * (sk_rail.c), and only the silence of all of them is the host's. */
static void check_host(struct sk_comm *comm, uint64_t now) {
  struct sk_pulse *p = &comm->pulse;
  uint64_t deadline = (uint64_t)sk_params.deadline_ms * MS, least = UINT64_MAX, most = 0;
  bool unacked = false;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (s->fd < 0) continue;
    uint64_t silence = sk_host_silence(&s->host, s->fd, now, p->idle_until);
    least = RAIL_MIN(least, silence);
    most = RAIL_MAX(most, silence);
    unacked |= s->host.has_unacked;
  }
  p->unsettled = unacked;
  p->host_silence = comm->rails ? (most ? least : 0) : most;
  if (p->host_silence + RAIL_MIN(TICK, deadline / 4) > deadline) give_up_host(comm, p->host_silence);
}

/* The owner's, when requests are in use and nothing has moved for a while. */
static void judge(struct sk_comm *comm, uint64_t now, struct sk_pulse_line *line) {
  struct sk_pulse *p = &comm->pulse;
  struct plight plight = look_at(comm);
  if (!plight.waiting && !plight.moving) { /* all of them are done, and the caller has not asked yet */
    begin_anew(p, now);
    return;
  }
  uint64_t age = now - p->since, ping = ping_interval();
  if (is_overdue(p, now)) {
    give_up_process(comm, &plight, now);
    return;
  }
  report(comm, &plight, now, line);
  if (ping && age + TICK > ping && (!p->pinged || now - p->pinged + TICK > ping)) {
    sk_ping(comm);
    p->pinged = now;
    if (!p->asked) p->asked = now;
  }
}

static bool own_patiently(struct sk_comm *comm) {
  for (int i = 0; i < TRIES && !sk_comm_is_stopped(comm); i++) {
    if (sk_comm_try_own(comm)) return true;
    if (i % 100 == 99) sched_yield();
    else rail_cpu_relax();
  }
  return false; /* the next tick is soon */
}

/* The peer has given a sign of life after its silence was reported. */
static void say_back(struct sk_comm *comm, struct sk_pulse_line *line) {
  char peer[RAIL_ADDR_TEXT];
  snprintf(line->text, sizeof line->text, "RailSocket: %s %s over %s: the peer is back after %.1f s of silence",
           comm->side == SK_SENDER ? "sending to" : "receiving from", rail_addr_text(&comm->peer, peer),
           comm->device_name, seconds(comm->pulse.was_silent));
  comm->pulse.was_silent = 0;
}

void sk_pulse_look(struct sk_comm *comm, uint64_t now) {
  struct sk_pulse_line line = {.warn = false};
  if (!own_patiently(comm)) return;
  sk_rail_tick(comm, now);
  if (sk_attend(comm) == RAIL_OK) {
    uint64_t ping = ping_interval();
    (void)note(comm, now);
    if (host_is_due(comm, now)) check_host(comm, now);
    if (sk_comm_error(comm) == RAIL_OK && sk_comm_in_use(comm) && ping && now - comm->pulse.since + TICK > ping)
      judge(comm, now, &line);
  }
  if (comm->pulse.was_silent && !line.text[0]) say_back(comm, &line);
  sk_comm_disown(comm);
  if (line.text[0] && line.warn) RAIL_WARN("%s", line.text);
  else if (line.text[0]) RAIL_INFO(RAIL_SUB_NET, "%s", line.text);
}
