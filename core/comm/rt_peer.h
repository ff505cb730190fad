/* SPDX-License-Identifier: Apache-2.0
 *
 * What a rank sends to all others when a communicator is made: where it runs and
 * which settings it has. Exchanged as raw bytes between builds of the same
 * version, so fixed widths only.
 */
#ifndef RT_PEER_H
#define RT_PEER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/result.h"
#include "core/gpu/rt_cuda.h"
#include "core/gpu/rt_fd_receiver.h"
#include "core/topo/rt_topo.h"

#define RT_PEER_CORES 1024 /* cores with higher numbers are ignored */

struct rt_peer {
  uint32_t version; /* RT_PEER_VERSION; checked before anything else */
  int32_t rank;
  uint64_t host_hash; /* equal on one host; NCCL_HOSTID overrides */
  uint64_t nonce;     /* random; rank 0's tells communicators of one process apart */
  uint64_t pid_ns;    /* inode of the PID namespace: /proc/PID is reachable when equal */
  int64_t pid;
  uint64_t buffsize, ll_buffsize, chunk, ll_max, exchange_max; /* must agree on all ranks */
  uint64_t tree_max, tree_max_net, pat_max_net, small_max;     /* these too, */
  uint32_t nchannels, protos, algos;                           /* and these; masks of rt_tune.h */
  uint32_t shm_disable;
  uint64_t cores[RT_PEER_CORES / 64]; /* that its process may run on, as bits */
  struct rt_topo_gpu gpu; /* where it is; the caller's */
  uint32_t has_gpu;            /* one was current when the communicator was made */
  uint32_t multiprocessors;    /* that it has; the caller's */
  uint32_t p2p_level;          /* enum rt_distance, RT_LOC for never */
  uint32_t p2p_read;           /* do receivers read? */
  uint32_t export_types;        /* of GPU memory that it exports and imports (rt_export.h); the caller's */
  int32_t min_ctas, max_ctas; /* of its ncclConfig_t; the caller's */
  uint8_t fd_receiver[RT_FD_NAME]; /* to which file descriptors are sent, if that is one of them; the caller's */
};
#define RT_PEER_VERSION 0x5241000au

/* Fills in all but the fields that the comments above leave to the caller. */
void rt_peer_describe(struct rt_peer *me);
bool rt_peer_same_process(const struct rt_peer *a, const struct rt_peer *b);
/* On how many its process may run. */
int rt_peer_count_cores(const struct rt_peer *peer);
/* Do the ranks of that rank's host outnumber the cores that they may run on? */
bool rt_host_is_oversubscribed(const struct rt_peer *peers, int nranks, int rank);
/* Has any host more than two ranks for each of its cores? The same on all ranks. */
bool rt_peers_are_crowded(const struct rt_peer *peers, int nranks);
/* RAIL_BAD_USAGE when a and b cannot work together: `why` names both ranks, the setting and both values; or the rank
 * whose record is invalid. */
rail_result_t rt_peer_check(const struct rt_peer *a, const struct rt_peer *b, char why[RT_WHY]);

/* How many ranks' blocks must fit on the GPU of `rank` at once, its own included: those of all ranks that are certainly
 * on it, in any process, since under MPS processes run side by side on the multiprocessors; and those of ranks of its
 * process that may be on it, because a PCI path is unknown. */
int rt_peer_sharers(const struct rt_peer *peers, int nranks, int rank);
/* Blocks that every rank may launch: half of its GPU's multiprocessors, divided among all ranks that may be on it; the
 * other half is for the user's own kernels. 0: a rank has no GPU. The same on all ranks. */
int rt_peers_blocks(const struct rt_peer *peers, int nranks);
/* `n` channels within the bounds of every rank: the least that one of them has. The same on all ranks. */
int rt_peers_channels(const struct rt_peer *peers, int nranks, int n);

#endif
