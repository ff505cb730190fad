/* SPDX-License-Identifier: Apache-2.0 */
#include "core/rt_proto.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "common/compiler.h"
#include "common/log.h"
#include "core/kernel/rt_kernel.h"

unsigned rt_protos_allowed(const char *text) {
  const unsigned all = (1u << RT_NPROTO) - 1;
  if (!text || !*text) return all;
  bool exclude = *text == '^';
  unsigned named = 0;
  char copy[64];
  snprintf(copy, sizeof copy, "%s", text + exclude);
  char *save = NULL;
  for (char *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
    if (!strcasecmp(word, "Simple"))
      named |= 1u << RT_SIMPLE;
    else if (!strcasecmp(word, "LL"))
      named |= 1u << RT_LL;
    else if (strcasecmp(word, "LL128") != 0)
      RAIL_WARN("NCCL_PROTO: '%s' in '%s' is not a protocol; allowed are Simple, LL, LL128 (taken as Simple)", word,
                text);
    else if (!exclude)
      named |= 1u << RT_SIMPLE; /* needs 128-byte stores; a host communicator has none */
  }
  unsigned allowed = exclude ? all & ~named : named;
  if (allowed) return allowed;
  RAIL_WARN("NCCL_PROTO='%s' leaves no protocol; using Simple and LL", text);
  return all;
}

/* The exchange takes one step of latency instead of two and reduces everything twice. Two ranks get equal bits: no
 * operator minds which operand comes first. With more ranks each would add up in an order of its own. */
enum rt_coll rt_choose_schedule(const struct rt_tuning *t, enum rt_coll coll, uint64_t bytes, int nranks) {
  return coll == RT_ALLREDUCE && nranks == 2 && bytes <= t->exchange_max ? RT_EXCHANGE : coll;
}

enum rt_proto rt_choose_proto(const struct rt_tuning *t, uint64_t bytes) {
  if (!(t->protos & 1u << RT_SIMPLE)) return RT_LL;
  if (!(t->protos & 1u << RT_LL)) return RT_SIMPLE;
  /* Through a proxy LL doubles the bytes and saves nothing: the proxy waits for the counters anyway. */
  return t->all_shm && bytes <= t->ll_max ? RT_LL : RT_SIMPLE;
}

/* Small enough that a slot is still in the cache when it is read, large enough that counters do not matter. */
#define CHUNK_TARGET (128u * 1024)
/* Below this a pipeline of more steps costs more than it hides: a step over a network has system calls in it. */
#define CHUNK_MIN_SHM (16u * 1024)
#define CHUNK_MIN_NET (64u * 1024)

uint64_t rt_choose_chunk(const struct rt_tuning *t, enum rt_proto proto, enum rt_coll coll, uint64_t bytes, int nranks,
                         uint64_t esize) {
  uint64_t cap = rt_proto_payload(proto, t->slot_size[proto]);
  uint64_t want = t->chunk ? t->chunk : CHUNK_TARGET;
  if (!t->chunk) {
    uint64_t per_step = coll == RT_ALLREDUCE ? bytes / (uint64_t)nranks : bytes;
    uint64_t least = t->all_shm ? CHUNK_MIN_SHM : CHUNK_MIN_NET;
    /* Two loops or more per collective, so that receiving, reducing and sending overlap. */
    while (want > least && want * 2 > per_step) want /= 2;
  }
  uint64_t n = RAIL_MIN(want, cap) / esize;
  return RAIL_MAX(n, 1u);
}
