/* SPDX-License-Identifier: Apache-2.0
 * HCAs and their ports are found here, and become devices. */
#include "plugin/ib/ib_device.h"

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/base/ifaddr.h"
#include "common/base/log.h"
#include "common/net/fuse.h"
#include "plugin/ib/ib_param.h"

/* Static: nothing to free at dlclose, and pointers to entries stay valid. An entry is written before the count that
 * covers it. */
static struct ib_device devices[IB_MAX_DEVICES];
static _Atomic int ndevices;
static struct ib_hca hcas[IB_MAX_PORTS];
static unsigned int nhcas;
static struct ib_port found[IB_MAX_PORTS];
static struct ib_port *ports[IB_MAX_PORTS]; /* those found, in their order */
static unsigned int nports;
static struct rail_interface oob_interface;
static bool loaded;

unsigned int ib_hca_count(void) { return nhcas; }
struct ib_hca *ib_hca_at(unsigned int i) { return &hcas[i]; }
unsigned int ib_port_count(void) { return nports; }
struct ib_port *ib_port_at(unsigned int i) { return ports[i]; }

const char *ib_oob_interface(union rail_addr *addr) {
  *addr = oob_interface.addr;
  return oob_interface.name;
}

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

/* retry_cnt has 3 bits. Soft-RoCE takes 7 for endless (Linux 6.1, drivers/infiniband/sw/rxe/rxe_comp.c): a dead link
 * would never be an error. */
static unsigned int max_retries_of(const struct ib_hca *hca) {
  enum { SOFT_ROCE = 0xffffff };
  return hca->attr.vendor_id == SOFT_ROCE ? 6 : 7;
}

/* A driver that supports it checks the descriptor first, and reports that -1 is none. */
static bool has_dmabuf(struct ibv_pd *pd) {
  if (!ib_verbs.reg_dmabuf_mr) return false;
  errno = 0;
  struct ibv_mr *mr = ib_verbs.reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
  if (mr) (void)ib_verbs.dereg_mr(mr);
  return mr || errno == EBADF;
}

static void close_hca(struct ib_hca *hca) {
  int err = hca->pd ? ib_verbs.dealloc_pd(hca->pd) : 0;
  if (err) /* connections are open that were never closed: the kernel frees all at process exit */
    RAIL_INFO(RAIL_SUB_NET, "RailIB: %s stays open (ibv_dealloc_pd): %s", hca->name, strerror(err));
  else if (hca->context) (void)ib_verbs.close_device(hca->context);
  hca->pd = NULL;
  hca->context = NULL;
}

/* NULL, or why no connection can use such a device. */
static const char *why_unusable(const struct ibv_device *device) {
  switch (device->transport_type) {
    case IBV_TRANSPORT_IB: /* RoCE, too: the link tells */
    case IBV_TRANSPORT_IWARP: return NULL;
    case IBV_TRANSPORT_USNIC:
    case IBV_TRANSPORT_USNIC_UDP: return "usNIC, which has no reliable connections";
    default: return "neither InfiniBand nor RoCE nor iWARP (EFA, for one, is for libfabric: libnccl-net-ofi.so)";
  }
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
  RAIL_WARN("RailIB: %s: ibv_query_device failed: %s; it is left out", hca->name, strerror(err));
  close_hca(hca);
  return false;
}

/* What connections need of an HCA with a port in use. False after one line. */
static bool prepare_hca(struct ib_hca *hca) {
  hca->pd = ib_verbs.alloc_pd(hca->context);
  if (!hca->pd) {
    RAIL_WARN("RailIB: %s: ibv_alloc_pd failed: %s; it is left out", hca->name, strerror(errno));
    return false;
  }
  pthread_mutex_init(&hca->mrs.lock, NULL);
  hca->max_retries = max_retries_of(hca);
  hca->relaxed_ordering = wants_relaxed_ordering();
  hca->dmabuf = has_dmabuf(hca->pd);
  hca->gpu_direct = ib_sysfs_has_peer_memory();
  return true;
}

/* ---- its ports ---------------------------------------------------------------- */

/* Adds the port, if it is active and passes the filter. */
static bool add_port(struct ib_hca *hca, uint8_t number, const struct ib_hca_filter *filter, const char *card) {
  struct ibv_port_attr attr = {0};
  int16_t rail, plane;
  if (!ib_hca_filter_passes(filter, hca->name, number, &rail, &plane)) return false;
  int err = ib_verbs.query_port(hca->context, number, &attr);
  if (err) {
    RAIL_WARN("RailIB: port %u of %s: ibv_query_port failed: %s; it is left out", number,
              hca->name, strerror(err));
    return false;
  }
  bool ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET || hca->iwarp;
  if (attr.state != IBV_PORT_ACTIVE || (!ethernet && attr.link_layer != IBV_LINK_LAYER_INFINIBAND)) {
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailIB: port %u of %s is %s; it is left out", number, hca->name,
              attr.state != IBV_PORT_ACTIVE ? "not active" : "neither InfiniBand nor Ethernet");
    return false;
  }
  bool rdmacm = hca->iwarp || (ethernet && ib_params.cm == IB_CM_KIND_RDMACM);
  if (rdmacm && !ib_rdmacm_open()) return false;
  if (nports == IB_MAX_PORTS) {
    RAIL_WARN("RailIB: more than %d active ports; %s:%u is left out. NCCL_IB_HCA chooses", IB_MAX_PORTS, hca->name,
              number);
    return false;
  }
  struct ib_port *port = &found[nports++];
  *port = (struct ib_port){.hca = hca, .number = number, .roce = ethernet && !hca->iwarp, .iwarp = hca->iwarp,
                           .rdmacm = rdmacm, .speed = ib_port_speed(hca->context, number, &attr), .rail = rail,
                           .plane = plane};
  snprintf(port->pci_path, sizeof port->pci_path, "%s", card);
  if (hca->attr.phys_port_cnt > 1) snprintf(port->name, sizeof port->name, "%s:%u", hca->name, number);
  else snprintf(port->name, sizeof port->name, "%s", hca->name);
  return true;
}

/* A device whose ports cannot pass need not be opened. */
static bool may_pass(const struct ib_hca_filter *filter, const char *name) {
  int16_t rail, plane;
  for (int port = 1; port <= UINT8_MAX; port++)
    if (ib_hca_filter_passes(filter, name, port, &rail, &plane)) return true;
  return false;
}

static void add_device(struct ibv_device *device, const struct ib_hca_filter *filter) {
  const char *name = ib_verbs.get_device_name(device);
  unsigned int before = nports;
  char card[256];
  if (!may_pass(filter, name) || nhcas == IB_MAX_PORTS) return;
  const char *unusable = why_unusable(device);
  if (unusable) {
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailIB: %s is %s; it is left out", name, unusable);
    return;
  }
  struct ib_hca *hca = &hcas[nhcas];
  memset(hca, 0, sizeof *hca);
  snprintf(hca->name, sizeof hca->name, "%s", name);
  hca->iwarp = device->transport_type == IBV_TRANSPORT_IWARP;
  if (!open_hca(hca, device)) return;
  hca->guid = guid_of(hca);
  ib_sysfs_pci_paths(name, ib_params.merge_vfs != 0, hca->pci_path, card);
  for (unsigned int p = 1; p <= hca->attr.phys_port_cnt; p++) (void)add_port(hca, (uint8_t)p, filter, card);
  hca->ports = &found[before];
  hca->nports = nports - before;
  if (hca->nports && prepare_hca(hca)) {
    nhcas++;
    return;
  }
  memset(&found[before], 0, (nports - before) * sizeof found[0]);
  nports = before;
  close_hca(hca);
}

/* ---- all of them ---------------------------------------------------------------- */

/* By card, then function. Devices without a PCI path, and ports of one function, stay in the order of libibverbs. */
static int compare_pci_paths(const struct ib_port *a, const struct ib_port *b) {
  int by_card = strcmp(a->pci_path, b->pci_path);
  return by_card ? by_card : strcmp(a->hca->pci_path, b->hca->pci_path);
}

/* NCCL takes two devices with equal guid and port for one link. */
static int number_on_card(struct ib_port *const *before, unsigned int n, const struct ib_port *port) {
  int number = port->number;
  for (unsigned int i = 0; i < n; i++) {
    bool same = before[i]->hca->guid == port->hca->guid ||
                (port->pci_path[0] && strcmp(before[i]->pci_path, port->pci_path) == 0);
    if (same) number = RAIL_MAX(number, before[i]->number_on_card + 1);
  }
  return number;
}

/* Opens what the library lists and the filter lets pass, and fills `ports` in their order. HCAs without an active port
 * are closed again. */
static void discover_ports(void) {
  struct ib_hca_filter filter;
  int count = 0;
  ib_hca_filter_parse(ib_params.hca, &filter);
  struct ibv_device **list = ib_verbs.get_device_list(&count);
  if (!list)
    RAIL_WARN("RailIB: libibverbs cannot list devices: %s; is the kernel module ib_uverbs loaded?", strerror(errno));
  for (int i = 0; list && i < count; i++) add_device(list[i], &filter);
  if (list) ib_verbs.free_device_list(list);
  for (unsigned int i = 0; i < nports; i++) {
    unsigned int at = i;
    if (ib_params.pci_order)
      for (; at > 0 && compare_pci_paths(ports[at - 1], &found[i]) > 0; at--) ports[at] = ports[at - 1];
    ports[at] = &found[i];
  }
  for (unsigned int i = 0; i < nports; i++) ports[i]->number_on_card = number_on_card(ports, i, ports[i]);
  if (list && count == 0)
    RAIL_WARN("RailIB: libibverbs finds no RDMA device, so there are no devices: is the driver loaded (rdma link), and "
              "its provider installed (ibverbs-providers)?");
  else if (list && nports == 0)
    RAIL_WARN("RailIB: none of %d RDMA devices has a usable, active port%s%s, so there are no devices", count,
              ib_params.hca ? " that passes NCCL_IB_HCA=" : "", ib_params.hca ? ib_params.hca : "");
}

static void close_hcas(void) {
  for (unsigned int i = 0; i < nhcas; i++) close_hca(&hcas[i]);
  nhcas = nports = 0;
}

/* ---- the table --------------------------------------------------------------- */

static const char *link_name(const struct ib_port *port) {
  return port->iwarp ? "iWARP" : port->roce ? "RoCE" : "InfiniBand";
}

static int speed_of(const struct ib_device *device) {
  int64_t speed = 0;
  for (unsigned int i = 0; i < device->nrails; i++) speed += device->rails[i]->speed;
  return (int)RAIL_MIN(speed, (int64_t)INT_MAX);
}

/* The device at the end of the table, whose rails and members are there, gets its name and becomes visible. */
static void list_device(struct ib_device *d) {
  size_t at = 0;
  for (unsigned int i = 0; i < d->nrails; i++)
    at += (size_t)snprintf(d->name + at, sizeof d->name - at, "%s%s", i ? "+" : "", d->rails[i]->name);
  RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailIB: device %d is %s, %s%s, %d Mb/s%s%s", (int)(d - devices), d->name,
            link_name(d->rails[0]), d->rails[0]->rdmacm ? " by the RDMA CM" : "", speed_of(d),
            d->nrails == 1 && d->rails[0]->pci_path[0] ? ", at " : "", d->nrails == 1 ? d->rails[0]->pci_path : "");
  atomic_store_explicit(&ndevices, (int)(d - devices) + 1, memory_order_release);
}

/* False after one line. */
static bool find_oob_interface(void) {
  int n = rail_interfaces_find(ib_params.ifname, ib_params.family, ib_params.comm_id, &oob_interface, 1);
  if (n > 0) return true;
  if (n < 0)
    RAIL_WARN("RailIB: cannot list network interfaces for the oob connection: %s; no devices", strerror(errno));
  else
    RAIL_WARN("RailIB: no usable network interface for the oob connection (NCCL_SOCKET_IFNAME=%s, "
              "NCCL_SOCKET_FAMILY=%s); no devices", ib_params.ifname ? ib_params.ifname : "unset",
              ib_params.family ? ib_params.family : "unset");
  return false;
}

void ib_devices_load(void) {
  char text[RAIL_ADDR_TEXT];
  if (loaded) return;
  loaded = true;
  if (ib_params.disable) {
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailIB: NCCL_IB_DISABLE=1, so there are no devices");
    return;
  }
  if (!find_oob_interface() || !ib_verbs_open()) return;
  int err = ib_verbs.fork_init();
  if (err)
    RAIL_WARN("RailIB: ibv_fork_init: %s; a process that forks may lose data in registered memory", strerror(err));
  discover_ports();
  for (unsigned int i = 0; i < nports; i++) {
    devices[i] = (struct ib_device){.nrails = 1, .rails = {ports[i]}, .nmembers = 1, .members = {(int)i}};
    list_device(&devices[i]);
  }
  if (nports)
    RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailIB: oob connections use %s, address %s", oob_interface.name,
              rail_addr_text(&oob_interface.addr, text));
}

void ib_devices_unload(void) {
  atomic_store(&ndevices, 0);
  close_hcas();
  loaded = false;
}

int ib_device_count(void) { return atomic_load_explicit(&ndevices, memory_order_acquire); }

const struct ib_device *ib_device_at(int dev, const char *call) {
  int n = ib_device_count();
  if (rail_likely(dev >= 0 && dev < n)) return &devices[dev];
  if (n) RAIL_WARN("RailIB: %s: device %d does not exist; allowed: 0..%d", call, dev, n - 1);
  else RAIL_WARN("RailIB: %s: device %d does not exist; there are no devices", call, dev);
  return NULL;
}

int ib_device_index(const struct ib_device *device) { return (int)(device - devices); }

/* ---- properties ---------------------------------------------------------------- */

/* A fused device supports what all of its HCAs support. iWARP connects no queue pair to itself, and without that what
 * arrives in GPU memory cannot be flushed. With the SEND protocol a provider may write into a receive WR's memory by
 * the CPU: libmlx5 copies what came inside the completion, up to 64 bytes, in ibv_poll_cq (rdma-core,
 * providers/mlx5/cq.c, handle_responder). Verbs has no means to find out or to forbid that, so it counts for every
 * vendor's HCA. */
int ib_device_ptr_support(const struct ib_device *device, bool two_sided) {
  int support = two_sided ? RAIL_PTR_HOST : RAIL_PTR_HOST | RAIL_PTR_CUDA | RAIL_PTR_DMABUF;
  for (unsigned int i = 0; i < device->nrails; i++) {
    const struct ib_port *port = device->rails[i];
    if (!port->hca->gpu_direct || port->iwarp) support &= ~RAIL_PTR_CUDA;
    if (!port->hca->dmabuf || port->iwarp) support &= ~RAIL_PTR_DMABUF;
  }
  return support;
}

static int16_t rail_id_of(const struct ib_device *device) {
  for (unsigned int i = 1; i < device->nrails; i++)
    if (device->rails[i]->rail != device->rails[0]->rail) return RAIL_NET_ID_UNDEF;
  return device->rails[0]->rail;
}

/* Of a fused device: all of its planes as bits, in NCCL's form. */
static int16_t plane_of(const struct ib_device *device) {
  enum { FUSED = 0x4000, MOST = 13 };
  int planes = FUSED;
  if (device->nrails == 1) return device->rails[0]->plane;
  for (unsigned int i = 0; i < device->nrails; i++) {
    int plane = device->rails[i]->plane;
    if (plane < 0 || plane > MOST) return RAIL_NET_ID_UNDEF;
    planes |= 1 << plane;
  }
  return (int16_t)planes;
}

/* Of the first rail; NULL if it has none. */
static const char *pci_path_of(const struct ib_device *device) {
  return device->rails[0]->pci_path[0] ? device->rails[0]->pci_path : NULL;
}

static int max_comms(const struct ib_device *device) {
  int most = INT_MAX;
  for (unsigned int i = 0; i < device->nrails; i++) most = RAIL_MIN(most, device->rails[i]->hca->attr.max_qp);
  return RAIL_MAX(most, 1);
}

rail_result_t ib_get_properties(int dev, struct rail_net_props_v12 *props) {
  const struct ib_device *device = ib_device_at(dev, "getProperties");
  if (!device) return RAIL_BAD_ARGUMENT;
  const struct ib_port *first = device->rails[0];
  const bool two_sided = ib_params.protocol == IB_PROTOCOL_SEND;
  rail_net_props_usual(props, device->members, device->nmembers);
  props->name = (char *)device->name;
  props->pci_path = (char *)pci_path_of(device);
  props->guid = first->hca->guid;
  props->ptr_support = ib_device_ptr_support(device, two_sided);
  props->reg_is_global = 1;
  props->speed = speed_of(device);
  props->port = first->number_on_card;
  props->max_comms = max_comms(device);
  props->max_recvs = IB_MAX_GROUP;
  if (two_sided) { /* no group: its sends would wait for each other (ib_two_sided.c) */
    props->max_recvs = 1;
    props->max_p2p_bytes = IB_TWO_SIDED_MAX_P2P;
  }
  props->rail_id = rail_id_of(device);
  props->plane_id = plane_of(device);
  return RAIL_OK;
}

/* ---- makeVDevice ---------------------------------------------------------------- */

static bool look_up(int dev, struct rail_fuse_device *device) {
  const struct ib_device *d = ib_device_at(dev, "makeVDevice");
  if (!d) return false;
  *device = (struct rail_fuse_device){.members = d->members, .nmembers = d->nmembers, .name = d->name,
                                      .pci_path = pci_path_of(d)};
  return true;
}

/* All rails have one kind of link: they need different addresses, and set-ups. */
static bool is_one_link(const struct ib_device *d) {
  for (unsigned int i = 1; i < d->nrails; i++) {
    if (d->rails[i]->roce == d->rails[0]->roce && d->rails[i]->iwarp == d->rails[0]->iwarp) continue;
    RAIL_WARN("RailIB: makeVDevice: %s is %s and %s is %s; a fused device has ports of one kind", d->rails[0]->name,
              link_name(d->rails[0]), d->rails[i]->name, link_name(d->rails[i]));
    return false;
  }
  return true;
}

rail_result_t ib_device_fuse(int *dev, const struct rail_net_vprops_v12 *props) {
  const struct rail_fuse_rules rules = {.plugin = "RailIB", .lookup = look_up, .max_members = IB_MAX_RAILS,
                                        .max_devices = IB_MAX_DEVICES, .no_pci = ib_params.fuse_no_pci};
  int n, same, members[IB_MAX_RAILS], have = ib_device_count();
  if (!ib_params.merge_nics && props->ndevs > 1) {
    RAIL_WARN("RailIB: makeVDevice: NCCL_IB_MERGE_NICS=0 forbids it");
    return RAIL_BAD_ARGUMENT;
  }
  RAIL_TRY(rail_fuse_members(&rules, props, have, members, &n, &same));
  if (same >= 0) {
    *dev = same;
    return RAIL_OK;
  }
  struct ib_device *d = &devices[have];
  memset(d, 0, sizeof *d);
  for (int i = 0; i < n; i++) d->rails[d->nrails++] = devices[members[i]].rails[0];
  if (!is_one_link(d)) return RAIL_BAD_ARGUMENT;
  memcpy(d->members, members, (size_t)n * sizeof members[0]);
  d->nmembers = n;
  *dev = have;
  list_device(d);
  return RAIL_OK;
}
