/* SPDX-License-Identifier: Apache-2.0
 * A v12 vtable over any version, by way of the loader's calls; and one that notes each call in the call trace and then
 * passes it on. */
#include "kit/kit_vtable.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kit/kit_call_trace.h"
#include "kit/kit_net.h"
#include "loader/netload.h"
#include "loader/netload_slots.h"

#define LOADS 8

static struct rail_net *loads[LOADS];
static struct rail_net *current; /* one of them, no matter which */
static struct rail_net_v12 vt;
static void take_slots(void);

static int any_init(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                    rail_profiler_fn prof) {
  struct rail_net_init args = {
    .comm_id = comm_id, .traffic_class = config ? config->traffic_class : -1, .log = log, .profiler = prof};
  int result = rail_net_version(current) >= 11 ? rail_net_raw_init(current, &args, ctx)
                                               : (int)rail_net_init(current, &args, ctx);
  if (!vt.close_listen) take_slots(); /* some plugins fill their tables in init */
  return result;
}
static int any_finalize(void *ctx) {
  return rail_net_version(current) >= 11 ? rail_net_raw_finalize(current, ctx) : (int)rail_net_finalize(current, ctx);
}
static int any_devices(int *ndev) { return rail_net_raw_devices(current, ndev); }
static int any_properties(int dev, struct rail_net_props_v12 *p) { return (int)rail_net_properties(current, dev, p); }
static int any_listen(void *ctx, int dev, void *handle, void **comm) {
  return rail_net_raw_listen(current, ctx, dev, handle, comm);
}
static int any_connect(void *ctx, int dev, void *handle, void **comm, struct rail_net_device_handle **dh) {
  return rail_net_raw_connect(current, ctx, dev, handle, -1, comm, dh); /* init had the traffic class */
}
static int any_accept(void *listen, void **comm, struct rail_net_device_handle **dh) {
  return rail_net_raw_accept(current, listen, comm, dh);
}
static int any_reg_mr(void *comm, void *data, size_t size, int type, void **mh) {
  return rail_net_raw_reg_mr(current, comm, data, size, type, mh);
}
static int any_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mh) {
  return rail_net_raw_reg_mr_dmabuf(current, comm, data, size, type, offset, fd, mh);
}
static int any_dereg_mr(void *comm, void *mh) { return rail_net_raw_dereg_mr(current, comm, mh); }
static int any_isend(void *comm, void *data, size_t size, int tag, void *mh, void *ph, void **req) {
  return rail_net_raw_isend(current, comm, data, size, tag, mh, ph, req);
}
static int any_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhs, void **phs, void **req) {
  return rail_net_raw_irecv(current, comm, n, data, sizes, tags, mhs, phs, req);
}
static int any_iflush(void *comm, int n, void **data, int *sizes, void **mhs, void **req) {
  return rail_net_raw_iflush(current, comm, n, data, sizes, mhs, req);
}
static int any_test(void *req, int *done, int *sizes) { return rail_net_raw_test(current, req, done, sizes); }
static int any_close_send(void *comm) { return rail_net_raw_close_send(current, comm); }
static int any_close_recv(void *comm) { return rail_net_raw_close_recv(current, comm); }
static int any_close_listen(void *comm) { return rail_net_raw_close_listen(current, comm); }
static int any_get_device_mr(void *comm, void *mh, void **dptr) {
  return rail_net_raw_get_device_mr(current, comm, mh, dptr);
}
static int any_irecv_consumed(void *comm, int n, void *req) {
  return (int)rail_net_irecv_consumed(current, comm, n, req);
}
static int any_make_vdevice(int *dev, struct rail_net_vprops_v12 *props) {
  return (int)rail_net_make_vdevice(current, dev, props);
}
static int any_set_attr(void *ctx, struct rail_net_attr *attr) { return (int)rail_net_set_attr(current, ctx, attr); }

static void take_slots(void) {
  struct rail_net_slots s;
  rail_net_slots_fill(&s, rail_net_version(current), rail_net_vtable(current));
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
  ENSURE(!current || rail_net_version(current) == rail_net_version(net), "v%d and v%d cannot be driven side by side",
         rail_net_version(current), rail_net_version(net));
  loads[i] = net;
  if (current) return &vt;
  current = net;
  take_slots();
  return &vt;
}

void kit_any_vtable_end(const struct rail_net *net) {
  current = NULL;
  for (int i = 0; i < LOADS; i++) {
    if (loads[i] == net) loads[i] = NULL;
    if (loads[i]) current = loads[i];
  }
}

/* A vtable that leaves a call trace: each call is noted, then passed on unchanged. A vtable's calls name no plugin, so
 * one plugin at a time is driven this way. */

static const struct rail_net_v12 *inner;
static int users; /* of `inner` */

#define PASS(call, expression)  \
  kit_call_begin(call);        \
  int result = expression;      \
  kit_call_end();            \
  return result

static struct rail_net_v12 traced;
static void take_traced_slots(void);

static int t_init(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                  rail_profiler_fn prof) {
  kit_call_begin(KIT_CALL_INIT);
  int result = inner->init(ctx, comm_id, config, log, prof);
  kit_call_end();
  if (!traced.devices) take_traced_slots(); /* some plugins fill their tables in init */
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

void kit_traced_vtable_end(const struct rail_net_v12 *given) {
  if (given == &traced) users--;
}

static void take_traced_slots(void) {
  const struct rail_net_v12 *plugin = inner;
#define SLOT(slot, function) .slot = plugin->slot ? function : NULL
  traced = (struct rail_net_v12){
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

const struct rail_net_v12 *kit_traced_vtable(const struct rail_net_v12 *plugin) {
  if (users > 0 && inner != plugin) return plugin;
  users++;
  inner = plugin;
  take_traced_slots();
  return &traced;
}

/* ---- properties of any version ---- */

int kit_props_get(const struct rail_net_slots *s, int dev, union kit_props *p) {
  if (s->get_properties_v12) return s->get_properties_v12(dev, &p->v12);
  if (s->get_properties_v11) return s->get_properties_v11(dev, &p->v11);
  if (s->get_properties_v9) return s->get_properties_v9(dev, &p->v9);
  if (s->get_properties_v8) return s->get_properties_v8(dev, &p->v8);
  if (s->get_properties_v7) return s->get_properties_v7(dev, &p->v7);
  return s->get_properties_v6(dev, &p->v6);
}

bool kit_props_subsystem(const char *path, char *name, size_t size) {
  char link[PATH_MAX + 16];
  if (!path || (size_t)snprintf(link, sizeof link, "%s/subsystem", path) >= sizeof link) return false;
  char *subsystem = realpath(link, NULL);
  const char *last = subsystem ? strrchr(subsystem, '/') : NULL;
  if (last) snprintf(name, size, "%s", last + 1);
  free(subsystem);
  return last != NULL;
}

bool kit_props_is_pci(const char *pci_path) {
  char name[64];
  return kit_props_subsystem(pci_path, name, sizeof name) && strcmp(name, "pci") == 0;
}
