/* SPDX-License-Identifier: Apache-2.0 */
#include "test/device/link.h"

#include <string.h>

#include "core/host/rt_prims.h"

#define BUFFS (RT_NPROTO + 1)

size_t link_bytes(uint64_t slot_size, bool proxied) { return (proxied ? 2 : 1) * BUFFS * RT_STEPS * slot_size; }

void link_poison(struct link_half *h, uint64_t slot_size, uint64_t step, uint64_t ahead) {
  for (uint64_t s = step / RT_STEPS * RT_STEPS, i = 0; i < RT_STEPS; i++) {
    uint64_t *half = (uint64_t *)(void *)(h->buff[RT_LL] + i * slot_size);
    for (size_t n = 0; n < slot_size / 8; n++) half[n] = (uint64_t)rt_ll_flag(s + i + ahead * RT_STEPS) << 32 | 0xdead;
  }
}

static void half_init(struct link_half *h, char *memory, uint64_t slot_size, uint64_t step) {
  memset(memory, 0xa5, link_bytes(slot_size, false));
  for (int p = 0; p < BUFFS; p++) h->buff[p] = memory + (size_t)p * RT_STEPS * slot_size;
  h->tail = step;
  link_poison(h, slot_size, step, 1u << 20);
}

static void conn_init(struct rt_conn *c, struct link_half *h, uint64_t slot_size, uint64_t step, unsigned flags) {
  *c = (struct rt_conn){.slot = h->slot, .tail = &h->tail, .credit = &h->credit, .step = step, .flags = flags};
  for (int p = 0; p < BUFFS; p++) {
    c->buff[p] = h->buff[p];
    c->slot_size[p] = slot_size;
  }
}

void link_init(struct link *l, char *memory, uint64_t slot_size, bool proxied, uint64_t step) {
  memset(l, 0, sizeof *l);
  l->slot_size = slot_size;
  l->proxied = proxied;
  l->moved = step;
  half_init(&l->at_send, memory, slot_size, step);
  l->at_send.credit = step + RT_STEPS;
  if (proxied) {
    half_init(&l->at_recv, memory + link_bytes(slot_size, false), slot_size, step);
    l->at_recv.credit = step;
  }
  const unsigned flags = proxied ? RT_CONN_PROXY : 0;
  conn_init(&l->send, &l->at_send, slot_size, step, flags);
  conn_init(&l->recv, proxied ? &l->at_recv : &l->at_send, slot_size, step, flags);
  l->recv.granted = proxied ? step : step + RT_STEPS;
}

/* Is what the two kernels have written something that can be moved? */
static const char *wrong_with(const struct link *l, const struct rt_slot *from, const struct rt_slot *to) {
  if (from->ptr && !from->mhandle) return "a step is sent from memory that is not registered";
  if (to->ptr && !to->mhandle) return "a step is to be received in memory that is not registered";
  if (from->bytes > (to->ptr ? to->capacity : l->slot_size)) return "a step overruns where it is to be received";
  return NULL;
}

bool link_move(struct link *l, enum rt_proto proto) {
  if (!l->proxied || l->broken) return false;
  if (rt_observe(&l->at_send.tail) <= l->moved || rt_observe(&l->at_recv.credit) <= l->moved) return false;
  const struct rt_slot *from = &l->at_send.slot[l->moved % RT_STEPS];
  struct rt_slot *to = &l->at_recv.slot[l->moved % RT_STEPS];
  l->broken = wrong_with(l, from, to);
  if (l->broken) return false;
  const char *src = from->ptr ? from->ptr : rt_conn_slot_buff(&l->send, proto, l->moved);
  char *dst = to->ptr ? to->ptr : rt_conn_slot_buff(&l->recv, proto, l->moved);
  memcpy(dst, src, from->bytes);
  to->bytes = from->bytes;
  l->moved++;
  rt_publish(&l->at_recv.tail, l->moved);
  rt_publish(&l->at_send.credit, l->moved + RT_STEPS);
  return true;
}
