/* SPDX-License-Identifier: Apache-2.0
 *
 * One worker's way through types, operators, roots and sizes: each is checked
 * with fresh data first, then timed. All workers of all processes do the same in the same
 * order; after each run they exchange what they found.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "tools/rail-coll/coll.h"

struct finding { /* one rank's, of one run */
  double us;
  uint64_t wrong, outside;
};

struct run {
  struct rc_worker *w;
  const struct rc_options *o;
  struct rc_case c;
  size_t total; /* elements of the size under test */
  bool in_place;
  struct finding *findings; /* of the worker's ranks */
};

/* Where this rank's data lies in this run. */
struct view {
  struct rc_shape shape;
  char *send, *recv;
  size_t size; /* of an element */
};

static struct view view_of(const struct run *r, const struct rc_rank *rank) {
  struct view v = {.size = rc_type(r->c.type)->size};
  r->o->collective->shape(&r->c, rank->rank, r->total, &v.shape);
  v.send = r->in_place ? rank->recv.data + v.shape.in_send * v.size : rank->send.data;
  v.recv = rank->recv.data + (r->in_place ? v.shape.in_recv * v.size : 0);
  return v;
}

/* What a call gets for a place in the buffer that it sends from. */
static char *user_of(const struct run *r, const struct rc_rank *rank, const char *send) {
  const struct rc_buffer *b = r->in_place ? &rank->recv : &rank->send;
  return b->user + (send - b->data);
}

/* ---- one operation ---- */

static int issue(struct run *r, int times) {
  struct rc_worker *w = r->w;
  const char *what = r->o->collective->name;
  bool group = w->n > 1 || times > 1;
  ncclResult_t result = group ? ncclGroupStart() : ncclSuccess;
  if (result != ncclSuccess) return rc_failed(w, &w->ranks[0], what, result);
  for (int t = 0; t < times; t++) {
    for (int i = 0; i < w->n; i++) {
      struct rc_rank *rank = &w->ranks[i];
      struct view v = view_of(r, rank);
      struct rc_call call = {.send = user_of(r, rank, v.send), .recv = rank->recv.user + (v.recv - rank->recv.data),
                             .stream = rank->gpu.stream, .count = v.shape.count, .type = (ncclDataType_t)r->c.type,
                             .op = rank->op, .root = r->c.root, .rank = rank->rank, .nranks = r->c.nranks,
                             .comm = rank->c};
      /* The watchdog may have ended it; then it must not be used. */
      if (!atomic_load(&rank->comm)) return rc_failed(w, rank, what, ncclRemoteError);
      result = r->o->collective->issue(&call);
      if (result != ncclSuccess) return rc_failed(w, rank, what, result);
    }
  }
  if (group && (result = ncclGroupEnd()) != ncclSuccess) return rc_failed(w, &w->ranks[0], what, result);
  return 0;
}

/* ---- graphs ---- */

/* So many iterations as a graph of each rank. */
static int capture(struct run *r, int iters, int aggregate) {
  static const char what[] = "capturing the iterations";
  int cuda;
  for (int i = 0; i < r->w->n; i++)
    if ((cuda = rc_gpu_capture_begin(&r->w->ranks[i].gpu)) != 0)
      return rc_gpu_failed(r->w, &r->w->ranks[i], what, cuda);
  for (int i = 0; i < iters; i++)
    if (issue(r, aggregate) != 0) return -1;
  for (int i = 0; i < r->w->n; i++)
    if ((cuda = rc_gpu_capture_end(&r->w->ranks[i].gpu)) != 0)
      return rc_gpu_failed(r->w, &r->w->ranks[i], what, cuda);
  return 0;
}

static int launch_graphs(struct run *r, int times) {
  for (int t = 0; t < times; t++)
    for (int i = 0; i < r->w->n; i++) {
      int cuda = rc_gpu_launch_graph(&r->w->ranks[i].gpu);
      if (cuda != 0) return rc_gpu_failed(r->w, &r->w->ranks[i], "launching the graph", cuda);
    }
  return 0;
}

/* What is checked is done in the way that is timed. Making a graph may wait for kernels, and those for ranks that have
 * not made theirs: hence the barrier. */
static int issue_once(struct run *r) {
  if (r->o->graphs == 0) return issue(r, 1);
  if (capture(r, 1, 1) != 0 || !rc_exchange(r->w, r->findings, sizeof *r->findings)) return -1;
  return launch_graphs(r, 1);
}

/* ---- checking ---- */

static int prepare(const struct run *r, struct rc_rank *rank) {
  struct view v = view_of(r, rank);
  size_t used = r->total * v.size;
  rc_poison(rank->recv.data - RC_GUARD, used + 2 * RC_GUARD);
  if (!r->in_place) rc_poison(rank->send.data - RC_GUARD, used + 2 * RC_GUARD);
  rc_fill(&r->c, rank->rank, 0, v.send, v.shape.send);
  if (rc_buffer_push(r->w, rank, &rank->recv, used) != 0) return -1;
  return r->in_place ? 0 : rc_buffer_push(r->w, rank, &rank->send, used);
}

static int prepare_all(const struct run *r) {
  for (int i = 0; i < r->w->n; i++)
    if (prepare(r, &r->w->ranks[i]) != 0) return -1;
  return 0;
}

static size_t check_received(const struct run *r, const struct rc_rank *rank, const struct view *v) {
  const struct rc_collective *coll = r->o->collective;
  size_t wrong = 0;
  if (v->shape.recv == 0) return 0;
  if (coll->reduces) {
    bool scattered = v->shape.recv < v->shape.send; /* its part of the result, else all of it */
    return rc_check_reduced(&r->c, scattered ? v->shape.count * (size_t)rank->rank : 0, v->recv, v->shape.recv);
  }
  int blocks = coll->blocks(&r->c);
  size_t each = v->shape.recv / (size_t)blocks;
  for (int b = 0; b < blocks; b++) {
    int from;
    size_t first;
    coll->source(&r->c, rank->rank, b, v->shape.count, &from, &first);
    wrong += rc_check_copy(&r->c, from, first, v->recv + (size_t)b * each * v->size, each);
  }
  return wrong;
}

static struct finding check(const struct run *r, const struct rc_rank *rank) {
  struct view v = view_of(r, rank);
  size_t used = r->total * v.size;
  const char *end = rank->recv.data + used;
  struct finding f = {.wrong = check_received(r, rank, &v)};
  f.outside = rc_check_poison(rank->recv.data - RC_GUARD, RC_GUARD) + rc_check_poison(end, RC_GUARD);
  if (r->in_place) return f;
  /* Out of place nothing but the result may be written, least of all the input. */
  const char *after = v.recv + v.shape.recv * v.size, *sent = v.send + v.shape.send * v.size;
  f.outside += rc_check_poison(after, (size_t)(end - after));
  f.outside += rc_check_poison(v.send - RC_GUARD, RC_GUARD);
  f.outside += rc_check_poison(sent, (size_t)(v.send + used + RC_GUARD - sent));
  f.wrong += rc_check_copy(&r->c, rank->rank, 0, v.send, v.shape.send);
  return f;
}

static int bring_back(const struct run *r, const struct rc_rank *rank) {
  size_t used = r->total * rc_type(r->c.type)->size;
  if (rc_buffer_pull(r->w, rank, &rank->recv, used) != 0) return -1;
  return r->in_place ? 0 : rc_buffer_pull(r->w, rank, &rank->send, used);
}

static int run_checks(struct run *r) {
  uint64_t seed = r->c.seed;
  for (int k = 0; k < r->o->checks; k++) {
    r->c.seed = seed + (uint64_t)k;
    if (prepare_all(r) != 0 || issue_once(r) != 0 || rc_wait(r->w, r->o->collective->name) != 0) return -1;
    for (int i = 0; i < r->w->n; i++) {
      if (bring_back(r, &r->w->ranks[i]) != 0) return -1;
      struct finding f = check(r, &r->w->ranks[i]);
      r->findings[i].wrong += f.wrong;
      r->findings[i].outside += f.outside;
      r->w->bad_elements += f.wrong + f.outside;
    }
  }
  r->c.seed = seed;
  return 0;
}

/* ---- timing ---- */

static int repeat(struct run *r, int times) {
  for (int i = 0; i < times; i++) {
    if (issue(r, r->o->aggregate) != 0) return -1;
    if (r->o->blocking && rc_wait(r->w, r->o->collective->name) != 0) return -1;
  }
  return 0;
}

static int run_timing(struct run *r) {
  const char *what = r->o->collective->name;
  if (r->o->iters == 0) return 0;
  if (prepare_all(r) != 0 || repeat(r, r->o->warmup) != 0 || rc_wait(r->w, what) != 0) return -1;
  if (r->o->graphs > 0 && capture(r, r->o->iters, r->o->aggregate) != 0) return -1;
  if (!rc_exchange(r->w, r->findings, sizeof *r->findings)) return -1; /* the barrier */
  uint64_t start = rail_now_ns();
  int status = r->o->graphs > 0 ? launch_graphs(r, r->o->graphs) : repeat(r, r->o->iters);
  if (status != 0 || rc_wait(r->w, what) != 0) return -1;
  int launches = r->o->graphs > 0 ? r->o->graphs : 1;
  double us = (double)(rail_now_ns() - start) / 1e3 / launches / r->o->iters / r->o->aggregate;
  for (int i = 0; i < r->w->n; i++) r->findings[i].us = us;
  return 0;
}

static double shown_time(const struct finding *all, int n, enum rc_average average) {
  double least = all[0].us, greatest = all[0].us, sum = 0;
  for (int i = 0; i < n; i++) {
    sum += all[i].us;
    if (all[i].us < least) least = all[i].us;
    if (all[i].us > greatest) greatest = all[i].us;
  }
  switch (average) {
    case RC_TIME_RANK0: return all[0].us;
    case RC_TIME_AVG: return sum / n;
    case RC_TIME_MIN: return least;
    default: return greatest;
  }
}

static int run_side(struct run *r, const struct rc_row *row, struct rc_side *side) {
  int n = r->c.nranks;
  *side = (struct rc_side){.ran = true, .checked = r->o->checks > 0};
  side->supported = !r->in_place || r->o->collective->in_place;
  if (!side->supported) return 0;
  memset(r->findings, 0, (size_t)r->w->n * sizeof *r->findings);
  if (run_checks(r) != 0 || run_timing(r) != 0) return -1;
  const struct finding *all = (const void *)rc_exchange(r->w, r->findings, sizeof *r->findings);
  if (!all) return -1;
  side->us = shown_time(all, n, r->o->average);
  side->algbw = side->us > 0 ? (double)row->bytes / 1e3 / side->us : 0;
  side->busbw = side->algbw * rc_bus_factor(r->o->collective, n);
  for (int i = 0; i < n; i++) {
    side->wrong += all[i].wrong;
    side->outside += all[i].outside;
  }
  return 0;
}

/* ---- the loops ---- */

static int run_size(struct run *r, uint64_t bytes) {
  const struct rc_type *type = rc_type(r->c.type);
  struct rc_shape shape;
  r->total = bytes / type->size;
  r->o->collective->shape(&r->c, 0, r->total, &shape);
  struct rc_row row = {.count = shape.count, .type = type->name, .op = rc_op_name(r->c.op),
                       .root = r->o->collective->has_root ? r->c.root : -1};
  row.bytes = shape.count * type->size * (r->o->collective->scaled ? (size_t)r->c.nranks : 1);
  r->in_place = false;
  if (r->o->out_of_place && run_side(r, &row, &row.out) != 0) return -1;
  r->in_place = true;
  if (r->o->in_place && run_side(r, &row, &row.in) != 0) return -1;
  if (!r->w->prints || rc_report_row(r->w->process->report, &row) == 0) return 0;
  return -1;
}

static int run_sizes(struct run *r) {
  const struct rc_options *o = r->o;
  for (uint64_t bytes = o->min_bytes; bytes <= o->max_bytes;) {
    if (run_size(r, bytes) != 0) return -1;
    bytes = o->step_bytes ? bytes + o->step_bytes : bytes * o->step_factor;
    if (bytes == 0) break;
  }
  return 0;
}

static int run_roots(struct run *r) {
  bool all = r->o->collective->has_root && r->o->root < 0;
  int first = all || !r->o->collective->has_root ? 0 : r->o->root, last = all ? r->c.nranks - 1 : first;
  for (r->c.root = first; r->c.root <= last; r->c.root++)
    if (run_sizes(r) != 0) return -1;
  return 0;
}

static void drop_ops(struct run *r, int n) {
  for (int i = 0; i < n; i++)
    if (atomic_load(&r->w->ranks[i].comm)) (void)ncclRedOpDestroy(r->w->ranks[i].op, r->w->ranks[i].c);
}

static int run_op(struct run *r) {
  struct rc_worker *w = r->w;
  for (int i = 0; i < w->n; i++) {
    struct rc_rank *rank = &w->ranks[i];
    char scalar[8];
    rank->op = (ncclRedOp_t)(r->c.op < 0 ? 0 : r->c.op);
    if (r->c.op != RC_OP_MULSUM) continue;
    rc_mulsum_scalar(r->c.type, rank->rank, scalar);
    ncclResult_t result = ncclRedOpCreatePreMulSum(&rank->op, scalar, (ncclDataType_t)r->c.type,
                                                   ncclScalarHostImmediate, rank->c);
    if (result == ncclSuccess) continue;
    drop_ops(r, i);
    return rc_failed(w, rank, "ncclRedOpCreatePreMulSum", result);
  }
  int status = run_roots(r);
  if (r->c.op == RC_OP_MULSUM) drop_ops(r, w->n);
  return status;
}

int rc_bench(struct rc_worker *w) {
  const struct rc_options *o = w->process->o;
  struct run r = {.w = w, .o = o, .c = {.nranks = w->process->nranks, .data = o->data, .seed = o->seed}};
  int status = -1;
  r.findings = calloc((size_t)w->n, sizeof *r.findings);
  if (!r.findings) return -1;
  atomic_store(&w->process->doing, o->collective->name);
  for (r.c.type = 0; r.c.type < ncclNumTypes; r.c.type++) {
    if (!o->types[r.c.type]) continue;
    if (!o->collective->reduces) {
      r.c.op = -1;
      if (run_op(&r) != 0) goto out;
      continue;
    }
    for (r.c.op = 0; r.c.op < RC_OP_COUNT; r.c.op++)
      if (o->ops[r.c.op] && run_op(&r) != 0) goto out;
  }
  status = 0;
out:
  free(r.findings);
  return status;
}
