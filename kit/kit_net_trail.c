/* SPDX-License-Identifier: Apache-2.0
 *
 * A vtable that leaves a trail: each call is noted, then passed on unchanged.
 * A vtable's calls name no plugin, so one plugin at a time is driven this way. */
#include "kit/kit_net.h"
#include "kit/kit_trail.h"

static const struct rail_net_v12 *inner;
static int users; /* of `inner` */

#define PASS(call, expression)  \
  kit_trail_enter(call);        \
  int result = expression;      \
  kit_trail_leave();            \
  return result

static struct rail_net_v12 vt;
static void take_slots(void);

static int t_init(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                  rail_profiler_fn prof) {
  kit_trail_enter(KIT_CALL_INIT);
  int result = inner->init(ctx, comm_id, config, log, prof);
  kit_trail_leave();
  if (!vt.devices) take_slots(); /* some plugins fill their tables in init */
  return result;
}
static int t_devices(int *ndev) { PASS(KIT_CALL_DEVICES, inner->devices(ndev)); }
static int t_properties(int dev, struct rail_net_props_v12 *props) {
  PASS(KIT_CALL_PROPERTIES, inner->get_properties(dev, props));
}
static int t_listen(void *ctx, int dev, void *handle, void **comm) {
  PASS(KIT_CALL_LISTEN, inner->listen(ctx, dev, handle, comm));
}
static int t_connect(void *ctx, int dev, void *handle, void **comm, struct rail_net_device_handle **dh) {
  PASS(KIT_CALL_CONNECT, inner->connect(ctx, dev, handle, comm, dh));
}
static int t_accept(void *listen, void **comm, struct rail_net_device_handle **dh) {
  PASS(KIT_CALL_ACCEPT, inner->accept(listen, comm, dh));
}
static int t_reg_mr(void *comm, void *data, size_t size, int type, void **mh) {
  PASS(KIT_CALL_REG_MR, inner->reg_mr(comm, data, size, type, mh));
}
static int t_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mh) {
  PASS(KIT_CALL_REG_MR_DMABUF, inner->reg_mr_dmabuf(comm, data, size, type, offset, fd, mh));
}
static int t_dereg_mr(void *comm, void *mh) { PASS(KIT_CALL_DEREG_MR, inner->dereg_mr(comm, mh)); }
static int t_isend(void *comm, void *data, size_t size, int tag, void *mh, void *ph, void **request) {
  PASS(KIT_CALL_ISEND, inner->isend(comm, data, size, tag, mh, ph, request));
}
static int t_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhs, void **phs, void **request) {
  PASS(KIT_CALL_IRECV, inner->irecv(comm, n, data, sizes, tags, mhs, phs, request));
}
static int t_iflush(void *comm, int n, void **data, int *sizes, void **mhs, void **request) {
  PASS(KIT_CALL_IFLUSH, inner->iflush(comm, n, data, sizes, mhs, request));
}
static int t_test(void *request, int *done, int *sizes) { PASS(KIT_CALL_TEST, inner->test(request, done, sizes)); }
static int t_close_send(void *comm) { PASS(KIT_CALL_CLOSE_SEND, inner->close_send(comm)); }
static int t_close_recv(void *comm) { PASS(KIT_CALL_CLOSE_RECV, inner->close_recv(comm)); }
static int t_close_listen(void *comm) { PASS(KIT_CALL_CLOSE_LISTEN, inner->close_listen(comm)); }
static int t_get_device_mr(void *comm, void *mh, void **dptr) {
  PASS(KIT_CALL_GET_DEVICE_MR, inner->get_device_mr(comm, mh, dptr));
}
static int t_irecv_consumed(void *comm, int n, void *request) {
  PASS(KIT_CALL_IRECV_CONSUMED, inner->irecv_consumed(comm, n, request));
}
static int t_make_vdevice(int *dev, struct rail_net_vprops_v12 *props) {
  PASS(KIT_CALL_MAKE_VDEVICE, inner->make_vdevice(dev, props));
}
static int t_finalize(void *ctx) { PASS(KIT_CALL_FINALIZE, inner->finalize(ctx)); }
static int t_set_attr(void *ctx, struct rail_net_attr *attr) {
  PASS(KIT_CALL_SET_ATTR, inner->set_net_attr(ctx, attr));
}

void kit_net_trail_end(const struct rail_net_v12 *given) {
  if (given == &vt) users--;
}

static void take_slots(void) {
  const struct rail_net_v12 *plugin = inner;
#define SLOT(slot, function) .slot = plugin->slot ? function : NULL
  vt = (struct rail_net_v12){
      .name = plugin->name, SLOT(init, t_init), SLOT(devices, t_devices), SLOT(get_properties, t_properties),
      SLOT(listen, t_listen), SLOT(connect, t_connect), SLOT(accept, t_accept), SLOT(reg_mr, t_reg_mr),
      SLOT(reg_mr_dmabuf, t_reg_mr_dmabuf), SLOT(dereg_mr, t_dereg_mr), SLOT(isend, t_isend), SLOT(irecv, t_irecv),
      SLOT(iflush, t_iflush), SLOT(test, t_test), SLOT(close_send, t_close_send), SLOT(close_recv, t_close_recv),
      SLOT(close_listen, t_close_listen), SLOT(get_device_mr, t_get_device_mr),
      SLOT(irecv_consumed, t_irecv_consumed), SLOT(make_vdevice, t_make_vdevice), SLOT(finalize, t_finalize),
      SLOT(set_net_attr, t_set_attr),
  };
#undef SLOT
}

const struct rail_net_v12 *kit_net_trail(const struct rail_net_v12 *plugin) {
  if (users > 0 && inner != plugin) return plugin;
  users++;
  inner = plugin;
  take_slots();
  return &vt;
}
