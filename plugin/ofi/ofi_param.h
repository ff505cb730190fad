/* SPDX-License-Identifier: Apache-2.0
 * Parameters of the ofi plugin, read once at init. The rows are in ofi_param.c. */
#ifndef OFI_PARAM_H
#define OFI_PARAM_H

#include "common/base/param.h"

enum ofi_wanted { OFI_WANT_AUTO, OFI_WANT_TAGGED, OFI_WANT_RMA };     /* RAIL_OFI_PROTOCOL */
enum ofi_flush_mode { OFI_FLUSH_AUTO, OFI_FLUSH_ALWAYS, OFI_FLUSH_NEVER }; /* RAIL_OFI_FLUSH */

#define OFI_MAX_INLINE 8192

struct ofi_params {
  /* devices */
  const char *library;  /* NULL: libfabric.so.1 */
  const char *provider; /* NULL: the best */
  const char *domain;   /* NULL: all */
  int64_t protocol;     /* enum ofi_wanted */
  const char *ifname, *family, *comm_id;
  int64_t fuse_no_pci;
  /* data */
  int64_t inline_bytes; /* RAIL_OFI_INLINE: payload that travels inside a control message; -1: by provider */
  int64_t min_part;     /* RAIL_OFI_MIN_PART: no message is split over NICs into smaller parts */
  int64_t flush;        /* RAIL_OFI_FLUSH: enum ofi_flush_mode */
  int64_t flush_disable; /* NCCL_GDR_FLUSH_DISABLE */
  int64_t ll128;        /* RAIL_OFI_LL128: NCCL may use it */
  /* connections */
  const char *auth_file, *ports, *bind;
  int64_t connect_ms;   /* RAIL_OFI_CONNECT_TIMEOUT: to reach a peer, and from its ANSWER to the end; 0: none */
  int64_t handshake_ms; /* RAIL_OFI_HANDSHAKE_TIMEOUT: until a pending connection's first message */
  int64_t deadline_ms;  /* RAIL_OFI_DEADLINE: how long a peer's host may not acknowledge; 0: no limit */
  int64_t peer_ms;      /* RAIL_OFI_PEER_TIMEOUT: how long a peer whose host answers may be silent; 0: no limit */
  int64_t peer_warn_ms; /* RAIL_OFI_PEER_WARN: a peer that is silent for so long is reported; 0: never */
  int64_t close_ms;     /* RAIL_OFI_CLOSE_TIMEOUT: how long close and deregMr wait for operations that libfabric has */
  /* aws-ofi-nccl's names, which count where ours are unset */
  const char *aws_protocol;
  int64_t aws_min_part; /* -1: unset */
};
extern struct ofi_params ofi_params;
extern const struct rail_param_table ofi_param_table;

/* Reads them, checks what a row cannot, warns about unknown ones. Once, under the plugin's lock. */
void ofi_params_load(void);

#endif
