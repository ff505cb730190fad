/* SPDX-License-Identifier: Apache-2.0
 *
 * Is a connection alive? What the watch thread does with one comm at a tick: it moves it if its caller does not test,
 * warns when nothing moves, asks the peer for a sign of life (PING), and gives up on a peer that is silent for too
 * long: its host after RAIL_SOCKET_DEADLINE (sk_stream_host_silence), its process, while the host answers, after
 * RAIL_SOCKET_PEER_TIMEOUT.
 *
 * Progress is bytes in or out of the kernel other than PING and PONG. A sign of life is any byte that came in, or
 * progress: bytes go out for longer than a moment only if the peer's process reads them.
 */
#include <poll.h>
#include <sched.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/socket/sk_failover.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_recv.h"
#include "plugin/socket/sk_send.h"

#define MS 1000000ull
#define TICK (SK_TICK_MS * MS)
#define IDLE_TICKS 2 /* without events, requests or pending work, after which a comm is checked less often: */
#define SKIP_TICKS 3 /* not for so many ticks */
#define OWN_TRIES 2000 /* to take a comm from its caller, who leaves it between any two calls */

/* Made by the owner, logged when the comm is free again. */
struct log_line {
  bool warn; /* else it is information */
  char text[640];
};

static const struct sk_send_comm *sender(const struct sk_comm *comm) {
  return rail_container_of(comm, const struct sk_send_comm, base);
}
static const struct sk_recv_comm *receiver(const struct sk_comm *comm) {
  return rail_container_of(comm, const struct sk_recv_comm, base);
}

/* ---- what has moved ------------------------------------------------------- */

/* How long it may be quiet until the peer is asked: early enough for a warning to say what came of it, and thrice
 * before a deadline. 0: never. */
static uint64_t ping_interval(void) {
  const int64_t shares[] = {sk_params.deadline_ms / 3, sk_params.peer_timeout_ms / 3, sk_params.stall_ms / 2};
  int64_t least = 0;
  for (size_t i = 0; i < RAIL_COUNT_OF(shares); i++)
    if (shares[i] && (!least || shares[i] < least)) least = shares[i];
  return (uint64_t)least * MS;
}

static void restart_timers(struct sk_keepalive *k, uint64_t now) {
  k->since = k->last_sign = now;
  k->pinged = k->first_ping = 0;
  k->warn_at = (uint64_t)sk_params.stall_ms * MS;
}

/* True if anything has moved since the last time. */
static bool update_progress(struct sk_comm *comm, uint64_t now) {
  struct sk_keepalive *k = &comm->keepalive;
  uint64_t in = rail_stats_get(&comm->traffic.in);
  uint64_t out = rail_stats_get(&comm->traffic.out);
  uint64_t useful_out = out - SK_HEAD * rail_stats_get(&comm->traffic.keepalives_out);
  uint64_t useful = useful_out + in - SK_HEAD * rail_stats_get(&comm->traffic.keepalives_in);
  /* A PING that is queued and not yet in the kernel is subtracted before its bytes are counted: less is nothing. */
  bool moved_out = (int64_t)(useful_out - k->useful_out) > 0, moved = in != k->in || moved_out;
  if (moved) {
    if (k->silent) k->was_silent = now - k->last_sign;
    k->silent = false;
    k->last_sign = now;
    k->first_ping = 0;
  }
  if (in != k->in || !k->since) k->last_recv = now;
  if (out != k->out) k->unacked = sk_params.deadline_ms != 0;
  if (moved_out) k->useful_out = useful_out;
  k->in = in;
  k->out = out;
  if ((int64_t)(useful - k->useful) > 0) {
    k->useful = useful;
    k->progress_at = rail_now_ns();
    restart_timers(k, now);
  }
  bool in_use = sk_comm_in_use(comm) != 0;
  if (!k->since || !in_use) restart_timers(k, now);
  if (!in_use && !k->unacked) k->idle_until = now;
  return moved;
}

/* Is it time to see whether the peer's host has what it was sent? When nothing has come in for a while; and now and
 * then over several streams: what comes in over one does not show that the network takes what goes out over another.
 * With FAILOVER sk_failover_tick does that. */
static bool host_is_due(const struct sk_comm *comm, uint64_t now) {
  const struct sk_keepalive *k = &comm->keepalive;
  uint64_t interval = ping_interval();
  if (!sk_params.deadline_ms || !(k->unacked || sk_comm_in_use(comm))) return false;
  if (now - k->last_recv + TICK > interval) return true;
  return comm->nstreams > 1 && !sk_has_failover(comm) && (k->host_silence || now - k->host_checked + TICK > interval);
}

/* ---- check ---------------------------------------------------------------- */

/* How many ticks to leave out for a comm that has been idle for a while. Few, because the peer's PING is not answered
 * in them. A request that begins in between counts as begun at the tick before. */
static uint32_t ticks_to_skip(struct sk_keepalive *k) {
  if (k->idle < IDLE_TICKS) {
    k->idle++;
    return 0;
  }
  return !sk_params.deadline_ms || sk_params.deadline_ms >= 24 * SK_TICK_MS ? SKIP_TICKS : 0;
}

/* The owner's: is there something to do that no byte from the peer would announce? */
static bool has_pending_work(const struct sk_comm *comm) {
  const struct sk_submitted *submitted = &comm->submitted;
  if (atomic_load_explicit(&submitted->tail, memory_order_relaxed) !=
      atomic_load_explicit(&submitted->head, memory_order_relaxed))
    return true;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    const struct sk_stream *s = &comm->streams[i];
    if (s->out_count && !s->out_errno && !comm->not_established) return true;
    if (s->fd < 0 && !s->established) return true; /* to be connected again */
    if (s->tls && !s->eof && s->welcomed && (!s->established || sk_tls_is_pending(s->tls))) return true;
  }
  if (sk_comm_error(comm) != RAIL_OK) return false;
  if (comm->side == SK_SENDER) return sk_send_has_unframed(sender(comm));
  return receiver(comm)->ungranted_count != 0 || receiver(comm)->unread == SK_UNREAD_MESSAGE;
}

/* The owner's: what may still be sent eagerly. */
static uint64_t credit_left(const struct sk_comm *comm) {
  if (comm->side == SK_SENDER) {
    const struct sk_send_comm *sc = sender(comm);
    return sc->eager_bytes - (sc->credit.bytes_used - sc->credit.bytes_freed);
  }
  const struct sk_unexpected *u = &receiver(comm)->unexpected;
  return u->eager_bytes - (u->bytes_used - u->bytes_reported);
}

enum sk_keepalive_need sk_keepalive_check(struct sk_comm *comm, uint64_t now, struct pollfd *fds, uint32_t *nfds) {
  struct sk_keepalive *k = &comm->keepalive;
  uint64_t ping = ping_interval(), *values = comm->counts.comm;
  *nfds = 0;
  if (sk_comm_is_stopped(comm)) return SK_KEEPALIVE_NONE;
  if (k->skip) {
    k->skip--;
    return SK_KEEPALIVE_NONE;
  }
  bool moved = update_progress(comm, now), in_use = sk_comm_in_use(comm) != 0;
  if (moved || in_use) k->idle = 0;
  else k->skip = ticks_to_skip(k);
  bool failed = sk_comm_error(comm) != RAIL_OK, due = in_use && ping && !failed && now - k->since + TICK > ping;
  bool fresh = k->idle < IDLE_TICKS; /* else all is as it was */
  if (fresh) {
    rail_stats_set(&values[SK_COMM_OUTSTANDING], sk_comm_in_use(comm));
    rail_stats_set(&values[SK_COMM_PROGRESS_TIME], k->progress_at);
    sk_stats_update(comm);
  }
  /* With FAILOVER the kernel is asked for more than poll tells. */
  bool must = due || sk_has_failover(comm) || k->was_silent || (!failed && host_is_due(comm, now));
  if (!sk_comm_try_own(comm)) return must ? SK_KEEPALIVE_RUN : SK_KEEPALIVE_NONE;
  if (fresh) rail_stats_set(&values[SK_COMM_CREDIT_BYTES], credit_left(comm));
  bool pending = has_pending_work(comm);
  if (pending) k->idle = k->skip = 0;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    const struct sk_stream *s = &comm->streams[i];
    if (s->fd >= 0 && !s->eof && !failed) fds[(*nfds)++] = (struct pollfd){.fd = s->fd, .events = POLLIN};
  }
  sk_comm_disown(comm);
  if (moved) *nfds = 0; /* its caller moves it */
  return must || (pending && !moved) ? SK_KEEPALIVE_RUN : *nfds ? SK_KEEPALIVE_POLL : SK_KEEPALIVE_NONE;
}

/* ---- what is outstanding --------------------------------------------------- */

struct outstanding {
  uint32_t waiting;     /* sends, or buffers, that wait for the peer's */
  uint64_t least, most; /* and their sizes */
  uint32_t moving;      /* messages that are under way */
  uint64_t missing;     /* and what is to come of them */
  bool unwelcomed;      /* a stream's welcome was not read */
  bool in_handshake;    /* a stream's TLS handshake is not over */
};

static void add_waiting(struct outstanding *o, uint64_t size) {
  o->least = o->waiting++ ? RAIL_MIN(o->least, size) : size;
  o->most = RAIL_MAX(o->most, size);
}

static void collect_sends(const struct sk_send_comm *sc, struct outstanding *o) {
  const struct sk_match_node *node;
  const struct sk_send *send;
  uint32_t all = 0;
  for (uint32_t b = 0; b < SK_MATCH_BUCKETS; b++)
    TAILQ_FOREACH(node, &sc->waiting.bucket[b], next)
      add_waiting(o, rail_container_of(node, const struct sk_send, node)->size);
  for (uint32_t i = 0; i < SK_MAX_SENDS; i++) all += !sk_request_is_done(&sc->sends[i].base);
  o->moving = all > o->waiting ? all - o->waiting : 0;
  STAILQ_FOREACH(send, &sc->to_announce, next) o->missing += send->size;
  STAILQ_FOREACH(send, &sc->partly_framed, next) o->missing += send->size - send->framed;
  for (uint32_t i = 0; i < sc->base.nstreams; i++) o->missing += sc->base.streams[i].out_bytes;
}

static void collect_recvs(const struct sk_recv_comm *rc, struct outstanding *o) {
  const struct sk_match_node *node;
  const struct sk_target *target;
  for (uint32_t b = 0; b < SK_MATCH_BUCKETS; b++)
    TAILQ_FOREACH(node, &rc->posted.bucket[b], next)
      add_waiting(o, rail_container_of(node, const struct sk_recv_buffer, node)->capacity);
  o->moving = rc->incomplete;
  for (uint32_t b = 0; b < SK_SEQ_BUCKETS; b++)
    LIST_FOREACH(target, &rc->by_seq[b], by_seq) o->missing += target->size - target->received;
  for (uint32_t i = 0; i < rc->base.nstreams; i++) {
    const struct sk_stream *s = &rc->base.streams[i];
    if (!s->left) continue;
    target = s->target;
    if (target->in_chunks) o->missing -= s->len - s->left; /* `received` counts whole frames */
    else o->missing += s->left;
  }
}

static struct outstanding collect(const struct sk_comm *comm) {
  struct outstanding o = {0};
  if (comm->side == SK_SENDER) collect_sends(sender(comm), &o);
  else collect_recvs(receiver(comm), &o);
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    const struct sk_stream *s = &comm->streams[i];
    o.unwelcomed |= !s->welcomed;
    o.in_handshake |= s->welcomed && !s->established;
  }
  return o;
}

/* Appended to "the peer's process": how far the connection is. */
static const char *setup_text(const struct outstanding *o) {
  if (o->unwelcomed) return ", which has not accepted the connection";
  return o->in_handshake ? ", whose TLS handshake is not over" : "";
}

static const char *describe(const struct sk_comm *comm, const struct outstanding *o, char *text, size_t size) {
  static const char *const what[] = {[SK_SENDER] = "sends", [SK_RECEIVER] = "receive buffers"};
  static const char *const for_what[] = {[SK_SENDER] = "the peer's receives", [SK_RECEIVER] = "the peer's sends"};
  int n = 0;
  text[0] = 0;
  if (o->waiting)
    n = snprintf(text, size, "%u %s of %llu to %llu bytes wait for %s%s", o->waiting, what[comm->side],
                 (unsigned long long)o->least, (unsigned long long)o->most, for_what[comm->side],
                 o->moving ? ", " : "");
  if (o->moving && (size_t)n < size)
    snprintf(text + n, size - (size_t)n, "%u messages are under way with %llu bytes to %s", o->moving,
             (unsigned long long)o->missing, comm->side == SK_SENDER ? "leave" : "come");
  return text;
}

/* ---- deadlines --------------------------------------------------------------- */

static double seconds(uint64_t ns) { return (double)ns / 1e9; }

/* Should the peer run again, or the network come back, it learns at once that this is over. */
static void shut_down(const struct sk_comm *comm) {
  for (uint32_t i = 0; i < comm->nstreams; i++)
    if (comm->streams[i].fd >= 0) shutdown(comm->streams[i].fd, SHUT_RDWR);
}

RAIL_COLD static void give_up_process(struct sk_comm *comm, const struct outstanding *o, uint64_t now) {
  char text[160];
  sk_comm_fail(comm, RAIL_REMOTE_ERROR,
               "no sign of life from the peer's process for %.1f s%s; last progress %.1f s ago; %s; is it stopped, or "
               "in a debugger? RAIL_SOCKET_PEER_TIMEOUT is %.1f s",
               seconds(now - comm->keepalive.last_sign), setup_text(o), seconds(now - comm->keepalive.since),
               describe(comm, o, text, sizeof text), seconds((uint64_t)sk_params.peer_timeout_ms * MS));
  shut_down(comm);
}

/* `stream` is that over which it was silent for so long; `others`: it answers over others. */
RAIL_COLD static void give_up_host(struct sk_comm *comm, uint64_t silence, uint32_t stream, bool others) {
  char text[160];
  struct outstanding o = collect(comm);
  double limit = seconds((uint64_t)sk_params.deadline_ms * MS);
  describe(comm, &o, text, sizeof text);
  const char *separator = text[0] ? "; " : "";
  if (others)
    sk_comm_fail(comm, RAIL_REMOTE_ERROR,
                 "the peer's host has not answered over stream %u for %.1f s, though it does over others%s%s; is one "
                 "of several paths in the network cut (ECMP, a bond)? RAIL_SOCKET_DEADLINE is %.1f s",
                 stream, seconds(silence), separator, text, limit);
  else
    sk_comm_fail(comm, RAIL_REMOTE_ERROR,
                 "no sign of life from the peer's host for %.1f s%s%s; is the machine down, or the network between "
                 "cut? RAIL_SOCKET_DEADLINE is %.1f s", seconds(silence), separator, text, limit);
  shut_down(comm);
}

/* Is the time over, or will it be before the next tick? No peer is given up that was not asked and had time to answer:
 * one whose caller does not test answers at its own ticks only, and one of them may be late on a busy machine. */
static bool is_overdue(const struct sk_keepalive *k, uint64_t now) {
  uint64_t timeout = (uint64_t)sk_params.peer_timeout_ms * MS, silence = now - k->last_sign;
  if (!timeout || silence + RAIL_MIN(TICK, timeout / 4) <= timeout) return false;
  return k->first_ping && now - k->first_ping >= RAIL_MIN(3 * TICK, timeout);
}

/* The owner's: does the peer's host take what it is sent? Over several devices each stream has a deadline of its own
 * (sk_failover.c), and only the silence of all of them is the host's. */
static void check_host(struct sk_comm *comm, uint64_t now) {
  struct sk_keepalive *k = &comm->keepalive;
  uint64_t deadline = (uint64_t)sk_params.deadline_ms * MS, least = UINT64_MAX, most = 0;
  uint32_t worst = 0;
  bool unacked = false;
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (s->fd < 0) continue;
    uint64_t silence = sk_stream_host_silence(s, now, k->idle_until);
    if (silence > most) worst = i;
    least = RAIL_MIN(least, silence);
    most = RAIL_MAX(most, silence);
    unacked |= s->host.has_unacked;
  }
  k->unacked = unacked;
  k->host_checked = now;
  k->host_silence = sk_has_failover(comm) ? (most ? least : 0) : most;
  if (k->host_silence + RAIL_MIN(TICK, deadline / 4) > deadline) give_up_host(comm, k->host_silence, worst, !least);
}

/* ---- reports ------------------------------------------------------------------- */

/* Of a peer that is silent: what is known, and when it becomes an error. */
static void describe_silence(const struct sk_keepalive *k, const struct outstanding *o, char *text, size_t size) {
  char end[64] = "";
  bool host = k->host_silence != 0;
  int64_t after_ms = host ? sk_params.deadline_ms : sk_params.peer_timeout_ms;
  if (after_ms)
    snprintf(end, sizeof end, "; an error after %.1f s (RAIL_SOCKET_%s)", (double)after_ms / 1e3,
             host ? "DEADLINE" : "PEER_TIMEOUT");
  if (host)
    snprintf(text, size, "the peer's host does not answer (is it down, or the network between cut?)%s", end);
  else
    snprintf(text, size, "no sign of life from the peer's process%s%s (is it stopped, in a debugger, being "
             "checkpointed?)%s", setup_text(o), sk_params.deadline_ms ? ", though its host answers" : "", end);
}

static void format_stall(const struct sk_comm *comm, const struct outstanding *o, uint64_t now, char *line,
                         size_t size) {
  char peer[RAIL_ADDR_TEXT], text[160], sign[240];
  const struct sk_keepalive *k = &comm->keepalive;
  if (k->silent) describe_silence(k, o, sign, sizeof sign);
  else
    snprintf(sign, sizeof sign, "the peer is alive (heard %.1f s ago) but %s", seconds(now - k->last_sign),
             comm->side == SK_SENDER ? "has not posted a receive for them" : "has sent nothing");
  snprintf(line, size,
           "RailSocket: %s %s over %s: nothing has moved for %.1f s: %s; %s (%llu messages, %llu bytes done)",
           comm->side == SK_SENDER ? "sending to" : "receiving from", rail_addr_text(&comm->peer, peer),
           comm->device_name, seconds(now - k->since), describe(comm, o, text, sizeof text), sign,
           (unsigned long long)sk_stats_messages(&comm->counts), (unsigned long long)sk_stats_bytes(&comm->counts));
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
static void report_stall(struct sk_comm *comm, const struct outstanding *o, uint64_t now, struct log_line *line) {
  struct sk_keepalive *k = &comm->keepalive;
  uint64_t stall = (uint64_t)sk_params.stall_ms * MS;
  if (!stall || now - k->since < k->warn_at) return;
  bool silent = k->first_ping && now - k->last_sign >= stall, reported = k->silent;
  line->warn = !silent || is_first_of_host(&comm->peer, now);
  if (!silent) k->warn_at *= 2;
  k->silent = silent;
  if (reported) return;
  format_stall(comm, o, now, line->text, sizeof line->text);
  rail_stats_add(&comm->counts.comm[SK_COMM_STALLS], 1);
}

/* The peer has given a sign of life after its silence was reported. */
static void report_recovery(struct sk_comm *comm, struct log_line *line) {
  char peer[RAIL_ADDR_TEXT];
  snprintf(line->text, sizeof line->text, "RailSocket: %s %s over %s: the peer is back after %.1f s of silence",
           comm->side == SK_SENDER ? "sending to" : "receiving from", rail_addr_text(&comm->peer, peer),
           comm->device_name, seconds(comm->keepalive.was_silent));
  comm->keepalive.was_silent = 0;
}

/* ---- run ------------------------------------------------------------------------ */

/* The owner's, when requests are in use and nothing has moved for a while. */
static void check_deadline(struct sk_comm *comm, uint64_t now, struct log_line *line) {
  struct sk_keepalive *k = &comm->keepalive;
  struct outstanding o = collect(comm);
  if (!o.waiting && !o.moving) { /* all of them are done, and the caller has not tested them yet */
    restart_timers(k, now);
    return;
  }
  uint64_t age = now - k->since, ping = ping_interval();
  if (is_overdue(k, now)) {
    give_up_process(comm, &o, now);
    return;
  }
  report_stall(comm, &o, now, line);
  if (ping && age + TICK > ping && (!k->pinged || now - k->pinged + TICK > ping)) {
    sk_progress_ping(comm);
    k->pinged = now;
    if (!k->first_ping) k->first_ping = now;
  }
}

static bool own_with_retries(struct sk_comm *comm) {
  for (int i = 0; i < OWN_TRIES && !sk_comm_is_stopped(comm); i++) {
    if (sk_comm_try_own(comm)) return true;
    if (i % 100 == 99) sched_yield();
    else rail_cpu_relax();
  }
  return false; /* the next tick is soon */
}

void sk_keepalive_run(struct sk_comm *comm, uint64_t now) {
  struct log_line line = {.warn = false};
  if (!own_with_retries(comm)) return;
  sk_failover_tick(comm, now);
  if (sk_progress_watch(comm) == RAIL_OK) {
    struct sk_keepalive *k = &comm->keepalive;
    uint64_t ping = ping_interval();
    if (update_progress(comm, now)) k->idle = k->skip = 0; /* more may come, which the next check must see */
    if (host_is_due(comm, now)) check_host(comm, now);
    if (sk_comm_error(comm) == RAIL_OK && sk_comm_in_use(comm) && ping && now - k->since + TICK > ping)
      check_deadline(comm, now, &line);
  }
  if (comm->keepalive.was_silent && !line.text[0]) report_recovery(comm, &line);
  sk_comm_disown(comm);
  if (line.text[0] && line.warn) RAIL_WARN("%s", line.text);
  else if (line.text[0]) RAIL_INFO(RAIL_SUB_NET, "%s", line.text);
}
