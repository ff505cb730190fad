/* SPDX-License-Identifier: Apache-2.0
 *
 * A complete small plugin: messages over one TCP connection each, on the caller's threads alone. It is written
 * to be copied (docs/write-a-plugin.md). This file has the table of operations and the contexts; a tour of one
 * message goes from tpl_isend (tpl_send.c) to tpl_test (tpl_progress.c), and on the other side from tpl_irecv
 * (tpl_recv.c). What goes over the wire is in tpl_wire.h.
 */
#include "common/net/net_process.h"
#include "plugin/template/tpl_comm.h"
#include "plugin/template/tpl_param.h"

/* ---- process --------------------------------------------------------------- */

static void load(void) {
  tpl_params_load();
  /* Without the key that was asked for there are no devices: nothing may connect. */
  if (tpl_handshake_load() == RAIL_OK) tpl_devices_load();
}

static void end(unsigned int left) {
  (void)left;
  tpl_stats_close();
}

static struct rail_net_process process = {
  .plugin = TPL_NAME, .log_prefix = "NET/" TPL_NAME,
  .load = load, .count_devices = tpl_device_count,
  .begin = tpl_stats_open, .end = end, .drop_attempt = tpl_connect_drop, .close_listener = tpl_listener_close,
  .lock = PTHREAD_MUTEX_INITIALIZER};

static rail_result_t init(void **ctx, const struct rail_net_init *args) {
  return rail_net_process_init(&process, ctx, args);
}

static rail_result_t finalize(void *ctx) { return rail_net_process_finalize(&process, ctx); }
static rail_result_t devices(int *ndev) { return rail_net_process_devices(&process, ndev); }

/* ---- the table ------------------------------------------------------------ */

char rail_plugin_name[] = TPL_NAME;

const struct rail_net_ops rail_plugin_ops = {
  .name = rail_plugin_name, .params = &tpl_param_table,
  /* process and devices */
  .init = init,
  .finalize = finalize,
  .devices = devices,
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
