/* SPDX-License-Identifier: Apache-2.0
 *
 * rail-train: data-parallel training over the runtime, and the proof that it
 * is the same training: the loss of N ranks must equal that of one at every step.
 *   main.c   options, the two runs, the comparison
 *   data.c   the images, the split, the order in which they are used
 *   model.c  a network of one hidden layer: loss, gradient, update
 *   rank.c   one rank's training loop
 */
#ifndef RAIL_TRAIN_H
#define RAIL_TRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/common/fork.h"

#define TR_NAME "rail-train"
#define TR_PIXELS 64
#define TR_HIDDEN 64
#define TR_CLASSES 10
#define TR_MAX_RANKS 64

/* ---- data.c ---- */

struct tr_data {
  float (*pixels)[TR_PIXELS]; /* 0 ... 1 */
  uint8_t *labels;
  size_t n;
  size_t *train, *test; /* indexes; every fourth image is held out for the test */
  size_t ntrain, ntest;
};

/* -1: reported on stderr. */
int tr_data_load(const char *path, struct tr_data *d);
void tr_data_free(struct tr_data *d);
/* The images of a step's global batch: each pass over the training images is in a new order, given by the seed. */
void tr_batch(const struct tr_data *d, uint64_t seed, size_t step, size_t batch, size_t *images);
uint64_t tr_random(uint64_t *state);

/* ---- model.c ---- */

/* One block of floats, so that the gradient is one buffer to all-reduce. */
struct tr_params {
  float w1[TR_HIDDEN][TR_PIXELS], b1[TR_HIDDEN];
  float w2[TR_CLASSES][TR_HIDDEN], b2[TR_CLASSES];
};
#define TR_PARAMS (sizeof(struct tr_params) / sizeof(float))

void tr_init(struct tr_params *p, uint64_t seed);
/* Mean cross-entropy over the n images, and its gradient. Sums are in double and rounded once. */
double tr_gradient(const struct tr_params *p, const struct tr_data *d, const size_t *images, size_t n,
                   struct tr_params *gradient);
/* SGD with momentum. */
void tr_update(struct tr_params *p, struct tr_params *velocity, const struct tr_params *gradient, float rate,
               float momentum);
/* How many of the images are classified rightly. */
size_t tr_right(const struct tr_params *p, const struct tr_data *d, const size_t *images, size_t n);

/* ---- rank.c ---- */

struct tr_options {
  const char *data, *csv;
  int ranks, steps, batch;
  uint64_t seed;
  float rate, momentum;
  double tolerance; /* of the losses, relative */
};

/* What rank 0 leaves behind, in memory that the parent shares. */
struct tr_result {
  size_t right, ntest;
  int nranks;
  char transports[64], plugin[256];
  double seconds;
  double loss[]; /* by step */
};

struct tr_job {
  const struct tr_options *o;
  const struct tr_data *d;
  struct tr_result *result;
};

/* The body of a rank's process. Exit status. */
int tr_rank(const struct tool_rank *self, void *job);

#endif
