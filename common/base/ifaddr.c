/* SPDX-License-Identifier: Apache-2.0
 *
 * Which network interfaces to use. Listing asks the kernel; choosing is pure
 * and follows NCCL, so that a job that moves to Railyard keeps its interfaces.
 */
#include "common/base/ifaddr.h"

#include <errno.h>
#include <ifaddrs.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/base/log.h"

/* ---- listing ---------------------------------------------------------- */

static unsigned int prefix_of_mask(const struct sockaddr *mask) {
  const unsigned char *bytes;
  unsigned int size, bits = 0;
  if (!mask) return 0;
  if (mask->sa_family == AF_INET6) {
    bytes = (const unsigned char *)&((const struct sockaddr_in6 *)(const void *)mask)->sin6_addr;
    size = 16;
  } else {
    bytes = (const unsigned char *)&((const struct sockaddr_in *)(const void *)mask)->sin_addr;
    size = 4;
  }
  for (unsigned int i = 0; i < size; i++) bits += (unsigned int)__builtin_popcount(bytes[i]);
  return bits;
}

static bool is_usable(const struct ifaddrs *i) {
  if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || !(i->ifa_flags & IFF_RUNNING)) return false;
  return i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6;
}

int rail_interfaces_list(struct rail_interface **all) {
  struct ifaddrs *list = NULL;
  size_t entries = 1; /* calloc(0) may be NULL */
  int n = 0;
  if (getifaddrs(&list) != 0) return -1;
  for (const struct ifaddrs *i = list; i; i = i->ifa_next) entries += is_usable(i);
  *all = calloc(entries, sizeof **all);
  for (const struct ifaddrs *i = list; i && *all; i = i->ifa_next) {
    if (!is_usable(i)) continue;
    struct rail_interface *face = &(*all)[n++];
    snprintf(face->name, sizeof face->name, "%s", i->ifa_name);
    memcpy(&face->addr, i->ifa_addr,
           i->ifa_addr->sa_family == AF_INET ? sizeof face->addr.in : sizeof face->addr.in6);
    rail_addr_set_port(&face->addr, 0);
    face->prefix_len = prefix_of_mask(i->ifa_netmask);
    face->up = true;
  }
  freeifaddrs(list);
  return *all ? n : -1;
}

/* ---- choosing --------------------------------------------------------- */

bool rail_name_filter(const char *filter, const char *name) {
  bool exclude = false, exact = false, any = false;
  if (*filter == '^') { exclude = true; filter++; }
  if (*filter == '=') { exact = true; filter++; }
  for (const char *item = filter; *item;) {
    size_t len = strcspn(item, ",");
    if (len > 0) {
      any = true;
      if (strncmp(item, name, len) == 0 && (!exact || name[len] == 0)) return !exclude;
    }
    item += len;
    if (*item == ',') item++;
  }
  return exclude || !any; /* an empty list filters nothing */
}

int rail_family_from_text(const char *text) {
  static atomic_bool warned; /* the process may ask for each communicator and plugin */
  if (!text || !*text) return AF_UNSPEC;
  if (strcmp(text, "AF_INET") == 0) return AF_INET;
  if (strcmp(text, "AF_INET6") == 0) return AF_INET6;
  if (!atomic_exchange(&warned, true))
    RAIL_WARN("NCCL_SOCKET_FAMILY=%s is not a family; use AF_INET or AF_INET6. Any family is used", text);
  return AF_UNSPEC;
}

static bool is_link_local(const union rail_addr *addr) {
  return addr->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&addr->in6.sin6_addr);
}

/* Loopback-only IPv6 address; useful on lo alone. */
static bool is_loopback6(const union rail_addr *addr) {
  return addr->sa.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&addr->in6.sin6_addr);
}

/* How good an address is as its interface's only one: IPv4, then global IPv6,
 * then ::1, then link-local, which needs the scope of the right link. */
static int address_rank(const union rail_addr *addr) {
  if (addr->sa.sa_family == AF_INET) return 0;
  if (is_link_local(addr)) return 3;
  return is_loopback6(addr) ? 2 : 1;
}

static bool same_subnet(const struct rail_interface *face, const union rail_addr *hint) {
  if (!hint || face->addr.sa.sa_family != hint->sa.sa_family) return false;
  const unsigned char *a, *b;
  unsigned int bits = face->prefix_len, width;
  if (hint->sa.sa_family == AF_INET) {
    a = (const unsigned char *)&face->addr.in.sin_addr;
    b = (const unsigned char *)&hint->in.sin_addr;
    width = 32;
  } else {
    a = (const unsigned char *)&face->addr.in6.sin6_addr;
    b = (const unsigned char *)&hint->in6.sin6_addr;
    width = 128;
    if (is_link_local(hint) && hint->in6.sin6_scope_id && hint->in6.sin6_scope_id != face->addr.in6.sin6_scope_id)
      return false;
  }
  if (bits > width) bits = width;
  if (memcmp(a, b, bits / 8) != 0) return false;
  unsigned int rest = bits % 8;
  return rest == 0 || ((a[bits / 8] ^ b[bits / 8]) >> (8 - rest)) == 0;
}

struct choice {
  const struct rail_interface *all;
  int n, family;
  const union rail_addr *hint; /* set: only addresses in its subnet */
  struct rail_interface *out;
  int cap, count;
};

/* Best address of interface `name`, or NULL. */
static const struct rail_interface *best_address(const struct choice *c, const char *name) {
  const struct rail_interface *best = NULL;
  for (int i = 0; i < c->n; i++) {
    const struct rail_interface *face = &c->all[i];
    int family = face->addr.sa.sa_family;
    if (!face->up || strcmp(face->name, name) != 0) continue;
    if (family != AF_INET && family != AF_INET6) continue;
    if (c->family != AF_UNSPEC && family != c->family) continue;
    if (c->hint && !same_subnet(face, c->hint)) continue;
    if (!best || address_rank(&face->addr) < address_rank(&best->addr)) best = face;
  }
  return best;
}

static void take_matching(struct choice *c, const char *filter) {
  for (int i = 0; i < c->n && c->count < c->cap; i++) {
    const char *name = c->all[i].name;
    bool taken = false;
    for (int k = 0; k < c->count; k++) taken |= strcmp(c->out[k].name, name) == 0;
    if (taken || !rail_name_filter(filter, name)) continue;
    const struct rail_interface *face = best_address(c, name);
    if (face) c->out[c->count++] = *face;
  }
}

int rail_interfaces_choose(const struct rail_interface *all, int n, const char *ifname, int family,
                           const union rail_addr *hint, struct rail_interface *out, int cap) {
  struct choice c = {.all = all, .n = n, .family = family, .out = out, .cap = cap};
  if (ifname && *ifname) {
    take_matching(&c, ifname);
    return c.count;
  }
  take_matching(&c, "ib");
  if (c.count == 0 && hint) {
    c.hint = hint;
    take_matching(&c, "");
    c.hint = NULL;
  }
  static const char *const fallbacks[] = {"^docker,lo,virbr", "docker", "lo", "virbr"};
  for (size_t i = 0; c.count == 0 && i < RAIL_COUNT_OF(fallbacks); i++) take_matching(&c, fallbacks[i]);
  return c.count;
}

/* NCCL_COMM_ID is host:port; only a numeric one is a hint, a lookup could block. */
static bool comm_id_hint(const char *text, union rail_addr *hint) {
  if (!text || !*text || strspn(text, "0123456789abcdefABCDEF.:[]%") != strlen(text)) return false;
  return rail_addr_parse(text, hint) == RAIL_OK;
}

int rail_interfaces_find(const char *ifname, const char *family, const char *comm_id, struct rail_interface *out,
                         int cap) {
  struct rail_interface *all;
  union rail_addr hint;
  int n = rail_interfaces_list(&all);
  if (n < 0) return -1;
  n = rail_interfaces_choose(all, n, ifname, rail_family_from_text(family),
                             comm_id_hint(comm_id, &hint) ? &hint : NULL, out, cap);
  free(all);
  return n;
}
