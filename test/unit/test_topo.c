/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * Proves: distances follow from paths of sysfs; the ring through a host is the best there is, by comparison with all
 * orders, and of equal ones the first; hosts stay together; where nothing is known the ranks' order is kept; ranks get
 * the NICs near their GPUs, in turns; what is chosen for GPU memory, and where NVML says that NVLinks lead.
 */
#include "core/topo/rt_topo.h"

#include "core/gpu/rt_gdr.h"
#include "rail/net.h"
#include "test/device/gpu/user.h"
#include "test/harness/pci_tree.h"
#include "test/harness/program.h"

/* ---- synthetic machines: GPUs and NICs below switches ---- */

enum { MOST = 32 };

static struct rt_topo_gpu gpus[MOST];
static struct rt_topo_rank ranks[MOST];

/* Device `slot` of switch `sw` at processor `node`; sw -1: below a root port of its own. */
static struct rt_pci place(int node, int sw, int slot) {
  char path[256];
  int bus = node * 0x80 + (sw + 1) * 0x10 + 1;
  struct rt_pci p;
  if (sw < 0)
    snprintf(path, sizeof path, "/sys/devices/pci0000:%02x/0000:%02x:%02x.0/0000:%02x:00.0", node * 0x80, node * 0x80,
             slot, node * 0x80 + slot);
  else
    snprintf(path, sizeof path,
             "/sys/devices/pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0/0000:%02x:%02x.0/0000:%02x:00.0", bus - 1,
             bus - 1, bus, bus + 1, slot, bus + 2 + slot);
  CHECK(rt_pci_parse(path, &p));
  p.numa = node;
  return p;
}

static void clear(int n) {
  memset(gpus, 0, sizeof gpus);
  for (int r = 0; r < n; r++) ranks[r] = (struct rt_topo_rank){.host = 1, .gpu = &gpus[r]};
}

static int links(const int *order, int n, enum rt_distance d) {
  int count = 0;
  for (int i = 0; i < n; i++) count += rt_topo_distance(&ranks[order[i]], &ranks[order[(i + 1) % n]]) == d;
  return count;
}

static void check_order(int n, const char *expected) {
  int order[MOST];
  char text[256] = "";
  CHECK_OK(rt_topo_ring(ranks, n, order));
  for (int i = 0; i < n; i++) snprintf(text + strlen(text), sizeof text - strlen(text), " %d", order[i]);
  CHECK_STR(text + 1, expected);
}

/* ---- distances ---- */

TEST(places) {
  struct rt_pci p;
  CHECK(rt_pci_parse("/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1", &p));
  CHECK_INT(p.nhops, 3);
  CHECK_INT(p.hop[2], rt_pci_number("00000000:3B:00.1"));
  CHECK(!rt_pci_parse("/sys/devices/virtual/net/lo", &p) && p.nhops == 0);
  CHECK(!rt_pci_parse("/sys/devices/pci0000:3a", &p) && p.nhops == 0);
  CHECK(!rt_pci_parse("", &p) && !rt_pci_read(NULL, &p) && p.numa == -1);
  char deep[512] = "/sys/devices/pci0000:00";
  for (int i = 1; i < RT_PCI_HOPS; i++) snprintf(deep + strlen(deep), 32, "/0000:%02x:00.0", i);
  CHECK(rt_pci_parse(deep, &p));
  strcat(deep, "/0000:77:00.0");
  CHECK(!rt_pci_parse(deep, &p) && p.nhops == 0);
  CHECK_INT(rt_pci_number("pci0000:3a"), 0);
  CHECK_INT(rt_pci_number("no device"), 0);
}

TEST(distances) {
  struct rt_pci a = place(0, 0, 0), same = a, sister = place(0, 0, 1), other = place(0, 1, 0), far = place(1, 0, 0);
  struct rt_pci deep, none = {.nhops = 0};
  CHECK(rt_pci_parse("/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:07.0/0000:50:00.0/0000:51:00.0/"
                     "0000:52:00.0", &deep));
  deep.numa = 0;
  struct rt_pci bridged;
  CHECK(rt_pci_parse("/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:07.0/0000:50:00.0/0000:51:00.0",
                     &bridged));
  CHECK_INT(rt_pci_distance(&a, &same), RT_LOC);
  CHECK_INT(rt_pci_distance(&a, &sister), RT_PIX);
  CHECK_INT(rt_pci_distance(&a, &deep), RT_PXB);
  CHECK_INT(rt_pci_distance(&deep, &a), RT_PXB);
  CHECK_INT(rt_pci_distance(&a, &bridged), RT_PXB);
  CHECK_INT(rt_pci_distance(&a, &other), RT_PHB);
  CHECK_INT(rt_pci_distance(&a, &far), RT_SYS);
  CHECK_INT(rt_pci_distance(&a, &none), RT_SYS);
  CHECK_INT(rt_pci_distance(&none, &none), RT_SYS);
  struct rt_pci port = place(0, -1, 2), next_port = place(0, -1, 3);
  CHECK_INT(rt_pci_distance(&port, &next_port), RT_PHB);
}

TEST(words) {
  static const struct { const char *text; enum rt_distance is; } good[] = {
      {"LOC", RT_LOC}, {"pix", RT_PIX}, {"SYS", RT_SYS}, {"0", RT_LOC}, {"1", RT_PIX}, {"3", RT_PHB}, {"9", RT_SYS}};
  static const char *const bad[] = {"", "NET", "PI", "-1", "1x", "99999999999999999999"};
  enum rt_distance d;
  for (size_t i = 0; i < RAIL_COUNT_OF(good); i++)
    CHECK_MSG(rt_distance_parse(good[i].text, &d) && d == good[i].is, "%s", good[i].text);
  for (size_t i = 0; i < RAIL_COUNT_OF(bad); i++) CHECK_MSG(!rt_distance_parse(bad[i], &d), "%s", bad[i]);
  CHECK_STR(rt_distance_name(RT_PHB), "PHB");
}

/* ---- rings ---- */

TEST(nothing_known) {
  clear(MOST);
  check_order(1, "0");
  check_order(2, "0 1");
  check_order(5, "0 1 2 3 4");
  check_order(12, "0 1 2 3 4 5 6 7 8 9 10 11");
}

TEST(hosts_stay_together) {
  clear(6);
  for (int r = 0; r < 6; r++) ranks[r].host = (uint64_t)(r % 2);
  check_order(6, "0 2 4 1 3 5");
  for (int r = 0; r < 6; r++) ranks[r].host = (uint64_t)(r / 2);
  check_order(6, "0 1 2 3 4 5");
}

TEST(nvswitch) { /* all as near as can be: the ranks' order */
  clear(8);
  for (int r = 0; r < 8; r++) gpus[r] = (struct rt_topo_gpu){.pci = place(r / 2 % 2, r / 4, r % 2), .switched = 1};
  check_order(8, "0 1 2 3 4 5 6 7");
  CHECK_INT(rt_topo_distance(&ranks[0], &ranks[7]), RT_NVL);
  gpus[7].switched = 0;
  CHECK_INT(rt_topo_distance(&ranks[0], &ranks[7]), RT_SYS);
}

TEST(two_processors_in_shuffled_order) {
  static const int gpu_of[] = {0, 4, 1, 5, 2, 6, 3, 7}; /* rank → GPU; 0 to 3 at processor 0, two a switch */
  clear(8);
  for (int r = 0; r < 8; r++) gpus[r].pci = place(gpu_of[r] / 4, gpu_of[r] / 2 % 2, gpu_of[r] % 2);
  check_order(8, "0 1 3 5 7 4 6 2");
  int order[8];
  CHECK_OK(rt_topo_ring(ranks, 8, order));
  CHECK_INT(links(order, 8, RT_SYS), 2);
  CHECK_INT(links(order, 8, RT_PHB), 2);
  CHECK_INT(links(order, 8, RT_PIX), 4);
}

TEST(links_in_pairs) { /* NVLink bridges between GPUs of two processors: worth more than a common switch */
  clear(4);
  for (int r = 0; r < 4; r++) gpus[r].pci = place(r / 2, 0, r % 2);
  for (int r = 0; r < 2; r++) gpus[r].peer[gpus[r].npeers++] = gpus[r + 2].pci.hop[gpus[r + 2].pci.nhops - 1];
  CHECK_INT(rt_topo_distance(&ranks[2], &ranks[0]), RT_NVL); /* one of the two says so */
  check_order(4, "0 1 3 2");
}

TEST(several_ranks_on_a_gpu) {
  clear(6);
  for (int r = 0; r < 6; r++) gpus[r].pci = place(0, r % 3, 0);
  check_order(6, "0 1 4 2 5 3");
}

TEST(many_ranks) {
  int order[MOST];
  clear(16);
  for (int r = 0; r < 16; r++) gpus[r].pci = place(r % 2, r / 2 % 4, r / 8);
  CHECK_OK(rt_topo_ring(ranks, 16, order));
  CHECK_INT(order[0], 0);
  CHECK_INT(links(order, 16, RT_SYS), 2);
  CHECK_INT(links(order, 16, RT_PIX), 8);
}

/* Against all orders that begin with rank 0. */
static uint64_t price(const int *order, int n) {
  uint64_t sum = 0;
  for (int i = 0; i < n; i++) {
    enum rt_distance d = rt_topo_distance(&ranks[order[i]], &ranks[order[(i + 1) % n]]);
    sum += d == RT_LOC ? 0 : 1ull << 5 * (d - 1);
  }
  return sum;
}

static void permute(int *order, int at, int n, uint64_t *best, int *first) {
  if (at == n && price(order, n) < *best) {
    *best = price(order, n);
    memcpy(first, order, (size_t)n * sizeof *first);
  }
  for (int r = 1; r < n && at < n; r++) {
    bool used = false;
    for (int i = 1; i < at; i++) used |= order[i] == r;
    if (used) continue;
    order[at] = r;
    permute(order, at + 1, n, best, first);
  }
}

TEST(the_best_there_is) {
  srand(7);
  for (int round = 0; round < 200; round++) {
    int n = 2 + round % 6, order[MOST] = {0}, first[MOST], got[MOST];
    uint64_t best = UINT64_MAX;
    clear(n);
    for (int r = 0; r < n; r++)
      if (rand() % 8) gpus[r].pci = place(rand() % 2, rand() % 3 - 1, rand() % 3);
    for (int r = 1; r < n; r++)
      if (rand() % 3 == 0 && gpus[r].pci.nhops)
        gpus[r - 1].peer[gpus[r - 1].npeers++] = gpus[r].pci.hop[gpus[r].pci.nhops - 1];
    permute(order, 1, n, &best, first);
    CHECK_OK(rt_topo_ring(ranks, n, got));
    CHECK_MSG(memcmp(got, first, (size_t)n * sizeof *got) == 0, "round %d: %d ranks cost %llu, at best %llu", round, n,
              (unsigned long long)price(got, n), (unsigned long long)best);
  }
}

TEST(what_others_say) {
  struct rt_topo_gpu told = {.npeers = RT_TOPO_PEERS, .pci.nhops = RT_PCI_HOPS};
  CHECK(rt_topo_gpu_valid(&told));
  told.npeers++;
  CHECK(!rt_topo_gpu_valid(&told));
  told = (struct rt_topo_gpu){.pci.nhops = -1};
  CHECK(!rt_topo_gpu_valid(&told));
  told.pci.nhops = RT_PCI_HOPS + 1;
  CHECK(!rt_topo_gpu_valid(&told));
}

/* ---- NICs ---- */

TEST(a_nic_for_each_gpu) {
  struct rt_pci nics[8];
  clear(8);
  for (int i = 0; i < 8; i++) {
    gpus[i].pci = place(i / 4, i % 4, 0);
    nics[i] = place(i / 4, i % 4, 5);
  }
  for (int i = 0; i < 8; i++) CHECK_INT(rt_topo_nic(&gpus[i], nics, 8, i + 3), i);
}

TEST(near_nics_in_turns) {
  struct rt_pci nics[4] = {place(1, -1, 1), place(0, -1, 1), place(1, -1, 2), place(0, -1, 2)};
  clear(2);
  gpus[0].pci = place(1, 0, 0);
  CHECK_INT(rt_topo_nic(&gpus[0], nics, 4, 0), 0);
  CHECK_INT(rt_topo_nic(&gpus[0], nics, 4, 1), 2);
  CHECK_INT(rt_topo_nic(&gpus[0], nics, 4, 2), 0);
  for (int turn = 0; turn < 9; turn++) CHECK_INT(rt_topo_nic(&gpus[1], nics, 4, turn), turn % 4); /* no GPU known */
}

/* ---- GPU memory ---- */

TEST(ways_to_register) {
  const struct rt_gdr_facts all = {.ptr_support = RAIL_PTR_HOST | RAIL_PTR_CUDA | RAIL_PTR_DMABUF, .rdma = true,
                                   .dmabuf = true, .distance = RT_PXB, .level = RT_PXB, .read = true};
  struct rt_gdr_facts f = all;
  const char *why;
#define CHOOSES(way, change)                      \
  do {                                            \
    f = all;                                      \
    change;                                       \
    CHECK_INT(rt_gdr_choose(&f, &why), way);      \
    CHECK((why == NULL) == ((way) != RT_GDR_NONE)); \
  } while (0)
  CHOOSES(RT_GDR_DMABUF, f.is_send = false);
  CHOOSES(RT_GDR_CUDA, f.dmabuf = false);
  CHOOSES(RT_GDR_CUDA, f.ptr_support = RAIL_PTR_CUDA);
  CHOOSES(RT_GDR_NONE, f.ptr_support = RAIL_PTR_HOST);
  CHOOSES(RT_GDR_NONE, f.rdma = false);
  CHOOSES(RT_GDR_NONE, (f.dmabuf = false, f.ptr_support = RAIL_PTR_DMABUF));
  CHOOSES(RT_GDR_NONE, f.distance = RT_PHB);
  CHOOSES(RT_GDR_NONE, f.level = RT_LOC);
  CHOOSES(RT_GDR_DMABUF, f.read = false);
  CHOOSES(RT_GDR_NONE, (f.read = false, f.is_send = true));
  CHOOSES(RT_GDR_DMABUF, f.is_send = true);
#undef CHOOSES
  CHECK(rt_gdr_must_flush(false, 8, false) && !rt_gdr_must_flush(false, 9, false));
  CHECK(rt_gdr_must_flush(true, 10, false) && rt_gdr_must_flush(false, 9, true));
}

/* ---- what this machine says ---- */

static void look(const struct rank *rank, void *arg) {
  (void)rank, (void)arg;
  char root[PCI_TREE_PATH], path[PCI_TREE_PATH], lib[RANKS_PATH];
  struct rt_topo_gpu found;
  ENSURE(ranks_built("test/libfakenvml.so", lib), "the build has no test/libfakenvml.so");
  pci_tree_open(root);
  pci_tree_add(root, "pciffff:00/ffff:00:01.0/ffff:01:00.0", 1, path);
  setenv("RAIL_NVML_LIB", lib, 1);
  setenv("RAIL_SYSFS", root, 1);
  setenv("FAKENVML_LINKS", "01:00.0=00:00.0,00:00.0=01:00.0,01:00.0=00:00.0,01:00.0=switch", 1);
  gpu_open();
  rt_topo_detect(1, &found);
  ENSURE(found.pci.nhops == 3 && found.pci.numa == 1, "%d hops, node %d", found.pci.nhops, found.pci.numa);
  ENSURE(found.npeers == 1 && found.peer[0] == rt_pci_number("ffff:00:00.0") && found.switched, "%u peers",
         found.npeers);
  rt_topo_detect(0, &found); /* sysfs does not know it */
  ENSURE(found.pci.nhops == 0 && found.npeers == 1 && !found.switched, "%d hops", found.pci.nhops);
  rt_topo_detect(-1, &found);
  ENSURE(found.pci.nhops == 0 && found.npeers == 0, "something is known of no device");
  pci_tree_close(root);
}

static bool have_fake(void) {
  char path[RANKS_PATH];
  return ranks_built("test/libfakegpu.so", path);
}

TEST(this_machine) {
  if (!have_fake()) tap_skip_case("the build has no C++ compiler for the fake driver");
  job_run("GHOST_DEVICES=2", 1, 10000, look, NULL);
}

TEST_MAIN(TEST_CASE(places), TEST_CASE(distances), TEST_CASE(words), TEST_CASE(nothing_known),
          TEST_CASE(hosts_stay_together), TEST_CASE(nvswitch), TEST_CASE(two_processors_in_shuffled_order),
          TEST_CASE(links_in_pairs), TEST_CASE(several_ranks_on_a_gpu), TEST_CASE(many_ranks),
          TEST_CASE(the_best_there_is), TEST_CASE(what_others_say), TEST_CASE(a_nic_for_each_gpu),
          TEST_CASE(near_nics_in_turns), TEST_CASE(ways_to_register), TEST_CASE(this_machine))
