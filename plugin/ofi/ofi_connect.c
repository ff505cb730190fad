/* SPDX-License-Identifier: Apache-2.0
 *
 * The connecting side, the sender. Between two calls the attempt lives in its context's table; the handle holds only
 * its number.
 */
#include "common/base/clock.h"
#include "plugin/ofi/ofi_listen.h"
#include "plugin/ofi/ofi_setup.h"

#define CALL_NS 200000ull /* for the steps of one call; the last of them may end later */

void ofi_connect_drop(void *attempt) {
  struct ofi_setup *s = attempt;
  ofi_setup_free(&s->base);
}

static rail_result_t attempt_new(struct rail_net_ctx *ctx, const struct ofi_device *device,
                                 const struct rail_handle *listener, struct ofi_setup **out) {
  if (!rail_connector_agree_auth(&ofi_protocol, listener, device->name)) {
    ofi_stats_count(device->name, OFI_DEVICE_REFUSED);
    return RAIL_BAD_USAGE;
  }
  struct ofi_setup *s = ofi_setup_new(ctx, device, true, &listener->addrs[0]);
  if (!s) return RAIL_SYSTEM_ERROR;
  union rail_addr from;
  const char *interface = ofi_oob_interface(&from);
  rail_result_t result = rail_setup_begin_dial(&s->base, listener, interface, &from);
  if (result == RAIL_OK && rail_attempts_add(&ctx->attempts, s, &s->number) != RAIL_OK) {
    RAIL_WARN("RailOFI: connect: out of memory");
    result = RAIL_SYSTEM_ERROR;
  }
  if (result == RAIL_OK) *out = s;
  else ofi_setup_free(&s->base);
  return result;
}

static rail_result_t find_or_begin(struct rail_net_ctx *ctx, const struct ofi_device *device, void *handle_bytes,
                                   struct ofi_setup **s) {
  struct rail_handle handle;
  const char *why;
  if (!rail_handle_decode(&ofi_protocol, handle_bytes, &handle, &why)) {
    RAIL_WARN("RailOFI: connect: this handle cannot be used: %s", why);
    return RAIL_BAD_ARGUMENT;
  }
  if (handle.attempt == 0) {
    RAIL_TRY(attempt_new(ctx, device, &handle, s));
    rail_handle_set_attempt(handle_bytes, (*s)->number);
    return RAIL_OK;
  }
  *s = rail_net_ctx_attempt("RailOFI", ctx, handle.attempt);
  return *s ? RAIL_OK : RAIL_BAD_ARGUMENT;
}

rail_result_t ofi_connect(void *ctx_arg, int dev, void *handle_bytes, int traffic_class, void **send_comm,
                          struct rail_net_device_handle **dev_handle) {
  (void)traffic_class; /* no provider's way to set one is common to all */
  (void)dev_handle;
  struct ofi_setup *s = NULL;
  if (!handle_bytes || !send_comm) {
    RAIL_WARN("RailOFI: connect: handle %p, sendComm %p; neither may be NULL", handle_bytes, (void *)send_comm);
    return RAIL_BAD_ARGUMENT;
  }
  *send_comm = NULL;
  struct rail_net_ctx *ctx = rail_net_ctx_of("RailOFI", ctx_arg, "connect");
  const struct ofi_device *device = ofi_device_at(dev, "connect");
  if (!ctx || !device) return RAIL_BAD_ARGUMENT;
  RAIL_TRY(find_or_begin(ctx, device, handle_bytes, &s));
  rail_result_t result = rail_setup_run(&s->base, rail_now_ns() + CALL_NS);
  if (result == RAIL_IN_PROGRESS) return RAIL_OK;
  if (result == RAIL_OK) result = ofi_setup_take(s, send_comm);
  else if (result == RAIL_REMOTE_ERROR && s->base.reason != RAIL_REASON_NONE)
    ofi_stats_count(device->name, OFI_DEVICE_REFUSED);
  rail_attempts_remove(&ctx->attempts, s->number);
  ofi_connect_drop(s);
  rail_handle_set_attempt(handle_bytes, 0); /* the handle may connect again */
  return result;
}
