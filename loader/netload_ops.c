/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations. rail_net_raw_* call a slot of whichever version, newest
 * first, call by call. rail_net_* present one interface over all versions:
 * what a version cannot express is filled in or refused, by the rules of
 * NCCL's own compatibility layer, so that a plugin sees from us exactly what
 * it would see from NCCL.
 */
#include "loader/netload.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/net/net_props.h"
#include "loader/netload_impl.h"

#define MAX_GROUPED_RECVS 32 /* widths converted on the stack for v6-v8 */

RAIL_COLD static int cannot_express(const struct rail_net *net, const char *call, const char *what,
                                unsigned long long value) {
  RAIL_WARN("%s (%s): %s with %s %llu cannot be expressed through v%d of the plugin interface", net->slots.name,
            net->path, call, what, value, net->version);
  return RAIL_INTERNAL_ERROR;
}

/* ---- contexts, devices ------------------------------------------------- */

static int check_again_after_init(struct rail_net *net, int result) {
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
  return check_again_after_init(net, result);
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
  if (rail_unlikely(size > INT_MAX)) return cannot_express(net, "regMr", "size", size);
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
  if (rail_unlikely(size > RAIL_NET_MAX_BYTES_V8)) return cannot_express(net, "isend", "size", size);
  return s->isend_v6(send_comm, data, (int)size, tag, mhandle, request);
}

static int irecv_v6(struct rail_net *net, void *recv_comm, int n, void **data, const size_t *sizes, int *tags,
                    void **mhandles, void **request) {
  int narrow[MAX_GROUPED_RECVS];
  if (*request == RAIL_NET_OPTIONAL_RECV) *request = NULL;
  if (rail_unlikely(n < 0 || n > MAX_GROUPED_RECVS))
    return cannot_express(net, "irecv", "a buffer count of", (unsigned long long)n);
  for (int i = 0; i < n; i++) {
    if (rail_unlikely(sizes[i] > RAIL_NET_MAX_BYTES_V8)) return cannot_express(net, "irecv", "size", sizes[i]);
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

/* ---- one interface over all versions ---- */

#define MAX_COLL_BYTES_V8 0x20000000 /* 512 MiB: what NCCL assumes of v6-v8 */

RAIL_COLD static rail_result_t bad_result(const struct rail_net *net, const char *call, int result) {
  RAIL_WARN("%s (%s): %s returned %d, which is no result of the plugin interface", net->slots.name, net->path, call,
            result);
  return RAIL_INTERNAL_ERROR;
}

/* A plugin may return any int: only the known codes are passed on. */
static inline rail_result_t result_of(const struct rail_net *net, int result, const char *call) {
  if (rail_unlikely(result < RAIL_OK || result >= RAIL_IN_PROGRESS)) return bad_result(net, call, result);
  return (rail_result_t)result;
}

/* The same for a call that makes something: whatever a failed one left in *out is not ours to close. */
static rail_result_t made(const struct rail_net *net, int result, const char *call, void **out) {
  if (rail_unlikely(result != RAIL_OK)) *out = NULL;
  return result_of(net, result, call);
}

/* ---- contexts --------------------------------------------------------- */

/* Below v11: calls init unless the plugin was initialised before in this process. */
static rail_result_t init_once(struct rail_net *net, const struct rail_net_init *args) {
  rail_result_t result = RAIL_OK;
  pthread_mutex_lock(&net->instance->init_lock);
  if (!net->instance->initialised) {
    result = result_of(net, rail_net_raw_init(net, args, NULL), "init");
    net->instance->initialised = result == RAIL_OK;
  }
  pthread_mutex_unlock(&net->instance->init_lock);
  return result;
}

rail_result_t rail_net_init(struct rail_net *net, const struct rail_net_init *args, void **ctx) {
  *ctx = NULL;
  if (net->slots.init_v11) {
    rail_result_t result = result_of(net, rail_net_raw_init(net, args, ctx), "init");
    /* init succeeded, and the table still lacks a function: the caller will not use the plugin. */
    if (net->missing && *ctx && net->slots.finalize) (void)net->slots.finalize(*ctx);
    if (result != RAIL_OK) *ctx = NULL;
    return result;
  }
  struct rail_net_old_ctx *old = malloc(sizeof *old);
  if (!old) return RAIL_SYSTEM_ERROR;
  old->traffic_class = args->traffic_class;
  /* Again, since another load of the plugin may have made the call. */
  rail_result_t result = (rail_result_t)check_again_after_init(net, init_once(net, args));
  if (result == RAIL_OK) *ctx = old;
  else free(old);
  return result;
}

rail_result_t rail_net_finalize(struct rail_net *net, void *ctx) {
  if (!net->slots.init_v11) {
    free(ctx);
    return RAIL_OK;
  }
  return result_of(net, rail_net_raw_finalize(net, ctx), "finalize");
}

rail_result_t rail_net_set_attr(struct rail_net *net, void *ctx, const struct rail_net_attr *attr) {
  if (!net->slots.set_net_attr) return RAIL_OK;
  struct rail_net_attr copy = *attr; /* the slot's argument is not const */
  return result_of(net, net->slots.set_net_attr(ctx, &copy), "setNetAttr");
}

/* ---- devices ---------------------------------------------------------- */

rail_result_t rail_net_devices(struct rail_net *net, int *ndev) {
  *ndev = 0;
  return result_of(net, rail_net_raw_devices(net, ndev), "devices");
}

/* The array length comes from the plugin: bound it. */
#define WIDEN_VPROPS(to, from)                                                                        \
  do {                                                                                                \
    int n_ = RAIL_MAX(0, RAIL_MIN((from)->ndevs, (int)RAIL_COUNT_OF((from)->devs)));                  \
    (to)->ndevs = n_;                                                                                 \
    for (int i_ = 0; i_ < n_; i_++) (to)->devs[i_] = (from)->devs[i_];                                \
  } while (0)

/* Runs the getProperties slot of version V and copies what it has. The
 * plugin's structure is zeroed first, though NCCL does not. */
#define FETCH(V, COPY)                                                                  \
  struct rail_net_props_##V from;                                                       \
  memset(&from, 0, sizeof from);                                                        \
  RAIL_TRY(result_of(net, s->get_properties_##V(dev, &from), "getProperties"));         \
  COPY(props, &from)

static rail_result_t properties_v6(struct rail_net *net, int dev, struct rail_net_props_v12 *props) {
  const struct rail_net_slots *s = &net->slots;
  if (s->get_properties_v8) {
    FETCH(v8, RAIL_NET_COPY_V8_PROPS);
  } else if (s->get_properties_v7) {
    FETCH(v7, RAIL_NET_COPY_V7_PROPS);
  } else {
    FETCH(v6, RAIL_NET_COPY_V6_PROPS);
  }
  return RAIL_OK;
}

static rail_result_t properties_v9(struct rail_net *net, int dev, struct rail_net_props_v12 *props) {
  const struct rail_net_slots *s = &net->slots;
  if (s->get_properties_v11) {
    FETCH(v11, RAIL_NET_COPY_V9_PROPS);
    WIDEN_VPROPS(&props->vprops, &from.vprops);
    props->max_multi_request_size = from.max_multi_request_size;
  } else {
    FETCH(v9, RAIL_NET_COPY_V9_PROPS);
    WIDEN_VPROPS(&props->vprops, &from.vprops);
  }
  return RAIL_OK;
}

rail_result_t rail_net_properties(struct rail_net *net, int dev, struct rail_net_props_v12 *props) {
  memset(props, 0, sizeof *props);
  if (net->slots.get_properties_v12)
    return result_of(net, net->slots.get_properties_v12(dev, props), "getProperties");
  props->net_device_type = RAIL_NET_DEVICE_HOST;
  props->net_device_version = RAIL_NET_DEVICE_INVALID_VERSION;
  props->vprops.ndevs = 1;
  props->vprops.devs[0] = dev;
  props->max_p2p_bytes = RAIL_NET_MAX_BYTES_V8;
  props->max_coll_bytes = MAX_COLL_BYTES_V8;
  props->max_multi_request_size = 1;
  props->rail_id = RAIL_NET_ID_UNDEF;
  props->plane_id = RAIL_NET_ID_UNDEF;
  return net->version >= 9 ? properties_v9(net, dev, props) : properties_v6(net, dev, props);
}

rail_result_t rail_net_make_vdevice(struct rail_net *net, int *dev, const struct rail_net_vprops_v12 *props) {
  const struct rail_net_slots *s = &net->slots;
  if (s->make_vdevice_v12) {
    struct rail_net_vprops_v12 copy = *props;
    return result_of(net, s->make_vdevice_v12(dev, &copy), "makeVDevice");
  }
  if (!s->make_vdevice_v9) return RAIL_BAD_USAGE;
  struct rail_net_vprops_v9 narrow = {.ndevs = props->ndevs};
  if (props->ndevs < 0 || props->ndevs > (int)RAIL_COUNT_OF(narrow.devs)) return RAIL_BAD_ARGUMENT;
  for (int i = 0; i < props->ndevs; i++) narrow.devs[i] = props->devs[i];
  return result_of(net, s->make_vdevice_v9(dev, &narrow), "makeVDevice");
}

/* ---- connections ------------------------------------------------------ */

rail_result_t rail_net_listen(struct rail_net *net, void *ctx, int dev, void *handle, void **listen_comm) {
  *listen_comm = NULL;
  return made(net, rail_net_raw_listen(net, ctx, dev, handle, listen_comm), "listen", listen_comm);
}

rail_result_t rail_net_connect(struct rail_net *net, void *ctx, int dev, void *handle, int traffic_class,
                               void **send_comm) {
  struct rail_net_device_handle *unused = NULL;
  *send_comm = NULL;
  int result = rail_net_raw_connect(net, ctx, dev, handle, traffic_class, send_comm, &unused);
  return made(net, result, "connect", send_comm);
}

rail_result_t rail_net_accept(struct rail_net *net, void *listen_comm, void **recv_comm) {
  struct rail_net_device_handle *unused = NULL;
  *recv_comm = NULL;
  return made(net, rail_net_raw_accept(net, listen_comm, recv_comm, &unused), "accept", recv_comm);
}

rail_result_t rail_net_close_send(struct rail_net *net, void *send_comm) {
  return send_comm ? result_of(net, rail_net_raw_close_send(net, send_comm), "closeSend") : RAIL_OK;
}

rail_result_t rail_net_close_recv(struct rail_net *net, void *recv_comm) {
  return recv_comm ? result_of(net, rail_net_raw_close_recv(net, recv_comm), "closeRecv") : RAIL_OK;
}

rail_result_t rail_net_close_listen(struct rail_net *net, void *listen_comm) {
  return listen_comm ? result_of(net, rail_net_raw_close_listen(net, listen_comm), "closeListen") : RAIL_OK;
}

/* ---- memory ----------------------------------------------------------- */

rail_result_t rail_net_reg_mr(struct rail_net *net, void *comm, void *data, size_t size, int type, void **mhandle) {
  *mhandle = NULL;
  return made(net, rail_net_raw_reg_mr(net, comm, data, size, type, mhandle), "regMr", mhandle);
}

rail_result_t rail_net_reg_mr_dmabuf(struct rail_net *net, void *comm, void *data, size_t size, int type,
                                     uint64_t offset, int fd, void **mhandle) {
  *mhandle = NULL;
  int result = rail_net_raw_reg_mr_dmabuf(net, comm, data, size, type, offset, fd, mhandle);
  return made(net, result, "regMrDmaBuf", mhandle);
}

/* NCCL passes NULL on when regMr gave NULL; ours spares foreign plugins that. */
rail_result_t rail_net_dereg_mr(struct rail_net *net, void *comm, void *mhandle) {
  return mhandle ? result_of(net, rail_net_raw_dereg_mr(net, comm, mhandle), "deregMr") : RAIL_OK;
}

/* ---- data ------------------------------------------------------------- */

rail_result_t rail_net_isend(struct rail_net *net, void *send_comm, void *data, size_t size, int tag, void *mhandle,
                             void **request) {
  *request = NULL;
  return result_of(net, rail_net_raw_isend(net, send_comm, data, size, tag, mhandle, NULL, request), "isend");
}

rail_result_t rail_net_irecv(struct rail_net *net, void *recv_comm, int n, void **data, const size_t *sizes,
                             const int *tags, void **mhandles, void **request) {
  const struct rail_net_slots *s = &net->slots;
  if (!s->irecv_v10 && !s->irecv_v9) *request = NULL; /* v6-v8 do not know the hint that may be in it */
  int result = rail_net_raw_irecv(net, recv_comm, n, data, sizes, tags, mhandles, NULL, request);
  if (rail_unlikely(result != RAIL_OK)) *request = NULL;
  return result_of(net, result, "irecv");
}

rail_result_t rail_net_iflush(struct rail_net *net, void *recv_comm, int n, void **data, const int *sizes,
                              void **mhandles, void **request) {
  *request = NULL;
  return result_of(net, rail_net_raw_iflush(net, recv_comm, n, data, sizes, mhandles, request), "iflush");
}

rail_result_t rail_net_test(struct rail_net *net, void *request, int *done, int *sizes) {
  *done = 0;
  return result_of(net, rail_net_raw_test(net, request, done, sizes), "test");
}

rail_result_t rail_net_irecv_consumed(struct rail_net *net, void *recv_comm, int n, void *request) {
  if (!net->slots.irecv_consumed) return RAIL_OK;
  return result_of(net, net->slots.irecv_consumed(recv_comm, n, request), "irecvConsumed");
}
