/* SPDX-License-Identifier: Apache-2.0
 * Vtables of every version into struct rail_net_slots. */
#include "common/netload_slots.h"

#include <string.h>

/* Slots with one signature in all versions. */
#define TAKE_COMMON(s, t)                \
  do {                                   \
    (s)->name = (t)->name;               \
    (s)->devices = (t)->devices;         \
    (s)->reg_mr_dmabuf = (t)->reg_mr_dmabuf; \
    (s)->dereg_mr = (t)->dereg_mr;       \
    (s)->iflush = (t)->iflush;           \
    (s)->test = (t)->test;               \
    (s)->close_send = (t)->close_send;   \
    (s)->close_recv = (t)->close_recv;   \
    (s)->close_listen = (t)->close_listen; \
  } while (0)

static void take_v6(struct rail_net_slots *s, const struct rail_net_v6 *t) {
  TAKE_COMMON(s, t);
  s->init_v6 = t->init;
  s->get_properties_v6 = t->get_properties;
  s->listen_v6 = t->listen;
  s->connect_v6 = t->connect;
  s->accept_v6 = t->accept;
  s->reg_mr_v6 = t->reg_mr;
  s->isend_v6 = t->isend;
  s->irecv_v6 = t->irecv;
}

static void take_v7(struct rail_net_slots *s, const struct rail_net_v7 *t) {
  TAKE_COMMON(s, t);
  s->init_v6 = t->init;
  s->get_properties_v7 = t->get_properties;
  s->listen_v6 = t->listen;
  s->connect_v7 = t->connect;
  s->accept_v7 = t->accept;
  s->reg_mr_v6 = t->reg_mr;
  s->isend_v6 = t->isend;
  s->irecv_v6 = t->irecv;
  s->irecv_consumed = t->irecv_consumed;
}

static void take_v8(struct rail_net_slots *s, const struct rail_net_v8 *t) {
  TAKE_COMMON(s, t);
  s->init_v6 = t->init;
  s->get_properties_v8 = t->get_properties;
  s->listen_v6 = t->listen;
  s->connect_v7 = t->connect;
  s->accept_v7 = t->accept;
  s->reg_mr_v8 = t->reg_mr;
  s->isend_v6 = t->isend;
  s->irecv_v6 = t->irecv;
  s->irecv_consumed = t->irecv_consumed;
}

static void take_v9(struct rail_net_slots *s, const struct rail_net_v9 *t) {
  TAKE_COMMON(s, t);
  s->init_v6 = t->init;
  s->get_properties_v9 = t->get_properties;
  s->listen_v6 = t->listen;
  s->connect_v7 = t->connect;
  s->accept_v7 = t->accept;
  s->reg_mr_v8 = t->reg_mr;
  s->isend_v9 = t->isend;
  s->irecv_v9 = t->irecv;
  s->irecv_consumed = t->irecv_consumed;
  s->make_vdevice_v9 = t->make_vdevice;
}

static void take_v10(struct rail_net_slots *s, const struct rail_net_v10 *t) {
  TAKE_COMMON(s, t);
  s->init_v10 = t->init;
  s->get_properties_v9 = t->get_properties;
  s->listen_v6 = t->listen;
  s->connect_v10 = t->connect;
  s->accept_v7 = t->accept;
  s->reg_mr_v8 = t->reg_mr;
  s->isend_v10 = t->isend;
  s->irecv_v10 = t->irecv;
  s->irecv_consumed = t->irecv_consumed;
  s->make_vdevice_v9 = t->make_vdevice;
}

/* v11 and v12 differ in two slots, which the caller takes. */
#define TAKE_V11(s, t)                   \
  do {                                   \
    TAKE_COMMON(s, t);                   \
    (s)->init_v11 = (t)->init;           \
    (s)->listen_v11 = (t)->listen;       \
    (s)->connect_v11 = (t)->connect;     \
    (s)->accept_v7 = (t)->accept;        \
    (s)->reg_mr_v8 = (t)->reg_mr;        \
    (s)->isend_v10 = (t)->isend;         \
    (s)->irecv_v10 = (t)->irecv;         \
    (s)->irecv_consumed = (t)->irecv_consumed; \
    (s)->finalize = (t)->finalize;       \
    (s)->set_net_attr = (t)->set_net_attr; \
  } while (0)

static void take_v11(struct rail_net_slots *s, const struct rail_net_v11 *t) {
  TAKE_V11(s, t);
  s->get_properties_v11 = t->get_properties;
  s->make_vdevice_v9 = t->make_vdevice;
}

static void take_v12(struct rail_net_slots *s, const struct rail_net_v12 *t) {
  TAKE_V11(s, t);
  s->get_properties_v12 = t->get_properties;
  s->make_vdevice_v12 = t->make_vdevice;
}

/* NCCL would call these without looking. */
static const char *missing_slot(const struct rail_net_slots *s) {
  if (!s->name) return "name";
  if (!s->init_v6 && !s->init_v10 && !s->init_v11) return "init";
  if (!s->devices) return "devices";
  if (!s->get_properties_v6 && !s->get_properties_v7 && !s->get_properties_v8 && !s->get_properties_v9 &&
      !s->get_properties_v11 && !s->get_properties_v12)
    return "getProperties";
  if (!s->listen_v6 && !s->listen_v11) return "listen";
  if (!s->connect_v6 && !s->connect_v7 && !s->connect_v10 && !s->connect_v11) return "connect";
  if (!s->accept_v6 && !s->accept_v7) return "accept";
  if (!s->reg_mr_v6 && !s->reg_mr_v8) return "regMr";
  if (!s->dereg_mr) return "deregMr";
  if (!s->isend_v6 && !s->isend_v9 && !s->isend_v10) return "isend";
  if (!s->irecv_v6 && !s->irecv_v9 && !s->irecv_v10) return "irecv";
  if (!s->test) return "test";
  if (!s->close_send) return "closeSend";
  if (!s->close_recv) return "closeRecv";
  if (!s->close_listen) return "closeListen";
  return NULL;
}

const char *rail_net_slots_fill(struct rail_net_slots *slots, int version, const void *vtable) {
  memset(slots, 0, sizeof *slots);
  switch (version) {
    case 6: take_v6(slots, vtable); break;
    case 7: take_v7(slots, vtable); break;
    case 8: take_v8(slots, vtable); break;
    case 9: take_v9(slots, vtable); break;
    case 10: take_v10(slots, vtable); break;
    case 11: take_v11(slots, vtable); break;
    case 12: take_v12(slots, vtable); break;
    default: return "all (unknown version)";
  }
  return missing_slot(slots);
}
