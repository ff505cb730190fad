/* SPDX-License-Identifier: Apache-2.0
 *
 * The calls of a loaded plugin for somebody who watches it: translated between
 * versions as in netload.h, but with nothing made good. Outputs hold what the
 * caller left in them until the plugin writes, and the result is the plugin's
 * own number. Profiler handles and device handles pass.
 */
#ifndef RAIL_NETLOAD_RAW_H
#define RAIL_NETLOAD_RAW_H

#include "loader/netload.h"

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
