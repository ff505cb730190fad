/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "kit/trace/kit_trace.h"

static size_t place(const struct kit_trace_map *map, uint64_t key) {
  size_t at = (size_t)((key * 0x9e3779b97f4a7c15ull) >> 20) & (map->cap - 1);
  while (map->slots[at].key && map->slots[at].key != key) at = (at + 1) & (map->cap - 1);
  return at;
}

int64_t kit_trace_map_get(const struct kit_trace_map *map, uint64_t key) {
  if (!map->cap || !key) return -1;
  size_t at = place(map, key);
  return map->slots[at].key ? (int64_t)map->slots[at].value : -1;
}

static bool grow(struct kit_trace_map *map) {
  struct kit_trace_map bigger = {.cap = map->cap ? 2 * map->cap : 64};
  bigger.slots = calloc(bigger.cap, sizeof *bigger.slots);
  if (!bigger.slots) return false;
  for (size_t i = 0; i < map->cap; i++) {
    if (!map->slots[i].key) continue;
    bigger.slots[place(&bigger, map->slots[i].key)] = map->slots[i];
    bigger.used++;
  }
  free(map->slots);
  *map = bigger;
  return true;
}

bool kit_trace_map_put(struct kit_trace_map *map, uint64_t key, uint32_t value) {
  if (!key) return true;
  if (2 * (map->used + 1) > map->cap && !grow(map)) return false;
  size_t at = place(map, key);
  if (!map->slots[at].key) map->used++;
  map->slots[at].key = key;
  map->slots[at].value = value;
  return true;
}

void kit_trace_map_free(struct kit_trace_map *map) {
  free(map->slots);
  *map = (struct kit_trace_map){0};
}

bool kit_trace_list_add(struct kit_trace_list *list, uint64_t v) {
  if (list->n == list->cap) {
    size_t cap = list->cap ? 2 * list->cap : 64;
    uint64_t *grown = realloc(list->v, cap * sizeof *grown);
    if (!grown) return false;
    list->v = grown;
    list->cap = cap;
  }
  list->v[list->n++] = v;
  list->sorted = false;
  return true;
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

uint64_t kit_trace_list_at(struct kit_trace_list *list, double quantile) {
  if (!list->n) return 0;
  if (!list->sorted) qsort(list->v, list->n, sizeof *list->v, by_value);
  list->sorted = true;
  return list->v[(size_t)((double)(list->n - 1) * quantile + 0.5)];
}
