/* SPDX-License-Identifier: Apache-2.0
 *
 * One row a collective: how much each rank gives and gets, what is called, where
 * received data must come from. Sizes, in-place layout and bus bandwidth follow
 * nccl-tests. Where blocks of one size per rank make up the data, the count is the
 * size divided by the ranks, rounded down.
 */
#include <string.h>

#include "tools/rail-coll/coll.h"

/* ---- shapes ---- */

static void shape_same(const struct rc_case *c, int rank, size_t total, struct rc_shape *s) {
  (void)c, (void)rank;
  *s = (struct rc_shape){.count = total, .send = total, .recv = total};
}

static void shape_reduce(const struct rc_case *c, int rank, size_t total, struct rc_shape *s) {
  shape_same(c, rank, total, s);
  if (rank != c->root) s->recv = 0;
}

static void shape_broadcast(const struct rc_case *c, int rank, size_t total, struct rc_shape *s) {
  shape_same(c, rank, total, s);
  if (rank != c->root) s->send = 0;
}

static void shape_all_gather(const struct rc_case *c, int rank, size_t total, struct rc_shape *s) {
  size_t n = (size_t)c->nranks, each = total / n;
  *s = (struct rc_shape){.count = each, .send = each, .recv = each * n, .in_send = each * (size_t)rank};
}

static void shape_reduce_scatter(const struct rc_case *c, int rank, size_t total, struct rc_shape *s) {
  size_t n = (size_t)c->nranks, each = total / n;
  *s = (struct rc_shape){.count = each, .send = each * n, .recv = each, .in_recv = each * (size_t)rank};
}

static void shape_alltoall(const struct rc_case *c, int rank, size_t total, struct rc_shape *s) {
  size_t n = (size_t)c->nranks, each = total / n;
  (void)rank;
  *s = (struct rc_shape){.count = each, .send = each * n, .recv = each * n};
}

static void shape_gather(const struct rc_case *c, int rank, size_t total, struct rc_shape *s) {
  shape_all_gather(c, rank, total, s);
  if (rank != c->root) s->recv = 0;
}

static void shape_scatter(const struct rc_case *c, int rank, size_t total, struct rc_shape *s) {
  shape_reduce_scatter(c, rank, total, s);
  if (rank != c->root) s->send = 0;
}

/* ---- calls ---- */

static ncclResult_t issue_all_reduce(const struct rc_call *a) {
  return ncclAllReduce(a->send, a->recv, a->count, a->type, a->op, a->comm, a->stream);
}
static ncclResult_t issue_reduce(const struct rc_call *a) {
  return ncclReduce(a->send, a->recv, a->count, a->type, a->op, a->root, a->comm, a->stream);
}
static ncclResult_t issue_broadcast(const struct rc_call *a) {
  return ncclBroadcast(a->send, a->recv, a->count, a->type, a->root, a->comm, a->stream);
}
static ncclResult_t issue_all_gather(const struct rc_call *a) {
  return ncclAllGather(a->send, a->recv, a->count, a->type, a->comm, a->stream);
}
static ncclResult_t issue_reduce_scatter(const struct rc_call *a) {
  return ncclReduceScatter(a->send, a->recv, a->count, a->type, a->op, a->comm, a->stream);
}
static ncclResult_t issue_alltoall(const struct rc_call *a) {
  return ncclAlltoAll(a->send, a->recv, a->count, a->type, a->comm, a->stream);
}
static ncclResult_t issue_gather(const struct rc_call *a) {
  return ncclGather(a->send, a->recv, a->count, a->type, a->root, a->comm, a->stream);
}
static ncclResult_t issue_scatter(const struct rc_call *a) {
  return ncclScatter(a->send, a->recv, a->count, a->type, a->root, a->comm, a->stream);
}

/* To the next rank, from the one before: a ring of point-to-point messages. */
static ncclResult_t issue_sendrecv(const struct rc_call *a) {
  int next = (a->rank + 1) % a->nranks, previous = (a->rank + a->nranks - 1) % a->nranks;
  ncclResult_t result = ncclGroupStart();
  if (result != ncclSuccess) return result;
  result = ncclSend(a->send, a->count, a->type, next, a->comm, a->stream);
  if (result == ncclSuccess) result = ncclRecv(a->recv, a->count, a->type, previous, a->comm, a->stream);
  ncclResult_t end = ncclGroupEnd();
  return result != ncclSuccess ? result : end;
}

/* ---- where received blocks come from ---- */

static int one_block(const struct rc_case *c) { return (void)c, 1; }
static int block_a_rank(const struct rc_case *c) { return c->nranks; }

static void from_root(const struct rc_case *c, int rank, int block, size_t count, int *from, size_t *first) {
  (void)rank, (void)block, (void)count;
  *from = c->root, *first = 0;
}
static void from_root_mine(const struct rc_case *c, int rank, int block, size_t count, int *from, size_t *first) {
  (void)block;
  *from = c->root, *first = count * (size_t)rank;
}
static void from_each(const struct rc_case *c, int rank, int block, size_t count, int *from, size_t *first) {
  (void)c, (void)rank, (void)count;
  *from = block, *first = 0;
}
static void from_each_mine(const struct rc_case *c, int rank, int block, size_t count, int *from, size_t *first) {
  (void)c;
  *from = block, *first = count * (size_t)rank;
}
static void from_previous(const struct rc_case *c, int rank, int block, size_t count, int *from, size_t *first) {
  (void)block, (void)count;
  *from = (rank + c->nranks - 1) % c->nranks, *first = 0;
}

/* ---- bus bandwidth: of n, how many parts cross the slowest link ---- */

static int all_parts(int n) { return n; }
static int others(int n) { return n - 1; }
static int others_twice(int n) { return 2 * (n - 1); }

static const struct rc_collective table[] = {
    {.name = "all_reduce", .what = "every rank gets the reduction of all inputs", .reduces = true, .in_place = true,
     .shape = shape_same, .issue = issue_all_reduce, .steps = others_twice},
    {.name = "all_gather", .what = "every rank gets the inputs of all", .in_place = true, .scaled = true,
     .shape = shape_all_gather, .issue = issue_all_gather, .blocks = block_a_rank, .source = from_each,
     .steps = others},
    {.name = "reduce_scatter", .what = "every rank gets its part of the reduction", .reduces = true, .in_place = true,
     .scaled = true, .shape = shape_reduce_scatter, .issue = issue_reduce_scatter, .steps = others},
    {.name = "broadcast", .what = "every rank gets the root's input", .has_root = true, .in_place = true,
     .shape = shape_broadcast, .issue = issue_broadcast, .blocks = one_block, .source = from_root, .steps = all_parts},
    {.name = "reduce", .what = "the root gets the reduction of all inputs", .has_root = true, .reduces = true,
     .in_place = true, .shape = shape_reduce, .issue = issue_reduce, .steps = all_parts},
    {.name = "sendrecv", .what = "every rank sends to the next, receives from the previous",
     .shape = shape_same, .issue = issue_sendrecv, .blocks = one_block, .source = from_previous, .steps = all_parts},
    {.name = "alltoall", .what = "every rank gets its part of each input", .scaled = true, .shape = shape_alltoall,
     .issue = issue_alltoall, .blocks = block_a_rank, .source = from_each_mine, .steps = others},
    {.name = "gather", .what = "the root gets the inputs of all", .has_root = true, .in_place = true, .scaled = true,
     .shape = shape_gather, .issue = issue_gather, .blocks = block_a_rank, .source = from_each, .steps = others},
    {.name = "scatter", .what = "every rank gets its part of the root's input", .has_root = true, .in_place = true,
     .scaled = true, .shape = shape_scatter, .issue = issue_scatter, .blocks = one_block, .source = from_root_mine,
     .steps = others},
};

const struct rc_collective *rc_collective_at(size_t i) {
  return i < sizeof table / sizeof table[0] ? &table[i] : NULL;
}

const struct rc_collective *rc_collective_find(const char *name) {
  const struct rc_collective *c;
  for (size_t i = 0; (c = rc_collective_at(i)) != NULL; i++)
    if (strcmp(c->name, name) == 0) return c;
  return NULL;
}

double rc_bus_factor(const struct rc_collective *collective, int nranks) {
  return (double)collective->steps(nranks) / nranks;
}
