/* SPDX-License-Identifier: Apache-2.0
 *
 * Body of the little plugins that test_netload opens. Each libnetfix_*.c
 * defines FIXTURE_VERSION, may change a slot, and includes this. They move no
 * bytes: they write down what they were called with in `fixture_seen`, which
 * the test finds with dlsym.
 */
#ifndef NET_FIXTURE_H
#define NET_FIXTURE_H

#include <string.h>

#include "rail/net.h"

struct fixture_seen {
  int inits, finalizes, attrs, consumed;
  int traffic_class, dev, n, tag, type;
  uint64_t comm_id;
  size_t size, sizes[32];
  void *ctx, *request_in;
  int answer; /* result of the next calls */
};

#ifdef FIXTURE_VERSION

#ifndef FIXTURE_NAME
#define FIXTURE_NAME "Fixture"
#endif
#ifndef FIXTURE_DEVICES
#define FIXTURE_DEVICES 2
#endif
#ifndef FIXTURE_SPEED
#define FIXTURE_SPEED 25000
#endif
#ifndef FIXTURE_POINTERS
#define FIXTURE_POINTERS RAIL_PTR_HOST
#endif
#ifndef FIXTURE_INIT_RESULT
#define FIXTURE_INIT_RESULT RAIL_OK
#endif

struct fixture_seen fixture_seen;
static char a_ctx, a_comm, a_mr, a_request;

#define GLUE_(a, b) a##b
#define GLUE(a, b) GLUE_(a, b)
#define VTABLE struct GLUE(rail_net_v, FIXTURE_VERSION)
#if FIXTURE_VERSION == 10
#define PROPS struct rail_net_props_v9
#else
#define PROPS struct GLUE(rail_net_props_v, FIXTURE_VERSION)
#endif
#if FIXTURE_VERSION >= 12
#define VPROPS struct rail_net_vprops_v12
#else
#define VPROPS struct rail_net_vprops_v9
#endif
#if FIXTURE_VERSION >= 8
typedef size_t reg_size;
#else
typedef int reg_size;
#endif
#if FIXTURE_VERSION >= 9
typedef size_t msg_size;
#else
typedef int msg_size;
#endif
/* Arguments that some versions have. */
#if FIXTURE_VERSION >= 11
#define CTX_ARG void *ctx,
#define SEE_CTX fixture_seen.ctx = ctx
#else
#define CTX_ARG
#define SEE_CTX (void)0
#endif
#if FIXTURE_VERSION >= 7
#define DH_ARG , struct rail_net_device_handle **dh
#define SEE_DH (void)dh
#else
#define DH_ARG
#define SEE_DH (void)0
#endif
#if FIXTURE_VERSION >= 10
#define PH_ARG void *ph,
#define PHS_ARG void **ph,
#define SEE_PH (void)ph
#else
#define PH_ARG
#define PHS_ARG
#define SEE_PH (void)0
#endif

#if FIXTURE_VERSION >= 11
static int fix_init(void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                    rail_profiler_fn prof) {
  (void)log;
  (void)prof;
  fixture_seen.comm_id = comm_id;
  fixture_seen.traffic_class = config->traffic_class;
  *ctx = &a_ctx;
#elif FIXTURE_VERSION == 10
static int fix_init(rail_logger_fn log, rail_profiler_fn prof) {
  (void)log;
  (void)prof;
  (void)a_ctx;
#else
static int fix_init(rail_logger_fn log) {
  (void)log;
  (void)a_ctx;
#endif
  fixture_seen.inits++;
  return FIXTURE_INIT_RESULT;
}

static int fix_devices(int *ndev) {
  *ndev = FIXTURE_DEVICES;
  return fixture_seen.answer;
}

static int fix_properties(int dev, PROPS *p) {
  static char names[2][8] = {"fix0", "fix1"};
  memset(p, 0xa5, sizeof *p);
  p->name = names[dev & 1];
  p->pci_path = NULL;
  p->guid = 40u + (unsigned)dev;
  p->ptr_support = FIXTURE_POINTERS;
  p->speed = FIXTURE_SPEED;
  p->port = 1;
  p->latency = 2;
  p->max_comms = 1000;
  p->max_recvs = 4;
#if FIXTURE_VERSION >= 7
  p->net_device_type = RAIL_NET_DEVICE_HOST;
  p->net_device_version = 0;
#endif
#if FIXTURE_VERSION >= 8
  p->reg_is_global = 1;
#endif
#if FIXTURE_VERSION >= 9
  p->force_flush = 1;
  p->vprops.ndevs = 2;
  p->vprops.devs[0] = 6;
  p->vprops.devs[1] = 7;
  p->max_p2p_bytes = 1ull << 35;
  p->max_coll_bytes = 1ull << 34;
#endif
#if FIXTURE_VERSION >= 11
  p->max_multi_request_size = 3;
#endif
#if FIXTURE_VERSION >= 12
  p->rail_id = 1;
  p->plane_id = 2;
#endif
  return fixture_seen.answer;
}

static int fix_listen(CTX_ARG int dev, void *handle, void **comm) {
  SEE_CTX;
  fixture_seen.dev = dev;
  memset(handle, 0x77, RAIL_NET_HANDLE_SIZE);
  *comm = &a_comm;
  return fixture_seen.answer;
}

#if FIXTURE_VERSION == 10
static int fix_connect(int dev, struct rail_net_config *config, void *handle, void **comm DH_ARG) {
  fixture_seen.traffic_class = config->traffic_class;
#else
static int fix_connect(CTX_ARG int dev, void *handle, void **comm DH_ARG) {
#endif
  SEE_CTX;
  SEE_DH;
  (void)handle;
  fixture_seen.dev = dev;
  *comm = &a_comm;
  return fixture_seen.answer;
}

static int fix_accept(void *listen_comm, void **comm DH_ARG) {
  SEE_DH;
  *comm = listen_comm;
  return fixture_seen.answer;
}

static int fix_reg_mr(void *comm, void *data, reg_size size, int type, void **mhandle) {
  (void)comm;
  (void)data;
  fixture_seen.size = (size_t)size;
  fixture_seen.type = type;
  *mhandle = &a_mr;
  return fixture_seen.answer;
}

static int fix_dereg_mr(void *comm, void *mhandle) {
  (void)comm;
  return mhandle == &a_mr ? fixture_seen.answer : RAIL_INTERNAL_ERROR;
}

static int fix_isend(void *comm, void *data, msg_size size, int tag, void *mhandle, PH_ARG void **request) {
  (void)comm;
  (void)data;
  (void)mhandle;
  SEE_PH;
  fixture_seen.size = (size_t)size;
  fixture_seen.tag = tag;
  fixture_seen.request_in = *request;
  *request = &a_request;
  return fixture_seen.answer;
}

static int fix_irecv(void *comm, int n, void **data, msg_size *sizes, int *tags, void **mhandles,
                     PHS_ARG void **request) {
  (void)comm;
  (void)data;
  (void)mhandles;
  SEE_PH;
  fixture_seen.n = n;
  fixture_seen.tag = tags[n - 1];
  for (int i = 0; i < n; i++) fixture_seen.sizes[i] = (size_t)sizes[i];
  fixture_seen.request_in = *request;
  *request = &a_request;
  return fixture_seen.answer;
}

#ifndef FIXTURE_NO_OPTIONAL
static int fix_iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request) {
  (void)comm;
  (void)data;
  (void)mhandles;
  fixture_seen.n = n;
  fixture_seen.size = (size_t)sizes[0];
  *request = &a_request;
  return fixture_seen.answer;
}

static int fix_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle) {
  (void)comm;
  (void)data;
  (void)type;
  fixture_seen.size = size;
  fixture_seen.n = fd;
  fixture_seen.comm_id = offset;
  *mhandle = &a_mr;
  return fixture_seen.answer;
}

#if FIXTURE_VERSION >= 7
static int fix_consumed(void *comm, int n, void *request) {
  (void)comm;
  (void)n;
  (void)request;
  fixture_seen.consumed++;
  return fixture_seen.answer;
}
#endif

#if FIXTURE_VERSION >= 9
static int fix_vdevice(int *dev, VPROPS *props) {
  fixture_seen.n = props->ndevs;
  fixture_seen.dev = props->devs[props->ndevs - 1];
  *dev = FIXTURE_DEVICES;
  return fixture_seen.answer;
}
#endif

#if FIXTURE_VERSION >= 11
static int fix_finalize(void *ctx) {
  fixture_seen.ctx = ctx;
  fixture_seen.finalizes++;
  return fixture_seen.answer;
}

static int fix_attr(void *ctx, struct rail_net_attr *attr) {
  fixture_seen.ctx = ctx;
  fixture_seen.attrs += (int)attr->op;
  return fixture_seen.answer;
}
#endif
#endif

static int fix_test(void *request, int *done, int *sizes) {
  if (request != &a_request) return RAIL_INTERNAL_ERROR;
  *done = 1;
  if (sizes) sizes[0] = 99;
  return fixture_seen.answer;
}

#ifndef FIXTURE_CLOSE
static int fix_close(void *comm) { return comm == &a_comm ? fixture_seen.answer : RAIL_INTERNAL_ERROR; }
#define FIXTURE_CLOSE fix_close
#endif

const VTABLE GLUE(ncclNetPlugin_v, FIXTURE_VERSION) = {
  .name = FIXTURE_NAME,
  .init = fix_init,
  .devices = fix_devices,
  .get_properties = fix_properties,
  .listen = fix_listen,
  .connect = fix_connect,
  .accept = fix_accept,
  .reg_mr = fix_reg_mr,
  .dereg_mr = fix_dereg_mr,
  .isend = fix_isend,
  .irecv = fix_irecv,
  .test = fix_test,
  .close_send = FIXTURE_CLOSE,
  .close_recv = FIXTURE_CLOSE,
  .close_listen = FIXTURE_CLOSE,
#ifndef FIXTURE_NO_OPTIONAL
  .reg_mr_dmabuf = fix_reg_dmabuf,
  .iflush = fix_iflush,
#if FIXTURE_VERSION >= 7
  .irecv_consumed = fix_consumed,
#endif
#if FIXTURE_VERSION >= 9
  .make_vdevice = fix_vdevice,
#endif
#if FIXTURE_VERSION >= 11
  .finalize = fix_finalize,
  .set_net_attr = fix_attr,
#endif
#endif
};

#endif
#endif
