/* SPDX-License-Identifier: Apache-2.0
 *
 * Tag matching: for one tag, first come first served. The k-th send with tag t belongs to the k-th receive buffer
 * posted with tag t; both sides of a connection apply this rule to the same two sequences, so they agree on every pair
 * without a message about it.
 *
 * Each side keeps two tables, its own entries that wait and the peer's; for any tag at most one of the two has an
 * entry. The sender has a third, of eager messages whose buffers it does not know. Entries are embedded in their
 * owners: nothing is allocated, a table of 256 entries costs one short walk.
 */
#ifndef SK_MATCH_H
#define SK_MATCH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "common/base/compiler.h"

#define SK_MATCH_BUCKETS 32

struct sk_match_node {
  TAILQ_ENTRY(sk_match_node) next;
  uint32_t tag;
};
TAILQ_HEAD(sk_match_list, sk_match_node);

struct sk_match {
  struct sk_match_list bucket[SK_MATCH_BUCKETS];
  uint32_t count;
};

/* Tags are ranks or step numbers: consecutive ones should not share a bucket. */
static inline struct sk_match_list *sk_match_bucket(struct sk_match *match, uint32_t tag) {
  return &match->bucket[tag % SK_MATCH_BUCKETS];
}

static inline void sk_match_init(struct sk_match *match) {
  for (unsigned int b = 0; b < SK_MATCH_BUCKETS; b++) TAILQ_INIT(&match->bucket[b]);
  match->count = 0;
}

/* Appends; the node's tag must be set. */
static inline void sk_match_put(struct sk_match *match, struct sk_match_node *node) {
  TAILQ_INSERT_TAIL(sk_match_bucket(match, node->tag), node, next);
  match->count++;
}

/* The oldest with this tag after `after` (NULL: of all), or NULL. */
static inline struct sk_match_node *sk_match_next(struct sk_match *match, uint32_t tag,
                                                  const struct sk_match_node *after) {
  struct sk_match_node *node = after ? TAILQ_NEXT(after, next) : TAILQ_FIRST(sk_match_bucket(match, tag));
  while (node && rail_unlikely(node->tag != tag)) node = TAILQ_NEXT(node, next);
  return node;
}

/* Removes and returns the oldest with this tag, or NULL. */
static inline struct sk_match_node *sk_match_take(struct sk_match *match, uint32_t tag) {
  struct sk_match_node *node = sk_match_next(match, tag, NULL);
  if (!node) return NULL;
  TAILQ_REMOVE(sk_match_bucket(match, tag), node, next);
  match->count--;
  return node;
}

#endif
