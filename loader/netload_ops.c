/* SPDX-License-Identifier: Apache-2.0
 *
 * One interface over vtables of all versions. What a version cannot say is
 * filled in or refused here, by the rules of NCCL's own compatibility layer,
 * so that a plugin sees from us exactly what it would see from NCCL.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/net/net_props.h"
#include "loader/netload_impl.h"
#include "loader/netload_raw.h"

#define MAX_COLL_BYTES_V8 0x20000000 /* 512 MiB: what NCCL assumes of v6-v8 */

RAIL_COLD static rail_result_t bad_result(const struct rail_net *net, const char *call, int result) {
  RAIL_WARN("%s (%s): %s returned %d, which is no result of the plugin interface", net->slots.name, net->path, call,
            result);
  return RAIL_INTERNAL_ERROR;
}

/* Whose int it is we do not know: nothing but the known codes comes out. */
static inline rail_result_t result_of(const struct rail_net *net, int result, const char *call) {
  if (rail_unlikely(result < RAIL_OK || result >= RAIL_IN_PROGRESS)) return bad_result(net, call, result);
  return (rail_result_t)result;
}

/* ---- contexts --------------------------------------------------------- */

static rail_result_t first_init(struct rail_net *net, const struct rail_net_init *args) {
  return result_of(net, rail_net_raw_init(net, args, NULL), "init");
}

rail_result_t rail_net_init(struct rail_net *net, const struct rail_net_init *args, void **ctx) {
  *ctx = NULL;
  if (net->slots.init_v11) {
    rail_result_t result = result_of(net, rail_net_raw_init(net, args, ctx), "init");
    if (result != RAIL_OK) *ctx = NULL;
    return result;
  }
  struct rail_net_old_ctx *old = malloc(sizeof *old);
  if (!old) return RAIL_SYSTEM_ERROR;
  old->traffic_class = args->traffic_class;
  /* Again, since another load of the plugin may have made the call. */
  rail_result_t result = (rail_result_t)rail_net_look_again(net, rail_net_init_once(net, args, first_init));
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

/* An array length from a stranger. */
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
  return result_of(net, rail_net_raw_listen(net, ctx, dev, handle, listen_comm), "listen");
}

rail_result_t rail_net_connect(struct rail_net *net, void *ctx, int dev, void *handle, int traffic_class,
                               void **send_comm) {
  struct rail_net_device_handle *unused = NULL;
  *send_comm = NULL;
  int result = rail_net_raw_connect(net, ctx, dev, handle, traffic_class, send_comm, &unused);
  if (result != RAIL_OK) *send_comm = NULL; /* whatever a failed call left there is not ours to close */
  return result_of(net, result, "connect");
}

rail_result_t rail_net_accept(struct rail_net *net, void *listen_comm, void **recv_comm) {
  struct rail_net_device_handle *unused = NULL;
  *recv_comm = NULL;
  return result_of(net, rail_net_raw_accept(net, listen_comm, recv_comm, &unused), "accept");
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
  return result_of(net, rail_net_raw_reg_mr(net, comm, data, size, type, mhandle), "regMr");
}

rail_result_t rail_net_reg_mr_dmabuf(struct rail_net *net, void *comm, void *data, size_t size, int type,
                                     uint64_t offset, int fd, void **mhandle) {
  *mhandle = NULL;
  return result_of(net, rail_net_raw_reg_mr_dmabuf(net, comm, data, size, type, offset, fd, mhandle), "regMrDmaBuf");
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
  if (net->slots.irecv_v6) *request = NULL; /* v6-v8 do not know the hint that may be in it */
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
