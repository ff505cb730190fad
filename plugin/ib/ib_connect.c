/* SPDX-License-Identifier: Apache-2.0
 *
 * The connecting side, the sender. Between two calls the attempt lives in its context's table; the handle holds only
 * its number.
 */
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_setup.h"

#define CALL_NS 200000ull /* for the steps of one call; the last of them may end later */

/* ---- the table ------------------------------------------------------------ */

static rail_result_t step_ready(struct rail_setup *s) {
  struct rail_message message;
  RAIL_TRY(rail_setup_recv(s, IB_MESSAGE_READY, &message));
  if (message.size == 0) return RAIL_OK;
  return rail_setup_fail(s, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "its READY has %zu bytes too many", message.size);
}

static const struct rail_setup_row table[] = {
  {"query ports", ib_setup_query_ports, NULL, false},
  {"offer", ib_setup_offer, NULL, false},
  {"dial", rail_setup_dial, "a TCP connection", false},
  {"send offer", ib_setup_send_offer, NULL, false},
  {"recv answer", rail_setup_answer, "the peer's answer (it comes when its side calls accept)", true},
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

static const struct rail_setup_ops ops = {.protocol = &ib_protocol, .rows = table, .nrows = RAIL_COUNT_OF(table),
                                          .refused = ib_setup_refused};

/* ---- attempts ------------------------------------------------------------ */

void ib_connect_drop(void *attempt) {
  struct ib_setup *s = attempt;
  ib_setup_free(&s->base);
}

/* The listener's GIDs: among several local GIDs that match, one in their subnet is preferred. */
static void take_hints(struct ib_setup *s, const struct ib_hints *hints) {
  s->nhints = hints->n;
  for (unsigned int i = 0; i < hints->n; i++) {
    s->hints[i] = (struct ib_gid){.type = IB_GID_UNKNOWN, .valid = true};
    memcpy(s->hints[i].raw, hints->gids[i], sizeof s->hints[i].raw);
  }
}

static rail_result_t attempt_new(struct rail_net_ctx *ctx, const struct ib_device *device,
                                 const struct rail_handle *listener, const struct ib_hints *hints, int traffic_class,
                                 struct ib_setup **out) {
  if (!rail_connector_agree_auth(&ib_protocol, listener, device->name)) {
    ib_stats_count(device->name, IB_DEVICE_REFUSED);
    return RAIL_BAD_USAGE;
  }
  union rail_addr from;
  const char *interface = ib_oob_interface(&from);
  struct ib_setup *s = ib_setup_new(ctx, device, &ops, true, &listener->addrs[0]);
  if (!s) goto no_memory;
  if (traffic_class >= 0) s->traffic_class = traffic_class;
  take_hints(s, hints);
  if (rail_setup_begin_dial(&s->base, listener, interface, &from) != RAIL_OK) {
    ib_setup_free(&s->base);
    return RAIL_SYSTEM_ERROR;
  }
  if (rail_attempts_add(&ctx->attempts, s, &s->number) != RAIL_OK) goto no_memory;
  *out = s;
  return RAIL_OK;

no_memory:
  if (s) ib_setup_free(&s->base);
  RAIL_WARN("RailIB: connect: out of memory");
  return RAIL_SYSTEM_ERROR;
}

/* ---- the call ------------------------------------------------------------ */

static rail_result_t find_or_begin(struct rail_net_ctx *ctx, const struct ib_device *device, void *handle_bytes,
                                   int traffic_class, struct ib_setup **s) {
  struct rail_handle handle;
  struct ib_hints hints;
  const char *why;
  if (!ib_handle_decode(handle_bytes, &handle, &hints, &why)) {
    RAIL_WARN("RailIB: connect: this handle cannot be used: %s", why);
    return RAIL_BAD_ARGUMENT;
  }
  if (handle.attempt == 0) {
    RAIL_TRY(attempt_new(ctx, device, &handle, &hints, traffic_class, s));
    rail_handle_set_attempt(handle_bytes, (*s)->number);
    return RAIL_OK;
  }
  *s = rail_net_ctx_attempt("RailIB", ctx, handle.attempt);
  return *s ? RAIL_OK : RAIL_BAD_ARGUMENT;
}

rail_result_t ib_connect(void *ctx_arg, int dev, void *handle_bytes, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle) {
  (void)dev_handle;
  struct ib_setup *s = NULL;
  if (!handle_bytes || !send_comm) {
    RAIL_WARN("RailIB: connect: handle %p, sendComm %p; neither may be NULL", handle_bytes, (void *)send_comm);
    return RAIL_BAD_ARGUMENT;
  }
  *send_comm = NULL;
  struct rail_net_ctx *ctx = rail_net_ctx_of("RailIB", ctx_arg, "connect");
  const struct ib_device *device = ib_device_at(dev, "connect");
  if (!ctx || !device) return RAIL_BAD_ARGUMENT;
  RAIL_TRY(find_or_begin(ctx, device, handle_bytes, traffic_class, &s));
  rail_result_t result = rail_setup_run(&s->base, rail_now_ns() + CALL_NS);
  if (result == RAIL_IN_PROGRESS) return RAIL_OK;
  if (result == RAIL_OK) result = ib_setup_take(s, send_comm);
  rail_attempts_remove(&ctx->attempts, s->number);
  ib_connect_drop(s);
  rail_handle_set_attempt(handle_bytes, 0); /* the handle may connect again */
  return result;
}
