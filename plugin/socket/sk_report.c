/* SPDX-License-Identifier: Apache-2.0
 *
 * What a receiver tells its sender: buffers that are posted (grants), credit
 * that is free again, how far it has read. All of it goes in CONTROL frames on
 * stream 0, each of which makes earlier ones redundant but for their grants.
 *
 * A report costs a system call here and one there, so it is made when the
 * sender can be waiting for it. Messages up to the eager size do not wait for
 * grants: a connection that carries only such has no control traffic but one
 * frame of credit now and then. Large buffers are granted at once while the
 * sender's messages use grants, and otherwise when nothing else is to be done.
 */
#include "plugin/socket/sk_rail.h"
#include "plugin/socket/sk_recv.h"

#define GRANTS_AT_ONCE 8     /* collected, then sent whatever else there is to do */
#define BULK_READ (16 * 1024) /* nor does a call that read this much wait for a quiet moment */
#define ACK_CALLS 2           /* progress calls without news before the acknowledgement of small messages is sent */
#define QUIET_CALLS 16       /* progress calls without news that make one */
#define COUNTS_AT_ONCE 8     /* frames that have arrived, with FAILOVER */
#define STUCK_CALLS 2048     /* and so many: a message too large for a small buffer may be waiting, and must be told */

/* ---- the list of buffers that the sender does not know of --------------- */

void sk_recv_want_grant(struct sk_recv_comm *rc, struct sk_slot *slot) {
  slot->ungranted = true;
  slot->wanted = slot->capacity > rc->early.size;
  slot->grant_next = NULL;
  slot->grant_prev = rc->ungranted_last;
  if (rc->ungranted_last) rc->ungranted_last->grant_next = slot;
  else rc->ungranted = slot;
  rc->ungranted_last = slot;
  rc->ungranted_count++;
  rc->wanted += slot->wanted;
}

void sk_recv_forget_grant(struct sk_recv_comm *rc, struct sk_slot *slot) {
  if (!slot->ungranted) return;
  slot->ungranted = false;
  if (slot->grant_prev) slot->grant_prev->grant_next = slot->grant_next;
  else rc->ungranted = slot->grant_next;
  if (slot->grant_next) slot->grant_next->grant_prev = slot->grant_prev;
  else rc->ungranted_last = slot->grant_prev;
  rc->ungranted_count--;
  rc->wanted -= slot->wanted;
}

/* ---- frames ------------------------------------------------------------- */

static struct sk_entry grant_of(const struct sk_slot *slot) {
  return (struct sk_entry){
    .value = htole64(slot->capacity), .key = htole32(slot->node.tag), .kind = htole32(SK_ENTRY_GRANT)};
}

/* In posting order, because the sender pairs them with its sends in that order: small ones that stand before the last
 * large one must go too. */
static uint32_t collect_grants(struct sk_recv_comm *rc, bool all) {
  uint32_t n = 0;
  while (rc->ungranted && (all || rc->wanted)) {
    struct sk_slot *slot = rc->ungranted;
    rc->wire_entries[n++] = grant_of(slot);
    sk_recv_forget_grant(rc, slot);
  }
  return n;
}

/* Every buffer that waits, whether the sender was told or not. */
static uint32_t collect_posted(struct sk_recv_comm *rc) {
  uint32_t n = 0;
  for (unsigned int b = 0; b < SK_MATCH_BUCKETS; b++)
    for (struct sk_match_node *node = rc->posted.first[b]; node; node = node->next) {
      struct sk_slot *slot = rail_container_of(node, struct sk_slot, node);
      rc->wire_entries[n++] = grant_of(slot);
      sk_recv_forget_grant(rc, slot);
    }
  return n;
}

static void make_control(struct sk_recv_comm *rc) {
  struct sk_early *early = &rc->early;
  struct sk_stream *s = sk_main_stream(&rc->base);
  if (atomic_load_explicit(&rc->control_unwritten, memory_order_relaxed) || !sk_stream_can_queue(s)) return;
  bool all = rc->idle >= STUCK_CALLS || sk_early_is_low(early);
  uint32_t n = rail_unlikely(rc->again) ? collect_posted(rc) : collect_grants(rc, all);
  if (rail_unlikely(rc->base.rails != NULL)) n += sk_rail_entries(rc, rc->wire_entries + n);
  uint32_t len = n * (uint32_t)sizeof rc->wire_entries[0];
  sk_pending_add(&rc->control_unwritten);
  uint8_t *head = sk_stream_queue(s, SK_HEAD, rc->wire_entries, len, &rc->control_unwritten);
  sk_frame_encode(head, SK_FRAME_CONTROL, rc->again ? SK_FRAME_RESET : 0, rc->next_seq, early->bytes_freed, len,
                  early->count_freed);
  rail_stats_add(&rc->base.counts.comm[SK_COMM_CONTROL_FRAMES], 1);
  early->bytes_told = early->bytes_freed;
  early->count_told = early->count_freed;
  rc->again = rc->finished = false;
}

/* Would the sender go on sooner if it knew? */
static bool is_due(const struct sk_recv_comm *rc) {
  return sk_early_should_tell(&rc->early) ||
         (rc->ungranted_count && (rc->idle >= STUCK_CALLS || sk_early_is_low(&rc->early)));
}

/* The same, with FAILOVER: its sends are done when it hears that they have arrived. */
static bool counts_are_due(const struct sk_recv_comm *rc) {
  uint32_t untold = sk_rail_untold(rc);
  return rc->again || (untold && (rc->finished || rc->idle || untold >= COUNTS_AT_ONCE));
}

static void send_report(struct sk_recv_comm *rc) {
  make_control(rc);
  (void)sk_stream_flush(sk_main_stream(&rc->base), &(uint64_t){0});
}

/* It used its grants and has none left. */
static bool is_starving(const struct sk_recv_comm *rc) {
  return rc->rush && rc->posted.count == rc->ungranted_count;
}

void sk_recv_report_posted(struct sk_recv_comm *rc) {
  if ((rc->wanted && (is_starving(rc) || rc->wanted >= GRANTS_AT_ONCE)) || is_due(rc)) send_report(rc);
}

void sk_recv_report(struct sk_recv_comm *rc, uint64_t bytes) {
  const struct sk_stream *s = sk_main_stream(&rc->base);
  if (bytes) {
    rc->recent = bytes;
    rc->idle = 0;
  } else if (++rc->idle == ACK_CALLS) { /* by now the caller has sent his answer, if he has one */
    if (rc->recent && rc->recent < BULK_READ) rail_sock_ack_now(s->fd);
    rc->recent = 0;
  }
  if (s->out_count || is_due(rc) ||
      (rc->wanted && (rc->idle >= QUIET_CALLS || bytes >= BULK_READ || rc->wanted >= GRANTS_AT_ONCE ||
                      (rc->rush && !bytes) || is_starving(rc))) ||
      (rail_unlikely(rc->base.rails != NULL) && counts_are_due(rc)))
    send_report(rc);
}

void sk_recv_report_quiet(struct sk_recv_comm *rc, bool stuck) {
  if (stuck) rc->idle = RAIL_MAX(rc->idle, STUCK_CALLS);
  if (rc->recent && rc->recent < BULK_READ) rail_sock_ack_now(sk_main_stream(&rc->base)->fd);
  rc->recent = 0;
  if (rc->wanted || rc->again || is_due(rc) || sk_rail_untold(rc)) send_report(rc);
}

void sk_recv_report_all(struct sk_recv_comm *rc) {
  if (rc->base.rails) sk_rail_farewell(rc);
  if (rc->early.count_told != rc->early.count_freed || rc->wanted || sk_rail_untold(rc)) send_report(rc);
}

void sk_recv_report_again(struct sk_recv_comm *rc) {
  sk_rail_untell(rc);
  atomic_store_explicit(&rc->control_unwritten, 0, memory_order_relaxed); /* that frame went with its stream */
  rc->again = true;
  send_report(rc);
}
