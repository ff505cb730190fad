/* SPDX-License-Identifier: Apache-2.0
 *
 * Railyard's TCP plugin: the operations table, contexts. One message: isend in sk_send.c, irecv in sk_recv.c, test in
 * sk_progress.c.
 */
#include "common/base/log.h"
#include "common/conn/linger.h"
#include "common/net/net_process.h"
#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_connect.h"
#include "plugin/socket/sk_device.h"
#include "plugin/socket/sk_engine.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_stats.h"
#include "plugin/socket/sk_tls.h"

static void load_params(void) {
  sk_params_load();
  sk_sockopt_load();
}

/* Without the key or the encryption that was asked for there are no devices: nothing may connect without. */
static void load_devices(void) {
  sk_ports_load();
  if (sk_protocol_load() && sk_tls_load()) sk_devices_load();
  sk_engine_load(sk_devices_vendor());
}

static void end(unsigned int left) {
  if (left == 0) {
    sk_watch_end();
    sk_close_all();
    sk_engine_stop();
    sk_tls_unload();
  }
  sk_stats_close();
}

static struct rail_net_process process = {
  .plugin = "RailSocket", .log_prefix = "NET/RailSocket",
  .load = load_params, .load_devices = load_devices,
  .count_devices = sk_device_count, .fuse = sk_device_fuse,
  .begin = sk_stats_open, .end = end, .drop_attempt = sk_connect_drop, .close_listener = sk_listener_close,
  .lock = PTHREAD_MUTEX_INITIALIZER};

static rail_result_t init(void **ctx, const struct rail_net_init *args) {
  return rail_net_process_init(&process, ctx, args);
}

static rail_result_t finalize(void *ctx) {
  rail_result_t result = rail_net_process_finalize(&process, ctx);
  rail_linger_reap();
  return result;
}

static rail_result_t devices(int *ndev) { return rail_net_process_devices(&process, ndev); }

static rail_result_t make_vdevice(int *dev, const struct rail_net_vprops_v12 *props) {
  return rail_net_process_fuse(&process, dev, props);
}

char rail_plugin_name[] = "RailSocket";

const struct rail_net_ops rail_plugin_ops = {
  .name = rail_plugin_name, .params = &sk_param_table,
  /* process and devices */
  .init = init,
  .finalize = finalize,
  .devices = devices,
  .get_properties = sk_get_properties,
  .make_vdevice = make_vdevice,
  .set_net_attr = rail_net_no_set_net_attr,
  /* connections */
  .listen = sk_listen,
  .connect = sk_connect,
  .accept = sk_accept,
  .close_send = sk_close_send,
  .close_recv = sk_close_recv,
  .close_listen = sk_close_listen,
  /* memory */
  .reg_mr = sk_reg_mr,
  .reg_mr_dmabuf = rail_net_no_reg_mr_dmabuf,
  .dereg_mr = sk_dereg_mr,
  .get_device_mr = rail_net_no_get_device_mr,
  /* data */
  .isend = sk_isend,
  .irecv = sk_irecv,
  .iflush = rail_net_no_iflush,
  .test = sk_test,
  .irecv_consumed = rail_net_no_irecv_consumed,
};
