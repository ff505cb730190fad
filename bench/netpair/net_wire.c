/* SPDX-License-Identifier: Apache-2.0
 * Lanes over a plugin's vtable. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/netpair/side.h"
#include "common/netload.h"

struct net {
  struct rail_net *net;
  void *ctx;
  void *listen[MAX_LANES];
  char handles[MAX_LANES][RAIL_NET_HANDLE_SIZE]; /* of the other side; a connect in progress keeps state in it */
  bool handles_here;
};

static void net_log(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...)
    RAIL_PRINTF(5, 6);
static void net_log(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...) {
  (void)flags;
  if (level > RAIL_LOG_WARN) return;
  va_list ap;
  va_start(ap, fmt);
  fprintf(stderr, "netpair: %s:%d ", file ? file : "?", line);
  vfprintf(stderr, fmt, ap);
  fputc('\n', stderr);
  va_end(ap);
}

static rail_result_t start(struct side *s, struct net *n) {
  char why[300];
  int ndev = 0;
  struct rail_net_init init = {.comm_id = 1, .traffic_class = -1, .log = net_log};
  if (rail_net_load(s->o->plugin, s->o->abi, &n->net, why, sizeof why) != RAIL_OK) {
    side_fail(s, VERDICT_FAILED, "%s", why);
    return RAIL_SYSTEM_ERROR;
  }
  RAIL_TRY(rail_net_init(n->net, &init, &n->ctx));
  RAIL_TRY(rail_net_devices(n->net, &ndev));
  if (s->o->dev >= ndev) {
    side_fail(s, VERDICT_FAILED, "%s has %d devices, no device %d", s->o->plugin, ndev, s->o->dev);
    return RAIL_BAD_ARGUMENT;
  }
  struct outcome *out = &s->shared->outcome[s->id];
  out->version = rail_net_version(n->net);
  snprintf(out->wire, sizeof out->wire, "%s", rail_net_name(n->net));
  for (unsigned int i = 0; i < s->nin; i++)
    RAIL_TRY(rail_net_listen(n->net, n->ctx, s->o->dev, s->shared->handles[s->id][i], &n->listen[i]));
  atomic_store(&s->shared->listening[s->id], 1);
  return RAIL_OK;
}

static rail_result_t register_slots(struct side *s, struct net *n, struct lane *lane) {
  size_t size = lane->stride * s->o->window;
  return rail_net_reg_mr(n->net, lane->comm, lane->base, size, RAIL_PTR_HOST, &lane->mhandle);
}

static rail_result_t connect_step(struct side *s, struct net *n, bool *all) {
  if (s->nout == 0) return RAIL_OK;
  if (!n->handles_here) {
    *all = false;
    if (!atomic_load(&s->shared->listening[1 - s->id])) return RAIL_OK;
    memcpy(n->handles, s->shared->handles[1 - s->id], sizeof n->handles);
    n->handles_here = true;
  }
  for (unsigned int i = 0; i < s->nout; i++) {
    struct lane *lane = &s->out[i];
    if (lane->comm) continue;
    RAIL_TRY(rail_net_connect(n->net, n->ctx, s->o->dev, n->handles[i], -1, &lane->comm));
    if (lane->comm)
      RAIL_TRY(register_slots(s, n, lane));
    else
      *all = false;
  }
  return RAIL_OK;
}

static rail_result_t accept_step(struct side *s, struct net *n, bool *all) {
  for (unsigned int i = 0; i < s->nin; i++) {
    struct lane *lane = &s->in[i];
    if (lane->comm) continue;
    RAIL_TRY(rail_net_accept(n->net, n->listen[i], &lane->comm));
    if (!lane->comm) {
      *all = false;
      continue;
    }
    RAIL_TRY(register_slots(s, n, lane));
    RAIL_TRY(rail_net_close_listen(n->net, n->listen[i])); /* as NCCL does after each accept */
    n->listen[i] = NULL;
  }
  return RAIL_OK;
}

static rail_result_t net_open(struct side *s) {
  struct net *n = s->wire;
  bool all = true;
  if (!n) {
    if (!(n = s->wire = calloc(1, sizeof *n))) return RAIL_SYSTEM_ERROR;
    RAIL_TRY(start(s, n));
  }
  RAIL_TRY(connect_step(s, n, &all));
  RAIL_TRY(accept_step(s, n, &all));
  return all ? RAIL_OK : RAIL_IN_PROGRESS;
}

static rail_result_t net_send(struct side *s, struct lane *lane, char *data, void **request) {
  struct net *n = s->wire;
  return rail_net_isend(n->net, lane->comm, data, s->o->size, 0, lane->mhandle, request);
}

static rail_result_t net_recv(struct side *s, struct lane *lane, char *data, void **request) {
  struct net *n = s->wire;
  void *buffer = data;
  int tag = 0;
  *request = NULL; /* no hint in it */
  return rail_net_irecv(n->net, lane->comm, 1, &buffer, &s->o->size, &tag, &lane->mhandle, request);
}

static rail_result_t net_test(struct side *s, struct lane *lane, void *request, int *done, int *size) {
  struct net *n = s->wire;
  (void)lane;
  return rail_net_test(n->net, request, done, size);
}

static void net_close(struct side *s) {
  struct net *n = s->wire;
  for (unsigned int i = 0; i < s->nout; i++) {
    rail_net_dereg_mr(n->net, s->out[i].comm, s->out[i].mhandle);
    rail_net_close_send(n->net, s->out[i].comm);
  }
  for (unsigned int i = 0; i < s->nin; i++) {
    rail_net_dereg_mr(n->net, s->in[i].comm, s->in[i].mhandle);
    rail_net_close_recv(n->net, s->in[i].comm);
  }
  rail_net_finalize(n->net, n->ctx);
  rail_net_unload(n->net);
  free(n);
}

const struct wire_ops net_wire = {
    .open = net_open, .send = net_send, .recv = net_recv, .test = net_test, .close = net_close};
