/* SPDX-License-Identifier: Apache-2.0
 * Mappings with a guard page on either side, patterns from a seed, and the comparison with them. */
#include "kit/kit_mem.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kit/kit_ensure.h"

static struct kit_guarded guard_map(size_t size) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (size + page - 1) / page * page;
  if (body == 0) body = page;
  struct kit_guarded g = {.size = size, .map_size = body + 2 * page};
  g.map = mmap(NULL, g.map_size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ENSURE(g.map != MAP_FAILED, "mmap of %zu bytes failed", g.map_size);
  int rc = mprotect((char *)g.map + page, body, PROT_READ | PROT_WRITE);
  ENSURE(rc == 0, "mprotect failed");
  g.data = (uint8_t *)g.map + page;
  return g;
}

struct kit_guarded kit_guard_low(size_t size) { return guard_map(size); }

struct kit_guarded kit_guard_high(size_t size) {
  struct kit_guarded g = guard_map(size);
  size_t page = (size_t)sysconf(_SC_PAGESIZE);
  g.data = (uint8_t *)g.map + g.map_size - page - size;
  return g;
}

void kit_guard_free(struct kit_guarded *g) {
  if (g->map) munmap(g->map, g->map_size);
  g->map = NULL;
}

static inline uint64_t word_at(uint64_t seed, size_t index) {
  uint64_t x = seed + (index + 1) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9ull;
  return x ^ (x >> 29);
}

void kit_pattern_fill(void *data, size_t size, uint64_t seed) {
  uint8_t *p = data;
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    uint64_t w = word_at(seed, i / 8);
    memcpy(p + i, &w, 8);
  }
  uint64_t w = word_at(seed, i / 8);
  if (i < size) memcpy(p + i, &w, size - i);
}

ssize_t kit_pattern_check(const void *data, size_t size, uint64_t seed) {
  const uint8_t *p = data;
  size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    uint64_t w = word_at(seed, i / 8), got;
    memcpy(&got, p + i, 8);
    if (w != got) break;
  }
  for (; i < size; i++) {
    uint64_t w = word_at(seed, i / 8);
    if (p[i] != ((const uint8_t *)&w)[i % 8]) return (ssize_t)i;
  }
  return -1;
}

ssize_t kit_bytes_check(const void *data, size_t size, uint8_t value) {
  const uint8_t *p = data;
  for (size_t i = 0; i < size; i++)
    if (p[i] != value) return (ssize_t)i;
  return -1;
}
