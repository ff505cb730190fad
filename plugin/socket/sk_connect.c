/* SPDX-License-Identifier: Apache-2.0
 *
 * The connecting side of the handshake. All streams are connected at once;
 * each says HELLO as soon as it is connected. connect hands the comm out when
 * the last HELLO is written and does not wait for the acceptor: its answer is
 * read by the data path. So two ranks may both finish connect before either
 * calls accept.
 *
 * Between two calls the attempt lives in its context's table; the handle holds
 * only its number.
 */
#include <errno.h>
#include <netinet/ip.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "plugin/socket/sk_close.h"
#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_ctx.h"
#include "plugin/socket/sk_param.h"

#define BACKOFF_MIN_MS 1
#define BACKOFF_MAX_MS 200

enum state {
  CONNECT_WAIT,   /* not begun, or refused and waiting for retry_at */
  CONNECT_TCP,    /* the kernel is connecting; the peer's kernel speaks next */
  CONNECT_HELLO,  /* connected; our HELLO is being written */
  CONNECT_DONE,   /* HELLO written; the answer comes whenever the peer calls accept */
  CONNECT_STATES
};

struct leg {
  enum state state;
  int fd;
  uint64_t retry_at;
  uint32_t backoff_ms;
  struct sk_hello_wire hello;
  size_t sent;
};

struct sk_connect {
  struct sk_ctx *ctx;
  uint64_t number;
  int dev;
  const struct sk_device *device;
  union rail_addr peer;
  int traffic_class;
  uint64_t deadline;
  int last_errno; /* of the latest failed try */
  uint8_t comm_id[SK_COMM_ID_SIZE];
  unsigned int nlegs;
  struct leg legs[SK_MAX_STREAMS];
};

/* ---- attempts by number ----------------------------------------------- */

static rail_result_t attempt_add(struct sk_ctx *ctx, struct sk_connect *a) {
  uint32_t i;
  pthread_mutex_lock(&ctx->lock);
  for (i = 0; i < ctx->attempt_cap && ctx->attempts[i].attempt; i++) continue;
  if (i == ctx->attempt_cap) {
    uint32_t cap = ctx->attempt_cap ? 2 * ctx->attempt_cap : 64;
    struct sk_attempt_slot *grown = realloc(ctx->attempts, cap * sizeof *grown);
    if (!grown) {
      pthread_mutex_unlock(&ctx->lock);
      return RAIL_SYSTEM_ERROR;
    }
    memset(grown + ctx->attempt_cap, 0, (cap - ctx->attempt_cap) * sizeof *grown);
    ctx->attempts = grown;
    ctx->attempt_cap = cap;
  }
  ctx->attempts[i].attempt = a;
  a->number = (uint64_t)++ctx->attempts[i].generation << 32 | (i + 1);
  pthread_mutex_unlock(&ctx->lock);
  return RAIL_OK;
}

static struct sk_connect *attempt_find(struct sk_ctx *ctx, uint64_t number) {
  uint32_t i = (uint32_t)number - 1;
  struct sk_connect *a = NULL;
  pthread_mutex_lock(&ctx->lock);
  if (i < ctx->attempt_cap && ctx->attempts[i].attempt && ctx->attempts[i].attempt->number == number)
    a = ctx->attempts[i].attempt;
  pthread_mutex_unlock(&ctx->lock);
  return a;
}

static void attempt_remove(struct sk_ctx *ctx, struct sk_connect *a) {
  pthread_mutex_lock(&ctx->lock);
  ctx->attempts[(uint32_t)a->number - 1].attempt = NULL;
  pthread_mutex_unlock(&ctx->lock);
}

void sk_connect_free(struct sk_connect *a) {
  for (unsigned int i = 0; i < a->nlegs; i++) rail_sock_close(&a->legs[i].fd);
  free(a);
}

static rail_result_t attempt_new(struct sk_ctx *ctx, int dev, const struct sk_device *device,
                                 const struct sk_handle *handle, int traffic_class, struct sk_connect **out) {
  struct sk_hello hello = {.streams = handle->streams,
                           .eager_size = (uint32_t)sk_params.eager,
                           .eager_count = (uint32_t)sk_params.eager_count,
                           .eager_bytes = (uint32_t)sk_params.eager_bytes};
  struct sk_connect *a = calloc(1, sizeof *a);
  if (!a) goto no_memory;
  a->ctx = ctx;
  a->dev = dev;
  a->device = device;
  a->peer = handle->addrs[0];
  a->traffic_class = traffic_class;
  a->deadline = rail_deadline_in_ms((uint64_t)sk_params.connect_ms);
  a->nlegs = handle->streams;
  for (unsigned int i = 0; i < a->nlegs; i++) a->legs[i].fd = -1;
  if (rail_random_bytes(hello.comm_id, sizeof hello.comm_id) != RAIL_OK) {
    RAIL_WARN("RailSocket: connect: no random bytes from the kernel: %s", strerror(errno));
    goto free_attempt;
  }
  memcpy(a->comm_id, hello.comm_id, sizeof a->comm_id);
  for (unsigned int i = 0; i < a->nlegs; i++) {
    hello.stream = i;
    sk_hello_encode(&hello, handle->secret, &a->legs[i].hello);
  }
  if (attempt_add(ctx, a) != RAIL_OK) {
    free(a);
    goto no_memory;
  }
  *out = a;
  return RAIL_OK;

free_attempt:
  free(a);
  return RAIL_SYSTEM_ERROR;
no_memory:
  RAIL_WARN("RailSocket: connect: out of memory");
  return RAIL_SYSTEM_ERROR;
}

/* ---- one leg: a table of steps ---------------------------------------- */

/* Each step returns RAIL_OK after a change of state, RAIL_IN_PROGRESS when it
 * waits, or an error that ends the whole attempt. */
static rail_result_t step_wait(struct sk_connect *a, struct leg *leg);
static rail_result_t step_tcp(struct sk_connect *a, struct leg *leg);
static rail_result_t step_hello(struct sk_connect *a, struct leg *leg);

static const struct {
  const char *name;
  rail_result_t (*step)(struct sk_connect *a, struct leg *leg);
} states[] = {
  [CONNECT_WAIT] = {"wait", step_wait},
  [CONNECT_TCP] = {"tcp", step_tcp},
  [CONNECT_HELLO] = {"hello", step_hello},
  [CONNECT_DONE] = {"done", NULL},
};
_Static_assert(RAIL_COUNT_OF(states) == CONNECT_STATES, "a row for each state");

static void change(struct sk_connect *a, struct leg *leg, enum state to) {
  RAIL_TRACE(RAIL_SUB_NET, "RailSocket: connect %llx stream %d: %s -> %s", (unsigned long long)a->number,
             (int)(leg - a->legs), states[leg->state].name, states[to].name);
  leg->state = to;
}

/* What time may cure: the peer's listener or its route is not there yet, or it is overrun. */
static bool worth_retrying(int err) {
  return err == ECONNREFUSED || err == ETIMEDOUT || err == EHOSTUNREACH || err == ENETUNREACH || err == ECONNRESET ||
         err == EADDRNOTAVAIL || err == EAGAIN || err == EPIPE;
}

static rail_result_t retry_later(struct sk_connect *a, struct leg *leg, int err) {
  char peer[RAIL_ADDR_TEXT];
  rail_sock_close(&leg->fd);
  leg->sent = 0;
  a->last_errno = err;
  if (!worth_retrying(err)) {
    RAIL_WARN("RailSocket: connect to %s over %s: %s%s", rail_addr_text(&a->peer, peer), a->device->name, strerror(err),
              err == EMFILE || err == ENFILE ? "; raise the limit of open files (ulimit -n)" : "");
    return rail_result_of_errno(err);
  }
  leg->backoff_ms = leg->backoff_ms ? RAIL_MIN(2 * leg->backoff_ms, BACKOFF_MAX_MS) : BACKOFF_MIN_MS;
  leg->retry_at = rail_deadline_in_ms(leg->backoff_ms);
  change(a, leg, CONNECT_WAIT);
  return RAIL_IN_PROGRESS;
}

static void set_options(const struct sk_connect *a, int fd) {
  (void)rail_sock_set_buffers(fd, sk_params.sndbuf, sk_params.rcvbuf);
  if (a->traffic_class >= 0) {
    int tos = a->traffic_class & 0xff;
    if (a->peer.sa.sa_family == AF_INET) (void)setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof tos);
    else (void)setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof tos);
  }
}

static rail_result_t step_wait(struct sk_connect *a, struct leg *leg) {
  if (leg->retry_at && !rail_deadline_passed(leg->retry_at)) return RAIL_IN_PROGRESS;
  rail_result_t result = rail_sock_connect(&a->peer, sk_device_source(a->device, &a->peer), &leg->fd);
  if (result != RAIL_OK && result != RAIL_IN_PROGRESS) return retry_later(a, leg, errno);
  set_options(a, leg->fd);
  change(a, leg, result == RAIL_OK ? CONNECT_HELLO : CONNECT_TCP);
  return RAIL_OK;
}

static rail_result_t step_tcp(struct sk_connect *a, struct leg *leg) {
  rail_result_t result = rail_sock_connected(leg->fd);
  if (result == RAIL_IN_PROGRESS) return result;
  if (result != RAIL_OK) return retry_later(a, leg, errno);
  change(a, leg, CONNECT_HELLO);
  return RAIL_OK;
}

static rail_result_t step_hello(struct sk_connect *a, struct leg *leg) {
  rail_result_t result = rail_sock_send_some(leg->fd, &leg->hello, sizeof leg->hello, &leg->sent);
  if (result == RAIL_IN_PROGRESS) return result;
  if (result != RAIL_OK) return retry_later(a, leg, errno);
  change(a, leg, CONNECT_DONE);
  return RAIL_OK;
}

/* ---- the call --------------------------------------------------------- */

static rail_result_t run_legs(struct sk_connect *a) {
  char peer[RAIL_ADDR_TEXT];
  bool all_done = true;
  for (unsigned int i = 0; i < a->nlegs; i++) {
    struct leg *leg = &a->legs[i];
    while (leg->state != CONNECT_DONE) {
      rail_result_t result = states[leg->state].step(a, leg);
      if (result == RAIL_OK) continue;
      if (result != RAIL_IN_PROGRESS) return result;
      all_done = false;
      break;
    }
  }
  if (all_done) return RAIL_OK;
  if (!rail_deadline_passed(a->deadline)) return RAIL_IN_PROGRESS;
  RAIL_WARN("RailSocket: connect to %s over %s: no connection within %lld ms (RAIL_SOCKET_CONNECT_TIMEOUT): %s; "
            "is the peer alive, is that address reachable from %s, does a firewall block the port?",
            rail_addr_text(&a->peer, peer), a->device->name, (long long)sk_params.connect_ms,
            a->last_errno ? strerror(a->last_errno) : "no answer", a->device->name);
  return RAIL_REMOTE_ERROR;
}

static rail_result_t hand_out(struct sk_connect *a, void **send_comm) {
  struct sk_comm_args args = {.side = SK_SENDER,
                              .dev = a->dev,
                              .device = a->device,
                              .ctx = a->ctx,
                              .nstreams = a->nlegs,
                              .eager_size = (uint32_t)sk_params.eager,
                              .eager_count = (uint32_t)sk_params.eager_count,
                              .eager_bytes = (uint32_t)sk_params.eager_bytes};
  memcpy(args.comm_id, a->comm_id, sizeof args.comm_id);
  for (unsigned int i = 0; i < a->nlegs; i++) {
    args.paths[i] = a->device;
    args.peers[i] = a->peer;
    sk_answer_encode(SK_REASON_NONE, i, 0, &args.welcomes[i]);
    args.fds[i] = a->legs[i].fd; /* the comm's from here on */
    a->legs[i].fd = -1;
  }
  return sk_send_create(&args, send_comm);
}

rail_result_t sk_connect(void *ctx_arg, int dev, void *handle_bytes, int traffic_class, void **send_comm) {
  struct sk_handle handle;
  const char *why;
  struct sk_connect *a = NULL;
  if (!handle_bytes || !send_comm) {
    RAIL_WARN("RailSocket: connect: handle %p, sendComm %p; neither may be NULL", handle_bytes, (void *)send_comm);
    return RAIL_BAD_ARGUMENT;
  }
  *send_comm = NULL;
  struct sk_ctx *ctx = sk_ctx_of(ctx_arg, "connect");
  const struct sk_device *device = sk_device_at(dev, "connect");
  if (!ctx || !device) return RAIL_BAD_ARGUMENT;
  if (!sk_handle_decode(handle_bytes, &handle, &why)) {
    RAIL_WARN("RailSocket: connect: this handle cannot be used: %s", why);
    return RAIL_BAD_ARGUMENT;
  }
  if (handle.attempt == 0) {
    RAIL_TRY(attempt_new(ctx, dev, device, &handle, traffic_class, &a));
    sk_handle_set_attempt(handle_bytes, a->number);
  } else if (!(a = attempt_find(ctx, handle.attempt))) {
    RAIL_WARN("RailSocket: connect: this handle names attempt %llx, which is not under way here; "
              "allowed: a handle as listen made it, or as this context's connect left it",
              (unsigned long long)handle.attempt);
    return RAIL_BAD_ARGUMENT;
  }
  rail_result_t result = run_legs(a);
  if (result == RAIL_IN_PROGRESS) return RAIL_OK;
  if (result == RAIL_OK) result = hand_out(a, send_comm);
  attempt_remove(ctx, a);
  sk_connect_free(a);
  sk_handle_set_attempt(handle_bytes, 0); /* the handle may connect again */
  sk_close_reap();
  return result;
}
