/* SPDX-License-Identifier: Apache-2.0
 * Interfaces become devices. */
#include "plugin/socket/sk_device.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/thread.h"
#include "common/net/fuse.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_wire.h"

#define MAX_FUSED 64

/* Not allocated: nothing to free at dlclose, and what was handed out stays. */
static struct sk_device interfaces[RAIL_MAX_INTERFACES];
static char pci_paths[RAIL_MAX_INTERFACES][4096];
static int ninterfaces;
static struct sk_device fused[MAX_FUSED];
static int nfused;
/* What callers see, by index. Entries are written before the count that covers them. */
static struct sk_device *listed[RAIL_MAX_INTERFACES + MAX_FUSED];
static _Atomic int count;
static bool loaded;

unsigned int sk_devices_vendor(void) {
  unsigned int most = 0, vendor = 0;
  for (int i = 0; i < ninterfaces; i++) {
    unsigned int threads = sk_choose_threads(&sk_params, interfaces[i].vendor, UINT_MAX).count;
    if (threads <= most) continue;
    most = threads;
    vendor = interfaces[i].vendor;
  }
  return vendor;
}

/* What its listeners ask for, and who moves the process's connections. */
static void log_device(int n, const struct sk_device *d) {
  static bool warned;
  char addr[RAIL_ADDR_TEXT], engine[32] = "inline";
  struct sk_choice streams = sk_choose_streams(&sk_params, d->vendor);
  struct sk_choice threads = sk_choose_threads(&sk_params, sk_devices_vendor(), rail_thread_cores());
  const unsigned int all = sk_streams_of(streams.count, d->nrails);
  if (threads.count)
    snprintf(engine, sizeof engine, "epoll with %u thread%s", threads.count, threads.count > 1 ? "s" : "");
  RAIL_INFO(RAIL_SUB_INIT | RAIL_SUB_NET, "RailSocket: device %d is %s, address %s%s, %d Mb/s; %u stream%s%s (%s), "
            "engine %s (%s)", n, d->name, rail_addr_text(&d->addr, addr), d->nrails > 1 ? " and others" : "", d->speed,
            all, all > 1 ? "s" : "", d->nrails > 1 ? " in all" : "", streams.why, engine, threads.why);
  if (streams.asked <= streams.count || warned) return;
  warned = true;
  RAIL_WARN("RailSocket: NCCL_SOCKET_NTHREADS x NCCL_NSOCKS_PERTHREAD are %lld sockets per connection; there may be %d "
            "streams, so %u are used", (long long)streams.asked, SK_MAX_STREAMS, streams.count);
}

static void list_device(struct sk_device *d) {
  int n = atomic_load_explicit(&count, memory_order_relaxed);
  listed[n] = d;
  if (!d->nmembers) d->members[d->nmembers++] = n;
  atomic_store_explicit(&count, n + 1, memory_order_release);
  log_device(n, d);
}

/* ---- fusing ----------------------------------------------------------- */

/* Of the rails' own, in a way that keeps different sets apart; not 0. */
static uint64_t combined_guid(const struct sk_device *d) {
  if (d->nrails == 1) return d->rails[0]->guid;
  uint64_t hash = 0xcbf29ce484222325ull;
  for (unsigned int i = 0; i < d->nrails; i++) hash = (hash ^ d->rails[i]->guid) * 0x9e3779b97f4a7c15ull;
  return hash ? hash : 1;
}

/* A device over these rails, in no list yet; NULL if there is no room for it. */
static struct sk_device *new_fused(const struct sk_device *const *rails, unsigned int nrails) {
  if (nfused == MAX_FUSED) return NULL;
  struct sk_device *d = &fused[nfused++];
  size_t at = 0;
  int64_t speed = 0;
  *d = (struct sk_device){.addr = rails[0]->addr, .vendor = rails[0]->vendor, .pci_path = rails[0]->pci_path,
                          .nrails = nrails};
  for (unsigned int i = 0; i < nrails; i++) {
    d->rails[i] = rails[i];
    speed += rails[i]->speed;
    CPU_OR(&d->cpus, &d->cpus, &rails[i]->cpus);
    at += (size_t)snprintf(d->name + at, sizeof d->name - at, "%s%s", i ? "+" : "", rails[i]->name);
  }
  d->speed = (int)RAIL_MIN(speed, (int64_t)INT_MAX);
  d->guid = combined_guid(d);
  return d;
}

static bool look_up(int dev, struct rail_fuse_device *device) {
  const struct sk_device *d = sk_device_at(dev, "makeVDevice");
  if (!d) return false;
  *device = (struct rail_fuse_device){.members = d->members, .nmembers = d->nmembers, .name = d->name,
                                      .pci_path = d->pci_path};
  return true;
}

rail_result_t sk_device_fuse(int *dev, const struct rail_net_vprops_v12 *props) {
  const struct sk_device *rails[SK_MAX_RAILS];
  int n, same, members[SK_MAX_RAILS], have = sk_device_count();
  const struct rail_fuse_rules rules = {.plugin = "RailSocket", .lookup = look_up, .max_members = SK_MAX_RAILS,
                                        .max_devices = have + MAX_FUSED - nfused, .no_pci = sk_params.fuse_no_pci};
  unsigned int nrails = 0;
  RAIL_TRY(rail_fuse_members(&rules, props, have, members, &n, &same));
  if (same >= 0) {
    *dev = same;
    return RAIL_OK;
  }
  for (int i = 0; i < n; i++) {
    const struct sk_device *d = listed[members[i]];
    for (unsigned int k = 0; k < d->nrails; k++) {
      if (nrails == SK_MAX_RAILS) {
        RAIL_WARN("RailSocket: makeVDevice: more than %d interfaces; RAIL_SOCKET_FUSE has fused some of them already",
                  SK_MAX_RAILS);
        return RAIL_BAD_ARGUMENT;
      }
      rails[nrails++] = d->rails[k];
    }
  }
  struct sk_device *d = new_fused(rails, nrails);
  memcpy(d->members, members, (size_t)n * sizeof members[0]);
  d->nmembers = n;
  *dev = have;
  list_device(d);
  return RAIL_OK;
}

/* ---- RAIL_SOCKET_FUSE ------------------------------------------------- */

static struct sk_device *interface_named(const char *name, size_t len) {
  for (int i = 0; i < ninterfaces; i++)
    if (strlen(interfaces[i].name) == len && memcmp(interfaces[i].name, name, len) == 0) return &interfaces[i];
  return NULL;
}

/* Fuses "eth0+eth1", or logs why not. by[i] is the device that interface i has gone into. */
static void fuse_group(const char *text, size_t len, struct sk_device *by[RAIL_MAX_INTERFACES]) {
  bool wanted[RAIL_MAX_INTERFACES] = {false};
  const struct sk_device *rails[SK_MAX_RAILS];
  unsigned int n = 0;
  char why[80] = "";
  for (size_t at = 0; at < len && !why[0];) {
    size_t end = at;
    while (end < len && text[end] != '+') end++;
    struct sk_device *d = interface_named(text + at, end - at);
    const int name_len = (int)RAIL_MIN(end - at, (size_t)IFNAMSIZ);
    if (!d)
      snprintf(why, sizeof why, "'%.*s' is not among the interfaces in use", name_len, text + at);
    else if (by[d - interfaces] || wanted[d - interfaces])
      snprintf(why, sizeof why, "'%.*s' is named twice", name_len, text + at);
    else
      wanted[d - interfaces] = true;
    at = end + 1;
  }
  for (int i = 0; i < ninterfaces && !why[0]; i++) { /* the machine's order, as in sk_device_fuse */
    if (!wanted[i]) continue;
    if (n < SK_MAX_RAILS) rails[n++] = &interfaces[i];
    else snprintf(why, sizeof why, "two to four are allowed");
  }
  if (!why[0] && n < 2) snprintf(why, sizeof why, "two to four are allowed");
  struct sk_device *f = why[0] ? NULL : new_fused(rails, n);
  if (!f) {
    RAIL_WARN("RAIL_SOCKET_FUSE: '%.*s' is not fused: %s; form: all, or eth0+eth1,eth2+eth3", (int)len, text,
              why[0] ? why : "too many devices");
    return;
  }
  for (unsigned int i = 0; i < n; i++) by[rails[i] - interfaces] = f;
}

static void fuse_all(struct sk_device *by[RAIL_MAX_INTERFACES]) {
  const struct sk_device *rails[SK_MAX_RAILS];
  for (int first = 0; ninterfaces - first >= 2; first += SK_MAX_RAILS) {
    int n = RAIL_MIN(ninterfaces - first, SK_MAX_RAILS);
    for (int i = 0; i < n; i++) rails[i] = &interfaces[first + i];
    struct sk_device *f = new_fused(rails, (unsigned int)n);
    for (int i = 0; i < n && f; i++) by[first + i] = f;
  }
}

/* Interfaces in their order, a fused device in the place of its first. */
static void list_interfaces(void) {
  struct sk_device *by[RAIL_MAX_INTERFACES] = {NULL};
  const char *text = sk_params.fuse;
  if (text && strcmp(text, "all") == 0) {
    fuse_all(by);
  } else if (text) {
    for (size_t len; *text; text += len + (text[len] == ','))
      if ((len = strcspn(text, ",")) > 0) fuse_group(text, len, by);
  }
  for (int i = 0; i < ninterfaces; i++) {
    if (!by[i]) list_device(&interfaces[i]);
    else if (!by[i]->nmembers) list_device(by[i]); /* else its first rail brought it here */
  }
}

/* ---- the table -------------------------------------------------------- */

void sk_devices_load(void) {
  struct rail_interface chosen[RAIL_MAX_INTERFACES];
  if (loaded) return;
  loaded = true;
  int n = rail_interfaces_find(sk_params.ifname, sk_params.family, sk_params.comm_id, chosen, RAIL_MAX_INTERFACES);
  if (n < 0) {
    loaded = false;
    RAIL_WARN("RailSocket: cannot list network interfaces: %s; no devices", strerror(errno));
    return;
  }
  if (n <= 0) {
    RAIL_WARN("RailSocket: no usable network interface (NCCL_SOCKET_IFNAME=%s, NCCL_SOCKET_FAMILY=%s); no devices",
              sk_params.ifname ? sk_params.ifname : "unset", sk_params.family ? sk_params.family : "unset");
    return;
  }
  for (int i = 0; i < n; i++) {
    struct sk_device *d = &interfaces[i];
    memcpy(d->name, chosen[i].name, IFNAMSIZ);
    d->name[IFNAMSIZ - 1] = 0;
    d->addr = chosen[i].addr;
    d->speed = rail_interface_speed("/sys", d->name);
    d->guid = rail_interface_guid("/sys", d->name);
    d->vendor = rail_interface_vendor("/sys", d->name);
    (void)rail_interface_cpus("/sys", d->name, &d->cpus);
    if (rail_interface_pci_path("/sys", d->name, pci_paths[i], sizeof pci_paths[i])) d->pci_path = pci_paths[i];
    d->rails[d->nrails++] = d;
  }
  ninterfaces = n;
  list_interfaces();
}

int sk_device_count(void) { return atomic_load_explicit(&count, memory_order_acquire); }

const struct sk_device *sk_device_at(int dev, const char *call) {
  int n = sk_device_count();
  if (rail_likely(dev >= 0 && dev < n)) return listed[dev];
  if (n) RAIL_WARN("RailSocket: %s: device %d does not exist; allowed: 0..%d", call, dev, n - 1);
  else RAIL_WARN("RailSocket: %s: device %d does not exist; there are no devices", call, dev);
  return NULL;
}

rail_result_t sk_get_properties(int dev, struct rail_net_props_v12 *props) {
  const struct sk_device *device = sk_device_at(dev, "getProperties");
  if (!device) return RAIL_BAD_ARGUMENT;
  rail_net_props_usual(props, device->members, device->nmembers);
  props->name = (char *)device->name;
  props->pci_path = (char *)device->pci_path;
  props->guid = device->guid;
  props->ptr_support = RAIL_PTR_HOST;
  props->speed = device->speed;
  props->max_comms = 65536;
  props->max_recvs = 8;
  return RAIL_OK;
}
