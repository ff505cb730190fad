/* SPDX-License-Identifier: Apache-2.0
 *
 * common/netload.h in the shape of a v12 vtable, so that everything can
 * be run through any version of a plugin's vtable. A vtable's calls name no
 * plugin, so one plugin is loaded this way at a time. */
#include "common/netload.h"
#include "kit/kit_net.h"

static struct rail_net *now;

static int any_init(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                    rail_profiler_fn prof) {
  struct rail_net_init args = {
    .comm_id = comm_id, .traffic_class = config ? config->traffic_class : -1, .log = log, .profiler = prof};
  return (int)rail_net_init(now, &args, ctx);
}
static int any_devices(int *ndev) { return (int)rail_net_devices(now, ndev); }
static int any_properties(int dev, struct rail_net_props_v12 *p) { return (int)rail_net_properties(now, dev, p); }
static int any_listen(void *ctx, int dev, void *handle, void **comm) {
  return (int)rail_net_listen(now, ctx, dev, handle, comm);
}
static int any_connect(void *ctx, int dev, void *handle, void **comm, struct rail_net_device_handle **dh) {
  (void)dh;
  return (int)rail_net_connect(now, ctx, dev, handle, -1, comm);
}
static int any_accept(void *listen, void **comm, struct rail_net_device_handle **dh) {
  (void)dh;
  return (int)rail_net_accept(now, listen, comm);
}
static int any_reg_mr(void *comm, void *data, size_t size, int type, void **mh) {
  return (int)rail_net_reg_mr(now, comm, data, size, type, mh);
}
static int any_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mh) {
  return (int)rail_net_reg_mr_dmabuf(now, comm, data, size, type, offset, fd, mh);
}
static int any_dereg_mr(void *comm, void *mh) { return (int)rail_net_dereg_mr(now, comm, mh); }
static int any_isend(void *comm, void *data, size_t size, int tag, void *mh, void *ph, void **req) {
  (void)ph;
  return (int)rail_net_isend(now, comm, data, size, tag, mh, req);
}
static int any_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhs, void **phs, void **req) {
  (void)phs;
  return (int)rail_net_irecv(now, comm, n, data, sizes, tags, mhs, req);
}
static int any_iflush(void *comm, int n, void **data, int *sizes, void **mhs, void **req) {
  return (int)rail_net_iflush(now, comm, n, data, sizes, mhs, req);
}
static int any_test(void *req, int *done, int *sizes) { return (int)rail_net_test(now, req, done, sizes); }
static int any_close_send(void *comm) { return (int)rail_net_close_send(now, comm); }
static int any_close_recv(void *comm) { return (int)rail_net_close_recv(now, comm); }
static int any_close_listen(void *comm) { return (int)rail_net_close_listen(now, comm); }
static int any_irecv_consumed(void *comm, int n, void *req) { return (int)rail_net_irecv_consumed(now, comm, n, req); }
static int any_make_vdevice(int *dev, struct rail_net_vprops_v12 *props) {
  return (int)rail_net_make_vdevice(now, dev, props);
}
static int any_finalize(void *ctx) { return (int)rail_net_finalize(now, ctx); }
static int any_set_attr(void *ctx, struct rail_net_attr *attr) { return (int)rail_net_set_attr(now, ctx, attr); }

const struct rail_net_v12 *kit_any_vtable(struct rail_net *net) {
  static const struct rail_net_v12 vt = {
      .name = "any", .init = any_init, .devices = any_devices, .get_properties = any_properties,
      .listen = any_listen, .connect = any_connect, .accept = any_accept, .reg_mr = any_reg_mr,
      .reg_mr_dmabuf = any_reg_mr_dmabuf, .dereg_mr = any_dereg_mr, .isend = any_isend, .irecv = any_irecv,
      .iflush = any_iflush, .test = any_test, .close_send = any_close_send, .close_recv = any_close_recv,
      .close_listen = any_close_listen, .irecv_consumed = any_irecv_consumed, .make_vdevice = any_make_vdevice,
      .finalize = any_finalize, .set_net_attr = any_set_attr,
  };
  now = net;
  return &vt;
}
