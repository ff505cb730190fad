/* SPDX-License-Identifier: Apache-2.0
 *
 * The runtime's parameters: one struct, filled once from the environment.
 *
 * To add one: a field here, a row of the same name in rt_param.c's table, and the name, if it begins with RAIL_, in
 * common/base/param_names.c, or plugins warn of it as unknown. The row gives name, type, default, range and doc;
 * docs/parameters.md and the tools' listing follow from it.
 * Fields are int64_t except STRING rows, which are const char *.
 */
#ifndef RT_PARAM_H
#define RT_PARAM_H

#include <stdint.h>

struct rail_param_table;

enum { RT_PROXY_AUTO, RT_PROXY_THREAD, RT_PROXY_INLINE }; /* order of RAIL_PROXY's words */

struct rt_params {
  /* bootstrap */
  const char *comm_id;
  const char *socket_ifname;
  const char *socket_family;
  const char *store;
  int64_t bootstrap_timeout_ms;
  int64_t heartbeat_ms;
  int64_t heartbeat_timeout_ms;
  int64_t master_port_offset;
  /* channels and transports */
  int64_t nchannels;
  int64_t buffsize;
  int64_t ll_buffsize;
  int64_t ll_max;
  int64_t chunk;
  int64_t exchange_max;
  int64_t tree_max;
  int64_t tree_max_net;
  int64_t pat_max_net;
  int64_t small_max;
  int64_t simd; /* index in RAIL_SIMD's words; 0 is auto */
  int64_t proxy;
  int64_t direct_min;
  int64_t stall_warn_ms;
  int64_t shm_disable;
  int64_t p2p_disable;
  const char *p2p_level;
  int64_t p2p_read;
  int64_t cumem_enable;
  const char *algo;
  const char *proto;
  const char *hostid;
  const char *net;
  const char *net_plugin;
  const char *net_force_merge;
  int64_t net_fallback;
  const char *net_gdr_level;
  int64_t net_gdr_read;
  int64_t net_force_flush;
  int64_t dmabuf_enable;
  /* devices */
  const char *cuda_lib;
  const char *cuda_kernels;
  const char *nvml_lib;
  const char *sysfs;
  const char *debug_file;
  const char *conf_file; /* read by rt_conf.c */
  /* read by common/base/log.c itself; rows here so that they are listed with the rest */
  const char *debug;
  const char *debug_subsys;
};

/* Bytes of one of the 8 slots of a buffer; whole cache lines. */
static inline uint64_t rt_slot_size(int64_t buffsize) { return (uint64_t)buffsize / 8 & ~63ull; }
/* All eight. What follows them begins on a cache line: lines of LL must not be misaligned. */
static inline uint64_t rt_slots_size(int64_t buffsize) { return 8 * rt_slot_size(buffsize); }
/* A slot in lines of LL128. */
static inline uint64_t rt_ll128_slot_size(int64_t buffsize) { return (uint64_t)buffsize / 8 & ~127ull; }

/* Reads the environment at the first call; all calls return the same struct. Any thread. */
const struct rt_params *rt_params(void);
/* The table of rt_param.c; a row's value is in rt_params() at its offset. */
const struct rail_param_table *rt_param_table(void);
/* The names of its rows, in their order. */
const char **rt_param_names(void);

#endif
