/* SPDX-License-Identifier: Apache-2.0
 *
 * 64 pixels, one hidden layer of tanh, softmax over ten digits. Everything is a
 * smooth function of the parameters, so two runs whose sums differ in the last bit
 * stay close; that is what the comparison of the losses rests on.
 */
#include <math.h>
#include <string.h>

#include "tools/rail-train/train.h"

struct activations {
  double hidden[TR_HIDDEN], score[TR_CLASSES];
};

static void forward(const struct tr_params *p, const float *pixels, struct activations *a) {
  for (int h = 0; h < TR_HIDDEN; h++) {
    double sum = (double)p->b1[h];
    for (int i = 0; i < TR_PIXELS; i++) sum += (double)p->w1[h][i] * (double)pixels[i];
    a->hidden[h] = tanh(sum);
  }
  for (int c = 0; c < TR_CLASSES; c++) {
    double sum = (double)p->b2[c];
    for (int h = 0; h < TR_HIDDEN; h++) sum += (double)p->w2[c][h] * a->hidden[h];
    a->score[c] = sum;
  }
}

/* Scores become probabilities; returns the cross-entropy against `label`. */
static double softmax(double *score, int label) {
  double top = score[0], total = 0;
  for (int c = 1; c < TR_CLASSES; c++) top = fmax(top, score[c]);
  double loss = top - score[label];
  for (int c = 0; c < TR_CLASSES; c++) total += score[c] = exp(score[c] - top);
  for (int c = 0; c < TR_CLASSES; c++) score[c] /= total;
  return loss + log(total);
}

/* The same layout in double, for sums. */
struct sums {
  double w1[TR_HIDDEN][TR_PIXELS], b1[TR_HIDDEN];
  double w2[TR_CLASSES][TR_HIDDEN], b2[TR_CLASSES];
};
_Static_assert(sizeof(struct sums) == TR_PARAMS * sizeof(double), "as many sums as parameters");

static void backward(const struct tr_params *p, const float *pixels, const struct activations *a, int label,
                     struct sums *s) {
  double back[TR_HIDDEN] = {0};
  for (int c = 0; c < TR_CLASSES; c++) {
    double error = a->score[c] - (c == label ? 1.0 : 0.0);
    s->b2[c] += error;
    for (int h = 0; h < TR_HIDDEN; h++) {
      s->w2[c][h] += error * a->hidden[h];
      back[h] += error * (double)p->w2[c][h];
    }
  }
  for (int h = 0; h < TR_HIDDEN; h++) {
    double error = back[h] * (1.0 - a->hidden[h] * a->hidden[h]);
    s->b1[h] += error;
    for (int i = 0; i < TR_PIXELS; i++) s->w1[h][i] += error * (double)pixels[i];
  }
}

double tr_gradient(const struct tr_params *p, const struct tr_data *d, const size_t *images, size_t n,
                   struct tr_params *gradient) {
  struct sums sums;
  double loss = 0, flat[TR_PARAMS];
  float out[TR_PARAMS] = {0};
  memset(&sums, 0, sizeof sums);
  for (size_t k = 0; k < n; k++) {
    struct activations a;
    int label = d->labels[images[k]];
    forward(p, d->pixels[images[k]], &a);
    loss += softmax(a.score, label);
    backward(p, d->pixels[images[k]], &a, label, &sums);
  }
  memcpy(flat, &sums, sizeof flat);
  for (size_t i = 0; i < TR_PARAMS; i++) out[i] = (float)(flat[i] / (double)n);
  memcpy(gradient, out, sizeof out);
  return loss / (double)n;
}

static double uniform(uint64_t *state) { return ldexp((double)(int64_t)tr_random(state), -63); } /* -1 ... 1 */

void tr_init(struct tr_params *p, uint64_t seed) {
  uint64_t state = seed;
  memset(p, 0, sizeof *p);
  for (int h = 0; h < TR_HIDDEN; h++)
    for (int i = 0; i < TR_PIXELS; i++) p->w1[h][i] = (float)(uniform(&state) * sqrt(3.0 / TR_PIXELS));
  for (int c = 0; c < TR_CLASSES; c++)
    for (int h = 0; h < TR_HIDDEN; h++) p->w2[c][h] = (float)(uniform(&state) * sqrt(3.0 / TR_HIDDEN));
}

void tr_update(struct tr_params *p, struct tr_params *velocity, const struct tr_params *gradient, float rate,
               float momentum) {
  float value[TR_PARAMS], speed[TR_PARAMS], slope[TR_PARAMS];
  memcpy(value, p, sizeof value);
  memcpy(speed, velocity, sizeof speed);
  memcpy(slope, gradient, sizeof slope);
  for (size_t i = 0; i < TR_PARAMS; i++) {
    speed[i] = momentum * speed[i] + slope[i];
    value[i] -= rate * speed[i];
  }
  memcpy(p, value, sizeof value);
  memcpy(velocity, speed, sizeof speed);
}

size_t tr_right(const struct tr_params *p, const struct tr_data *d, const size_t *images, size_t n) {
  size_t right = 0;
  for (size_t k = 0; k < n; k++) {
    struct activations a;
    int best = 0;
    forward(p, d->pixels[images[k]], &a);
    for (int c = 1; c < TR_CLASSES; c++)
      if (a.score[c] > a.score[best]) best = c;
    right += best == d->labels[images[k]];
  }
  return right;
}
