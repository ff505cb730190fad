/* SPDX-License-Identifier: Apache-2.0
 * What the first and the last eight bytes of each message say, so that a lost, doubled, torn or misplaced one shows. */
#ifndef RAIL_KIT_BENCH_MARK_H
#define RAIL_KIT_BENCH_MARK_H

#include <stdint.h>
#include <string.h>

#define KIT_BENCH_MARK_SIZE sizeof(uint64_t)

/* Message `number` of connection `lane` of its receiver, both from 0. */
static inline uint64_t kit_bench_mark(unsigned int lane, uint64_t number) { return (uint64_t)lane << 48 | number; }

/* Below 8 bytes there is room for the lower bytes only; below 16 there is one mark. */
static inline void kit_bench_write_mark(char *data, size_t size, uint64_t mark) {
  if (size < sizeof mark) {
    memcpy(data, &mark, size);
    return;
  }
  memcpy(data, &mark, sizeof mark);
  if (size >= 2 * sizeof mark) memcpy(data + size - sizeof mark, &mark, sizeof mark);
}

/* What is wrong with the marks: the bits that differ; 0: nothing. */
static inline uint64_t kit_bench_wrong_mark(const char *data, size_t size, uint64_t mark) {
  uint64_t first = mark, last = mark;
  if (size < sizeof mark) {
    memcpy(&first, data, size);
    return first ^ mark;
  }
  memcpy(&first, data, sizeof first);
  if (size >= 2 * sizeof mark) memcpy(&last, data + size - sizeof last, sizeof last);
  return (first ^ mark) | (last ^ mark);
}

#endif
