/* SPDX-License-Identifier: Apache-2.0
 *
 * Railyard's verbs plugin: the operations table, contexts. To follow one message, begin with irecv in ib_recv.c (it
 * writes clear-to-send entries), go on with isend in ib_send.c (it matches and writes) and end with test in
 * ib_progress.c.
 */
#include <stdbool.h>

#include "common/base/log.h"
#include "common/net/net_process.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_connect.h"
#include "plugin/ib/ib_device.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_progress.h"
#include "plugin/ib/ib_stats.h"

static bool watching;

/* Without the key of RAIL_IB_AUTH_FILE there are no devices: nothing may connect unauthenticated. */
static void load_devices(void) {
  if (ib_handshake_load()) ib_devices_load();
}

/* Counters, and the watch thread if there are devices. */
static rail_result_t begin(void) {
  RAIL_TRY(ib_stats_open());
  if (watching || ib_port_count() == 0) return RAIL_OK;
  rail_result_t result = rail_watch_begin(&ib_watch);
  watching = result == RAIL_OK;
  if (!watching) ib_stats_close();
  return result;
}

static void end(unsigned int left) {
  if (left == 0 && watching) {
    rail_watch_end(&ib_watch);
    watching = false;
  }
  ib_stats_close();
}

static struct rail_net_process process = {
  .plugin = "RailIB", .log_prefix = "NET/RailIB",
  .load = ib_params_load, .load_devices = load_devices,
  .count_devices = ib_device_count, .fuse = ib_device_fuse,
  .begin = begin, .end = end,
  .drop_attempt = rail_net_setup_drop_attempt, .close_listener = rail_net_setup_close_listener,
  .lock = PTHREAD_MUTEX_INITIALIZER};

static rail_result_t init(void **ctx, const struct rail_net_init *args) {
  return rail_net_process_init(&process, ctx, args);
}

static rail_result_t finalize(void *ctx) { return rail_net_process_finalize(&process, ctx); }
static rail_result_t devices(int *ndev) { return rail_net_process_devices(&process, ndev); }

static rail_result_t make_vdevice(int *dev, const struct rail_net_vprops_v12 *props) {
  return rail_net_process_fuse(&process, dev, props);
}

/* Runs after the destructor that finalizes the context of v6 to v10 (common/net/abi_common.c), and before parameters
 * are freed. */
__attribute__((destructor(102))) static void unload(void) {
  if (!rail_net_process_may_unload(&process)) return;
  rail_log_set_sink(NULL); /* NCCL may have been unloaded before us */
  for (unsigned int i = 0; i < ib_hca_count(); i++) ib_mr_cache_close(ib_hca_at(i));
  ib_devices_unload();
}

char rail_plugin_name[] = "RailIB";

const struct rail_net_ops rail_plugin_ops = {
  .name = rail_plugin_name, .params = &ib_param_table,
  /* process and devices */
  .init = init,
  .finalize = finalize,
  .devices = devices,
  .get_properties = ib_get_properties,
  .make_vdevice = make_vdevice,
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
