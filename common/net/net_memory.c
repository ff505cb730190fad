/* SPDX-License-Identifier: Apache-2.0
 * The line about a buffer that a call cannot use. */
#include "common/net/net_memory.h"

#include "common/base/compiler.h"
#include "common/base/log.h"
#include "common/net/net_ops.h"

RAIL_COLD rail_result_t rail_net_refuse_buffer(const char *plugin, const char *call,
                                               const struct rail_net_memory *memory, const void *comm,
                                               const void *data, uint64_t size) {
  const unsigned long long bytes = size;
  if (size > RAIL_NET_MAX_BYTES)
    RAIL_WARN("%s: %s: size %llu; allowed: up to %llu", plugin, call, bytes, (unsigned long long)RAIL_NET_MAX_BYTES);
  else if (!data) RAIL_WARN("%s: %s: data is NULL with size %llu; allowed: NULL only with size 0", plugin, call, bytes);
  else if (!memory) RAIL_WARN("%s: %s: mhandle is NULL with size %llu; allowed: NULL only with size 0, else what regMr "
                              "gave for these bytes", plugin, call, bytes);
  else if (!rail_net_memory_is_of(memory, comm))
    RAIL_WARN("%s: %s: mhandle %p is no registration of this connection", plugin, call, (const void *)memory);
  else RAIL_WARN("%s: %s: %p+%llu is not inside its registration, %#llx+%llu", plugin, call, data, bytes,
                 (unsigned long long)memory->addr, (unsigned long long)memory->size);
  return RAIL_BAD_ARGUMENT;
}
