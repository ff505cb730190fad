/* SPDX-License-Identifier: Apache-2.0
 *
 * Lanes over a plugin's vtable. Which call of a timed loop the side is in is
 * noted without a look at the clock: there are millions of them in a second.
 * Since when it lasts is then the loop's last look (kit_bench_note_time).
 */
#include <stdlib.h>
#include <string.h>

#include "loader/netload.h"
#include "kit/bench/bench_side.h"
#include "kit/kit_net.h"

struct net {
  struct kit_net kit;
  struct rail_net *net;
  void *ctx;
};

/* Of a call in a timed loop. */
#define FAST(side, which, expression)                                                   \
  __extension__({                                                                       \
    atomic_store_explicit(&(side)->trail->call, which, memory_order_relaxed);           \
    rail_result_t result_ = expression;                                                 \
    atomic_store_explicit(&(side)->trail->call, KIT_CALL_NONE, memory_order_relaxed);   \
    result_;                                                                            \
  })

/* Of any other call. */
#define CALL(which, expression)            \
  __extension__({                          \
    kit_trail_enter(which);                \
    rail_result_t result_ = expression;    \
    kit_trail_leave();                     \
    result_;                               \
  })

/* What the cell asks of the plugin's device. */
static void look_at_device(struct kit_bench_side *s, struct net *n) {
  struct rail_net_props_v12 props = {0};
  int ndev = 0;
  kit_bench_must(s, CALL(KIT_CALL_DEVICES, rail_net_devices(n->net, &ndev)), "devices");
  if (s->job->dev >= ndev)
    kit_bench_fail(s, KIT_BENCH_FAILED, "there is no device %d: the plugin has %d", s->job->dev, ndev);
  kit_bench_must(s, kit_net_fuse(&n->kit), "makeVDevice");
  kit_bench_must(s, CALL(KIT_CALL_PROPERTIES, rail_net_properties(n->net, n->kit.dev, &props)), "getProperties");
  if ((unsigned int)RAIL_MAX(props.max_recvs, 1) < s->cell.group)
    kit_bench_fail(s, KIT_BENCH_SKIPPED, "the plugin takes %d buffers in a receive (maxRecvs), not %u", props.max_recvs,
                   s->cell.group);
  if (s->cell.memory == KIT_BENCH_CUDA && !(props.ptr_support & RAIL_PTR_CUDA))
    kit_bench_fail(s, KIT_BENCH_SKIPPED, "the plugin takes no GPU memory (ptrSupport is %#x)",
                   (unsigned int)props.ptr_support);
}

static rail_result_t net_start(struct kit_bench_side *s) {
  struct rail_net_init init = {.comm_id = 1, .traffic_class = -1, .log = kit_net_log};
  struct net *n = s->wire_state = calloc(1, sizeof *n);
  if (!n) return RAIL_SYSTEM_ERROR;
  kit_net_load(&n->kit, s->job->version);
  n->net = n->kit.any;
  s->version = n->kit.version;
  snprintf(s->wire_name, sizeof s->wire_name, "%s", rail_net_name(n->net));
  RAIL_TRY(CALL(KIT_CALL_INIT, rail_net_init(n->net, &init, &n->ctx)));
  look_at_device(s, n);
  return RAIL_OK;
}

static rail_result_t net_listen(struct kit_bench_side *s, struct kit_bench_lane *lane) {
  struct net *n = s->wire_state;
  return CALL(KIT_CALL_LISTEN, rail_net_listen(n->net, n->ctx, n->kit.dev, lane->handle, &lane->listen));
}

static rail_result_t net_connect(struct kit_bench_side *s, struct kit_bench_lane *lane) {
  struct net *n = s->wire_state;
  return CALL(KIT_CALL_CONNECT, rail_net_connect(n->net, n->ctx, n->kit.dev, lane->handle, -1, &lane->comm));
}

static rail_result_t net_accept(struct kit_bench_side *s, struct kit_bench_lane *lane) {
  struct net *n = s->wire_state;
  RAIL_TRY(CALL(KIT_CALL_ACCEPT, rail_net_accept(n->net, lane->listen, &lane->comm)));
  if (!lane->comm) return RAIL_OK;
  void *listen = lane->listen;
  lane->listen = NULL;
  return CALL(KIT_CALL_CLOSE_LISTEN, rail_net_close_listen(n->net, listen)); /* as NCCL does after each accept */
}

static rail_result_t net_reg(struct kit_bench_side *s, struct kit_bench_lane *lane, size_t size) {
  struct net *n = s->wire_state;
  int type = s->memory.cuda ? RAIL_PTR_CUDA : RAIL_PTR_HOST;
  return CALL(KIT_CALL_REG_MR, rail_net_reg_mr(n->net, lane->comm, lane->base, size, type, &lane->mhandle));
}

static rail_result_t net_send(struct kit_bench_side *s, struct kit_bench_lane *lane, char *data, int tag,
                              void **request) {
  struct net *n = s->wire_state;
  return FAST(s, KIT_CALL_ISEND,
              rail_net_isend(n->net, lane->comm, data, s->cell.size, tag, lane->mhandle, request));
}

static rail_result_t net_recv(struct kit_bench_side *s, struct kit_bench_lane *lane, char *data, void **request) {
  struct net *n = s->wire_state;
  void *buffers[KIT_BENCH_GROUP], *mhandles[KIT_BENCH_GROUP];
  size_t sizes[KIT_BENCH_GROUP];
  int tags[KIT_BENCH_GROUP], count = (int)s->cell.group;
  for (int i = 0; i < count; i++) {
    buffers[i] = data + (size_t)i * lane->stride;
    mhandles[i] = lane->mhandle;
    sizes[i] = s->cell.size;
    tags[i] = i;
  }
  *request = NULL; /* no hint in it */
  return FAST(s, KIT_CALL_IRECV, rail_net_irecv(n->net, lane->comm, count, buffers, sizes, tags, mhandles, request));
}

static rail_result_t net_test(struct kit_bench_side *s, struct kit_bench_lane *lane, void *request, int *done,
                              int *sizes) {
  struct net *n = s->wire_state;
  (void)lane;
  return FAST(s, KIT_CALL_TEST, rail_net_test(n->net, request, done, sizes));
}

static rail_result_t net_flush(struct kit_bench_side *s, struct kit_bench_lane *lane, char *data, void **request) {
  struct net *n = s->wire_state;
  void *buffers[KIT_BENCH_GROUP], *mhandles[KIT_BENCH_GROUP];
  int sizes[KIT_BENCH_GROUP], count = (int)s->cell.group;
  for (int i = 0; i < count; i++) {
    buffers[i] = data + (size_t)i * lane->stride;
    mhandles[i] = lane->mhandle;
    sizes[i] = (int)s->cell.size;
  }
  *request = NULL;
  return FAST(s, KIT_CALL_IFLUSH, rail_net_iflush(n->net, lane->comm, count, buffers, sizes, mhandles, request));
}

static rail_result_t net_close(struct kit_bench_side *s, struct kit_bench_lane *lane, bool sends) {
  struct net *n = s->wire_state;
  void *comm = lane->comm, *mhandle = lane->mhandle;
  lane->comm = lane->mhandle = NULL;
  if (mhandle) RAIL_TRY(CALL(KIT_CALL_DEREG_MR, rail_net_dereg_mr(n->net, comm, mhandle)));
  return sends ? CALL(KIT_CALL_CLOSE_SEND, rail_net_close_send(n->net, comm))
               : CALL(KIT_CALL_CLOSE_RECV, rail_net_close_recv(n->net, comm));
}

static rail_result_t net_stop(struct kit_bench_side *s) {
  struct net *n = s->wire_state;
  RAIL_TRY(CALL(KIT_CALL_FINALIZE, rail_net_finalize(n->net, n->ctx)));
  kit_trail_enter(KIT_CALL_UNLOAD);
  rail_net_unload(n->net);
  kit_trail_leave();
  kit_net_trail_end(n->kit.vt);
  free(n);
  return RAIL_OK;
}

const struct kit_bench_wire kit_bench_wire_net = {
    .start = net_start, .listen = net_listen, .connect = net_connect, .accept = net_accept, .reg = net_reg,
    .send = net_send, .recv = net_recv, .test = net_test, .flush = net_flush, .close = net_close, .stop = net_stop};
