/* SPDX-License-Identifier: Apache-2.0
 * Shared slots for operations that a plugin does not have. */
#include "common/net_ops.h"

rail_result_t rail_net_no_make_vdevice(int *dev, const struct rail_net_vprops_v12 *props) {
  (void)dev;
  (void)props;
  return RAIL_BAD_USAGE;
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
  *mhandle = NULL;
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
  *request = NULL;
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
