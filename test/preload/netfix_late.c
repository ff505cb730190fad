/* SPDX-License-Identifier: Apache-2.0
 * A plugin whose tables hold name and init alone until init has been called, as those that choose a transport there. */
#include "rail/net.h"

static int devices(int *ndev) {
  *ndev = 1;
  return RAIL_OK;
}

static int props_v12(int dev, struct rail_net_props_v12 *p) {
  static char name[] = "late0";
  *p = (struct rail_net_props_v12){.name = name, .guid = 1u + (unsigned)dev, .ptr_support = RAIL_PTR_HOST,
                                   .speed = 1000, .max_comms = 1, .max_recvs = 1, .vprops = {.ndevs = 1},
                                   .max_p2p_bytes = 1 << 20, .max_coll_bytes = 1 << 20, .max_multi_request_size = 1,
                                   .rail_id = -1, .plane_id = -1};
  return RAIL_OK;
}

static int props_v8(int dev, struct rail_net_props_v8 *p) {
  struct rail_net_props_v12 all;
  props_v12(dev, &all);
  *p = (struct rail_net_props_v8){.name = all.name, .guid = all.guid, .ptr_support = all.ptr_support,
                                  .speed = all.speed, .max_comms = 1, .max_recvs = 1};
  return RAIL_OK;
}

static int listen_v12(void *ctx, int dev, void *handle, void **comm) {
  (void)ctx, (void)dev, (void)handle, (void)comm;
  return RAIL_SYSTEM_ERROR;
}
static int connect_v12(void *ctx, int dev, void *handle, void **comm, struct rail_net_device_handle **dh) {
  (void)ctx, (void)dev, (void)handle, (void)comm, (void)dh;
  return RAIL_SYSTEM_ERROR;
}
static int listen_v8(int dev, void *handle, void **comm) { return listen_v12(NULL, dev, handle, comm); }
static int connect_v8(int dev, void *handle, void **comm, struct rail_net_device_handle **dh) {
  return connect_v12(NULL, dev, handle, comm, dh);
}
static int accept_any(void *listen, void **comm, struct rail_net_device_handle **dh) {
  (void)listen, (void)comm, (void)dh;
  return RAIL_SYSTEM_ERROR;
}
static int reg(void *comm, void *data, size_t size, int type, void **mh) {
  (void)comm, (void)data, (void)size, (void)type, (void)mh;
  return RAIL_SYSTEM_ERROR;
}
static int dereg(void *comm, void *mh) {
  (void)comm, (void)mh;
  return RAIL_OK;
}
static int send_v12(void *comm, void *data, size_t size, int tag, void *mh, void *ph, void **request) {
  (void)comm, (void)data, (void)size, (void)tag, (void)mh, (void)ph, (void)request;
  return RAIL_SYSTEM_ERROR;
}
static int send_v8(void *comm, void *data, int size, int tag, void *mh, void **request) {
  return send_v12(comm, data, (size_t)size, tag, mh, NULL, request);
}
static int recv_v12(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhs, void **phs, void **request) {
  (void)comm, (void)n, (void)data, (void)sizes, (void)tags, (void)mhs, (void)phs, (void)request;
  return RAIL_SYSTEM_ERROR;
}
static int recv_v8(void *comm, int n, void **data, int *sizes, int *tags, void **mhs, void **request) {
  (void)sizes;
  return recv_v12(comm, n, data, NULL, tags, mhs, NULL, request);
}
static int flush(void *comm, int n, void **data, int *sizes, void **mhs, void **request) {
  (void)comm, (void)n, (void)data, (void)sizes, (void)mhs, (void)request;
  return RAIL_SYSTEM_ERROR;
}
static int test(void *request, int *done, int *sizes) {
  (void)request, (void)done, (void)sizes;
  return RAIL_SYSTEM_ERROR;
}
static int close_any(void *comm) {
  (void)comm;
  return RAIL_OK;
}

static int init_v12(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                    rail_profiler_fn prof);
static int init_v8(rail_logger_fn log);
__attribute__((visibility("default"))) struct rail_net_v12 ncclNetPlugin_v12 = {.name = "Late", .init = init_v12};
__attribute__((visibility("default"))) struct rail_net_v8 ncclNetPlugin_v8 = {.name = "Late", .init = init_v8};

static int init_v12(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                    rail_profiler_fn prof) {
  (void)ctx, (void)comm_id, (void)config, (void)log, (void)prof;
  ncclNetPlugin_v12 = (struct rail_net_v12){
      .name = "Late", .init = init_v12, .devices = devices, .get_properties = props_v12, .listen = listen_v12,
      .connect = connect_v12, .accept = accept_any, .reg_mr = reg, .dereg_mr = dereg, .isend = send_v12,
      .irecv = recv_v12, .iflush = flush, .test = test, .close_send = close_any, .close_recv = close_any,
      .close_listen = close_any, .finalize = close_any};
  return RAIL_OK;
}

static int init_v8(rail_logger_fn log) {
  (void)log;
  ncclNetPlugin_v8 = (struct rail_net_v8){
      .name = "Late", .init = init_v8, .devices = devices, .get_properties = props_v8, .listen = listen_v8,
      .connect = connect_v8, .accept = accept_any, .reg_mr = reg, .dereg_mr = dereg, .isend = send_v8,
      .irecv = recv_v8, .iflush = flush, .test = test, .close_send = close_any, .close_recv = close_any,
      .close_listen = close_any};
  return RAIL_OK;
}
