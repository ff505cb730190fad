/* SPDX-License-Identifier: Apache-2.0
 *
 * Ghost without NCCL: the calls by which NCCL finds and launches kernels, made on ghost's libraries, and the kernels
 * themselves.
 */
#include <math.h>
#include <unistd.h>

#include "test/unit/ghost_world.h"

static void all_protocols(int coll, int algo) {
  static const size_t counts[] = {1, 37, 6000};
  for (int n = 2; n <= 3; n++)
    for (int i = 0; i < 3; i++) {
      struct world w;
      world_open(&w, n, counts[i]);
      for (int proto = 0; proto < GH_PROTOS; proto++)
        for (int again = 0; again < 3; again++) run_coll(&w, coll, algo, proto, again % n);
      world_close(&w);
    }
}

TEST(all_reduce_by_a_ring) { all_protocols(ALL_REDUCE, 1); }
TEST(all_reduce_by_a_tree) { all_protocols(ALL_REDUCE, 0); }
TEST(all_gather) { all_protocols(ALL_GATHER, 1); }
TEST(reduce_scatter) { all_protocols(REDUCE_SCATTER, 1); }
TEST(broadcast) { all_protocols(BROADCAST, 1); }
TEST(reduce) { all_protocols(REDUCE, 1); }

static uint64_t steps_of(const struct world *w, int from, int to, size_t end) {
  char *c = w->comm[from] + w->layout->channels;
  return GH_FIELD(uint64_t, GH_FIELD(char **, c, GH_CHANNEL_PEERS)[to] + end, GH_CONN_STEP);
}

/* In slots of 4 KiB, of two channels with half a rank's part each: nothing; blocks so small that they share slots;
 * several chunks. Each connection's slots are as many as NCCL's proxies count for so many ranks and bytes. */
static void by_pat(int coll) {
  static const struct {
    int n;
    size_t count;
    uint64_t slots[4];   /* by connections to ranks at the distances 1, 2, 4 and 8 */
    uint64_t scatter[4]; /* of reduce-scatter, where they are others */
  } all[] = {{2, 1, {0}, {0}},       {2, 6000, {3}, {0}},        {3, 32, {1, 1}, {0}},
             {4, 750, {1, 1}, {0}},  {5, 32, {2, 1, 1}, {0}},    {6, 4500, {9, 3, 3}, {0}},
             {7, 750, {2, 1, 1}, {0}}, {8, 4500, {12, 6, 3}, {0}}, {9, 750, {2, 1, 1, 1}, {4, 2, 1, 1}}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    struct world w;
    int n = all[i].n, towards = coll == ALL_GATHER ? -1 : 1;
    const uint64_t *slots = coll == REDUCE_SCATTER && all[i].scatter[0] ? all[i].scatter : all[i].slots;
    world_open(&w, n, all[i].count);
    for (int again = 0; again < 2; again++) run_coll(&w, coll, PAT, GH_SIMPLE, 0);
    for (int r = 0; r < n; r++)
      for (int bit = 0; 1 << bit < n; bit++) {
        int to = (r + n + towards * (1 << bit)) % n;
        uint64_t sent = steps_of(&w, r, to, GH_PEER_SEND), received = steps_of(&w, to, r, GH_PEER_RECV);
        ENSURE(sent == 2 * slots[bit] && received == sent,
               "%d ranks, %zu elements: %llu slots from rank %d to %d, of which it received %llu; expected 2 x %llu", n,
               all[i].count, (unsigned long long)sent, r, to, (unsigned long long)received,
               (unsigned long long)slots[bit]);
      }
    world_close(&w);
  }
}

TEST(all_gather_by_pat) { by_pat(ALL_GATHER); }
TEST(reduce_scatter_by_pat) { by_pat(REDUCE_SCATTER); }

TEST(send_and_receive) {
  struct world w;
  world_open(&w, 3, 5000);
  for (int ll = 0; ll < 2; ll++) {
    for (int r = 0; r < w.n; r++) {
      _Alignas(16) char work[GH_P2P_SIZE];
      fill_p2p(&w, r, ll, work);
      struct launch l = make_launch(&w, r, 0, 0, work, GH_P2P_SIZE, 1);
      CUDA(run_launch(&w, r, &l, &kernel_symbol));
    }
    check_p2p(&w, w.count);
  }
  world_close(&w);
}

/* A sender beside a proxy: the test gives it slots, one after the other, at places of its own choice, and takes what
 * it is told. The count of slots begins below 0. */
TEST(a_proxy_gives_slots) {
  enum { CHUNK = 4096, CHUNKS = 20 };
  struct world w;
  _Alignas(16) char work[GH_P2P_SIZE] = {0};
  world_open(&w, 2, CHUNK * CHUNKS / sizeof(float) - 5);
  size_t bytes = w.count * sizeof(float);
  char **peers = GH_FIELD(char **, w.comm[0] + w.layout->channels, GH_CHANNEL_PEERS);
  char *conn = peers[1] + GH_PEER_SEND + GH_CONN_SIZE, *fifo = device_memory(&w.memory, GH_STEPS * GH_FIFO_SIZE);
  char *pool = device_memory(&w.memory, 3 * CHUNK), *got = calloc(1, CHUNK * CHUNKS);
  uint64_t *head = GH_FIELD(uint64_t *, conn, GH_CONN_HEAD), *tail = GH_FIELD(uint64_t *, conn, GH_CONN_TAIL);
  *head = (uint64_t)-GH_STEPS;
  GH_FIELD(void *, conn, GH_CONN_FIFO) = fifo;
  GH_FIELD(void *, conn, GH_CONN_BUFFS + 8 * GH_SIMPLE) = pool;
  for (size_t i = 0; i < w.count; i++) w.in[0][i] = value(0, i);
  GH_FIELD(void *, work, GH_P2P_SEND) = w.in[0];
  GH_FIELD(uint64_t, work, GH_P2P_SEND_BYTES) = bytes;
  GH_FIELD(int, work, GH_P2P_SEND_RANK) = GH_FIELD(int, work, GH_P2P_RECV_RANK) = 1;
  work[GH_P2P_CHANNELS] = CHANNELS;
  work[GH_P2P_SEND_CHANNELS] = 1;
  work[GH_P2P_SEND_CHUNK] = 0x50;
  struct launch l = make_launch(&w, 0, 0, 0, work, GH_P2P_SIZE, 1);
  CUDA(run_launch(&w, 0, &l, &kernel_symbol));
  usleep(5000); /* in which it could go wrong */
  CHECK_INT(__atomic_load_n(tail, __ATOMIC_ACQUIRE), 0);
  size_t at = 0;
  for (uint64_t step = 0; step < CHUNKS; step++) {
    char *entry = fifo + step % GH_STEPS * GH_FIFO_SIZE, *slot = pool + (step * 2 + 1) % 3 * CHUNK;
    GH_FIELD(int, entry, GH_FIFO_MODE) = GH_FIFO_MODE_OFFSET;
    __atomic_store_n(&GH_FIELD(int, entry, GH_FIFO_OFFSET), (int)(slot - pool), __ATOMIC_RELAXED);
    __atomic_store_n(&GH_FIELD(int64_t, entry, GH_FIFO_BYTES), -1, __ATOMIC_RELAXED);
    __atomic_store_n(head, step + 1 - GH_STEPS, __ATOMIC_RELEASE);
    while (__atomic_load_n(tail, __ATOMIC_ACQUIRE) <= step) usleep(50);
    int64_t size = __atomic_load_n(&GH_FIELD(int64_t, entry, GH_FIFO_BYTES), __ATOMIC_RELAXED);
    CHECK_INT(size, bytes - at < CHUNK ? bytes - at : CHUNK);
    memcpy(got + at, slot, (size_t)size);
    at += (size_t)size;
  }
  CUDA(sync_stream(w.stream[0]));
  CHECK(memcmp(got, w.in[0], bytes) == 0);
  free(got);
  world_close(&w);
}

/* ---- what is refused; each ends the device, so in a process of its own ---- */

struct refusal {
  void (*body)(void);
  const char *says; /* on stderr */
};

static void in_child(const struct rank *rank, void *arg) {
  const struct refusal *r = arg;
  char said[2048] = "";
  FILE *file = tmpfile();
  int old = dup(STDERR_FILENO);
  (void)rank;
  ENSURE(file && old >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0, "no file for stderr");
  r->body();
  ENSURE(dup2(old, STDERR_FILENO) >= 0, "no stderr");
  rewind(file);
  (void)!fread(said, 1, sizeof said - 1, file);
  ENSURE(strstr(said, r->says), "\"%s\" has no \"%s\"", said, r->says);
  close(old);
  fclose(file);
}

static void alone(const struct refusal *r) {
  job_run("", 1, kit_patience_ms(30000), in_child, (void *)(uintptr_t)r);
}

/* Runs one rank's all-reduce that cannot be; what the stream says. */
static int spoilt(unsigned function, void (*spoil)(struct world *w, char *work)) {
  static struct world w;
  char work[256];
  world_open(&w, 2, 100);
  fill_coll(&w, 0, ALL_REDUCE, 1, GH_SIMPLE, 0, 0, work);
  if (spoil) spoil(&w, work);
  struct launch l = make_launch(&w, 0, 1, function, work, w.layout->coll_size, 1);
  int r = run_launch(&w, 0, &l, &kernel_symbol);
  return r ? r : sync_stream(w.stream[0]);
}

static void unknown_kernel(void) {
  struct world w;
  world_open(&w, 2, 100);
  struct launch l = {.size = 64};
  ENSURE_INT(run_launch(&w, 0, &l, &strange_symbol), 801);
}

static void no_memory(struct world *w, char *work) { GH_FIELD(void *, work, w->layout->coll_send) = (void *)w; }
static void registered(struct world *w, char *work) {
  (void)w;
  GH_FIELD(uint32_t, work, GH_COLL_FLAGS) |= 1u << 25;
}
static void other_layout(struct world *w, char *work) {
  (void)work;
  GH_FIELD(void *, w->comm[0], w->layout->comm_channels) = w->comm[0];
}
static void net_device(struct world *w, char *work) {
  (void)work;
  char **peers = GH_FIELD(char **, w->comm[0] + w->layout->channels, GH_CHANNEL_PEERS);
  GH_FIELD(int, peers[1], GH_CONN_NET_DEVICE) = 1;
}

/* ---- what NICs wrote ---- */

static char *slots_of(const struct world *w, int rank, int from, int channel, int proto) {
  const char *c = w->comm[rank] + w->layout->channels + (size_t)channel * w->layout->channel_size;
  return GH_FIELD(char *, GH_FIELD(char **, c, GH_CHANNEL_PEERS)[from] + GH_PEER_RECV, GH_CONN_BUFFS + 8 * proto);
}

/* As if a NIC received all that rank 0 gets. */
static void write_slots(const struct world *w, const void *nic, int proto) {
  void (*wrote)(const void *, const void *, size_t) = symbol("ghost_nic_wrote");
  for (int channel = 0; channel < CHANNELS; channel++) wrote(nic, slots_of(w, 0, 1, channel, proto), LL_SIZE);
}

/* What rank 0's stream says. */
static int receive_hidden(const void *written_by, const void *read_by) {
  static struct world w;
  void (*read)(const void *) = symbol("ghost_nic_read");
  char work[256];
  world_open(&w, 2, 100);
  write_slots(&w, written_by, GH_SIMPLE);
  read(read_by);
  for (int r = 0; r < 2; r++) {
    fill_coll(&w, r, ALL_REDUCE, 1, GH_SIMPLE, 0, 0, work);
    struct launch l = make_launch(&w, r, 1, row_of(ALL_REDUCE, 0, 1, GH_SIMPLE), work, w.layout->coll_size, 1);
    CUDA(run_launch(&w, r, &l, &kernel_symbol));
  }
  return sync_stream(w.stream[0]);
}

static const char nics[2];

static void not_flushed(void) {
  open_libraries();
  ENSURE_INT(receive_hidden(&nics[0], &nics[1]), 719);
}

/* A NIC's read shows what it wrote, CUDA's flush what all wrote. LL128 needs neither, nor does a GPU that keeps the
 * order. */
TEST(a_read_makes_a_nics_writes_visible) {
  struct world w;
  world_open(&w, 2, 6000);
  void (*read)(const void *) = symbol("ghost_nic_read");
  int (*entry)(const char *, void **, unsigned, unsigned long long, int *) = symbol("cudaGetDriverEntryPointByVersion");
  int (*flush)(int, int), status;
  CUDA(entry("cuFlushGPUDirectRDMAWrites", (void **)&flush, 12000, 0, &status));
  CHECK(flush);
  for (int i = 0; i < 2; i++) write_slots(&w, &nics[i], GH_SIMPLE);
  for (int i = 0; i < 2; i++) read(&nics[i]);
  run_coll(&w, ALL_REDUCE, 1, GH_SIMPLE, 0);
  for (int i = 0; i < 2; i++) write_slots(&w, &nics[i], GH_SIMPLE);
  CUDA(flush(0, 100));
  CHECK_INT(flush(1, 100), 1);
  run_coll(&w, ALL_REDUCE, 1, GH_SIMPLE, 0);
  write_slots(&w, &nics[0], GH_LL128);
  run_coll(&w, ALL_REDUCE, 1, GH_LL128, 0);
  setenv("GHOST_ATTRIBUTES", "75:9", 1);
  write_slots(&w, &nics[0], GH_SIMPLE);
  unsetenv("GHOST_ATTRIBUTES");
  run_coll(&w, ALL_REDUCE, 1, GH_SIMPLE, 0);
  world_close(&w);
}

static void left_out(void) { ENSURE_INT(spoilt(4, NULL), 719); }
static void no_function(void) { ENSURE_INT(spoilt(20000, NULL), 719); }
static void no_algorithm(void) { ENSURE_INT(spoilt(row_of(ALL_REDUCE, 0, 4, GH_SIMPLE), NULL), 719); }
static void scaled_sum(void) { ENSURE_INT(spoilt(row_of(REDUCE_SCATTER, 3, PAT, GH_SIMPLE), NULL), 719); }
static void host_memory(void) { ENSURE_INT(spoilt(row_of(ALL_REDUCE, 0, 1, GH_SIMPLE), no_memory), 719); }
static void registered_memory(void) { ENSURE_INT(spoilt(row_of(ALL_REDUCE, 0, 1, GH_SIMPLE), registered), 719); }
static void another_layout(void) { ENSURE_INT(spoilt(row_of(ALL_REDUCE, 0, 1, GH_SIMPLE), other_layout), 1); }
static void another_device(void) { ENSURE_INT(spoilt(row_of(ALL_REDUCE, 0, 1, GH_SIMPLE), net_device), 719); }

TEST(what_it_cannot_do_is_an_error) {
  static const struct refusal all[] = {{unknown_kernel, "there is no code for the kernel strangeKernel"},
                                       {left_out, "function 4: this NCCL was built without"},
                                       {no_function, "function 20000: this NCCL was built without"},
                                       {no_algorithm, "ghost has no kernel for AllReduce Sum f32 NVLS SIMPLE"},
                                       {scaled_sum, "ghost has no kernel for ReduceScatter PreMulSum f32 PAT SIMPLE"},
                                       {host_memory, "the send buffer "},
                                       {registered_memory, "the buffers are registered"},
                                       {another_layout, "the arguments of ncclDevKernel_Generic"},
                                       {another_device, "is of net device type 1"},
                                       {not_flushed, "bytes from rank 1 are not visible yet"}};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) alone(&all[i]);
}

/* A kernel that waits for a rank that does not come ends by NCCL's abort flag. */
TEST(an_abort_ends_a_kernel) {
  struct world w;
  char work[256];
  world_open(&w, 2, 100);
  fill_coll(&w, 0, ALL_REDUCE, 1, GH_SIMPLE, 0, 0, work);
  struct launch l = make_launch(&w, 0, 1, row_of(ALL_REDUCE, 0, 1, GH_SIMPLE), work, w.layout->coll_size, 1);
  int (*query)(void *) = symbol("cudaStreamQuery");
  CUDA(run_launch(&w, 0, &l, &kernel_symbol));
  CHECK_INT(query(w.stream[0]), 600);
  __atomic_store_n(&w.abort_flag, 1, __ATOMIC_RELEASE);
  CUDA(sync_stream(w.stream[0]));
  world_close(&w);
}

TEST_MAIN(TEST_CASE(all_reduce_by_a_ring), TEST_CASE(all_reduce_by_a_tree),
          TEST_CASE(all_gather), TEST_CASE(reduce_scatter), TEST_CASE(broadcast), TEST_CASE(reduce),
          TEST_CASE(all_gather_by_pat), TEST_CASE(reduce_scatter_by_pat), TEST_CASE(send_and_receive),
          TEST_CASE(a_proxy_gives_slots), TEST_CASE(a_read_makes_a_nics_writes_visible),
          TEST_CASE(what_it_cannot_do_is_an_error), TEST_CASE(an_abort_ends_a_kernel))
