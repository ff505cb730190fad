/* SPDX-License-Identifier: Apache-2.0
 * Contents: small integers, so that every type has each sum and product exactly, in whatever order they come. */
#include "kit/nccl/kit_nccl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, HALF, FLOAT, DOUBLE, BFLOAT16, F8E4M3, F8E5M2 };
enum { SUM, PROD, MAX, MIN, AVG };

const char *const kit_nccl_colls[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce",
                                      "sendrecv",   "alltoall",   "alltoallv",      NULL};
const char *const kit_nccl_types[] = {"int8", "uint8",  "int32",    "uint32", "int64",  "uint64", "half",
                                      "float", "double", "bfloat16", "f8e4m3", "f8e5m2", NULL};
const char *const kit_nccl_redops[] = {"sum", "prod", "max", "min", "avg", NULL};

size_t kit_nccl_type_size(int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[type];
}

bool kit_nccl_reduces(enum kit_nccl_coll coll) {
  return coll == KIT_NCCL_ALL_REDUCE || coll == KIT_NCCL_REDUCE_SCATTER || coll == KIT_NCCL_REDUCE;
}

bool kit_nccl_is_fp8(int type) { return type == F8E4M3 || type == F8E5M2; }

static bool exchanges_all(enum kit_nccl_coll coll) { return coll == KIT_NCCL_ALLTOALL || coll == KIT_NCCL_ALLTOALLV; }

static size_t times_ranks(const struct kit_nccl_call *c, bool all) {
  return all ? c->count * (size_t)c->ranks : c->count;
}

size_t kit_nccl_send_count(const struct kit_nccl_call *c) {
  return times_ranks(c, c->coll == KIT_NCCL_REDUCE_SCATTER || exchanges_all(c->coll));
}

size_t kit_nccl_recv_count(const struct kit_nccl_call *c) {
  return times_ranks(c, c->coll == KIT_NCCL_ALL_GATHER || exchanges_all(c->coll));
}

/* Neighbours' parts differ, so that of the messages that one receives in groups (ranks a host) some end before others,
 * now the first ones and now the last. */
long long kit_nccl_part(const struct kit_nccl_call *c, int from, int to) {
  static const int eighths[] = {8, 3, -1, 5, 0, 1, 6};
  unsigned which = ((unsigned)from + 2 * (unsigned)to + c->round) % (sizeof eighths / sizeof *eighths);
  if (c->coll != KIT_NCCL_ALLTOALLV) return (long long)c->count;
  return eighths[which] < 0 ? -1 : (long long)c->count * eighths[which] / 8;
}

/* What one rank says to another in the exchanges; -1 as above. */
static long long exchanged(const struct kit_nccl_call *c, int from, int to) {
  if (c->coll == KIT_NCCL_SENDRECV && to != (from + 1) % c->ranks) return -1;
  return kit_nccl_part(c, from, to);
}

/* The least by any algorithm. An all-reduce is a reduce and a broadcast; in the others each host needs what another one
 * has of each rank, or each rank's result needs a part from each other host. */
uint64_t kit_nccl_between_hosts(const struct kit_nccl_call *c, int ranks_per_host) {
  uint64_t others = (uint64_t)(c->ranks / ranks_per_host - 1), elements = 0;
  switch (c->coll) {
    case KIT_NCCL_ALL_REDUCE: elements = 2 * others * c->count; break;
    case KIT_NCCL_ALL_GATHER:
    case KIT_NCCL_REDUCE_SCATTER: elements = (uint64_t)c->ranks * others * c->count; break;
    case KIT_NCCL_BROADCAST:
    case KIT_NCCL_REDUCE: elements = others * c->count; break;
    default:
      for (int from = 0; from < c->ranks; from++)
        for (int to = 0; to < c->ranks; to++) {
          long long part = from / ranks_per_host == to / ranks_per_host ? 0 : exchanged(c, from, to);
          elements += part > 0 ? (uint64_t)part : 0;
        }
  }
  return elements * kit_nccl_type_size(c->type);
}

long long kit_nccl_in_place(const struct kit_nccl_call *c) {
  switch (c->coll) {
    case KIT_NCCL_SENDRECV:
    case KIT_NCCL_ALLTOALL:
    case KIT_NCCL_ALLTOALLV: return -1;
    case KIT_NCCL_ALL_GATHER:
    case KIT_NCCL_REDUCE_SCATTER: return (long long)c->count * c->rank;
    default: return 0;
  }
}

/* ---- numbers ---- */

/* What a rank sends at a place: 0 to 2, of which 8 ranks' sum is 16 at most; 0 or 1 for f8e5m2, which has no 9, 11, 13
 * nor 15; for products 1 or 2. */
static int number_at(const struct kit_nccl_call *c, int rank, size_t i) {
  uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 40503u + c->round * 97u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  if (!kit_nccl_reduces(c->coll) && kit_nccl_type_size(c->type) > 1) return (int)(x % 127);
  if (kit_nccl_reduces(c->coll) && c->redop == PROD) return 1 + (int)(x % 64 == 0);
  return (int)(x % (c->type == F8E5M2 ? 2 : 3));
}

static double result_at(const struct kit_nccl_call *c, size_t i) {
  double result = 0;
  for (int r = 0; r < c->ranks; r++) {
    double x = number_at(c, r, i);
    if (r == 0) result = x;
    else if (c->redop == PROD) result *= x;
    else if (c->redop == MAX) result = x > result ? x : result;
    else if (c->redop == MIN) result = x < result ? x : result;
    else result += x;
  }
  if (c->redop != AVG) return result;
  return c->type <= UINT64 ? floor(result / c->ranks) : result / c->ranks;
}

/* The average of a power of two ranks is a number of each type; so is each summand's part, which is what NCCL sums. */
bool kit_nccl_exact(const struct kit_nccl_call *c) {
  bool floats = c->type > UINT64;
  return !kit_nccl_reduces(c->coll) || c->redop != AVG || !floats || (c->ranks & (c->ranks - 1)) == 0;
}

/* A float with so many bits of exponent and mantissa; x has no more than these. */
static uint32_t encode(double x, int exponent, int mantissa) {
  int e;
  if (x == 0) return 0;
  double m = frexp(x, &e); /* 0.5 to 1 */
  uint32_t bits = (uint32_t)(ldexp(m, mantissa + 1)) - (1u << mantissa);
  return (uint32_t)(e - 1 + (1 << (exponent - 1)) - 1) << mantissa | bits;
}

static void put(int type, void *to, size_t i, double x) {
  switch (type) {
    case INT8:
    case UINT8: ((uint8_t *)to)[i] = (uint8_t)(int64_t)x; break;
    case INT32:
    case UINT32: ((uint32_t *)to)[i] = (uint32_t)(int64_t)x; break;
    case INT64:
    case UINT64: ((uint64_t *)to)[i] = (uint64_t)(int64_t)x; break;
    case HALF: ((uint16_t *)to)[i] = (uint16_t)encode(x, 5, 10); break;
    case FLOAT: ((float *)to)[i] = (float)x; break;
    case DOUBLE: ((double *)to)[i] = x; break;
    case BFLOAT16: ((uint16_t *)to)[i] = (uint16_t)encode(x, 8, 7); break;
    case F8E4M3: ((uint8_t *)to)[i] = (uint8_t)encode(x, 4, 3); break;
    default: ((uint8_t *)to)[i] = (uint8_t)encode(x, 5, 2); break;
  }
}

void kit_nccl_fill(const struct kit_nccl_call *c, void *send) {
  size_t n = kit_nccl_send_count(c);
  for (size_t i = 0; i < n; i++) put(c->type, send, i, number_at(c, c->rank, i));
}

/* What element i of this rank's receive buffer must be. */
static double expected_at(const struct kit_nccl_call *c, size_t i) {
  int before = (c->rank + c->ranks - 1) % c->ranks, from = (int)(c->count ? i / c->count : 0);
  switch (c->coll) {
    case KIT_NCCL_ALL_GATHER: return number_at(c, from, i % c->count);
    case KIT_NCCL_ALLTOALL:
    case KIT_NCCL_ALLTOALLV: return number_at(c, from, (size_t)c->rank * c->count + i % c->count);
    case KIT_NCCL_BROADCAST: return number_at(c, c->root, i);
    case KIT_NCCL_SENDRECV: return number_at(c, before, i);
    case KIT_NCCL_REDUCE_SCATTER: return result_at(c, (size_t)c->rank * c->count + i);
    default: return result_at(c, i);
  }
}

/* Does the call leave element i of the receive buffer as it was? */
static bool is_untouched(const struct kit_nccl_call *c, size_t i) {
  return c->coll == KIT_NCCL_ALLTOALLV && (long long)(i % c->count) >= kit_nccl_part(c, (int)(i / c->count), c->rank);
}

size_t kit_nccl_verify(const struct kit_nccl_call *c, const void *recv, char *first, size_t size) {
  size_t n = kit_nccl_recv_count(c), wrong = 0, each = kit_nccl_type_size(c->type);
  if (c->coll == KIT_NCCL_REDUCE && c->rank != c->root) return 0;
  for (size_t i = 0; i < n; i++) {
    unsigned char wanted[8] = {0}, got[8] = {0};
    if (is_untouched(c, i)) memset(wanted, KIT_NCCL_UNTOUCHED, each);
    else put(c->type, wanted, 0, expected_at(c, i));
    memcpy(got, (const char *)recv + i * each, each);
    if (memcmp(wanted, got, each) == 0) continue;
    if (wrong++) continue;
    uint64_t w, g;
    memcpy(&w, wanted, sizeof w);
    memcpy(&g, got, sizeof g);
    snprintf(first, size, "element %zu is %#llx, expected %#llx", i, (unsigned long long)g, (unsigned long long)w);
  }
  return wrong;
}
