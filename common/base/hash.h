/* SPDX-License-Identifier: Apache-2.0
 *
 * FNV-1a of 64 bits (draft-eastlake-fnv): tells names apart; anyone can make collisions. Begin with RAIL_HASH_BASIS;
 * the result of one call may be the `hash` of the next.
 */
#ifndef RAIL_HASH_H
#define RAIL_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define RAIL_HASH_BASIS 0xcbf29ce484222325ull

static inline uint64_t rail_hash(uint64_t hash, const void *data, size_t n) {
  const uint8_t *bytes = data;
  for (size_t i = 0; i < n; i++) hash = (hash ^ bytes[i]) * 0x100000001b3ull;
  return hash;
}

static inline uint64_t rail_hash_text(uint64_t hash, const char *text) { return rail_hash(hash, text, strlen(text)); }

#endif
