/* SPDX-License-Identifier: Apache-2.0
 * Choosing a GID. Pure. */
#include "plugin/ib/ib_gid.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/if_packet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Where an IPv4 address begins in a GID. */
#define IPV4_AT 12
/* What is usually one subnet, for a peer's preference. */
#define USUAL_BITS_IPV4 24
#define USUAL_BITS_IPV6 64

static const uint8_t ipv4_mapped[IPV4_AT] = {[10] = 0xff, [11] = 0xff};

/* ---- what a GID is ------------------------------------------------------ */

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

/* ---- iWARP ----------------------------------------------------------------- */

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

/* ---- NCCL_IB_ADDR_RANGE ------------------------------------------------- */

bool ib_gid_parse_range(const char *text, struct ib_gid_prefs *prefs) {
  char address[INET6_ADDRSTRLEN], *end;
  const char *slash = strchr(text, '/');
  if (!slash || (size_t)(slash - text) >= sizeof address || slash[1] < '0' || slash[1] > '9') return false;
  memcpy(address, text, (size_t)(slash - text));
  address[slash - text] = 0;
  int family = strchr(address, ':') ? AF_INET6 : AF_INET;
  unsigned long bits = strtoul(slash + 1, &end, 10);
  memset(prefs->range, 0, sizeof prefs->range);
  if (*end || bits > (family == AF_INET ? 32u : 128u) || inet_pton(family, address, prefs->range) != 1) return false;
  prefs->ranged = true;
  prefs->range_family = family;
  prefs->range_bits = (unsigned int)bits;
  return true;
}

static bool in_range(const struct ib_gid *gid, const struct ib_gid_prefs *prefs) {
  if (!prefs->ranged) return true;
  bool ipv4 = ib_gid_is_ipv4(gid);
  return ipv4 == (prefs->range_family == AF_INET) &&
         same_bits(gid->raw + (ipv4 ? IPV4_AT : 0), prefs->range, prefs->range_bits);
}

/* ---- choosing ------------------------------------------------------------ */

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
