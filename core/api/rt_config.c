/* SPDX-License-Identifier: Apache-2.0
 * The caller's ncclConfig_t: taken as far as its size and version go, and checked as NCCL does,
 * but for minCTAs without maxCTAs: NCCL refuses that, while one bound makes sense here. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "core/api/rt_api.h"

/* A number of the struct: what is allowed besides NCCL_CONFIG_UNDEF_INT. */
struct field {
  const char *name;
  size_t offset;
  int lo, hi;
};
#define AT(field) #field, offsetof(ncclConfig_t, field)

static const struct field fields[] = {
    {AT(blocking), 0, 1},
    {AT(cgaClusterSize), 0, INT_MAX},
    {AT(minCTAs), 1, INT_MAX},
    {AT(maxCTAs), 1, INT_MAX},
    {AT(splitShare), 0, 1},
    {AT(collnetEnable), 0, 1},
    {AT(CTAPolicy), NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO},
    {AT(shrinkShare), 0, 1},
    {AT(nvlsCTAs), 1, INT_MAX},
    {AT(nChannelsPerNetPeer), 1, 64},
    {AT(nvlinkCentricSched), 0, 1},
    {AT(graphUsageMode), 0, 2},
    {AT(numRmaCtx), 0, INT_MAX},
    {AT(maxP2pPeers), 1, INT_MAX},
    {AT(graphStreamOrdering), 0, 1},
};

/* Which release brought the fields from `offset` on: what a struct of an older version has there counts as unset. */
static const struct {
  unsigned version;
  size_t offset;
} releases[] = {
    {NCCL_VERSION(2, 14, 0), offsetof(ncclConfig_t, blocking)},
    {NCCL_VERSION(2, 17, 0), offsetof(ncclConfig_t, cgaClusterSize)},
    {NCCL_VERSION(2, 18, 0), offsetof(ncclConfig_t, splitShare)},
    {NCCL_VERSION(2, 25, 0), offsetof(ncclConfig_t, trafficClass)},
    {NCCL_VERSION(2, 27, 0), offsetof(ncclConfig_t, commName)},
    {NCCL_VERSION(2, 28, 0), offsetof(ncclConfig_t, nChannelsPerNetPeer)},
    {NCCL_VERSION(2, 29, 0), offsetof(ncclConfig_t, graphUsageMode)},
    {NCCL_VERSION(2, 30, 0), offsetof(ncclConfig_t, maxP2pPeers)},
    {NCCL_VERSION(2, 30, 5), offsetof(ncclConfig_t, graphStreamOrdering)},
};

/* How many bytes of the caller's struct count. */
static size_t known_size(const ncclConfig_t *config) {
  size_t size = RAIL_MIN(config->size, sizeof *config);
  for (size_t i = 0; i < RAIL_COUNT_OF(releases); i++)
    if (config->version < releases[i].version) return RAIL_MIN(size, releases[i].offset);
  return size;
}

static ncclResult_t check_field(const struct field *f, const ncclConfig_t *config) {
  int value;
  memcpy(&value, (const char *)config + f->offset, sizeof value);
  if (value == NCCL_CONFIG_UNDEF_INT || (value >= f->lo && value <= f->hi)) return ncclSuccess;
  if (f->hi == INT_MAX)
    return rt_error(RAIL_BAD_ARGUMENT, "config.%s is %d; at least %d is allowed", f->name, value, f->lo);
  return rt_error(RAIL_BAD_ARGUMENT, "config.%s is %d; allowed are %d to %d", f->name, value, f->lo, f->hi);
}

ncclResult_t rt_config_take(const ncclConfig_t *config, ncclConfig_t *out) {
  const ncclConfig_t defaults = NCCL_CONFIG_INITIALIZER;
  const size_t header = offsetof(ncclConfig_t, blocking);
  *out = defaults;
  if (!config) return ncclSuccess;
  if (config->size < header)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclConfig_t has size %zu, at least %zu is needed", config->size, header);
  if (config->magic != NCCL_API_MAGIC)
    return rt_error(RAIL_BAD_ARGUMENT, "ncclConfig_t has magic %#x; start from NCCL_CONFIG_INITIALIZER", config->magic);
  memcpy((char *)out + header, (const char *)config + header, RAIL_MAX(known_size(config), header) - header);
  for (size_t i = 0; i < RAIL_COUNT_OF(fields); i++) {
    ncclResult_t r = check_field(&fields[i], out);
    if (r != ncclSuccess) return r;
  }
  if (out->minCTAs != NCCL_CONFIG_UNDEF_INT && out->maxCTAs != NCCL_CONFIG_UNDEF_INT && out->minCTAs > out->maxCTAs)
    return rt_error(RAIL_BAD_ARGUMENT, "config.minCTAs is %d; at most config.maxCTAs, which is %d, is allowed",
                    out->minCTAs, out->maxCTAs);
  return ncclSuccess;
}
