/* SPDX-License-Identifier: Apache-2.0
 * The two wires that bench measures: a plugin through its vtable, and plain TCP streams to compare it with. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/ifaddr.h"
#include "kit/bench/bench_process.h"
#include "kit/kit_net.h"
#include "kit/kit_vtable.h"
#include "loader/netload.h"

struct net {
  struct kit_net kit;
  struct rail_net *net;
  void *ctx;
};

/* Of a call in a timed loop. */
#define FAST(self, which, expression)                                                   \
  __extension__({                                                                       \
    atomic_store_explicit(&(self)->calls->call, which, memory_order_relaxed);           \
    rail_result_t result_ = expression;                                                 \
    atomic_store_explicit(&(self)->calls->call, KIT_CALL_NONE, memory_order_relaxed);   \
    result_;                                                                            \
  })

/* Of any other call. */
#define CALL(which, expression)            \
  __extension__({                          \
    kit_call_begin(which);                \
    rail_result_t result_ = expression;    \
    kit_call_end();                     \
    result_;                               \
  })

/* What the cell asks of the plugin's device. */
static void look_at_device(struct kit_bench_process *s, struct net *n) {
  struct rail_net_props_v12 props = {0};
  int ndev = 0;
  kit_bench_require(s, CALL(KIT_CALL_DEVICES, rail_net_devices(n->net, &ndev)), "devices");
  if (s->job->dev >= ndev)
    kit_bench_fail(s, KIT_BENCH_FAILED, "there is no device %d: the plugin has %d", s->job->dev, ndev);
  kit_bench_require(s, kit_net_fuse(&n->kit), "makeVDevice");
  kit_bench_require(s, CALL(KIT_CALL_PROPERTIES, rail_net_properties(n->net, n->kit.dev, &props)), "getProperties");
  if ((unsigned int)RAIL_MAX(props.max_recvs, 1) < s->cell.group)
    kit_bench_fail(s, KIT_BENCH_SKIPPED, "the plugin takes %d buffers in a receive (maxRecvs), not %u", props.max_recvs,
                   s->cell.group);
  if (s->cell.memory == KIT_BENCH_CUDA && !(props.ptr_support & RAIL_PTR_CUDA))
    kit_bench_fail(s, KIT_BENCH_SKIPPED, "the plugin takes no GPU memory (ptrSupport is %#x)",
                   (unsigned int)props.ptr_support);
}

static rail_result_t net_start(struct kit_bench_process *s) {
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

static rail_result_t net_listen(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  struct net *n = s->wire_state;
  return CALL(KIT_CALL_LISTEN, rail_net_listen(n->net, n->ctx, n->kit.dev, conn->handle, &conn->listen));
}

static rail_result_t net_connect(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  struct net *n = s->wire_state;
  return CALL(KIT_CALL_CONNECT, rail_net_connect(n->net, n->ctx, n->kit.dev, conn->handle, -1, &conn->comm));
}

static rail_result_t net_accept(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  struct net *n = s->wire_state;
  RAIL_TRY(CALL(KIT_CALL_ACCEPT, rail_net_accept(n->net, conn->listen, &conn->comm)));
  if (!conn->comm) return RAIL_OK;
  void *listen = conn->listen;
  conn->listen = NULL;
  return CALL(KIT_CALL_CLOSE_LISTEN, rail_net_close_listen(n->net, listen)); /* as NCCL does after each accept */
}

static rail_result_t net_reg(struct kit_bench_process *s, struct kit_bench_conn *conn, size_t size) {
  struct net *n = s->wire_state;
  int type = s->memory.cuda ? RAIL_PTR_CUDA : RAIL_PTR_HOST;
  return CALL(KIT_CALL_REG_MR, rail_net_reg_mr(n->net, conn->comm, conn->base, size, type, &conn->mhandle));
}

static rail_result_t net_send(struct kit_bench_process *s, struct kit_bench_conn *conn, char *data, int tag,
                              void **request) {
  struct net *n = s->wire_state;
  return FAST(s, KIT_CALL_ISEND,
              rail_net_isend(n->net, conn->comm, data, s->cell.size, tag, conn->mhandle, request));
}

static rail_result_t net_recv(struct kit_bench_process *s, struct kit_bench_conn *conn, char *data, void **request) {
  struct net *n = s->wire_state;
  void *buffers[KIT_BENCH_GROUP], *mhandles[KIT_BENCH_GROUP];
  size_t sizes[KIT_BENCH_GROUP];
  int tags[KIT_BENCH_GROUP], count = (int)s->cell.group;
  for (int i = 0; i < count; i++) {
    buffers[i] = data + (size_t)i * conn->stride;
    mhandles[i] = conn->mhandle;
    sizes[i] = s->cell.size;
    tags[i] = i;
  }
  *request = NULL; /* no hint in it */
  return FAST(s, KIT_CALL_IRECV, rail_net_irecv(n->net, conn->comm, count, buffers, sizes, tags, mhandles, request));
}

static rail_result_t net_test(struct kit_bench_process *s, struct kit_bench_conn *conn, void *request, int *done,
                              int *sizes) {
  struct net *n = s->wire_state;
  (void)conn;
  return FAST(s, KIT_CALL_TEST, rail_net_test(n->net, request, done, sizes));
}

static rail_result_t net_flush(struct kit_bench_process *s, struct kit_bench_conn *conn, char *data, void **request) {
  struct net *n = s->wire_state;
  void *buffers[KIT_BENCH_GROUP], *mhandles[KIT_BENCH_GROUP];
  int sizes[KIT_BENCH_GROUP], count = (int)s->cell.group;
  for (int i = 0; i < count; i++) {
    buffers[i] = data + (size_t)i * conn->stride;
    mhandles[i] = conn->mhandle;
    sizes[i] = (int)s->cell.size;
  }
  *request = NULL;
  return FAST(s, KIT_CALL_IFLUSH, rail_net_iflush(n->net, conn->comm, count, buffers, sizes, mhandles, request));
}

static rail_result_t net_close(struct kit_bench_process *s, struct kit_bench_conn *conn, bool sends) {
  struct net *n = s->wire_state;
  void *comm = conn->comm, *mhandle = conn->mhandle;
  conn->comm = conn->mhandle = NULL;
  if (mhandle) RAIL_TRY(CALL(KIT_CALL_DEREG_MR, rail_net_dereg_mr(n->net, comm, mhandle)));
  return sends ? CALL(KIT_CALL_CLOSE_SEND, rail_net_close_send(n->net, comm))
               : CALL(KIT_CALL_CLOSE_RECV, rail_net_close_recv(n->net, comm));
}

static rail_result_t net_stop(struct kit_bench_process *s) {
  struct net *n = s->wire_state;
  RAIL_TRY(CALL(KIT_CALL_FINALIZE, rail_net_finalize(n->net, n->ctx)));
  kit_call_begin(KIT_CALL_UNLOAD);
  rail_net_unload(n->net);
  kit_call_end();
  kit_traced_vtable_end(n->kit.vt);
  free(n);
  return RAIL_OK;
}

const struct kit_bench_wire kit_bench_wire_net = {
    .start = net_start, .listen = net_listen, .connect = net_connect, .accept = net_accept, .reg = net_reg,
    .send = net_send, .recv = net_recv, .test = net_test, .flush = net_flush, .close = net_close, .stop = net_stop};

/* Lanes over plain TCP streams: the system's own limit. No headers, nothing agreed: each message is one write and
 * one read of its size, repeated for what did not fit. Only the oldest message of a stream moves. */

struct piece {
  char *at;
  size_t left;
};

struct stream {
  int fd, listen_fd;
  unsigned int next;                      /* piece */
  struct piece pieces[KIT_BENCH_WINDOW + KIT_BENCH_GROUP];
};

/* Loopback, unless it does not lead to the other processes. */
static bool own_address(union rail_addr *addr) {
  struct rail_interface *all, chosen;
  *addr = (union rail_addr){.in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}};
  if (!getenv("RAIL_KIT_REMOTE")) return true;
  int n = rail_interfaces_list(&all);
  if (n < 0) return false;
  n = rail_interfaces_choose(all, n, getenv("NCCL_SOCKET_IFNAME"), AF_UNSPEC, NULL, &chosen, 1);
  free(all);
  if (n != 1) return false;
  *addr = chosen.addr;
  return true;
}

static rail_result_t tcp_start(struct kit_bench_process *s) {
  union rail_addr *addr = s->wire_state = calloc(1, sizeof *addr);
  snprintf(s->wire_name, sizeof s->wire_name, "TCP");
  if (!addr) return RAIL_SYSTEM_ERROR;
  if (!own_address(addr)) kit_bench_fail(s, KIT_BENCH_SKIPPED, "no interface for plain TCP (see NCCL_SOCKET_IFNAME)");
  if (s->cell.memory == KIT_BENCH_CUDA) kit_bench_fail(s, KIT_BENCH_SKIPPED, "plain TCP takes no GPU memory");
  if (s->cell.size == 0 && s->cell.kind != KIT_BENCH_CONNECT)
    kit_bench_fail(s, KIT_BENCH_SKIPPED, "plain TCP has no messages of 0 bytes");
  return RAIL_OK;
}

static struct stream *new_stream(void) {
  struct stream *stream = calloc(1, sizeof *stream);
  if (stream) stream->fd = stream->listen_fd = -1;
  return stream;
}

static rail_result_t tcp_listen(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  union rail_addr addr = *(union rail_addr *)s->wire_state;
  struct stream *stream = conn->listen = new_stream();
  if (!stream) return RAIL_SYSTEM_ERROR;
  RAIL_TRY(rail_sock_listen(&addr, 1, &stream->listen_fd));
  rail_addr_pack(&addr, (struct rail_addr_wire *)(void *)conn->handle);
  return RAIL_OK;
}

static rail_result_t tcp_connect(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  struct stream *stream = conn->listen;
  rail_result_t result;
  (void)s;
  if (!stream) {
    union rail_addr to;
    if (!rail_addr_unpack((struct rail_addr_wire *)(void *)conn->handle, &to)) return RAIL_INTERNAL_ERROR;
    if (!(stream = conn->listen = new_stream())) return RAIL_SYSTEM_ERROR;
    result = rail_sock_connect(&to, NULL, &stream->fd);
  } else {
    result = rail_sock_connected(stream->fd);
  }
  if (result == RAIL_IN_PROGRESS) return RAIL_OK;
  RAIL_TRY(result);
  conn->comm = stream;
  return RAIL_OK;
}

static rail_result_t tcp_accept(struct kit_bench_process *s, struct kit_bench_conn *conn) {
  struct stream *stream = conn->listen;
  union rail_addr peer;
  (void)s;
  rail_result_t result = rail_sock_accept(stream->listen_fd, &stream->fd, &peer);
  if (result == RAIL_IN_PROGRESS) return RAIL_OK;
  RAIL_TRY(result);
  rail_sock_close(&stream->listen_fd);
  conn->comm = stream;
  return RAIL_OK;
}

static rail_result_t tcp_reg(struct kit_bench_process *s, struct kit_bench_conn *conn, size_t size) {
  (void)s, (void)conn, (void)size;
  return RAIL_OK;
}

/* There are as many pieces as messages may be outstanding. */
static struct piece *post(struct kit_bench_process *s, struct stream *stream, char *data) {
  struct piece *piece = &stream->pieces[stream->next];
  *piece = (struct piece){.at = data, .left = s->cell.size};
  stream->next = stream->next + 1 == s->window ? 0 : stream->next + 1;
  return piece;
}

static rail_result_t tcp_send(struct kit_bench_process *s, struct kit_bench_conn *conn, char *data, int tag,
                              void **request) {
  (void)tag;
  *request = post(s, conn->comm, data);
  return RAIL_OK;
}

/* The window holds whole groups, so a group's pieces lie side by side. */
static rail_result_t tcp_recv(struct kit_bench_process *s, struct kit_bench_conn *conn, char *data, void **request) {
  *request = post(s, conn->comm, data);
  for (unsigned int i = 1; i < s->cell.group; i++) post(s, conn->comm, data + i * conn->stride);
  return RAIL_OK;
}

static rail_result_t move(struct stream *stream, struct piece *piece, bool in) {
  while (piece->left > 0) {
    ssize_t n =
        in ? recv(stream->fd, piece->at, piece->left, 0) : send(stream->fd, piece->at, piece->left, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return RAIL_OK;
    if (n <= 0) return RAIL_REMOTE_ERROR;
    piece->at += n;
    piece->left -= (size_t)n;
  }
  return RAIL_OK;
}

/* Lanes test nothing but their oldest request, so this is always the stream's next piece. */
static rail_result_t tcp_test(struct kit_bench_process *s, struct kit_bench_conn *conn, void *request, int *done,
                              int *sizes) {
  struct piece *piece = request;
  unsigned int n = sizes ? s->cell.group : 1;
  for (unsigned int i = 0; i < n; i++) {
    RAIL_TRY(move(conn->comm, &piece[i], sizes != NULL));
    if (piece[i].left > 0) return RAIL_OK;
    if (sizes) sizes[i] = (int)s->cell.size;
  }
  *done = 1;
  return RAIL_OK;
}

static rail_result_t tcp_flush(struct kit_bench_process *s, struct kit_bench_conn *conn, char *data, void **request) {
  (void)s, (void)conn, (void)data;
  *request = NULL;
  return RAIL_OK;
}

static rail_result_t tcp_close(struct kit_bench_process *s, struct kit_bench_conn *conn, bool sends) {
  struct stream *stream = conn->comm;
  (void)s, (void)sends;
  rail_sock_close(&stream->fd);
  free(stream);
  conn->comm = conn->listen = NULL;
  return RAIL_OK;
}

static rail_result_t tcp_stop(struct kit_bench_process *s) {
  free(s->wire_state);
  return RAIL_OK;
}

const struct kit_bench_wire kit_bench_wire_tcp = {
    .start = tcp_start, .listen = tcp_listen, .connect = tcp_connect, .accept = tcp_accept, .reg = tcp_reg,
    .send = tcp_send, .recv = tcp_recv, .test = tcp_test, .flush = tcp_flush, .close = tcp_close, .stop = tcp_stop};
