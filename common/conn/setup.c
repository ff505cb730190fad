/* SPDX-License-Identifier: Apache-2.0
 * Running a side's table of steps, its messages, what is logged when it fails, the connections of a listener. */
#include "common/conn/setup.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/sockopt.h"

void rail_setup_init(struct rail_setup *s, const struct rail_setup_ops *ops, const char *device, bool connector,
                     const union rail_addr *peer, const struct rail_connector_limits *limits) {
  memset(s, 0, sizeof *s);
  s->ops = ops;
  s->limits = *limits;
  s->device = device;
  s->connector = connector;
  s->peer = *peer;
  rail_handshake_init(&s->handshake);
}

rail_result_t rail_setup_begin_dial(struct rail_setup *s, const struct rail_handle *listener, const char *interface,
                                    const union rail_addr *from) {
  const char *plugin = s->ops->protocol->plugin;
  s->from = *from;
  const struct rail_dial_args args = {.plugin = plugin, .interface = interface, .addr = &s->from,
                                      .bind = RAIL_BIND_ADDR, .traffic_class = -1, .stream = -1};
  rail_result_t result = rail_connector_init(&s->dialing, s->ops->protocol, listener, &args, NULL, &s->limits,
                                             s->device, &s->handshake);
  if (result != RAIL_OK) RAIL_WARN("%s: connect: %s", plugin, s->dialing.why);
  return result;
}

void rail_setup_close(struct rail_setup *s) {
  if (s->dialing.handshake) rail_connector_close(&s->dialing);
  rail_handshake_close(&s->handshake);
}

/* ---- failing --------------------------------------------------------------- */

static const char *verb_of(const struct rail_setup *s) { return s->connector ? "connect to" : "accept of"; }

rail_result_t rail_setup_fail(struct rail_setup *s, unsigned int reason, rail_result_t result, const char *fmt, ...) {
  char peer[RAIL_ADDR_TEXT], what[768];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(what, sizeof what, fmt, ap);
  va_end(ap);
  RAIL_WARN("%s: %s %s over %s: %s", s->ops->protocol->plugin, verb_of(s), rail_addr_text(&s->peer, peer), s->device,
            what);
  s->reason = reason;
  rail_handshake_refuse(&s->handshake, reason, NULL);
  return result;
}

static rail_result_t refused(struct rail_setup *s, const struct rail_message *answer) {
  char text[512];
  snprintf(text, sizeof text, "refused: %s", rail_reason_text(s->ops->protocol, answer->reason));
  if (s->ops->refused) RAIL_TRY(s->ops->refused(s, answer, text, sizeof text));
  rail_setup_fail(s, RAIL_REASON_NONE, RAIL_REMOTE_ERROR, "%s", text);
  s->reason = answer->reason;
  return RAIL_REMOTE_ERROR;
}

/* ---- messages ---------------------------------------------------------------- */

static rail_result_t check(struct rail_setup *s, unsigned int wanted, const struct rail_message *message) {
  if (message->type == RAIL_MESSAGE_ANSWER && message->reason != RAIL_REASON_NONE) return refused(s, message);
  if (message->type == wanted) return RAIL_OK;
  return rail_setup_fail(s, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "it sent message %u where message %u was expected",
                         message->type, wanted);
}

rail_result_t rail_setup_recv(struct rail_setup *s, unsigned int wanted, struct rail_message *message) {
  enum rail_reason reason = RAIL_REASON_NONE;
  const char *why = "";
  rail_result_t result = rail_handshake_recv(&s->handshake, message, &reason, &why);
  if (result == RAIL_IN_PROGRESS) return result;
  if (result != RAIL_OK) return rail_setup_fail(s, reason, RAIL_REMOTE_ERROR, "%s", why);
  return check(s, wanted, message);
}

/* ---- the process ----------------------------------------------------------------- */

static uint64_t random_base;

static void choose_random_base(void) { (void)rail_random_bytes(&random_base, sizeof random_base); }

uint64_t rail_setup_process_id(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, choose_random_base);
  return random_base ^ (uint64_t)getpid();
}

/* ---- steps --------------------------------------------------------------------- */

rail_result_t rail_setup_dial(struct rail_setup *s) {
  rail_result_t result = rail_connector_dial(&s->dialing);
  if (result == RAIL_OK || result == RAIL_IN_PROGRESS) return result;
  return rail_setup_fail(s, RAIL_REASON_NONE, result, "%s", s->dialing.why);
}

/* The peer's accept may take any time, as long as its host answers. */
rail_result_t rail_setup_answer(struct rail_setup *s) {
  struct rail_message message;
  enum rail_reason reason;
  rail_result_t result = rail_connector_answer(&s->dialing, &message, &reason);
  if (result == RAIL_OK) return check(s, RAIL_MESSAGE_ANSWER, &message);
  if (result != RAIL_IN_PROGRESS) return rail_setup_fail(s, reason, result, "%s", s->dialing.why);
  if (s->handshake.fd < 0) /* it was dropped, and is dialled again */
    while (s->state > 0 && s->ops->rows[s->state].step != rail_setup_dial) s->state--;
  return result;
}

rail_result_t rail_setup_welcome(struct rail_setup *s) {
  if (rail_handshake_welcome(&s->handshake, NULL) == RAIL_OK) return RAIL_OK;
  return rail_setup_fail(s, RAIL_REASON_FAILED, RAIL_SYSTEM_ERROR, "no random bytes from the kernel, or no HMAC");
}

rail_result_t rail_setup_flushed(struct rail_setup *s) {
  rail_result_t result = rail_handshake_flush(&s->handshake);
  if (result == RAIL_OK || result == RAIL_IN_PROGRESS) return result;
  return rail_setup_fail(s, RAIL_REASON_NONE, result, "%s", strerror(errno));
}

/* ---- running the table ------------------------------------------------------------ */

rail_result_t rail_setup_piece_done(struct rail_setup *s, unsigned int n) {
  s->piece++;
  if (s->piece >= n) return RAIL_OK;
  s->more = true;
  return RAIL_IN_PROGRESS;
}

static void trace(const struct rail_setup *s) {
  char peer[RAIL_ADDR_TEXT];
  if (!rail_log_trace_on()) return;
  RAIL_TRACE(RAIL_SUB_NET, "%s: %s %s over %s: %s -> %s", s->ops->protocol->plugin, verb_of(s),
             rail_addr_text(&s->peer, peer), s->device, s->ops->rows[s->state].name,
             s->state + 1 < s->ops->nrows ? s->ops->rows[s->state + 1].name : "done");
}

bool rail_setup_is_late(const struct rail_setup *s) {
  return rail_handshake_has_waited(&s->handshake, s->limits.connect_ms);
}

static rail_result_t too_late(struct rail_setup *s, const struct rail_setup_row *row) {
  return rail_setup_fail(s, RAIL_REASON_TIMEOUT, RAIL_REMOTE_ERROR, "not ready within %lld ms (%s): waited for %s; "
                         "does the peer's process run, and does its log say more?", (long long)s->limits.connect_ms,
                         s->limits.connect_param, row->waits_for ? row->waits_for : row->name);
}

rail_result_t rail_setup_run(struct rail_setup *s, uint64_t until) {
  rail_result_t result;
  rail_handshake_note_time(&s->handshake);
  bool late = rail_setup_is_late(s); /* before the step, which may have a better line about it */
  do {
    const struct rail_setup_row *row = &s->ops->rows[s->state];
    s->more = false;
    if (s->handshake.fd >= 0 && row->unlimited) {
      (void)rail_handshake_flush(&s->handshake); /* the step reports a failure */
    } else if (s->handshake.fd >= 0) {
      result = rail_setup_flushed(s);
      if (result != RAIL_OK && result != RAIL_IN_PROGRESS) return result;
    }
    result = row->step(s);
    if (result == RAIL_OK) {
      trace(s);
      s->piece = 0;
      if (++s->state == s->ops->nrows) return RAIL_OK;
      s->more = true;
    } else if (result != RAIL_IN_PROGRESS) {
      return result;
    }
  } while (s->more && rail_now_ns() < until);
  late = late && rail_setup_is_late(s); /* a step may have reset `waited` */
  return late && !s->ops->rows[s->state].unlimited ? too_late(s, &s->ops->rows[s->state]) : RAIL_IN_PROGRESS;
}

/* ---- a listener's half-open connections --------------------------------------------------- */

void rail_half_open_init(struct rail_half_open *a, struct rail_listener *listener, unsigned int max,
                         struct rail_setup *(*begin)(void *owner, const union rail_addr *peer),
                         void (*drop)(struct rail_setup *s)) {
  *a = (struct rail_half_open){.max = max, .listener = listener, .begin = begin, .drop = drop};
  TAILQ_INIT(&a->list);
}

static void add(struct rail_half_open *a, struct rail_setup *s) {
  TAILQ_INSERT_TAIL(&a->list, s, link);
  a->count++;
}

static void take_out(struct rail_half_open *a, struct rail_setup *s) {
  TAILQ_REMOVE(&a->list, s, link);
  a->count--;
}

/* One that is in the list no more. */
static void drop(struct rail_half_open *a, struct rail_setup *s) {
  rail_listener_release(a->listener, 1);
  a->drop(s);
}

void rail_half_open_close(struct rail_half_open *a) {
  while (!TAILQ_EMPTY(&a->list)) {
    struct rail_setup *s = TAILQ_FIRST(&a->list);
    take_out(a, s);
    drop(a, s);
  }
}

/* Nothing after its hello. What has come but was not read yet counts. */
static bool is_silent(const struct rail_setup *s) {
  char byte;
  return s->state == 0 && recv(s->handshake.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

static bool has_room(struct rail_half_open *a) {
  if (a->count < a->max) return rail_listener_reserve(a->listener, 1);
  snprintf(a->listener->why, sizeof a->listener->why, "too many half-open connections of this listener, %u, which "
           "is the limit, and each has sent more than its hello; it may try again", a->count);
  return false;
}

/* For one more, which it reserves. False: all go on, and the new one is to dial again. */
static bool make_room(struct rail_half_open *a) {
  struct rail_setup *s, *oldest = NULL;
  if (has_room(a)) return true;
  TAILQ_FOREACH(s, &a->list, link)
    if ((!oldest || s->handshake.begun < oldest->handshake.begun) && is_silent(s)) oldest = s;
  if (!oldest) return false;
  rail_listener_log_drop(a->listener, &oldest->peer,
                         "too many half-open connections, and this one has sent nothing after its hello");
  take_out(a, oldest);
  drop(a, oldest);
  return has_room(a);
}

unsigned int rail_half_open_hello(struct rail_half_open *a, const struct rail_pending *conn,
                                  const struct rail_hello *hello) {
  if (hello->streams != 1 || hello->reconnect) return RAIL_REASON_MESSAGE;
  if (!make_room(a)) return RAIL_REASON_BUSY;
  struct rail_setup *s = a->begin(a->listener->owner, &conn->peer);
  if (!s) {
    snprintf(a->listener->why, sizeof a->listener->why, "no set-up could begin; the line before says why");
    rail_listener_release(a->listener, 1);
    return RAIL_REASON_BUSY;
  }
  rail_sockopt_host_deadline(conn->fd, s->limits.deadline_ms, 0); /* while the peer's process may take any time */
  rail_handshake_begin(&s->handshake, s->ops->protocol, conn->fd, false, hello);
  add(a, s);
  return RAIL_REASON_NONE;
}

static bool is_only_that_peer(unsigned int reason) {
  switch (reason) {
    case RAIL_REASON_NONE: /* it is gone */
    case RAIL_REASON_GONE:
    case RAIL_REASON_MESSAGE:
    case RAIL_REASON_VERSION:
    case RAIL_REASON_MAC:
    case RAIL_REASON_TIMEOUT: return true;
    default: return false;
  }
}

rail_result_t rail_half_open_next(struct rail_half_open *a, uint64_t until, struct rail_setup **ready) {
  *ready = NULL;
  for (unsigned int n = a->count; n > 0; n--) {
    struct rail_setup *s = TAILQ_FIRST(&a->list);
    rail_result_t result = rail_setup_run(s, until);
    take_out(a, s);
    if (result == RAIL_OK) {
      rail_listener_release(a->listener, 1);
      *ready = s;
      return RAIL_OK;
    }
    if (result == RAIL_IN_PROGRESS) {
      add(a, s);
    } else {
      bool only = is_only_that_peer(s->reason);
      drop(a, s);
      if (!only) return result;
    }
    if (rail_now_ns() >= until) break;
  }
  return RAIL_OK;
}
