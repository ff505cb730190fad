/* SPDX-License-Identifier: Apache-2.0
 * NCCL 2.13 to 2.18: int sizes, no device handles. */
#include "common/net/abi.h"

static int init(rail_logger_fn log) { return rail_abi_init_process(6, log, NULL); }

static int get_properties(int dev, struct rail_net_props_v6 *props) {
  struct rail_net_props_v12 all;
  RAIL_TRY(rail_abi_properties(dev, &all));
  RAIL_NET_COPY_V6_PROPS(props, &all);
  return RAIL_OK;
}

static int connect_to(int dev, void *handle, void **send_comm) {
  return rail_abi_connect(rail_abi_process_ctx(), dev, handle, -1, send_comm, NULL);
}

const struct rail_net_v6 ncclNetPlugin_v6 = {
  .name = rail_plugin_name,
  .init = init,
  .devices = rail_abi_devices,
  .get_properties = get_properties,
  .listen = rail_abi_listen_v6,
  .connect = connect_to,
  .accept = rail_abi_accept_v6,
  .reg_mr = rail_abi_reg_mr_v6,
  .reg_mr_dmabuf = rail_abi_reg_mr_dmabuf,
  .dereg_mr = rail_abi_dereg_mr,
  .isend = rail_abi_isend_v6,
  .irecv = rail_abi_irecv_v6,
  .iflush = rail_abi_iflush,
  .test = rail_abi_test,
  .close_send = rail_abi_close_send,
  .close_recv = rail_abi_close_recv,
  .close_listen = rail_abi_close_listen,
};
