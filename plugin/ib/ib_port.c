/* SPDX-License-Identifier: Apache-2.0
 * A port: what sysfs says of it, its speed, its GIDs and which of them a connection uses, its current state. */
#include "plugin/ib/ib_device.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <linux/if_packet.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "common/base/ifaddr.h"
#include "common/base/log.h"
#include "plugin/ib/ib_param.h"

/* ---- sysfs ------------------------------------------------------------------ */

/* libibverbs' own: "/sys", or SYSFS_PATH. */
static const char *sysfs_root(void) {
  const char *root = ib_verbs.get_sysfs_path ? ib_verbs.get_sysfs_path() : NULL;
  return root && *root ? root : "/sys";
}

/* Writes `digits` over the end of a PCI path, "....:DD.F", if there is such a function. */
static void fold(char *path, const char *digits) {
  char folded[256];
  size_t len = strlen(path), n = strlen(digits);
  memcpy(folded, path, len + 1);
  memcpy(folded + len - n, digits, n);
  if (access(folded, F_OK) == 0) memcpy(path, folded, len + 1);
}

void ib_sysfs_pci_paths(const char *hca, bool merge_vfs, char own[256], char card[256]) {
  char link[PATH_MAX], physical[256];
  own[0] = card[0] = 0;
  snprintf(link, sizeof link, "%s/class/infiniband/%s/device", sysfs_root(), hca);
  if (!rail_pci_path(link, own, 256)) {
    own[0] = 0;
    return;
  }
  memcpy(card, own, 256);
  snprintf(link, sizeof link, "%s/physfn", own);
  if (merge_vfs && rail_pci_path(link, physical, sizeof physical) && strcmp(physical, own) != 0)
    memcpy(card, physical, sizeof physical);
  fold(card, "0");
  /* In a guest a virtual function does not name its physical one: NCCL goes by the number. */
  if (merge_vfs) fold(card, "00.0");
}

/* First bytes of a file; false if it cannot be read, or is empty. */
static bool read_file(const char *path, char *text, size_t cap) {
  FILE *file = fopen(path, "re");
  if (!file) return false;
  bool good = fgets(text, (int)cap, file) != NULL;
  fclose(file);
  return good;
}

/* enum ib_gid_type; IB_GID_UNKNOWN where it cannot be read (in a container whose network the GID is not in: EINVAL). */
static uint8_t gid_type(const struct ib_port *port, unsigned int index) {
  char path[PATH_MAX], text[32];
  snprintf(path, sizeof path, "%s/class/infiniband/%s/ports/%u/gid_attrs/types/%u", sysfs_root(), port->hca->name,
           port->number, index);
  if (!read_file(path, text, sizeof text)) return IB_GID_UNKNOWN;
  if (strncmp(text, "RoCE v2", 7) == 0) return IB_GID_ROCE_V2;
  /* The kernel has one name for InfiniBand and RoCE v1. The link says which. */
  return strncmp(text, "IB/RoCE v1", 10) == 0 ? IB_GID_ROCE_V1 : IB_GID_UNKNOWN;
}

bool ib_sysfs_has_peer_memory(void) {
  static const char *const signs[] = {"module/nvidia_peermem/version", "kernel/mm/memory_peers/nv_mem/version",
                                      "kernel/mm/memory_peers/nv_mem_nc/version"};
  char path[PATH_MAX];
  for (size_t i = 0; i < RAIL_COUNT_OF(signs); i++) {
    snprintf(path, sizeof path, "%s/%s", sysfs_root(), signs[i]);
    if (access(path, F_OK) == 0) return true;
  }
  return false;
}

/* ---- speed ---------------------------------------------------------------- */

#define UNKNOWN_SPEED 10000 /* NCCL's assumption for a device that reports none */

/* Codes are bits: the highest that is set counts. SDR DDR QDR FDR10 FDR EDR HDR NDR XDR. */
static const int lane_speeds[] = {2500, 5000, 10000, 10000, 14000, 25000, 50000, 100000, 200000};
/* 1x 4x 8x 12x 2x */
static const int lanes[] = {1, 4, 8, 12, 2};

static int of_highest_bit(uint32_t code, const int *table, size_t n) {
  if (!code) return 0;
  size_t bit = 31 - (size_t)__builtin_clz(code);
  return table[RAIL_MIN(bit, n - 1)];
}

int ib_link_speed(uint32_t speed_code, uint32_t width_code) {
  int speed = of_highest_bit(speed_code, lane_speeds, RAIL_COUNT_OF(lane_speeds));
  int width = of_highest_bit(width_code, lanes, RAIL_COUNT_OF(lanes));
  return speed && width ? speed * width : UNKNOWN_SPEED;
}

/* Speeds past 8 bits (XDR) are in a field that newer libraries append; older ones do not write it. */
union wide_attr {
  struct ibv_port_attr attr;
  struct {
    uint8_t older[offsetof(struct ibv_port_attr, port_cap_flags2) + sizeof(uint16_t)];
    uint32_t active_speed_ex __attribute__((aligned(4)));
  } newer;
  uint8_t room[256];
};

static uint32_t speed_code(struct ibv_context *context, uint8_t number, const struct ibv_port_attr *attr) {
  struct verbs_context *extended = verbs_get_ctx_op(context, query_port);
  union wide_attr wide = {.room = {0}};
  if (extended && extended->query_port(context, number, &wide.attr, sizeof wide) == 0 && wide.newer.active_speed_ex)
    return wide.newer.active_speed_ex;
  return attr->active_speed;
}

int ib_port_speed(struct ibv_context *context, uint8_t number, const struct ibv_port_attr *attr) {
  uint64_t hundreds = 0;
  if (ib_params.query_port_speed && ib_verbs.query_port_speed &&
      ib_verbs.query_port_speed(context, number, &hundreds) == 0 && hundreds > 0 && hundreds <= INT_MAX / 100)
    return (int)(hundreds * 100);
  return ib_link_speed(speed_code(context, number, attr), attr->active_width);
}

/* Where an IPv4 address begins in a GID. */
#define IPV4_AT 12
/* What is usually one subnet, for a peer's preference. */
#define USUAL_BITS_IPV4 24
#define USUAL_BITS_IPV6 64

static const uint8_t ipv4_mapped[IPV4_AT] = {[10] = 0xff, [11] = 0xff};

/* ---- GIDs: what they are -------------------------------------------------- */

bool ib_gid_is_ipv4(const struct ib_gid *gid) { return memcmp(gid->raw, ipv4_mapped, sizeof ipv4_mapped) == 0; }

bool ib_gid_is_link_local(const struct ib_gid *gid) {
  if (ib_gid_is_ipv4(gid)) return gid->raw[12] == 169 && gid->raw[13] == 254;
  return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80;
}

/* All zero, or a prefix without an interface's part: the port has no address yet. */
bool ib_gid_is_empty(const struct ib_gid *gid) {
  static const uint8_t zero[16];
  if (!gid->valid || memcmp(gid->raw, zero, sizeof zero) == 0) return true;
  return !ib_gid_is_ipv4(gid) && ib_gid_is_link_local(gid) && memcmp(gid->raw + 8, zero, 8) == 0;
}

static bool same_bits(const uint8_t *a, const uint8_t *b, unsigned int bits) {
  if (memcmp(a, b, bits / 8) != 0) return false;
  unsigned int rest = bits % 8;
  return rest == 0 || ((a[bits / 8] ^ b[bits / 8]) >> (8 - rest)) == 0;
}

bool ib_gid_same_subnet(const struct ib_gid *a, const struct ib_gid *b, unsigned int bits) {
  bool ipv4 = ib_gid_is_ipv4(a);
  unsigned int from = ipv4 ? IPV4_AT : 0, most = (16 - from) * 8;
  return ipv4 == ib_gid_is_ipv4(b) && same_bits(a->raw + from, b->raw + from, bits < most ? bits : most);
}

const char *ib_gid_text(const uint8_t raw[16], char text[IB_GID_TEXT]) {
  bool ipv4 = memcmp(raw, ipv4_mapped, sizeof ipv4_mapped) == 0;
  if (!inet_ntop(ipv4 ? AF_INET : AF_INET6, raw + (ipv4 ? IPV4_AT : 0), text, IB_GID_TEXT)) text[0] = 0;
  return text;
}

void ib_gid_to_sockaddr(const uint8_t raw[16], uint16_t port, struct sockaddr_storage *addr) {
  memset(addr, 0, sizeof *addr);
  if (memcmp(raw, ipv4_mapped, sizeof ipv4_mapped) == 0) {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port)};
    memcpy(&in.sin_addr, raw + IPV4_AT, sizeof in.sin_addr);
    memcpy(addr, &in, sizeof in);
  } else {
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    memcpy(&in6.sin6_addr, raw, sizeof in6.sin6_addr);
    memcpy(addr, &in6, sizeof in6);
  }
}

/* ---- GIDs: those of an iWARP port ----------------------------------------- */

#define MAC_SIZE 6

static bool is_mac(const struct ib_gid *gid) {
  static const uint8_t zero[16];
  return gid->valid && memcmp(gid->raw, zero, MAC_SIZE) != 0 && memcmp(gid->raw + MAC_SIZE, zero, 16 - MAC_SIZE) == 0;
}

static bool has_mac(const struct ifaddrs *list, const char *interface, const uint8_t mac[MAC_SIZE]) {
  for (; list; list = list->ifa_next) {
    struct sockaddr_ll link;
    if (!list->ifa_addr || list->ifa_addr->sa_family != AF_PACKET || strcmp(list->ifa_name, interface) != 0) continue;
    memcpy(&link, list->ifa_addr, sizeof link);
    if (link.sll_halen == MAC_SIZE && memcmp(link.sll_addr, mac, MAC_SIZE) == 0) return true;
  }
  return false;
}

static bool gid_of_address(const struct sockaddr *addr, struct ib_gid *gid) {
  *gid = (struct ib_gid){.type = IB_GID_UNKNOWN, .valid = true};
  if (addr && addr->sa_family == AF_INET) {
    struct sockaddr_in in;
    memcpy(&in, addr, sizeof in);
    memcpy(gid->raw, ipv4_mapped, sizeof ipv4_mapped);
    memcpy(gid->raw + IPV4_AT, &in.sin_addr, 4);
    return true;
  }
  if (!addr || addr->sa_family != AF_INET6) return false;
  struct sockaddr_in6 in6;
  memcpy(&in6, addr, sizeof in6);
  memcpy(gid->raw, &in6.sin6_addr, 16);
  return true;
}

void ib_gid_table_of_interface(struct ib_gid_table *table, const struct ifaddrs *list) {
  uint8_t mac[MAC_SIZE];
  if (table->count == 0 || !is_mac(&table->gids[0])) return;
  memcpy(mac, table->gids[0].raw, sizeof mac);
  memset(table, 0, sizeof *table);
  for (const struct ifaddrs *i = list; i && table->count < IB_MAX_GIDS; i = i->ifa_next)
    if (gid_of_address(i->ifa_addr, &table->gids[table->count]) && has_mac(list, i->ifa_name, mac)) table->count++;
}

/* ---- GIDs: which of them a connection uses -------------------------------- */

static bool in_range(const struct ib_gid *gid, const struct ib_gid_prefs *prefs) {
  if (!prefs->ranged) return true;
  bool ipv4 = ib_gid_is_ipv4(gid);
  return ipv4 == (prefs->range_family == AF_INET) &&
         same_bits(gid->raw + (ipv4 ? IPV4_AT : 0), prefs->range, prefs->range_bits);
}

static bool matches_prefs(const struct ib_gid *gid, const struct ib_gid_prefs *prefs) {
  uint8_t type = prefs->version == 1 ? IB_GID_ROCE_V1 : IB_GID_ROCE_V2;
  return !ib_gid_is_empty(gid) && !ib_gid_is_link_local(gid) && ib_gid_is_ipv4(gid) == (prefs->family == AF_INET) &&
         (gid->type == type || gid->type == IB_GID_UNKNOWN) && in_range(gid, prefs);
}

static bool is_near(const struct ib_gid *gid, const struct ib_gid *peer) {
  return ib_gid_same_subnet(gid, peer, ib_gid_is_ipv4(gid) ? USUAL_BITS_IPV4 : USUAL_BITS_IPV6);
}

/* An InfiniBand router's subnet-spanning LID is in bytes 4 and 5. */
static bool has_flid(const struct ib_gid *gid) { return gid->valid && (gid->raw[4] || gid->raw[5]); }

static int choose_infiniband(const struct ib_gid_table *table, const struct ib_gid_prefs *prefs) {
  bool routable = prefs->flid_index >= 0 && (unsigned int)prefs->flid_index < table->count;
  return routable && has_flid(&table->gids[prefs->flid_index]) ? prefs->flid_index : 0;
}

static int choose_given(const struct ib_gid_table *table, int index, const char **why) {
  if ((unsigned int)index >= table->count) *why = "NCCL_IB_GID_INDEX is beyond the end of the port's GID table";
  else if (ib_gid_is_empty(&table->gids[index])) *why = "the port has no GID at NCCL_IB_GID_INDEX";
  else return index;
  return IB_GID_NONE;
}

int ib_gid_choose(const struct ib_gid_table *table, bool roce, const struct ib_gid_prefs *prefs,
                  const struct ib_gid *peer, const char **why) {
  int first = IB_GID_NONE, any = IB_GID_NONE;
  *why = NULL;
  if (table->count == 0) {
    *why = "the port has no GIDs";
    return IB_GID_NONE;
  }
  if (!roce) return choose_infiniband(table, prefs);
  if (prefs->index >= 0) return choose_given(table, prefs->index, why);
  for (unsigned int i = 0; i < table->count; i++) {
    const struct ib_gid *gid = &table->gids[i];
    if (any == IB_GID_NONE && !ib_gid_is_empty(gid)) any = (int)i; /* index 0, unless that is a hole */
    if (!matches_prefs(gid, prefs)) continue;
    if (!peer || is_near(gid, peer)) return (int)i;
    if (first == IB_GID_NONE) first = (int)i;
  }
  if (first == IB_GID_NONE) first = any;
  if (first == IB_GID_NONE) *why = "all GIDs of the port are empty: its network interface has no address, or is down";
  return first;
}

/* ---- GIDs: a port's table ------------------------------------------------- */

/* All at once, without sysfs; libraries since rdma-core 32. */
static bool read_table(const struct ib_port *port, struct ib_gid_table *table) {
  struct ibv_gid_entry entries[2 * IB_MAX_GIDS];
  if (!ib_verbs.query_gid_table) return false;
  ssize_t n = ib_verbs.query_gid_table(port->hca->context, entries, RAIL_COUNT_OF(entries), 0, sizeof entries[0]);
  if (n <= 0 || n == RAIL_COUNT_OF(entries)) return false; /* it may be truncated: a device with many ports */
  for (ssize_t i = 0; i < n; i++) {
    const struct ibv_gid_entry *e = &entries[i];
    if (e->port_num != port->number || e->gid_index >= table->count) continue;
    struct ib_gid *gid = &table->gids[e->gid_index];
    memcpy(gid->raw, e->gid.raw, sizeof gid->raw);
    gid->type = e->gid_type < IB_GID_UNKNOWN ? (uint8_t)e->gid_type : IB_GID_UNKNOWN;
    gid->valid = true;
  }
  return true;
}

/* A hole is all zero, or cannot be read: errno says why. */
static void read_gid(const struct ib_port *port, unsigned int index, struct ib_gid *gid) {
  static const uint8_t zero[16];
  union ibv_gid raw;
  if (ib_verbs.query_gid(port->hca->context, port->number, (int)index, &raw) != 0) return;
  if (memcmp(raw.raw, zero, sizeof zero) == 0) return;
  memcpy(gid->raw, raw.raw, sizeof gid->raw);
  gid->valid = true;
  gid->type = ib_port_is_ethernet(port) ? gid_type(port, index) : IB_GID_IB;
}

/* False: entries or their types are missing, because there was no descriptor or no memory to read them. */
static bool read_one_by_one(const struct ib_port *port, struct ib_gid_table *table) {
  bool complete = true;
  for (unsigned int i = 0; i < table->count; i++) {
    errno = 0;
    read_gid(port, i, &table->gids[i]);
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) complete = false;
  }
  return complete;
}

static pthread_mutex_t gids_lock = PTHREAD_MUTEX_INITIALIZER; /* of all ports */

void ib_port_forget_gids(struct ib_port *port) { atomic_fetch_add(&port->changes, 1); }

/* Has an event come that `changes` does not count yet? Asked in this order, because the watch thread takes an event
 * from the descriptor after it has set in_events, and counts it before it clears that. */
static bool has_new_events(const struct ib_hca *hca) {
  struct pollfd events = {.fd = hca->context->async_fd, .events = POLLIN};
  return poll(&events, 1, 0) != 0 || atomic_load(&hca->in_events);
}

/* Those that were read before, if nothing has changed since. */
static bool take_known_gids(struct ib_port *port, uint64_t changes, struct ib_gid_table *table) {
  pthread_mutex_lock(&gids_lock);
  const bool known = port->gids_at == changes + 1 && port->gids.count == table->count;
  if (known) *table = port->gids;
  pthread_mutex_unlock(&gids_lock);
  return known;
}

/* For the next query. An empty one may be one that could not be read. */
static void keep_gids(struct ib_port *port, uint64_t changes, const struct ib_gid_table *table) {
  unsigned int first = 0;
  while (first < table->count && !table->gids[first].valid) first++;
  if (first == table->count) return;
  pthread_mutex_lock(&gids_lock);
  port->gids = *table;
  port->gids_at = changes + 1;
  pthread_mutex_unlock(&gids_lock);
}

static void read_gids(struct ib_port *port, int length, struct ib_gid_table *table) {
  const bool may_be_known = !has_new_events(port->hca);
  const uint64_t changes = atomic_load(&port->changes);
  memset(table, 0, sizeof *table);
  table->count = (unsigned int)RAIL_MIN(RAIL_MAX(length, 0), IB_MAX_GIDS);
  if (!may_be_known || !take_known_gids(port, changes, table)) {
    if (read_table(port, table) || read_one_by_one(port, table)) keep_gids(port, changes, table);
  }
  struct ifaddrs *list; /* of an interface, whose addresses are no event of the device */
  if (!port->iwarp || getifaddrs(&list) != 0) return;
  ib_gid_table_of_interface(table, list);
  freeifaddrs(list);
}

rail_result_t ib_port_query(struct ib_port *port, struct ib_port_attr *attr) {
  struct ibv_port_attr raw = {0};
  uint64_t prefix;
  memset(attr, 0, sizeof *attr);
  int err = ib_verbs.query_port(port->hca->context, port->number, &raw);
  if (err) {
    RAIL_WARN("RailIB: port %u of %s: ibv_query_port failed: %s; has the device been removed or reset? See "
              "dmesg", port->number, port->hca->name, strerror(err > 0 ? err : errno));
    return RAIL_SYSTEM_ERROR;
  }
  attr->active = raw.state == IBV_PORT_ACTIVE;
  attr->mtu = (uint8_t)raw.active_mtu;
  attr->lid = raw.lid;
  attr->max_msg = raw.max_msg_sz;
  attr->grh_required = (raw.flags & IBV_QPF_GRH_REQUIRED) != 0;
  read_gids(port, raw.gid_tbl_len, &attr->gids);
  memcpy(&prefix, attr->gids.gids[0].raw, sizeof prefix);
  attr->subnet_prefix = be64toh(prefix);
  return RAIL_OK;
}
