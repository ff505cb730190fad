/* SPDX-License-Identifier: Apache-2.0
 * Proves: what a rank tells of itself, which transport two ranks have, and that settings which disagree are refused
 * with a reason that names the setting, both ranks and both values. */
#include "core/comm/rt_peer.h"

#include <unistd.h>

#include "core/comm/rt_param.h"
#include "core/transport/rt_transport.h"
#include "test/harness/tap.h"

static void two(struct rt_peer *a, struct rt_peer *b) {
  rt_peer_describe(a);
  rt_peer_describe(b);
  a->rank = 3;
  b->rank = 5;
}

TEST(describe) {
  struct rt_peer a, b;
  two(&a, &b);
  CHECK_INT(a.version, RT_PEER_VERSION);
  CHECK_INT(a.pid, getpid());
  CHECK(a.pid_ns != 0);
  CHECK(a.host_hash != 0 && a.host_hash == b.host_hash);
  CHECK_INT(a.buffsize, rt_params()->buffsize);
  char why[RT_WHY];
  CHECK_OK(rt_peer_check(&a, &b, why));
}

/* The two are refused, with a reason that holds every word given. */
static void refused(const struct rt_peer *a, const struct rt_peer *b, const char *const *words, size_t n) {
  char why[RT_WHY] = "";
  CHECK_INT(rt_peer_check(a, b, why), RAIL_BAD_USAGE);
  for (size_t i = 0; i < n; i++) CHECK_MSG(strstr(why, words[i]), "\"%s\" does not say %s", why, words[i]);
}

#define REFUSED(field, value, name)                                       \
  do {                                                                    \
    struct rt_peer a, b;                                                  \
    two(&a, &b);                                                          \
    a.field = 77;                                                         \
    b.field = value;                                                      \
    const char *const words[] = {name, "rank 3", "rank 5", "77", #value}; \
    refused(&a, &b, words, 5);                                            \
  } while (0)

TEST(disagreements_are_named) {
  REFUSED(buffsize, 65536, "NCCL_BUFFSIZE");
  REFUSED(ll_buffsize, 16384, "NCCL_LL_BUFFSIZE");
  REFUSED(chunk, 4096, "RAIL_CHUNK");
  REFUSED(ll_max, 4096, "RAIL_LL_MAX");
  REFUSED(exchange_max, 4096, "RAIL_EXCHANGE_MAX");
  REFUSED(tree_max, 4096, "RAIL_TREE_MAX");
  REFUSED(tree_max_net, 4096, "RAIL_TREE_MAX_NET");
  REFUSED(pat_max_net, 4096, "RAIL_PAT_MAX_NET");
  REFUSED(nchannels, 2, "RAIL_NCHANNELS");
  REFUSED(protos, 1, "NCCL_PROTO");
  REFUSED(algos, 1, "NCCL_ALGO");
}

TEST(another_version_is_refused_before_anything_else) {
  struct rt_peer a, b;
  two(&a, &b);
  b.version++;
  b.buffsize = 1;
  const char *const words[] = {"rank 3", "rank 5", "build"};
  refused(&a, &b, words, 3);
}

/* What may differ: the host, the process, whether shared memory is allowed, and what of a GPU. */
TEST(places_may_differ) {
  struct rt_peer a, b;
  two(&a, &b);
  b.host_hash++;
  b.pid++;
  b.pid_ns++;
  b.shm_disable = 1;
  b.has_gpu = 1;
  b.p2p_level = 0;
  b.p2p_read = 1;
  char why[RT_WHY];
  CHECK_OK(rt_peer_check(&a, &b, why));
}

TEST(a_gpu_that_cannot_be_is_refused) {
  struct rt_peer a, b;
  two(&a, &b);
  b.gpu.npeers = 77;
  const char *const words[] = {"rank 5", "77"};
  refused(&a, &b, words, 2);
}

static struct rt_peer on_gpu(uint64_t device, uint32_t multiprocessors) {
  struct rt_peer p = {.host_hash = 1, .has_gpu = 1, .multiprocessors = multiprocessors};
  p.gpu.pci = (struct rt_pci){.hop = {5, device}, .nhops = device ? 2 : 0};
  return p;
}

TEST(gpus_have_room) {
  struct rt_peer p[4];
  for (int i = 0; i < 4; i++) p[i] = on_gpu(10 + (uint64_t)i, 132);
  CHECK_INT(rt_peers_blocks(p, 1), 66);
  CHECK_INT(rt_peers_blocks(p, 4), 66);
  p[3] = on_gpu(12, 132); /* two share one */
  CHECK_INT(rt_peers_blocks(p, 4), 33);
  p[3].host_hash = 2; /* of another host */
  CHECK_INT(rt_peers_blocks(p, 4), 66);
  p[1].multiprocessors = 20; /* the smallest */
  CHECK_INT(rt_peers_blocks(p, 4), 10);
  p[0] = on_gpu(0, 132); /* unknown: any of its host's three */
  CHECK_INT(rt_peers_blocks(p, 3), 5);
  p[1].multiprocessors = 0; /* the driver does not tell */
  CHECK_INT(rt_peers_blocks(p, 4), 1);
  p[2].has_gpu = 0;
  CHECK_INT(rt_peers_blocks(p, 4), 0);
}

TEST(who_shares_a_gpu) {
  struct rt_peer p[4];
  for (int i = 0; i < 4; i++) p[i] = on_gpu(10, 132), p[i].pid = i;
  CHECK_INT(rt_peer_sharers(p, 4, 0), 4); /* processes too: they need not take turns */
  p[3] = on_gpu(11, 40);
  CHECK_INT(rt_peer_sharers(p, 4, 0), 3);
  CHECK_INT(rt_peer_sharers(p, 4, 3), 1);
  p[1].host_hash = 2;
  CHECK_INT(rt_peer_sharers(p, 4, 0), 2);
  for (int i = 0; i < 4; i++) p[i] = on_gpu(0, 132), p[i].pid = i / 3;
  CHECK_INT(rt_peer_sharers(p, 4, 0), 3); /* unknown places: those of its process */
  CHECK_INT(rt_peer_sharers(p, 4, 3), 1);
}

/* Both ends of a connection look at the two in their own order, and must come to the same transport. */
TEST(both_ends_choose_one_transport) {
  struct rt_peer a, b;
  for (unsigned differs = 0; differs < 1 << 8; differs++) {
    two(&a, &b);
    a.has_gpu = differs & 1;
    b.has_gpu = differs >> 1 & 1;
    a.p2p_level = differs & 4 ? RT_LOC : RT_SYS;
    b.p2p_level = differs & 8 ? RT_LOC : RT_SYS;
    a.shm_disable = differs >> 4 & 1;
    b.shm_disable = differs >> 5 & 1;
    b.pid_ns += differs >> 6 & 1;
    b.host_hash += differs >> 7 & 1;
    const struct rt_transport *t = rt_transport_choose(&a, &b);
    CHECK_MSG(t == rt_transport_choose(&b, &a), "%#x: %s and %s", differs, t->name, rt_transport_choose(&b, &a)->name);
    bool shm = !(differs & 0xf0), p2p = shm && (differs & 3) == 3 && !(differs & 0xc);
    const struct rt_transport *want = p2p ? &rt_p2p_transport : shm ? &rt_shm_transport : &rt_net_transport;
    CHECK_MSG(t == want, "%#x: %s instead of %s", differs, t->name, want->name);
  }
}

/* A host whose ranks are bound to a core each is not oversubscribed, however few cores each of them sees. */
TEST(oversubscribed_hosts) {
  struct rt_peer peers[4];
  memset(peers, 0, sizeof peers);
  for (int r = 0; r < 4; r++) {
    peers[r].host_hash = 7;
    peers[r].cores[r / 2 * 15] = 1ull << (r % 2 * 63);
  }
  CHECK(!rt_host_is_oversubscribed(peers, 4, 0));
  peers[3].cores[0] = 7;
  CHECK_INT(rt_peer_count_cores(&peers[3]), 4);
  peers[3].cores[0] = 0;
  peers[3].cores[15] = peers[2].cores[15];
  CHECK(rt_host_is_oversubscribed(peers, 4, 0));
  peers[3].host_hash = 8; /* elsewhere */
  CHECK(!rt_host_is_oversubscribed(peers, 4, 0) && !rt_host_is_oversubscribed(peers, 4, 3));
  rt_peer_describe(&peers[0]);
  CHECK(!rt_host_is_oversubscribed(peers, 1, 0));
}

/* Some host has more than two ranks for a core. */
TEST(crowded_hosts) {
  struct rt_peer peers[7];
  memset(peers, 0, sizeof peers);
  for (int r = 0; r < 7; r++) {
    peers[r].host_hash = r < 2 ? 7 : 8;
    peers[r].cores[0] = 3;
  }
  CHECK(!rt_peers_are_crowded(peers, 6));
  CHECK(rt_peers_are_crowded(peers, 7));
  peers[0].cores[0] = peers[1].cores[0] = 1;
  CHECK(!rt_peers_are_crowded(peers, 6));
}

TEST_MAIN(TEST_CASE(describe), TEST_CASE(crowded_hosts), TEST_CASE(oversubscribed_hosts),
          TEST_CASE(disagreements_are_named), TEST_CASE(another_version_is_refused_before_anything_else),
          TEST_CASE(places_may_differ), TEST_CASE(a_gpu_that_cannot_be_is_refused), TEST_CASE(gpus_have_room),
          TEST_CASE(who_shares_a_gpu), TEST_CASE(both_ends_choose_one_transport))
