/* SPDX-License-Identifier: Apache-2.0
 *
 * Railyard's libfabric plugin: the operations table, contexts. To follow one message, begin with irecv in ofi_recv.c
 * (it grants buffers to the sender), go on with isend in ofi_send.c (it matches and sends) and end with test in
 * ofi_progress.c.
 */
#include <stdbool.h>

#include "common/base/log.h"
#include "common/conn/watch.h"
#include "common/net/net_process.h"
#include "common/net/net_setup.h"
#include "plugin/ofi/ofi_device.h"
#include "plugin/ofi/ofi_param.h"
#include "plugin/ofi/ofi_progress.h"

static bool watching;

/* Without the key of RAIL_OFI_AUTH_FILE there are no devices: nothing may connect unauthenticated. */
static void load_devices(void) {
  if (ofi_handshake_load()) ofi_devices_load();
}

/* Counters, and the watch thread if there are devices. */
static rail_result_t begin(void) {
  RAIL_TRY(ofi_stats_open());
  if (watching || ofi_nic_count() == 0) return RAIL_OK;
  rail_result_t result = rail_watch_begin(&ofi_watch);
  watching = result == RAIL_OK;
  if (watching) return RAIL_OK;
  ofi_timer_close(); /* it may have been opened */
  ofi_stats_close();
  return result;
}

static void end(unsigned int left) {
  if (left == 0 && watching) {
    rail_watch_end(&ofi_watch);
    ofi_timer_close();
    watching = false;
  }
  ofi_stats_close();
}

static struct rail_net_process process = {
  .plugin = "RailOFI", .log_prefix = "NET/RailOFI",
  .load = ofi_params_load, .load_devices = load_devices,
  .count_devices = ofi_device_count, .fuse = ofi_device_fuse,
  .begin = begin, .end = end,
  .drop_attempt = rail_net_setup_drop_attempt, .close_listener = rail_net_setup_close_listener,
  .lock = PTHREAD_MUTEX_INITIALIZER};

static rail_result_t init(void **ctx, const struct rail_net_init *args) {
  return rail_net_process_init(&process, ctx, args);
}

static rail_result_t finalize(void *ctx) {
  ofi_endpoint_drop_ctx(ctx);
  return rail_net_process_finalize(&process, ctx);
}

static rail_result_t devices(int *ndev) { return rail_net_process_devices(&process, ndev); }

static rail_result_t make_vdevice(int *dev, const struct rail_net_vprops_v12 *props) {
  return rail_net_process_fuse(&process, dev, props);
}

/* Runs after the destructor that finalizes the context of v6 to v10 (common/net/abi_common.c), and before parameters
 * are freed. */
__attribute__((destructor(102))) static void unload(void) {
  if (!rail_net_process_may_unload(&process)) return;
  rail_log_set_sink(NULL); /* NCCL may have been unloaded before us */
  ofi_devices_unload();
}

char rail_plugin_name[] = "RailOFI";

const struct rail_net_ops rail_plugin_ops = {
  .name = rail_plugin_name, .params = &ofi_param_table,
  /* process and devices */
  .init = init,
  .finalize = finalize,
  .devices = devices,
  .get_properties = ofi_get_properties,
  .make_vdevice = make_vdevice,
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
