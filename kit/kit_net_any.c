/* SPDX-License-Identifier: Apache-2.0
 *
 * Any version of a plugin's vtable in the shape of a v12 one: the calls of
 * loader/netload_raw.h, so that nothing is put right on the way and profiler
 * handles, device handles and traffic classes arrive where that version has
 * them. Only init below v11 is NCCL's: once a process. Slots that the plugin
 * may leave NULL are NULL here. A vtable's calls name no plugin, so one plugin
 * is driven this way at a time; it may be loaded several times. */
#include "loader/netload.h"
#include "loader/netload_raw.h"
#include "loader/netload_slots.h"
#include "kit/kit_net.h"

#define LOADS 8

static struct rail_net *loads[LOADS];
static struct rail_net *now; /* one of them, no matter which */
static struct rail_net_v12 vt;
static void take_slots(void);

static int any_init(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                    rail_profiler_fn prof) {
  struct rail_net_init args = {
    .comm_id = comm_id, .traffic_class = config ? config->traffic_class : -1, .log = log, .profiler = prof};
  int result = rail_net_version(now) >= 11 ? rail_net_raw_init(now, &args, ctx) : (int)rail_net_init(now, &args, ctx);
  if (!vt.close_listen) take_slots(); /* some plugins fill their tables in init */
  return result;
}
static int any_finalize(void *ctx) {
  return rail_net_version(now) >= 11 ? rail_net_raw_finalize(now, ctx) : (int)rail_net_finalize(now, ctx);
}
static int any_devices(int *ndev) { return rail_net_raw_devices(now, ndev); }
static int any_properties(int dev, struct rail_net_props_v12 *p) { return (int)rail_net_properties(now, dev, p); }
static int any_listen(void *ctx, int dev, void *handle, void **comm) {
  return rail_net_raw_listen(now, ctx, dev, handle, comm);
}
static int any_connect(void *ctx, int dev, void *handle, void **comm, struct rail_net_device_handle **dh) {
  return rail_net_raw_connect(now, ctx, dev, handle, -1, comm, dh); /* init had the traffic class */
}
static int any_accept(void *listen, void **comm, struct rail_net_device_handle **dh) {
  return rail_net_raw_accept(now, listen, comm, dh);
}
static int any_reg_mr(void *comm, void *data, size_t size, int type, void **mh) {
  return rail_net_raw_reg_mr(now, comm, data, size, type, mh);
}
static int any_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mh) {
  return rail_net_raw_reg_mr_dmabuf(now, comm, data, size, type, offset, fd, mh);
}
static int any_dereg_mr(void *comm, void *mh) { return rail_net_raw_dereg_mr(now, comm, mh); }
static int any_isend(void *comm, void *data, size_t size, int tag, void *mh, void *ph, void **req) {
  return rail_net_raw_isend(now, comm, data, size, tag, mh, ph, req);
}
static int any_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhs, void **phs, void **req) {
  return rail_net_raw_irecv(now, comm, n, data, sizes, tags, mhs, phs, req);
}
static int any_iflush(void *comm, int n, void **data, int *sizes, void **mhs, void **req) {
  return rail_net_raw_iflush(now, comm, n, data, sizes, mhs, req);
}
static int any_test(void *req, int *done, int *sizes) { return rail_net_raw_test(now, req, done, sizes); }
static int any_close_send(void *comm) { return rail_net_raw_close_send(now, comm); }
static int any_close_recv(void *comm) { return rail_net_raw_close_recv(now, comm); }
static int any_close_listen(void *comm) { return rail_net_raw_close_listen(now, comm); }
static int any_get_device_mr(void *comm, void *mh, void **dptr) {
  return rail_net_raw_get_device_mr(now, comm, mh, dptr);
}
static int any_irecv_consumed(void *comm, int n, void *req) { return (int)rail_net_irecv_consumed(now, comm, n, req); }
static int any_make_vdevice(int *dev, struct rail_net_vprops_v12 *props) {
  return (int)rail_net_make_vdevice(now, dev, props);
}
static int any_set_attr(void *ctx, struct rail_net_attr *attr) { return (int)rail_net_set_attr(now, ctx, attr); }

static void take_slots(void) {
  struct rail_net_slots s;
  rail_net_slots_fill(&s, rail_net_version(now), rail_net_vtable(now));
#define MAY(slot, function) .slot = s.slot ? function : NULL
  vt = (struct rail_net_v12){
      .name = s.name, .init = any_init, .get_properties = any_properties, .listen = any_listen,
      .connect = any_connect, .accept = any_accept, .reg_mr = any_reg_mr, .isend = any_isend, .irecv = any_irecv,
      .finalize = any_finalize, MAY(devices, any_devices), MAY(reg_mr_dmabuf, any_reg_mr_dmabuf),
      MAY(dereg_mr, any_dereg_mr), MAY(iflush, any_iflush), MAY(test, any_test), MAY(close_send, any_close_send),
      MAY(close_recv, any_close_recv), MAY(close_listen, any_close_listen), MAY(get_device_mr, any_get_device_mr),
      MAY(irecv_consumed, any_irecv_consumed), MAY(set_net_attr, any_set_attr),
      .make_vdevice = s.make_vdevice_v9 || s.make_vdevice_v12 ? any_make_vdevice : NULL,
  };
#undef MAY
}

const struct rail_net_v12 *kit_any_vtable(struct rail_net *net) {
  int i = 0;
  while (i < LOADS && loads[i]) i++;
  ENSURE(i < LOADS, "the plugin is loaded more than %d times at once", LOADS);
  ENSURE(!now || rail_net_version(now) == rail_net_version(net), "v%d and v%d cannot be driven side by side",
         rail_net_version(now), rail_net_version(net));
  loads[i] = net;
  if (now) return &vt;
  now = net;
  take_slots();
  return &vt;
}

void kit_any_vtable_end(const struct rail_net *net) {
  now = NULL;
  for (int i = 0; i < LOADS; i++) {
    if (loads[i] == net) loads[i] = NULL;
    if (loads[i]) now = loads[i];
  }
}
