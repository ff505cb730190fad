/* SPDX-License-Identifier: Apache-2.0
 *
 * Railyard's TCP plugin: the operations table, contexts. A tour of one message
 * begins in sk_send.c (isend) and ends in sk_progress.c (test).
 */
#include <pthread.h>

#include "common/base/log.h"
#include "common/conn/linger.h"
#include "plugin/socket/sk_acceptor.h"
#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_device.h"
#include "plugin/socket/sk_engine.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_sockopt.h"
#include "plugin/socket/sk_stats.h"
#include "plugin/socket/sk_watch.h"

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int contexts;
static bool loaded;

/* Parameters and devices: once per process, then read-only. Under init_lock. */
static void load_once(void) {
  if (!loaded) {
    sk_params_load();
    sk_sockopt_load();
    loaded = true;
  }
  sk_ports_load();
  /* Without the key that was asked for there are no devices: nothing may connect unauthenticated. */
  if (sk_protocol_load()) sk_devices_load(); /* again, should the machine not have let us look before */
}

static rail_result_t sk_init(void **ctx_out, const struct rail_net_init *args) {
  if (!ctx_out || !args) {
    RAIL_WARN("RailSocket: init: ctx %p, arguments %p; neither may be NULL", (void *)ctx_out, (const void *)args);
    return RAIL_BAD_ARGUMENT;
  }
  *ctx_out = NULL;
  pthread_mutex_lock(&init_lock);
  rail_log_set_room("NET/RailSocket");
  if (args->log) rail_log_set_sink(args->log);
  load_once();
  struct rail_net_ctx *ctx = NULL;
  rail_result_t result = sk_stats_open();
  if (result == RAIL_OK) {
    result = rail_net_ctx_new("RailSocket", args, &ctx);
    if (result == RAIL_OK) contexts++;
    else sk_stats_close();
  }
  pthread_mutex_unlock(&init_lock);
  *ctx_out = ctx;
  return result;
}

static rail_result_t sk_finalize(void *arg) {
  if (!arg) return RAIL_OK;
  struct rail_net_ctx *ctx = rail_net_ctx_of("RailSocket", arg, "finalize");
  if (!ctx) return RAIL_BAD_ARGUMENT;
  rail_net_ctx_free(ctx, sk_connect_drop, sk_listener_close);
  pthread_mutex_lock(&init_lock);
  bool last = --contexts == 0;
  if (last) {
    sk_watch_end();
    sk_close_all();
    sk_engine_stop();
  }
  sk_stats_close();
  pthread_mutex_unlock(&init_lock);
  if (!last) rail_linger_reap();
  return RAIL_OK;
}

static rail_result_t sk_devices(int *ndev) {
  if (!ndev) {
    RAIL_WARN("RailSocket: devices: ndev is NULL; allowed: the address of an int");
    return RAIL_BAD_ARGUMENT;
  }
  pthread_mutex_lock(&init_lock);
  load_once();
  *ndev = sk_device_count();
  pthread_mutex_unlock(&init_lock);
  return RAIL_OK;
}

static rail_result_t sk_get_properties(int dev, struct rail_net_props_v12 *props) {
  if (!props) {
    RAIL_WARN("RailSocket: getProperties: props is NULL; allowed: the address of a structure to fill");
    return RAIL_BAD_ARGUMENT;
  }
  const struct sk_device *device = sk_device_at(dev, "getProperties");
  if (!device) return RAIL_BAD_ARGUMENT;
  sk_device_properties(device, props);
  return RAIL_OK;
}

static rail_result_t sk_make_vdevice(int *dev, const struct rail_net_vprops_v12 *props) {
  if (!dev || !props) {
    RAIL_WARN("RailSocket: makeVDevice: dev %p, props %p; neither may be NULL", (void *)dev, (const void *)props);
    return RAIL_BAD_ARGUMENT;
  }
  pthread_mutex_lock(&init_lock);
  load_once();
  rail_result_t result = sk_device_fuse(dev, props);
  pthread_mutex_unlock(&init_lock);
  return result;
}

char rail_plugin_name[] = "RailSocket";

const struct rail_net_ops rail_plugin_ops = {
  .name = rail_plugin_name,
  /* process and devices */
  .init = sk_init,
  .finalize = sk_finalize,
  .devices = sk_devices,
  .get_properties = sk_get_properties,
  .make_vdevice = sk_make_vdevice,
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
