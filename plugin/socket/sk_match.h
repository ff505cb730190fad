/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting things with tags: for one tag, first come first served. The k-th
 * send with tag t belongs to the k-th receive buffer posted with tag t; both
 * sides of a connection apply this rule to the same two sequences, so they
 * agree on every pair without a word about it.
 *
 * Each side keeps two tables, "mine that wait" and "theirs that wait"; for any
 * tag at most one of the two has an entry. Entries are embedded in their
 * owners: nothing is allocated, a table of 256 entries costs one short walk.
 */
#ifndef SK_MATCH_H
#define SK_MATCH_H

#include <stddef.h>
#include <stdint.h>

#define SK_MATCH_BUCKETS 32

struct sk_match_node {
  struct sk_match_node *next;
  uint32_t tag;
};

struct sk_match {
  struct sk_match_node *first[SK_MATCH_BUCKETS];
  struct sk_match_node *last[SK_MATCH_BUCKETS];
  uint32_t count;
};

void sk_match_init(struct sk_match *match);
/* Appends; the node's tag must be set. */
void sk_match_put(struct sk_match *match, struct sk_match_node *node);
/* Removes and returns the oldest with this tag, or NULL. */
struct sk_match_node *sk_match_take(struct sk_match *match, uint32_t tag);
/* Walks the entries with this tag, oldest first: NULL begins, NULL ends. */
struct sk_match_node *sk_match_next(const struct sk_match *match, uint32_t tag, const struct sk_match_node *after);

#endif
