/* SPDX-License-Identifier: Apache-2.0
 *
 * A receive from irecv to its completion.
 *
 * irecv takes what came early or posts its buffers, and collects a grant for
 * each. A MSG frame claims the oldest buffer of its tag; payloads go straight
 * into it. The request is done when all its buffers are.
 */
#include "plugin/socket/sk_recv.h"

#include <assert.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_rejoin.h"
#include "plugin/socket/sk_close.h"

#define READ_AHEAD (64 * 1024)
#define GRANTS_AT_ONCE 16 /* collected in irecv before they are sent from there */

rail_result_t sk_recv_create(const struct sk_comm_args *args, void **recv_comm) {
  struct sk_recv_comm *rc = calloc(1, sizeof *rc);
  *recv_comm = NULL;
  if (!rc) {
    for (unsigned int i = 0; i < args->nstreams; i++) rail_sock_close(&(int){args->fds[i]});
    sk_rejoin_free(args->rejoin);
    goto no_memory;
  }
  rail_result_t result = sk_comm_init(&rc->base, args, READ_AHEAD);
  rc->bounces = calloc((size_t)args->eager_count + 1, sizeof *rc->bounces);
  rc->bounce_memory = malloc((size_t)args->eager_count * args->eager_size + 1);
  if (result != RAIL_OK || !rc->bounces || !rc->bounce_memory) {
    sk_comm_destroy(&rc->base);
    sk_recv_release(rc);
    free(rc);
    goto no_memory;
  }
  sk_request_pool_init(&rc->pool, rc->recvs, sizeof rc->recvs[0], SK_MAX_RECVS, &rc->base);
  sk_match_init(&rc->posted);
  sk_match_init(&rc->early);
  for (uint32_t i = args->eager_count; i-- > 0;) {
    rc->bounces[i].data = rc->bounce_memory + (size_t)i * args->eager_size;
    rc->bounces[i].node.next = rc->free_bounces;
    rc->free_bounces = &rc->bounces[i].node;
  }
  rc->eager_size = args->eager_size;
  for (unsigned int i = 0; i < args->nstreams && sk_params.rcvbuf < 0; i++)
    (void)rail_sock_open_window(args->fds[i], sk_params.window); /* a wish: streams work without */
  sk_close_register(&rc->base);
  *recv_comm = rc;
  return RAIL_OK;

no_memory:
  RAIL_WARN("RailSocket: accept: out of memory for a connection");
  return RAIL_SYSTEM_ERROR;
}

void sk_recv_release(struct sk_recv_comm *rc) {
  free(rc->bounces);
  free(rc->bounce_memory);
  rc->bounces = NULL;
  rc->bounce_memory = NULL;
}

/* ---- matched slots ---------------------------------------------------- */

static void hash_insert(struct sk_recv_comm *rc, struct sk_slot *slot) {
  struct sk_slot **bucket = &rc->by_seq[slot->seq % SK_SEQ_BUCKETS];
  slot->hash_next = *bucket;
  *bucket = slot;
}

static struct sk_slot **hash_find(struct sk_recv_comm *rc, uint32_t seq) {
  struct sk_slot **at = &rc->by_seq[seq % SK_SEQ_BUCKETS];
  while (*at && (*at)->seq != seq) at = &(*at)->hash_next;
  return at;
}

/* The pair is made: message seq of `size` bytes will fill the slot. */
static rail_result_t claim(struct sk_recv_comm *rc, struct sk_slot *slot, uint32_t seq, uint64_t size) {
  if (rail_unlikely(size > slot->capacity))
    return sk_comm_fail_size(&rc->base, seq, slot->node.tag, size, slot->capacity);
  slot->size = size;
  slot->seq = seq;
  slot->promised = slot->received = 0;
  rc->partial++;
  return RAIL_OK;
}

static void add_bytes(struct sk_recv_comm *rc, struct sk_slot *slot, uint64_t n) {
  slot->received += n;
  if (slot->received < slot->size) return;
  struct sk_slot **at = hash_find(rc, slot->seq);
  if (*at == slot) *at = slot->hash_next;
  rc->partial--;
  rc->base.messages++;
  rc->base.bytes += slot->size;
  slot->recv->unfinished--;
}

static void free_bounce(struct sk_recv_comm *rc, struct sk_bounce *bounce) {
  bounce->node.next = rc->free_bounces;
  rc->free_bounces = &bounce->node;
}

static void empty_bounce(struct sk_recv_comm *rc, struct sk_bounce *bounce, struct sk_slot *slot) {
  assert(slot->data || bounce->size == 0); /* irecv took no other */
  if (bounce->size) memcpy(slot->data, bounce->data, bounce->size);
  add_bytes(rc, slot, bounce->size);
  free_bounce(rc, bounce);
}

/* ---- what comes in ---------------------------------------------------- */

RAIL_COLD static rail_result_t broken(struct sk_recv_comm *rc, const struct sk_frame_wire *frame, const char *why) {
  return sk_comm_fail(&rc->base, RAIL_REMOTE_ERROR,
                      "protocol error: %s (frame type %u, message %u, %llu, %u bytes, tag %u)", why, frame->type,
                      frame->seq, (unsigned long long)frame->size, frame->len, frame->tag);
}

static rail_result_t on_early_msg(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame_wire *frame) {
  if (frame->len != frame->size || frame->size > rc->eager_size || !rc->free_bounces)
    return broken(rc, frame, "a message without grant beyond the agreed limits");
  struct sk_bounce *bounce = rail_container_of(rc->free_bounces, struct sk_bounce, node);
  rc->free_bounces = bounce->node.next;
  bounce->node.tag = frame->tag;
  bounce->slot = NULL;
  bounce->size = frame->len;
  bounce->seq = frame->seq;
  sk_match_put(&rc->early, &bounce->node);
  rc->filling = bounce;
  sk_stream_expect(s, bounce->data, frame->len, NULL);
  return RAIL_OK;
}

static rail_result_t on_msg(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame_wire *frame) {
  if (s->index != 0 || frame->seq != rc->next_seq || frame->len > frame->size || frame->size > RAIL_NET_MAX_BYTES)
    return broken(rc, frame, "an announcement out of order or of a wrong size");
  rc->next_seq++;
  struct sk_match_node *node = sk_match_take(&rc->posted, frame->tag);
  if (!node) return on_early_msg(rc, s, frame);
  struct sk_slot *slot = rail_container_of(node, struct sk_slot, node);
  RAIL_TRY(claim(rc, slot, frame->seq, frame->size));
  slot->promised = frame->len;
  if (frame->len < frame->size) hash_insert(rc, slot);
  sk_stream_expect(s, slot->data, frame->len, slot);
  return RAIL_OK;
}

static rail_result_t on_data(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame_wire *frame) {
  if ((int32_t)(frame->seq - rc->next_seq) >= 0) {
    if (s->index == 0) return broken(rc, frame, "data of a message that was not announced");
    return RAIL_IN_PROGRESS;
  }
  struct sk_slot *slot = *hash_find(rc, frame->seq);
  if (!slot) return broken(rc, frame, "data of a message that is complete");
  if (!frame->len || frame->size > slot->size || frame->len > slot->size - frame->size ||
      frame->len > slot->size - slot->promised)
    return broken(rc, frame, "data outside its message");
  slot->promised += frame->len;
  sk_stream_expect(s, slot->data + frame->size, frame->len, slot);
  return RAIL_OK;
}

rail_result_t sk_recv_on_frame(struct sk_recv_comm *rc, struct sk_stream *s, const struct sk_frame_wire *frame) {
  switch (frame->type) {
    case SK_FRAME_MSG: return on_msg(rc, s, frame);
    case SK_FRAME_DATA: return on_data(rc, s, frame);
    default: return broken(rc, frame, "a frame that a sender does not send");
  }
}

rail_result_t sk_recv_on_payload(struct sk_recv_comm *rc, struct sk_stream *s) {
  struct sk_slot *slot = s->owner;
  s->owner = NULL;
  if (slot) {
    add_bytes(rc, slot, s->len);
  } else if (s->index == 0 && rc->filling) {
    struct sk_bounce *bounce = rc->filling;
    rc->filling = NULL;
    if (bounce->slot) empty_bounce(rc, bounce, bounce->slot);
  }
  return RAIL_OK;
}

/* ---- grants ----------------------------------------------------------- */

static void add_grant(struct sk_recv_comm *rc, uint32_t tag, uint64_t size) {
  rc->grants[rc->pending_grants++] = (struct sk_grant_wire){.size = htole64(size), .tag = htole32(tag)};
  rc->grants_queued++;
}

rail_result_t sk_recv_flush_grants(struct sk_recv_comm *rc) {
  struct sk_stream *s = &rc->base.streams[0];
  if (rc->pending_grants && !rc->grants_unwritten && sk_stream_can_queue(s)) {
    uint32_t len = rc->pending_grants * (uint32_t)sizeof rc->grants[0];
    memcpy(rc->wire_grants, rc->grants, len);
    rc->grants_framed += rc->pending_grants;
    rc->pending_grants = 0;
    rc->grants_unwritten = 1;
    struct sk_out *out = sk_stream_queue(s);
    sk_frame_encode(out->head, SK_FRAME_GRANT, 0, 0, len, 0);
    out->data = (const uint8_t *)rc->wire_grants;
    out->len = len;
    out->unwritten = &rc->grants_unwritten;
  }
  return sk_stream_flush(s, &rc->base.moved);
}

/* ---- irecv and its end ------------------------------------------------ */

RAIL_COLD static rail_result_t bad_recv(int n, void **data, const size_t *sizes, const int *tags, void **request) {
  if (!request || !data || !sizes || !tags)
    RAIL_WARN("RailSocket: irecv: data %p, sizes %p, tags %p, request %p; none may be NULL", (void *)data,
              (const void *)sizes, (const void *)tags, (void *)request);
  else if (n < 1 || n > SK_MAX_GROUP) RAIL_WARN("RailSocket: irecv: n is %d; allowed: 1..%d", n, SK_MAX_GROUP);
  else RAIL_WARN("RailSocket: irecv: a buffer is NULL with a size above 0, or larger than %llu bytes",
                 (unsigned long long)RAIL_NET_MAX_BYTES);
  return RAIL_BAD_ARGUMENT;
}

static bool recv_args_ok(int n, void **data, const size_t *sizes, const int *tags, void **request) {
  if (!request || !data || !sizes || !tags || n < 1 || n > SK_MAX_GROUP) return false;
  for (int i = 0; i < n; i++)
    if ((!data[i] && sizes[i]) || sizes[i] > RAIL_NET_MAX_BYTES) return false;
  return true;
}

/* What came before this buffer, else posts the buffer. */
static rail_result_t post_slot(struct sk_recv_comm *rc, struct sk_slot *slot) {
  struct sk_match_node *node = sk_match_take(&rc->early, slot->node.tag);
  if (!node) {
    sk_match_put(&rc->posted, &slot->node);
    return RAIL_OK;
  }
  struct sk_bounce *bounce = rail_container_of(node, struct sk_bounce, node);
  RAIL_TRY(claim(rc, slot, bounce->seq, bounce->size));
  if (bounce == rc->filling) bounce->slot = slot;
  else empty_bounce(rc, bounce, slot);
  return RAIL_OK;
}

static void start_recv(struct sk_recv_comm *rc, struct sk_recv *recv, void **data, const size_t *sizes,
                       const int *tags, void **mhandles) {
  for (uint32_t i = 0; i < recv->n; i++) {
    struct sk_slot *slot = &recv->slots[i];
    *slot = (struct sk_slot){.node.tag = (uint32_t)tags[i],
                             .recv = recv,
                             .data = data[i],
                             .capacity = sizes[i],
                             .mr = mhandles ? mhandles[i] : NULL};
    sk_mr_hold(slot->mr);
    add_grant(rc, slot->node.tag, sizes[i]);
  }
  recv->last_grant = rc->grants_queued;
  for (uint32_t i = 0; i < recv->n; i++)
    if (post_slot(rc, &recv->slots[i]) != RAIL_OK) return; /* test will say so */
}

rail_result_t sk_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags, void **mhandles,
                       void **phandles, void **request) {
  (void)phandles;
  /* RAIL_NET_OPTIONAL_RECV, if it stands there, allows what TCP cannot use:
   * completing before the bytes are in place. */
  if (request) *request = NULL;
  struct sk_comm *comm = sk_comm_of(recv_comm, SK_RECV_MAGIC, "irecv");
  if (!comm) return RAIL_BAD_ARGUMENT;
  if (rail_unlikely(!recv_args_ok(n, data, sizes, tags, request))) return bad_recv(n, data, sizes, tags, request);
  struct sk_recv_comm *rc = rail_container_of(comm, struct sk_recv_comm, base);
  if (!sk_comm_enter(comm)) return RAIL_BAD_USAGE;
  rail_result_t result = comm->error;
  if (rail_likely(result == RAIL_OK)) {
    if (rc->pending_grants + (uint32_t)n > SK_PENDING_GRANTS) (void)sk_recv_flush_grants(rc);
    struct sk_request *r = rc->pending_grants + (uint32_t)n <= SK_PENDING_GRANTS
                               ? sk_request_get(&rc->pool, SK_REQ_RECV)
                               : NULL;
    if (r) {
      struct sk_recv *recv = rail_container_of(r, struct sk_recv, base);
      recv->n = recv->unfinished = (uint32_t)n;
      start_recv(rc, recv, data, sizes, tags, mhandles);
      *request = recv;
      if (rc->pending_grants >= GRANTS_AT_ONCE) (void)sk_recv_flush_grants(rc);
    }
  }
  sk_comm_leave(comm);
  return result;
}

void sk_recv_finish(struct sk_recv_comm *rc, struct sk_recv *recv, int *sizes) {
  if ((int32_t)(recv->last_grant - rc->grants_framed) > 0) (void)sk_recv_flush_grants(rc);
  for (uint32_t i = 0; i < recv->n; i++) {
    struct sk_slot *slot = &recv->slots[i];
    if (sizes) sizes[i] = slot->size > INT_MAX ? INT_MAX : (int)slot->size;
    sk_mr_release(slot->mr);
  }
  sk_request_put(&rc->pool, &recv->base);
}
