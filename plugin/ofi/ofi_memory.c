/* SPDX-License-Identifier: Apache-2.0
 * Memory that is registered with an endpoint's NICs. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "plugin/ofi/ofi_endpoint.h"

#define MOST_KEYS (1u << 16) /* that are tried for one registration */

/* A key that the provider leaves to us has as many bytes as its domain says, and no two registrations may have the
 * same: numbers in turn, and the next one where a number is taken. So a key that a peer may still know is used again as
 * late as possible. */
static int register_with_next_key(struct ofi_endpoint_nic *n, struct fi_mr_attr *attr, struct fid_mr **mr) {
  size_t bytes = n->device_nic->caps.mr_key_size;
  uint64_t last = bytes && bytes < sizeof last ? (UINT64_C(1) << 8 * bytes) - 1 : UINT64_MAX - 1;
  int err = -FI_ENOKEY;
  for (uint64_t tries = RAIL_MIN(last, MOST_KEYS); err == -FI_ENOKEY && tries; tries--) {
    attr->requested_key = n->next_key;
    n->next_key = n->next_key == last ? 1 : n->next_key + 1;
    err = fi_mr_regattr(n->domain, attr, 0, mr);
  }
  return err;
}

int ofi_memory_register(struct ofi_endpoint *endpoint, unsigned int nic, const struct fi_mr_attr *attr,
                        struct fid_mr **mr) {
  struct ofi_endpoint_nic *n = &endpoint->nics[nic];
  struct fi_mr_attr a = *attr;
  if (endpoint->shut) return -FI_ESHUTDOWN;
  int err = n->device_nic->caps.mr_prov_key ? fi_mr_regattr(n->domain, &a, 0, mr) : register_with_next_key(n, &a, mr);
  if (err || !n->device_nic->caps.mr_endpoint) return err;
  if (!(err = fi_mr_bind(*mr, &n->ep->fid, 0))) err = fi_mr_enable(*mr);
  if (err) (void)fi_close(&(*mr)->fid);
  return err;
}

bool ofi_memory_alloc(struct ofi_endpoint *endpoint, size_t size, struct ofi_memory *memory) {
  memset(memory, 0, sizeof *memory);
  memory->size = RAIL_ROUND_UP(size, (size_t)sysconf(_SC_PAGESIZE));
  if (posix_memalign(&memory->bytes, (size_t)sysconf(_SC_PAGESIZE), memory->size) != 0) {
    memory->bytes = NULL;
    RAIL_WARN("RailOFI: %s: out of memory", endpoint->device->name);
    return false;
  }
  const struct iovec iov = {.iov_base = memory->bytes, .iov_len = memory->size};
  const struct fi_mr_attr attr = {.mr_iov = &iov, .iov_count = 1, .access = FI_SEND | FI_RECV | FI_READ | FI_WRITE};
  for (unsigned int i = 0; i < endpoint->nnics; i++) {
    if (!endpoint->nics[i].device_nic->caps.mr_local) continue;
    int err = ofi_memory_register(endpoint, i, &attr, &memory->mrs[i]);
    if (err) {
      RAIL_WARN("RailOFI: registering %zu bytes with %s: fi_mr_reg: %s; is `ulimit -l` (memlock) too low?",
                memory->size, endpoint->nics[i].device_nic->name, ofi_fabric_strerror(err));
      memory->mrs[i] = NULL;
      ofi_memory_free(memory);
      return false;
    }
    memory->descs[i] = fi_mr_desc(memory->mrs[i]);
  }
  return true;
}

void ofi_memory_close_mrs(struct ofi_memory *memory) {
  for (unsigned int i = 0; i < OFI_MAX_PATHS; i++) {
    if (memory->mrs[i]) (void)fi_close(&memory->mrs[i]->fid);
    memory->mrs[i] = NULL;
  }
}

void ofi_memory_free(struct ofi_memory *memory) {
  ofi_memory_close_mrs(memory);
  free(memory->bytes);
  memset(memory, 0, sizeof *memory);
}
