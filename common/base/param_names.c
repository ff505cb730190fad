/* SPDX-License-Identifier: Apache-2.0
 * Names known to the whole product, sorted. */
#include "common/base/param_names.h"

#include "common/base/compiler.h"

/* One prefix for each folder of plugin/: config/rules.mk. */
#ifndef RAIL_PLUGIN_PREFIXES
#define RAIL_PLUGIN_PREFIXES
#endif

const char *const rail_param_names[] = {
  "RAIL_BENCH_*",
  "RAIL_BOOTSTRAP_TIMEOUT",
  "RAIL_BUILD",
  "RAIL_CHUNK",
  "RAIL_CUDA_KERNELS",
  "RAIL_CUDA_LIB",
  "RAIL_DIRECT_MIN",
  "RAIL_EMU",
  "RAIL_EMU_*",
  "RAIL_EXCHANGE_MAX",
  "RAIL_FAIL_*",
  "RAIL_HEARTBEAT",
  "RAIL_HEARTBEAT_TIMEOUT",
  "RAIL_KIT_*",
  "RAIL_LAB_*",
  "RAIL_LIBRARY",
  "RAIL_LL_MAX",
  "RAIL_MASTER_PORT_OFFSET",
  "RAIL_NCHANNELS",
  "RAIL_NET_FALLBACK",
  "RAIL_NET_FUSE_NO_PCI",
  "RAIL_NVML_LIB",
  "RAIL_PAT_MAX_NET",
  "RAIL_PROXY",
  "RAIL_SIMD",
  "RAIL_SMALL_MAX",
  "RAIL_STALL_WARN",
  "RAIL_STATS",
  "RAIL_STORE",
  "RAIL_SYSFS",
  "RAIL_TEST_*",
  "RAIL_TRACE_*",
  "RAIL_TREE_MAX",
  "RAIL_TREE_MAX_NET",
  RAIL_PLUGIN_PREFIXES
};
const size_t rail_param_names_count = RAIL_COUNT_OF(rail_param_names);
