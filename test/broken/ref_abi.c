/* SPDX-License-Identifier: Apache-2.0
 *
 * The vtables. All calls end in the same functions; what a version lacks (a
 * context, sizes beyond int, properties) is added or left out here. The
 * versions before v11 are initialised once a process and have one context.
 */
#include <limits.h>
#include <string.h>

#include "test/broken/ref.h"

#define REF_NAME "RailRef"
#define EXPORT __attribute__((visibility("default")))

/* ---- contexts ---- */

static int init_v10(rail_logger_fn log, rail_profiler_fn profiler) {
  ref_log_to(log);
  ref_process_ctx()->profiler = profiler;
  return ref_devices_load();
}
static int init_v6(rail_logger_fn log) { return init_v10(log, NULL); }
static int init_v11(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                    rail_profiler_fn profiler) {
  (void)comm_id, (void)config;
  return ref_init(ctx, log, profiler);
}

static int listen_v6(int dev, void *handle, void **comm) { return ref_listen(ref_process_ctx(), dev, handle, comm); }
static int connect_v6(int dev, void *handle, void **comm) {
  return ref_connect(ref_process_ctx(), dev, handle, comm, NULL);
}
static int connect_v7(int dev, void *handle, void **comm, struct rail_net_device_handle **dev_handle) {
  return ref_connect(ref_process_ctx(), dev, handle, comm, dev_handle);
}
static int connect_v10(int dev, struct rail_net_config *config, void *handle, void **comm,
                       struct rail_net_device_handle **dev_handle) {
  (void)config; /* the traffic class: TCP goes without */
  return ref_connect(ref_process_ctx(), dev, handle, comm, dev_handle);
}
static int accept_v6(void *listen_comm, void **comm) { return ref_accept(listen_comm, comm, NULL); }

/* ---- sizes ---- */

static int reg_mr_v6(void *comm, void *data, int size, int type, void **mhandle) {
  return size < 0 ? RAIL_BAD_ARGUMENT : ref_reg_mr(comm, data, (size_t)size, type, mhandle);
}

static int isend_v6(void *comm, void *data, int size, int tag, void *mhandle, void **request) {
  if (BROKEN(v6_swapped)) return ref_isend(comm, data, (size_t)tag, size, mhandle, NULL, request);
  return size < 0 ? RAIL_BAD_ARGUMENT : ref_isend(comm, data, (size_t)size, tag, mhandle, NULL, request);
}

static int irecv_v6(void *comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request) {
  size_t wide[REF_GROUP];
  if (n < 1 || n > REF_GROUP) return RAIL_BAD_ARGUMENT;
  for (int i = 0; i < n; i++) {
    if (sizes[i] < 0) return RAIL_BAD_ARGUMENT;
    wide[i] = (size_t)sizes[i];
  }
  if (BROKEN(v6_sizes_widened)) memcpy(wide, sizes, sizeof wide[0] * (size_t)n);
  return ref_irecv(comm, n, data, wide, tags, mhandles, NULL, request);
}

static int isend_v9(void *comm, void *data, size_t size, int tag, void *mhandle, void **request) {
  return ref_isend(comm, data, size, tag, mhandle, NULL, request);
}
static int irecv_v9(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request) {
  return ref_irecv(comm, n, data, sizes, tags, mhandles, NULL, request);
}

/* ---- properties: each version's are the fields of the next without some ---- */

#define COPY_V6(to, from)                                                                                      \
  (to)->name = (from).name, (to)->pci_path = (from).pci_path, (to)->guid = (from).guid,                        \
  (to)->ptr_support = (from).ptr_support, (to)->speed = (from).speed, (to)->port = (from).port,                \
  (to)->latency = (from).latency, (to)->max_comms = (from).max_comms, (to)->max_recvs = (from).max_recvs
#define COPY_V7(to, from)                                                                                      \
  COPY_V6(to, from), (to)->net_device_type = (from).net_device_type,                                           \
  (to)->net_device_version = (from).net_device_version
#define COPY_V8(to, from) COPY_V7(to, from), (to)->reg_is_global = (from).reg_is_global
#define COPY_V9(to, from)                                                                                      \
  COPY_V8(to, from), (to)->force_flush = (from).force_flush, (to)->vprops.ndevs = (from).vprops.ndevs,         \
  memcpy((to)->vprops.devs, (from).vprops.devs, sizeof (to)->vprops.devs),                                     \
  (to)->max_p2p_bytes = (from).max_p2p_bytes, (to)->max_coll_bytes = (from).max_coll_bytes
#define COPY_V11(to, from) COPY_V9(to, from), (to)->max_multi_request_size = (from).max_multi_request_size

#define PROPERTIES(v, type, copy)                                \
  static int properties_##v(int dev, struct type *props) {       \
    struct rail_net_props_v12 all;                               \
    int rc = ref_get_properties(dev, &all);                      \
    if (rc == RAIL_OK) copy(props, all);                         \
    return rc;                                                   \
  }
PROPERTIES(v6, rail_net_props_v6, COPY_V6)
PROPERTIES(v7, rail_net_props_v7, COPY_V7)
PROPERTIES(v8_sound, rail_net_props_v8, COPY_V8)
PROPERTIES(v9, rail_net_props_v9, COPY_V9)
PROPERTIES(v11, rail_net_props_v11, COPY_V11)

static int properties_v8(int dev, struct rail_net_props_v8 *props) {
  if (BROKEN(v8_props_shifted)) return properties_v7(dev, (struct rail_net_props_v7 *)props);
  return properties_v8_sound(dev, props);
}

static int make_vdevice_v9(int *dev, struct rail_net_vprops_v9 *members) {
  struct rail_net_vprops_v12 wide = {.ndevs = members->ndevs};
  for (int i = 0; i < members->ndevs && i < 4; i++) wide.devs[i] = members->devs[i];
  return ref_make_vdevice(dev, &wide);
}

/* ---- tables. A slot that is not named is NULL, which NCCL takes for "not supported" ---- */

#define COMMON                                                                                                 \
  .name = REF_NAME, .devices = ref_devices, .dereg_mr = ref_dereg_mr, .iflush = ref_iflush, .test = ref_test,  \
  .close_send = ref_close, .close_recv = ref_close, .close_listen = ref_close_listen

EXPORT const struct rail_net_v6 ncclNetPlugin_v6 = {
  COMMON, .init = init_v6, .get_properties = properties_v6, .listen = listen_v6, .connect = connect_v6,
  .accept = accept_v6, .reg_mr = reg_mr_v6, .isend = isend_v6, .irecv = irecv_v6,
};

EXPORT const struct rail_net_v7 ncclNetPlugin_v7 = {
  COMMON, .init = init_v6, .get_properties = properties_v7, .listen = listen_v6, .connect = connect_v7,
  .accept = ref_accept, .reg_mr = reg_mr_v6, .isend = isend_v6, .irecv = irecv_v6,
  .irecv_consumed = ref_irecv_consumed,
};

EXPORT const struct rail_net_v8 ncclNetPlugin_v8 = {
  COMMON, .init = init_v6, .get_properties = properties_v8, .listen = listen_v6, .connect = connect_v7,
  .accept = ref_accept, .reg_mr = ref_reg_mr, .isend = isend_v6, .irecv = irecv_v6,
  .irecv_consumed = ref_irecv_consumed,
};

EXPORT const struct rail_net_v9 ncclNetPlugin_v9 = {
  COMMON, .init = init_v6, .get_properties = properties_v9, .listen = listen_v6, .connect = connect_v7,
  .accept = ref_accept, .reg_mr = ref_reg_mr, .isend = isend_v9, .irecv = irecv_v9,
  .irecv_consumed = ref_irecv_consumed, .make_vdevice = make_vdevice_v9,
};

EXPORT const struct rail_net_v10 ncclNetPlugin_v10 = {
  COMMON, .init = init_v10, .get_properties = properties_v9, .listen = listen_v6, .connect = connect_v10,
  .accept = ref_accept, .reg_mr = ref_reg_mr, .isend = ref_isend, .irecv = ref_irecv,
  .irecv_consumed = ref_irecv_consumed, .make_vdevice = make_vdevice_v9,
};

EXPORT const struct rail_net_v11 ncclNetPlugin_v11 = {
  COMMON, .init = init_v11, .get_properties = properties_v11, .listen = ref_listen, .connect = ref_connect,
  .accept = ref_accept, .reg_mr = ref_reg_mr, .isend = ref_isend, .irecv = ref_irecv,
  .irecv_consumed = ref_irecv_consumed, .make_vdevice = make_vdevice_v9,
  .finalize = ref_finalize, .set_net_attr = ref_set_net_attr,
};

EXPORT const struct rail_net_v12 ncclNetPlugin_v12 = {
  COMMON, .init = init_v11, .get_properties = ref_get_properties, .listen = ref_listen, .connect = ref_connect,
  .accept = ref_accept, .reg_mr = ref_reg_mr, .isend = ref_isend, .irecv = ref_irecv,
  .irecv_consumed = ref_irecv_consumed, .make_vdevice = ref_make_vdevice,
  .finalize = ref_finalize, .set_net_attr = ref_set_net_attr,
};
