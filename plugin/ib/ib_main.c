/* SPDX-License-Identifier: Apache-2.0
 *
 * Railyard's verbs plugin: the operations table, contexts. To follow one message, begin with irecv in ib_recv.c (it
 * writes clear-to-send entries), go on with isend in ib_send.c (it matches and writes) and end with test in
 * ib_progress.c.
 */
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "common/base/log.h"
#include "plugin/ib/ib_listen.h"
#include "plugin/ib/ib_mr.h"
#include "plugin/ib/ib_device.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_progress.h"
#include "plugin/ib/ib_stats.h"
#include "plugin/ib/ib_watch.h"

static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER; /* the plugin's lock: guards what follows */
static unsigned int contexts;
static bool loaded, watching;
static pid_t loader; /* the process that opened the HCAs: a forked child must not close them */

/* Parameters and devices: once per process, then read-only. */
static void load_once(void) {
  if (!loaded) {
    ib_params_load();
    loader = getpid();
    loaded = true;
  }
  /* Without the key of RAIL_IB_AUTH_FILE there are no devices: nothing may connect unauthenticated. */
  if (ib_handshake_load()) ib_devices_load();
}

/* For the first context: counters, and the watch thread if there are devices. */
static rail_result_t begin(void) {
  RAIL_TRY(ib_stats_open());
  if (watching || ib_port_count() == 0) return RAIL_OK;
  rail_result_t result = rail_watch_begin(&ib_watch);
  watching = result == RAIL_OK;
  if (!watching) ib_stats_close();
  return result;
}

static void end(void) {
  if (contexts == 0 && watching) {
    rail_watch_end(&ib_watch);
    watching = false;
  }
  ib_stats_close();
}

static rail_result_t ib_init(void **ctx_out, const struct rail_net_init *args) {
  if (!ctx_out || !args) {
    RAIL_WARN("RailIB: init: ctx %p, arguments %p; neither may be NULL", (void *)ctx_out, (const void *)args);
    return RAIL_BAD_ARGUMENT;
  }
  struct rail_net_ctx *ctx = NULL;
  *ctx_out = NULL;
  pthread_mutex_lock(&init_lock);
  rail_log_set_room("NET/RailIB");
  if (args->log) rail_log_set_sink(args->log);
  load_once();
  rail_result_t result = begin();
  if (result == RAIL_OK) {
    result = rail_net_ctx_new("RailIB", args, &ctx);
    if (result == RAIL_OK) contexts++;
    else end();
  }
  pthread_mutex_unlock(&init_lock);
  *ctx_out = ctx;
  return result;
}

static rail_result_t ib_finalize(void *arg) {
  if (!arg) return RAIL_OK;
  struct rail_net_ctx *ctx = rail_net_ctx_of("RailIB", arg, "finalize");
  if (!ctx) return RAIL_BAD_ARGUMENT;
  rail_net_ctx_free(ctx, ib_connect_drop, ib_listener_close);
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
  for (unsigned int i = 0; i < ib_hca_count(); i++) ib_mr_cache_close(ib_hca_at(i));
  ib_devices_unload();
}

static rail_result_t ib_devices(int *ndev) {
  if (!ndev) {
    RAIL_WARN("RailIB: devices: ndev is NULL; allowed: the address of an int");
    return RAIL_BAD_ARGUMENT;
  }
  pthread_mutex_lock(&init_lock);
  load_once();
  *ndev = ib_device_count();
  pthread_mutex_unlock(&init_lock);
  return RAIL_OK;
}

static rail_result_t ib_get_properties(int dev, struct rail_net_props_v12 *props) {
  if (!props) {
    RAIL_WARN("RailIB: getProperties: props is NULL; allowed: the address of a structure to fill");
    return RAIL_BAD_ARGUMENT;
  }
  const struct ib_device *device = ib_device_at(dev, "getProperties");
  if (!device) return RAIL_BAD_ARGUMENT;
  ib_device_properties(device, props);
  return RAIL_OK;
}

static rail_result_t ib_make_vdevice(int *dev, const struct rail_net_vprops_v12 *props) {
  if (!dev || !props) {
    RAIL_WARN("RailIB: makeVDevice: dev %p, props %p; neither may be NULL", (void *)dev, (const void *)props);
    return RAIL_BAD_ARGUMENT;
  }
  pthread_mutex_lock(&init_lock);
  load_once();
  rail_result_t result = ib_device_fuse(dev, props);
  pthread_mutex_unlock(&init_lock);
  return result;
}

char rail_plugin_name[] = "RailIB";

const struct rail_net_ops rail_plugin_ops = {
  .name = rail_plugin_name,
  /* process and devices */
  .init = ib_init,
  .finalize = ib_finalize,
  .devices = ib_devices,
  .get_properties = ib_get_properties,
  .make_vdevice = ib_make_vdevice,
  .set_net_attr = rail_net_no_set_net_attr,
  /* connections */
  .listen = ib_listen,
  .connect = ib_connect,
  .accept = ib_accept,
  .close_send = ib_close_send,
  .close_recv = ib_close_recv,
  .close_listen = ib_close_listen,
  /* memory */
  .reg_mr = ib_reg_mr,
  .reg_mr_dmabuf = ib_reg_mr_dmabuf,
  .dereg_mr = ib_dereg_mr,
  .get_device_mr = rail_net_no_get_device_mr,
  /* data */
  .isend = ib_isend,
  .irecv = ib_irecv,
  .iflush = ib_iflush,
  .test = ib_test,
  .irecv_consumed = rail_net_no_irecv_consumed,
};
