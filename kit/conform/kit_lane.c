/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/conform/kit_lane.h"

#include <string.h>

static void lane_start(struct kit_lane *l, int number) {
  l->sends = kit_sends(l->side);
  l->receives = kit_receives(l->side);
  l->rng.state = kit_side_job(l->side)->seed + (uint64_t)number * 0x9e3779b97f4a7c15ull;
  l->dice.state = l->rng.state ^ ((uint64_t)kit_side_rank(l->side) << 32);
  struct rail_net_props_v12 props;
  memset(&props, 0, sizeof props);
  int rc = l->net->vt->get_properties(l->net->dev, &props);
  ENSURE(rc == 0, "getProperties(%d) returned %d", l->net->dev, rc);
  l->max_recvs = props.max_recvs < 1 ? 1 : props.max_recvs > KIT_MAX_GROUP ? KIT_MAX_GROUP : props.max_recvs;
  kit_join(l->side, l->net, &l->pair);
}

void kit_lane_open(struct kit_lane *l, struct kit_side *side) {
  memset(l, 0, sizeof *l);
  l->side = side;
  l->net = &l->own;
  kit_net_open(l->net);
  lane_start(l, 0);
}

void kit_lane_join(struct kit_lane *l, const struct kit_lane *with, int number) {
  memset(l, 0, sizeof *l);
  l->side = with->side;
  l->net = with->net;
  lane_start(l, number);
}

static void region_free(struct kit_lane *l, struct kit_lane_region *r) {
  if (l->sends) kit_mr_dereg(l->net, l->pair.send, r->send_mh);
  if (l->receives) kit_mr_dereg(l->net, l->pair.recv, r->recv_mh);
  kit_guard_free(&r->mem);
  *r = (struct kit_lane_region){0};
}

void kit_lane_close(struct kit_lane *l) {
  for (int i = 0; i < KIT_LANE_REGIONS; i++)
    if (l->region[i].mem.data) region_free(l, &l->region[i]);
  kit_part(l->side, &l->pair);
  if (l->net == &l->own) kit_net_close(l->net);
}

static uint8_t *region_add(struct kit_lane *l, struct kit_guarded mem) {
  for (int i = 0; i < KIT_LANE_REGIONS; i++) {
    struct kit_lane_region *r = &l->region[i];
    if (r->mem.data) continue;
    r->mem = mem;
    if (l->sends) r->send_mh = kit_mr_reg(l->net, l->pair.send, mem.data, mem.size);
    if (l->receives) r->recv_mh = kit_mr_reg(l->net, l->pair.recv, mem.data, mem.size);
    return mem.data;
  }
  kit_failed(__FILE__, __LINE__, "the check's own mistake: more than %d buffers of one connection", KIT_LANE_REGIONS);
}

uint8_t *kit_lane_high(struct kit_lane *l, size_t size) { return region_add(l, kit_guard_high(size ? size : 1)); }
uint8_t *kit_lane_low(struct kit_lane *l, size_t size) { return region_add(l, kit_guard_low(size ? size : 1)); }

void kit_lane_reg(struct kit_lane *l, void *data, size_t size) {
  region_add(l, (struct kit_guarded){.data = data, .size = size});
}

static const struct kit_lane_region *region_of(const struct kit_lane *l, const void *data, size_t size) {
  if (size == 0) size = 1; /* a pointer to within, as NCCL's is */
  for (int i = 0; i < KIT_LANE_REGIONS; i++) {
    const struct kit_guarded *m = &l->region[i].mem;
    if (!m->data || (const uint8_t *)data < m->data) continue;
    if ((const uint8_t *)data + size <= m->data + m->size) return &l->region[i];
  }
  kit_failed(__FILE__, __LINE__, "the check's own mistake: %zu bytes at %p are not registered", size, data);
}

void kit_lane_free(struct kit_lane *l, const void *data) {
  region_free(l, (struct kit_lane_region *)(uintptr_t)region_of(l, data, 0));
}

struct kit_op kit_lane_send(const struct kit_lane *l, const void *data, size_t size, int tag) {
  struct kit_op op = kit_op_send(l->pair.send, data, size, tag);
  op.mh[0] = region_of(l, data, size)->send_mh;
  return op;
}

struct kit_op kit_lane_group(const struct kit_lane *l) {
  return (struct kit_op){.kind = KIT_OP_RECV, .comm = l->pair.recv};
}

void kit_lane_add(const struct kit_lane *l, struct kit_op *group, void *data, size_t size, int tag) {
  ENSURE(group->n < KIT_MAX_GROUP, "the check's own mistake: a group of more than %d", KIT_MAX_GROUP);
  group->data[group->n] = data;
  group->size[group->n] = size;
  group->tag[group->n] = tag;
  group->mh[group->n++] = region_of(l, data, size)->recv_mh;
}

struct kit_op kit_lane_recv(const struct kit_lane *l, void *data, size_t size, int tag) {
  struct kit_op op = kit_lane_group(l);
  kit_lane_add(l, &op, data, size, tag);
  return op;
}

void kit_lane_run(struct kit_lane *l, struct kit_op *ops, int count, enum kit_ops_order order) {
  kit_ops_run(l->net, ops, count, (struct kit_ops_how){.order = order, .deadline_ms = 10000, .rng = &l->dice});
}

void kit_lane_needs_groups(const struct kit_lane *l) {
  if (l->max_recvs < 2) kit_skip("the plugin's maxRecvs is 1: NCCL never asks it for grouped receives");
}
