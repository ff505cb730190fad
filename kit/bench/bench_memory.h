/* SPDX-License-Identifier: Apache-2.0
 * The buffers of a side: of this host, or of a GPU. libcuda is opened only when it is asked for. */
#ifndef RAIL_KIT_BENCH_MEMORY_H
#define RAIL_KIT_BENCH_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

struct kit_bench_memory {
  char *base; /* page-aligned; of a GPU: its address there */
  size_t size;
  bool cuda;
};

/* Touched, so that no page is first met in the middle of a phase. False: `why` says why not. */
bool kit_bench_memory_make(struct kit_bench_memory *m, size_t size, bool cuda, char *why, size_t why_size);
void kit_bench_memory_free(struct kit_bench_memory *m);
/* Between such a buffer and plain memory. False: CUDA says no. */
bool kit_bench_memory_write(const struct kit_bench_memory *m, char *to, const void *from, size_t size);
bool kit_bench_memory_read(const struct kit_bench_memory *m, void *to, const char *from, size_t size);

#endif
