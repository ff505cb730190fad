/* SPDX-License-Identifier: Apache-2.0
 *
 * libfabric, opened when it is first needed (RAIL_OFI_LIBRARY, else libfabric.so.1). All functions of the library are
 * called through this table, so that the plugin loads where it is not installed. Inline functions of its headers over
 * an object's tables (fi_domain, fi_send, fi_cq_read) are called directly. fi_allocinfo is not: it would link to the
 * library.
 */
#ifndef OFI_FABRIC_H
#define OFI_FABRIC_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdbool.h>

/* The version of the API that is asked for: newer libraries keep to it. */
#define OFI_API_VERSION FI_VERSION(1, 17)

/* Bits of fi_info.mode and mr_mode in that version. The headers of 2.x have no names for them, or names that warn or
 * are 0: with any headers their use is an error. */
#define OFI_MODE_BUFFERED_RECV (1ULL << 51)
#define OFI_MODE_RESTRICTED_COMP (1ULL << 53)
#define OFI_MODE_NOTIFY_FLAGS_ONLY (1ULL << 54)
#define OFI_MODE_LOCAL_MR (1ULL << 55)
#define OFI_MR_BASIC 1u
#define OFI_MR_SCALABLE 2u
#undef FI_BUFFERED_RECV
#undef FI_RESTRICTED_COMP
#undef FI_NOTIFY_FLAGS_ONLY
#undef FI_LOCAL_MR

/* FI_PROGRESS_CONTROL_UNIFIED: of libfabric 1.21 and newer. */
#define OFI_PROGRESS_CONTROL_UNIFIED 3
#define OFI_UNIFIED_SINCE FI_VERSION(1, 21)

struct ofi_fabric_api {
  int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
                 struct fi_info **info);
  void (*freeinfo)(struct fi_info *info);
  /* One info, not the list behind it; of NULL an empty one. */
  struct fi_info *(*dupinfo)(const struct fi_info *info);
  int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
  uint32_t (*version)(void);
  const char *(*strerror)(int errnum); /* of a positive number */
  char *(*tostr)(const void *data, enum fi_type datatype); /* in a buffer of the calling thread's */
  /* Variables that the library and its providers know. Absent in a wrapper: NULL. */
  int (*getparams)(struct fi_param **params, int *count);
  void (*freeparams)(struct fi_param *params);
};
extern struct ofi_fabric_api ofi_fabric;

/* Opens the library, once; false after one line that says what to install. Call under the plugin's lock. */
bool ofi_fabric_open(void);

/* "No such device", for libfabric's negative numbers too. */
const char *ofi_fabric_strerror(int err);

#endif
