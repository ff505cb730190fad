/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads any ncclNet plugin, ours or not, by NCCL's rules, and presents it
 * through one interface whatever its vtable version is.
 *
 * File resolution per name of NCCL_NET_PLUGIN's list (nccl src/plugin/plugin_open.cc):
 * dlopen(name) verbatim; if that fails and the name has no '/' and is not
 * lib*.so, dlopen("libnccl-net-<name>.so"). For our own tools the directory
 * of the calling library is searched last, so that a build tree works without
 * LD_LIBRARY_PATH.
 */
#ifndef RAIL_NETLOAD_H
#define RAIL_NETLOAD_H

#include <stdbool.h>

#include "common/net/net_ops.h"

#define RAIL_NET_VERSION_MIN 6
#define RAIL_NET_VERSION_MAX 12

/* A loaded plugin. Calls go through the rail_net_* functions below, which translate to the version found, and honour
 * what that version cannot say (sizes over INT_MAX through v8 are refused here, as NCCL's shim does). */
struct rail_net;

/* Opens `name` (see above). max_version bounds the version picked (0: newest). On failure *net is NULL and `why` says
 * what was tried. */
rail_result_t rail_net_load(const char *name, int max_version, struct rail_net **net, char *why, size_t why_size);

/* Opens `name`, initialises it and asks for its devices, as rail_net_select does, which calls this: NCCL_NET's filter
 * holds. On failure nothing is left open, and `why` is the reason. */
rail_result_t rail_net_try(const char *name, const struct rail_net_init *args, struct rail_net **net, void **ctx,
                           char *why, size_t why_size);

/* Walks NCCL_NET_PLUGIN's list (default "libnccl-net.so", "none" = empty) and
 * NCCL_NET's name filter, and returns the first plugin that loads, initialises
 * and has a device, as NCCL does. `fallback`, if not NULL, is tried last. */
rail_result_t rail_net_select(const struct rail_net_init *args, const char *fallback, struct rail_net **net,
                              void **ctx);

void rail_net_unload(struct rail_net *net); /* dlclose; NULL is fine */

int rail_net_version(const struct rail_net *net);
const char *rail_net_name(const struct rail_net *net); /* the vtable's name field */
const char *rail_net_path(const struct rail_net *net); /* the file it came from */
const void *rail_net_vtable(const struct rail_net *net);
/* The slot that made rail_net_init fail: needed, and NULL also after the plugin's own init. NULL: none did. */
const char *rail_net_missing_slot(const struct rail_net *net);

/* The operations, uniform over versions; semantics in net_ops.h. The caller
 * of ≤v10 plugins gets a context of this module's, never NULL. */
rail_result_t rail_net_init(struct rail_net *net, const struct rail_net_init *args, void **ctx);
rail_result_t rail_net_finalize(struct rail_net *net, void *ctx);
rail_result_t rail_net_devices(struct rail_net *net, int *ndev);
rail_result_t rail_net_properties(struct rail_net *net, int dev, struct rail_net_props_v12 *props);
rail_result_t rail_net_make_vdevice(struct rail_net *net, int *dev, const struct rail_net_vprops_v12 *props);
rail_result_t rail_net_listen(struct rail_net *net, void *ctx, int dev, void *handle, void **listen_comm);
rail_result_t rail_net_connect(struct rail_net *net, void *ctx, int dev, void *handle, int traffic_class,
                               void **send_comm);
rail_result_t rail_net_accept(struct rail_net *net, void *listen_comm, void **recv_comm);
rail_result_t rail_net_reg_mr(struct rail_net *net, void *comm, void *data, size_t size, int type, void **mhandle);
rail_result_t rail_net_reg_mr_dmabuf(struct rail_net *net, void *comm, void *data, size_t size, int type,
                                     uint64_t offset, int fd, void **mhandle);
rail_result_t rail_net_dereg_mr(struct rail_net *net, void *comm, void *mhandle);
rail_result_t rail_net_isend(struct rail_net *net, void *send_comm, void *data, size_t size, int tag, void *mhandle,
                             void **request);
rail_result_t rail_net_irecv(struct rail_net *net, void *recv_comm, int n, void **data, const size_t *sizes,
                             const int *tags, void **mhandles, void **request);
rail_result_t rail_net_iflush(struct rail_net *net, void *recv_comm, int n, void **data, const int *sizes,
                              void **mhandles, void **request);
rail_result_t rail_net_test(struct rail_net *net, void *request, int *done, int *sizes);
rail_result_t rail_net_irecv_consumed(struct rail_net *net, void *recv_comm, int n, void *request);
rail_result_t rail_net_close_send(struct rail_net *net, void *send_comm);
rail_result_t rail_net_close_recv(struct rail_net *net, void *recv_comm);
rail_result_t rail_net_close_listen(struct rail_net *net, void *listen_comm);
rail_result_t rail_net_set_attr(struct rail_net *net, void *ctx, const struct rail_net_attr *attr);

/* ---- the same calls for one who observes the plugin: kit, plugin/railtrace ----
 *
 * Translated between versions as above, but nothing is corrected. Outputs hold what the caller left in them until the
 * plugin writes, and the result is the plugin's own number. Profiler handles and device handles are passed on. */

/* Below v11 `ctx` is left alone, and the plugin's init is called each time, where rail_net_init does so once a process.
 * A table that is not complete even after it makes this RAIL_INTERNAL_ERROR (rail_net_missing_slot). */
int rail_net_raw_init(struct rail_net *net, const struct rail_net_init *args, void **ctx);
int rail_net_raw_finalize(struct rail_net *net, void *ctx); /* RAIL_OK where there is no such slot */
int rail_net_raw_devices(struct rail_net *net, int *ndev);

int rail_net_raw_listen(struct rail_net *net, void *ctx, int dev, void *handle, void **listen_comm);
int rail_net_raw_connect(struct rail_net *net, void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle);
int rail_net_raw_accept(struct rail_net *net, void *listen_comm, void **recv_comm,
                        struct rail_net_device_handle **dev_handle);
int rail_net_raw_close_send(struct rail_net *net, void *send_comm);
int rail_net_raw_close_recv(struct rail_net *net, void *recv_comm);
int rail_net_raw_close_listen(struct rail_net *net, void *listen_comm);

/* `mhandle` NULL is passed on to the plugin. */
int rail_net_raw_reg_mr(struct rail_net *net, void *comm, void *data, size_t size, int type, void **mhandle);
int rail_net_raw_reg_mr_dmabuf(struct rail_net *net, void *comm, void *data, size_t size, int type, uint64_t offset,
                               int fd, void **mhandle);
int rail_net_raw_dereg_mr(struct rail_net *net, void *comm, void *mhandle);
int rail_net_raw_get_device_mr(struct rail_net *net, void *comm, void *mhandle, void **dptr_mhandle);

/* `phandles` NULL means none. v6 to v8 do not know RAIL_NET_OPTIONAL_RECV: they find NULL, as with NCCL. */
int rail_net_raw_isend(struct rail_net *net, void *send_comm, void *data, size_t size, int tag, void *mhandle,
                       void *phandle, void **request);
int rail_net_raw_irecv(struct rail_net *net, void *recv_comm, int n, void **data, const size_t *sizes, const int *tags,
                       void **mhandles, void **phandles, void **request);
int rail_net_raw_iflush(struct rail_net *net, void *recv_comm, int n, void **data, const int *sizes, void **mhandles,
                        void **request);
int rail_net_raw_test(struct rail_net *net, void *request, int *done, int *sizes);

#endif
