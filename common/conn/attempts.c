/* SPDX-License-Identifier: Apache-2.0
 * Attempt number = generation << 32 | (slot + 1). */
#include "common/conn/attempts.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

rail_result_t rail_attempts_init(struct rail_attempts *table) {
  *table = (struct rail_attempts){.slots = NULL};
  return pthread_mutex_init(&table->lock, NULL) == 0 ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

static bool grow(struct rail_attempts *table) {
  uint32_t cap = table->cap ? 2 * table->cap : 64;
  struct rail_attempt_slot *grown = realloc(table->slots, cap * sizeof *grown);
  if (!grown) return false;
  memset(grown + table->cap, 0, (cap - table->cap) * sizeof *grown);
  table->slots = grown;
  table->cap = cap;
  return true;
}

rail_result_t rail_attempts_add(struct rail_attempts *table, void *attempt, uint64_t *number) {
  uint32_t i;
  pthread_mutex_lock(&table->lock);
  for (i = 0; i < table->cap && table->slots[i].attempt; i++) continue;
  bool room = i < table->cap || grow(table);
  if (room) {
    table->slots[i].attempt = attempt;
    *number = (uint64_t)++table->slots[i].generation << 32 | (i + 1);
  }
  pthread_mutex_unlock(&table->lock);
  return room ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

/* Its slot; NULL if it is not under way. Under the lock. */
static struct rail_attempt_slot *slot_of(const struct rail_attempts *table, uint64_t number) {
  uint32_t i = (uint32_t)number - 1;
  struct rail_attempt_slot *slot = i < table->cap ? &table->slots[i] : NULL;
  return slot && slot->attempt && slot->generation == number >> 32 ? slot : NULL;
}

void *rail_attempts_find(struct rail_attempts *table, uint64_t number) {
  pthread_mutex_lock(&table->lock);
  const struct rail_attempt_slot *slot = slot_of(table, number);
  void *attempt = slot ? slot->attempt : NULL;
  pthread_mutex_unlock(&table->lock);
  return attempt;
}

void rail_attempts_remove(struct rail_attempts *table, uint64_t number) {
  pthread_mutex_lock(&table->lock);
  struct rail_attempt_slot *slot = slot_of(table, number);
  if (slot) slot->attempt = NULL;
  pthread_mutex_unlock(&table->lock);
}

void rail_attempts_free(struct rail_attempts *table, void (*drop)(void *attempt)) {
  for (uint32_t i = 0; i < table->cap; i++)
    if (table->slots[i].attempt) drop(table->slots[i].attempt);
  free(table->slots);
  pthread_mutex_destroy(&table->lock);
  *table = (struct rail_attempts){.slots = NULL};
}
