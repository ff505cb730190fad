/* SPDX-License-Identifier: Apache-2.0
 * HCAs and their ports are found here. */
#include "plugin/ib/ib_hca.h"

#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "plugin/ib/ib_hca_filter.h"
#include "plugin/ib/ib_mr_cache.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_sysfs.h"

/* Not allocated: nothing to free at dlclose, and what was handed out stays. */
static struct ib_hca hcas[IB_MAX_PORTS];
static unsigned int nhcas;
static struct ib_port found[IB_MAX_PORTS];
static unsigned int nfound;

unsigned int ib_hca_count(void) { return nhcas; }
struct ib_hca *ib_hca_at(unsigned int i) { return &hcas[i]; }

/* ---- one HCA ---------------------------------------------------------------- */

/* Of the card, the same for its ports and functions; never 0, by which NCCL means "unknown". */
static uint64_t guid_of(const struct ib_hca *hca) {
  uint64_t guid = be64toh(hca->attr.sys_image_guid);
  if (!guid) guid = be64toh(hca->attr.node_guid);
  for (const char *c = hca->name; !guid && *c; c++) guid = guid * 31 + (unsigned char)*c;
  return guid;
}

static bool wants_relaxed_ordering(void) {
  if (ib_params.relaxed_ordering == 0) return false;
  if (ib_verbs.reg_mr_iova2) return true;
  if (ib_params.relaxed_ordering == 1)
    RAIL_WARN("RailIB: NCCL_IB_PCI_RELAXED_ORDERING=1 needs a libibverbs with ibv_reg_mr_iova2 (rdma-core 28); "
              "ordering is strict");
  return false;
}

/* retry_cnt has 3 bits. Soft-RoCE takes 7 for "for ever" (Linux 6.1, drivers/infiniband/sw/rxe/rxe_comp.c): a dead link
 * would never be an error. */
static unsigned int max_retries_of(const struct ib_hca *hca) {
  enum { SOFT_ROCE = 0xffffff };
  return hca->attr.vendor_id == SOFT_ROCE ? 6 : 7;
}

/* A driver that has it looks at the descriptor first, and says that -1 is none. */
static bool has_dmabuf(struct ibv_pd *pd) {
  if (!ib_verbs.reg_dmabuf_mr) return false;
  errno = 0;
  struct ibv_mr *mr = ib_verbs.reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
  if (mr) (void)ib_verbs.dereg_mr(mr);
  return mr || errno == EBADF;
}

static void close_hca(struct ib_hca *hca) {
  if (hca->mrs) ib_mr_cache_close(hca->mrs);
  int err = hca->pd ? ib_verbs.dealloc_pd(hca->pd) : 0;
  if (err) /* connections that nobody closed: they and what they lie on go when the process ends */
    RAIL_INFO(RAIL_SUB_NET, "RailIB: %s stays open (ibv_dealloc_pd): %s", hca->name, strerror(err));
  else if (hca->context) (void)ib_verbs.close_device(hca->context);
  hca->mrs = NULL;
  hca->pd = NULL;
  hca->context = NULL;
}

/* Context and attributes. False after one line. */
static bool open_hca(struct ib_hca *hca, struct ibv_device *device) {
  hca->context = ib_verbs.open_device(device);
  if (!hca->context) {
    RAIL_WARN("RailIB: %s cannot be opened: %s; it is left out. Is /dev/infiniband there and accessible (in a "
              "container, too)?", hca->name, strerror(errno));
    return false;
  }
  int err = ib_verbs.query_device(hca->context, &hca->attr);
  if (!err) return true;
  RAIL_WARN("RailIB: %s cannot be asked what it is (ibv_query_device): %s; it is left out", hca->name, strerror(err));
  close_hca(hca);
  return false;
}

/* What connections need of an HCA one of whose ports is used. False after one line. */
static bool equip_hca(struct ib_hca *hca) {
  hca->pd = ib_verbs.alloc_pd(hca->context);
  hca->mrs = hca->pd ? ib_mr_cache_open(hca) : NULL;
  if (!hca->mrs) {
    RAIL_WARN("RailIB: %s: no protection domain (ibv_alloc_pd): %s; it is left out", hca->name, strerror(errno));
    return false;
  }
  hca->max_retries = max_retries_of(hca);
  hca->relaxed_ordering = wants_relaxed_ordering();
  hca->dmabuf = has_dmabuf(hca->pd);
  hca->gpu_direct = ib_sysfs_has_peer_memory(ib_sysfs_root());
  return true;
}

/* ---- its ports ---------------------------------------------------------------- */

/* Whether it is taken. */
static bool look_at_port(struct ib_hca *hca, uint8_t number, const struct ib_hca_filter *filter, const char *card) {
  struct ibv_port_attr attr = {0};
  int16_t rail, plane;
  if (!ib_hca_filter_passes(filter, hca->name, number, &rail, &plane)) return false;
  int err = ib_verbs.query_port(hca->context, number, &attr);
  if (err) {
    RAIL_WARN("RailIB: port %u of %s cannot be asked for its state (ibv_query_port): %s; it is left out", number,
              hca->name, strerror(err));
    return false;
  }
  bool roce = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  if (attr.state != IBV_PORT_ACTIVE || (!roce && attr.link_layer != IBV_LINK_LAYER_INFINIBAND)) {
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailIB: port %u of %s is %s; it is left out", number, hca->name,
              attr.state != IBV_PORT_ACTIVE ? "not active" : "neither InfiniBand nor Ethernet");
    return false;
  }
  if (nfound == IB_MAX_PORTS) {
    RAIL_WARN("RailIB: more than %d active ports; %s:%u is left out. NCCL_IB_HCA chooses", IB_MAX_PORTS, hca->name,
              number);
    return false;
  }
  struct ib_port *port = &found[nfound++];
  port->hca = hca;
  port->number = number;
  port->roce = roce;
  port->speed = ib_port_speed(hca->context, number, &attr);
  port->mtu = (uint8_t)attr.active_mtu;
  port->rail = rail;
  port->plane = plane;
  snprintf(port->pci_path, sizeof port->pci_path, "%s", card);
  if (hca->attr.phys_port_cnt > 1) snprintf(port->name, sizeof port->name, "%s:%u", hca->name, number);
  else snprintf(port->name, sizeof port->name, "%s", hca->name);
  return true;
}

/* A device of which no port can pass need not be opened. */
static bool may_pass(const struct ib_hca_filter *filter, const char *name) {
  int16_t rail, plane;
  for (int port = 1; port <= UINT8_MAX; port++)
    if (ib_hca_filter_passes(filter, name, port, &rail, &plane)) return true;
  return false;
}

static void look_at_device(struct ibv_device *device, const struct ib_hca_filter *filter) {
  const char *name = ib_verbs.get_device_name(device);
  unsigned int before = nfound;
  char card[256];
  if (!may_pass(filter, name) || nhcas == IB_MAX_PORTS) return;
  struct ib_hca *hca = &hcas[nhcas];
  memset(hca, 0, sizeof *hca);
  snprintf(hca->name, sizeof hca->name, "%s", name);
  if (!open_hca(hca, device)) return;
  hca->guid = guid_of(hca);
  ib_sysfs_pci_paths(ib_sysfs_root(), name, ib_params.merge_vfs != 0, hca->pci_path, card);
  for (unsigned int p = 1; p <= hca->attr.phys_port_cnt; p++) (void)look_at_port(hca, (uint8_t)p, filter, card);
  hca->ports = &found[before];
  hca->nports = nfound - before;
  if (hca->nports && equip_hca(hca)) {
    nhcas++;
    return;
  }
  memset(&found[before], 0, (nfound - before) * sizeof found[0]);
  nfound = before;
  close_hca(hca);
}

/* ---- all of them ---------------------------------------------------------------- */

/* By card, then function; what has no place on a bus stays as the library lists it, and so do ports of one function. */
static int compare_places(const struct ib_port *a, const struct ib_port *b) {
  int by_card = strcmp(a->pci_path, b->pci_path);
  return by_card ? by_card : strcmp(a->hca->pci_path, b->hca->pci_path);
}

/* NCCL takes two devices of the same guid and port for one link. */
static int number_on_card(struct ib_port *const *before, unsigned int n, const struct ib_port *port) {
  int number = port->number;
  for (unsigned int i = 0; i < n; i++) {
    bool same = before[i]->hca->guid == port->hca->guid ||
                (port->pci_path[0] && strcmp(before[i]->pci_path, port->pci_path) == 0);
    if (same) number = RAIL_MAX(number, before[i]->number_on_card + 1);
  }
  return number;
}

unsigned int ib_ports_discover(struct ib_port *ports[IB_MAX_PORTS]) {
  struct ib_hca_filter filter;
  int count = 0;
  ib_hca_filter_parse(ib_params.hca, &filter);
  struct ibv_device **list = ib_verbs.get_device_list(&count);
  if (!list)
    RAIL_WARN("RailIB: libibverbs cannot list devices: %s; is the kernel module ib_uverbs loaded?", strerror(errno));
  for (int i = 0; list && i < count; i++) look_at_device(list[i], &filter);
  if (list) ib_verbs.free_device_list(list);
  for (unsigned int i = 0; i < nfound; i++) {
    unsigned int at = i;
    if (ib_params.pci_order)
      for (; at > 0 && compare_places(ports[at - 1], &found[i]) > 0; at--) ports[at] = ports[at - 1];
    ports[at] = &found[i];
  }
  for (unsigned int i = 0; i < nfound; i++) ports[i]->number_on_card = number_on_card(ports, i, ports[i]);
  if (list && count == 0)
    RAIL_WARN("RailIB: libibverbs finds no RDMA device, so there are no devices: is the driver loaded (rdma link), and "
              "its provider installed (ibverbs-providers)?");
  else if (list && nfound == 0)
    RAIL_WARN("RailIB: none of %d RDMA devices has an active port%s%s, so there are no devices", count,
              ib_params.hca ? " that passes NCCL_IB_HCA=" : "", ib_params.hca ? ib_params.hca : "");
  return nfound;
}

void ib_hcas_close(void) {
  for (unsigned int i = 0; i < nhcas; i++) close_hca(&hcas[i]);
  nhcas = nfound = 0;
}
