/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/conform/kit_plain.h"

#include "common/netload.h"
#include "common/netload_slots.h"

/* Per process, as are the vtables that they imitate. */
static struct rail_net_slots s;
static struct rail_net_config config;
static struct rail_net_v12 vt;
static const void *table;
static int version;
static void take_slots(void);

static int plain_init(void **ctx, uint64_t comm_id, struct rail_net_config *given, rail_logger_fn log,
                      rail_profiler_fn profiler) {
  int rc;
  config = *given;
  if (s.init_v11) {
    rc = s.init_v11(ctx, comm_id, given, log, profiler);
  } else {
    *ctx = NULL; /* there is none before v11 */
    rc = s.init_v10 ? s.init_v10(log, profiler) : s.init_v6(log);
  }
  if (!s.devices) take_slots(); /* some plugins fill their tables in init */
  return rc;
}

static int plain_listen(void *ctx, int dev, void *handle, void **comm) {
  return s.listen_v11 ? s.listen_v11(ctx, dev, handle, comm) : s.listen_v6(dev, handle, comm);
}

static int plain_connect(void *ctx, int dev, void *handle, void **comm, struct rail_net_device_handle **dh) {
  if (s.connect_v11) return s.connect_v11(ctx, dev, handle, comm, dh);
  if (s.connect_v10) return s.connect_v10(dev, &config, handle, comm, dh);
  return s.connect_v7 ? s.connect_v7(dev, handle, comm, dh) : s.connect_v6(dev, handle, comm);
}

static int plain_accept(void *listen, void **comm, struct rail_net_device_handle **dh) {
  return s.accept_v7 ? s.accept_v7(listen, comm, dh) : s.accept_v6(listen, comm);
}

static int plain_reg_mr(void *comm, void *data, size_t size, int type, void **mh) {
  return s.reg_mr_v8 ? s.reg_mr_v8(comm, data, size, type, mh) : s.reg_mr_v6(comm, data, (int)size, type, mh);
}

static int plain_isend(void *comm, void *data, size_t size, int tag, void *mh, void *ph, void **request) {
  if (s.isend_v10) return s.isend_v10(comm, data, size, tag, mh, ph, request);
  return s.isend_v9 ? s.isend_v9(comm, data, size, tag, mh, request)
                    : s.isend_v6(comm, data, (int)size, tag, mh, request);
}

static int plain_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhs, void **phs,
                       void **request) {
  int narrow[KIT_MAX_GROUP];
  if (s.irecv_v10) return s.irecv_v10(comm, n, data, sizes, tags, mhs, phs, request);
  if (s.irecv_v9) return s.irecv_v9(comm, n, data, sizes, tags, mhs, request);
  for (int i = 0; i < n && i < KIT_MAX_GROUP; i++) narrow[i] = (int)sizes[i];
  return s.irecv_v6(comm, n, data, narrow, tags, mhs, request);
}

static int plain_finalize(void *ctx) { return s.finalize ? s.finalize(ctx) : 0; }

static void take_slots(void) {
  rail_net_slots_fill(&s, version, table);
  vt = (struct rail_net_v12){
      .name = s.name, .init = plain_init, .devices = s.devices, .listen = plain_listen, .connect = plain_connect,
      .accept = plain_accept, .reg_mr = plain_reg_mr, .dereg_mr = s.dereg_mr, .isend = plain_isend,
      .irecv = plain_irecv, .test = s.test, .close_send = s.close_send, .close_recv = s.close_recv,
      .close_listen = s.close_listen, .finalize = plain_finalize, .set_net_attr = s.set_net_attr};
}

void kit_plain_load(struct kit_side *side, struct kit_net *n) {
  kit_net_load(n, kit_side_job(side)->version);
  n->dev = kit_side_job(side)->dev;
  kit_net_trail_end(n->vt);
  version = n->version;
  table = rail_net_vtable(n->any);
  take_slots();
  n->vt = kit_net_trail(&vt);
}

int kit_plain_init(struct kit_net *n, rail_profiler_fn profiler, int traffic_class) {
  struct rail_net_config given = {.traffic_class = traffic_class};
  int rc = n->vt->init(&n->ctx, 0x1234, &given, kit_net_log, profiler);
  if (rc != 0) return rc;
  rc = n->vt->devices(&n->ndev);
  ENSURE(rc == 0 && n->ndev > 0, "devices returned %d and %d devices", rc, n->ndev);
  return 0;
}

void kit_plain_unload(struct kit_net *n) {
  kit_net_trail_end(n->vt);
  rail_net_unload(n->any);
}
