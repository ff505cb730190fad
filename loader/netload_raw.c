/* SPDX-License-Identifier: Apache-2.0
 * A slot's history, newest first, call by call. */
#include "loader/netload_raw.h"

#include "common/base/log.h"
#include "loader/netload_impl.h"

#define MAX_GROUPED_RECVS 32 /* widths converted on the stack for v6-v8 */

RAIL_COLD static int cannot_say(const struct rail_net *net, const char *call, const char *what,
                                unsigned long long value) {
  RAIL_WARN("%s (%s): %s with %s %llu cannot be said through v%d of the plugin interface", net->slots.name, net->path,
            call, what, value, net->version);
  return RAIL_INTERNAL_ERROR;
}

/* ---- contexts, devices ------------------------------------------------- */

int rail_net_look_again(struct rail_net *net, int result) {
  if (net->complete || result != RAIL_OK) return result;
  net->missing = rail_net_slots_fill(&net->slots, net->version, net->vtable);
  net->complete = !net->missing;
  return net->missing ? RAIL_INTERNAL_ERROR : RAIL_OK;
}

int rail_net_raw_init(struct rail_net *net, const struct rail_net_init *args, void **ctx) {
  const struct rail_net_slots *s = &net->slots;
  struct rail_net_config config = {.traffic_class = args->traffic_class};
  int result;
  if (s->init_v11) result = s->init_v11(ctx, args->comm_id, &config, args->log, args->profiler);
  else if (s->init_v10) result = s->init_v10(args->log, args->profiler);
  else result = s->init_v6(args->log);
  return rail_net_look_again(net, result);
}

int rail_net_raw_finalize(struct rail_net *net, void *ctx) {
  return net->slots.finalize ? net->slots.finalize(ctx) : RAIL_OK;
}

int rail_net_raw_devices(struct rail_net *net, int *ndev) { return net->slots.devices(ndev); }

/* ---- connections ------------------------------------------------------ */

int rail_net_raw_listen(struct rail_net *net, void *ctx, int dev, void *handle, void **listen_comm) {
  const struct rail_net_slots *s = &net->slots;
  return s->listen_v11 ? s->listen_v11(ctx, dev, handle, listen_comm) : s->listen_v6(dev, handle, listen_comm);
}

int rail_net_raw_connect(struct rail_net *net, void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle) {
  const struct rail_net_slots *s = &net->slots;
  if (s->connect_v11) return s->connect_v11(ctx, dev, handle, send_comm, dev_handle);
  if (s->connect_v10) {
    const struct rail_net_old_ctx *old = ctx;
    struct rail_net_config config = {.traffic_class = traffic_class};
    if (traffic_class == -1 && old) config.traffic_class = old->traffic_class;
    return s->connect_v10(dev, &config, handle, send_comm, dev_handle);
  }
  if (s->connect_v7) return s->connect_v7(dev, handle, send_comm, dev_handle);
  return s->connect_v6(dev, handle, send_comm);
}

int rail_net_raw_accept(struct rail_net *net, void *listen_comm, void **recv_comm,
                        struct rail_net_device_handle **dev_handle) {
  const struct rail_net_slots *s = &net->slots;
  return s->accept_v7 ? s->accept_v7(listen_comm, recv_comm, dev_handle) : s->accept_v6(listen_comm, recv_comm);
}

int rail_net_raw_close_send(struct rail_net *net, void *send_comm) { return net->slots.close_send(send_comm); }
int rail_net_raw_close_recv(struct rail_net *net, void *recv_comm) { return net->slots.close_recv(recv_comm); }
int rail_net_raw_close_listen(struct rail_net *net, void *comm) { return net->slots.close_listen(comm); }

/* ---- memory ----------------------------------------------------------- */

int rail_net_raw_reg_mr(struct rail_net *net, void *comm, void *data, size_t size, int type, void **mhandle) {
  const struct rail_net_slots *s = &net->slots;
  if (s->reg_mr_v8) return s->reg_mr_v8(comm, data, size, type, mhandle);
  if (rail_unlikely(size > INT_MAX)) return cannot_say(net, "regMr", "size", size);
  return s->reg_mr_v6(comm, data, (int)size, type, mhandle);
}

int rail_net_raw_reg_mr_dmabuf(struct rail_net *net, void *comm, void *data, size_t size, int type, uint64_t offset,
                               int fd, void **mhandle) {
  if (!net->slots.reg_mr_dmabuf) return RAIL_BAD_USAGE;
  return net->slots.reg_mr_dmabuf(comm, data, size, type, offset, fd, mhandle);
}

int rail_net_raw_dereg_mr(struct rail_net *net, void *comm, void *mhandle) {
  return net->slots.dereg_mr(comm, mhandle);
}

int rail_net_raw_get_device_mr(struct rail_net *net, void *comm, void *mhandle, void **dptr_mhandle) {
  return net->slots.get_device_mr ? net->slots.get_device_mr(comm, mhandle, dptr_mhandle) : RAIL_INTERNAL_ERROR;
}

/* ---- data ------------------------------------------------------------- */

int rail_net_raw_isend(struct rail_net *net, void *send_comm, void *data, size_t size, int tag, void *mhandle,
                       void *phandle, void **request) {
  const struct rail_net_slots *s = &net->slots;
  if (rail_likely(s->isend_v10 != NULL)) return s->isend_v10(send_comm, data, size, tag, mhandle, phandle, request);
  if (s->isend_v9) return s->isend_v9(send_comm, data, size, tag, mhandle, request);
  if (rail_unlikely(size > RAIL_NET_MAX_BYTES_V8)) return cannot_say(net, "isend", "size", size);
  return s->isend_v6(send_comm, data, (int)size, tag, mhandle, request);
}

static int irecv_v6(struct rail_net *net, void *recv_comm, int n, void **data, const size_t *sizes, int *tags,
                    void **mhandles, void **request) {
  int narrow[MAX_GROUPED_RECVS];
  if (*request == RAIL_NET_OPTIONAL_RECV) *request = NULL;
  if (rail_unlikely(n < 0 || n > MAX_GROUPED_RECVS))
    return cannot_say(net, "irecv", "a buffer count of", (unsigned long long)n);
  for (int i = 0; i < n; i++) {
    if (rail_unlikely(sizes[i] > RAIL_NET_MAX_BYTES_V8)) return cannot_say(net, "irecv", "size", sizes[i]);
    narrow[i] = (int)sizes[i];
  }
  return net->slots.irecv_v6(recv_comm, n, data, narrow, tags, mhandles, request);
}

/* The casts: the slots take plain pointers for what they only read. */
int rail_net_raw_irecv(struct rail_net *net, void *recv_comm, int n, void **data, const size_t *sizes, const int *tags,
                       void **mhandles, void **phandles, void **request) {
  const struct rail_net_slots *s = &net->slots;
  size_t *sizes_ = (size_t *)sizes;
  int *tags_ = (int *)tags;
  if (rail_likely(s->irecv_v10 != NULL))
    return s->irecv_v10(recv_comm, n, data, sizes_, tags_, mhandles, phandles, request);
  if (s->irecv_v9) return s->irecv_v9(recv_comm, n, data, sizes_, tags_, mhandles, request);
  return irecv_v6(net, recv_comm, n, data, sizes, tags_, mhandles, request);
}

int rail_net_raw_iflush(struct rail_net *net, void *recv_comm, int n, void **data, const int *sizes, void **mhandles,
                        void **request) {
  if (rail_unlikely(!net->slots.iflush)) {
    RAIL_WARN("%s (%s) has no iflush, but GPU memory was received through it", net->slots.name, net->path);
    return RAIL_INTERNAL_ERROR;
  }
  return net->slots.iflush(recv_comm, n, data, (int *)sizes, mhandles, request);
}

int rail_net_raw_test(struct rail_net *net, void *request, int *done, int *sizes) {
  return net->slots.test(request, done, sizes);
}
