/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast one thread copies: the limit of what moves through shared memory.
 * Goes round several source and destination buffers of the size, so that what
 * exceeds the caches comes from memory. Prints one JSON object a size.
 *
 *   memcpy MINBYTES MAXBYTES FACTOR ITERS WARMUP
 */
#include <string.h>

#include "timing.h"

#define SLOTS 8u
#define MOST ((size_t)512 << 20) /* of memory; the largest sizes get fewer slots */

/* Keeps the compiler from dropping or merging copies whose result nobody reads. */
static void used(void *p) { __asm__ volatile("" : : "r"(p) : "memory"); }

static double copy_us(char *from, char *to, size_t bytes, size_t slots, size_t times) {
  double start = bench_now_us();
  for (size_t i = 0; i < times; i++) {
    char *at = to + i % slots * bytes;
    memcpy(at, from + i % slots * bytes, bytes);
    used(at);
  }
  return (bench_now_us() - start) / (double)times;
}

int main(int argc, char **argv) {
  char *from = NULL, *to = NULL;
  if (argc != 6) {
    fprintf(stderr, "usage: memcpy MINBYTES MAXBYTES FACTOR ITERS WARMUP\n");
    return 2;
  }
  size_t least = bench_number("MINBYTES", argv[1], 1), most = bench_number("MAXBYTES", argv[2], least);
  size_t factor = bench_number("FACTOR", argv[3], 2);
  size_t iters = bench_number("ITERS", argv[4], 1), warmup = bench_number("WARMUP", argv[5], 0);
  size_t total = SLOTS * most < MOST / 2 ? SLOTS * most : MOST / 2;
  if (total < most) total = most;
  if (posix_memalign((void **)&from, 4096, total) != 0 || posix_memalign((void **)&to, 4096, total) != 0) {
    fprintf(stderr, "no memory for 2 x %zu bytes\n", total);
    free(from);
    return 3;
  }
  memset(from, 1, total);
  memset(to, 2, total);
  for (size_t bytes = least; bytes <= most; bytes *= factor) {
    size_t slots = total / bytes < SLOTS ? total / bytes : SLOTS;
    if (warmup > 0) (void)copy_us(from, to, bytes, slots, warmup);
    printf("{\"size\": %zu, \"time_us\": %.6f}\n", bytes, copy_us(from, to, bytes, slots, iters));
  }
  free(from);
  free(to);
  return 0;
}
