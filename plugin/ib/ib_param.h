/* SPDX-License-Identifier: Apache-2.0
 * Parameters of the ib plugin, read once at init. The rows are in ib_param.c. */
#ifndef IB_PARAM_H
#define IB_PARAM_H

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
  int64_t connect_ms;   /* RAIL_IB_CONNECT_TIMEOUT: to reach a peer, and from its first answer to the end; 0: none */
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

#endif
