/* SPDX-License-Identifier: Apache-2.0
 * Endpoints, their addresses, and address vectors. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/preload/fakefabric/ff.h"

/* ---- addresses: an endpoint's number, in one of four formats ----------- */

size_t ff_address(const struct ff_nic *nic, uint32_t number, void *addr) {
  memset(addr, 0, FF_ADDR);
  if (nic->addr_format == FI_SOCKADDR_IN) {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)number)};
    in.sin_addr.s_addr = htonl(0x7f000001 + (uint32_t)nic->index);
    memcpy(addr, &in, sizeof in);
    return sizeof in;
  }
  if (nic->addr_format == FI_SOCKADDR_IN6) {
    struct sockaddr_in6 in = {
        .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)number), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    memcpy(addr, &in, sizeof in);
    return sizeof in;
  }
  if (nic->addr_format == FI_ADDR_STR)
    return (size_t)ff_print(addr, FF_ADDR, "fi_fake://%u:%u", (unsigned int)nic->index, number) + 1;
  const uint32_t raw[FF_ADDR / 4] = {0xfabfab00u, (uint32_t)nic->index, number, 0, ~number};
  memcpy(addr, raw, sizeof raw);
  return sizeof raw;
}

/* 0: of no endpoint that there ever was. */
static uint32_t number_of(const struct ff_nic *nic, const void *addr) {
  uint32_t number = 0;
  struct sockaddr_in in;
  struct sockaddr_in6 in6;
  uint32_t raw[FF_ADDR / 4];
  char mine[FF_ADDR];
  switch (nic->addr_format) {
    case FI_SOCKADDR_IN: memcpy(&in, addr, sizeof in), number = ntohs(in.sin_port); break;
    case FI_SOCKADDR_IN6: memcpy(&in6, addr, sizeof in6), number = ntohs(in6.sin6_port); break;
    case FI_ADDR_STR: number = strrchr(addr, ':') ? (uint32_t)atol(strrchr(addr, ':') + 1) : 0; break;
    default: memcpy(raw, addr, sizeof raw), number = raw[2];
  }
  const struct ff_ep *ep = number < FF_EPS ? ff.ep_of[number] : NULL;
  size_t len = ep ? ff_address(&ep->o.domain->nic, number, mine) : 0;
  return ep && memcmp(mine, addr, len) == 0 ? number : 0;
}

/* ---- address vectors --------------------------------------------------- */

/* What FI_AV_MAP gives out is no index. */
#define MAP_BASE 0xfab0000000000000u

uint32_t ff_av_number(const struct ff_av *av, fi_addr_t addr) {
  uint64_t i = addr - (av->type == FI_AV_MAP ? MAP_BASE : 0);
  return i < av->count ? av->numbers[i] : 0;
}

fi_addr_t ff_av_addr(const struct ff_av *av, uint32_t number) {
  for (uint64_t i = 0; i < av->count; i++)
    if (av->numbers[i] == number) return i + (av->type == FI_AV_MAP ? MAP_BASE : 0);
  return FI_ADDR_NOTAVAIL;
}

static bool is_full(const struct ff_av *av) {
  uint64_t n = 0;
  for (uint64_t i = 0; i < av->count; i++) n += av->numbers[i] != 0;
  return ff.av_size && n >= ff.av_size;
}

static bool make_room(struct ff_av *av) {
  if (av->count < av->room) return true;
  uint64_t room = av->room ? 2 * av->room : 64;
  uint32_t *numbers = ff_alloc(room * sizeof *numbers);
  if (!numbers) return false;
  if (av->numbers) memcpy(numbers, av->numbers, av->count * sizeof *numbers);
  ff_free(av->numbers);
  av->numbers = numbers;
  av->room = room;
  return true;
}

/* Number that no endpoint has, for addresses that nothing is behind. */
enum { NOWHERE = FF_EPS - 1 };

static int av_insert(struct fid_av *fid, const void *addr, size_t n, fi_addr_t *out, uint64_t flags, void *context) {
  struct ff_av *av = (struct ff_av *)(void *)fid;
  const struct ff_nic *nic = &av->o.domain->nic;
  char one[FF_ADDR];
  (void)context;
  if (!ff_enter(&av->o, "fi_av_insert")) return -FI_EBADF;
  int err = flags & ~(uint64_t)FI_MORE ? -FI_EBADFLAGS : ff_fault("av_insert");
  const char *at = addr;
  for (size_t i = 0; i < n && !err; i++) {
    if (is_full(av)) err = -FI_ENOSPC;
    else if (!make_room(av)) err = -FI_ENOMEM;
    uint32_t number = number_of(nic, at);
    at += nic->addr_format == FI_ADDR_STR ? strlen(at) + 1 : ff_address(nic, 0, one);
    if (out) out[i] = av->count + (av->type == FI_AV_MAP ? MAP_BASE : 0);
    if (!err) av->numbers[av->count++] = number ? number : NOWHERE;
  }
  ff_leave(&av->o);
  return err ? err : (int)n;
}

static int av_remove(struct fid_av *fid, fi_addr_t *addr, size_t n, uint64_t flags) {
  struct ff_av *av = (struct ff_av *)(void *)fid;
  (void)flags;
  if (!ff_enter(&av->o, "fi_av_remove")) return -FI_EBADF;
  int err = 0;
  for (size_t i = 0; i < n; i++) {
    if (ff_av_number(av, addr[i])) av->numbers[addr[i] - (av->type == FI_AV_MAP ? MAP_BASE : 0)] = 0;
    else err = -FI_EINVAL, ff_violate("fi_av_remove of an address that is not in it");
  }
  ff_leave(&av->o);
  return err;
}

static int av_lookup(struct fid_av *fid, fi_addr_t addr, void *out, size_t *len) {
  struct ff_av *av = (struct ff_av *)(void *)fid;
  char full[FF_ADDR];
  if (!ff_enter(&av->o, "fi_av_lookup")) return -FI_EBADF;
  uint32_t number = ff_av_number(av, addr);
  size_t n = ff_address(&av->o.domain->nic, number, full);
  if (number) memcpy(out, full, n < *len ? n : *len);
  *len = n;
  ff_leave(&av->o);
  return number ? 0 : -FI_EINVAL;
}

static const char *av_straddr(struct fid_av *fid, const void *addr, char *buf, size_t *len) {
  struct ff_av *av = (struct ff_av *)(void *)fid;
  if (!ff_enter(&av->o, "fi_av_straddr")) return NULL;
  int n = ff_print(buf, *len, "fake endpoint %u", number_of(&av->o.domain->nic, addr));
  *len = (size_t)n + 1;
  ff_leave(&av->o);
  return buf;
}

static int av_close(struct fid *fid) {
  struct ff_av *av = (struct ff_av *)(void *)fid;
  if (!ff_enter(&av->o, "fi_close")) return -FI_EBADF;
  int err = ff_shut(&av->o);
  ff_leave(&av->o);
  return err;
}

static struct fi_ops av_fid_ops = {sizeof av_fid_ops, av_close, ff_no_bind, ff_no_control, ff_no_ops, NULL, NULL};
static struct fi_ops_av av_ops = {.size = sizeof av_ops, .insert = av_insert, .remove = av_remove,
                                  .lookup = av_lookup, .straddr = av_straddr};

int ff_av_open(struct fid_domain *fid, struct fi_av_attr *attr, struct fid_av **out, void *context) {
  struct ff_domain *d = (struct ff_domain *)(void *)fid;
  if (!ff_enter(&d->o, "fi_av_open")) return -FI_EBADF;
  int err = ff_fault("av_open");
  if (!err && (attr->flags || (d->nic.av && attr->type && attr->type != d->nic.av))) err = -FI_EINVAL;
  struct ff_av *av = err ? NULL : ff_alloc(sizeof *av);
  if (av) {
    av->fid = (struct fid_av){{FI_CLASS_AV, context, &av_fid_ops}, &av_ops};
    av->type = attr->type ? attr->type : d->nic.av ? (enum fi_av_type)d->nic.av : FI_AV_TABLE;
    attr->type = av->type;
    ff_open(&av->o, FF_AV, &d->o);
    *out = &av->fid;
  }
  ff_leave(&d->o);
  return err ? err : av ? 0 : -FI_ENOMEM;
}

/* ---- endpoints --------------------------------------------------------- */

static int bind_cq(struct ff_ep *ep, struct ff_cq *cq, uint64_t flags) {
  bool tx = flags & FI_TRANSMIT, rx = flags & FI_RECV;
  if (!tx && !rx) return -FI_EBADFLAGS;
  if ((tx && ep->tx_cq) || (rx && ep->rx_cq)) return -FI_EINVAL;
  if (tx) ep->tx_cq = cq, ep->tx_selective = flags & FI_SELECTIVE_COMPLETION;
  if (rx) ep->rx_cq = cq, ep->rx_selective = flags & FI_SELECTIVE_COMPLETION;
  cq->o.users += (tx ? 1u : 0u) + (rx ? 1u : 0u);
  return 0;
}

static int ep_bind(struct fid *fid, struct fid *to, uint64_t flags) {
  struct ff_ep *ep = (struct ff_ep *)(void *)fid;
  if (!ff_enter(&ep->o, "fi_ep_bind")) return -FI_EBADF;
  int err = ff_fault("ep_bind");
  struct ff_av *av = (struct ff_av *)(void *)to;
  struct ff_cq *cq = (struct ff_cq *)(void *)to;
  const struct ff_object *o = to->fclass == FI_CLASS_AV ? &av->o : to->fclass == FI_CLASS_CQ ? &cq->o : NULL;
  if (!err && (ep->enabled || !o || o->closed || o->domain != ep->o.domain)) {
    ff_violate("fi_ep_bind of an enabled endpoint, or to what is closed, no AV, no CQ, or another domain's");
    err = -FI_EINVAL;
  } else if (!err && o == &cq->o && to->fclass == FI_CLASS_CQ) err = bind_cq(ep, cq, flags);
  else if (!err && !ep->av) ep->av = av, av->o.users++;
  else if (!err) err = -FI_EINVAL;
  ff_leave(&ep->o);
  return err;
}

static int ep_control(struct fid *fid, int command, void *arg) {
  struct ff_ep *ep = (struct ff_ep *)(void *)fid;
  (void)arg;
  if (command != FI_ENABLE) return -FI_ENOSYS;
  if (!ff_enter(&ep->o, "fi_enable")) return -FI_EBADF;
  int err = ff_fault("enable");
  if (!err) err = ep->enabled ? -FI_EOPBADSTATE : !ep->tx_cq || !ep->rx_cq ? -FI_ENOCQ : !ep->av ? -FI_ENOAV : 0;
  if (err == -FI_EOPBADSTATE || err == -FI_ENOCQ || err == -FI_ENOAV) ff_violate("fi_enable: %s", fi_strerror(err));
  if (!err) ep->enabled = true;
  ff_leave(&ep->o);
  return err;
}

static int ep_close(struct fid *fid) {
  struct ff_ep *ep = (struct ff_ep *)(void *)fid;
  if (!ff_enter(&ep->o, "fi_close")) return -FI_EBADF;
  ep->closing = ep->bound != 0;
  int err = ep->bound ? -FI_EBUSY : ff_shut(&ep->o);
  if (!err) {
    ff_drop(ep);
    if (ep->tx_cq) ep->tx_cq->o.users--;
    if (ep->rx_cq) ep->rx_cq->o.users--;
    if (ep->av) ep->av->o.users--;
    struct ff_ep **at = &ff.eps;
    while (*at != ep) at = &(*at)->next;
    *at = ep->next;
  }
  ff_leave(&ep->o);
  return err;
}

static int ep_getname(fid_t fid, void *addr, size_t *len) {
  struct ff_ep *ep = (struct ff_ep *)(void *)fid;
  char full[FF_ADDR];
  if (!ff_enter(&ep->o, "fi_getname")) return -FI_EBADF;
  int err = ff_fault("getname");
  size_t n = ff_address(&ep->o.domain->nic, ep->number, full);
  if (!err && !ep->enabled) {
    ff_violate("fi_getname of an endpoint that is not enabled");
    err = -FI_EOPBADSTATE;
  }
  if (!err) memcpy(addr, full, n < *len ? n : *len);
  if (!err && *len < n) err = -FI_ETOOSMALL;
  *len = n;
  ff_leave(&ep->o);
  return err;
}

static int ep_getopt(fid_t fid, int level, int name, void *value, size_t *len) {
  struct ff_ep *ep = (struct ff_ep *)(void *)fid;
  if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV || *len < sizeof(size_t)) return -FI_ENOPROTOOPT;
  if (!ff_enter(&ep->o, "fi_getopt")) return -FI_EBADF;
  *(size_t *)value = ep->min_multi_recv;
  *len = sizeof(size_t);
  ff_leave(&ep->o);
  return 0;
}

static int ep_setopt(fid_t fid, int level, int name, const void *value, size_t len) {
  struct ff_ep *ep = (struct ff_ep *)(void *)fid;
  if (!ff_enter(&ep->o, "fi_setopt")) return -FI_EBADF;
  int err = ff_fault("setopt");
  if (!err && (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV || len != sizeof(size_t)))
    err = -FI_ENOPROTOOPT;
  if (!err) ep->min_multi_recv = *(const size_t *)value;
  ff_leave(&ep->o);
  return err;
}

static struct fi_ops ep_fid_ops = {sizeof ep_fid_ops, ep_close, ep_bind, ep_control, ff_no_ops, NULL, NULL};
static struct fi_ops_ep ep_ops = {.size = sizeof ep_ops, .cancel = ff_cancel, .getopt = ep_getopt, .setopt = ep_setopt};
static struct fi_ops_cm cm_ops = {.size = sizeof cm_ops, .getname = ep_getname};

int ff_endpoint(struct fid_domain *fid, struct fi_info *info, struct fid_ep **out, void *context) {
  struct ff_domain *d = (struct ff_domain *)(void *)fid;
  if (!ff_enter(&d->o, "fi_endpoint")) return -FI_EBADF;
  int err = ff_fault("endpoint");
  if (!err && (info->ep_attr->type != FI_EP_RDM || (info->caps & ~d->nic.caps) ||
               strcmp(info->domain_attr->name, d->nic.name) != 0)) err = -FI_EINVAL;
  if (!err && (ff.neps + 2 >= FF_EPS || (d->nic.ep_cnt && (uint64_t)ff.live[FF_EP] >= d->nic.ep_cnt))) err = -FI_ENOSPC;
  struct ff_ep *ep = err ? NULL : ff_alloc(sizeof *ep);
  if (ep) {
    ep->fid = (struct fid_ep){.fid = {FI_CLASS_EP, context, &ep_fid_ops}, .ops = &ep_ops, .cm = &cm_ops,
                              .msg = &ff_msg_ops, .rma = &ff_rma_ops, .tagged = &ff_tagged_ops};
    ep->caps = info->caps;
    ep->tx_flags = info->tx_attr ? info->tx_attr->op_flags : 0;
    ep->rx_flags = info->rx_attr ? info->rx_attr->op_flags : 0;
    ep->tx_size = info->tx_attr && info->tx_attr->size ? info->tx_attr->size : d->nic.tx_size;
    ep->rx_size = info->rx_attr && info->rx_attr->size ? info->rx_attr->size : d->nic.rx_size;
    ep->inject = d->nic.inject;
    ep->min_multi_recv = 64;
    ep->number = ++ff.neps;
    ff.ep_of[ep->number] = ep;
    ep->next = ff.eps;
    ff.eps = ep;
    ff_open(&ep->o, FF_EP, &d->o);
    *out = &ep->fid;
  }
  ff_leave(&d->o);
  return err ? err : ep ? 0 : -FI_ENOMEM;
}
