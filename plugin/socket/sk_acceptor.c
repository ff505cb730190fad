/* SPDX-License-Identifier: Apache-2.0
 * HELLOs to half-open comms, half-open comms to accept, lost streams to their connections. */
#include "plugin/socket/sk_connect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/sockopt.h"
#include "common/conn/handshake.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_stats.h"
#include "plugin/socket/sk_tls.h"

/* A connection behind an acceptor whose streams may come back. Under its lock. */
struct sk_accepted_comm {
  struct sk_acceptor *acceptor;
  LIST_ENTRY(sk_accepted_comm) next;
  uint8_t comm_id[RAIL_COMM_ID_SIZE];
  unsigned int nstreams;
  struct sk_limits limits;
  struct {
    uint64_t counter; /* of the latest HELLO; the next must be larger */
    int fd;           /* that has come back and was not taken */
    struct sk_tls *tls; /* over it, in its handshake; NULL: not welcomed, or in clear */
    struct rail_session session;
  } streams[SK_MAX_STREAMS];
};

static struct rail_ports ports = {
  .plugin = "RailSocket", .range_param = "RAIL_SOCKET_PORTS", .bind_param = "RAIL_SOCKET_BIND"};

void sk_ports_load(void) { rail_ports_load(&ports, sk_params.ports, sk_params.bind); }

/* Fails when the peer is gone. */
static rail_result_t welcome(const struct sk_acceptor *a, int fd, struct rail_session *session, uint32_t features) {
  uint8_t answer[RAIL_ANSWER_MAX];
  size_t done = 0;
  RAIL_TRY(sk_welcome_encode(session, features, answer));
  rail_sockopt_traffic_class(fd, a->traffic_class); /* the priority is not inherited */
  rail_result_t result = rail_sock_send_some(fd, answer, rail_answer_size(&sk_protocol), &done);
  return result == RAIL_IN_PROGRESS ? RAIL_SYSTEM_ERROR : result; /* a socket that takes not even this is of no use */
}

/* ---- half-open comms ------------------------------------------------------ */

void sk_half_open_free(struct sk_half_open_comm *p) {
  for (unsigned int i = 0; i < p->nstreams; i++) rail_sock_close(&p->streams[i].fd);
  free(p);
}

static void unlink_half_open(struct sk_acceptor *a, struct sk_half_open_comm *p) {
  TAILQ_REMOVE(&a->half_open, p, next);
  rail_listener_release(&a->listener, p->nstreams);
}

static void drop_half_open(struct sk_acceptor *a, struct sk_half_open_comm *p) {
  unlink_half_open(a, p);
  sk_half_open_free(p);
}

/* NULL: none. */
static struct sk_half_open_comm *find_half_open(const struct sk_acceptor *a, const uint8_t *comm_id) {
  struct sk_half_open_comm *p;
  TAILQ_FOREACH(p, &a->half_open, next)
    if (memcmp(p->comm_id, comm_id, sizeof p->comm_id) == 0) break;
  return p;
}

/* The half-open comm of this comm id, made if need be; NULL when there is no room for all of its streams, those that
 * came and those that are to come. */
static struct sk_half_open_comm *find_or_add_half_open(struct sk_acceptor *a, const struct rail_hello *hello,
                                                       const struct sk_limits *limits, const union rail_addr *peer) {
  struct sk_half_open_comm *p = find_half_open(a, hello->comm_id);
  if (p) return p;
  if (!rail_listener_reserve(&a->listener, hello->streams)) return NULL;
  p = calloc(1, sizeof *p);
  if (!p) {
    rail_listener_release(&a->listener, hello->streams);
    snprintf(a->listener.why, sizeof a->listener.why, "out of memory");
    return NULL;
  }
  memcpy(p->comm_id, hello->comm_id, sizeof p->comm_id);
  p->peer = *peer;
  p->deadline = rail_deadline_in_ms((uint64_t)sk_params.handshake_ms);
  p->limits = *limits;
  p->nstreams = hello->streams;
  for (unsigned int i = 0; i < p->nstreams; i++) p->streams[i].fd = -1;
  TAILQ_INSERT_TAIL(&a->half_open, p, next);
  return p;
}

static struct sk_accepted_comm *find_accepted(const struct sk_acceptor *a, const uint8_t *comm_id) {
  struct sk_accepted_comm *c;
  LIST_FOREACH(c, &a->accepted, next)
    if (memcmp(c->comm_id, comm_id, sizeof c->comm_id) == 0) break;
  return c;
}

/* A stream that is there and says HELLO again has broken at its sender, so the latest HELLO counts. Should the two
 * arrive in the other order, the sender sees the good one end, and dials once more. */
static unsigned int add_stream(struct sk_acceptor *a, const struct rail_pending *conn, const struct rail_hello *hello,
                               const struct sk_limits *limits) {
  if (find_accepted(a, hello->comm_id)) return SK_REASON_DUPLICATE; /* sent before the welcome came */
  if (a->closed) return RAIL_REASON_GONE;
  struct sk_half_open_comm *p = find_or_add_half_open(a, hello, limits, &conn->peer);
  if (!p) return RAIL_REASON_BUSY;
  if (p->nstreams != hello->streams) return SK_REASON_STREAMS;
  if (!sk_limits_equal(&p->limits, limits)) return SK_REASON_LIMITS;
  if (p->streams[hello->stream].fd < 0) p->have++;
  rail_sock_close(&p->streams[hello->stream].fd);
  p->streams[hello->stream].fd = conn->fd;
  p->streams[hello->stream].rail = conn->index;
  p->streams[hello->stream].peer = conn->peer;
  rail_session_init(&p->streams[hello->stream].session, &sk_protocol, false, hello);
  RAIL_TRACE(RAIL_SUB_NET, "RailSocket: accept on %s: stream %u, %u of %u", a->device->name, hello->stream, p->have,
             p->nstreams);
  return RAIL_REASON_NONE;
}

static void expire_half_open(struct sk_acceptor *a, uint64_t now) {
  for (struct sk_half_open_comm *p = TAILQ_FIRST(&a->half_open), *next; p; p = next) {
    next = TAILQ_NEXT(p, next);
    if (p->have == p->nstreams || now < p->deadline) continue;
    sk_stats_count(a->device->name, SK_DEVICE_REFUSED);
    rail_listener_log_refusal(&a->listener, &p->peer, "not all of its streams arrived within the time limit");
    for (unsigned int i = 0; i < p->nstreams; i++)
      if (p->streams[i].fd >= 0) rail_refuse(&sk_protocol, &p->streams[i].fd, RAIL_REASON_TIMEOUT);
    drop_half_open(a, p);
  }
}

/* False: the half-open comm is of no use. After one welcome its sender says no HELLO again. With FAILOVER a stream that
 * cannot be answered is closed, and the sender finds it lost; without, the sender must learn that it has no
 * connection. */
static bool welcome_all(const struct sk_acceptor *a, struct sk_half_open_comm *p) {
  bool any = false, failover = p->limits.features & SK_FEATURE_FAILOVER;
  for (unsigned int i = 0; i < p->nstreams; i++) {
    if (welcome(a, p->streams[i].fd, &p->streams[i].session, p->limits.features) == RAIL_OK) any = true;
    else if (failover) shutdown(p->streams[i].fd, SHUT_RDWR);
    else return false;
  }
  return any;
}

struct sk_half_open_comm *sk_acceptor_take(struct sk_acceptor *a) {
  for (struct sk_half_open_comm *p = TAILQ_FIRST(&a->half_open), *next; p; p = next) {
    next = TAILQ_NEXT(p, next);
    if (p->have < p->nstreams) continue;
    if (welcome_all(a, p)) {
      unlink_half_open(a, p);
      return p;
    }
    rail_listener_log_drop(&a->listener, &p->peer, "it went away before it was accepted");
    drop_half_open(a, p);
  }
  return NULL;
}

/* ---- accepted comms: streams that come back ------------------------------ */

struct sk_accepted_comm *sk_accepted_new(struct sk_acceptor *acceptor, const struct sk_half_open_comm *comm) {
  struct sk_accepted_comm *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->acceptor = acceptor;
  memcpy(c->comm_id, comm->comm_id, sizeof c->comm_id);
  c->nstreams = comm->nstreams;
  c->limits = comm->limits;
  for (unsigned int i = 0; i < c->nstreams; i++) c->streams[i].fd = -1;
  acceptor->refs++;
  LIST_INSERT_HEAD(&acceptor->accepted, c, next);
  return c;
}

static void drop_returned(struct sk_accepted_comm *c, unsigned int stream) {
  sk_tls_free(c->streams[stream].tls);
  c->streams[stream].tls = NULL;
  rail_sock_close(&c->streams[stream].fd);
}

static unsigned int return_stream(struct sk_acceptor *a, const struct rail_pending *conn,
                                  const struct rail_hello *hello, const struct sk_limits *limits, uint64_t counter) {
  struct sk_accepted_comm *c = find_accepted(a, hello->comm_id);
  /* Lost before it was accepted: it shall try again. */
  if (!c) return find_half_open(a, hello->comm_id) ? RAIL_REASON_BUSY : RAIL_REASON_GONE;
  if (hello->streams != c->nstreams) return SK_REASON_STREAMS;
  if (!sk_limits_equal(&c->limits, limits)) return SK_REASON_LIMITS;
  if (counter <= c->streams[hello->stream].counter) return RAIL_REASON_REPLAY;
  c->streams[hello->stream].counter = counter;
  drop_returned(c, hello->stream); /* an earlier try, which its sender gave up */
  c->streams[hello->stream].fd = conn->fd;
  rail_session_init(&c->streams[hello->stream].session, &sk_protocol, false, hello);
  return RAIL_REASON_NONE;
}

/* RAIL_OK: frames may follow. RAIL_IN_PROGRESS: its TLS handshake goes on. Else its peer has gone in the meantime. */
static rail_result_t set_up_returned(struct sk_accepted_comm *c, unsigned int i) {
  if (!c->streams[i].tls) {
    RAIL_TRY(welcome(c->acceptor, c->streams[i].fd, &c->streams[i].session, c->limits.features));
    if (!(c->limits.features & SK_FEATURE_TLS)) return RAIL_OK;
    RAIL_TRY(sk_tls_open(&c->streams[i].session, c->streams[i].fd, &c->streams[i].tls));
  }
  return sk_tls_handshake(c->streams[i].tls);
}

static rail_result_t take_one(struct sk_accepted_comm *c, unsigned int *stream, int *fd, struct sk_tls **tls) {
  for (unsigned int i = 0; i < c->nstreams; i++) {
    rail_result_t result = c->streams[i].fd < 0 ? RAIL_IN_PROGRESS : set_up_returned(c, i);
    if (result == RAIL_IN_PROGRESS) continue;
    if (result != RAIL_OK) {
      drop_returned(c, i);
      continue;
    }
    *stream = i;
    *fd = c->streams[i].fd;
    *tls = c->streams[i].tls;
    c->streams[i].fd = -1;
    c->streams[i].tls = NULL;
    return RAIL_OK;
  }
  return RAIL_IN_PROGRESS;
}

rail_result_t sk_accepted_take(struct sk_accepted_comm *c, unsigned int *stream, int *fd, struct sk_tls **tls) {
  *fd = -1;
  *tls = NULL;
  pthread_mutex_lock(&c->acceptor->lock);
  (void)sk_acceptor_poll(c->acceptor); /* a failure has logged itself, and may pass */
  rail_result_t result = take_one(c, stream, fd, tls);
  pthread_mutex_unlock(&c->acceptor->lock);
  if (result == RAIL_OK && sk_params.rcvbuf < 0) (void)rail_sock_open_window(*fd, sk_params.window);
  return result;
}

/* ---- the acceptor -------------------------------------------------------- */

static unsigned int on_hello(void *owner, const struct rail_pending *conn, const struct rail_hello *hello) {
  struct sk_acceptor *a = owner;
  struct sk_limits limits;
  uint64_t counter;
  unsigned int reason = sk_limits_decode(hello, &a->listener.handle, &limits, &counter);
  if (reason != RAIL_REASON_NONE) return reason;
  if (hello->reconnect) return return_stream(a, conn, hello, &limits, counter);
  return add_stream(a, conn, hello, &limits);
}

static void count_event(void *owner, enum rail_listener_event event) {
  const struct sk_acceptor *a = owner;
  sk_stats_count(a->device->name, event == RAIL_LISTENER_REFUSED ? SK_DEVICE_REFUSED : SK_DEVICE_DROPPED);
}

static const struct rail_listener_ops listener_ops = {
  .protocol = &sk_protocol, .on_hello = on_hello, .count = count_event};

rail_result_t sk_acceptor_poll(struct sk_acceptor *a) {
  RAIL_TRY(rail_listener_poll(&a->listener));
  expire_half_open(a, rail_now_ns());
  return RAIL_OK;
}

static void drop_all_half_open(struct sk_acceptor *a) {
  for (struct sk_half_open_comm *p = TAILQ_FIRST(&a->half_open), *next; p; p = next) {
    next = TAILQ_NEXT(p, next);
    drop_half_open(a, p);
  }
}

static void destroy(struct sk_acceptor *a) {
  rail_listener_close(&a->listener);
  drop_all_half_open(a);
  pthread_mutex_destroy(&a->lock);
  free(a);
}

static void unref(struct sk_acceptor *a) {
  pthread_mutex_lock(&a->lock);
  bool last = --a->refs == 0;
  pthread_mutex_unlock(&a->lock);
  if (last) destroy(a);
}

void sk_accepted_free(struct sk_accepted_comm *c) {
  if (!c) return;
  pthread_mutex_lock(&c->acceptor->lock);
  LIST_REMOVE(c, next);
  for (unsigned int i = 0; i < c->nstreams; i++) drop_returned(c, i);
  pthread_mutex_unlock(&c->acceptor->lock);
  unref(c->acceptor);
  free(c);
}

rail_result_t sk_acceptor_open(const struct sk_device *device, int traffic_class, struct sk_acceptor **out) {
  struct sk_acceptor *a = calloc(1, sizeof *a);
  if (!a || pthread_mutex_init(&a->lock, NULL) != 0) {
    free(a);
    RAIL_WARN("RailSocket: listen: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  a->device = device;
  a->traffic_class = traffic_class;
  a->refs = 1;
  TAILQ_INIT(&a->half_open);
  rail_result_t result =
    rail_listener_init(&a->listener, &listener_ops, a, device->name, (uint64_t)sk_params.handshake_ms);
  a->listener.handle.param = (uint8_t)(sk_choose_streams(&sk_params, device->vendor).count |
                                         (sk_params.tls ? SK_HANDLE_TLS : 0));
  for (unsigned int i = 0; i < device->nrails && result == RAIL_OK; i++) {
    result = rail_listener_add(&a->listener, &ports, device->rails[i]->name, &device->rails[i]->addr);
    /* Accepted sockets inherit these; set later, sizes would not count for the TCP window, and the first packets would
     * be of no class. */
    if (result == RAIL_OK) sk_sockopt_set(a->listener.fds[i], traffic_class);
  }
  if (result != RAIL_OK) destroy(a);
  else *out = a;
  return result;
}

void sk_acceptor_close(struct sk_acceptor *a) {
  pthread_mutex_lock(&a->lock);
  a->closed = true;
  drop_all_half_open(a);
  pthread_mutex_unlock(&a->lock);
  unref(a);
}
