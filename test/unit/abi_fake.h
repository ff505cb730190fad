/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations table that test_abi puts the vtables on. It writes down its
 * arguments in `fake` and answers what the test sets there. Definitions, for
 * that one program.
 */
#ifndef ABI_FAKE_H
#define ABI_FAKE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/net/abi.h"

static struct {
  int inits, finalizes, closes, deregs, consumed;
  struct rail_net_init init_args;
  void *ctx;
  int dev, n, tag, traffic_class, type, fd;
  size_t size, sizes[8];
  uint64_t offset;
  void *request_in, *phandle;
  void **phandles;
  struct rail_net_device_handle **dev_handle;
  struct rail_net_vprops_v12 vprops;
  int vdev_ndevs;
  rail_result_t answer;   /* of the next calls */
  bool write_on_failure;  /* leave rubbish in outputs when failing */
} fake;

static char a_ctx, a_listen, a_send, a_recv, a_mr, a_request;
static char device_name[] = "fake0", device_path[] = "/sys/devices/pci0000:00/0000:00:03.0";

static rail_result_t give(void **out, void *value) {
  if (fake.answer == RAIL_OK || fake.write_on_failure) *out = value;
  return fake.answer;
}

static rail_result_t fake_init(void **ctx, const struct rail_net_init *args) {
  fake.inits++;
  fake.init_args = *args;
  return give(ctx, &a_ctx);
}
static int unload_report = -1; /* a pipe: finalize at exit has nobody else to tell */
static rail_result_t fake_finalize(void *ctx) {
  fake.finalizes++;
  fake.ctx = ctx;
  if (unload_report >= 0 && write(unload_report, ctx == &a_ctx ? "f" : "?", 1) != 1) abort();
  return fake.answer;
}
static rail_result_t fake_devices(int *ndev) {
  if (fake.answer == RAIL_OK) *ndev = 3;
  return fake.answer;
}
static rail_result_t fake_properties(int dev, struct rail_net_props_v12 *p) {
  fake.dev = dev;
  if (fake.answer != RAIL_OK) return fake.answer;
  *p = (struct rail_net_props_v12){
    .name = device_name, .pci_path = device_path, .guid = 0x1122334455667788ull, .ptr_support = 5,
    .reg_is_global = 1, .force_flush = 1, .speed = 100000, .port = 2, .latency = 1.5f, .max_comms = 77,
    .max_recvs = 8, .net_device_type = 0, .net_device_version = 0, .vprops = fake.vprops,
    .max_p2p_bytes = RAIL_NET_MAX_BYTES, .max_coll_bytes = 123456789012ull, .max_multi_request_size = 4,
    .rail_id = 6, .plane_id = 7,
  };
  return RAIL_OK;
}
static rail_result_t fake_make_vdevice(int *dev, const struct rail_net_vprops_v12 *props) {
  fake.vprops = *props;
  *dev = 9;
  return fake.answer;
}
static rail_result_t fake_listen(void *ctx, int dev, void *handle, void **comm) {
  fake.ctx = ctx;
  fake.dev = dev;
  memset(handle, 0x5a, RAIL_NET_HANDLE_SIZE);
  return give(comm, &a_listen);
}
static rail_result_t fake_connect(void *ctx, int dev, void *handle, int traffic_class, void **comm,
                                  struct rail_net_device_handle **dh) {
  fake.dev_handle = dh;
  fake.ctx = ctx;
  fake.dev = dev;
  fake.traffic_class = traffic_class;
  (void)handle;
  return give(comm, &a_send);
}
static rail_result_t fake_accept(void *listen_comm, void **comm, struct rail_net_device_handle **dh) {
  fake.dev_handle = dh;
  if (listen_comm != &a_listen) return RAIL_INTERNAL_ERROR;
  return give(comm, &a_recv);
}
static rail_result_t fake_reg_mr(void *comm, void *data, size_t size, int type, void **mhandle) {
  (void)comm;
  (void)data;
  fake.size = size;
  fake.type = type;
  return give(mhandle, &a_mr);
}
static rail_result_t fake_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
                                     void **mhandle) {
  fake.offset = offset;
  fake.fd = fd;
  return fake_reg_mr(comm, data, size, type, mhandle);
}
static rail_result_t fake_dereg(void *comm, void *mhandle) {
  (void)comm;
  if (mhandle) fake.deregs++;
  return fake.answer;
}
static rail_result_t fake_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                                void **request) {
  (void)comm;
  (void)data;
  (void)mhandle;
  fake.size = size;
  fake.tag = tag;
  fake.phandle = phandle;
  fake.request_in = *request;
  return give(request, &a_request);
}
static rail_result_t fake_irecv(void *comm, int n, void **data, const size_t *sizes, const int *tags,
                                void **mhandles, void **phandles, void **request) {
  (void)comm;
  (void)data;
  (void)mhandles;
  fake.n = n;
  fake.tag = tags[n - 1];
  for (int i = 0; i < n && i < 8; i++) fake.sizes[i] = sizes[i];
  fake.phandles = phandles;
  fake.request_in = *request;
  return give(request, &a_request);
}
static rail_result_t fake_iflush(void *comm, int n, void **data, const int *sizes, void **mhandles, void **request) {
  (void)comm;
  (void)data;
  (void)mhandles;
  fake.n = n;
  fake.size = (size_t)sizes[0];
  fake.request_in = *request;
  return fake.answer; /* writes nothing: no request needed */
}
static rail_result_t fake_test(void *request, int *done, int *sizes) {
  if (request != &a_request) return RAIL_INTERNAL_ERROR;
  (void)done; /* not written: still going */
  if (sizes) sizes[0] = 4711;
  return fake.answer;
}
static rail_result_t fake_consumed(void *comm, int n, void *request) {
  (void)comm;
  (void)n;
  (void)request;
  fake.consumed++;
  return fake.answer;
}
static rail_result_t fake_close(void *comm) {
  if (comm) fake.closes++;
  return fake.answer;
}
static rail_result_t fake_set_attr(void *ctx, const struct rail_net_attr *attr) {
  fake.ctx = ctx;
  fake.n = (int)attr->op;
  return fake.answer;
}

char rail_plugin_name[] = "Fake";
const struct rail_net_ops rail_plugin_ops = {
  .name = rail_plugin_name, .init = fake_init, .finalize = fake_finalize, .devices = fake_devices,
  .get_properties = fake_properties, .make_vdevice = fake_make_vdevice, .listen = fake_listen,
  .connect = fake_connect, .accept = fake_accept, .reg_mr = fake_reg_mr, .reg_mr_dmabuf = fake_reg_dmabuf,
  .dereg_mr = fake_dereg, .get_device_mr = rail_net_no_get_device_mr,
  .isend = fake_isend, .irecv = fake_irecv, .iflush = fake_iflush, .test = fake_test,
  .irecv_consumed = fake_consumed, .close_send = fake_close, .close_recv = fake_close, .close_listen = fake_close,
  .set_net_attr = fake_set_attr,
};

static int warned;
__attribute__((format(printf, 5, 6))) static void quiet(enum rail_log_level level, unsigned long flags,
                                                        const char *file, int line, const char *fmt, ...) {
  (void)flags;
  (void)file;
  (void)line;
  (void)fmt;
  warned += level == RAIL_LOG_WARN;
}

static void fresh(void) {
  memset(&fake, 0, sizeof fake);
  fake.vprops = (struct rail_net_vprops_v12){.ndevs = 2, .devs = {4, 5}};
  warned = 0;
  rail_log_set_sink(quiet);
}

#endif
