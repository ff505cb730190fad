/* SPDX-License-Identifier: Apache-2.0
 * Reads the images of digits, holds a fourth of them out for the test, and draws each step's batch. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/rail-train/train.h"

#define TEST_EVERY 4

/* splitmix64 */
uint64_t tr_random(uint64_t *state) {
  uint64_t x = *state += 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  return x ^ x >> 31;
}

/* 64 numbers of 0 to 16 and the digit, with commas. */
static int parse_line(const char *line, float *pixels, uint8_t *label) {
  for (int i = 0; i <= TR_PIXELS; i++) {
    char *end;
    unsigned long v = strtoul(line, &end, 10);
    if (end == line || v > (i < TR_PIXELS ? 16u : TR_CLASSES - 1u)) return -1;
    if (i < TR_PIXELS ? *end != ',' : *end && *end != '\n') return -1; /* the file's last line may end without '\n' */
    if (i < TR_PIXELS) pixels[i] = (float)v / 16.0f;
    else *label = (uint8_t)v;
    line = end + 1;
  }
  return 0;
}

static int grow(struct tr_data *d, size_t cap) {
  void *pixels = realloc(d->pixels, cap * sizeof *d->pixels);
  if (pixels) d->pixels = pixels;
  void *labels = realloc(d->labels, cap);
  if (labels) d->labels = labels;
  return pixels && labels ? 0 : -1;
}

static int read_lines(FILE *f, const char *path, struct tr_data *d) {
  char line[512];
  size_t cap = 0;
  while (fgets(line, sizeof line, f)) {
    if (d->n == cap && grow(d, cap = cap ? 2 * cap : 1024) != 0) {
      fprintf(stderr, TR_NAME ": no memory for %s\n", path);
      return -1;
    }
    if (parse_line(line, d->pixels[d->n], &d->labels[d->n]) != 0) {
      fprintf(stderr, TR_NAME ": %s:%zu: not 64 pixels from 0 to 16 and a digit\n", path, d->n + 1);
      return -1;
    }
    d->n++;
  }
  return 0;
}

static int split(struct tr_data *d) {
  d->train = malloc((d->n + 1) * sizeof *d->train);
  d->test = malloc((d->n + 1) * sizeof *d->test);
  if (!d->train || !d->test) return -1;
  for (size_t i = 0; i < d->n; i++) {
    if (i % TEST_EVERY == TEST_EVERY - 1) d->test[d->ntest++] = i;
    else d->train[d->ntrain++] = i;
  }
  return 0;
}

int tr_data_load(const char *path, struct tr_data *d) {
  *d = (struct tr_data){0};
  FILE *f = fopen(path, "re");
  if (!f) {
    fprintf(stderr, TR_NAME ": cannot read %s: %s (name the file with --data)\n", path, strerror(errno));
    return -1;
  }
  int r = read_lines(f, path, d);
  fclose(f);
  if (r == 0 && split(d) != 0) {
    fprintf(stderr, TR_NAME ": no memory for %s\n", path);
    r = -1;
  }
  if (r != 0) tr_data_free(d);
  return r;
}

void tr_data_free(struct tr_data *d) {
  free(d->pixels);
  free(d->labels);
  free(d->train);
  free(d->test);
  *d = (struct tr_data){0};
}

void tr_batch(const struct tr_data *d, uint64_t seed, size_t step, size_t batch, size_t *images) {
  size_t per_pass = d->ntrain / batch, pass = step / per_pass, first = step % per_pass * batch;
  uint64_t state = seed * 0x2545f4914f6cdd1dull + pass;
  size_t *order = images + batch; /* the caller's array has room for both */
  memcpy(order, d->train, d->ntrain * sizeof *order);
  for (size_t i = d->ntrain; i > 1; i--) {
    size_t j = (size_t)(tr_random(&state) % i), kept = order[i - 1];
    order[i - 1] = order[j];
    order[j] = kept;
  }
  memcpy(images, order + first, batch * sizeof *images);
}
