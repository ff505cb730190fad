/* SPDX-License-Identifier: Apache-2.0 */
#include "core/comm/rt_split.h"

#include <stdlib.h>

struct split_vote {
  int32_t color, key, rank, pad;
};

static int by_key(const void *a, const void *b) {
  const struct split_vote *x = a, *y = b;
  if (x->key != y->key) return x->key < y->key ? -1 : 1;
  return x->rank < y->rank ? -1 : x->rank > y->rank;
}

rail_result_t rt_split_vote(const struct rt_init_args *args, int **ranks, int *rank, int *nranks) {
  struct ncclComm *parent = args->parent;
  struct split_vote *votes = calloc((size_t)parent->nranks, sizeof *votes);
  *ranks = calloc((size_t)parent->nranks, sizeof **ranks);
  *rank = *nranks = 0;
  rail_result_t r = votes && *ranks ? RAIL_OK : RAIL_SYSTEM_ERROR;
  if (r == RAIL_OK) {
    votes[parent->rank] = (struct split_vote){.color = args->color, .key = args->key, .rank = parent->rank};
    r = rt_bootstrap_allgather(parent->bootstrap, votes, sizeof *votes);
  }
  if (r == RAIL_OK && args->color != NCCL_SPLIT_NOCOLOR) {
    int n = 0;
    for (int i = 0; i < parent->nranks; i++)
      if (votes[i].color == args->color) votes[n++] = votes[i];
    qsort(votes, (size_t)n, sizeof *votes, by_key);
    for (int i = 0; i < n; i++) {
      (*ranks)[i] = votes[i].rank;
      if (votes[i].rank == parent->rank) *rank = i;
    }
    *nranks = n;
  }
  free(votes);
  return r;
}
