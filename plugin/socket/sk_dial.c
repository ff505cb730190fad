/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream's way to the acceptor: common/conn/dial.h with a HELLO to send. connect has one for each stream. Streams
 * that need it are connected again: one that was cut before the acceptor had answered its HELLO (a flood took its
 * place, or the acceptor was busy) sends the same HELLO once more; a lost one of a connection over several devices
 * sends HELLO with the flag RECONNECT, and the receiver finds it at the listening sockets that it kept (sk_acceptor.c).
 * What is sent again of the bytes that were lost is in sk_failover.c.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/socket/sk_connect.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_tls.h"

#define PAUSE_MS 100  /* before the next attempt: a lost interface comes back after seconds */
/* One attempt, from SYN to ANSWER. An idle connection is moved once a second, so TLS' round trips have a deadline
 * of their own, as long again. No longer: in a dead network retransmission backs off. */
#define TRY_MS 3000

void sk_dial_init(struct sk_dial *d, const struct sk_device *nic, const union rail_addr *peer, unsigned int stream,
                  int traffic_class, enum rail_dial_bind bind) {
  const struct rail_dial_args args = {.plugin = "RailSocket",
                                      .interface = nic->name,
                                      .addr = &nic->addr,
                                      .bind = bind,
                                      .traffic_class = traffic_class,
                                      .set_options = sk_sockopt_set,
                                      .stream = (int)stream};
  d->nic = nic;
  rail_dial_init(&d->dial, &args, peer);
}

rail_result_t sk_dial_hello(struct sk_dial *d, const struct rail_handle *listener, const struct sk_limits *limits,
                            bool reconnect, uint64_t counter) {
  d->hello.reconnect = reconnect;
  sk_limits_encode(limits, counter, &d->hello);
  return rail_hello_encode(&sk_protocol, listener, &d->hello, d->bytes);
}

rail_result_t sk_dial_step(struct sk_dial *d) {
  return rail_dial_step(&d->dial, d->bytes, rail_hello_size(&sk_protocol));
}

/* ---- again ------------------------------------------------------------ */

struct redial {
  bool dialling;
  bool refused; /* for ever */
  struct sk_dial dial;
  uint64_t deadline;    /* of this attempt */
  uint64_t not_before;  /* the next */
  struct rail_waited unanswered; /* since a HELLO was cut for the first time; noted 0: none was */
  uint64_t counter;
  struct rail_session session;
  uint8_t answer[RAIL_ANSWER_MAX];
  size_t have; /* bytes of it */
  struct sk_tls *tls; /* in its handshake; NULL: ANSWER is not here, or the connection is in clear */
};

struct sk_reconnect {
  struct rail_handle listener;
  struct sk_limits limits;
  unsigned int nstreams;
  struct redial streams[SK_MAX_STREAMS];
};

struct sk_reconnect *sk_reconnect_new(const struct rail_handle *listener, const struct sk_limits *limits,
                                      const struct sk_dial *dials, unsigned int streams) {
  struct sk_reconnect *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  r->listener = *listener;
  r->limits = *limits;
  r->nstreams = streams;
  for (unsigned int i = 0; i < streams; i++) {
    struct sk_dial *d = &r->streams[i].dial;
    /* The same interface again, and no other: a stream that comes back over another rail's interface is no gain. */
    d->hello = dials[i].hello;
    sk_dial_init(d, dials[i].nic, &dials[i].dial.peer, i, dials[i].dial.args.traffic_class,
                 dials[i].dial.device_bound ? RAIL_BIND_DEVICE : RAIL_BIND_ADDR);
  }
  return r;
}

void sk_reconnect_free(struct sk_reconnect *r) {
  for (unsigned int i = 0; r && i < r->nstreams; i++) {
    sk_tls_free(r->streams[i].tls);
    rail_dial_close(&r->streams[i].dial.dial);
  }
  free(r);
}

static rail_result_t begin(struct sk_reconnect *r, struct redial *s, bool reconnect) {
  const struct rail_dial before = s->dial.dial;
  s->dialling = true;
  s->deadline = rail_deadline_in_ms(TRY_MS);
  s->have = 0;
  sk_dial_init(&s->dial, s->dial.nic, &before.peer, (unsigned int)(s - r->streams), before.args.traffic_class,
               before.args.bind);
  RAIL_TRY(sk_dial_hello(&s->dial, &r->listener, &r->limits, reconnect, reconnect ? ++s->counter : 0));
  rail_session_init(&s->session, &sk_protocol, true, &s->dial.hello);
  return RAIL_OK;
}

static void abandon(struct redial *s) {
  sk_tls_free(s->tls);
  s->tls = NULL;
  rail_dial_close(&s->dial.dial);
  s->dialling = false;
  s->not_before = rail_deadline_in_ms(PAUSE_MS);
}

static rail_result_t read_answer(const struct sk_reconnect *r, struct redial *s) {
  unsigned int version;
  size_t need = rail_message_need(&sk_protocol, s->answer, s->have);
  while (s->have < need) {
    RAIL_TRY(rail_sock_recv_some(s->dial.dial.fd, s->answer, need, &s->have));
    need = rail_message_need(&sk_protocol, s->answer, s->have);
  }
  unsigned int reason = sk_answer_decode(&s->session, s->answer, r->limits.features, &version);
  if (reason == RAIL_REASON_NONE) return RAIL_OK;
  if (sk_reason_is_passing(reason)) return RAIL_SYSTEM_ERROR;
  char peer[RAIL_ADDR_TEXT];
  s->refused = true;
  RAIL_WARN("RailSocket: stream %u to %s over %s, which was lost, is not taken back: %s", s->dial.hello.stream,
            rail_addr_text(&s->dial.dial.peer, peer), s->dial.nic->name,
            reason == RAIL_REASON_GARBAGE ? "the answer is not one of RailSocket"
                                          : rail_reason_text(&sk_protocol, reason));
  return RAIL_REMOTE_ERROR;
}

/* After ANSWER: until frames may follow. */
static rail_result_t run_tls(const struct sk_reconnect *r, struct redial *s) {
  if (!(r->limits.features & SK_FEATURE_TLS)) return RAIL_OK;
  if (!s->tls) {
    s->deadline = rail_deadline_in_ms(TRY_MS);
    RAIL_TRY(sk_tls_open(&s->session, s->dial.dial.fd, &s->tls));
  }
  return sk_tls_handshake(s->tls);
}

rail_result_t sk_reconnect_lost(struct sk_reconnect *r, unsigned int stream, int *fd, struct sk_tls **tls) {
  *fd = -1;
  *tls = NULL;
  if (stream >= r->nstreams) return RAIL_REMOTE_ERROR;
  struct redial *s = &r->streams[stream];
  if (s->refused) return RAIL_REMOTE_ERROR;
  if (s->dialling && !s->dial.hello.reconnect) abandon(s); /* the peer has accepted: no plain HELLO any more */
  if (!s->dialling) {
    if (s->not_before && !rail_deadline_passed(s->not_before)) return RAIL_IN_PROGRESS;
    if (begin(r, s, true) != RAIL_OK) {
      abandon(s);
      return RAIL_IN_PROGRESS;
    }
  }
  rail_result_t result = sk_dial_step(&s->dial);
  if (result == RAIL_OK && !s->tls) result = read_answer(r, s);
  if (result == RAIL_OK) result = run_tls(r, s);
  if (result == RAIL_OK) {
    *fd = s->dial.dial.fd;
    *tls = s->tls;
    s->dial.dial.fd = -1;
    s->tls = NULL;
    s->dialling = false;
    return RAIL_OK;
  }
  if (result != RAIL_IN_PROGRESS || rail_deadline_passed(s->deadline)) abandon(s);
  return s->refused ? RAIL_REMOTE_ERROR : RAIL_IN_PROGRESS;
}

rail_result_t sk_reconnect_unanswered(struct sk_reconnect *r, unsigned int stream, struct rail_session *session,
                                      int *fd) {
  struct redial *s = &r->streams[stream];
  *fd = -1;
  if (!s->unanswered.noted) rail_waited_begin(&s->unanswered);
  rail_waited_note(&s->unanswered);
  if (rail_waited_is_late(&s->unanswered, sk_params.connect_ms)) {
    abandon(s);
    errno = ETIMEDOUT;
    return RAIL_REMOTE_ERROR;
  }
  if (!s->dialling) {
    if (s->not_before && !rail_deadline_passed(s->not_before)) return RAIL_IN_PROGRESS;
    RAIL_TRY(begin(r, s, false));
  }
  rail_result_t result = sk_dial_step(&s->dial);
  int err = s->dial.dial.last_errno;
  if (result == RAIL_IN_PROGRESS && err != ECONNREFUSED) return RAIL_IN_PROGRESS;
  *session = s->session;
  if (result == RAIL_OK) *fd = s->dial.dial.fd;
  if (result == RAIL_OK) s->dial.dial.fd = -1;
  abandon(s); /* the next try, should this one be cut, too, is a while later */
  errno = err;
  return result == RAIL_OK ? RAIL_OK : RAIL_REMOTE_ERROR;
}
