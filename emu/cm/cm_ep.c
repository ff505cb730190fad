/* SPDX-License-Identifier: Apache-2.0
 * Names into addresses; endpoints, which are an id with its route and its queue pair in one call. */
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "emu/cm/cm.h"

int rpoll(struct pollfd *fds, nfds_t nfds, int timeout);

/* ---- names ------------------------------------------------------------------------ */

void rdma_freeaddrinfo(struct rdma_addrinfo *all) {
  for (struct rdma_addrinfo *next; all; all = next) {
    next = all->ai_next;
    free(all->ai_src_addr);
    free(all->ai_dst_addr);
    free(all->ai_src_canonname);
    free(all->ai_dst_canonname);
    free(all->ai_route);
    free(all->ai_connect);
    free(all);
  }
}

static struct sockaddr *copy(const struct sockaddr *from, socklen_t size) {
  struct sockaddr *to = malloc(size);
  if (to) memcpy(to, from, size);
  return to;
}

static struct rdma_addrinfo *convert(const struct addrinfo *from, const struct rdma_addrinfo *hints) {
  struct rdma_addrinfo *to = calloc(1, sizeof *to);
  bool passive = hints->ai_flags & RAI_PASSIVE;
  if (!to) return NULL;
  to->ai_flags = hints->ai_flags;
  to->ai_family = from->ai_family;
  to->ai_port_space = from->ai_socktype == SOCK_DGRAM ? RDMA_PS_UDP : RDMA_PS_TCP;
  to->ai_qp_type = from->ai_socktype == SOCK_DGRAM ? IBV_QPT_UD : IBV_QPT_RC;
  struct sockaddr *addr = copy(from->ai_addr, from->ai_addrlen), *src = NULL;
  if (!passive && hints->ai_src_addr && hints->ai_src_len) src = copy(hints->ai_src_addr, hints->ai_src_len);
  *(passive ? &to->ai_src_addr : &to->ai_dst_addr) = addr;
  *(passive ? &to->ai_src_len : &to->ai_dst_len) = from->ai_addrlen;
  if (src) {
    to->ai_src_addr = src;
    to->ai_src_len = hints->ai_src_len;
  }
  if (addr) return to;
  rdma_freeaddrinfo(to);
  return NULL;
}

/* An address without a name: the hints have it. */
static int from_hints(const struct rdma_addrinfo *hints, struct rdma_addrinfo **result) {
  struct rdma_addrinfo *to = calloc(1, sizeof *to);
  if (!to) return cm_result(ENOMEM);
  to->ai_flags = hints->ai_flags;
  to->ai_family = hints->ai_src_len ? hints->ai_src_addr->sa_family : hints->ai_dst_addr->sa_family;
  to->ai_port_space = hints->ai_port_space ? hints->ai_port_space : RDMA_PS_TCP;
  to->ai_qp_type = hints->ai_qp_type ? hints->ai_qp_type : IBV_QPT_RC;
  if (hints->ai_src_len) to->ai_src_addr = copy(hints->ai_src_addr, hints->ai_src_len);
  if (hints->ai_dst_len) to->ai_dst_addr = copy(hints->ai_dst_addr, hints->ai_dst_len);
  to->ai_src_len = to->ai_src_addr ? hints->ai_src_len : 0;
  to->ai_dst_len = to->ai_dst_addr ? hints->ai_dst_len : 0;
  *result = to;
  return 0;
}

int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *given,
                     struct rdma_addrinfo **result) {
  static const struct rdma_addrinfo none;
  const struct rdma_addrinfo *hints = given ? given : &none;
  if (!node && !service) {
    if (!hints->ai_src_len && !hints->ai_dst_len) return cm_result(EINVAL);
    return from_hints(hints, result);
  }
  bool datagrams = hints->ai_port_space == RDMA_PS_UDP || hints->ai_qp_type == IBV_QPT_UD;
  struct addrinfo want = {.ai_socktype = datagrams ? SOCK_DGRAM : SOCK_STREAM, .ai_family = hints->ai_family}, *all;
  if (hints->ai_flags & RAI_PASSIVE) want.ai_flags |= AI_PASSIVE;
  if (hints->ai_flags & RAI_NUMERICHOST) want.ai_flags |= AI_NUMERICHOST;
  int err = getaddrinfo(node, service, &want, &all);
  if (err) {
    errno = err == EAI_SYSTEM ? errno : EINVAL;
    return err;
  }
  struct rdma_addrinfo *first = NULL, **end = &first;
  for (const struct addrinfo *a = all; a; a = a->ai_next) {
    *end = convert(a, hints);
    if (!*end) break;
    end = &(*end)->ai_next;
  }
  freeaddrinfo(all);
  *result = first;
  return first ? 0 : cm_result(ENOMEM);
}

/* ---- endpoints ------------------------------------------------------------------------ */

static int make_passive(struct rdma_cm_id *id, struct rdma_addrinfo *res, struct ibv_pd *pd,
                        const struct ibv_qp_init_attr *init) {
  if (rdma_bind_addr(id, res->ai_src_addr) != 0) return -1;
  id->pd = pd;
  if (!init) return 0;
  cm_id_of(id)->ep_attr = malloc(sizeof *init);
  if (!cm_id_of(id)->ep_attr) return cm_result(ENOMEM);
  *cm_id_of(id)->ep_attr = *init;
  return 0;
}

int rdma_create_ep(struct rdma_cm_id **out, struct rdma_addrinfo *res, struct ibv_pd *pd,
                   struct ibv_qp_init_attr *init) {
  struct rdma_cm_id *id;
  if (rdma_create_id(NULL, &id, NULL, (enum rdma_port_space)res->ai_port_space) != 0) return -1;
  id->qp_type = (enum ibv_qp_type)res->ai_qp_type;
  int result;
  if (res->ai_flags & RAI_PASSIVE) {
    result = make_passive(id, res, pd, init);
  } else {
    result = rdma_resolve_addr(id, res->ai_src_addr, res->ai_dst_addr, 2000);
    if (result == 0) result = rdma_resolve_route(id, 2000);
    if (result == 0 && init) {
      init->qp_type = (enum ibv_qp_type)res->ai_qp_type;
      result = rdma_create_qp(id, pd, init);
    }
  }
  if (result == 0) {
    *out = id;
    return 0;
  }
  int err = errno;
  rdma_destroy_ep(id);
  return cm_result(err);
}

void rdma_destroy_ep(struct rdma_cm_id *id) {
  if (id->qp) rdma_destroy_qp(id);
  rdma_destroy_id(id);
}

int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **out) {
  struct cm_id *l = cm_id_of(listen);
  struct rdma_cm_event *event;
  if (!l->sync) return cm_result(EINVAL);
  if (listen->event) rdma_ack_cm_event(listen->event);
  listen->event = NULL;
  if (rdma_get_cm_event(listen->channel, &event) != 0) return -1;
  if (event->status || event->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
    int err = event->status < 0 ? -event->status : EINVAL;
    struct rdma_cm_id *unused = event->event == RDMA_CM_EVENT_CONNECT_REQUEST ? event->id : NULL;
    rdma_ack_cm_event(event);
    if (unused) rdma_destroy_id(unused);
    return cm_result(err);
  }
  struct rdma_cm_id *id = event->id;
  if (l->ep_attr) {
    struct ibv_qp_init_attr init = *l->ep_attr;
    init.qp_type = listen->qp_type;
    if (rdma_create_qp(id, listen->pd, &init) != 0) {
      int err = errno;
      (void)rdma_reject(id, NULL, 0);
      rdma_ack_cm_event(event);
      rdma_destroy_id(id);
      return cm_result(err);
    }
  }
  id->event = event;
  *out = id;
  return 0;
}

/* Programs that ask for it wait for channels with it; there are no rsockets here. */
int rpoll(struct pollfd *fds, nfds_t nfds, int timeout) { return poll(fds, nfds, timeout); }
