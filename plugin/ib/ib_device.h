/* SPDX-License-Identifier: Apache-2.0
 *
 * The device table: every active port that NCCL_IB_HCA lets pass, found once per process, in an order that is the same
 * in every local process. It only grows: makeVDevice appends devices fused from others. Names and paths live as long as
 * the process.
 *
 *   hca     a verbs device: context, protection domain, registrations
 *   port    one of its ports: link, MTU, GIDs, speed
 *   device  what NCCL sees: a port, or up to 8 fused ones (rails)
 */
#ifndef IB_DEVICE_H
#define IB_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/sock.h"
#include "common/net/net_ops.h"
#include "plugin/ib/ib_plan.h"
#include "plugin/ib/ib_verbs.h"

/* Registrations of an HCA (ib_mr.c). */
struct ib_mr_entry;
struct ib_mr_cache {
  pthread_mutex_t lock; /* guards all below */
  struct ib_mr_entry **entries;
  size_t count, room;
  uint64_t longest; /* no entry of ordinary memory is longer */
};

/* A port's addresses. */
struct ib_gid {
  uint8_t raw[16];
  uint8_t type;    /* enum ib_gid_type; UNKNOWN where sysfs does not say (containers): treated as the preferred one */
  bool valid;      /* false: a hole in the table */
};

struct ib_gid_table {
  unsigned int count; /* entries, holes included */
  struct ib_gid gids[IB_MAX_GIDS];
};

/* ib_hca.faults */
#define IB_HCA_FATAL 1u /* IBV_EVENT_DEVICE_FATAL */

/* ib_port.faults */
#define IB_PORT_DOWN 1u /* the HCA retries meanwhile */

struct ib_hca {
  char name[64]; /* "mlx5_0" */
  struct ibv_context *context;
  struct ibv_pd *pd;
  struct ibv_device_attr attr;
  bool iwarp;              /* by its transport; else InfiniBand or RoCE, by the link of each port */
  uint64_t guid;           /* of the system image */
  char pci_path[256];      /* its own function's; "" if none */
  unsigned int max_retries; /* retransmissions; a larger retry_cnt would be endless */
  bool relaxed_ordering;   /* registrations may request it */
  bool dmabuf;             /* ibv_reg_dmabuf_mr is there and the driver has it */
  bool gpu_direct;         /* a peer memory module of the GPU's driver is loaded */
  struct ib_mr_cache mrs;
  struct ib_port *ports;   /* those that are used, one after the other */
  unsigned int nports;
  _Atomic uint32_t faults; /* IB_HCA_*: written by the watch thread, read by all */
  _Atomic bool in_events;  /* the watch thread is handling events that it has read */
  _Atomic bool reported_polled; /* the line that it gives no completion events is written */
};

struct ib_port {
  struct ib_hca *hca;
  uint8_t number; /* 1.. */
  bool roce, iwarp; /* at most one; neither: InfiniBand */
  bool rdmacm;    /* its queue pairs are set up by the RDMA CM (ib_cm.c) */
  char name[80];  /* "mlx5_0", "mlx5_0:2" where the HCA has several */
  int speed;      /* Mb/s */
  int16_t rail, plane; /* from NCCL_IB_HCA; -1 */
  int number_on_card;  /* NCCL's `port` property: counts functions that share a PCI device */
  char pci_path[256];  /* of the card: functions of one device merged */
  _Atomic uint32_t faults; /* IB_PORT_*; the watch thread's */
  _Atomic uint64_t flaps;  /* times the port went down */
  uint64_t down_since;     /* rail_now_ns(); 0: it is up. The watch thread's */
  _Atomic uint64_t changes; /* events that its addresses may have changed, and failures that may come of it */
  struct ib_gid_table gids; /* as they were read; ib_port.c guards both */
  uint64_t gids_at;         /* changes + 1 before that; 0: they were not read */
  uint64_t *stats;         /* of the group "device"; NULL until the page is open */
};

static inline bool ib_port_is_ethernet(const struct ib_port *port) { return port->roce || port->iwarp; }

struct ib_device {
  char name[IB_MAX_RAILS * 80];
  unsigned int nrails;
  struct ib_port *rails[IB_MAX_RAILS];
  int nmembers;
  int members[IB_MAX_RAILS]; /* indices in this table; itself unless makeVDevice made it */
};

enum ib_cm_kind { IB_CM_KIND_TCP, IB_CM_KIND_RDMACM }; /* RAIL_IB_CM */

/* Builds the table at the first call. Without libibverbs, device or interface for oob connections there are no
 * devices, after one line. Call under the plugin's lock. */
void ib_devices_load(void);
/* Closes all HCAs, when the library is unloaded; the table is empty then. No device may be in use. */
void ib_devices_unload(void);
int ib_device_count(void);
/* NULL, after one line that names the index and what is allowed, if there is no such device. */
const struct ib_device *ib_device_at(int dev, const char *call);
int ib_device_index(const struct ib_device *device); /* its number */
/* RAIL_PTR_*: what can be registered in a connection over it, with or without the SEND protocol (ib_two_sided.c). */
int ib_device_ptr_support(const struct ib_device *device, bool two_sided);
rail_result_t ib_get_properties(int dev, struct rail_net_props_v12 *props);
/* makeVDevice. Call under the plugin's lock. */
rail_result_t ib_device_fuse(int *dev, const struct rail_net_vprops_v12 *props);

/* All HCAs that a device uses, for the watch thread; the pointers stay. */
unsigned int ib_hca_count(void);
struct ib_hca *ib_hca_at(unsigned int i);
unsigned int ib_port_count(void);
struct ib_port *ib_port_at(unsigned int i);

/* The interface that listeners of oob connections use: name and address (port 0). */
const char *ib_oob_interface(union rail_addr *addr);

/* ---- one port: ib_port.c --------------------------------------------------------- */

/* Attributes that may change, queried for each connection; the GIDs are read where an event said that they may have
 * changed, or ib_port_forget_gids. Any thread. */
struct ib_port_attr {
  bool active;
  uint8_t mtu; /* enum ibv_mtu: active */
  uint32_t max_msg; /* bytes that one write may have */
  uint16_t lid;
  uint64_t subnet_prefix; /* of GID 0, host order */
  bool grh_required;
  struct ib_gid_table gids;
};
/* RAIL_SYSTEM_ERROR after one line. */
rail_result_t ib_port_query(struct ib_port *port, struct ib_port_attr *now);
/* They are read at the next query: a connection or its data path failed with them, or an event came. */
void ib_port_forget_gids(struct ib_port *port);

/* Mb/s. */
int ib_port_speed(struct ibv_context *context, uint8_t number, const struct ibv_port_attr *attr);
/* Of the codes of verbs (active_speed, active_width). Pure. */
int ib_link_speed(uint32_t speed_code, uint32_t width_code);

/* ---- GIDs: ib_port.c ---------------------------------------------------------------
 *
 * Which GID of a port a connection uses: pure functions over a plain table, so that tests pass tables with holes,
 * several subnets and both versions of RoCE.
 *
 * The rules are NCCL's (nccl 2.30 src/transport/net_ib/connect.cc, gid selection): InfiniBand uses index 0, or
 * NCCL_IB_ROUTABLE_FLID_GID_INDEX if that one has a FLID; RoCE uses NCCL_IB_GID_INDEX if it is set, else the first GID
 * of the wanted family, range and version that is neither empty nor link-local, else index 0. Here, among several that
 * match, one in the subnet of the peer's GID is preferred.
 */

enum ib_gid_choice { IB_GID_NONE = -1 };

/* The index, or IB_GID_NONE with *why a text that names what is missing. `peer` may be NULL. */
struct ib_gid_prefs; /* ib_param.h */
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

/* ---- sysfs: ib_port.c -------------------------------------------------------------
 * Attributes of RDMA devices that libibverbs does not report. */

/* The PCI function of an HCA: `own`, and the card that it belongs to, by function 0 of its device, or that of its
 * physical function if it is a virtual one and merge_vfs. Both "" if there is none (Soft-RoCE). */
void ib_sysfs_pci_paths(const char *hca, bool merge_vfs, char own[256], char card[256]);

/* A module is loaded by which the HCA reaches GPU memory: nvidia_peermem, or nv_peer_mem before it. */
bool ib_sysfs_has_peer_memory(void);

#endif
