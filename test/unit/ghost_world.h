/* SPDX-License-Identifier: Apache-2.0
 * For tests of ghost's kernels: a communicator's structs, filled as NCCL's host code fills them. Ranks are streams of
 * this process, connected directly, as two GPUs of one host are. GHOSTNCCL_VERSION names the release. */
#ifndef TEST_GHOST_WORLD_H
#define TEST_GHOST_WORLD_H

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
    char *c = w->comm[i ? to : from] + w->layout->channels + (size_t)channel * w->layout->channel_size;
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
  char *c = w->comm[rank] + w->layout->channels + (size_t)channel * w->layout->channel_size;
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
  const char *version = getenv("GHOSTNCCL_VERSION");
  open_libraries();
  *w = (struct world){.layout = gh_layout_of(version ? atoi(version) : 22809), .n = n, .count = count};
  ENSURE(w->layout, "no layout");
  for (int r = 0; r < n; r++) {
    char *c = w->comm[r] =
        device_memory(&w->memory, w->layout->channels + GH_MAX_CHANNELS * w->layout->channel_size);
    GH_FIELD(int, c, GH_COMM_RANK) = r;
    GH_FIELD(int, c, GH_COMM_NRANKS) = n;
    for (int p = 0; p < GH_PROTOS; p++) GH_FIELD(int, c, GH_COMM_BUFF_SIZES + 4 * (size_t)p) = sizes[p];
    GH_FIELD(int, c, GH_COMM_P2P_CHUNK) = P2P_CHUNK;
    GH_FIELD(void *, c, w->layout->comm_abort) = &w->abort_flag;
    GH_FIELD(void *, c, w->layout->comm_channels) = c + w->layout->channels;
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

/* From each rank to the next: of this channel's half, by LL or by Simple. */
static void fill_p2p(struct world *w, int rank, bool ll, char *work) {
  memset(work, 0, GH_P2P_SIZE);
  for (size_t i = 0; i < w->count; i++) w->in[rank][i] = value(rank, i), w->out[rank][i] = -1;
  GH_FIELD(void *, work, GH_P2P_SEND) = w->in[rank];
  GH_FIELD(void *, work, GH_P2P_RECV) = w->out[rank];
  GH_FIELD(uint64_t, work, GH_P2P_SEND_BYTES) = w->count * sizeof(float);
  GH_FIELD(uint64_t, work, GH_P2P_RECV_BYTES) = w->count * sizeof(float);
  GH_FIELD(int, work, GH_P2P_SEND_RANK) = (rank + 1) % w->n;
  GH_FIELD(int, work, GH_P2P_RECV_RANK) = (rank + w->n - 1) % w->n;
  work[GH_P2P_CHANNELS] = work[GH_P2P_SEND_CHANNELS] = work[GH_P2P_RECV_CHANNELS] = CHANNELS;
  work[GH_P2P_SEND_CHUNK] = work[GH_P2P_RECV_CHUNK] = ll ? 0x38 : 0x50; /* 512, 4096 */
  work[GH_P2P_FLAGS] = ll ? 3 : 0;
}

/* That the first `n` elements of each rank came. */
static void check_p2p(const struct world *w, size_t n) {
  for (int r = 0; r < w->n; r++) CUDA(sync_stream(w->stream[r]));
  for (int r = 0; r < w->n; r++)
    for (size_t i = 0; i < w->count; i++)
      ENSURE(w->out[r][i] == (i < n ? value((r + w->n - 1) % w->n, i) : -1), "rank %d: element %zu is %g", r, i,
             (double)w->out[r][i]);
}

#endif
