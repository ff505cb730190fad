/* SPDX-License-Identifier: Apache-2.0
 * Which protocol and chunk an operation takes: pure functions of what all ranks agree on. */
#ifndef RT_PROTO_H
#define RT_PROTO_H

#include <stdbool.h>
#include <stdint.h>

#include "core/kernel/rt_conn.h"
#include "core/kernel/rt_sched.h"

/* Bits 1 << enum rt_proto for NCCL_PROTO's text ("LL,Simple", "^LL"); NULL or a wrong word: all, the latter warned
 * about. */
unsigned rt_protos_allowed(const char *text);

struct rt_tuning {
  unsigned protos;
  bool all_shm;
  uint64_t slot_size[RT_NPROTO];
  uint64_t ll_max, chunk, exchange_max; /* RAIL_LL_MAX, RAIL_CHUNK, RAIL_EXCHANGE_MAX */
};

/* The schedule for a call: itself, or for a small all-reduce of two ranks the exchange. */
enum rt_coll rt_choose_schedule(const struct rt_tuning *t, enum rt_coll coll, uint64_t bytes, int nranks);
enum rt_proto rt_choose_proto(const struct rt_tuning *t, uint64_t bytes);
/* Elements of one step. */
uint64_t rt_choose_chunk(const struct rt_tuning *t, enum rt_proto proto, enum rt_coll coll, uint64_t bytes, int nranks,
                         uint64_t esize);

#endif
