/* SPDX-License-Identifier: Apache-2.0
 * A plugin that moves no byte, and can break every rule that railtrace watches. */
#include "test/preload/tracefix.h"

#include <string.h>
#include <unistd.h>

#include "rail/net.h"

int tracefix_fault;
struct tracefix_seen tracefix_seen;

#define REQUESTS 4096
static struct request { int n; size_t sizes[FIX_MAX_RECVS]; } requests[REQUESTS];
static int next;
static char ctx_, listen_, send_, recv_, mr_;

static int is(int fault) { return tracefix_fault == fault; }

static int init(void **ctx, uint64_t id, struct rail_net_config *config, rail_logger_fn log, rail_profiler_fn prof) {
  (void)id, (void)log, (void)prof;
  tracefix_seen.traffic_class = config ? config->traffic_class : -2;
  *ctx = &ctx_;
  return RAIL_OK;
}
static int devices(int *ndev) {
  *ndev = 2;
  return RAIL_OK;
}
static int properties(int dev, struct rail_net_props_v12 *p) {
  static char names[2][8] = {"fix0", "fix1"};
  *p = (struct rail_net_props_v12){.name = names[dev & 1], .guid = (uint64_t)dev, .ptr_support = RAIL_PTR_HOST,
                                   .speed = 1000, .max_comms = 9, .max_recvs = FIX_MAX_RECVS,
                                   .max_p2p_bytes = RAIL_NET_MAX_BYTES, .vprops = {.ndevs = 1, .devs = {dev}}};
  return RAIL_OK;
}
static struct rail_net_device_handle device_handle = {.version = 7};
static int give(void **comm, void *real) {
  tracefix_seen.calls++;
  if (is(FIX_SLOW_CALL)) usleep(5000);
  if (is(FIX_COMM_UNWRITTEN)) return RAIL_OK;
  *comm = is(FIX_IN_PROGRESS) || is(FIX_LISTEN_NULL) ? NULL : real;
  return is(FIX_COMM_WITH_ERROR) ? RAIL_REMOTE_ERROR : is(FIX_RESULT) ? 77 : RAIL_OK;
}
static int do_listen(void *ctx, int dev, void *handle, void **comm) {
  (void)ctx, (void)dev;
  memset(handle, 0x5a, RAIL_NET_HANDLE_SIZE);
  return give(comm, &listen_);
}
static int do_connect(void *ctx, int dev, void *handle, void **comm, struct rail_net_device_handle **dh) {
  (void)ctx, (void)dev;
  *dh = &device_handle;
  ((char *)handle)[100]++; /* state between tries */
  return give(comm, &send_);
}
static int do_accept(void *listen_comm, void **comm, struct rail_net_device_handle **dh) {
  (void)listen_comm;
  *dh = &device_handle;
  return give(comm, &recv_);
}
static int reg(void *comm, void *data, size_t size, int type, void **mhandle) {
  (void)data, (void)size, (void)type;
  tracefix_seen.comm = comm;
  if (!is(FIX_MHANDLE_UNWRITTEN)) *mhandle = is(FIX_MHANDLE_NULL) ? NULL : &mr_;
  return RAIL_OK;
}
static int reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle) {
  (void)offset, (void)fd;
  return reg(comm, data, size, type, mhandle);
}
static int dereg(void *comm, void *mhandle) {
  tracefix_seen.comm = comm;
  tracefix_seen.mhandle = mhandle;
  return RAIL_OK;
}
static int start(int n, const size_t *sizes, void **out) {
  struct request *r = &requests[next];
  if (!is(FIX_REQUEST_TWICE)) next = (next + 1) % REQUESTS;
  r->n = n;
  for (int i = 0; i < n; i++) r->sizes[i] = sizes[i];
  if (is(FIX_SLEEPS)) usleep(100000);
  if (is(FIX_RESULT)) return -5;
  if (!is(FIX_REQUEST_UNWRITTEN)) *out = is(FIX_NOT_NOW) ? NULL : r;
  return RAIL_OK;
}
static int isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request) {
  (void)data;
  tracefix_seen.comm = comm;
  tracefix_seen.mhandle = mhandle;
  tracefix_seen.phandle = phandle;
  tracefix_seen.tag = tag;
  return start(1, &size, request);
}
static int irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                 void **request) {
  (void)data, (void)tags;
  tracefix_seen.comm = comm;
  tracefix_seen.n = n;
  tracefix_seen.mhandle = mhandles[n - 1];
  tracefix_seen.phandle = phandles ? phandles[n - 1] : NULL;
  tracefix_seen.hint = *request;
  return start(n, sizes, request);
}
static int iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request) {
  (void)comm, (void)n, (void)data, (void)sizes, (void)mhandles;
  *request = NULL;
  return RAIL_OK;
}
static int test(void *request, int *done, int *sizes) {
  const struct request *r = request;
  tracefix_seen.request = request;
  tracefix_seen.tests++;
  if (!is(FIX_DONE_UNWRITTEN)) *done = is(FIX_DONE_VALUE) ? 2 : !is(FIX_NOT_DONE);
  if (is(FIX_NOT_DONE) || !sizes) return RAIL_OK;
  for (int i = 0; i < r->n && !is(FIX_SIZE_UNWRITTEN); i++) sizes[i] = (int)r->sizes[i] + is(FIX_SIZE_BEYOND);
  if (is(FIX_SIZE_NEGATIVE)) sizes[0] = -1;
  if (is(FIX_SIZES_TOO_MANY)) sizes[r->n] = 0;
  return RAIL_OK;
}
static int do_close(void *comm) {
  tracefix_seen.comm = comm;
  return is(FIX_CLOSE_ERROR) ? RAIL_SYSTEM_ERROR : RAIL_OK;
}
static int device_mr(void *comm, void *mhandle, void **out) {
  tracefix_seen.comm = comm;
  tracefix_seen.mhandle = mhandle;
  *out = &tracefix_seen;
  return RAIL_OK;
}
static int consumed(void *comm, int n, void *request) {
  (void)comm, (void)n;
  tracefix_seen.consumed++;
  tracefix_seen.request = request;
  return RAIL_OK;
}
static int vdevice(int *dev, struct rail_net_vprops_v12 *props) {
  *dev = props->ndevs;
  return RAIL_OK;
}
static int finalize(void *ctx) {
  tracefix_seen.finalizes += ctx == &ctx_;
  return RAIL_OK;
}
static int attr(void *ctx, struct rail_net_attr *a) {
  (void)a;
  tracefix_seen.attrs += ctx == &ctx_;
  return RAIL_OK;
}

const struct rail_net_v12 ncclNetPlugin_v12 = {
  .name = "Fix", .init = init, .devices = devices, .get_properties = properties, .listen = do_listen,
  .connect = do_connect, .accept = do_accept, .reg_mr = reg, .reg_mr_dmabuf = reg_dmabuf, .dereg_mr = dereg,
  .isend = isend, .irecv = irecv, .iflush = iflush, .test = test, .close_send = do_close, .close_recv = do_close,
  .close_listen = do_close, .get_device_mr = device_mr, .irecv_consumed = consumed, .make_vdevice = vdevice,
  .finalize = finalize, .set_net_attr = attr,
};
