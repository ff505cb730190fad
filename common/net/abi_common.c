/* SPDX-License-Identifier: Apache-2.0
 * What the vtables of several versions share; see abi.h. */
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/net/abi.h"

#define OPS rail_plugin_ops /* the plugin's table, in its *_main.c */

RAIL_COLD int rail_abi_escaped(const char *call) {
  RAIL_WARN("%s: %s returned \"in progress\", which is no result for NCCL: a bug of this plugin", OPS.name, call);
  return RAIL_INTERNAL_ERROR;
}

RAIL_COLD static int bad_argument(const char *call, const char *what, long long value) {
  RAIL_WARN("%s: %s called with %s %lld: a bug of the caller", OPS.name, call, what, value);
  return RAIL_BAD_ARGUMENT;
}

void railPluginParams(int markdown) { rail_param_print(stdout, OPS.params, markdown); }

/* ---- contexts --------------------------------------------------------- */

static struct {
  pthread_mutex_t lock;
  _Atomic(void *) ctx;
  pid_t pid; /* that made ctx */
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

void *rail_abi_process_ctx(void) { return process.ctx; }

int rail_abi_init_process(int version, rail_logger_fn log, rail_profiler_fn profiler) {
  struct rail_net_init args = {
    .version = version, .comm_id = 0, .traffic_class = -1, .log = log, .profiler = profiler};
  int result = RAIL_OK;
  pthread_mutex_lock(&process.lock);
  if (!process.ctx) {
    void *ctx = NULL;
    result = rail_abi_result(OPS.init(&ctx, &args), "init");
    process.ctx = result == RAIL_OK ? ctx : NULL;
    process.pid = getpid();
  } else {
    rail_log_set_sink(log); /* a second NCCL in this process, or a reloaded one: the first logger may be gone */
  }
  pthread_mutex_unlock(&process.lock);
  return result;
}

/* A forked child inherits the context but not what stands behind it (threads,
 * the right to shut the connections down): it leaves it alone. NCCL may have
 * been unloaded before us, its logger with it. */
__attribute__((destructor)) static void finalize_at_unload(void) {
  void *ctx = process.ctx;
  if (!ctx || process.pid != getpid()) return;
  process.ctx = NULL;
  rail_log_set_sink(NULL);
  (void)OPS.finalize(ctx);
}

int rail_abi_init_ctx(int version, void **ctx, uint64_t comm_id, struct rail_net_config *config, rail_logger_fn log,
                      rail_profiler_fn prof) {
  struct rail_net_init args = {
    .version = version,
    .comm_id = comm_id,
    .traffic_class = config ? config->traffic_class : -1,
    .log = log,
    .profiler = prof,
  };
  *ctx = NULL;
  return rail_abi_result(OPS.init(ctx, &args), "init");
}

int rail_abi_finalize(void *ctx) { return ctx ? rail_abi_result(OPS.finalize(ctx), "finalize") : RAIL_OK; }

int rail_abi_set_net_attr(void *ctx, struct rail_net_attr *attr) {
  return ctx && attr ? rail_abi_result(OPS.set_net_attr(ctx, attr), "setNetAttr") : RAIL_OK;
}

/* ---- devices ---------------------------------------------------------- */

int rail_abi_devices(int *ndev) {
  *ndev = 0;
  return rail_abi_result(OPS.devices(ndev), "devices");
}

rail_result_t rail_abi_properties(int dev, struct rail_net_props_v12 *props) {
  memset(props, 0, sizeof *props);
  return (rail_result_t)rail_abi_result(OPS.get_properties(dev, props), "getProperties");
}

/* A device fused of more than 4 was made through v12. v9-v11 have room for four
 * and use that list for nothing but the topology. */
void rail_abi_vprops_to_v9(const struct rail_net_vprops_v12 *from, struct rail_net_vprops_v9 *to) {
  memset(to, 0, sizeof *to);
  to->ndevs = RAIL_MIN(from->ndevs, (int)RAIL_COUNT_OF(to->devs));
  for (int i = 0; i < to->ndevs; i++) to->devs[i] = from->devs[i];
}

int rail_abi_make_vdevice_v11(int *dev, struct rail_net_vprops_v9 *props) {
  struct rail_net_vprops_v12 wide = {.ndevs = props ? props->ndevs : -1};
  if (wide.ndevs < 0 || wide.ndevs > (int)RAIL_COUNT_OF(props->devs))
    return bad_argument("makeVDevice", "a device count of", wide.ndevs);
  for (int i = 0; i < wide.ndevs; i++) wide.devs[i] = props->devs[i];
  return rail_abi_result(OPS.make_vdevice(dev, &wide), "makeVDevice");
}

int rail_abi_make_vdevice_v10(int *dev, struct rail_net_vprops_v9 *props) {
  Dl_info self;
  int result = rail_abi_make_vdevice_v11(dev, props);
  if (result == RAIL_OK && dladdr(&process, &self)) {
    void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
    if (library) dlclose(library); /* the flag stays */
  }
  return result;
}

/* ---- connections ------------------------------------------------------ */

int rail_abi_listen_v11(void *ctx, int dev, void *handle, void **listen_comm) {
  *listen_comm = NULL;
  return rail_abi_result(OPS.listen(ctx, dev, handle, listen_comm), "listen");
}

int rail_abi_listen_v6(int dev, void *handle, void **listen_comm) {
  return rail_abi_listen_v11(rail_abi_process_ctx(), dev, handle, listen_comm);
}

/* After an error NCCL closes whatever it finds in *send_comm, and closes it
 * again at teardown: it must find NULL. */
int rail_abi_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                     struct rail_net_device_handle **dh) {
  *send_comm = NULL;
  int result = rail_abi_result(OPS.connect(ctx, dev, handle, traffic_class, send_comm, dh), "connect");
  if (result != RAIL_OK) *send_comm = NULL;
  return result;
}

int rail_abi_connect_v7(int dev, void *handle, void **send_comm, struct rail_net_device_handle **dh) {
  return rail_abi_connect(rail_abi_process_ctx(), dev, handle, -1, send_comm, dh);
}

int rail_abi_connect_v11(void *ctx, int dev, void *handle, void **send_comm, struct rail_net_device_handle **dh) {
  return rail_abi_connect(ctx, dev, handle, -1, send_comm, dh); /* init had the traffic class */
}

int rail_abi_accept_v7(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dh) {
  *recv_comm = NULL;
  int result = rail_abi_result(OPS.accept(listen_comm, recv_comm, dh), "accept");
  if (result != RAIL_OK) *recv_comm = NULL;
  return result;
}

int rail_abi_accept_v6(void *listen_comm, void **recv_comm) { return rail_abi_accept_v7(listen_comm, recv_comm, NULL); }

int rail_abi_close_send(void *send_comm) {
  return send_comm ? rail_abi_result(OPS.close_send(send_comm), "closeSend") : RAIL_OK;
}

int rail_abi_close_recv(void *recv_comm) {
  return recv_comm ? rail_abi_result(OPS.close_recv(recv_comm), "closeRecv") : RAIL_OK;
}

int rail_abi_close_listen(void *listen_comm) {
  return listen_comm ? rail_abi_result(OPS.close_listen(listen_comm), "closeListen") : RAIL_OK;
}

/* ---- memory ----------------------------------------------------------- */

int rail_abi_reg_mr_v8(void *comm, void *data, size_t size, int type, void **mhandle) {
  *mhandle = NULL;
  return rail_abi_result(OPS.reg_mr(comm, data, size, type, mhandle), "regMr");
}

int rail_abi_reg_mr_v6(void *comm, void *data, int size, int type, void **mhandle) {
  *mhandle = NULL;
  if (rail_unlikely(size < 0)) return bad_argument("regMr", "size", size);
  return rail_abi_reg_mr_v8(comm, data, (size_t)size, type, mhandle);
}

int rail_abi_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle) {
  *mhandle = NULL;
  return rail_abi_result(OPS.reg_mr_dmabuf(comm, data, size, type, offset, fd, mhandle), "regMrDmaBuf");
}

int rail_abi_dereg_mr(void *comm, void *mhandle) {
  return mhandle ? rail_abi_result(OPS.dereg_mr(comm, mhandle), "deregMr") : RAIL_OK;
}

int rail_abi_get_device_mr(void *comm, void *mhandle, void **dptr_mhandle) {
  int result = rail_abi_result(OPS.get_device_mr(comm, mhandle, dptr_mhandle), "getDeviceMr");
  if (result == RAIL_INTERNAL_ERROR) RAIL_WARN("%s: getDeviceMr failed, or it has no device offload", OPS.name);
  return result;
}

/* ---- data ------------------------------------------------------------- */

int rail_abi_isend_v10(void *send_comm, void *data, size_t size, int tag, void *mhandle, void *phandle,
                       void **request) {
  *request = NULL;
  return rail_abi_result(OPS.isend(send_comm, data, size, tag, mhandle, phandle, request), "isend");
}

int rail_abi_isend_v6(void *send_comm, void *data, int size, int tag, void *mhandle, void **request) {
  *request = NULL;
  if (rail_unlikely(size < 0)) return bad_argument("isend", "size", size);
  return rail_abi_isend_v10(send_comm, data, (size_t)size, tag, mhandle, NULL, request);
}

/* The entry value of *request may be the optional-completion hint, so it is
 * not cleared before. */
int rail_abi_irecv_v10(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mhandles,
                       void **phandles, void **request) {
  int result = OPS.irecv(recv_comm, n, data, sizes, tags, mhandles, phandles, request);
  if (rail_likely(result == RAIL_OK)) return RAIL_OK;
  *request = NULL;
  return rail_abi_result(result, "irecv");
}

int rail_abi_irecv_v6(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mhandles, void **request) {
  size_t wide[RAIL_ABI_MAX_RECVS];
  if (rail_unlikely(n < 1 || n > RAIL_ABI_MAX_RECVS)) {
    *request = NULL;
    return bad_argument("irecv", "a buffer count of", n);
  }
  for (int i = 0; i < n; i++) {
    if (rail_unlikely(sizes[i] < 0)) {
      *request = NULL;
      return bad_argument("irecv", "size", sizes[i]);
    }
    wide[i] = (size_t)sizes[i];
  }
  return rail_abi_irecv_v10(recv_comm, n, data, wide, tags, mhandles, NULL, request);
}

int rail_abi_iflush(void *recv_comm, int n, void **data, int *sizes, void **mhandles, void **request) {
  *request = NULL;
  return rail_abi_result(OPS.iflush(recv_comm, n, data, sizes, mhandles, request), "iflush");
}

int rail_abi_test(void *request, int *done, int *sizes) {
  *done = 0;
  return rail_abi_result(OPS.test(request, done, sizes), "test");
}

int rail_abi_irecv_consumed(void *recv_comm, int n, void *request) {
  return rail_abi_result(OPS.irecv_consumed(recv_comm, n, request), "irecvConsumed");
}
