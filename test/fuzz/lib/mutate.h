/* SPDX-License-Identifier: Apache-2.0
 * Inputs made from other inputs; the same sequence for the same seed. */
#ifndef FUZZ_MUTATE_H
#define FUZZ_MUTATE_H

#include <stddef.h>
#include <stdint.h>

struct fuzz_rng {
  uint64_t state;
};
uint64_t fuzz_random(struct fuzz_rng *rng);
/* 0..n-1, or 0 for n 0. */
size_t fuzz_below(struct fuzz_rng *rng, size_t n);

/* Changes bytes[0..size) in place, a few times; returns the new size, at most `cap`. `other` is spliced in at times. */
size_t fuzz_mutate(struct fuzz_rng *rng, uint8_t *bytes, size_t size, size_t cap, const uint8_t *other,
                   size_t other_size);

#endif
