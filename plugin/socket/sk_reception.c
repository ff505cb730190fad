/* SPDX-License-Identifier: Apache-2.0
 * What is asked of a stranger, and what it is told. */
#include "plugin/socket/sk_reception.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/conn/hmac.h"
#include "common/base/log.h"
#include "common/conn/ports.h"
#include "common/base/sockopt.h"
#include "plugin/socket/sk_group.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_rejoin.h"
#include "plugin/socket/sk_sockopt.h"

_Static_assert(SK_MAX_RAILS <= RAIL_DOORS_MAX, "a door for each rail");
_Static_assert(sizeof(struct sk_answer_wire) <= RAIL_REPLY_MAX, "room for an answer");

static struct rail_ports ports = {
  .plugin = "RailSocket", .range_param = "RAIL_SOCKET_PORTS", .bind_param = "RAIL_SOCKET_BIND"};

void sk_reception_load(void) { rail_ports_load(&ports, sk_params.ports, sk_params.bind); }

void sk_reception_count(const struct sk_reception *r, enum sk_stats_device counter) {
  /* Looked up each time: the page may be gone, with a connection that nobody closed still here. */
  uint64_t *record = sk_stats_device(r->device->name);
  if (record) rail_stats_add_shared(&record[counter], 1);
}

/* ---- answers ---------------------------------------------------------- */

void sk_refuse(int *fd, enum sk_reason reason, unsigned int stream) {
  struct sk_answer_wire answer;
  sk_answer_encode(reason, stream, 0, &answer);
  rail_door_refuse(fd, &answer, sizeof answer);
}

rail_result_t sk_welcome(const struct sk_reception *r, int fd, unsigned int stream, uint32_t features,
                         const uint8_t *hello_mac) {
  struct sk_answer_wire answer;
  size_t done = 0;
  sk_answer_encode(SK_REASON_NONE, stream, features, &answer);
  if (r->handle.flags & SK_HANDLE_AUTH) RAIL_TRY(sk_auth_sign_answer(hello_mac, &answer));
  rail_sockopt_traffic_class(fd, r->traffic_class); /* the priority is not inherited */
  rail_result_t result = rail_sock_send_some(fd, &answer, sizeof answer, &done);
  return result == RAIL_IN_PROGRESS ? RAIL_SYSTEM_ERROR : result; /* a socket that takes not even this is of no use */
}

/* ---- strangers -------------------------------------------------------- */

static bool refuse(const struct rail_stranger *s, enum sk_reason reason, struct rail_refusal *refusal) {
  const struct sk_hello_wire *wire = sk_hello_of(s);
  struct sk_answer_wire answer;
  if (reason == SK_REASON_VERSION)
    snprintf(refusal->why, sizeof refusal->why, "%s (%u, ours %d)", sk_reason_text(reason), le16toh(wire->version),
             SK_WIRE_VERSION);
  else snprintf(refusal->why, sizeof refusal->why, "%s", sk_reason_text(reason));
  if (reason != SK_REASON_GARBAGE) {
    sk_answer_encode(reason, le16toh(wire->stream), 0, &answer);
    memcpy(refusal->reply, &answer, sizeof answer);
    refusal->reply_size = sizeof answer;
  }
  return false;
}

/* A part of a HELLO is here. */
static bool is_plausible(void *host, const struct rail_stranger *s, struct rail_refusal *refusal) {
  const struct sk_reception *r = host;
  if (!sk_hello_plausible(s->message, s->have)) return refuse(s, SK_REASON_GARBAGE, refusal);
  /* Another version's HELLO may be shorter than ours, and its sender waits for an answer. */
  if (s->have < SK_HELLO_PREFIX || le16toh(sk_hello_of(s)->version) == SK_WIRE_VERSION) return true;
  bool known = rail_same_bytes(sk_hello_of(s)->secret, r->handle.secret, SK_SECRET_SIZE);
  return refuse(s, known ? SK_REASON_VERSION : SK_REASON_SECRET, refusal);
}

/* A whole HELLO is here. */
static bool judge(void *host, const struct rail_stranger *s, struct rail_refusal *refusal) {
  struct sk_reception *r = host;
  struct sk_hello hello;
  enum sk_reason reason = sk_hello_decode(sk_hello_of(s), &r->handle, &hello);
  if (reason == SK_REASON_NONE && (hello.flags & SK_HELLO_AUTH) && !sk_auth_check_hello(&r->handle, sk_hello_of(s)))
    reason = SK_REASON_MAC;
  if (reason == SK_REASON_NONE)
    reason = hello.flags & SK_HELLO_REJOIN ? sk_rejoin_offer(r, &hello, s) : sk_group_join(r, &hello, s);
  return reason == SK_REASON_NONE || refuse(s, reason, refusal);
}

static void count_event(void *host, enum rail_door_event event) {
  sk_reception_count(host, event == RAIL_DOOR_REFUSED ? SK_DEVICE_REFUSED : SK_DEVICE_STRANGERS);
}

static const struct rail_door_rules rules = {.plugin = "RailSocket",
                                             .message_size = sizeof(struct sk_hello_wire),
                                             .plausible = is_plausible,
                                             .whole = judge,
                                             .count = count_event};

rail_result_t sk_reception_step(struct sk_reception *r) {
  RAIL_TRY(rail_doors_step(&r->doors));
  sk_group_expire(r, rail_now_ns());
  return RAIL_OK;
}

/* ---- opening and closing ---------------------------------------------- */

static void destroy(struct sk_reception *r) {
  rail_doors_close(&r->doors);
  sk_groups_free(r);
  rail_replay_free(&r->seen);
  pthread_mutex_destroy(&r->lock);
  free(r);
}

rail_result_t sk_reception_open(const struct sk_device *device, int traffic_class, struct sk_reception **out) {
  struct sk_reception *r = calloc(1, sizeof *r);
  rail_result_t result;
  if (!r || pthread_mutex_init(&r->lock, NULL) != 0) {
    free(r);
    RAIL_WARN("RailSocket: listen: out of memory");
    return RAIL_SYSTEM_ERROR;
  }
  r->device = device;
  r->traffic_class = traffic_class;
  r->refs = 1;
  rail_doors_init(&r->doors, &rules, r, device->name, (uint64_t)sk_params.handshake_ms);
  r->handle.flags = sk_auth_on() ? SK_HANDLE_AUTH : 0;
  r->handle.streams = (unsigned int)sk_params.streams;
  r->handle.naddrs = device->nrails;
  result = rail_random_bytes(r->handle.secret, sizeof r->handle.secret);
  if (result != RAIL_OK) RAIL_WARN("RailSocket: listen: no random bytes from the kernel: %s", strerror(errno));
  for (unsigned int i = 0; i < device->nrails && result == RAIL_OK; i++) {
    const struct sk_device *rail = device->rails[i];
    int fd;
    result = rail_ports_listen(&ports, rail->name, &rail->addr, RAIL_DOOR_BACKLOG, &r->handle.addrs[i], &fd);
    if (result != RAIL_OK) break;
    /* Accepted sockets inherit these; set later, sizes would not count for the
     * TCP window, and the first packets would be of no class. */
    sk_sockopt_set(fd, traffic_class);
    rail_doors_add(&r->doors, fd);
  }
  if (result != RAIL_OK) destroy(r);
  else *out = r;
  return result;
}

void sk_reception_unref(struct sk_reception *r) {
  pthread_mutex_lock(&r->lock);
  bool last = --r->refs == 0;
  pthread_mutex_unlock(&r->lock);
  if (last) destroy(r);
}

void sk_reception_close(struct sk_reception *r) {
  pthread_mutex_lock(&r->lock);
  r->closed = true;
  sk_groups_free(r);
  rail_replay_free(&r->seen);
  pthread_mutex_unlock(&r->lock);
  sk_reception_unref(r);
}
