/* SPDX-License-Identifier: Apache-2.0
 *
 * The vtables that NCCL sees, made from rail_plugin_ops (common/net/net_ops.h).
 * abi_vN.c holds version N's table and whatever only it needs; a function here
 * serves every version whose slot has that signature, and is named for the first
 * of them. They convert, guarantee what the caller relies on (outputs written,
 * NULL accepted), and do nothing else.
 *
 * Below v11 NCCL has no contexts: its own shim calls init once a process and
 * never tells the plugin about the end. Those versions share one context,
 * which is finalized when the library is unloaded.
 */
#ifndef RAIL_ABI_H
#define RAIL_ABI_H

#include "common/net/net_ops.h"
#include "common/net/net_props.h"

/* Grouped receives through v6-v8, whose sizes must be widened on the stack. */
#define RAIL_ABI_MAX_RECVS 32

RAIL_EXPORT extern const struct rail_net_v6 ncclNetPlugin_v6;
RAIL_EXPORT extern const struct rail_net_v7 ncclNetPlugin_v7;
RAIL_EXPORT extern const struct rail_net_v8 ncclNetPlugin_v8;
RAIL_EXPORT extern const struct rail_net_v9 ncclNetPlugin_v9;
RAIL_EXPORT extern const struct rail_net_v10 ncclNetPlugin_v10;
RAIL_EXPORT extern const struct rail_net_v11 ncclNetPlugin_v11;
RAIL_EXPORT extern const struct rail_net_v12 ncclNetPlugin_v12;

/* Prints the plugin's parameters to standard output (rail_param_print). NCCL does not look for it; rail-kit inspect
 * --params does. */
RAIL_EXPORT void railPluginParams(int markdown);

/* RAIL_IN_PROGRESS means nothing to NCCL; a plugin that lets it out has a bug. */
RAIL_COLD int rail_abi_escaped(const char *call);
static inline int rail_abi_result(rail_result_t result, const char *call) {
  return rail_unlikely(result == RAIL_IN_PROGRESS) ? rail_abi_escaped(call) : (int)result;
}

/* The process's context of v6-v10; NULL before init. */
void *rail_abi_process_ctx(void);
int rail_abi_init_process(int version, rail_logger_fn log, rail_profiler_fn profiler);

/* One context per communicator: v11, v12. */
int rail_abi_init_ctx(int version, void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                      rail_profiler_fn prof);
int rail_abi_finalize(void *ctx);
int rail_abi_set_net_attr(void *ctx, struct rail_net_attr *attr);

/* All versions. */
int rail_abi_devices(int *ndev);
int rail_abi_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle);
int rail_abi_dereg_mr(void *comm, void *mhandle);
int rail_abi_iflush(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request);
int rail_abi_test(void *request, int *done, int *sizes);
int rail_abi_close_send(void *send_comm);
int rail_abi_close_recv(void *recv_comm);
int rail_abi_close_listen(void *listen_comm);
int rail_abi_get_device_mr(void *comm, void *mhandle, void **dptr_mhandle);
int rail_abi_irecv_consumed(void *recv_comm, int n, void *request);

/* A device handle is an output that only offloading plugins write; passed through, NULL in v6. */
int rail_abi_listen_v6(int dev, void *handle, void **listen_comm);                                    /* v6-v10 */
int rail_abi_listen_v11(void *ctx, int dev, void *handle, void **listen_comm);                        /* v11- */
int rail_abi_connect_v7(int dev, void *handle, void **send_comm, struct rail_net_device_handle **dh); /* v7-v9 */
int rail_abi_connect_v11(void *ctx, int dev, void *handle, void **send_comm,
                         struct rail_net_device_handle **dh);                                         /* v11- */
int rail_abi_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                     struct rail_net_device_handle **dh);
int rail_abi_accept_v6(void *listen_comm, void **recv_comm);
int rail_abi_accept_v7(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dh);      /* v7- */

int rail_abi_reg_mr_v6(void *comm, void *data, int size, int type, void **mhandle);                   /* v6, v7 */
int rail_abi_reg_mr_v8(void *comm, void *data, size_t size, int type, void **mhandle);                /* v8- */
int rail_abi_isend_v6(void *send_comm, void *data, int size, int tag, void *mhandle, void **request); /* v6-v8 */
int rail_abi_irecv_v6(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles,
                      void **request);                                                                /* v6-v8 */
int rail_abi_isend_v10(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                       void **request);                                                               /* v10- */
int rail_abi_irecv_v10(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                       void **phandles, void **request);                                              /* v10- */
int rail_abi_make_vdevice_v11(int *dev, struct rail_net_vprops_v9 *props);
/* v9, v10. NCCL up to 2.27 expects the devices that were made for an earlier communicator, also where it has unloaded
 * the plugin in between: a library that has made some stays loaded. */
int rail_abi_make_vdevice_v10(int *dev, struct rail_net_vprops_v9 *props);

/* v12's properties, zeroed first: a field that a plugin forgets is 0, never garbage. */
rail_result_t rail_abi_properties(int dev, struct rail_net_props_v12 *props);
void rail_abi_vprops_to_v9(const struct rail_net_vprops_v12 *from, struct rail_net_vprops_v9 *to);

#endif
