/* SPDX-License-Identifier: Apache-2.0
 *
 * A complete small plugin: messages over one TCP connection each, on the caller's threads alone. It is written
 * to be copied (docs/write-a-plugin.md). This file has the table of operations and the contexts; a tour of one
 * message goes from tpl_isend (tpl_send.c) to tpl_test (tpl_progress.c), and on the other side from tpl_irecv
 * (tpl_recv.c). What goes over the wire is in tpl_wire.h.
 */
#include "common/base/log.h"
#include "plugin/template/tpl_comm.h"
#include "plugin/template/tpl_param.h"

/* Parameters and devices: once per process, then read-only. */
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

/* ---- process --------------------------------------------------------------- */

static void load_once(void) {
  pthread_mutex_lock(&init_lock);
  if (!loaded) {
    loaded = true;
    tpl_params_load();
    /* Without the key that was asked for there are no devices: nothing may connect. */
    if (tpl_handshake_load() == RAIL_OK) tpl_devices_load();
  }
  pthread_mutex_unlock(&init_lock);
}

static rail_result_t tpl_devices(int *ndev) {
  load_once();
  *ndev = tpl_device_count();
  return RAIL_OK;
}

static rail_result_t tpl_init(void **ctx_out, const struct rail_net_init *args) {
  struct rail_net_ctx *ctx = NULL;
  rail_log_set_room("NET/" TPL_NAME);
  if (args->log) rail_log_set_sink(args->log);
  load_once();
  rail_result_t result = tpl_stats_open();
  if (result == RAIL_OK) {
    result = rail_net_ctx_new(TPL_NAME, args, &ctx);
    if (result != RAIL_OK) tpl_stats_close();
  }
  *ctx_out = ctx;
  return result;
}

static rail_result_t tpl_finalize(void *arg) {
  if (!arg) return RAIL_OK;
  struct rail_net_ctx *ctx = rail_net_ctx_of(TPL_NAME, arg, "finalize");
  if (!ctx) return RAIL_BAD_ARGUMENT;
  rail_net_ctx_free(ctx, tpl_connect_drop, tpl_listener_close);
  tpl_stats_close();
  return RAIL_OK;
}

/* ---- the table ------------------------------------------------------------ */

char rail_plugin_name[] = TPL_NAME;

const struct rail_net_ops rail_plugin_ops = {
  .name = rail_plugin_name,
  /* process and devices */
  .init = tpl_init,
  .finalize = tpl_finalize,
  .devices = tpl_devices,
  .get_properties = tpl_get_properties,
  .make_vdevice = rail_net_no_make_vdevice,
  .set_net_attr = rail_net_no_set_net_attr,
  /* connections */
  .listen = tpl_listen,
  .connect = tpl_connect,
  .accept = tpl_accept,
  .close_send = tpl_close_send,
  .close_recv = tpl_close_recv,
  .close_listen = tpl_close_listen,
  /* memory */
  .reg_mr = tpl_reg_mr,
  .reg_mr_dmabuf = rail_net_no_reg_mr_dmabuf,
  .dereg_mr = tpl_dereg_mr,
  .get_device_mr = rail_net_no_get_device_mr,
  /* data */
  .isend = tpl_isend,
  .irecv = tpl_irecv,
  .iflush = rail_net_no_iflush, /* host memory needs no flush */
  .test = tpl_test,
  .irecv_consumed = rail_net_no_irecv_consumed,
};
