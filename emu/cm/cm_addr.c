/* SPDX-License-Identifier: Apache-2.0
 *
 * Which port an address belongs to. A port has the addresses of its GID table, and 10.77.DEVICE.PORT and
 * 127.77.DEVICE.PORT. All other addresses of this machine's interfaces, loopback included, are those of port 1 of the
 * first device: so programs that know nothing of the emulated devices find one. */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <stdlib.h>
#include <string.h>

#include "emu/cm/cm.h"

static struct cm_device devices[CM_DEVICES];

struct cm_device *cm_device_at(unsigned int index) {
  struct ibv_device_attr attr;
  int n = 0;
  if (index >= CM_DEVICES) return NULL;
  if (devices[index].context) return &devices[index];
  struct ibv_device **list = ibv_get_device_list(&n);
  struct ibv_context *context = list && index < (unsigned int)n ? ibv_open_device(list[index]) : NULL;
  if (list) ibv_free_device_list(list);
  if (!context) return NULL;
  if (ibv_query_device(context, &attr) != 0) {
    ibv_close_device(context);
    return NULL;
  }
  devices[index] = (struct cm_device){.context = context, .max_resources = (uint8_t)attr.max_qp_rd_atom};
  return &devices[index];
}

static unsigned int device_count(void) {
  int n = 0;
  struct ibv_device **list = ibv_get_device_list(&n);
  if (list) ibv_free_device_list(list);
  return n > CM_DEVICES ? CM_DEVICES : (unsigned int)n;
}

struct ibv_context **rdma_get_devices(int *count) {
  unsigned int n = device_count(), found = 0;
  struct ibv_context **list = calloc(n + 1, sizeof(struct ibv_context *));
  pthread_mutex_lock(&cm.lock);
  for (unsigned int i = 0; list && i < n; i++) {
    struct cm_device *d = cm_device_at(i);
    if (d) list[found++] = d->context;
  }
  pthread_mutex_unlock(&cm.lock);
  if (count) *count = (int)found;
  if (list && found) return list;
  free(list);
  if (!found) errno = ENODEV;
  return NULL;
}

void rdma_free_devices(struct ibv_context **list) { free(list); }

/* ---- addresses --------------------------------------------------------------------- */

bool cm_addr_read(const struct sockaddr *from, struct cm_addr *to) {
  memset(to, 0, sizeof *to);
  if (from->sa_family == AF_INET) {
    struct sockaddr_in in;
    memcpy(&in, from, sizeof in);
    to->ip.s6_addr[10] = to->ip.s6_addr[11] = 0xff;
    memcpy(to->ip.s6_addr + 12, &in.sin_addr, 4);
    to->port = ntohs(in.sin_port);
    return true;
  }
  if (from->sa_family != AF_INET6) return false;
  struct sockaddr_in6 in6;
  memcpy(&in6, from, sizeof in6);
  to->ip = in6.sin6_addr;
  to->port = ntohs(in6.sin6_port);
  return true;
}

void cm_addr_write(const struct cm_addr *from, bool ipv4, struct sockaddr_storage *to) {
  struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(from->port)};
  struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(from->port), .sin6_addr = from->ip};
  memset(to, 0, sizeof *to);
  memcpy(&in.sin_addr, from->ip.s6_addr + 12, 4);
  if (ipv4) memcpy(to, &in, sizeof in);
  else memcpy(to, &in6, sizeof in6);
}

bool cm_addr_is_any(const struct cm_addr *a) {
  static const struct in6_addr any4 = {.s6_addr = {[10] = 0xff, 0xff}};
  return IN6_IS_ADDR_UNSPECIFIED(&a->ip) || memcmp(&a->ip, &any4, sizeof any4) == 0;
}

static bool is_of_this_machine(const struct in6_addr *ip) {
  struct ifaddrs *list;
  bool found = IN6_IS_ADDR_LOOPBACK(ip) || (IN6_IS_ADDR_V4MAPPED(ip) && ip->s6_addr[12] == 127);
  if (found || getifaddrs(&list) != 0) return found;
  for (struct ifaddrs *i = list; i && !found; i = i->ifa_next) {
    struct cm_addr a;
    found = i->ifa_addr && cm_addr_read(i->ifa_addr, &a) && memcmp(&a.ip, ip, sizeof *ip) == 0;
  }
  freeifaddrs(list);
  return found;
}

/* The last of a port's GIDs that is this, or NULL: the last one at all. The last one is of RoCE v2, and IPv4. */
static int find_gid(struct cm_device *d, uint8_t port, int n, const struct in6_addr *wanted, union ibv_gid *gid) {
  int found = -1;
  for (int i = 0; i < n; i++) {
    static const union ibv_gid zero;
    union ibv_gid g;
    if (ibv_query_gid(d->context, port, i, &g) != 0 || memcmp(&g, &zero, sizeof g) == 0) continue;
    if (wanted && memcmp(&g, wanted, sizeof g) != 0) continue;
    found = i;
    *gid = g;
  }
  return found;
}

static bool port_of(unsigned int device, uint8_t port, const struct in6_addr *gid, struct cm_place *place) {
  struct cm_device *d = cm_device_at(device);
  if (!d || ibv_query_port(d->context, port, &place->attr) != 0) return false;
  place->device = d;
  place->port = port;
  place->gid_index = find_gid(d, port, place->attr.gid_tbl_len, gid, &place->gid);
  return place->gid_index >= 0;
}

bool cm_place_of(const struct cm_addr *a, struct cm_place *place) {
  const uint8_t *b = a->ip.s6_addr;
  unsigned int n = device_count();
  for (unsigned int i = 0; i < n; i++)
    for (uint8_t port = 1; port <= 4; port++)
      if (port_of(i, port, &a->ip, place)) return true;
  if (IN6_IS_ADDR_V4MAPPED(&a->ip) && (b[12] == 10 || b[12] == 127) && b[13] == 77)
    return port_of(b[14], b[15], NULL, place);
  return is_of_this_machine(&a->ip) && port_of(0, 1, NULL, place);
}

bool cm_place_is_up(const struct cm_place *place) {
  struct ibv_port_attr attr;
  return ibv_query_port(place->device->context, place->port, &attr) == 0 && attr.state == IBV_PORT_ACTIVE;
}

void cm_enter(struct cm_id *id, const struct cm_place *place) {
  id->place = *place;
  id->id.verbs = place->device->context;
  id->id.port_num = place->port;
  id->id.route.addr.addr.ibaddr.sgid = place->gid;
  id->id.route.addr.addr.ibaddr.pkey = htons(0xffff);
}

static __be16 port_in(const struct sockaddr_storage *s) {
  struct cm_addr a;
  return cm_addr_read((const struct sockaddr *)(const void *)s, &a) ? htons(a.port) : 0;
}

__be16 rdma_get_src_port(struct rdma_cm_id *id) { return port_in(&id->route.addr.src_storage); }
__be16 rdma_get_dst_port(struct rdma_cm_id *id) { return port_in(&id->route.addr.dst_storage); }
