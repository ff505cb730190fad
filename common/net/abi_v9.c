/* SPDX-License-Identifier: Apache-2.0
 * NCCL 2.24, 2.25: all sizes are size_t, makeVDevice. */
#include "common/net/abi.h"

static int init(rail_logger_fn log) { return rail_abi_init_process(9, log, NULL); }

static int get_properties(int dev, struct rail_net_props_v9 *props) {
  struct rail_net_props_v12 all;
  RAIL_TRY(rail_abi_properties(dev, &all));
  RAIL_NET_COPY_V9_PROPS(props, &all);
  rail_abi_vprops_to_v9(&all.vprops, &props->vprops);
  return RAIL_OK;
}

static int isend(void *send_comm, void *data, size_t size, int tag, void *mhandle, void **request) {
  return rail_abi_isend_v10(send_comm, data, size, tag, mhandle, NULL, request);
}

static int irecv(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request) {
  return rail_abi_irecv_v10(recv_comm, n, data, sizes, tags, mhandles, NULL, request);
}

const struct rail_net_v9 ncclNetPlugin_v9 = {
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
  .isend = isend,
  .irecv = irecv,
  .iflush = rail_abi_iflush,
  .test = rail_abi_test,
  .close_send = rail_abi_close_send,
  .close_recv = rail_abi_close_recv,
  .close_listen = rail_abi_close_listen,
  .get_device_mr = rail_abi_get_device_mr,
  .irecv_consumed = rail_abi_irecv_consumed,
  .make_vdevice = rail_abi_make_vdevice_v10,
};
