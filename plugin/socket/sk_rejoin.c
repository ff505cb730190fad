/* SPDX-License-Identifier: Apache-2.0
 * Both sides of a stream's return. */
#include "plugin/socket/sk_rejoin.h"

#include <errno.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/socket/sk_param.h"

#define PAUSE_MS 100
#define TRY_MS 3000 /* one attempt, from SYN to answer: packets sent into a dead network come back ever more rarely */

/* A connection behind a reception whose streams may come back. Under the reception's lock. */
struct sk_member {
  struct sk_member *next, *prev;
  uint8_t comm_id[SK_COMM_ID_SIZE];
  unsigned int streams;
  uint32_t eager_size, eager_count, eager_bytes, features;
  struct {
    uint64_t counter; /* of the latest HELLO; the next must be larger */
    int fd;           /* that has come back and was not taken */
    uint8_t mac[SK_MAC_SIZE];
  } stream[SK_MAX_STREAMS];
};

/* A sender's stream on its way back. */
struct homing {
  bool under_way;
  bool refused; /* for ever */
  struct sk_leg leg;
  uint64_t deadline;   /* of this attempt */
  uint64_t not_before; /* the next */
  uint64_t retry_until; /* of a HELLO that was not answered; 0: none was cut */
  uint64_t counter;
  struct sk_answer_wire expected;
  uint8_t answer[sizeof(struct sk_answer_wire)];
  size_t heard;
};

struct sk_rejoin {
  enum { DIALS, TAKES } side;
  /* sender */
  struct sk_handle listener;
  struct sk_hello hello;
  struct homing homing[SK_MAX_STREAMS];
  /* receiver */
  struct sk_reception *reception;
  struct sk_member member;
};

/* ---- sender ----------------------------------------------------------- */

struct sk_rejoin *sk_rejoin_new_sender(const struct sk_handle *listener, const struct sk_hello *hello,
                                       const struct sk_leg *legs) {
  struct sk_rejoin *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  r->side = DIALS;
  r->listener = *listener;
  r->hello = *hello;
  for (unsigned int i = 0; i < hello->streams; i++) {
    struct homing *h = &r->homing[i];
    /* The same way again, and no other: a stream that comes back over another rail's interface is no gain. */
    sk_leg_init(&h->leg, legs[i].path, &legs[i].dial.peer, i, legs[i].dial.args.traffic_class,
                legs[i].dial.device_bound ? RAIL_BIND_DEVICE : RAIL_BIND_ADDR);
  }
  return r;
}

static rail_result_t begin(struct sk_rejoin *r, struct homing *h, uint32_t flags) {
  const struct rail_dial was = h->leg.dial;
  h->under_way = true;
  h->deadline = rail_deadline_in_ms(TRY_MS);
  h->heard = 0;
  r->hello.stream = (unsigned int)(h - r->homing);
  sk_leg_init(&h->leg, h->leg.path, &was.peer, r->hello.stream, was.args.traffic_class, was.args.bind);
  r->hello.flags = flags;
  r->hello.counter = flags & SK_HELLO_REJOIN ? ++h->counter : 0;
  sk_hello_encode(&r->hello, r->listener.secret, &h->leg.hello);
  sk_answer_encode(SK_REASON_NONE, r->hello.stream, r->hello.features, &h->expected);
  if (!(r->listener.flags & SK_HANDLE_AUTH)) return RAIL_OK;
  RAIL_TRY(sk_auth_sign_hello(&r->listener, &h->leg.hello));
  return sk_auth_sign_answer(h->leg.hello.mac, &h->expected);
}

static void abandon(struct homing *h) {
  sk_leg_close(&h->leg);
  h->under_way = false;
  h->not_before = rail_deadline_in_ms(PAUSE_MS);
}

/* What another try, or waiting, may cure. */
static bool passing(unsigned int reason) {
  return reason == SK_REASON_TIMEOUT || reason == SK_REASON_BUSY || reason == SK_REASON_REPLAY ||
         reason == SK_REASON_DUPLICATE;
}

static rail_result_t read_answer(struct homing *h) {
  unsigned int reason, version;
  size_t size = sk_answer_size(h->answer, h->heard);
  while (h->heard < size) {
    RAIL_TRY(rail_sock_recv_some(h->leg.dial.fd, h->answer, size, &h->heard));
    size = sk_answer_size(h->answer, h->heard);
  }
  if (!sk_answer_decode(h->answer, &h->expected, &reason, &version)) reason = SK_REASON_GARBAGE;
  if (reason == SK_REASON_NONE) return RAIL_OK;
  if (passing(reason)) return RAIL_SYSTEM_ERROR;
  char peer[RAIL_ADDR_TEXT];
  h->refused = true;
  RAIL_WARN("RailSocket: stream %u to %s over %s, which was lost, is not taken back: %s", le16toh(h->leg.hello.stream),
            rail_addr_text(&h->leg.dial.peer, peer), h->leg.path->name,
            reason == SK_REASON_GARBAGE ? "the answer is not one of RailSocket" : sk_reason_text(reason));
  return RAIL_REMOTE_ERROR;
}

rail_result_t sk_rejoin_dial(struct sk_rejoin *r, unsigned int stream, int *fd) {
  struct homing *h = &r->homing[stream];
  *fd = -1;
  if (r->side != DIALS || stream >= r->hello.streams || h->refused) return RAIL_REMOTE_ERROR;
  if (!h->under_way) {
    if (h->not_before && !rail_deadline_passed(h->not_before)) return RAIL_IN_PROGRESS;
    if (begin(r, h, SK_HELLO_REJOIN) != RAIL_OK) {
      abandon(h);
      return RAIL_IN_PROGRESS;
    }
  }
  rail_result_t result = sk_leg_step(&h->leg);
  if (result == RAIL_OK) result = read_answer(h);
  if (result == RAIL_OK) {
    *fd = h->leg.dial.fd;
    h->leg.dial.fd = -1;
    h->under_way = false;
    return RAIL_OK;
  }
  if (result != RAIL_IN_PROGRESS || rail_deadline_passed(h->deadline)) abandon(h);
  return h->refused ? RAIL_REMOTE_ERROR : RAIL_IN_PROGRESS;
}

rail_result_t sk_rejoin_retry(struct sk_rejoin *r, unsigned int stream, struct sk_answer_wire *answer, int *fd) {
  struct homing *h = &r->homing[stream];
  *fd = -1;
  if (!h->retry_until) h->retry_until = rail_deadline_in_ms((uint64_t)sk_params.connect_ms);
  if (rail_deadline_passed(h->retry_until)) {
    abandon(h);
    errno = ETIMEDOUT;
    return RAIL_REMOTE_ERROR;
  }
  if (!h->under_way) {
    if (h->not_before && !rail_deadline_passed(h->not_before)) return RAIL_IN_PROGRESS;
    RAIL_TRY(begin(r, h, 0));
  }
  rail_result_t result = sk_leg_step(&h->leg);
  int err = h->leg.dial.last_errno;
  if (result == RAIL_IN_PROGRESS && err != ECONNREFUSED) return RAIL_IN_PROGRESS;
  *answer = h->expected;
  if (result == RAIL_OK) *fd = h->leg.dial.fd;
  if (result == RAIL_OK) h->leg.dial.fd = -1;
  abandon(h); /* the next try, should this one be cut, too, is a while later */
  errno = err;
  return result == RAIL_OK ? RAIL_OK : RAIL_REMOTE_ERROR;
}

/* ---- receiver --------------------------------------------------------- */

struct sk_rejoin *sk_rejoin_new_receiver(struct sk_reception *reception, const struct sk_group *group) {
  struct sk_rejoin *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  struct sk_member *m = &r->member;
  r->side = TAKES;
  r->reception = reception;
  memcpy(m->comm_id, group->comm_id, sizeof m->comm_id);
  m->streams = group->streams;
  m->eager_size = group->eager_size;
  m->eager_count = group->eager_count;
  m->eager_bytes = group->eager_bytes;
  m->features = group->features;
  for (unsigned int i = 0; i < m->streams; i++) m->stream[i].fd = -1;
  reception->refs++;
  m->next = reception->members;
  if (m->next) m->next->prev = m;
  reception->members = m;
  return r;
}

enum sk_reason sk_rejoin_offer(struct sk_reception *reception, const struct sk_hello *hello,
                               const struct rail_stranger *s) {
  struct sk_member *m = reception->members;
  while (m && memcmp(m->comm_id, hello->comm_id, sizeof m->comm_id) != 0) m = m->next;
  /* Lost before it was accepted: it shall try again. */
  if (!m) return sk_group_waits(reception, hello->comm_id) ? SK_REASON_BUSY : SK_REASON_GONE;
  if (hello->streams != m->streams) return SK_REASON_STREAMS;
  if (hello->eager_size != m->eager_size || hello->eager_count != m->eager_count ||
      hello->eager_bytes != m->eager_bytes || (hello->features & SK_FEATURE_FAILOVER) != m->features)
    return SK_REASON_EAGER;
  if (hello->counter <= m->stream[hello->stream].counter) return SK_REASON_REPLAY;
  m->stream[hello->stream].counter = hello->counter;
  rail_sock_close(&m->stream[hello->stream].fd); /* an earlier try, which its sender gave up */
  m->stream[hello->stream].fd = s->fd;
  memcpy(m->stream[hello->stream].mac, sk_hello_of(s)->mac, SK_MAC_SIZE);
  return SK_REASON_NONE;
}

/* One that is welcomed; its peer may have gone in the meantime, then the next. */
static rail_result_t take_one(struct sk_rejoin *r, unsigned int *stream, int *fd) {
  struct sk_member *m = &r->member;
  for (unsigned int i = 0; i < m->streams; i++) {
    if (m->stream[i].fd < 0) continue;
    if (sk_welcome(r->reception, m->stream[i].fd, i, m->features, m->stream[i].mac) != RAIL_OK) {
      rail_sock_close(&m->stream[i].fd);
      continue;
    }
    *stream = i;
    *fd = m->stream[i].fd;
    m->stream[i].fd = -1;
    return RAIL_OK;
  }
  return RAIL_IN_PROGRESS;
}

rail_result_t sk_rejoin_take(struct sk_rejoin *r, unsigned int *stream, int *fd) {
  *fd = -1;
  if (r->side != TAKES) return RAIL_INTERNAL_ERROR;
  pthread_mutex_lock(&r->reception->lock);
  (void)sk_reception_step(r->reception); /* a failure has logged itself, and may pass */
  rail_result_t result = take_one(r, stream, fd);
  pthread_mutex_unlock(&r->reception->lock);
  if (result == RAIL_OK && sk_params.rcvbuf < 0) (void)rail_sock_open_window(*fd, sk_params.window);
  return result;
}

void sk_rejoin_free(struct sk_rejoin *r) {
  if (!r) return;
  if (r->side == TAKES) {
    struct sk_member *m = &r->member;
    pthread_mutex_lock(&r->reception->lock);
    if (m->prev) m->prev->next = m->next;
    else r->reception->members = m->next;
    if (m->next) m->next->prev = m->prev;
    for (unsigned int i = 0; i < m->streams; i++) rail_sock_close(&m->stream[i].fd);
    pthread_mutex_unlock(&r->reception->lock);
    sk_reception_unref(r->reception);
  } else {
    for (unsigned int i = 0; i < r->hello.streams; i++) sk_leg_close(&r->homing[i].leg);
  }
  free(r);
}
