/* SPDX-License-Identifier: Apache-2.0
 * What the first eight bytes of each message say, so that a lost, doubled, torn or misplaced one is seen. */
#ifndef RAIL_BENCH_MARK_H
#define RAIL_BENCH_MARK_H

#include <stdint.h>

/* Message `number` of connection `lane`, both from 0. */
static inline uint64_t bench_mark(unsigned int lane, uint64_t number) { return (uint64_t)lane << 56 | number; }

#endif
