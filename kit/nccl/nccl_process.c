/* SPDX-License-Identifier: Apache-2.0
 * One rank: a communicator made, one collective with all sizes, types and operations, contents checked. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/nccl/nccl_rank.h"

#define FULL_MATRIX (64u << 10) /* bytes up to which all types and operations are tried; beyond: the first of them */

/* Microseconds; the number of wrong elements is added. */
static double one_call(struct kit_nccl_rank *r, const struct kit_nccl_call *c, bool in_place, size_t *wrong) {
  kit_nccl_prepare(r, c, in_place);
  uint64_t start = rail_now_ns();
  int result = kit_nccl_start(r, c, in_place);
  ENSURE(result == 0, "%s of %zu %s: NCCL result %d: %s", kit_nccl_colls[c->coll], c->count, kit_nccl_types[c->type],
         result, kit_nccl_last_error(r));
  NCCL(r, kit_nccl_wait(r));
  double us = (double)(rail_now_ns() - start) / 1e3;
  kit_nccl_finish(r, c, in_place, wrong);
  return us;
}

/* What all ranks found, at rank 0. */
static size_t sum_wrong(struct kit_nccl_rank *r, size_t mine) {
  uint64_t sum = mine, other;
  if (r->rank > 0) {
    kit_send_bytes(r->self, 0, &sum, sizeof sum);
    return mine;
  }
  for (int from = 1; from < r->n; from++) {
    kit_recv_bytes(r->self, from, &other, sizeof other);
    sum += other;
  }
  return (size_t)sum;
}

static void one_row(struct kit_nccl_rank *r, struct kit_nccl_call c) {
  bool places = kit_nccl_in_place(&c) >= 0;
  size_t wrong[2] = {0, 0};
  double us[2] = {0, 0};
  for (int i = 0; i < 1 + places; i++) {
    c.round++;
    us[i] = one_call(r, &c, i == 1, &wrong[i]);
    wrong[i] = sum_wrong(r, wrong[i]);
  }
  char inside[64] = "          -        -";
  if (places) snprintf(inside, sizeof inside, "%11.1f %8zu", us[1], wrong[1]);
  bool rooted = c.coll == KIT_NCCL_BROADCAST || c.coll == KIT_NCCL_REDUCE;
  if (r->rank == 0)
    kit_note(r->self, "%12zu %12zu %9s %6s %4d %11.1f %8zu %s", c.count * kit_nccl_type_size(c.type), c.count,
             kit_nccl_types[c.type], kit_nccl_reduces(c.coll) ? kit_nccl_redops[c.redop] : "-", rooted ? c.root : -1,
             us[0], wrong[0], inside);
}

/* ---- which calls ---- */

/* Is the word one of a list with commas? NULL: any is. */
static bool listed(const char *list, const char *word) {
  size_t n = strlen(word);
  for (const char *at = list; at; at = strchr(at, ','), at += at != NULL)
    if (strncmp(at, word, n) == 0 && (at[n] == ',' || at[n] == 0)) return true;
  return !list;
}

/* Has this NCCL the function? Its build may have left it out. */
static bool built(const struct kit_nccl_rank *r, const struct kit_nccl_call *c) {
  static const char *const colls[] = {"AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce"};
  static const char *const types[] = {"i8",  "u8",  "i32", "u32",  "i64",    "u64",
                                      "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};
  static const char *const redops[] = {"Sum", "Prod", "MinMax", "MinMax", "PreMulSum"};
  char text[96];
  if (c->coll >= KIT_NCCL_SENDRECV) return true;
  bool reduces = kit_nccl_reduces(c->coll), integers = c->type < 6;
  snprintf(text, sizeof text, "%s %s %s %s %s", colls[c->coll],
           !reduces                    ? "Copy"
           : c->redop == 4 && integers ? "SumPostDiv"
                                       : redops[c->redop],
           reduces ? types[c->type] : "i8", r->algo, r->proto);
  return r->has(text);
}

static void each_size(struct kit_nccl_rank *r, struct kit_nccl_call c, const char *sizes, bool first) {
  for (const char *at = sizes; *at;) {
    char *end;
    uint64_t bytes = strtoull(at, &end, 10);
    at = end + (*end == ',');
    c.count = bytes / kit_nccl_type_size(c.type);
    if (bytes <= FULL_MATRIX || first) one_row(r, c);
    c.round += 2; /* contents are others, and alltoallv's parts */
  }
}

static unsigned each_kind(struct kit_nccl_rank *r, struct kit_nccl_call c, const struct kit_job *job) {
  char types[512] = "", redops[256] = "", sizes[512];
  bool some_types = kit_job_arg(job, "types") != NULL, some_redops = kit_job_arg(job, "redops") != NULL;
  if (some_types) snprintf(types, sizeof types, "%s", kit_job_arg(job, "types"));
  if (some_redops) snprintf(redops, sizeof redops, "%s", kit_job_arg(job, "redops"));
  snprintf(sizes, sizeof sizes, "%s", kit_job_arg(job, "sizes"));
  unsigned tried = 0;
  for (c.type = 0; kit_nccl_types[c.type]; c.type++)
    for (c.redop = 0; kit_nccl_redops[c.redop] && (c.redop == 0 || kit_nccl_reduces(c.coll)); c.redop++) {
      if (!listed(some_types ? types : NULL, kit_nccl_types[c.type])) continue;
      if (!listed(some_redops ? redops : NULL, kit_nccl_redops[c.redop])) continue;
      if (!built(r, &c) || !kit_nccl_exact(&c)) continue;
      c.root = (int)(tried % (unsigned)c.ranks);
      c.round += 16;
      each_size(r, c, sizes, tried++ == 0);
    }
  return tried;
}

static uint64_t largest(const char *sizes) {
  uint64_t most = 8;
  for (const char *at = sizes; *at;) {
    char *end;
    uint64_t bytes = strtoull(at, &end, 10);
    if (bytes > most) most = bytes;
    at = end + (*end == ',');
  }
  return most;
}

void kit_nccl_process(struct kit_process *self) {
  const struct kit_job *job = kit_process_job(self);
  struct kit_nccl_rank rank, *r = &rank;
  char algo[16], proto[16];
  if (kit_job_arg(job, "scenario")) {
    kit_nccl_scenario(self);
    return;
  }
  struct kit_nccl_call c = {.coll = (enum kit_nccl_coll)kit_job_number(job, "coll", 0),
                            .rank = kit_process_rank(self), .ranks = kit_process_count(self)};
  ENSURE(c.coll < KIT_NCCL_COLLS, "collective %d", (int)c.coll);
  snprintf(algo, sizeof algo, "%s", kit_job_arg(job, "algo"));
  snprintf(proto, sizeof proto, "%s", kit_job_arg(job, "proto"));
  kit_nccl_rank_open(r, self, (size_t)largest(kit_job_arg(job, "sizes")) * (size_t)c.ranks);
  r->algo = algo;
  r->proto = proto;
  r->comm = kit_nccl_make_comm(r);
  unsigned tried = each_kind(r, c, job);
  CUDA(r->cudaStreamSynchronize(r->stream));
  kit_barrier(self);
  kit_nccl_destroy_comm(r, r->comm);
  kit_nccl_rank_close(r);
  ENSURE(!r->wrong[0], "%s", r->wrong);
  if (!tried) kit_skip("this NCCL was built without %s %s, or --types and --redops leave nothing", algo, proto);
}
