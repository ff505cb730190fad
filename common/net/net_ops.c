/* SPDX-License-Identifier: Apache-2.0
 * What plugins of ours have in common: properties, the check of irecv's arguments, and slots for operations that one
 * does not have. */
#include "common/net/net_ops.h"

#include <string.h>

#include "common/base/log.h"

void rail_net_props_usual(struct rail_net_props_v12 *props, const int *members, int nmembers) {
  memset(props, 0, sizeof *props);
  props->net_device_type = RAIL_NET_DEVICE_HOST;
  props->net_device_version = RAIL_NET_DEVICE_INVALID_VERSION;
  props->vprops.ndevs = nmembers;
  for (int i = 0; i < nmembers; i++) props->vprops.devs[i] = members[i];
  props->max_p2p_bytes = RAIL_NET_MAX_BYTES;
  props->max_coll_bytes = RAIL_NET_MAX_BYTES;
  props->max_multi_request_size = 1;
  props->rail_id = RAIL_NET_ID_UNDEF;
  props->plane_id = RAIL_NET_ID_UNDEF;
}

rail_result_t rail_net_refuse_recv_args(const char *plugin, int n, int max, void **data, const size_t *sizes,
                                        const int *tags) {
  if (n < 1 || n > max) RAIL_WARN("%s: irecv: n is %d; allowed: 1..%d", plugin, n, max);
  else
    RAIL_WARN("%s: irecv: data %p, sizes %p, tags %p; none may be NULL", plugin, (void *)data, (const void *)sizes,
              (const void *)tags);
  return RAIL_BAD_ARGUMENT;
}

RAIL_COLD void *rail_net_refuse_comm(const char *plugin, const void *comm, const char *kind, const char *call) {
  RAIL_WARN("%s: %s: %p is no %s that is open", plugin, call, comm, kind);
  return NULL;
}

RAIL_COLD rail_result_t rail_net_refuse_request(const char *plugin, const void *request) {
  if (!request || request == RAIL_NET_OPTIONAL_RECV) RAIL_WARN("%s: test: %p is no request", plugin, request);
  else RAIL_WARN("%s: test: request %p is not outstanding (tested again after it was done?)", plugin, request);
  return RAIL_BAD_ARGUMENT;
}

/* NCCL 2.24 to 2.26 also ask for each device alone (fuse.h): where nothing is fused, that is the device itself. */
rail_result_t rail_net_no_make_vdevice(int *dev, const struct rail_net_vprops_v12 *props) {
  if (!dev || !props || props->ndevs != 1) return RAIL_BAD_ARGUMENT;
  *dev = props->devs[0];
  return RAIL_OK;
}

/* NCCL falls back to reg_mr. */
rail_result_t rail_net_no_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                        void **mhandle) {
  (void)comm;
  (void)data;
  (void)size;
  (void)type;
  (void)offset;
  (void)fd;
  (void)mhandle;
  return RAIL_BAD_USAGE;
}

rail_result_t rail_net_no_get_device_mr(void *comm, void *mhandle, void **dptr_mhandle) {
  (void)comm;
  (void)mhandle;
  (void)dptr_mhandle;
  return RAIL_INTERNAL_ERROR;
}

/* NULL request: nothing to wait for. Host memory needs no flush. */
rail_result_t rail_net_no_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mhandles,
                                 void **request) {
  (void)recv_comm;
  (void)n;
  (void)data;
  (void)sizes;
  (void)mhandles;
  (void)request;
  return RAIL_OK;
}

rail_result_t rail_net_no_irecv_consumed(void *recv_comm, int n, void *request) {
  (void)recv_comm;
  (void)n;
  (void)request;
  return RAIL_OK;
}

rail_result_t rail_net_no_set_net_attr(void *ctx, const struct rail_net_attr *attr) {
  (void)ctx;
  (void)attr;
  return RAIL_OK;
}
