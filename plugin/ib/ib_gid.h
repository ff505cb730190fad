/* SPDX-License-Identifier: Apache-2.0
 *
 * Which GID of a port a connection uses: pure functions over a plain table, so that tests pass tables with holes,
 * several subnets and both versions of RoCE.
 *
 * The rules are NCCL's (nccl 2.30 src/transport/net_ib/connect.cc, gid selection):
 * InfiniBand uses index 0, or NCCL_IB_ROUTABLE_FLID_GID_INDEX if that one has a
 * FLID; RoCE uses NCCL_IB_GID_INDEX if it is set, else the first GID of the wanted
 * family, range and version that is neither empty nor link-local, else index 0.
 * Here, among several that match, one in the subnet of the peer's GID is preferred.
 */
#ifndef IB_GID_H
#define IB_GID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IB_MAX_GIDS 256

enum ib_gid_type { IB_GID_IB = 0, IB_GID_ROCE_V1 = 1, IB_GID_ROCE_V2 = 2, IB_GID_UNKNOWN = 3 }; /* on the wire */

struct ib_gid {
  uint8_t raw[16];
  uint8_t type;    /* enum ib_gid_type; UNKNOWN where sysfs does not say (containers): treated as the preferred one */
  bool valid;      /* false: a hole in the table */
};

struct ib_gid_table {
  unsigned int count; /* entries, holes included */
  struct ib_gid gids[IB_MAX_GIDS];
};

/* What NCCL_IB_GID_INDEX, NCCL_IB_ADDR_FAMILY, NCCL_IB_ADDR_RANGE, NCCL_IB_ROCE_VERSION_NUM and
 * NCCL_IB_ROUTABLE_FLID_GID_INDEX say. */
struct ib_gid_prefs {
  int index;      /* -1: choose */
  int family;     /* AF_INET or AF_INET6 */
  int version;    /* of RoCE: 1 or 2 */
  int flid_index; /* of a routable InfiniBand GID */
  bool ranged;
  int range_family;
  uint8_t range[16]; /* an IPv4 range is in the first 4 bytes */
  unsigned int range_bits;
};

enum ib_gid_choice { IB_GID_NONE = -1 };

/* The index, or IB_GID_NONE with *why a text that names what is missing. `peer` may be NULL. */
int ib_gid_choose(const struct ib_gid_table *table, bool roce, const struct ib_gid_prefs *prefs,
                  const struct ib_gid *peer, const char **why);

bool ib_gid_is_empty(const struct ib_gid *gid);
bool ib_gid_is_link_local(const struct ib_gid *gid);
bool ib_gid_is_ipv4(const struct ib_gid *gid); /* an IPv4 address mapped into IPv6 */
/* The first `bits` bits of both addresses are equal; an IPv4-mapped one counts from its IPv4 part. */
bool ib_gid_same_subnet(const struct ib_gid *a, const struct ib_gid *b, unsigned int bits);

/* GID 0 of an iWARP port is the MAC address of its interface, with zeros behind. Puts that interface's addresses in the
 * table's place, IPv4 ones mapped; other tables stay. `list` as getifaddrs gives it. Pure. */
struct ifaddrs;
void ib_gid_table_of_interface(struct ib_gid_table *table, const struct ifaddrs *list);

/* A GID of RoCE, and what stands for one of an iWARP interface, is an address. */
struct sockaddr_storage;
void ib_gid_to_sockaddr(const uint8_t raw[16], uint16_t port, struct sockaddr_storage *addr);

#define IB_GID_TEXT 64
/* "10.0.0.1" or "fe80::1". */
const char *ib_gid_text(const uint8_t raw[16], char text[IB_GID_TEXT]);

/* NCCL_IB_ADDR_RANGE: "10.0.0.0/8", "fd00::/64". False: no CIDR. */
bool ib_gid_parse_range(const char *text, struct ib_gid_prefs *prefs);

#endif
