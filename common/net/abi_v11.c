/* SPDX-License-Identifier: Apache-2.0
 * NCCL 2.28, 2.29: contexts, finalize, setNetAttr. */
#include "common/net/abi.h"

static int init(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                rail_profiler_fn prof) {
  return rail_abi_init_ctx(11, ctx, comm_id, config, log, prof);
}

static int get_properties(int dev, struct rail_net_props_v11 *props) {
  struct rail_net_props_v12 all;
  RAIL_TRY(rail_abi_properties(dev, &all));
  RAIL_NET_COPY_V9_PROPS(props, &all);
  rail_abi_vprops_to_v9(&all.vprops, &props->vprops);
  props->max_multi_request_size = all.max_multi_request_size;
  return RAIL_OK;
}

const struct rail_net_v11 ncclNetPlugin_v11 = {
  .name = rail_plugin_name,
  .init = init,
  .devices = rail_abi_devices,
  .get_properties = get_properties,
  .listen = rail_abi_listen_v11,
  .connect = rail_abi_connect_v11,
  .accept = rail_abi_accept_v7,
  .reg_mr = rail_abi_reg_mr_v8,
  .reg_mr_dmabuf = rail_abi_reg_mr_dmabuf,
  .dereg_mr = rail_abi_dereg_mr,
  .isend = rail_abi_isend_v10,
  .irecv = rail_abi_irecv_v10,
  .iflush = rail_abi_iflush,
  .test = rail_abi_test,
  .close_send = rail_abi_close_send,
  .close_recv = rail_abi_close_recv,
  .close_listen = rail_abi_close_listen,
  .get_device_mr = rail_abi_get_device_mr,
  .irecv_consumed = rail_abi_irecv_consumed,
  .make_vdevice = rail_abi_make_vdevice_v11,
  .finalize = rail_abi_finalize,
  .set_net_attr = rail_abi_set_net_attr,
};
