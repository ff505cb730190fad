/* SPDX-License-Identifier: Apache-2.0
 * What is offered: lists of struct fi_info, which are the caller's, and strings. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/preload/fakefabric/ff.h"

/* Primary capabilities are given when they are asked for, or where none is, but for FI_HMEM; these always. */
#define SECONDARY (FI_SOURCE | FI_MULTI_RECV | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV)
#define RMA_DIRECTIONS (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)

static void count_info(long by) {
  ff_lock();
  ff.live[FF_INFO] += by;
  ff_unlock();
}

/* ---- making, copying, freeing ------------------------------------------ */

static void *dup_memory(const void *from, size_t size) {
  void *p = from ? malloc(size) : NULL;
  if (p) memcpy(p, from, size);
  return p;
}
static char *dup_text(const char *text) { return text && text[0] ? dup_memory(text, strlen(text) + 1) : NULL; }

static void free_nic(struct fid_nic *nic) {
  if (!nic) return;
  if (nic->device_attr) free(nic->device_attr->name);
  if (nic->link_attr) {
    free(nic->link_attr->address);
    free(nic->link_attr->network_type);
  }
  free(nic->device_attr);
  free(nic->bus_attr);
  free(nic->link_attr);
  free(nic);
}

static int nic_close(struct fid *fid) {
  free_nic((struct fid_nic *)(void *)fid);
  return 0;
}
static struct fi_ops nic_ops = {sizeof nic_ops, nic_close, ff_no_bind, ff_no_control, ff_no_ops, NULL, NULL};

static struct fid_nic *dup_nic(const struct fid_nic *from) {
  struct fid_nic *nic = dup_memory(from, sizeof *nic);
  if (!nic) return NULL;
  nic->device_attr = dup_memory(from->device_attr, sizeof *from->device_attr);
  nic->bus_attr = dup_memory(from->bus_attr, sizeof *from->bus_attr);
  nic->link_attr = dup_memory(from->link_attr, sizeof *from->link_attr);
  if (nic->device_attr) nic->device_attr->name = dup_text(from->device_attr->name);
  if (nic->link_attr) {
    nic->link_attr->address = dup_text(from->link_attr->address);
    nic->link_attr->network_type = dup_text(from->link_attr->network_type);
  }
  return nic;
}

struct fi_info *fi_dupinfo(const struct fi_info *from) {
  static struct fi_info empty; /* of which all parts are there */
  static struct fi_tx_attr tx;
  static struct fi_rx_attr rx;
  static struct fi_ep_attr ep;
  static struct fi_domain_attr domain;
  static struct fi_fabric_attr fabric;
  bool blank = !from;
  struct fi_info *info = dup_memory(from ? from : &empty, sizeof *info);
  if (!info) return NULL;
  info->next = NULL;
  info->src_addr = blank ? NULL : dup_memory(from->src_addr, from->src_addrlen);
  info->dest_addr = blank ? NULL : dup_memory(from->dest_addr, from->dest_addrlen);
  info->tx_attr = dup_memory(blank ? &tx : from->tx_attr, sizeof tx);
  info->rx_attr = dup_memory(blank ? &rx : from->rx_attr, sizeof rx);
  info->ep_attr = dup_memory(blank ? &ep : from->ep_attr, sizeof ep);
  info->domain_attr = dup_memory(blank ? &domain : from->domain_attr, sizeof domain);
  info->fabric_attr = dup_memory(blank ? &fabric : from->fabric_attr, sizeof fabric);
  info->nic = blank ? NULL : dup_nic(from->nic);
  if (info->domain_attr) info->domain_attr->name = dup_text(info->domain_attr->name);
  if (info->fabric_attr) {
    info->fabric_attr->name = dup_text(info->fabric_attr->name);
    info->fabric_attr->prov_name = dup_text(info->fabric_attr->prov_name);
  }
  count_info(1);
  return info;
}

void fi_freeinfo(struct fi_info *info) {
  while (info) {
    struct fi_info *next = info->next;
    if (info->domain_attr) free(info->domain_attr->name);
    if (info->fabric_attr) {
      free(info->fabric_attr->name);
      free(info->fabric_attr->prov_name);
    }
    free(info->src_addr);
    free(info->dest_addr);
    free(info->tx_attr);
    free(info->rx_attr);
    free(info->ep_attr);
    free(info->domain_attr);
    free(info->fabric_attr);
    free_nic(info->nic);
    free(info);
    count_info(-1);
    info = next;
  }
}

/* ---- fi_getinfo -------------------------------------------------------- */

struct ff_nic *ff_nic_of(const struct fi_info *info) {
  for (unsigned int i = 0; info->domain_attr->name && i < ff.nnics; i++)
    if (strcmp(ff.nics[i].name, info->domain_attr->name) == 0 &&
        (!info->fabric_attr || !info->fabric_attr->prov_name ||
         strcmp(ff.nics[i].prov, info->fabric_attr->prov_name) == 0))
      return &ff.nics[i];
  return NULL;
}

/* The stricter the caller's promise (safe: none at all), the fewer providers can do with it. */
static int rank_of(uint64_t threading) {
  static const uint64_t order[] = {
    FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_ENDPOINT, FI_THREAD_COMPLETION, FI_THREAD_DOMAIN};
  for (int i = 0; i < 5; i++)
    if (order[i] == threading) return i;
  return 5;
}

/* One of the names that ';' joins, or all. */
static bool is_provider(const char *prov, const char *wanted) {
  size_t n = strlen(wanted);
  if (strcmp(prov, wanted) == 0) return true;
  for (const char *at = prov; at; at = strchr(at, ';') ? strchr(at, ';') + 1 : NULL)
    if (strncmp(at, wanted, n) == 0 && (at[n] == 0 || at[n] == ';')) return true;
  return false;
}

/* Bits of mr_mode that the caller must know, for the capabilities that it asks for. */
static uint64_t needed_mr_mode(const struct ff_nic *nic, uint64_t caps) {
  uint64_t mode = nic->mr_mode;
  if (!(caps & FI_RMA)) mode &= ~(uint64_t)(FI_MR_VIRT_ADDR | FI_MR_PROV_KEY);
  if (!(caps & FI_HMEM)) mode &= ~(uint64_t)FI_MR_HMEM;
  return mode;
}

static bool fits(const struct ff_nic *nic, const struct fi_info *h, uint64_t caps) {
  const struct fi_tx_attr *tx = h->tx_attr;
  const struct fi_rx_attr *rx = h->rx_attr;
  const struct fi_ep_attr *ep = h->ep_attr;
  const struct fi_domain_attr *d = h->domain_attr;
  const struct fi_fabric_attr *f = h->fabric_attr;
  uint64_t comp = nic->strict ? FF_ORDER_STRICT : 0, op_flags = nic->delivery ? FI_DELIVERY_COMPLETE : 0;
  op_flags |= FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_MULTI_RECV;
  if ((caps & ~nic->caps) || (nic->mode & ~h->mode)) return false;
  if (h->addr_format && h->addr_format != nic->addr_format) return false;
  if (f && f->prov_name && !is_provider(nic->prov, f->prov_name)) return false;
  if (f && f->name && strcmp(f->name, nic->fabric) != 0) return false;
  if (tx && ((tx->msg_order & ~nic->order) || (tx->comp_order & ~comp) || (tx->op_flags & ~op_flags))) return false;
  if (tx && (tx->inject_size > nic->inject || tx->size > nic->tx_size || tx->iov_limit > nic->iov)) return false;
  if (rx && ((rx->msg_order & ~nic->order) || (rx->comp_order & ~comp) || rx->size > nic->rx_size)) return false;
  if (rx && rx->iov_limit > nic->iov) return false;
  if (ep && ((ep->type && ep->type != FI_EP_RDM) || ep->max_msg_size > nic->max_msg)) return false;
  if (ep && ep->mem_tag_format > nic->tag_format) return false;
  if (!d) return needed_mr_mode(nic, caps) == 0;
  if (d->name && strcmp(d->name, nic->name) != 0) return false;
  if (d->threading && rank_of(d->threading) < rank_of(nic->threading)) return false;
  if (d->data_progress == FI_PROGRESS_AUTO && nic->data != FI_PROGRESS_AUTO) return false;
  if (d->av_type && nic->av && d->av_type != nic->av) return false;
  if (d->resource_mgmt == FI_RM_ENABLED && !nic->rm) return false;
  if (d->cq_data_size > nic->cq_data || (d->mr_key_size && d->mr_key_size < nic->mr_key)) return false;
  return (needed_mr_mode(nic, caps) & ~(uint64_t)d->mr_mode) == 0;
}

static struct fid_nic *make_nic(const struct ff_nic *nic) {
  unsigned int d, b, s, f;
  struct fi_device_attr device = {.name = (char *)(uintptr_t)nic->name};
  struct fi_bus_attr bus = {.bus_type = FI_BUS_UNKNOWN};
  struct fi_link_attr link = {.address = (char *)(uintptr_t)nic->link_address, .mtu = 4096,
                              .speed = nic->speed * 1000000000, .state = (enum fi_link_state)nic->link,
                              .network_type = (char *)(uintptr_t)nic->net};
  struct fid_nic made = {.fid = {FI_CLASS_NIC, NULL, &nic_ops}, .device_attr = &device, .bus_attr = &bus,
                         .link_attr = &link};
  if (sscanf(nic->pci, "%x:%x:%x.%x", &d, &b, &s, &f) == 4) {
    bus.bus_type = FI_BUS_PCI;
    bus.attr.pci = (struct fi_pci_attr){(uint16_t)d, (uint8_t)b, (uint8_t)s, (uint8_t)f};
  }
  return dup_nic(&made);
}

/* h: the caller's hints, or NULL. */
static struct fi_info *make(const struct ff_nic *nic, const struct fi_info *h, uint64_t caps, uint32_t version) {
  struct fi_info *info = fi_dupinfo(NULL);
  char address[FF_ADDR];
  if (!info) return NULL;
  bool rma = caps & FI_RMA;
  info->caps = caps | (nic->caps & SECONDARY);
  if (!(caps & (FI_SEND | FI_RECV))) info->caps |= FI_SEND | FI_RECV;
  if (rma && !(caps & RMA_DIRECTIONS)) info->caps |= nic->caps & RMA_DIRECTIONS;
  info->mode = nic->mode;
  info->addr_format = (uint32_t)nic->addr_format;
  info->src_addrlen = ff_address(nic, 0, address);
  info->src_addr = dup_memory(address, info->src_addrlen);
  *info->tx_attr = (struct fi_tx_attr){
    .caps = info->caps, .mode = nic->mode, .msg_order = nic->order, .comp_order = nic->strict ? FF_ORDER_STRICT : 0,
    .op_flags = h && h->tx_attr ? h->tx_attr->op_flags : 0, .inject_size = nic->inject, .size = nic->tx_size,
    .iov_limit = nic->iov, .rma_iov_limit = rma ? 1 : 0};
  *info->rx_attr = (struct fi_rx_attr){
    .caps = info->caps, .mode = nic->mode, .msg_order = nic->order, .comp_order = nic->strict ? FF_ORDER_STRICT : 0,
    .op_flags = h && h->rx_attr ? h->rx_attr->op_flags : 0, .size = nic->rx_size, .iov_limit = nic->iov};
  *info->ep_attr = (struct fi_ep_attr){
    .type = FI_EP_RDM, .protocol = FI_PROTO_UNSPEC, .protocol_version = 1, .max_msg_size = nic->max_msg,
    .max_order_raw_size = nic->max_msg, .max_order_war_size = nic->max_msg, .max_order_waw_size = nic->max_msg,
    .mem_tag_format = nic->tag_format, .tx_ctx_cnt = 1, .rx_ctx_cnt = 1};
  *info->domain_attr = (struct fi_domain_attr){
    .name = dup_text(nic->name), .threading = (enum fi_threading)nic->threading,
    .control_progress = FI_PROGRESS_MANUAL, .data_progress = (enum fi_progress)nic->data,
    .resource_mgmt = nic->rm ? FI_RM_ENABLED : FI_RM_DISABLED, .av_type = (enum fi_av_type)nic->av,
    .mr_mode = (int)(h ? needed_mr_mode(nic, caps) : nic->mr_mode), .mr_key_size = nic->mr_key,
    .cq_data_size = nic->cq_data, .cq_cnt = nic->cq_cnt, .ep_cnt = nic->ep_cnt, .tx_ctx_cnt = 1, .rx_ctx_cnt = 1,
    .max_ep_tx_ctx = 1, .max_ep_rx_ctx = 1, .mr_iov_limit = 1, .mr_cnt = nic->mr_cnt,
    .caps = nic->caps & (FI_LOCAL_COMM | FI_REMOTE_COMM), .max_err_data = 64};
  if (h && h->domain_attr && h->domain_attr->threading) info->domain_attr->threading = h->domain_attr->threading;
  if (h && h->domain_attr && h->domain_attr->av_type) info->domain_attr->av_type = h->domain_attr->av_type;
  *info->fabric_attr = (struct fi_fabric_attr){
    .name = dup_text(nic->fabric), .prov_name = dup_text(nic->prov), .prov_version = FI_VERSION(1, 17),
    .api_version = version};
  info->nic = nic->nic_attr ? make_nic(nic) : NULL;
  return info;
}

int fi_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
               struct fi_info **list) {
  struct ff_nic nics[FF_NICS];
  struct fi_info **last = list;
  (void)node, (void)service, (void)flags;
  *list = NULL;
  ff_lock();
  ff_load();
  int err = ff_fault("getinfo");
  unsigned int n = ff.none ? 0 : ff.nnics;
  memcpy(nics, ff.nics, sizeof nics);
  ff_unlock();
  if (err) return err;
  if (version > FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION)) return -FI_ENOSYS;
  for (unsigned int i = 0; i < n; i++) {
    uint64_t caps = hints && hints->caps ? hints->caps : nics[i].caps;
    if (hints && !hints->caps) caps &= ~(uint64_t)FI_HMEM; /* as efa: who does not ask for it does not get it */
    if (hints && !fits(&nics[i], hints, caps)) continue;
    *last = make(&nics[i], hints, caps, version);
    if (*last) last = &(*last)->next;
  }
  return *list ? 0 : -FI_ENODATA;
}

/* ---- parameters -------------------------------------------------------- */

int fi_getparams(struct fi_param **params, int *count) {
  static const struct fi_param known[] = {{"FI_PROVIDER", FI_PARAM_STRING, "which providers", NULL},
                                          {"FI_HMEM_CUDA_USE_GDRCOPY", FI_PARAM_BOOL, "how memory is copied", NULL}};
  ff_lock();
  ff_load();
  *count = ff.cuda ? 2 : 1;
  ff_unlock();
  *params = dup_memory(known, sizeof known);
  return *params ? 0 : -FI_ENOMEM;
}

void fi_freeparams(struct fi_param *params) { free(params); }

/* ---- strings ----------------------------------------------------------- */

uint32_t fi_version(void) { return FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION); }

const char *fi_strerror(int err) {
  static const char *const texts[] = {
    "Unspecified error", "Provided buffer is too small", "Operation not permitted in current state",
    "Error available", "Flags not supported", "Missing or unavailable event queue", "Invalid resource domain",
    "Missing or unavailable completion queue", "CRC error", "Truncation error", "Required key not available",
    "Missing or unavailable address vector", "Queue has been overrun",
    "Receiver not ready, no receive buffers available"};
  err = err < 0 ? -err : err;
  if (err < FI_ERRNO_OFFSET) return strerror(err);
  return err < FI_ERRNO_MAX ? texts[err - FI_ERRNO_OFFSET] : "Unspecified error";
}

/* Names where a log is read for them, numbers else. */
char *fi_tostr_r(char *buf, size_t len, const void *data, enum fi_type type) {
  const struct fi_info *info = data;
  if (type == FI_TYPE_INFO)
    ff_print(buf, len, "provider %s domain %s caps 0x%llx mode 0x%llx mr_mode 0x%x", info->fabric_attr->prov_name,
             info->domain_attr->name, (unsigned long long)info->caps, (unsigned long long)info->mode,
             (unsigned int)info->domain_attr->mr_mode);
  else if (type == FI_TYPE_CAPS || type == FI_TYPE_MODE || type == FI_TYPE_MSG_ORDER || type == FI_TYPE_OP_FLAGS ||
           type == FI_TYPE_CQ_EVENT_FLAGS)
    ff_print(buf, len, "0x%llx", (unsigned long long)*(const uint64_t *)data);
  else ff_print(buf, len, "%d", *(const int *)data);
  return buf;
}

char *fi_tostr(const void *data, enum fi_type type) {
  static _Thread_local char text[256];
  return fi_tostr_r(text, sizeof text, data, type);
}
