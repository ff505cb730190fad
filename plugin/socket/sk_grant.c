/* SPDX-License-Identifier: Apache-2.0
 *
 * What a receiver reports to its sender: buffers that are posted (grants), credit that is free again, how far it has
 * read. All of it goes in CONTROL frames on the main stream, each of which makes earlier ones redundant but for their
 * grants.
 *
 * A report costs a system call here and one there, so it is made when the sender can be waiting for it. Messages up to
 * the eager size do not wait for grants: a connection that carries only such has no control traffic but one frame of
 * credit now and then. Buffers above it need a grant: they have it at once while the sender's messages use grants, and
 * otherwise when nothing else is to be done.
 */
#include "plugin/socket/sk_failover.h"
#include "plugin/socket/sk_recv.h"

/* Reports are sent at once when so many are due: a group of buffers, or the frames of one. */
#define REPORT_AT_ONCE SK_MAX_GROUP
/* Progress calls in a row that found nothing. After the first two the TCP acknowledgement of small messages is sent: by
 * then the caller has sent its answer, if it has one, and the kernel's own acknowledgement, in the middle of a read,
 * would cost a message more than 1 us. */
#define ACK_CALLS 2
/* So many: the sender may be waiting for a grant. Fewer would send reports between two messages of a stream. */
#define IDLE_CALLS 16
/* And so many: a message above the eager size may be waiting for a buffer below it, and must be refused. */
#define STUCK_CALLS 2048

/* ---- the steps of a report, in their order; each is explained at its definition ---- */

static bool is_due(const struct sk_recv_comm *rc);
static bool needed_grants_are_due(const struct sk_recv_comm *rc, uint64_t bytes);
static bool sender_is_out_of_grants(const struct sk_recv_comm *rc);
static bool counts_are_due(const struct sk_recv_comm *rc);
static void ack_small_messages(struct sk_recv_comm *rc);
static void send_report(struct sk_recv_comm *rc);
static void make_control(struct sk_recv_comm *rc);
static uint32_t collect_grants(struct sk_recv_comm *rc, bool all);
static uint32_t collect_posted(struct sk_recv_comm *rc);
static struct sk_entry grant_of(const struct sk_recv_buffer *buffer);

/* ---- the list of buffers that the sender does not know of --------------- */

void sk_grant_add(struct sk_recv_comm *rc, struct sk_recv_buffer *buffer) {
  buffer->is_ungranted = true;
  buffer->needs_grant = buffer->capacity > rc->unexpected.eager_size;
  TAILQ_INSERT_TAIL(&rc->ungranted, buffer, ungranted);
  rc->ungranted_count++;
  rc->ungranted_needed += buffer->needs_grant;
}

void sk_grant_remove(struct sk_recv_comm *rc, struct sk_recv_buffer *buffer) {
  if (!buffer->is_ungranted) return;
  buffer->is_ungranted = false;
  TAILQ_REMOVE(&rc->ungranted, buffer, ungranted);
  rc->ungranted_count--;
  rc->ungranted_needed -= buffer->needs_grant;
}

/* ---- when ---------------------------------------------------------------- */

void sk_grant_report_after_irecv(struct sk_recv_comm *rc) {
  if ((rc->ungranted_needed && (sender_is_out_of_grants(rc) || rc->ungranted_needed >= REPORT_AT_ONCE)) || is_due(rc))
    send_report(rc);
}

void sk_grant_report_after_read(struct sk_recv_comm *rc, uint64_t bytes) {
  if (bytes) {
    rc->bytes_to_ack = bytes;
    rc->idle_calls = 0;
  } else if (++rc->idle_calls == ACK_CALLS) { /* by now the caller has sent its answer, if it has one */
    ack_small_messages(rc);
  }
  bool unsent = sk_main_stream(&rc->base)->out_count != 0; /* of an earlier report */
  if (unsent || is_due(rc) || needed_grants_are_due(rc, bytes) ||
      (rail_unlikely(sk_has_failover(&rc->base)) && counts_are_due(rc)))
    send_report(rc);
}

void sk_grant_report_when_idle(struct sk_recv_comm *rc, bool stuck) {
  if (stuck) rc->idle_calls = RAIL_MAX(rc->idle_calls, STUCK_CALLS);
  ack_small_messages(rc);
  if (rc->ungranted_needed || rc->report_all || is_due(rc) || sk_path_unreported(&rc->base)) send_report(rc);
}

void sk_grant_report_after_loss(struct sk_recv_comm *rc) {
  sk_path_report_again(&rc->base);
  atomic_store_explicit(&rc->control_unsent, 0, memory_order_relaxed); /* that frame went with its stream */
  rc->report_all = true;
  send_report(rc);
}

/* The stream that reports go over may be dead unnoticed: all of them carry all counts, also of those that are gone,
 * else the sender would take its last sends for lost. */
void sk_grant_report_at_stop(struct sk_recv_comm *rc) {
  struct sk_comm *comm = &rc->base;
  sk_path_report_again(comm);
  uint32_t len = sk_path_entries(comm, rc->last_entries) * (uint32_t)sizeof rc->last_entries[0];
  for (uint32_t i = 0; i < comm->nstreams; i++) {
    struct sk_stream *s = &comm->streams[i];
    if (s->fd < 0 || s->out_errno) continue;
    for (uint32_t k = 0; k < comm->nstreams; k++)
      if (comm->paths[k].state == SK_PATH_DOWN)
        sk_stream_send_frame(s, SK_FRAME_LOST, comm->paths[k].frames, comm->paths[k].generation, k);
    if (!sk_stream_can_queue(s)) continue;
    uint8_t *head = sk_stream_queue(s, SK_HEAD, rc->last_entries, len, NULL);
    sk_frame_encode(head, SK_FRAME_CONTROL, 0, rc->next_seq, rc->unexpected.bytes_freed, len,
                    rc->unexpected.count_freed);
    (void)sk_stream_flush(s, &(uint64_t){0});
  }
}

void sk_grant_report_at_close(struct sk_recv_comm *rc) {
  if (rc->unexpected.count_reported != rc->unexpected.count_freed || rc->ungranted_needed ||
      sk_path_unreported(&rc->base))
    send_report(rc);
}

/* Would the sender go on sooner if it knew? */
static bool is_due(const struct sk_recv_comm *rc) {
  return sk_unexpected_should_report(&rc->unexpected) ||
         (rc->ungranted_count && (rc->idle_calls >= STUCK_CALLS || sk_unexpected_is_low(&rc->unexpected)));
}

/* After a progress call that has read `bytes`: are grants that are needed worth a report now? */
static bool needed_grants_are_due(const struct sk_recv_comm *rc, uint64_t bytes) {
  if (!rc->ungranted_needed) return false;
  bool nothing_else_to_do = rc->idle_calls >= IDLE_CALLS;
  bool read_in_bulk = bytes >= SK_BULK_BYTES; /* the report costs little beside that */
  bool group_is_full = rc->ungranted_needed >= REPORT_AT_ONCE;
  bool sender_may_wait = rc->sender_waited && !bytes;
  return nothing_else_to_do || read_in_bulk || group_is_full || sender_may_wait || sender_is_out_of_grants(rc);
}

/* The sender used its grants and has none left. */
static bool sender_is_out_of_grants(const struct sk_recv_comm *rc) {
  return rc->sender_waited && rc->posted.count == rc->ungranted_count;
}

/* With FAILOVER: would sends be done sooner if the sender knew that they have arrived? */
static bool counts_are_due(const struct sk_recv_comm *rc) {
  uint32_t unreported = sk_path_unreported(&rc->base);
  return rc->report_all || (unreported && (rc->completed || rc->idle_calls || unreported >= REPORT_AT_ONCE));
}

static void ack_small_messages(struct sk_recv_comm *rc) {
  if (rc->bytes_to_ack && rc->bytes_to_ack < SK_BULK_BYTES) rail_sock_ack_now(sk_main_stream(&rc->base)->fd);
  rc->bytes_to_ack = 0;
}

/* ---- frames ------------------------------------------------------------- */

static void send_report(struct sk_recv_comm *rc) {
  make_control(rc);
  (void)sk_stream_flush(sk_main_stream(&rc->base), &(uint64_t){0});
}

static void make_control(struct sk_recv_comm *rc) {
  struct sk_unexpected *u = &rc->unexpected;
  struct sk_stream *s = sk_main_stream(&rc->base);
  if (atomic_load_explicit(&rc->control_unsent, memory_order_relaxed) || !sk_stream_can_queue(s)) return;
  bool all = rc->idle_calls >= STUCK_CALLS || sk_unexpected_is_low(u);
  uint32_t n = rail_unlikely(rc->report_all) ? collect_posted(rc) : collect_grants(rc, all);
  if (rail_unlikely(sk_has_failover(&rc->base))) n += sk_path_entries(&rc->base, rc->wire_entries + n);
  uint32_t len = n * (uint32_t)sizeof rc->wire_entries[0];
  sk_completion_add(&rc->control_unsent);
  uint8_t *head = sk_stream_queue(s, SK_HEAD, rc->wire_entries, len, &rc->control_unsent);
  sk_frame_encode(head, SK_FRAME_CONTROL, rc->report_all ? SK_FRAME_RESET : 0, rc->next_seq, u->bytes_freed, len,
                  u->count_freed);
  rail_stats_add(&rc->base.counts.comm[SK_COMM_CONTROL_FRAMES], 1);
  u->bytes_reported = u->bytes_freed;
  u->count_reported = u->count_freed;
  rc->report_all = rc->completed = false;
}

/* In posting order, because the sender pairs them with its sends in that order: those that stand before the last one
 * that needs its grant must go too. */
static uint32_t collect_grants(struct sk_recv_comm *rc, bool all) {
  uint32_t n = 0;
  while (rc->ungranted_count && (all || rc->ungranted_needed)) {
    struct sk_recv_buffer *buffer = TAILQ_FIRST(&rc->ungranted);
    rc->wire_entries[n++] = grant_of(buffer);
    sk_grant_remove(rc, buffer);
  }
  return n;
}

/* Every buffer that waits, whether the sender knows of it or not. */
static uint32_t collect_posted(struct sk_recv_comm *rc) {
  uint32_t n = 0;
  struct sk_match_node *node;
  for (unsigned int b = 0; b < SK_MATCH_BUCKETS; b++)
    TAILQ_FOREACH(node, &rc->posted.bucket[b], next) {
      struct sk_recv_buffer *buffer = rail_container_of(node, struct sk_recv_buffer, node);
      rc->wire_entries[n++] = grant_of(buffer);
      sk_grant_remove(rc, buffer);
    }
  return n;
}

static struct sk_entry grant_of(const struct sk_recv_buffer *buffer) {
  return (struct sk_entry){
      .value = htole64(buffer->capacity), .key = htole32(buffer->node.tag), .kind = htole32(SK_ENTRY_GRANT)};
}
