/* SPDX-License-Identifier: Apache-2.0
 * Parameters of the ib plugin, read once at init, and what those mean whose text has a form of its own. */
#ifndef IB_PARAM_H
#define IB_PARAM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/param.h"

struct ib_params {
  /* devices: NCCL's names */
  const char *hca, *ibverbs_lib, *rdmacm_lib, *ifname, *family, *comm_id;
  int64_t disable, merge_vfs, merge_nics, fuse_no_pci, pci_order, relaxed_ordering, query_port_speed;
  /* GIDs: NCCL's names */
  int64_t gid_index, flid_gid_index, roce_version;
  const char *addr_family, *addr_range;
  int64_t subnet_aware, subnet_prefix_len;
  /* QPs: NCCL's names */
  int64_t pkey, sl, tc, fifo_tc, ece;
  int64_t timeout;   /* NCCL_IB_TIMEOUT, 0..31 */
  int64_t retry_cnt; /* NCCL_IB_RETRY_CNT, 0..7 */
  int64_t modify_retry_all, modify_retries, modify_retry_ms;
  int64_t qps, split, use_inline; /* use_inline: -1 when the device allows it */
  int64_t adaptive_routing;       /* -2: on InfiniBand, not on RoCE */
  int64_t ar_threshold;
  int64_t return_async_events, flush_disable;
  /* ours: RAIL_IB_... */
  const char *auth_file, *ports, *bind;
  int64_t cm;           /* RAIL_IB_CM: enum ib_cm_kind */
  int64_t protocol;     /* RAIL_IB_PROTOCOL: enum ib_protocol_kind */
  int64_t connect_ms;   /* RAIL_IB_CONNECT_TIMEOUT: to reach a peer, and from its ANSWER to the end; 0: none */
  int64_t handshake_ms; /* RAIL_IB_HANDSHAKE_TIMEOUT: until a pending connection's first message */
  int64_t deadline_ms;  /* RAIL_IB_DEADLINE: how long a peer's host may not acknowledge; 0: no limit */
  int64_t peer_ms;      /* RAIL_IB_PEER_TIMEOUT: how long a peer whose host answers may be silent; 0: no limit */
  int64_t peer_warn_ms; /* RAIL_IB_PEER_WARN: a peer that is silent for so long is reported; 0: never */
  int64_t tag_ms;       /* RAIL_IB_TAG_TIMEOUT: how long a send may find receives of other tags only; 0: no limit */
  int64_t linger_ms;    /* RAIL_IB_LINGER: how long a closed receiver answers retries; -1: by the sender's timeout */
  int64_t verify;       /* RAIL_IB_VERIFY: a first write in both directions before a connection is handed out */
  int64_t max_write;    /* RAIL_IB_MAX_WRITE: bytes of one RDMA write; a power of two */
  int64_t min_part;     /* RAIL_IB_MIN_PART: no message is split into smaller parts, were they equal */
  int64_t striping;     /* RAIL_IB_STRIPING: enum ib_striping */
  int64_t flush;        /* RAIL_IB_FLUSH: enum ib_flush_mode */
  int64_t port_grace_ms; /* RAIL_IB_PORT_GRACE: how long a port may be down before it counts as lost */
  int64_t path_ms;      /* RAIL_IB_PATH_TIMEOUT: how long a path may be silent while another answers; 0: no limit */
  int64_t failover;     /* RAIL_IB_FAILOVER: a connection outlives a QP, where it has another */
  int64_t progress;     /* RAIL_IB_PROGRESS: enum ib_progress_kind */
};
extern struct ib_params ib_params;
extern const struct rail_param_table ib_param_table;

/* Reads them, checks what a row cannot, warns about unknown ones. Once, under the plugin's lock. */
void ib_params_load(void);

/* ---- NCCL_IB_HCA ---------------------------------------------------------
 *
 * `[^][=]name[:port[:rail[:plane]]],...`, as pure functions. '^' in front excludes what the list names, '=' after it
 * makes names exact; without it mlx5_1 also means mlx5_10. An empty or absent port means every port; rail and plane are
 * for NCCL's topology search.
 */

#define IB_MAX_HCA_ENTRIES 32

struct ib_hca_entry {
  char name[64];
  int port;            /* -1: every one */
  int16_t rail, plane; /* -1: unset */
};

struct ib_hca_filter {
  bool exclude, exact;
  bool named; /* there is a list; if all its entries were bad it names nothing, rather than everything */
  unsigned int count;
  struct ib_hca_entry entries[IB_MAX_HCA_ENTRIES];
};

/* text NULL or empty: everything passes. Each bad entry is named in a warning and left out. */
void ib_hca_filter_parse(const char *text, struct ib_hca_filter *filter);

/* Is this port to be used? Then *rail and *plane are those of its entry, or -1. */
bool ib_hca_filter_passes(const struct ib_hca_filter *filter, const char *name, int port, int16_t *rail,
                          int16_t *plane);

/* ---- which GIDs suit ---------------------------------------------------- */

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
void ib_params_gid_prefs(struct ib_gid_prefs *prefs);

/* NCCL_IB_ADDR_RANGE, alone: "10.0.0.0/8", "fd00::/64". False: no CIDR. Pure. */
bool ib_gid_parse_range(const char *text, struct ib_gid_prefs *prefs);

#endif
