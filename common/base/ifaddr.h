/* SPDX-License-Identifier: Apache-2.0
 *
 * Network interfaces, by NCCL's selection rules (nccl src/misc/socket.cc,
 * src/misc/utils.cc): NCCL_SOCKET_IFNAME is a list of prefixes, '^' in front
 * excludes the list, '=' makes it exact; unset: names that begin with "ib",
 * else those in NCCL_COMM_ID's subnet, else all but docker*, lo and virbr*, else
 * docker*, else lo, else virbr*. NCCL_SOCKET_FAMILY AF_INET or AF_INET6 limits the addresses.
 *
 * The choice is a pure function over a plain list, so tests feed it tables.
 */
#ifndef RAIL_IFADDR_H
#define RAIL_IFADDR_H

#include <net/if.h>
#include <sched.h>
#include <stdbool.h>

#include "sock.h"

#define RAIL_MAX_INTERFACES 32

struct rail_interface {
  char name[IFNAMSIZ];
  union rail_addr addr;     /* port 0 */
  unsigned int prefix_len;  /* of the subnet */
  bool up;                  /* IFF_UP and IFF_RUNNING */
};

/* All up interfaces of this namespace with an IPv4 or IPv6 address (one entry
 * per address), in kernel order. Returns how many, the caller frees *all; or -1 with errno. */
int rail_interfaces_list(struct rail_interface **all);

/* NCCL's choice: picks at most `cap` of `all`, one address per interface, in
 * a stable order. `ifname` is NCCL_SOCKET_IFNAME's value (NULL unset), family
 * AF_UNSPEC, AF_INET or AF_INET6, `hint` NCCL_COMM_ID's address or NULL. */
int rail_interfaces_choose(const struct rail_interface *all, int n, const char *ifname, int family,
                           const union rail_addr *hint, struct rail_interface *out, int cap);

/* Both: this machine's interfaces by the values of NCCL_SOCKET_IFNAME, NCCL_SOCKET_FAMILY and NCCL_COMM_ID, each NULL
 * if unset. -1 with errno if they cannot be listed. */
int rail_interfaces_find(const char *ifname, const char *family, const char *comm_id, struct rail_interface *out,
                         int cap);

/* The list filter itself: does `name` pass "[^|=]a,b,c"? */
bool rail_name_filter(const char *filter, const char *name);

/* AF_* named by NCCL_SOCKET_FAMILY's text; a wrong word is AF_UNSPEC, and the first one is warned about. */
int rail_family_from_text(const char *text);

/* sysfs facts; `sysfs_root` is "/sys" outside tests. */
int rail_interface_speed(const char *sysfs_root, const char *ifname);   /* Mb/s; 10000 where unknown or <= 0 */
bool rail_interface_pci_path(const char *sysfs_root, const char *ifname, char *path, size_t cap);
/* The PCI function that a link in sysfs leads to, or lies below. */
bool rail_pci_path(const char *link, char *path, size_t cap);
uint64_t rail_interface_guid(const char *sysfs_root, const char *ifname); /* of the MAC, else of the name; not 0 */
unsigned int rail_interface_vendor(const char *sysfs_root, const char *ifname); /* PCI's number; 0 where unknown */
/* Those near its card. False: virtual interfaces have none, and some cards do not say; *cpus is then empty. */
bool rail_interface_cpus(const char *sysfs_root, const char *ifname, cpu_set_t *cpus);

#endif
