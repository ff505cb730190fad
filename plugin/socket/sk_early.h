/* SPDX-License-Identifier: Apache-2.0
 *
 * Small messages that came before their buffer was posted: a ring of bytes,
 * each message behind the line that describes it, and the credit that keeps
 * the ring from overflowing. The sender counts what it sends ahead, this side
 * counts what has become free again and reports it; both count a message as
 * sk_credit_of(size), so the ring holds whatever the credit lets through.
 */
#ifndef SK_EARLY_H
#define SK_EARLY_H

#include "plugin/socket/sk_request.h"

struct sk_bounce {
  struct sk_sink sink;
  struct sk_match_node node; /* in the table until a slot claims it */
  struct sk_slot *slot;      /* that claimed it before all of it was here */
  uint32_t cost;
  bool free;
};

struct sk_early {
  struct sk_match table; /* messages without slot, by tag */
  uint8_t *ring;
  uint64_t head, tail;   /* live part, in bytes since the beginning */
  uint32_t size;         /* of the largest message */
  uint32_t bytes, count; /* the credit in all */
  uint64_t bytes_used, bytes_freed, bytes_told; /* spent by the sender; free again; and it knows */
  uint32_t count_used, count_freed, count_told;
};

rail_result_t sk_early_init(struct sk_early *early, uint32_t size, uint32_t count, uint32_t bytes);
void sk_early_release(struct sk_early *early);

/* A message without grant is here. False: more than the sender may. */
bool sk_early_charge(struct sk_early *early, uint64_t size);
/* It found its buffer at once. */
void sk_early_pass(struct sk_early *early, uint64_t size);
/* It did not: a place for it, in the table. */
struct sk_bounce *sk_early_put(struct sk_early *early, uint32_t tag, uint32_t seq, uint32_t size);
/* The oldest with this tag, out of the table, or NULL. */
struct sk_bounce *sk_early_take(struct sk_early *early, uint32_t tag);
/* Its bytes are where they belong. */
void sk_early_free(struct sk_early *early, struct sk_bounce *bounce);

/* The sender can hardly go ahead any more. */
static inline bool sk_early_is_low(const struct sk_early *early) {
  return early->bytes - (early->bytes_used - early->bytes_told) < 2 * sk_credit_of(early->size) ||
         early->count - (early->count_used - early->count_told) < 2;
}
/* A good part is free again and the sender does not know. */
static inline bool sk_early_should_tell(const struct sk_early *early) {
  return early->bytes_freed - early->bytes_told > early->bytes / 4 ||
         early->count_freed - early->count_told > early->count / 4 ||
         (early->count_freed != early->count_told && sk_early_is_low(early));
}

#endif
