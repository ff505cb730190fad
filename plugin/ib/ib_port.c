/* SPDX-License-Identifier: Apache-2.0
 * A port: whether NCCL_IB_HCA lets it pass, what sysfs says of it, its current state, addresses and speed. */
#include <ctype.h>
#include <endian.h>
#include <errno.h>
#include <ifaddrs.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "common/base/ifaddr.h"
#include "common/base/log.h"
#include "plugin/ib/ib_device.h"
#include "plugin/ib/ib_param.h"

/* ---- NCCL_IB_HCA ------------------------------------------------------------ */

#define MAX_PORT 255

/* A number at *text up to ':' or `end`; empty: -1. False: it is none, or larger than `most`. */
static bool take_number(const char **text, const char *end, int most, int *number) {
  const char *at = *text;
  int value = 0;
  *number = -1;
  for (; at < end && *at != ':'; at++) {
    if (!isdigit((unsigned char)*at)) return false;
    value = value * 10 + (*at - '0');
    if (value > most) return false;
  }
  if (at > *text) *number = value;
  *text = at < end ? at + 1 : end;
  return true;
}

/* NULL, or what is wrong with the entry at text up to end. */
static const char *parse_entry(const char *text, const char *end, struct ib_hca_entry *entry) {
  size_t len = 0;
  int rail, plane;
  while (text + len < end && text[len] != ':') len++;
  if (len == 0) return "has no name";
  if (len >= sizeof entry->name) return "has a name of more than 63 characters";
  memset(entry, 0, sizeof *entry);
  memcpy(entry->name, text, len);
  text += len + (text + len < end);
  if (!take_number(&text, end, MAX_PORT, &entry->port) || entry->port == 0) return "has a port that is not in 1..255";
  if (!take_number(&text, end, INT16_MAX, &rail)) return "has a rail that is not in 0..32767";
  if (!take_number(&text, end, INT16_MAX, &plane)) return "has a plane that is not in 0..32767";
  if (text < end) return "has more than a name and three numbers";
  entry->rail = (int16_t)rail;
  entry->plane = (int16_t)plane;
  return NULL;
}

void ib_hca_filter_parse(const char *text, struct ib_hca_filter *filter) {
  memset(filter, 0, sizeof *filter);
  if (!text) return;
  if (*text == '^') { filter->exclude = true; text++; }
  if (*text == '=') { filter->exact = true; text++; }
  for (const char *end; *text; text = end + (*end == ',')) {
    end = text + strcspn(text, ",");
    if (end == text) continue;
    filter->named = true;
    struct ib_hca_entry entry;
    const char *why = parse_entry(text, end, &entry);
    if (!why && filter->count == IB_MAX_HCA_ENTRIES) why = "is one more than the 32 that are allowed";
    if (why)
      RAIL_WARN("RailIB: NCCL_IB_HCA: '%.*s' %s and is left out; form: [^][=]name[:port[:rail[:plane]]],...",
                (int)(end - text), text, why);
    else filter->entries[filter->count++] = entry;
  }
}

static bool names(const struct ib_hca_filter *filter, const struct ib_hca_entry *entry, const char *name, int port) {
  size_t len = strlen(entry->name);
  if (strncmp(entry->name, name, len) != 0 || (filter->exact && name[len])) return false;
  return entry->port == -1 || entry->port == port;
}

bool ib_hca_filter_passes(const struct ib_hca_filter *filter, const char *name, int port, int16_t *rail,
                          int16_t *plane) {
  *rail = *plane = -1;
  for (unsigned int i = 0; i < filter->count; i++) {
    const struct ib_hca_entry *entry = &filter->entries[i];
    if (!names(filter, entry, name, port)) continue;
    if (filter->exclude) return false;
    *rail = entry->rail;
    *plane = entry->plane;
    return true;
  }
  return filter->exclude || !filter->named;
}

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

/* ---- GIDs ------------------------------------------------------------------ */

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
