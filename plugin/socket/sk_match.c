/* SPDX-License-Identifier: Apache-2.0
 * Buckets of singly linked queues. */
#include "plugin/socket/sk_match.h"

#include <string.h>

#include "common/base/compiler.h"

/* Tags are ranks or step numbers: consecutive ones should not share a bucket. */
static unsigned int bucket_of(uint32_t tag) { return tag % SK_MATCH_BUCKETS; }

void sk_match_init(struct sk_match *match) { memset(match, 0, sizeof *match); }

void sk_match_put(struct sk_match *match, struct sk_match_node *node) {
  unsigned int b = bucket_of(node->tag);
  node->next = NULL;
  if (match->first[b]) match->last[b]->next = node;
  else match->first[b] = node;
  match->last[b] = node;
  match->count++;
}

struct sk_match_node *sk_match_take(struct sk_match *match, uint32_t tag) {
  unsigned int b = bucket_of(tag);
  struct sk_match_node *before = NULL;
  for (struct sk_match_node *node = match->first[b]; node; before = node, node = node->next) {
    if (rail_unlikely(node->tag != tag)) continue;
    if (before) before->next = node->next;
    else match->first[b] = node->next;
    if (match->last[b] == node) match->last[b] = before;
    match->count--;
    node->next = NULL;
    return node;
  }
  return NULL;
}

struct sk_match_node *sk_match_next(const struct sk_match *match, uint32_t tag, const struct sk_match_node *after) {
  struct sk_match_node *node = after ? after->next : match->first[bucket_of(tag)];
  while (node && node->tag != tag) node = node->next;
  return node;
}
