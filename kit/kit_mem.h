/* SPDX-License-Identifier: Apache-2.0
 * Buffers that end at an inaccessible page, and contents that can be checked. */
#ifndef RAIL_KIT_MEM_H
#define RAIL_KIT_MEM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct kit_guarded { uint8_t *data; size_t size; void *map; size_t map_size; };

/* `size` bytes whose last byte touches a page that faults (so data is as
 * unaligned as size is), or with kit_guard_low whose first byte does. */
struct kit_guarded kit_guard_high(size_t size);
struct kit_guarded kit_guard_low(size_t size);
void kit_guard_free(struct kit_guarded *g);

/* Contents are a function of seed and offset. kit_pattern_check returns the first
 * wrong offset, or -1. */
void kit_pattern_fill(void *data, size_t size, uint64_t seed);
ssize_t kit_pattern_check(const void *data, size_t size, uint64_t seed);
/* The first offset whose byte is not `value`, or -1. */
ssize_t kit_bytes_check(const void *data, size_t size, uint8_t value);

#endif
