/* SPDX-License-Identifier: Apache-2.0
 * What libfabric offers is asked for here, and what ofi_select chooses becomes devices. */
#include "plugin/ofi/ofi_device.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/net/fuse.h"
#include "plugin/ofi/ofi_param.h"

/* Static: nothing to free at dlclose, and pointers to entries stay valid. An entry is written before the count that
 * covers it. */
static struct ofi_device devices[OFI_MAX_DEVICES];
static _Atomic int ndevices;
static struct ofi_nic nics[OFI_MAX_NICS];
static unsigned int nnics;
static struct rail_interface interfaces[RAIL_MAX_INTERFACES]; /* the first is that of oob connections */
static int ninterfaces;
static bool loaded;

unsigned int ofi_nic_count(void) { return nnics; }
const struct ofi_nic *ofi_nic_at(unsigned int i) { return &nics[i]; }

const char *ofi_oob_interface(union rail_addr *addr) {
  *addr = interfaces[0].addr;
  return interfaces[0].name;
}

/* ---- asking libfabric -------------------------------------------------------------------- */

/* Of the CUDA driver's, while libfabric has CUDA. It stays open, as libfabric itself has it open. */
static int (*pointer_attribute)(void *value, int attribute, uint64_t address);

int ofi_cuda_device_of(uint64_t address) {
  enum { DEVICE_ORDINAL = 9 }; /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
  int ordinal = 0;
  return pointer_attribute && pointer_attribute(&ordinal, DEVICE_ORDINAL, address) == 0 ? ordinal : 0;
}

/* A libfabric built with CUDA has parameters for it, and it opens the driver itself. */
static bool has_cuda(void) {
  struct fi_param *list = NULL;
  int n = 0;
  bool built = false;
  if (!ofi_fabric.getparams || !ofi_fabric.freeparams || ofi_fabric.getparams(&list, &n) != 0) return false;
  for (int i = 0; i < n; i++) built |= strncmp(list[i].name, "FI_HMEM_CUDA_", 13) == 0;
  if (list) ofi_fabric.freeparams(list);
  void *driver = built ? dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) : NULL;
  void *found = driver ? dlsym(driver, "cuPointerGetAttribute") : NULL;
  memcpy(&pointer_attribute, &found, sizeof found);
  return driver != NULL;
}

/* What the plugin gives, and may be given. */
static struct fi_info *make_hints(bool hmem_cuda) {
  struct fi_info *hints = ofi_fabric.dupinfo(NULL);
  if (!hints) return NULL;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  if (hmem_cuda) hints->domain_attr->mr_mode |= FI_MR_HMEM;
  return hints;
}

/* Capabilities are not asked for, and each info is judged by those that it has; but FI_HMEM is had by who asks only
 * (efa), and then all others must be asked for, too. Lists of several questions, one behind the other. */
static int get_infos(struct fi_info *hints, bool hmem_cuda, struct fi_info **list) {
  static const uint64_t asked[] = {FI_MSG | FI_TAGGED | FI_RMA | FI_HMEM, FI_MSG | FI_RMA | FI_HMEM,
                                   FI_MSG | FI_TAGGED | FI_HMEM, 0};
  int err = 0;
  *list = NULL;
  for (size_t i = hmem_cuda ? 0 : RAIL_COUNT_OF(asked) - 1; i < RAIL_COUNT_OF(asked); i++) {
    struct fi_info **end = list;
    while (*end) end = &(*end)->next;
    hints->caps = asked[i];
    err = ofi_fabric.getinfo(OFI_API_VERSION, NULL, NULL, 0, hints, end);
    if (err) *end = NULL;
  }
  return *list ? 0 : err;
}

struct offer {
  struct fi_info *infos;
  struct fi_info *complete; /* with FI_DELIVERY_COMPLETE */
};

/* False after one line. Where nothing fits the hints everything is asked for, so that the table can say why. */
static bool ask(bool hmem_cuda, struct offer *offer) {
  *offer = (struct offer){NULL, NULL};
  struct fi_info *hints = make_hints(hmem_cuda);
  if (!hints) {
    RAIL_WARN("RailOFI: fi_dupinfo: out of memory; no devices");
    return false;
  }
  int err = get_infos(hints, hmem_cuda, &offer->infos);
  if (err == 0) {
    hints->tx_attr->op_flags = FI_DELIVERY_COMPLETE;
    (void)get_infos(hints, hmem_cuda, &offer->complete);
  } else if (err == -FI_ENODATA) {
    err = ofi_fabric.getinfo(OFI_API_VERSION, NULL, NULL, 0, NULL, &offer->infos);
  }
  ofi_fabric.freeinfo(hints);
  if (err == 0) return true;
  offer->infos = NULL;
  const char *provider = getenv("FI_PROVIDER");
  RAIL_WARN("RailOFI: libfabric offers nothing (fi_getinfo: %s)%s%s, so there are no devices; fi_info -l lists its "
            "providers", ofi_fabric.strerror(-err), provider ? " with FI_PROVIDER=" : "", provider ? provider : "");
  return false;
}

static void give_back(struct offer *offer) {
  if (offer->infos) ofi_fabric.freeinfo(offer->infos);
  if (offer->complete) ofi_fabric.freeinfo(offer->complete);
}

/* ---- what the system knows of a NIC ------------------------------------------------------ */

static void find_pci_path(const struct fi_info *info, char path[256]) {
  char address[OFI_PCI_ADDRESS], link[PATH_MAX];
  const char *domain = info->domain_attr->name;
  path[0] = 0;
  if (ofi_info_pci_address(info, address)) {
    snprintf(link, sizeof link, "/sys/bus/pci/devices/%s", address);
    if (rail_pci_path(link, path, 256)) return;
  }
  if (rail_interface_pci_path("/sys", domain, path, 256)) return;
  snprintf(link, sizeof link, "/sys/class/infiniband/%s/device", domain);
  if (!rail_pci_path(link, path, 256)) path[0] = 0;
}

/* 10 Gb/s, NCCL's assumption, where neither the info nor an interface of the domain's name says. */
static int find_speed(const struct fi_info *info) {
  int speed = ofi_info_speed(info);
  return speed ? speed : rail_interface_speed("/sys", info->domain_attr->name);
}

static uint64_t find_guid(const struct fi_info *info, const char *pci_path) {
  const char *domain = info->domain_attr->name;
  const struct fi_link_attr *link = info->nic ? info->nic->link_attr : NULL;
  uint64_t guid = 0;
  if (ofi_provider_is_ip(info->fabric_attr->prov_name)) return rail_interface_guid("/sys", domain);
  if (link && link->address && *link->address) guid = rail_hash_text(RAIL_HASH_BASIS, link->address);
  else guid = rail_hash_text(RAIL_HASH_BASIS, *pci_path ? pci_path : domain);
  return guid ? guid : 1;
}

/* NCCL takes two devices with equal guid and port for one link. */
static int number_of(uint64_t guid) {
  int number = 1;
  for (unsigned int i = 0; i < nnics; i++) number += nics[i].guid == guid;
  return number;
}

/* Domains of several NICs may share a name (psm2). */
static void name_nic(struct ofi_nic *nic) {
  unsigned int same = 0;
  const char *domain = nic->info->domain_attr->name;
  for (unsigned int i = 0; i < nnics; i++) same += strcmp(nics[i].info->domain_attr->name, domain) == 0;
  if (same) snprintf(nic->name, sizeof nic->name, "%.64s#%u", domain, same);
  else snprintf(nic->name, sizeof nic->name, "%.64s", domain);
}

/* Every call but those that open and destroy an endpoint is made under its lock, those of control (fi_av_insert,
 * fi_mr_reg) too. A provider that says it needs no lock of its caller's would take its own. Those that were tried, and
 * have no thread that progresses, are told that they need none for the calls of control either. */
static void choose_locking(struct fi_domain_attr *domain, const char *provider) {
  bool over_tcp = strcmp(provider, "tcp;ofi_rxm") == 0;
  if (over_tcp && getenv("FI_OFI_RXM_DATA_AUTO_PROGRESS")) { /* a thread of its own, which no attribute shows */
    domain->threading = FI_THREAD_SAFE;
    return;
  }
  if (domain->threading == FI_THREAD_SAFE || domain->threading == FI_THREAD_FID) domain->threading = FI_THREAD_DOMAIN;
  bool tried = over_tcp || strcmp(provider, "shm") == 0;
  if (tried && domain->threading == FI_THREAD_DOMAIN && domain->data_progress == FI_PROGRESS_MANUAL &&
      FI_VERSION_GE(ofi_fabric.version(), OFI_UNIFIED_SINCE))
    domain->control_progress = (enum fi_progress)OFI_PROGRESS_CONTROL_UNIFIED;
}

/* False after one line. */
static bool add_nic(const struct ofi_candidate *c) {
  struct ofi_nic *nic = &nics[nnics];
  memset(nic, 0, sizeof *nic);
  nic->info = ofi_fabric.dupinfo(c->info);
  if (!nic->info) {
    RAIL_WARN("RailOFI: fi_dupinfo: out of memory; %s is left out", c->info->domain_attr->name);
    return false;
  }
  nic->info->mode &= ~OFI_MODE_BUFFERED_RECV; /* an offer that is not taken */
  choose_locking(nic->info->domain_attr, nic->info->fabric_attr->prov_name);
  nic->index = nnics;
  nic->caps = c->caps;
  nic->protocol = c->protocol;
  nic->local = ofi_provider_is_local(c->info->fabric_attr->prov_name);
  nic->provider = nic->info->fabric_attr->prov_name;
  find_pci_path(nic->info, nic->pci_path);
  nic->speed = find_speed(nic->info);
  nic->guid = find_guid(nic->info, nic->pci_path);
  nic->port = number_of(nic->guid);
  name_nic(nic);
  nnics++;
  return true;
}

/* ---- the table of candidates ------------------------------------------------------------- */

/* Each kind of row once, with the number of infos that it stands for. */
static void print_candidates(const struct ofi_candidate *candidates, unsigned int n) {
  uint32_t version = ofi_fabric.version();
  char text[OFI_ROW_TEXT], pci[256];
  char(*rows)[OFI_ROW_TEXT] = calloc(n ? n : 1, sizeof *rows);
  unsigned int *times = calloc(n ? n : 1, sizeof *times), nrows = 0;
  for (unsigned int i = 0; rows && times && i < n; i++) {
    unsigned int at = 0;
    find_pci_path(candidates[i].info, pci);
    (void)ofi_select_row(&candidates[i], find_speed(candidates[i].info), pci, text);
    while (at < nrows && strcmp(rows[at], text) != 0) at++;
    if (at == nrows) memcpy(rows[nrows++], text, sizeof text);
    times[at]++;
  }
  RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailOFI: libfabric %u.%u offers %u entries; caps: " OFI_CAPS_LEGEND,
            FI_MAJOR(version), FI_MINOR(version), n);
  RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailOFI: %s", ofi_select_row(NULL, 0, NULL, text));
  for (unsigned int i = 0; i < nrows; i++) {
    if (times[i] > 1) RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailOFI: %s (%u entries)", rows[i], times[i]);
    else RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailOFI: %s", rows[i]);
  }
  free(times);
  free(rows);
}

static void warn_none_usable(const struct ofi_candidate *candidates, unsigned int n) {
  RAIL_WARN("RailOFI: libfabric offers %u entries, none of which is usable, so there are no devices; NCCL_DEBUG=INFO "
            "says why of each%s%s%s%s%s%s", n, n ? ", such as " : "",
            n ? candidates[0].info->fabric_attr->prov_name : "", n ? " " : "",
            n ? candidates[0].info->domain_attr->name : "", n ? ": " : "", n ? candidates[0].why : "");
}

static void discover_nics(void) {
  const bool hmem_cuda = has_cuda();
  const struct ofi_prefs prefs = {
    .fi_provider = getenv("FI_PROVIDER"), .provider = ofi_params.provider, .domain = ofi_params.domain,
    .protocol = (enum ofi_wanted)ofi_params.protocol, .hmem_cuda = hmem_cuda, .interfaces = interfaces,
    .ninterfaces = ninterfaces};
  const struct ofi_candidate *chosen[OFI_MAX_NICS];
  struct offer offer;
  if (!ask(hmem_cuda, &offer)) return;
  struct ofi_candidate *candidates = calloc(OFI_MAX_OFFERED, sizeof *candidates);
  if (candidates) {
    unsigned int n = ofi_select(offer.infos, offer.complete, &prefs, candidates, OFI_MAX_OFFERED);
    print_candidates(candidates, n);
    unsigned int count = ofi_select_order(candidates, n, chosen);
    for (unsigned int i = 0; i < count; i++) (void)add_nic(chosen[i]);
    if (count == 0) warn_none_usable(candidates, n);
  } else {
    RAIL_WARN("RailOFI: out of memory; no devices");
  }
  free(candidates);
  give_back(&offer);
}

/* ---- devices ------------------------------------------------------------------------------ */

static int speed_of(const struct ofi_device *device) {
  int64_t speed = 0;
  for (unsigned int i = 0; i < device->nrails; i++) speed += device->rails[i]->speed;
  return (int)RAIL_MIN(speed, (int64_t)INT_MAX);
}

/* The device at the end of the table, whose rails and members are there, gets its name and becomes visible. */
static void list_device(struct ofi_device *d) {
  size_t at = 0;
  for (unsigned int i = 0; i < d->nrails; i++)
    at += (size_t)snprintf(d->name + at, sizeof d->name - at, "%s%s", i ? "+" : "", d->rails[i]->name);
  RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailOFI: device %d is %s, provider %s, protocol %s, %d Mb/s%s%s",
            (int)(d - devices), d->name, d->rails[0]->provider, ofi_protocol_name(d->rails[0]->protocol), speed_of(d),
            d->nrails == 1 && d->rails[0]->pci_path[0] ? ", at " : "", d->nrails == 1 ? d->rails[0]->pci_path : "");
  atomic_store_explicit(&ndevices, (int)(d - devices) + 1, memory_order_release);
}

/* False after one line. */
static bool find_interfaces(void) {
  int n = rail_interfaces_find(ofi_params.ifname, ofi_params.family, ofi_params.comm_id, interfaces,
                               RAIL_MAX_INTERFACES);
  ninterfaces = RAIL_MAX(n, 0);
  if (n > 0) return true;
  if (n < 0)
    RAIL_WARN("RailOFI: cannot list network interfaces for the oob connection: %s; no devices", strerror(errno));
  else
    RAIL_WARN("RailOFI: no usable network interface for the oob connection (NCCL_SOCKET_IFNAME=%s, "
              "NCCL_SOCKET_FAMILY=%s); no devices", ofi_params.ifname ? ofi_params.ifname : "unset",
              ofi_params.family ? ofi_params.family : "unset");
  return false;
}

/* NCCL's LL128 takes 120 bytes when it sees the 8 behind them, in the buffer of a receive that is not done. It asks no
 * plugin whether it may, but reads NCCL_PROTO when a communicator is made, which is after this. */
static void exclude_ll128(void) {
  if (ofi_params.ll128 || getenv("NCCL_PROTO") || setenv("NCCL_PROTO", "^LL128", 0) != 0) return;
  RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailOFI: NCCL_PROTO is set to ^LL128: libfabric's providers do not promise "
            "the order in which bytes become visible (RAIL_OFI_LL128)");
}

void ofi_devices_load(void) {
  char text[RAIL_ADDR_TEXT];
  if (loaded) return;
  loaded = true;
  if (!find_interfaces() || !ofi_fabric_open()) return;
  discover_nics();
  for (unsigned int i = 0; i < nnics; i++) {
    devices[i] = (struct ofi_device){.nrails = 1, .rails = {&nics[i]}, .nmembers = 1, .members = {(int)i}};
    list_device(&devices[i]);
  }
  if (!nnics) return;
  RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailOFI: oob connections use %s, address %s", interfaces[0].name,
            rail_addr_text(&interfaces[0].addr, text));
  exclude_ll128();
}

void ofi_devices_unload(void) {
  atomic_store(&ndevices, 0);
  for (unsigned int i = 0; i < nnics; i++) ofi_fabric.freeinfo(nics[i].info);
  nnics = 0;
  loaded = false;
}

int ofi_device_count(void) { return atomic_load_explicit(&ndevices, memory_order_acquire); }

/* A message of 4 KiB over tcp takes half the time in one control message of what a GRANT, a write and a FIN take. Over
 * shm it would take four times as long: with its frame it is larger than what shm copies through its own memory. */
uint32_t ofi_device_inline(const struct ofi_device *device) {
  if (ofi_params.inline_bytes >= 0) return (uint32_t)ofi_params.inline_bytes;
  return ofi_provider_is_tcp(device->rails[0]->provider) ? 8192 : 2048;
}

const struct ofi_device *ofi_device_at(int dev, const char *call) {
  int n = ofi_device_count();
  if (rail_likely(dev >= 0 && dev < n)) return &devices[dev];
  if (n) RAIL_WARN("RailOFI: %s: device %d does not exist; allowed: 0..%d", call, dev, n - 1);
  else RAIL_WARN("RailOFI: %s: device %d does not exist; there are no devices", call, dev);
  return NULL;
}

/* ---- properties --------------------------------------------------------------------------- */

/* A fused device supports what all of its NICs support. No dma-buf: libfabric takes these
 * since API 1.20, and a provider that needs one asks the driver for it itself. */
static int ptr_support(const struct ofi_device *device) {
  for (unsigned int i = 0; i < device->nrails; i++)
    if (!device->rails[i]->caps.hmem_cuda) return RAIL_PTR_HOST;
  return RAIL_PTR_HOST | RAIL_PTR_CUDA;
}

/* Of the first rail; NULL if it has none. */
static const char *pci_path_of(const struct ofi_device *device) {
  return device->rails[0]->pci_path[0] ? device->rails[0]->pci_path : NULL;
}

/* A message may go over any of its NICs as a whole. */
static size_t most_bytes(const struct ofi_device *device) {
  size_t max = RAIL_NET_MAX_BYTES;
  for (unsigned int i = 0; i < device->nrails; i++)
    if (device->rails[i]->caps.max_msg_size) max = RAIL_MIN(max, device->rails[i]->caps.max_msg_size);
  return max;
}

rail_result_t ofi_get_properties(int dev, struct rail_net_props_v12 *props) {
  const struct ofi_device *device = ofi_device_at(dev, "getProperties");
  if (!device) return RAIL_BAD_ARGUMENT;
  const struct ofi_nic *first = device->rails[0];
  rail_net_props_usual(props, device->members, device->nmembers);
  props->name = (char *)device->name;
  props->pci_path = (char *)pci_path_of(device);
  props->guid = first->guid;
  props->ptr_support = ptr_support(device);
  props->speed = speed_of(device);
  props->port = first->port;
  props->max_comms = 65536; /* they share endpoints */
  props->max_recvs = OFI_MAX_GROUP;
  props->max_p2p_bytes = props->max_coll_bytes = most_bytes(device);
  return RAIL_OK;
}

/* ---- makeVDevice ---------------------------------------------------------------------------- */

static bool look_up(int dev, struct rail_fuse_device *device) {
  const struct ofi_device *d = ofi_device_at(dev, "makeVDevice");
  if (!d) return false;
  *device = (struct rail_fuse_device){.members = d->members, .nmembers = d->nmembers, .name = d->name,
                                      .pci_path = pci_path_of(d)};
  return true;
}

/* Infos of one provider may differ in what they can do. What a GRANT says of a buffer holds for all NICs of its device
 * but the key, and a flush reads behind the writes of each. All else is looked up per NIC, or the least is taken. */
static bool fit_together(const struct ofi_device *d) {
  const struct ofi_nic *a = d->rails[0];
  for (unsigned int i = 1; i < d->nrails; i++) {
    const struct ofi_nic *b = d->rails[i];
    if (a->protocol != b->protocol)
      RAIL_WARN("RailOFI: makeVDevice: %s uses the protocol %s and %s uses %s; a fused device has NICs of one protocol "
                "(RAIL_OFI_PROTOCOL)", a->name, ofi_protocol_name(a->protocol), b->name,
                ofi_protocol_name(b->protocol));
    else if (a->caps.mr_virt_addr != b->caps.mr_virt_addr)
      RAIL_WARN("RailOFI: makeVDevice: of %s and %s one names remote memory by addresses (FI_MR_VIRT_ADDR), one by "
                "offsets; a fused device has NICs that name it alike", a->name, b->name);
    else if (a->caps.rma_read != b->caps.rma_read)
      RAIL_WARN("RailOFI: makeVDevice: of %s and %s one can read remote memory (FI_READ), one cannot; all NICs of a "
                "fused device must, or none: iflush reads over each", a->name, b->name);
    else continue;
    return false;
  }
  return true;
}

rail_result_t ofi_device_fuse(int *dev, const struct rail_net_vprops_v12 *props) {
  const struct rail_fuse_rules rules = {.plugin = "RailOFI", .lookup = look_up, .max_members = OFI_MAX_PATHS,
                                        .max_devices = OFI_MAX_DEVICES, .no_pci = ofi_params.fuse_no_pci};
  int n, same, members[OFI_MAX_PATHS], have = ofi_device_count();
  RAIL_TRY(rail_fuse_members(&rules, props, have, members, &n, &same));
  if (same >= 0) {
    *dev = same;
    return RAIL_OK;
  }
  struct ofi_device *d = &devices[have];
  memset(d, 0, sizeof *d);
  for (int i = 0; i < n; i++) d->rails[d->nrails++] = devices[members[i]].rails[0];
  if (!fit_together(d)) return RAIL_BAD_ARGUMENT;
  memcpy(d->members, members, (size_t)n * sizeof members[0]);
  d->nmembers = n;
  *dev = have;
  list_device(d);
  return RAIL_OK;
}
