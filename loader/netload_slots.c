/* SPDX-License-Identifier: Apache-2.0
 * Vtables of every version into struct rail_net_slots. */
#include "loader/netload_slots.h"

#include <string.h>

#include "loader/netload.h"

const struct rail_net_slot rail_net_slot_table[RAIL_NET_SLOTS] = {
    {"name", 6, RAIL_NET_SLOT_NEEDED},         {"init", 6, RAIL_NET_SLOT_NEEDED},
    {"devices", 6, RAIL_NET_SLOT_NEEDED},      {"getProperties", 6, RAIL_NET_SLOT_NEEDED},
    {"listen", 6, RAIL_NET_SLOT_NEEDED},       {"connect", 6, RAIL_NET_SLOT_NEEDED},
    {"accept", 6, RAIL_NET_SLOT_NEEDED},       {"regMr", 6, RAIL_NET_SLOT_NEEDED},
    {"regMrDmaBuf", 6, RAIL_NET_SLOT_MAY},     {"deregMr", 6, RAIL_NET_SLOT_NEEDED},
    {"isend", 6, RAIL_NET_SLOT_NEEDED},        {"irecv", 6, RAIL_NET_SLOT_NEEDED},
    {"iflush", 6, RAIL_NET_SLOT_GPU},          {"test", 6, RAIL_NET_SLOT_NEEDED},
    {"closeSend", 6, RAIL_NET_SLOT_NEEDED},    {"closeRecv", 6, RAIL_NET_SLOT_NEEDED},
    {"closeListen", 6, RAIL_NET_SLOT_NEEDED},  {"getDeviceMr", 7, RAIL_NET_SLOT_MAY},
    {"irecvConsumed", 7, RAIL_NET_SLOT_MAY},   {"makeVDevice", 9, RAIL_NET_SLOT_MAY},
    {"finalize", 11, RAIL_NET_SLOT_AT_END},    {"setNetAttr", 11, RAIL_NET_SLOT_MAY},
};

#define IS_SLOT(v, field, i) \
  _Static_assert(offsetof(struct rail_net_##v, field) == (i) * sizeof(void *), #v " " #field " is slot " #i)
IS_SLOT(v6, get_properties, 3);
IS_SLOT(v6, reg_mr_dmabuf, 8);
IS_SLOT(v6, iflush, 12);
IS_SLOT(v6, close_listen, 16);
IS_SLOT(v12, close_listen, 16);
IS_SLOT(v7, get_device_mr, 17);
IS_SLOT(v12, irecv_consumed, 18);
IS_SLOT(v9, make_vdevice, 19);
IS_SLOT(v11, finalize, 20);
IS_SLOT(v12, set_net_attr, 21);

int rail_net_slot_count(int version) {
  int n = 0;
  if (version < RAIL_NET_VERSION_MIN || version > RAIL_NET_VERSION_MAX) return 0;
  while (n < RAIL_NET_SLOTS && rail_net_slot_table[n].since <= version) n++;
  return n;
}

static const char *missing_among(int count, const void *vtable) {
  void *const *slots = vtable;
  for (int i = 0; i < count; i++)
    if (!slots[i] && rail_net_slot_table[i].need == RAIL_NET_SLOT_NEEDED) return rail_net_slot_table[i].name;
  return NULL;
}

const char *rail_net_slots_missing_for_init(int version, const void *vtable) {
  return rail_net_slot_count(version) ? missing_among(2, vtable) : "slots (unknown version)"; /* name, init */
}

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
  s->get_device_mr = t->get_device_mr;
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
  s->get_device_mr = t->get_device_mr;
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
  s->get_device_mr = t->get_device_mr;
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
  s->get_device_mr = t->get_device_mr;
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
    (s)->get_device_mr = (t)->get_device_mr; \
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
  return missing_among(rail_net_slot_count(version), vtable);
}
