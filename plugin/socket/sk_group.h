/* SPDX-License-Identifier: Apache-2.0
 * Streams of one connector, on their way to be accepted together. */
#ifndef SK_GROUP_H
#define SK_GROUP_H

#include "plugin/socket/sk_reception.h"

struct sk_group {
  struct sk_group *next;
  uint8_t comm_id[SK_COMM_ID_SIZE];
  uint64_t deadline; /* for the missing streams */
  uint32_t eager_size, eager_count, eager_bytes;
  uint32_t features; /* those that we know */
  unsigned int streams, have;
  union rail_addr peer; /* of the first that came */
  struct {
    int fd;
    unsigned int door;
    union rail_addr peer;
    uint8_t mac[SK_MAC_SIZE];
  } stream[SK_MAX_STREAMS];
};

/* All under the reception's lock. */

/* SK_REASON_NONE: the stranger's socket is the group's. */
enum sk_reason sk_group_join(struct sk_reception *r, const struct sk_hello *hello, const struct rail_stranger *s);
/* The oldest complete group, out of the list and welcomed; NULL if there is none. */
struct sk_group *sk_group_take(struct sk_reception *r);
/* Is there a group of this comm id that was not taken? */
bool sk_group_waits(const struct sk_reception *r, const uint8_t *comm_id);
void sk_group_expire(struct sk_reception *r, uint64_t now);
void sk_groups_free(struct sk_reception *r);
void sk_group_free(struct sk_group *g); /* one that was taken; closes what it still has */

#endif
