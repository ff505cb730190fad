/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank: its share of every batch, gradients averaged over all ranks with
 * ncclAllReduce, the same update everywhere. What a data-parallel framework does.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "rail/railyard.h"
#include "tools/rail-train/train.h"

struct rank {
  const struct tool_rank *self;
  const struct tr_job *job;
  ncclComm_t comm;
  struct tr_params p, gradient, velocity;
  uint64_t *prints; /* fingerprints of all ranks' parameters */
  size_t *images;
};

static int failed(const struct rank *r, const char *what, ncclResult_t result) {
  fprintf(stderr, TR_NAME ": rank %d: %s: %s: %s\n", r->self->rank, what, ncclGetErrorString(result),
          ncclGetLastError(r->comm));
  return -1;
}

static int start(struct rank *r) {
  ncclUniqueId id;
  ncclResult_t result = r->self->rank == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
  if (result != ncclSuccess) return failed(r, "ncclGetUniqueId", result);
  if (tool_share_id(r->self, &id, sizeof id) != 0) {
    fprintf(stderr, TR_NAME ": rank %d got no unique id: rank 0 or the parent is gone\n", r->self->rank);
    return -1;
  }
  result = ncclCommInitRank(&r->comm, r->self->nranks, id, r->self->rank);
  return result == ncclSuccess ? 0 : failed(r, "ncclCommInitRank", result);
}

/* All ranks begin with rank 0's parameters. */
static int share_parameters(struct rank *r) {
  if (r->self->rank == 0) tr_init(&r->p, r->job->o->seed);
  ncclResult_t result = ncclBroadcast(&r->p, &r->p, TR_PARAMS, ncclFloat32, 0, r->comm, NULL);
  if (result == ncclSuccess) result = railCommWait(r->comm);
  return result == ncclSuccess ? 0 : failed(r, "ncclBroadcast", result);
}

/* The averages over all ranks, of gradient and loss together in one group. */
static int average(struct rank *r, double *loss) {
  ncclResult_t result = ncclGroupStart();
  if (result != ncclSuccess) return failed(r, "ncclGroupStart", result);
  result = ncclAllReduce(&r->gradient, &r->gradient, TR_PARAMS, ncclFloat32, ncclAvg, r->comm, NULL);
  if (result == ncclSuccess) result = ncclAllReduce(loss, loss, 1, ncclFloat64, ncclAvg, r->comm, NULL);
  ncclResult_t end = ncclGroupEnd();
  if (result == ncclSuccess) result = end;
  if (result == ncclSuccess) result = railCommWait(r->comm);
  return result == ncclSuccess ? 0 : failed(r, "ncclAllReduce", result);
}

static int train(struct rank *r) {
  const struct tr_options *o = r->job->o;
  size_t batch = (size_t)o->batch, share = batch / (size_t)r->self->nranks;
  for (int step = 0; step < o->steps; step++) {
    tr_batch(r->job->d, o->seed, (size_t)step, batch, r->images);
    const size_t *mine = r->images + share * (size_t)r->self->rank;
    double loss = tr_gradient(&r->p, r->job->d, mine, share, &r->gradient);
    if (average(r, &loss) != 0) return -1;
    tr_update(&r->p, &r->velocity, &r->gradient, o->rate, o->momentum);
    if (r->self->rank == 0) r->job->result->loss[step] = loss;
  }
  return 0;
}

static uint64_t fingerprint(const struct tr_params *p) {
  const unsigned char *at = (const unsigned char *)p;
  uint64_t hash = 0xcbf29ce484222325ull;
  for (size_t i = 0; i < sizeof *p; i++) hash = (hash ^ at[i]) * 0x100000001b3ull;
  return hash;
}

/* All ranks did the same updates, so all must hold the same bits now. */
static int compare_ranks(struct rank *r) {
  uint64_t mine = fingerprint(&r->p);
  ncclResult_t result = ncclAllGather(&mine, r->prints, 1, ncclUint64, r->comm, NULL);
  if (result == ncclSuccess) result = railCommWait(r->comm);
  if (result != ncclSuccess) return failed(r, "ncclAllGather", result);
  for (int i = 0; i < r->self->nranks; i++) {
    if (r->prints[i] == mine) continue;
    fprintf(stderr, TR_NAME ": rank %d and rank %d ended with different parameters\n", r->self->rank, i);
    return -1;
  }
  return 0;
}

static void keep_result(const struct rank *r, double seconds) {
  struct tr_result *result = r->job->result;
  const struct tr_data *d = r->job->d;
  const char *plugin = railCommNetPlugin(r->comm), *transports = railCommTransports(r->comm);
  result->nranks = r->self->nranks;
  result->seconds = seconds;
  result->ntest = d->ntest;
  result->right = tr_right(&r->p, d, d->test, d->ntest);
  snprintf(result->plugin, sizeof result->plugin, "%s", plugin ? plugin : "");
  snprintf(result->transports, sizeof result->transports, "%s", transports ? transports : "");
}

int tr_rank(const struct tool_rank *self, void *arg) {
  int status = TOOL_EXIT_FAILED;
  struct rank *r = calloc(1, sizeof *r);
  if (!r) return status;
  r->self = self;
  r->job = arg;
  r->prints = calloc((size_t)self->nranks, sizeof *r->prints);
  r->images = calloc((size_t)r->job->o->batch + r->job->d->ntrain, sizeof *r->images);
  if (!r->prints || !r->images || start(r) != 0) goto out;
  uint64_t began = rail_now_ns();
  if (share_parameters(r) != 0 || train(r) != 0 || compare_ranks(r) != 0) goto out;
  if (self->rank == 0) keep_result(r, (double)(rail_now_ns() - began) / 1e9);
  status = TOOL_EXIT_OK;
out:
  if (r->comm && status == TOOL_EXIT_OK) (void)ncclCommDestroy(r->comm);
  else if (r->comm) (void)ncclCommAbort(r->comm);
  free(r->prints);
  free(r->images);
  free(r);
  return status;
}
