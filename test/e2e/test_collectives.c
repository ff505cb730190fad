/* SPDX-License-Identifier: Apache-2.0
 * TEST-LIMIT: 240
 * TEST-SAN: asan tsan
 *
 * Proves: every collective, on 1 to 8 ranks, for every type and operator, gives what scalar code written here gives;
 * over shared memory, the network and both; with each protocol, several channels, both ways of driving the
 * proxy; in place and not, at odd addresses; and touches nothing beside its buffers.
 *
 * RAIL_TEST_FULL=1 runs every combination of settings instead of a covering part.
 */
#include <math.h>
#include <unistd.h>

#include "rail/railyard.h"
#include "test/harness/program.h"
#include "test/harness/ranks.h"

/* ---- numbers: our own reading of the formats ---- */

static const struct format {
  int bytes, man, bias;
  bool is_float, is_signed;
  const char *name;
} formats[ncclNumTypes] = {
    [ncclInt8] = {1, 0, 0, false, true, "int8"},         [ncclUint8] = {1, 0, 0, false, false, "uint8"},
    [ncclInt32] = {4, 0, 0, false, true, "int32"},       [ncclUint32] = {4, 0, 0, false, false, "uint32"},
    [ncclInt64] = {8, 0, 0, false, true, "int64"},       [ncclUint64] = {8, 0, 0, false, false, "uint64"},
    [ncclFloat16] = {2, 10, 15, true, true, "half"},     [ncclFloat32] = {4, 23, 127, true, true, "float"},
    [ncclFloat64] = {8, 52, 1023, true, true, "double"}, [ncclBfloat16] = {2, 7, 127, true, true, "bfloat16"},
    [ncclFloat8e4m3] = {1, 3, 7, true, true, "e4m3"},    [ncclFloat8e5m2] = {1, 2, 15, true, true, "e5m2"},
};

/* What is expected is computed from numbers alone: nothing there that a thread sanitizer could see, and most of what it
 * would have to look at. What is read from buffers and written to them is left to it. */
#define PURE __attribute__((no_sanitize("thread")))

/* In their own size each, so that no call is made for it: little-endian, as all of NCCL's platforms are. */
static uint64_t load(int type, const char *p) {
  uint64_t v = 0;
  switch (formats[type].bytes) {
    case 1: memcpy(&v, p, 1); break;
    case 2: memcpy(&v, p, 2); break;
    case 4: memcpy(&v, p, 4); break;
    default: memcpy(&v, p, 8); break;
  }
  return v;
}

static void store(int type, uint64_t v, char *p) {
  switch (formats[type].bytes) {
    case 1: memcpy(p, &v, 1); break;
    case 2: memcpy(p, &v, 2); break;
    case 4: memcpy(p, &v, 4); break;
    default: memcpy(p, &v, 8); break;
  }
}

PURE static uint64_t cut(int type, uint64_t v) { return v & UINT64_MAX >> (64 - formats[type].bytes * 8); }

PURE static double as_float(int type, uint64_t v) {
  const struct format *f = &formats[type];
  uint64_t man = v & ((1ull << f->man) - 1);
  int bits = f->bytes * 8, exp = (int)(v >> f->man & ((1ull << (bits - 1 - f->man)) - 1));
  double mag = exp == 0 ? ldexp((double)man, 1 - f->bias - f->man)
                        : ldexp((double)(man | 1ull << f->man), exp - f->bias - f->man);
  return v >> (bits - 1) & 1 ? -mag : mag;
}

PURE static int64_t as_int(int type, uint64_t v) {
  int shift = 64 - formats[type].bytes * 8;
  return formats[type].is_signed ? (int64_t)(v << shift) >> shift : (int64_t)v;
}

/* A value that the type holds exactly: a small integer times a power of two. */
PURE static uint64_t small(int type, int value) {
  const struct format *f = &formats[type];
  uint64_t v = (uint64_t)(int64_t)value;
  if (f->is_float && value != 0) {
    uint64_t mag = (uint64_t)abs(value);
    int e = 63 - __builtin_clzll(mag);
    uint64_t man = e <= f->man ? mag << (f->man - e) : mag >> (e - f->man);
    v = (man & ((1ull << f->man) - 1)) | (uint64_t)(e + f->bias) << f->man;
    if (value < 0) v |= 1ull << (f->bytes * 8 - 1);
  }
  return cut(type, v);
}

PURE static uint64_t mix(uint64_t x) {
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15ull;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9ull;
  return x ^ x >> 32;
}

/* ---- one case ---- */

enum coll {
  ALLREDUCE,
  REDUCE_SCATTER,
  REDUCE,
  ALLGATHER,
  BROADCAST,
  BCAST,
  SENDRECV,
  ALLTOALL,
  GATHER,
  SCATTER,
  NCOLLS
};
static const char *const coll_names[NCOLLS] = {"AllReduce", "ReduceScatter", "Reduce",   "AllGather", "Broadcast",
                                               "Bcast",     "SendRecv",      "AlltoAll", "Gather",    "Scatter"};
enum { PREMUL = 5, NOPS = 6 };
static const char *const op_names[NOPS] = {"sum", "prod", "max", "min", "avg", "premulsum"};

struct one {
  enum coll coll;
  int type, op, root;
  size_t count;
  bool in_place, odd, random;
  uint64_t seed;
  int rank, nranks;
};

/* Element i of a rank's input. Exact cases hold small integers, whose sums and products every type holds. */
PURE static uint64_t input(const struct one *c, int rank, uint64_t i) {
  const struct format *f = &formats[c->type];
  uint64_t h = mix(c->seed * 0x100000001b3ull + i * 67 + (uint64_t)rank * 0x51ed2701);
  if (c->random && f->is_float) { /* magnitudes in [1/4, 2) */
    uint64_t exp = (uint64_t)(f->bias - 2) + h % 3, man = h >> 8 & ((1ull << f->man) - 1);
    return exp << f->man | man | (c->op == ncclProd ? 0 : h >> 63 << (f->bytes * 8 - 1));
  }
  if (c->random) return cut(c->type, h);
  if (c->op == ncclProd) return small(c->type, (int)(h % 2 + 1) * (f->is_signed && h >> 40 & 1 ? -1 : 1));
  int range = f->is_float && f->man < 7 ? 1 : f->is_float && f->man < 23 ? 15 : 100;
  return small(c->type, f->is_signed ? (int)(h % (uint64_t)(2 * range + 1)) - range : (int)(h % (uint64_t)range));
}

PURE static int premul_factor(const struct one *c) { return c->random && !formats[c->type].is_float ? 3 : 2; }

/* What the reduction of element i must give, and how far from it a float may be. */
PURE static int64_t want_int(const struct one *c, uint64_t i) {
  uint64_t acc = 0;
  for (int r = 0; r < c->nranks; r++) {
    int64_t v = as_int(c->type, input(c, r, i)), a = (int64_t)acc;
    bool less = formats[c->type].is_signed ? v < a : (uint64_t)v < acc;
    if (c->op == PREMUL) v = (int64_t)((uint64_t)v * (uint64_t)premul_factor(c));
    if (r == 0)
      acc = (uint64_t)v;
    else if (c->op == ncclProd)
      acc *= (uint64_t)v;
    else if (c->op == ncclMax)
      acc = less ? acc : (uint64_t)v;
    else if (c->op == ncclMin)
      acc = less ? (uint64_t)v : acc;
    else
      acc += (uint64_t)v;
  }
  int shift = 64 - formats[c->type].bytes * 8;
  int64_t sum = formats[c->type].is_signed ? (int64_t)(acc << shift) >> shift : (int64_t)(acc << shift >> shift);
  if (c->op != ncclAvg) return sum;
  return formats[c->type].is_signed ? sum / c->nranks : (int64_t)((uint64_t)sum / (uint64_t)c->nranks);
}

PURE static double want_float(const struct one *c, uint64_t i, double *tolerance) {
  const struct format *f = &formats[c->type];
  double acc = 0, size = 0;
  for (int r = 0; r < c->nranks; r++) {
    double v = as_float(c->type, input(c, r, i));
    if (c->op == PREMUL) v *= premul_factor(c);
    size += fabs(v);
    if (r == 0)
      acc = v;
    else if (c->op == ncclProd)
      acc *= v;
    else if (c->op == ncclMax)
      acc = v > acc ? v : acc;
    else if (c->op == ncclMin)
      acc = v < acc ? v : acc;
    else
      acc += v;
  }
  bool exact = !c->random && (c->op != ncclAvg || (c->nranks & (c->nranks - 1)) == 0);
  if (c->op == ncclMax || c->op == ncclMin || c->nranks == 1) exact = true;
  if (c->op == ncclAvg) {
    acc /= c->nranks;
    size /= c->nranks;
  }
  if (c->op == ncclProd) size = fabs(acc);
  *tolerance = exact ? 0 : (c->nranks + 2) * (ldexp(size, -f->man) + ldexp(1, 1 - f->bias - f->man));
  return acc;
}

static void check_reduced(const struct one *c, const char *p, uint64_t i, uint64_t at) {
  if (!formats[c->type].is_float) {
    int64_t got = as_int(c->type, load(c->type, p)), want = want_int(c, i);
    ENSURE(got == want, "element %llu is %lld, expected %lld", (unsigned long long)at, (long long)got, (long long)want);
    return;
  }
  double tolerance, want = want_float(c, i, &tolerance), got = as_float(c->type, load(c->type, p));
  ENSURE(fabs(got - want) <= tolerance, "element %llu is %.17g, expected %.17g within %g", (unsigned long long)at, got,
         want, tolerance);
}

static void check_copied(const struct one *c, const char *p, int from, uint64_t i, uint64_t at) {
  ENSURE(load(c->type, p) == input(c, from, i), "element %llu is not element %llu of rank %d",
         (unsigned long long)at, (unsigned long long)i, from);
}

static void check_output(const struct one *c, const char *out) {
  uint64_t n = c->count;
  size_t es = (size_t)formats[c->type].bytes;
  uint64_t total = c->coll == ALLGATHER || c->coll == ALLTOALL || c->coll == GATHER ? n * (uint64_t)c->nranks : n;
  if ((c->coll == REDUCE || c->coll == GATHER) && c->rank != c->root) return;
  for (uint64_t i = 0; i < total; i++) {
    const char *p = out + i * es;
    switch (c->coll) {
      case ALLREDUCE:
      case REDUCE: check_reduced(c, p, i, i); break;
      case REDUCE_SCATTER: check_reduced(c, p, (uint64_t)c->rank * n + i, i); break;
      case BROADCAST:
      case BCAST: check_copied(c, p, c->root, i, i); break;
      case ALLGATHER:
      case GATHER: check_copied(c, p, (int)(i / n), i % n, i); break;
      case SENDRECV: check_copied(c, p, (c->rank + c->nranks - 1) % c->nranks, i, i); break;
      case ALLTOALL: check_copied(c, p, (int)(i / n), (uint64_t)c->rank * n + i % n, i); break;
      default: check_copied(c, p, c->root, (uint64_t)c->rank * n + i, i); break;
    }
  }
}

#define PAD 64

struct buffer {
  char *base, *data;
  size_t bytes;
};

static struct buffer buffer_make(size_t bytes, bool odd) {
  struct buffer b = {.base = malloc(bytes + 2 * PAD + 1), .bytes = bytes};
  ENSURE(b.base, "out of memory");
  b.data = b.base + PAD + (odd ? 1 : 0);
  memset(b.base, 0x5c, bytes + 2 * PAD + 1);
  return b;
}

static void buffer_free(struct buffer *b) {
  for (char *p = b->base; p < b->data; p++) ENSURE(*p == 0x5c, "written %td bytes before the buffer", b->data - p);
  for (char *p = b->data + b->bytes; p < b->base + b->bytes + 2 * PAD + 1; p++)
    ENSURE(*p == 0x5c, "written %td bytes behind the buffer", p - b->data - (ptrdiff_t)b->bytes + 1);
  free(b->base);
}

static ncclResult_t call(const struct one *c, const char *in, char *out, ncclRedOp_t op, ncclComm_t comm) {
  ncclDataType_t t = (ncclDataType_t)c->type;
  switch (c->coll) {
    case ALLREDUCE: return ncclAllReduce(in, out, c->count, t, op, comm, NULL);
    case REDUCE_SCATTER: return ncclReduceScatter(in, out, c->count, t, op, comm, NULL);
    case REDUCE: return ncclReduce(in, out, c->count, t, op, c->root, comm, NULL);
    case ALLGATHER: return ncclAllGather(in, out, c->count, t, comm, NULL);
    case BROADCAST: return ncclBroadcast(in, out, c->count, t, c->root, comm, NULL);
    case BCAST: return ncclBcast(out, c->count, t, c->root, comm, NULL);
    case ALLTOALL: return ncclAlltoAll(in, out, c->count, t, comm, NULL);
    case GATHER: return ncclGather(in, out, c->count, t, c->root, comm, NULL);
    case SCATTER: return ncclScatter(in, out, c->count, t, c->root, comm, NULL);
    default: break;
  }
  ENSURE_INT(ncclGroupStart(), 0);
  ENSURE_INT(ncclSend(in, c->count, t, (c->rank + 1) % c->nranks, comm, NULL), 0);
  ENSURE_INT(ncclRecv(out, c->count, t, (c->rank + c->nranks - 1) % c->nranks, comm, NULL), 0);
  return ncclGroupEnd();
}

/* Where NCCL allows one buffer for both. */
static bool can_be_in_place(enum coll coll) { return coll != SENDRECV && coll != ALLTOALL; }

static void run_one(const struct one *c, ncclComm_t comm) {
  size_t es = (size_t)formats[c->type].bytes, one = c->count * es, all = one * (size_t)c->nranks;
  bool blocks_in = c->coll == REDUCE_SCATTER || c->coll == ALLTOALL || c->coll == SCATTER;
  bool blocks_out = c->coll == ALLGATHER || c->coll == ALLTOALL || c->coll == GATHER;
  bool in_place = (c->in_place && can_be_in_place(c->coll)) || c->coll == BCAST;
  uint64_t nin = c->count * (blocks_in ? (uint64_t)c->nranks : 1);
  struct buffer a = buffer_make(blocks_in || (in_place && blocks_out) ? all : one, c->odd);
  struct buffer b = buffer_make(in_place ? 0 : blocks_out ? all : one, c->odd);
  char *in = a.data, *out = in_place ? a.data : b.data;
  if (in_place && blocks_out) in += one * (size_t)c->rank;
  if (in_place && blocks_in) out += one * (size_t)c->rank;
  for (uint64_t i = 0; i < nin; i++) store(c->type, input(c, c->rank, i), in + i * es);
  ncclRedOp_t op = (ncclRedOp_t)c->op;
  char factor[8];
  if (c->op == PREMUL) {
    store(c->type, small(c->type, premul_factor(c)), factor);
    ENSURE_INT(ncclRedOpCreatePreMulSum(&op, factor, (ncclDataType_t)c->type,
                                        c->seed % 2 ? ncclScalarDevice : ncclScalarHostImmediate, comm),
               0);
  }
  ENSURE_INT(call(c, in, out, op, comm), 0);
  ENSURE(railCommWait(comm) == ncclSuccess, "%s", ncclGetLastError(comm));
  if (c->op == PREMUL) ENSURE_INT(ncclRedOpDestroy(op, comm), 0);
  check_output(c, out);
  for (uint64_t i = 0; !in_place && i < nin; i++)
    check_copied(c, in + i * es, c->rank, i, i); /* the input is as it was */
  buffer_free(&a);
  buffer_free(&b);
}

/* ---- one process: all cases of a configuration ---- */

struct plan {
  uint64_t seed;
  int stride;
  size_t biggest;
  bool all;
  const char *transports;
};

struct attempt {
  const struct one *c;
  ncclComm_t comm;
};
static void attempt(void *arg) {
  struct attempt *a = arg;
  run_one(a->c, a->comm);
}

static void try_one(const struct one *c, ncclComm_t comm) {
  char why[400];
  struct attempt a = {c, comm};
  if (kit_catch(attempt, &a, why, sizeof why)) return;
  ENSURE(false, "%s %s %s, count %zu, root %d%s%s%s, seed %llu: %s", coll_names[c->coll], formats[c->type].name,
         c->coll <= REDUCE ? op_names[c->op] : "", c->count, c->root, c->in_place ? ", in place" : "",
         c->odd ? ", odd address" : "", c->random ? ", random" : "", (unsigned long long)c->seed, why);
}

static void body(const struct rank *rank, void *arg) {
  const struct plan *plan = arg;
  ncclUniqueId id;
  ncclComm_t comm = NULL;
  if (rank->rank == 0) ENSURE_INT(ncclGetUniqueId(&id), 0);
  rank_broadcast(rank, 0, &id, sizeof id);
  ENSURE(ncclCommInitRank(&comm, rank->nranks, id, rank->rank) == ncclSuccess, "%s", ncclGetLastError(NULL));
  size_t n = (size_t)rank->nranks;
  const size_t sizes[] = {0, 1, 2, 3, 5, n - 1, n, n + 1, 64, 1000, 65537, 1 << 20};
  uint64_t number = plan->seed;
  for (int coll = 0; coll < NCOLLS; coll++)
    for (int s = 0; s < 12; s++) {
      if (sizes[s] > plan->biggest) continue;
      /* Small sizes meet every type with every operator; for the large ones a few must do. */
      int pairs = coll <= REDUCE ? ncclNumTypes * NOPS : ncclNumTypes, step = plan->stride;
      if (sizes[s] > 10000) step = plan->all ? 7 : sizes[s] > 100000 || kit_sanitized() ? pairs : pairs / 2;
      for (int k = (int)(number % (uint64_t)step) % pairs; k < pairs; k += step) {
        uint64_t h = mix(number++);
        struct one c = {.coll = (enum coll)coll,
                        .type = k % ncclNumTypes,
                        .op = coll <= REDUCE ? k / ncclNumTypes : 0,
                        .root = (int)(h % n),
                        .count = sizes[s],
                        .in_place = h >> 20 & 1,
                        .odd = h >> 21 & 1,
                        .random = h >> 22 & 1,
                        .seed = number,
                        .rank = rank->rank,
                        .nranks = rank->nranks};
        try_one(&c, comm);
      }
    }
  if (plan->transports && rank->nranks > 1) {
    const char *t = railCommTransports(comm);
    ENSURE(strncmp(t, plan->transports, strlen(plan->transports)) == 0, "transports are %s, expected %s", t,
           plan->transports);
  }
  ENSURE_INT(ncclCommFinalize(comm), 0);
  ENSURE_INT(ncclCommDestroy(comm), 0);
}

struct setting {
  int nranks, stride;
  size_t biggest;
  const char *env;
};

static uint64_t seed_now(void) {
  static uint64_t seed;
  struct kit_rng rng;
  if (!seed) {
    kit_rng_start(&rng);
    seed = kit_rng_next(&rng) % 1000000007;
  }
  return seed;
}

static void run_setting(const struct setting *s, const char *transport_env, const char *transports, bool all) {
  char env[512];
  snprintf(env, sizeof env, "%s %s", transport_env, s->env);
  struct plan plan = {.seed = seed_now(),
                      .stride = kit_scaled(1000) < 1000 ? s->stride * 10 : s->stride,
                      .biggest = s->biggest,
                      .all = all,
                      .transports = transports};
  if (kit_scaled(1000) < 1000 && plan.biggest > 70000) plan.biggest = 70000;
  printf("# %d ranks, %s\n", s->nranks, env);
  job_run(env, s->nranks, kit_patience_ms(120000), body, &plan);
}

/* Every protocol, channel count and driver meets every transport and each number of ranks at least once. */
static const struct setting covering[] = {
    {1, 1, 1 << 20, "NCCL_PROTO=Simple RAIL_NCHANNELS=3"},
    {2, 1, 1 << 20, "RAIL_NCHANNELS=1 NCCL_ALGO=ring,tree"},
    {2, 3, 70000, "NCCL_ALGO=allreduce:^ring NCCL_PROTO=simple;allreduce:ll;sendrecv:ll"},
    {2, 3, 70000, "NCCL_PROTO=LL RAIL_NCHANNELS=3 RAIL_PROXY=thread"},
    {3, 3, 1000, "NCCL_PROTO=Simple RAIL_NCHANNELS=3 RAIL_PROXY=inline RAIL_CHUNK=256 NCCL_BUFFSIZE=64K"},
    {3, 5, 70000, "NCCL_PROTO=LL NCCL_LL_BUFFSIZE=16K RAIL_DIRECT_MIN=0 NCCL_ALGO=ring"},
    {4, 5, 1 << 20, "NCCL_PROTO=Simple RAIL_PROXY=thread RAIL_DIRECT_MIN=0 NCCL_ALGO=^tree"},
    {4, 11, 70000, "RAIL_NCHANNELS=3 RAIL_PROXY=inline"},
    {7, 19, 70000, "NCCL_PROTO=Simple RAIL_DIRECT_MIN=1G RAIL_PROXY=inline NCCL_ALGO=ring;allreduce:tree"},
    {7, 31, 1000, "NCCL_PROTO=LL RAIL_NCHANNELS=3 RAIL_PROXY=inline NCCL_ALGO=pat;allreduce:tree"},
    {8, 31, 70000, "RAIL_PROXY=inline RAIL_DIRECT_MIN=0"},
};

static void cover(const char *transport_env, const char *transports) {
  if (!getenv("RAIL_TEST_FULL")) {
    for (size_t i = 0; i < sizeof covering / sizeof covering[0]; i++)
      run_setting(&covering[i], transport_env, covering[i].nranks > 1 ? transports : NULL, false);
    return;
  }
  static const int ranks[] = {1, 2, 3, 4, 7, 8};
  static const char *const protos[] = {"LL", "Simple", ""}, *const proxies[] = {"thread", "inline"},
                           *const direct[] = {"0", "1G"};
  for (size_t n = 0; n < 6; n++)
    for (int p = 0; p < 3; p++)
      for (int ch = 1; ch <= 3; ch += 2)
        for (int x = 0; x < 2; x++)
          for (int d = 0; d < 2; d++) {
            char env[200];
            snprintf(env, sizeof env, "NCCL_PROTO=%s RAIL_NCHANNELS=%d RAIL_PROXY=%s RAIL_DIRECT_MIN=%s", protos[p], ch,
                     proxies[x], direct[d]);
            struct setting s = {ranks[n], 1, 1 << 20, env};
            run_setting(&s, transport_env, transports, true);
          }
}

static void need_plugin(void) {
  if (!ranks_plugin()) tap_skip_case("libnccl-net-socket.so is not built");
}

TEST(shared_memory) { cover("", "SHM"); }
TEST(network) {
  need_plugin();
  cover("NCCL_SHM_DISABLE=1", "NET/RailSocket");
}
TEST(mixed) {
  need_plugin();
  cover("NCCL_HOSTID=host%h", NULL);
}

TEST_MAIN(TEST_CASE(shared_memory), TEST_CASE(network), TEST_CASE(mixed))
