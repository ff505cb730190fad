/* SPDX-License-Identifier: Apache-2.0
 * The ring of early messages. */
#include "plugin/socket/sk_early.h"

#include <stdlib.h>

_Static_assert(sizeof(struct sk_bounce) <= 128, "sk_credit_of counts two lines for it");

/* A message that begins before the end of the ring may extend beyond it: its bytes stay in one piece, and the beginning
 * of the ring, which they are counted for, stays unused meanwhile. */
rail_result_t sk_early_init(struct sk_early *early, uint32_t size, uint32_t count, uint32_t bytes) {
  sk_match_init(&early->table);
  early->size = size;
  early->count = count;
  early->bytes = bytes & ~63u;
  size_t memory = (size_t)early->bytes + sk_credit_of(size);
  early->ring = aligned_alloc(64, memory);
  return early->ring ? RAIL_OK : RAIL_SYSTEM_ERROR;
}

void sk_early_release(struct sk_early *early) {
  free(early->ring);
  early->ring = NULL;
}

static struct sk_bounce *at(const struct sk_early *early, uint64_t position) {
  return (struct sk_bounce *)(void *)(early->ring + position % early->bytes);
}

bool sk_early_charge(struct sk_early *early, uint64_t size) {
  if (size > early->size) return false;
  early->bytes_used += sk_credit_of(size);
  early->count_used++;
  return early->bytes_used - early->bytes_told <= early->bytes && early->count_used - early->count_told <= early->count;
}

void sk_early_pass(struct sk_early *early, uint64_t size) {
  early->bytes_freed += sk_credit_of(size);
  early->count_freed++;
}

struct sk_bounce *sk_early_put(struct sk_early *early, uint32_t tag, uint32_t seq, uint32_t size) {
  struct sk_bounce *bounce = at(early, early->tail);
  *bounce = (struct sk_bounce){.sink = {.data = (uint8_t *)bounce + 128, .size = size, .seq = seq, .early = true},
                               .node.tag = tag,
                               .cost = (uint32_t)sk_credit_of(size)};
  early->tail += bounce->cost;
  sk_match_put(&early->table, &bounce->node);
  return bounce;
}

struct sk_bounce *sk_early_take(struct sk_early *early, uint32_t tag) {
  struct sk_match_node *node = sk_match_take(&early->table, tag);
  return node ? rail_container_of(node, struct sk_bounce, node) : NULL;
}

/* Credit comes back in the order of the ring: what is free behind a message that waits cannot be used yet. */
void sk_early_free(struct sk_early *early, struct sk_bounce *bounce) {
  bounce->free = true;
  while (early->head != early->tail) {
    struct sk_bounce *first = at(early, early->head);
    if (!first->free) break;
    early->head += first->cost;
    early->bytes_freed += first->cost;
    early->count_freed++;
  }
}
