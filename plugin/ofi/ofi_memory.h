/* SPDX-License-Identifier: Apache-2.0
 * Memory that is registered with an endpoint's NICs; under the endpoint's lock. */
#ifndef OFI_MEMORY_H
#define OFI_MEMORY_H

#include "plugin/ofi/ofi_fabric.h"
#include "plugin/ofi/ofi_wire.h"

struct ofi_endpoint;

/* Memory of ours that libfabric reads or writes, registered where the provider wants it (FI_MR_LOCAL). */
struct ofi_memory {
  void *bytes;
  size_t size;
  struct fid_mr *mrs[OFI_MAX_PATHS]; /* NULL: not needed */
  void *descs[OFI_MAX_PATHS];
};

/* Memory for libfabric, on pages of its own, registered with every NIC that wants it. False after one line. */
bool ofi_memory_alloc(struct ofi_endpoint *endpoint, size_t size, struct ofi_memory *memory);
void ofi_memory_free(struct ofi_memory *memory);
/* Closes its registrations alone. */
void ofi_memory_close_mrs(struct ofi_memory *memory);
/* Registers a range with one NIC. 0, or libfabric's error. attr->iface: FI_HMEM_SYSTEM or another. */
int ofi_memory_register(struct ofi_endpoint *endpoint, unsigned int nic, const struct fi_mr_attr *attr,
                        struct fid_mr **mr);

#endif
