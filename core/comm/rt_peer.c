/* SPDX-License-Identifier: Apache-2.0
 * A rank's record: filled in, checked against another rank's, and what follows from all of them together. Called by
 * rt_comm_init, in the thread that makes the communicator; rt_gpu_open asks which ranks share a GPU, rt_export.c which
 * share a process, both in the thread that connects. */
#include "core/comm/rt_peer.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/compiler.h"
#include "common/base/hash.h"
#include "core/comm/rt_param.h"
#include "core/host/rt_conn.h"
#include "core/plan/rt_tune.h"
#include "rail/railyard.h"

/* Hostname alone repeats in containers; the boot id alone is shared by containers of one host, which
 * is what makes shared memory possible between them. NCCL takes both, so do we. */
static uint64_t host_hash(void) {
  const char *hostid = rt_params()->hostid;
  if (hostid && *hostid) return rail_hash_text(RAIL_HASH_BASIS, hostid);
  char text[256] = "";
  gethostname(text, sizeof text - 1);
  uint64_t hash = rail_hash_text(RAIL_HASH_BASIS, text);
  FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
  if (f) {
    if (fgets(text, sizeof text, f)) hash = rail_hash_text(hash, text);
    fclose(f);
  }
  return hash;
}

/* A kernel that is built for more cores than the set has refuses it (EINVAL). */
static void list_cores(struct rt_peer *me) {
  cpu_set_t set[16]; /* 16,384 cores; Linux has at most 8,192 */
  CPU_ZERO_S(sizeof set, set);
  if (sched_getaffinity(0, sizeof set, set) != 0) return;
  for (unsigned int i = 0; i < RT_PEER_CORES; i++)
    if (CPU_ISSET_S(i, sizeof set, set)) me->cores[i / 64] |= 1ull << i % 64;
}

int rt_peer_count_cores(const struct rt_peer *peer) {
  int cores = 0;
  for (unsigned int i = 0; i < RT_PEER_CORES / 64; i++) cores += __builtin_popcountll(peer->cores[i]);
  return cores;
}

/* Has the host of that rank more than `most` ranks for each core that they may run on? */
static bool has_more_ranks(const struct rt_peer *peers, int nranks, int rank, int most) {
  uint64_t any[RT_PEER_CORES / 64] = {0};
  int ranks = 0, cores = 0;
  for (int r = 0; r < nranks; r++) {
    if (peers[r].host_hash != peers[rank].host_hash) continue;
    ranks++;
    for (unsigned int i = 0; i < RT_PEER_CORES / 64; i++) any[i] |= peers[r].cores[i];
  }
  for (unsigned int i = 0; i < RT_PEER_CORES / 64; i++) cores += __builtin_popcountll(any[i]);
  return ranks > most * cores;
}

bool rt_host_is_oversubscribed(const struct rt_peer *peers, int nranks, int rank) {
  return has_more_ranks(peers, nranks, rank, 1);
}

bool rt_peers_are_crowded(const struct rt_peer *peers, int nranks) {
  for (int r = 0; r < nranks; r++) {
    int first = 0;
    while (peers[first].host_hash != peers[r].host_hash) first++;
    if (first == r && has_more_ranks(peers, nranks, r, 2)) return true;
  }
  return false;
}

void rt_peer_describe(struct rt_peer *me) {
  const struct rt_params *p = rt_params();
  struct stat st;
  memset(me, 0, sizeof *me);
  me->version = RT_PEER_VERSION;
  me->host_hash = host_hash();
  me->pid = getpid();
  me->pid_ns = stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
  me->buffsize = (uint64_t)p->buffsize;
  me->ll_buffsize = (uint64_t)p->ll_buffsize;
  me->chunk = (uint64_t)p->chunk;
  me->ll_max = (uint64_t)p->ll_max;
  me->exchange_max = (uint64_t)p->exchange_max;
  me->tree_max = (uint64_t)p->tree_max;
  me->tree_max_net = (uint64_t)p->tree_max_net;
  me->pat_max_net = (uint64_t)p->pat_max_net;
  me->small_max = (uint64_t)p->small_max;
  me->nchannels = (uint32_t)p->nchannels;
  me->algos = rt_algo_masks(p->algo);
  me->protos = rt_proto_masks(p->proto);
  me->shm_disable = p->shm_disable != 0;
  list_cores(me);
  me->p2p_level = p->p2p_disable ? RT_LOC : rt_distance_level("NCCL_P2P_LEVEL", p->p2p_level, RT_SYS);
  me->p2p_read = p->p2p_read != 0;
}

static rail_result_t check_equal(const struct rt_peer *a, const struct rt_peer *b, const char *name, uint64_t va,
                                 uint64_t vb, char why[RT_WHY]) {
  if (va == vb) return RAIL_OK;
  snprintf(why, RT_WHY, "%s is %llu on rank %d and %llu on rank %d; it must be the same on all ranks", name,
           (unsigned long long)va, a->rank, (unsigned long long)vb, b->rank);
  return RAIL_BAD_USAGE;
}

static rail_result_t check_record(const struct rt_peer *p, char why[RT_WHY]) {
  if (rt_topo_gpu_valid(&p->gpu)) return RAIL_OK;
  snprintf(why, RT_WHY,
           "rank %d sent an invalid GPU record (%d hops, %u peers); is its librailyard the same file as here?", p->rank,
           p->gpu.pci.nhops, p->gpu.npeers);
  return RAIL_BAD_USAGE;
}

bool rt_peer_same_process(const struct rt_peer *a, const struct rt_peer *b) {
  return a->host_hash == b->host_hash && a->pid_ns == b->pid_ns && a->pid == b->pid;
}

rail_result_t rt_peer_check(const struct rt_peer *a, const struct rt_peer *b, char why[RT_WHY]) {
  if (a->version != b->version) {
    snprintf(why, RT_WHY,
             "rank %d and rank %d run different builds of librailyard (%08x and %08x); install one version everywhere",
             a->rank, b->rank, a->version, b->version);
    return RAIL_BAD_USAGE;
  }
  RAIL_TRY(check_record(a, why));
  RAIL_TRY(check_record(b, why));
  RAIL_TRY(check_equal(a, b, "NCCL_BUFFSIZE", a->buffsize, b->buffsize, why));
  RAIL_TRY(check_equal(a, b, "NCCL_LL_BUFFSIZE", a->ll_buffsize, b->ll_buffsize, why));
  RAIL_TRY(check_equal(a, b, "RAIL_CHUNK", a->chunk, b->chunk, why));
  RAIL_TRY(check_equal(a, b, "RAIL_LL_MAX", a->ll_max, b->ll_max, why));
  RAIL_TRY(check_equal(a, b, "RAIL_EXCHANGE_MAX", a->exchange_max, b->exchange_max, why));
  RAIL_TRY(check_equal(a, b, "RAIL_TREE_MAX", a->tree_max, b->tree_max, why));
  RAIL_TRY(check_equal(a, b, "RAIL_TREE_MAX_NET", a->tree_max_net, b->tree_max_net, why));
  RAIL_TRY(check_equal(a, b, "RAIL_PAT_MAX_NET", a->pat_max_net, b->pat_max_net, why));
  RAIL_TRY(check_equal(a, b, "RAIL_SMALL_MAX", a->small_max, b->small_max, why));
  RAIL_TRY(check_equal(a, b, "RAIL_NCHANNELS", a->nchannels, b->nchannels, why));
  RAIL_TRY(check_equal(a, b, "NCCL_ALGO (as a bit mask)", a->algos, b->algos, why));
  return check_equal(a, b, "NCCL_PROTO (as a bit mask)", a->protos, b->protos, why);
}

/* Are two ranks on one GPU? MAYBE: they are on one host, and the PCI path of a GPU is unknown. */
enum sharing { NO, MAYBE, YES };

static enum sharing share_gpu(const struct rt_peer *a, const struct rt_peer *b) {
  if (a->host_hash != b->host_hash) return NO;
  if (a->gpu.pci.nhops == 0 || b->gpu.pci.nhops == 0) return MAYBE;
  return rt_pci_distance(&a->gpu.pci, &b->gpu.pci) == RT_LOC ? YES : NO;
}

int rt_peer_sharers(const struct rt_peer *peers, int nranks, int rank) {
  const struct rt_peer *me = &peers[rank];
  int n = 1;
  for (int r = 0; r < nranks; r++) {
    if (r == rank) continue;
    enum sharing shared = share_gpu(me, &peers[r]);
    n += shared == YES || (shared == MAYBE && rt_peer_same_process(me, &peers[r]));
  }
  return n;
}

int rt_peers_blocks(const struct rt_peer *peers, int nranks) {
  int least = INT_MAX;
  for (int r = 0; r < nranks; r++) {
    if (!peers[r].has_gpu) return 0;
    int sharers = 1, all = (int)RAIL_MIN(peers[r].multiprocessors, 1u << 16);
    for (int other = 0; other < nranks; other++) sharers += other != r && share_gpu(&peers[r], &peers[other]) != NO;
    least = RAIL_MIN(least, all / sharers);
  }
  return RAIL_MAX(least / 2, 1);
}

int rt_peers_channels(const struct rt_peer *peers, int nranks, int n) {
  int least = INT_MAX;
  for (int r = 0; r < nranks; r++) {
    int channels = n;
    if (peers[r].min_ctas != NCCL_CONFIG_UNDEF_INT) channels = RAIL_MAX(channels, peers[r].min_ctas);
    if (peers[r].max_ctas != NCCL_CONFIG_UNDEF_INT) channels = RAIL_MIN(channels, peers[r].max_ctas);
    least = RAIL_MIN(least, RAIL_MAX(1, channels));
  }
  return least;
}
