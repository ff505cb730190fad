/* SPDX-License-Identifier: Apache-2.0
 *
 * The connecting side, the sender. Between two calls the attempt lives in its
 * context's table; the handle holds only its number.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/conn/dial.h"
#include "common/base/log.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_setup.h"

#define CALL_NS 200000ull /* for the steps of one call; the last of them may end later */

struct ib_connect {
  struct ib_setup setup;
  uint64_t number;
  struct ib_handle listener;
  union rail_addr from;
  struct rail_dial dial;
  struct ib_hello_wire hello;
  unsigned int drops;             /* connections in a row that the peer dropped before it answered */
  uint64_t first_drop, last_drop; /* from when to when */
};

enum { ROW_DIAL = 2 }; /* of `table` */

/* ---- steps that only this side has --------------------------------------- */

static rail_result_t make_hello(struct ib_connect *a);

static rail_result_t step_dial(struct ib_setup *s) {
  struct ib_connect *a = rail_container_of(s, struct ib_connect, setup);
  rail_result_t result = rail_dial_step(&a->dial, &a->hello, sizeof a->hello);
  int err = a->dial.last_errno;
  if (result == RAIL_OK) {
    ib_oob_init(&s->oob, a->dial.fd, true, ib_auth_on(), &a->hello);
    a->dial.fd = -1;
    s->waited = 0;
    return RAIL_OK;
  }
  if (result == RAIL_IN_PROGRESS && a->drops && err == ECONNREFUSED)
    return ib_setup_fail(s, IB_REASON_NONE, RAIL_REMOTE_ERROR, "it dropped the connection, and the listener is gone; "
                         "did the peer's process end? Its log says more");
  if (result != RAIL_IN_PROGRESS)
    return ib_setup_fail(s, IB_REASON_NONE, result, "%s%s", strerror(err),
                         err == EMFILE || err == ENFILE ? "; raise the limit of open files (ulimit -n)" : "");
  if (!ib_setup_is_late(s)) return result;
  return ib_setup_fail(s, IB_REASON_NONE, RAIL_REMOTE_ERROR, "no TCP connection from %s within %lld ms "
                       "(RAIL_IB_CONNECT_TIMEOUT): %s; is the peer alive, is that address reachable, does a firewall "
                       "block the port?", a->dial.args.interface, (long long)ib_params.connect_ms,
                       err ? strerror(err) : "no answer");
}

/* A listener without room drops pending connections: another try, with a new HELLO because the listener may remember
 * this one, cures that. */
static rail_result_t redial(struct ib_connect *a, const char *why) {
  struct ib_setup *s = &a->setup;
  uint64_t now = rail_now_ns(), limit = (uint64_t)ib_params.connect_ms * 1000000;
  char peer[RAIL_ADDR_TEXT];
  if (!a->drops || (limit && now - a->last_drop > limit)) { /* a connection that lasted ends the row */
    a->drops = 0;
    a->first_drop = now;
  }
  a->drops++;
  a->last_drop = now;
  if (limit && now - a->first_drop >= limit)
    return ib_setup_fail(s, IB_REASON_NONE, RAIL_REMOTE_ERROR, "it dropped %u connections in a row, within %lld ms "
                         "(RAIL_IB_CONNECT_TIMEOUT), before it answered; is its port flooded, is it another "
                         "program's now? The peer's log says more", a->drops, (long long)ib_params.connect_ms);
  RAIL_INFO(RAIL_SUB_NET, "RailIB: connect to %s over %s: the peer dropped the connection before it answered (%s); "
            "trying again", rail_addr_text(&s->peer, peer), s->device->name, why);
  ib_oob_close(&s->oob);
  if (make_hello(a) != RAIL_OK)
    return ib_setup_fail(s, IB_REASON_NONE, RAIL_SYSTEM_ERROR, "no random bytes or no HMAC: %s", strerror(errno));
  rail_dial_again(&a->dial, ECONNRESET);
  s->state = ROW_DIAL;
  s->waited = 0;
  return RAIL_IN_PROGRESS;
}

/* One line for all connections of this process that wait. */
static void report_no_accept(struct ib_setup *s) {
  static _Atomic uint64_t next_line;
  uint64_t now = rail_now_ns(), next = atomic_load(&next_line), every = (uint64_t)ib_params.peer_warn_ms * 1000000;
  char peer[RAIL_ADDR_TEXT];
  if (s->reported || !every || s->waited < every) return;
  s->reported = true;
  if (now < next || !atomic_compare_exchange_strong(&next_line, &next, now + every)) return;
  RAIL_WARN("RailIB: connect to %s over %s: not accepted for %.1f s, though the peer's host answers; still waiting; "
            "check: does the peer's process run, and does it call accept?", rail_addr_text(&s->peer, peer),
            s->device->name, (double)s->waited / 1e9);
}

/* The peer's accept may take any time, as long as its host answers. */
static rail_result_t step_answer(struct ib_setup *s) {
  struct ib_connect *a = rail_container_of(s, struct ib_connect, setup);
  enum ib_reason reason = IB_REASON_NONE;
  struct ib_message message;
  struct ib_answer answer;
  const char *why = "";
  errno = 0;
  rail_result_t result = ib_oob_recv(&s->oob, &message, &reason, &why);
  int err = errno;
  if (result == RAIL_IN_PROGRESS) {
    report_no_accept(s);
    return result;
  }
  if (result != RAIL_OK && err == ETIMEDOUT)
    return ib_setup_fail(s, reason, result, "the peer's host has not answered for %lld ms (RAIL_IB_DEADLINE); is it "
                         "up, is the network between cut?", (long long)ib_params.deadline_ms);
  if (result != RAIL_OK && reason == IB_REASON_NONE && !s->oob.have && (!err || err == ECONNRESET || err == EPIPE))
    return redial(a, err ? strerror(err) : "end of the stream");
  if (result != RAIL_OK) return ib_setup_fail(s, reason, RAIL_REMOTE_ERROR, "%s", why);
  if (message.type == IB_MESSAGE_ANSWER && !ib_answer_decode(message.body, message.size, &answer) &&
      answer.reason == IB_REASON_BUSY)
    return redial(a, ib_reason_text(IB_REASON_BUSY));
  s->waited = 0;
  return ib_setup_check(s, IB_MESSAGE_ANSWER, &message);
}

static rail_result_t step_ready(struct ib_setup *s) {
  struct ib_message message;
  RAIL_TRY(ib_setup_recv(s, IB_MESSAGE_READY, &message));
  if (message.size == 0) return RAIL_OK;
  return ib_setup_fail(s, IB_REASON_MESSAGE, RAIL_REMOTE_ERROR, "its READY has %zu bytes too many", message.size);
}

static const struct ib_setup_row table[] = {
  {"query ports", ib_setup_query_ports, NULL, false},
  {"offer", ib_setup_offer, NULL, false},
  {"dial", step_dial, "a TCP connection", false},
  {"send offer", ib_setup_send_offer, NULL, false},
  {"recv answer", step_answer, "the peer's answer (it comes when its side calls accept)", true},
  {"recv offer", ib_setup_recv_offer, "the peer's offer", false},
  {"plan", ib_setup_plan, NULL, false},
  {"comm", ib_setup_comm, NULL, false},
  {"completion queues", ib_setup_cqs, NULL, false},
  {"memory", ib_setup_memory, NULL, false},
  {"queue pairs", ib_setup_qps, NULL, false},
  {"to INIT", ib_setup_inits, NULL, false},
  {"recv queue pairs", ib_setup_recv_qps, "the peer's queue pairs", false},
  {"to RTR", ib_setup_rtrs, "the driver to take queue pairs to RTR (address resolution)", false},
  {"to RTS", ib_setup_rtss, "the driver to take queue pairs to RTS", false},
  {"start", ib_setup_start, NULL, false},
  {"send queue pairs", ib_setup_send_qps, NULL, false},
  {"recv ready", step_ready, "the peer's queue pairs to be ready", false},
  {"test writes", ib_setup_test_writes, NULL, false},
  {"verified", ib_setup_verified, "the first writes over each queue pair", false},
};

/* ---- attempts ------------------------------------------------------------ */

void ib_connect_drop(void *attempt) {
  struct ib_connect *a = attempt;
  rail_dial_close(&a->dial);
  ib_setup_free(&a->setup);
  free(a);
}

/* Both sides authenticate, or neither does. */
static bool agree_on_auth(const struct ib_device *device, const struct ib_handle *listener) {
  char peer[RAIL_ADDR_TEXT];
  bool theirs = listener->flags & IB_HANDLE_AUTH;
  if (theirs == ib_auth_on()) return true;
  RAIL_WARN("RailIB: connect to %s over %s: RAIL_IB_AUTH_FILE is set %s; set it on both sides, to the same key, or on "
            "neither", rail_addr_text(&listener->addr, peer), device->name,
            theirs ? "there and not here" : "here and not there");
  ib_setup_count(device, IB_DEVICE_REFUSED);
  return false;
}

static rail_result_t make_hello(struct ib_connect *a) {
  uint8_t comm_id[IB_COMM_ID_SIZE];
  RAIL_TRY(rail_random_bytes(comm_id, sizeof comm_id));
  ib_hello_encode(a->listener.secret, comm_id, &a->hello);
  return ib_auth_on() ? ib_auth_sign_hello(&a->listener, &a->hello) : RAIL_OK;
}

/* The listener's GIDs: among several local GIDs that match, one in their subnet is preferred. */
static void take_hints(struct ib_setup *s, const struct ib_handle *listener) {
  s->nhints = listener->ngids;
  for (unsigned int i = 0; i < listener->ngids; i++) {
    s->hints[i] = (struct ib_gid){.type = IB_GID_UNKNOWN, .valid = true};
    memcpy(s->hints[i].raw, listener->gids[i], sizeof s->hints[i].raw);
  }
}

static rail_result_t attempt_new(struct rail_net_ctx *ctx, const struct ib_device *device,
                                 const struct ib_handle *listener, int traffic_class, struct ib_connect **out) {
  if (!agree_on_auth(device, listener)) return RAIL_BAD_USAGE;
  struct ib_connect *a = calloc(1, sizeof *a);
  if (!a) goto no_memory;
  if (traffic_class < 0) traffic_class = ctx->traffic_class;
  a->listener = *listener;
  ib_setup_init(&a->setup, ctx, device, true, &listener->addr, traffic_class);
  take_hints(&a->setup, listener);
  struct rail_dial_args from = {.plugin = "RailIB", .interface = ib_oob_interface(&a->from), .addr = &a->from,
                                .bind = RAIL_BIND_ADDR, .traffic_class = -1, .stream = -1};
  rail_dial_init(&a->dial, &from, &listener->addr);
  if (make_hello(a) != RAIL_OK) {
    RAIL_WARN("RailIB: connect: no random bytes or no HMAC: %s", strerror(errno));
    free(a);
    return RAIL_SYSTEM_ERROR;
  }
  if (rail_attempts_add(&ctx->attempts, a, &a->number) != RAIL_OK) goto no_memory;
  *out = a;
  return RAIL_OK;

no_memory:
  free(a);
  RAIL_WARN("RailIB: connect: out of memory");
  return RAIL_SYSTEM_ERROR;
}

/* ---- the call ------------------------------------------------------------ */

static rail_result_t find_or_begin(struct rail_net_ctx *ctx, const struct ib_device *device, void *handle_bytes,
                                   int traffic_class, struct ib_connect **a) {
  struct ib_handle handle;
  const char *why;
  if (!ib_handle_decode(handle_bytes, &handle, &why)) {
    RAIL_WARN("RailIB: connect: this handle cannot be used: %s", why);
    return RAIL_BAD_ARGUMENT;
  }
  if (handle.attempt == 0) {
    RAIL_TRY(attempt_new(ctx, device, &handle, traffic_class, a));
    ib_handle_set_attempt(handle_bytes, (*a)->number);
    return RAIL_OK;
  }
  *a = rail_net_ctx_attempt("RailIB", ctx, handle.attempt);
  return *a ? RAIL_OK : RAIL_BAD_ARGUMENT;
}

rail_result_t ib_connect(void *ctx_arg, int dev, void *handle_bytes, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle) {
  (void)dev_handle;
  struct ib_connect *a = NULL;
  struct ib_comm *comm = NULL;
  if (!handle_bytes || !send_comm) {
    RAIL_WARN("RailIB: connect: handle %p, sendComm %p; neither may be NULL", handle_bytes, (void *)send_comm);
    return RAIL_BAD_ARGUMENT;
  }
  *send_comm = NULL;
  struct rail_net_ctx *ctx = rail_net_ctx_of("RailIB", ctx_arg, "connect");
  const struct ib_device *device = ib_device_at(dev, "connect");
  if (!ctx || !device) return RAIL_BAD_ARGUMENT;
  RAIL_TRY(find_or_begin(ctx, device, handle_bytes, traffic_class, &a));
  rail_result_t result = ib_setup_run(&a->setup, table, RAIL_COUNT_OF(table), rail_now_ns() + CALL_NS);
  if (result == RAIL_IN_PROGRESS) return RAIL_OK;
  if (result == RAIL_OK) result = ib_setup_take(&a->setup, &comm);
  rail_attempts_remove(&ctx->attempts, a->number);
  ib_connect_drop(a);
  ib_handle_set_attempt(handle_bytes, 0); /* the handle may connect again */
  *send_comm = comm;
  return result;
}
