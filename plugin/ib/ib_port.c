/* SPDX-License-Identifier: Apache-2.0
 * A port as it is now: state, addresses, speed. */
#include <errno.h>
#include <endian.h>
#include <limits.h>
#include <string.h>

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "plugin/ib/ib_device.h"
#include "plugin/ib/ib_hca.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_sysfs.h"

/* ---- speed ---------------------------------------------------------------- */

#define UNKNOWN_SPEED 10000 /* what NCCL assumes of a device that does not say */

/* Codes are bits: the fastest that is set counts. SDR DDR QDR FDR10 FDR EDR HDR NDR XDR. */
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

/* Speeds past 8 bits (XDR) are in a field that newer libraries have behind the others; older ones leave it alone. */
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
  if (n <= 0 || n == RAIL_COUNT_OF(entries)) return false; /* one that may be cut off: a device with many ports */
  for (ssize_t i = 0; i < n; i++) {
    const struct ibv_gid_entry *e = &entries[i];
    if (e->port_num != port->number || e->gid_index >= table->count) continue;
    struct ib_gid *gid = &table->gids[e->gid_index];
    memcpy(gid->raw, e->gid.raw, sizeof gid->raw);
    gid->type = e->gid_type < IB_GID_UNKNOWN ? (uint8_t)e->gid_type : IB_GID_UNKNOWN;
    gid->ifindex = e->ndev_ifindex;
    gid->valid = true;
  }
  return true;
}

/* One by one. A hole is all zero, or cannot be read. */
static void read_one_by_one(const struct ib_port *port, struct ib_gid_table *table) {
  static const uint8_t zero[16];
  for (unsigned int i = 0; i < table->count; i++) {
    union ibv_gid raw;
    struct ib_gid *gid = &table->gids[i];
    if (ib_verbs.query_gid(port->hca->context, port->number, (int)i, &raw) != 0) continue;
    if (memcmp(raw.raw, zero, sizeof zero) == 0) continue;
    memcpy(gid->raw, raw.raw, sizeof gid->raw);
    gid->valid = true;
    gid->type = port->roce ? ib_sysfs_gid_type(ib_sysfs_root(), port->hca->name, port->number, i) : IB_GID_IB;
  }
}

static void read_gids(const struct ib_port *port, int length, struct ib_gid_table *table) {
  memset(table, 0, sizeof *table);
  table->count = (unsigned int)RAIL_MIN(RAIL_MAX(length, 0), IB_MAX_GIDS);
  if (!read_table(port, table)) read_one_by_one(port, table);
}

rail_result_t ib_port_look(const struct ib_port *port, struct ib_port_now *now) {
  struct ibv_port_attr attr = {0};
  uint64_t prefix;
  memset(now, 0, sizeof *now);
  int err = ib_verbs.query_port(port->hca->context, port->number, &attr);
  if (err) {
    RAIL_WARN("RailIB: port %u of %s cannot be asked for its state (ibv_query_port): %s; has the device been removed "
              "or reset? See dmesg", port->number, port->hca->name, strerror(err > 0 ? err : errno));
    return RAIL_SYSTEM_ERROR;
  }
  now->active = attr.state == IBV_PORT_ACTIVE;
  now->mtu = (uint8_t)attr.active_mtu;
  now->lid = attr.lid;
  now->max_msg = attr.max_msg_sz;
  now->grh_required = (attr.flags & IBV_QPF_GRH_REQUIRED) != 0;
  read_gids(port, attr.gid_tbl_len, &now->gids);
  memcpy(&prefix, now->gids.gids[0].raw, sizeof prefix);
  now->subnet_prefix = be64toh(prefix);
  return RAIL_OK;
}
