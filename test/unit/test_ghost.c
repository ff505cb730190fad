/* SPDX-License-Identifier: Apache-2.0
 *
 * Ghost without NCCL: the calls by which NCCL finds and launches kernels, made on ghost's libraries, and the kernels
 * themselves, on structs that are filled as NCCL's host code fills them. Ranks are streams of this process, connected
 * directly, as two GPUs of one host are.
 */
#include <math.h>
#include <unistd.h>

#include "ghost/nccl/gh_layout.h"
#include "test/unit/ghost_runtime.h"

enum { MAX_RANKS = 9, CHANNELS = 2, LL_SIZE = 8192, LL128_SIZE = 32768, SIMPLE_SIZE = 32768, P2P_CHUNK = 4096 };
enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE };
enum { PAT = 6 };

/* ---- a communicator as kernels see it ---- */

struct memory { void *at[2048]; int n; };

static void *device_memory(struct memory *m, size_t size) {
  void *p;
  ENSURE(m->n < 2048, "too many pieces of memory");
  CUDA(cuda_malloc(&p, size));
  memset(p, 0, size);
  return m->at[m->n++] = p;
}

struct world {
  const struct gh_layout *layout;
  struct memory memory;
  int n;
  uint32_t abort_flag;
  char *comm[MAX_RANKS];
  void *stream[MAX_RANKS];
  float *in[MAX_RANKS], *out[MAX_RANKS];
  size_t count; /* of a rank's part */
};

static void connect_pair(struct world *w, int from, int to, int channel, int index) {
  static const size_t sizes[] = {LL_SIZE, LL128_SIZE, SIMPLE_SIZE};
  uint64_t *words = device_memory(&w->memory, 256);
  char *ends[2];
  for (int i = 0; i < 2; i++) {
    char *c = w->comm[i ? to : from] + w->layout->comm_channels + (size_t)channel * w->layout->channel_size;
    char **peers = GH_FIELD(char **, c, GH_CHANNEL_PEERS);
    ends[i] = peers[i ? from : to] + (i ? GH_PEER_RECV : GH_PEER_SEND) + index * GH_CONN_SIZE;
    GH_FIELD(void *, ends[i], GH_CONN_TAIL) = &words[0];
    GH_FIELD(void *, ends[i], GH_CONN_HEAD) = &words[16];
    GH_FIELD(int, ends[i], GH_CONN_STEP_SIZE) = SIMPLE_SIZE / GH_STEPS;
  }
  for (int p = 0; p < GH_PROTOS; p++) {
    void *buffer = device_memory(&w->memory, sizes[p]);
    for (int i = 0; i < 2; i++) GH_FIELD(void *, ends[i], GH_CONN_BUFFS + 8 * p) = buffer;
  }
}

/* A chain as a tree: the last rank's up is the one before. */
static void set_channel(struct world *w, int rank, int channel) {
  char *c = w->comm[rank] + w->layout->comm_channels + (size_t)channel * w->layout->channel_size;
  char **peers = device_memory(&w->memory, sizeof(void *) * MAX_RANKS);
  int *ranks = device_memory(&w->memory, sizeof(int) * MAX_RANKS), n = w->n;
  for (int i = 0; i < n; i++) {
    peers[i] = device_memory(&w->memory, 4 * GH_CONN_SIZE);
    ranks[i] = (rank + i) % n;
  }
  GH_FIELD(void *, c, GH_CHANNEL_PEERS) = peers;
  GH_FIELD(int, c, GH_CHANNEL_PREV) = (rank + n - 1) % n;
  GH_FIELD(int, c, GH_CHANNEL_NEXT) = (rank + 1) % n;
  GH_FIELD(void *, c, GH_CHANNEL_RANKS) = ranks;
  GH_FIELD(int, c, w->layout->channel_index) = rank;
  GH_FIELD(int, c, w->layout->channel_up) = rank - 1;
  for (int i = 0; i < GH_TREE_ARITY; i++)
    GH_FIELD(int, c, w->layout->channel_down + 4 * (size_t)i) = i == 0 && rank + 1 < n ? rank + 1 : -1;
}

static void world_open(struct world *w, int n, size_t count) {
  static const int sizes[] = {LL_SIZE, LL128_SIZE, SIMPLE_SIZE};
  open_libraries();
  *w = (struct world){.layout = gh_layout_of(22809), .n = n, .count = count};
  ENSURE(w->layout, "no layout");
  for (int r = 0; r < n; r++) {
    char *c = w->comm[r] =
        device_memory(&w->memory, w->layout->comm_channels + GH_MAX_CHANNELS * w->layout->channel_size);
    GH_FIELD(int, c, GH_COMM_RANK) = r;
    GH_FIELD(int, c, GH_COMM_NRANKS) = n;
    for (int p = 0; p < GH_PROTOS; p++) GH_FIELD(int, c, GH_COMM_BUFF_SIZES + 4 * (size_t)p) = sizes[p];
    GH_FIELD(int, c, GH_COMM_P2P_CHUNK) = P2P_CHUNK;
    GH_FIELD(void *, c, GH_COMM_ABORT) = &w->abort_flag;
    GH_FIELD(void *, c, GH_COMM_CHANNELS) = c + w->layout->comm_channels;
    for (int i = 0; i < CHANNELS; i++) set_channel(w, r, i);
    CUDA(make_stream(&w->stream[r], 1));
    w->in[r] = device_memory(&w->memory, sizeof(float) * count * (size_t)n);
    w->out[r] = device_memory(&w->memory, sizeof(float) * count * (size_t)n);
  }
  for (int a = 0; a < n; a++)
    for (int b = 0; b < n; b++)
      for (int i = 0; a != b && i < CHANNELS * GH_CONNS; i++) connect_pair(w, a, b, i / GH_CONNS, i % GH_CONNS);
}

static void world_close(struct world *w) {
  for (int r = 0; r < w->n; r++) CUDA(end_stream(w->stream[r]));
  for (int i = 0; i < w->memory.n; i++) CUDA(cuda_free(w->memory.at[i]));
}

/* ---- launches ---- */

struct launch {
  _Alignas(16) char bytes[4096];
  size_t size;
};

/* Arguments with one batch a channel; the works lie behind, one for all channels or several. */
static struct launch make_launch(const struct world *w, int rank, unsigned type, unsigned function, const void *works,
                                 size_t size, unsigned nworks) {
  struct launch l = {.size = GH_ARGS_SIZE + CHANNELS * GH_BATCH_SIZE + nworks * size};
  GH_FIELD(void *, l.bytes, GH_ARGS_COMM) = w->comm[rank];
  GH_FIELD(uint64_t, l.bytes, GH_ARGS_CHANNELS) = (1u << CHANNELS) - 1;
  for (size_t i = 0; i < CHANNELS; i++) {
    size_t at = GH_ARGS_SIZE + i * GH_BATCH_SIZE;
    GH_FIELD(uint32_t, l.bytes, at + GH_BATCH_FLAGS) = type << 15 | function << 17;
    GH_FIELD(uint32_t, l.bytes, at + GH_BATCH_OFFSET) = GH_ARGS_SIZE + CHANNELS * GH_BATCH_SIZE;
    GH_FIELD(uint64_t, l.bytes, at + GH_BATCH_BITS) = (1ull << nworks) - 1;
  }
  memcpy(l.bytes + GH_ARGS_SIZE + CHANNELS * GH_BATCH_SIZE, works, nworks * size);
  return l;
}

static int run_launch(const struct world *w, int rank, struct launch *l, const void *symbol_of) {
  struct gh_launch_config c = {{CHANNELS, 1, 1}, {96, 1, 1}, 0, w->stream[rank], NULL, 0};
  void *function, *extra[] = {GH_PARAM_BUFFER, l->bytes, GH_PARAM_SIZE, &l->size, GH_PARAM_END};
  CUDA(get_function(&function, symbol_of));
  return launch_kernel(&c, function, NULL, extra);
}

/* The number of a function: as rows are laid out in 2.28. type 7 is float. */
static unsigned row_of(int coll, int op, int algo, int proto) {
  static const unsigned before = 1 + 4 * 3 + 3, each = 5 * 12 * 3;
  unsigned float_row = (unsigned)(op * 12 + 7), pat = algo == PAT ? 3 : 0;
  switch (coll) {
    case ALL_GATHER: return 1 + pat * 3 + (unsigned)proto;
    case BROADCAST: return 1 + 4 * 3 + (unsigned)proto;
    case ALL_REDUCE: return before + (float_row * 6 + (unsigned)algo) * 3 + (unsigned)proto;
    case REDUCE: return before + each * 6 + float_row * 3 + (unsigned)proto;
    default: return before + each * 7 + (float_row * 4 + pat) * 3 + (unsigned)proto;
  }
}

/* As NCCL divides: both channels have halves, in grains of the protocol's. */
static void fill_coll(const struct world *w, int rank, int coll, int algo, int proto, int root, uint64_t argument,
                      char *work) {
  static const uint64_t grain[] = {16, 1920, 512}, chunk[] = {LL_SIZE / 16, 2 * 1920, SIMPLE_SIZE / 8};
  bool long_chunks = proto == GH_SIMPLE && algo == 1 && coll != BROADCAST && coll != REDUCE;
  uint64_t unit = coll == ALL_GATHER || coll == BROADCAST ? sizeof(float) : 1; /* what only copies counts bytes */
  uint64_t count = w->count * unit, half = w->count / 2 * unit,
           grains = chunk[proto] / grain[proto] * (long_chunks ? 4 : 1);
  memset(work, 0, w->layout->coll_size);
  GH_FIELD(uint32_t, work, GH_COLL_FLAGS) = (CHANNELS - 1) << 8;
  GH_FIELD(int, work, GH_COLL_ROOT) = root;
  GH_FIELD(void *, work, w->layout->coll_send) = w->in[rank];
  GH_FIELD(void *, work, w->layout->coll_recv) = w->out[rank];
  GH_FIELD(uint64_t, work, w->layout->coll_counts) = half;
  GH_FIELD(uint64_t, work, w->layout->coll_counts + 16) = count - half;
  GH_FIELD(uint64_t, work, w->layout->coll_grains) = grains | grains << 21 | grains << 42;
  GH_FIELD(uint64_t, work, w->layout->coll_argument) = argument;
}

static float value(int rank, size_t i) { return (float)((i * 7 + (size_t)rank * 5) % 11); }

static float expected(const struct world *w, int coll, int rank, int root, size_t i) {
  float sum = 0;
  size_t at = coll == REDUCE_SCATTER ? (size_t)rank * w->count + i : i;
  if (coll == ALL_GATHER) return value((int)(i / w->count), i % w->count);
  if (coll == BROADCAST) return value(root, i);
  for (int r = 0; r < w->n; r++) sum += value(r, at);
  return sum;
}

static void run_coll(struct world *w, int coll, int algo, int proto, int root) {
  char work[256];
  size_t send = coll == REDUCE_SCATTER ? w->count * (size_t)w->n : w->count;
  size_t recv = coll == ALL_GATHER ? w->count * (size_t)w->n : w->count;
  for (int r = 0; r < w->n; r++) {
    for (size_t i = 0; i < send; i++) w->in[r][i] = value(r, i);
    for (size_t i = 0; i < recv; i++) w->out[r][i] = -1;
    fill_coll(w, r, coll, algo, proto, root, 0, work);
    struct launch l = make_launch(w, r, 1, row_of(coll, 0, algo, proto), work, w->layout->coll_size, 1);
    CUDA(run_launch(w, r, &l, &kernel_symbol));
  }
  for (int r = 0; r < w->n; r++) CUDA(sync_stream(w->stream[r]));
  for (int r = 0; r < w->n; r++)
    for (size_t i = 0; i < recv && (coll != REDUCE || r == root); i++)
      ENSURE(w->out[r][i] == expected(w, coll, r, root, i),
             "collective %d, algorithm %d, protocol %d, rank %d: element %zu is %g, expected %g", coll, algo, proto, r,
             i, (double)w->out[r][i], (double)expected(w, coll, r, root, i));
}

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
  char *c = w->comm[from] + w->layout->comm_channels;
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

/* Each rank to the next: of this channel's half, by LL and by Simple. */
TEST(send_and_receive) {
  struct world w;
  world_open(&w, 3, 5000);
  for (int ll = 0; ll < 2; ll++) {
    for (int r = 0; r < w.n; r++) {
      _Alignas(16) char work[GH_P2P_SIZE] = {0};
      for (size_t i = 0; i < w.count; i++) w.in[r][i] = value(r, i), w.out[r][i] = -1;
      GH_FIELD(void *, work, GH_P2P_SEND) = w.in[r];
      GH_FIELD(void *, work, GH_P2P_RECV) = w.out[r];
      GH_FIELD(uint64_t, work, GH_P2P_SEND_BYTES) = w.count * sizeof(float);
      GH_FIELD(uint64_t, work, GH_P2P_RECV_BYTES) = w.count * sizeof(float);
      GH_FIELD(int, work, GH_P2P_SEND_RANK) = (r + 1) % w.n;
      GH_FIELD(int, work, GH_P2P_RECV_RANK) = (r + w.n - 1) % w.n;
      work[GH_P2P_CHANNELS] = work[GH_P2P_SEND_CHANNELS] = work[GH_P2P_RECV_CHANNELS] = CHANNELS;
      work[GH_P2P_SEND_CHUNK] = work[GH_P2P_RECV_CHUNK] = ll ? 0x38 : 0x50; /* 512, 4096 */
      work[GH_P2P_FLAGS] = ll ? 3 : 0;
      struct launch l = make_launch(&w, r, 0, 0, work, GH_P2P_SIZE, 1);
      CUDA(run_launch(&w, r, &l, &kernel_symbol));
    }
    for (int r = 0; r < w.n; r++) CUDA(sync_stream(w.stream[r]));
    for (int r = 0; r < w.n; r++)
      for (size_t i = 0; i < w.count; i++)
        ENSURE(w.out[r][i] == value((r + w.n - 1) % w.n, i), "rank %d: element %zu is %g", r, i, (double)w.out[r][i]);
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
  char **peers = GH_FIELD(char **, w.comm[0] + w.layout->comm_channels, GH_CHANNEL_PEERS);
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
  GH_FIELD(void *, w->comm[0], GH_COMM_CHANNELS) = w->comm[0];
}
static void net_device(struct world *w, char *work) {
  (void)work;
  char **peers = GH_FIELD(char **, w->comm[0] + w->layout->comm_channels, GH_CHANNEL_PEERS);
  GH_FIELD(int, peers[1], GH_CONN_NET_DEVICE) = 1;
}

/* ---- what NICs wrote ---- */

static char *slots_of(const struct world *w, int rank, int from, int channel, int proto) {
  const char *c = w->comm[rank] + w->layout->comm_channels + (size_t)channel * w->layout->channel_size;
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

TEST_MAIN(TEST_CASE(all_reduce_by_a_ring), TEST_CASE(all_reduce_by_a_tree), TEST_CASE(all_gather),
          TEST_CASE(reduce_scatter), TEST_CASE(broadcast), TEST_CASE(reduce), TEST_CASE(all_gather_by_pat),
          TEST_CASE(reduce_scatter_by_pat), TEST_CASE(send_and_receive), TEST_CASE(a_proxy_gives_slots),
          TEST_CASE(a_read_makes_a_nics_writes_visible), TEST_CASE(what_it_cannot_do_is_an_error),
          TEST_CASE(an_abort_ends_a_kernel))
