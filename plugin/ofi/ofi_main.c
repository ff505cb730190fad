/* SPDX-License-Identifier: Apache-2.0
 *
 * Railyard's libfabric plugin: the operations table, contexts. To follow one message, begin with irecv in ofi_recv.c
 * (it grants buffers to the sender), go on with isend in ofi_send.c (it matches and sends) and end with test in
 * ofi_progress.c.
 */
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "common/base/log.h"
#include "plugin/ofi/ofi_close.h"
#include "plugin/ofi/ofi_device.h"
#include "plugin/ofi/ofi_listen.h"
#include "plugin/ofi/ofi_mr.h"
#include "plugin/ofi/ofi_param.h"
#include "plugin/ofi/ofi_progress.h"
#include "plugin/ofi/ofi_stats.h"
#include "plugin/ofi/ofi_watch.h"

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER; /* the plugin's lock: guards what follows */
static unsigned int contexts;
static bool loaded, watching;
static pid_t loader; /* the process that loaded libfabric: a forked child must not give its objects back */

/* Parameters and devices: once per process, then read-only. */
static void load_once(void) {
  if (!loaded) {
    ofi_params_load();
    loader = getpid();
    loaded = true;
  }
  /* Without the key of RAIL_OFI_AUTH_FILE there are no devices: nothing may connect unauthenticated. */
  if (ofi_handshake_load()) ofi_devices_load();
}

/* For the first context: counters, and the watch thread if there are devices. */
static rail_result_t begin(void) {
  RAIL_TRY(ofi_stats_open());
  if (watching || ofi_nic_count() == 0) return RAIL_OK;
  rail_result_t result = rail_watch_begin(&ofi_watch);
  watching = result == RAIL_OK;
  if (watching) return RAIL_OK;
  ofi_endpoint_timer_close(); /* it may have been opened */
  ofi_stats_close();
  return result;
}

static void end(void) {
  if (contexts == 0 && watching) {
    rail_watch_end(&ofi_watch);
    ofi_endpoint_timer_close();
    watching = false;
  }
  ofi_stats_close();
}

static rail_result_t ofi_init(void **ctx_out, const struct rail_net_init *args) {
  if (!ctx_out || !args) {
    RAIL_WARN("RailOFI: init: ctx %p, arguments %p; neither may be NULL", (void *)ctx_out, (const void *)args);
    return RAIL_BAD_ARGUMENT;
  }
  struct rail_net_ctx *ctx = NULL;
  *ctx_out = NULL;
  pthread_mutex_lock(&init_lock);
  rail_log_set_room("NET/RailOFI");
  if (args->log) rail_log_set_sink(args->log);
  load_once();
  rail_result_t result = begin();
  if (result == RAIL_OK) {
    result = rail_net_ctx_new("RailOFI", args, &ctx);
    if (result == RAIL_OK) contexts++;
    else end();
  }
  pthread_mutex_unlock(&init_lock);
  *ctx_out = ctx;
  return result;
}

static rail_result_t ofi_finalize(void *arg) {
  if (!arg) return RAIL_OK;
  struct rail_net_ctx *ctx = rail_net_ctx_of("RailOFI", arg, "finalize");
  if (!ctx) return RAIL_BAD_ARGUMENT;
  ofi_endpoint_drop_ctx(ctx);
  rail_net_ctx_free(ctx, ofi_connect_drop, ofi_listener_close);
  pthread_mutex_lock(&init_lock);
  contexts--;
  end();
  pthread_mutex_unlock(&init_lock);
  return RAIL_OK;
}

/* Runs after the destructor that finalizes the context of v6 to v10 (common/net/abi_common.c), and before parameters
 * are freed. With contexts still open everything is left to the kernel. */
__attribute__((destructor(102))) static void unload(void) {
  if (contexts || loader != getpid()) return;
  rail_log_set_sink(NULL); /* NCCL may have been unloaded before us */
  ofi_devices_unload();
}

static rail_result_t ofi_devices(int *ndev) {
  if (!ndev) {
    RAIL_WARN("RailOFI: devices: ndev is NULL; allowed: the address of an int");
    return RAIL_BAD_ARGUMENT;
  }
  pthread_mutex_lock(&init_lock);
  load_once();
  *ndev = ofi_device_count();
  pthread_mutex_unlock(&init_lock);
  return RAIL_OK;
}

static rail_result_t ofi_get_properties(int dev, struct rail_net_props_v12 *props) {
  if (!props) {
    RAIL_WARN("RailOFI: getProperties: props is NULL; allowed: the address of a structure to fill");
    return RAIL_BAD_ARGUMENT;
  }
  const struct ofi_device *device = ofi_device_at(dev, "getProperties");
  if (!device) return RAIL_BAD_ARGUMENT;
  ofi_device_properties(device, props);
  return RAIL_OK;
}

static rail_result_t ofi_make_vdevice(int *dev, const struct rail_net_vprops_v12 *props) {
  if (!dev || !props) {
    RAIL_WARN("RailOFI: makeVDevice: dev %p, props %p; neither may be NULL", (void *)dev, (const void *)props);
    return RAIL_BAD_ARGUMENT;
  }
  pthread_mutex_lock(&init_lock);
  load_once();
  rail_result_t result = ofi_device_fuse(dev, props);
  pthread_mutex_unlock(&init_lock);
  return result;
}

char rail_plugin_name[] = "RailOFI";

const struct rail_net_ops rail_plugin_ops = {
  .name = rail_plugin_name,
  /* process and devices */
  .init = ofi_init,
  .finalize = ofi_finalize,
  .devices = ofi_devices,
  .get_properties = ofi_get_properties,
  .make_vdevice = ofi_make_vdevice,
  .set_net_attr = rail_net_no_set_net_attr,
  /* connections */
  .listen = ofi_listen,
  .connect = ofi_connect,
  .accept = ofi_accept,
  .close_send = ofi_close_send,
  .close_recv = ofi_close_recv,
  .close_listen = ofi_close_listen,
  /* memory */
  .reg_mr = ofi_reg_mr,
  .reg_mr_dmabuf = rail_net_no_reg_mr_dmabuf,
  .dereg_mr = ofi_dereg_mr,
  .get_device_mr = rail_net_no_get_device_mr,
  /* data */
  .isend = ofi_isend,
  .irecv = ofi_irecv,
  .iflush = ofi_iflush,
  .test = ofi_test,
  .irecv_consumed = rail_net_no_irecv_consumed,
};
