/* SPDX-License-Identifier: Apache-2.0
 * Sorting streams by the connector's comm id. */
#include "plugin/socket/sk_group.h"

#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/socket/sk_param.h"

#define MAX_GROUPS 4096

void sk_group_free(struct sk_group *g) {
  for (unsigned int i = 0; i < g->streams; i++) rail_sock_close(&g->stream[i].fd);
  free(g);
}

static struct sk_group *unlink_group(struct sk_group **at) {
  struct sk_group *g = *at;
  *at = g->next;
  return g;
}

void sk_groups_free(struct sk_reception *r) {
  while (r->groups) sk_group_free(unlink_group(&r->groups));
}

/* The group of this comm id, made if need be; NULL when there are too many. */
static struct sk_group *group_of(struct sk_reception *r, const struct sk_hello *hello, const union rail_addr *peer) {
  struct sk_group **at = &r->groups;
  unsigned int n = 0;
  for (; *at; at = &(*at)->next, n++)
    if (memcmp((*at)->comm_id, hello->comm_id, sizeof hello->comm_id) == 0) return *at;
  struct sk_group *g = n < MAX_GROUPS ? calloc(1, sizeof *g) : NULL;
  if (!g) return NULL;
  memcpy(g->comm_id, hello->comm_id, sizeof g->comm_id);
  g->peer = *peer;
  g->deadline = rail_deadline_in_ms((uint64_t)sk_params.handshake_ms);
  g->eager_size = hello->eager_size;
  g->eager_count = hello->eager_count;
  g->eager_bytes = hello->eager_bytes;
  g->features = hello->features & SK_FEATURE_FAILOVER;
  g->streams = hello->streams;
  for (unsigned int i = 0; i < g->streams; i++) g->stream[i].fd = -1;
  *at = g;
  return g;
}

enum sk_reason sk_group_join(struct sk_reception *r, const struct sk_hello *hello, const struct rail_stranger *s) {
  if (r->closed) return SK_REASON_GONE;
  if (hello->flags & SK_HELLO_AUTH) {
    enum rail_replay_result seen = rail_replay_note(&r->seen, hello->comm_id, hello->stream);
    if (seen != RAIL_REPLAY_NEW) return seen == RAIL_REPLAY_SEEN ? SK_REASON_REPLAY : SK_REASON_BUSY;
  }
  struct sk_group *g = group_of(r, hello, &s->peer);
  if (!g) return SK_REASON_BUSY;
  if (g->streams != hello->streams) return SK_REASON_STREAMS;
  if (g->stream[hello->stream].fd >= 0) return SK_REASON_DUPLICATE;
  if (g->eager_size != hello->eager_size || g->eager_count != hello->eager_count ||
      g->eager_bytes != hello->eager_bytes || g->features != (hello->features & SK_FEATURE_FAILOVER))
    return SK_REASON_EAGER;
  g->stream[hello->stream].fd = s->fd;
  g->stream[hello->stream].door = s->door;
  g->stream[hello->stream].peer = s->peer;
  memcpy(g->stream[hello->stream].mac, sk_hello_of(s)->mac, SK_MAC_SIZE);
  g->have++;
  RAIL_TRACE(RAIL_SUB_NET, "RailSocket: accept on %s: stream %u, %u of %u", r->device->name, hello->stream, g->have,
             g->streams);
  return SK_REASON_NONE;
}

bool sk_group_waits(const struct sk_reception *r, const uint8_t *comm_id) {
  const struct sk_group *g = r->groups;
  while (g && memcmp(g->comm_id, comm_id, sizeof g->comm_id) != 0) g = g->next;
  return g != NULL;
}

void sk_group_expire(struct sk_reception *r, uint64_t now) {
  for (struct sk_group **at = &r->groups; *at;) {
    struct sk_group *g = *at;
    if (g->have == g->streams || now < g->deadline) {
      at = &g->next;
      continue;
    }
    sk_reception_count(r, SK_DEVICE_REFUSED);
    rail_doors_log(&r->doors, &g->peer, "not all of its streams arrived within the time limit");
    for (unsigned int i = 0; i < g->streams; i++)
      if (g->stream[i].fd >= 0) sk_refuse(&g->stream[i].fd, SK_REASON_TIMEOUT, i);
    sk_group_free(unlink_group(at));
  }
}

/* False if the peer is gone already. */
static bool welcome(const struct sk_reception *r, const struct sk_group *g) {
  for (unsigned int i = 0; i < g->streams; i++)
    if (sk_welcome(r, g->stream[i].fd, i, g->features, g->stream[i].mac) != RAIL_OK) return false;
  return true;
}

struct sk_group *sk_group_take(struct sk_reception *r) {
  for (struct sk_group **at = &r->groups; *at;) {
    if ((*at)->have < (*at)->streams) {
      at = &(*at)->next;
      continue;
    }
    struct sk_group *g = unlink_group(at);
    if (welcome(r, g)) return g;
    rail_doors_log(&r->doors, &g->peer, "it went away before it was accepted");
    sk_group_free(g);
  }
  return NULL;
}
