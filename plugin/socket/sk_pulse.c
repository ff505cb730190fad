/* SPDX-License-Identifier: Apache-2.0
 * One comm at one tick. */
#include "plugin/socket/sk_pulse.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/sockopt.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_rail.h"
#include "plugin/socket/sk_recv.h"
#include "plugin/socket/sk_send.h"

#define MS 1000000ull
#define TICK (SK_TICK_MS * MS)
#define IDLE_TICKS 2 /* without news or requests, after which a comm is glanced at less often: */
#define SKIP_TICKS 3 /* not for so many ticks */
#define TRIES 2000 /* to take a comm from its caller, who lets go of it between any two calls */

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
  uint64_t deadline = (uint64_t)sk_params.deadline_ms * MS / 3, stall = (uint64_t)sk_params.stall_ms * MS / 2;
  return deadline && stall ? RAIL_MIN(deadline, stall) : deadline + stall;
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
  uint64_t useful_out = rail_stats_get(&comm->moved.out) - SK_HEAD * rail_stats_get(&comm->moved.words_out);
  uint64_t useful = useful_out + in - SK_HEAD * rail_stats_get(&comm->moved.words_in);
  /* A word that is queued and not yet in the kernel is subtracted before its bytes are counted: less is nothing. */
  bool moved_out = (int64_t)(useful_out - p->useful_out) > 0, moved = in != p->in || moved_out;
  if (moved) {
    p->life = now;
    p->asked = 0;
  }
  if (moved_out) p->useful_out = useful_out;
  p->in = in;
  if ((int64_t)(useful - p->useful) > 0) {
    p->useful = useful;
    p->progress_at = rail_now_ns();
    begin_anew(p, now);
  }
  if (!p->since || !sk_comm_in_use(comm)) begin_anew(p, now);
  return moved;
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
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (comm->streams[i].out_count && !comm->streams[i].out_errno) return true;
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
  bool must = due || comm->rails;
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

RAIL_COLD static void give_up(struct sk_comm *comm, const struct plight *plight, uint64_t age, uint64_t silence) {
  char text[160];
  sk_comm_fail(comm, RAIL_REMOTE_ERROR,
               "no sign of life from the peer for %.1f s%s; last progress %.1f s ago; %s; is its process stopped, its "
               "machine down, or the network between cut? RAIL_SOCKET_DEADLINE is %.1f s",
               seconds(silence), plight->unanswered ? ", which has not accepted the connection" : "", seconds(age),
               describe(comm, plight, text, sizeof text), seconds((uint64_t)sk_params.deadline_ms * MS));
  /* Should it wake up again it learns at once that this is over. */
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (comm->streams[i].fd >= 0) shutdown(comm->streams[i].fd, SHUT_RDWR);
}

/* The line is made by the owner and written when the comm is free again. */
static void complain(const struct sk_comm *comm, const struct plight *plight, uint64_t now, char *line, size_t size) {
  char peer[RAIL_ADDR_TEXT], text[160], sign[120];
  const struct sk_pulse *p = &comm->pulse;
  if (p->life > p->since)
    snprintf(sign, sizeof sign, "the peer is alive (heard %.1f s ago) but %s", seconds(now - p->life),
             comm->side == SK_SENDER ? "has not posted a receive for them" : "has sent nothing");
  else
    snprintf(sign, sizeof sign, "no sign of life from the peer%s%s", p->pinged ? ", which was asked for one" : "",
             plight->unanswered ? " and has not accepted yet" : "");
  snprintf(line, size,
           "RailSocket: %s %s over %s: nothing has moved for %.1f s: %s; %s (%llu messages, %llu bytes done)",
           comm->side == SK_SENDER ? "sending to" : "receiving from", rail_addr_text(&comm->peer, peer),
           comm->device_name, seconds(now - p->since), describe(comm, plight, text, sizeof text), sign,
           (unsigned long long)sk_count_messages(&comm->counts), (unsigned long long)sk_count_bytes(&comm->counts));
}

/* Is the deadline over, or will it be before the next tick? Nobody is given up who was not asked and had time to
 * answer: a peer whose caller stays away looks at its own ticks only, and one of them may be late on a busy machine. */
static bool is_overdue(const struct sk_pulse *p, uint64_t now) {
  uint64_t deadline = (uint64_t)sk_params.deadline_ms * MS, silence = now - p->life;
  if (!deadline || silence + RAIL_MIN(TICK, deadline / 4) <= deadline) return false;
  return p->asked && now - p->asked >= RAIL_MIN(3 * TICK, deadline);
}

/* The owner's, when requests are in use and nothing has moved for a while. */
static void judge(struct sk_comm *comm, uint64_t now, char *line, size_t size) {
  struct sk_pulse *p = &comm->pulse;
  struct plight plight = look_at(comm);
  if (!plight.waiting && !plight.moving) { /* all of them are done, and the caller has not asked yet */
    begin_anew(p, now);
    return;
  }
  uint64_t age = now - p->since, ping = ping_interval();
  if (is_overdue(p, now)) {
    give_up(comm, &plight, age, now - p->life);
    return;
  }
  if (p->warn_at && age >= p->warn_at) {
    complain(comm, &plight, now, line, size);
    rail_stats_add(&comm->counts.comm[SK_COMM_STALLS], 1);
    p->warn_at *= 2;
  }
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

void sk_pulse_look(struct sk_comm *comm, uint64_t now) {
  char line[512] = "";
  if (!own_patiently(comm)) return;
  sk_rail_tick(comm);
  if (sk_attend(comm) == RAIL_OK) {
    uint64_t ping = ping_interval();
    (void)note(comm, now);
    if (sk_comm_in_use(comm) && ping && now - comm->pulse.since + TICK > ping) judge(comm, now, line, sizeof line);
  }
  sk_comm_disown(comm);
  if (line[0]) RAIL_WARN("%s", line);
}

/* ---- the kernel's share -------------------------------------------------- */

void sk_pulse_socket(int fd) {
  int64_t ms = sk_params.user_timeout_ms;
  if (ms < 0) ms = sk_params.deadline_ms ? sk_params.deadline_ms + 1000 : 0;
  rail_sockopt_user_timeout(fd, ms);
  rail_sockopt_keepalive(fd, sk_params.keepalive_ms, sk_params.deadline_ms);
}
