/* SPDX-License-Identifier: Apache-2.0
 * NCCL 2.20 to 2.23: registration sizes are size_t. */
#include "common/net/abi.h"

static int init(rail_logger_fn log) { return rail_abi_init_process(8, log, NULL); }

static int get_properties(int dev, struct rail_net_props_v8 *props) {
  struct rail_net_props_v12 all;
  RAIL_TRY(rail_abi_properties(dev, &all));
  RAIL_NET_COPY_V8_PROPS(props, &all);
  return RAIL_OK;
}

const struct rail_net_v8 ncclNetPlugin_v8 = {
  .name = rail_plugin_name,
  .init = init,
  .devices = rail_abi_devices,
  .get_properties = get_properties,
  .listen = rail_abi_listen_v6,
  .connect = rail_abi_connect_v7,
  .accept = rail_abi_accept_v7,
  .reg_mr = rail_abi_reg_mr_v8,
  .reg_mr_dmabuf = rail_abi_reg_mr_dmabuf,
  .dereg_mr = rail_abi_dereg_mr,
  .isend = rail_abi_isend_v6,
  .irecv = rail_abi_irecv_v6,
  .iflush = rail_abi_iflush,
  .test = rail_abi_test,
  .close_send = rail_abi_close_send,
  .close_recv = rail_abi_close_recv,
  .close_listen = rail_abi_close_listen,
  .get_device_mr = rail_abi_get_device_mr,
  .irecv_consumed = rail_abi_irecv_consumed,
};
