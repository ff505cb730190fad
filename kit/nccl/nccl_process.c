/* SPDX-License-Identifier: Apache-2.0
 * One process: a communicator made, one collective with all sizes, types and operations, contents checked. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "kit/kit_filter.h"
#include "kit/nccl/nccl_counters.h"
#include "kit/nccl/nccl_rank.h"

#define FULL_MATRIX (64u << 10) /* bytes up to which all types and operations are tried; beyond: the first of them */

/* The ranks of this process: one thread makes their calls. */
struct ranks {
  struct kit_process *self;
  struct kit_nccl_rank of[KIT_NCCL_MAX_GPUS];
  int n, per_host;
  uint64_t between_hosts; /* bytes that hosts had to send each other so far */
};

/* Microseconds; the number of wrong elements is added. */
static double one_call(struct ranks *all, const struct kit_nccl_call *c, bool in_place, size_t *wrong) {
  struct kit_nccl_call calls[KIT_NCCL_MAX_GPUS];
  for (int i = 0; i < all->n; i++) {
    calls[i] = *c;
    calls[i].rank = all->of[i].rank;
    kit_nccl_prepare(&all->of[i], &calls[i], in_place);
  }
  uint64_t start = rail_now_ns();
  int result = all->n == 1 ? kit_nccl_start(all->of, calls, in_place)
                           : kit_nccl_start_all(all->of, calls, all->n, in_place);
  ENSURE(result == 0, "%s of %zu %s: NCCL result %s: %s", kit_nccl_colls[c->coll], c->count, kit_nccl_types[c->type],
         kit_rc_text(result), kit_nccl_last_error(all->of));
  for (struct kit_nccl_rank *r = all->of; r < all->of + all->n; r++) NCCL(r, kit_nccl_wait(r));
  double us = (double)(rail_now_ns() - start) / 1e3;
  for (int i = 0; i < all->n; i++) kit_nccl_finish(&all->of[i], &calls[i], in_place, wrong);
  return us;
}

/* What all processes found, at the first. */
static size_t sum_wrong(struct kit_process *self, size_t mine) {
  uint64_t sum = mine, other;
  if (kit_process_rank(self) > 0) {
    kit_send_bytes(self, 0, &sum, sizeof sum);
    return mine;
  }
  for (int from = 1; from < kit_process_count(self); from++) {
    kit_recv_bytes(self, from, &other, sizeof other);
    sum += other;
  }
  return (size_t)sum;
}

static void one_row(struct ranks *all, struct kit_nccl_call c) {
  c.rank = all->of[0].rank;
  bool places = kit_nccl_in_place(&c) >= 0;
  size_t wrong[2] = {0, 0};
  double us[2] = {0, 0};
  for (int i = 0; i < 1 + places; i++) {
    c.round++;
    us[i] = one_call(all, &c, i == 1, &wrong[i]);
    wrong[i] = sum_wrong(all->self, wrong[i]);
    all->between_hosts += kit_nccl_between_hosts(&c, all->per_host);
  }
  char inside[64] = "          -        -";
  if (places) snprintf(inside, sizeof inside, "%11.1f %8zu", us[1], wrong[1]);
  bool rooted = c.coll == KIT_NCCL_BROADCAST || c.coll == KIT_NCCL_REDUCE;
  if (kit_process_rank(all->self) == 0)
    kit_note(all->self, "%12zu %12zu %9s %6s %4d %11.1f %8zu %s", c.count * kit_nccl_type_size(c.type), c.count,
             kit_nccl_types[c.type], kit_nccl_reduces(c.coll) ? kit_nccl_redops[c.redop] : "-", rooted ? c.root : -1,
             us[0], wrong[0], inside);
}

/* ---- which calls ---- */

enum { COMPUTE_MAJOR = 75, COMPUTE_MINOR = 76 }; /* CUDA's */
enum { AVG = 4, FP8_FROM_MAJOR = 9, FP8_COPIED_FROM = 22803 }; /* NCCL's */

/* Why a call is left out. */
enum reason { NONE, NOT_BUILT, PAT_AVERAGE, INEXACT, FP8, REASONS };

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
           !reduces                      ? "Copy"
           : c->redop == AVG && integers ? "SumPostDiv"
                                         : redops[c->redop],
           reduces ? types[c->type] : "i8", r->algo, r->proto);
  return r->has(text);
}

/* NCCL takes fp8 numbers for reductions from compute capability 9.0 on; before 2.28.3 for any collective. */
static bool refuses_fp8(const struct kit_nccl_rank *r, const struct kit_nccl_call *c) {
  int version, major;
  if (!kit_nccl_is_fp8(c->type) || c->coll >= KIT_NCCL_SENDRECV) return false;
  NCCL(r, r->ncclGetVersion(&version));
  CUDA(r->cudaDeviceGetAttribute(&major, COMPUTE_MAJOR, r->gpu));
  return major < FP8_FROM_MAJOR && (kit_nccl_reduces(c->coll) || version < FP8_COPIED_FROM);
}

static enum reason why_not(const struct kit_nccl_rank *r, const struct kit_nccl_call *c) {
  if (refuses_fp8(r, c)) return FP8;
  if (!kit_nccl_exact(c)) return INEXACT;
  if (kit_nccl_reduces(c->coll) && c->redop == AVG && strcmp(r->algo, "PAT") == 0) return PAT_AVERAGE;
  return built(r, c) ? NONE : NOT_BUILT;
}

static void each_size(struct ranks *all, struct kit_nccl_call c, const char *sizes, bool first) {
  for (const char *at = sizes; *at;) {
    char *end;
    uint64_t bytes = strtoull(at, &end, 10);
    at = end + (*end == ',');
    c.count = bytes / kit_nccl_type_size(c.type);
    if (bytes <= FULL_MATRIX || first) one_row(all, c);
    c.round += 2; /* contents are others, and alltoallv's parts */
  }
}

/* The number of kinds of calls that were tried; left_out: how many were not, by reason. */
static unsigned each_kind(struct ranks *all, struct kit_nccl_call c, const struct kit_job *job,
                          unsigned left_out[REASONS]) {
  char types[512] = "", redops[256] = "", sizes[512];
  bool some_types = kit_job_arg(job, "types") != NULL, some_redops = kit_job_arg(job, "redops") != NULL;
  if (some_types) snprintf(types, sizeof types, "%s", kit_job_arg(job, "types"));
  if (some_redops) snprintf(redops, sizeof redops, "%s", kit_job_arg(job, "redops"));
  snprintf(sizes, sizeof sizes, "%s", kit_job_arg(job, "sizes"));
  bool reduces = kit_nccl_reduces(c.coll);
  unsigned tried = 0;
  for (c.type = 0; kit_nccl_types[c.type]; c.type++)
    for (c.redop = 0; kit_nccl_redops[c.redop] && (c.redop == 0 || reduces); c.redop++) {
      if (some_types && !kit_list_has(types, kit_nccl_types[c.type])) continue;
      if (some_redops && reduces && !kit_list_has(redops, kit_nccl_redops[c.redop])) continue;
      enum reason reason = why_not(&all->of[0], &c);
      left_out[reason]++;
      if (reason != NONE) continue;
      c.root = (int)(tried % (unsigned)c.ranks);
      c.round += 16;
      each_size(all, c, sizes, tried++ == 0);
    }
  return tried;
}

static _Noreturn void skip(const struct kit_nccl_rank *r, const unsigned left_out[REASONS]) {
  char texts[REASONS][160] = {"", "", "NCCL's PAT makes no averages"}, why[REASONS * sizeof *texts] = "";
  int major, minor;
  CUDA(r->cudaDeviceGetAttribute(&major, COMPUTE_MAJOR, r->gpu));
  CUDA(r->cudaDeviceGetAttribute(&minor, COMPUTE_MINOR, r->gpu));
  snprintf(texts[NOT_BUILT], sizeof *texts, "this NCCL was built without %s %s of these types and operations", r->algo,
           r->proto);
  snprintf(texts[INEXACT], sizeof *texts, "averages of %d ranks are rounded, so there is nothing to compare them with; "
           "take a power of two, or integers", r->n);
  snprintf(texts[FP8], sizeof *texts, "this NCCL refuses fp8 here below compute capability %d.0, and the emulated GPU "
           "has %d.%d", FP8_FROM_MAJOR, major, minor);
  for (int i = NOT_BUILT; i < REASONS; i++) {
    if (!left_out[i]) continue;
    if (why[0]) strncat(why, "; ", sizeof why - strlen(why) - 1);
    strncat(why, texts[i], sizeof why - strlen(why) - 1);
  }
  kit_skip("%s", why);
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

/* Before 2.27 each of several ranks that send through one proxy (PXN) opens the connection that they are to share, at
 * the same time, and each side keeps the one that it has first: it may be the one that the peer closes. */
static void skip_if_connected_twice(struct kit_nccl_rank *r, enum kit_nccl_coll coll) {
  const struct kit_job *job = kit_process_job(r->self);
  const char *disabled = getenv("NCCL_PXN_DISABLE");
  bool through_another = kit_job_number(job, "ranks_per_host", 1) > 1 && kit_job_number(job, "gdr", 0) &&
                         !(disabled && strcmp(disabled, "1") == 0);
  if (through_another && (coll == KIT_NCCL_ALLTOALL || coll == KIT_NCCL_ALLTOALLV) && kit_nccl_version(r) < 22700)
    kit_skip("NCCL before 2.27 makes two connections at once where ranks of a host share one (PXN), and may keep the "
             "one that its peer has closed; set NCCL_PXN_DISABLE=1");
}

static void open_ranks(struct ranks *all, enum kit_nccl_coll coll, const char *algo, const char *proto) {
  const struct kit_job *job = kit_process_job(all->self);
  all->n = (int)kit_job_number(job, "gpus_per_process", 1);
  all->per_host = (int)kit_job_number(job, "ranks_per_host", all->n);
  ENSURE(all->n >= 1 && all->n <= KIT_NCCL_MAX_GPUS, "%d GPUs a process", all->n);
  ENSURE(all->per_host >= all->n, "%d ranks a host", all->per_host);
  size_t ranks = (size_t)(kit_process_count(all->self) * all->n);
  for (int i = 0; i < all->n; i++) {
    kit_nccl_rank_open(&all->of[i], all->self, i, (size_t)largest(kit_job_arg(job, "sizes")) * ranks);
    all->of[i].algo = algo;
    all->of[i].proto = proto;
  }
  skip_if_connected_twice(&all->of[0], coll);
  kit_nccl_make_comms(all->of, all->n);
}

static void close_ranks(struct ranks *all) {
  for (struct kit_nccl_rank *r = all->of; r < all->of + all->n; r++) CUDA(r->cudaStreamSynchronize(r->stream));
  kit_barrier(all->self);
  kit_nccl_destroy_comms(all->of, all->n);
  for (struct kit_nccl_rank *r = all->of; r < all->of + all->n; r++) kit_nccl_rank_close(r);
}

void kit_nccl_process(struct kit_process *self) {
  const struct kit_job *job = kit_process_job(self);
  struct ranks all = {.self = self};
  char algo[16], proto[16];
  if (kit_job_arg(job, "scenario")) {
    kit_nccl_scenario(self);
    return;
  }
  struct kit_nccl_call c = {.coll = (enum kit_nccl_coll)kit_job_number(job, "coll", 0)};
  ENSURE(c.coll < KIT_NCCL_COLLS, "collective %d", (int)c.coll);
  snprintf(algo, sizeof algo, "%s", kit_job_arg(job, "algo"));
  snprintf(proto, sizeof proto, "%s", kit_job_arg(job, "proto"));
  if (strcmp(algo, "PAT") == 0 && kit_job_number(job, "ranks_per_host", 1) > 1)
    kit_skip("NCCL has PAT only where each rank is a host; leave out --ranks-per-host and --gpus-per-process");
  open_ranks(&all, c.coll, algo, proto);
  c.ranks = all.of[0].n;
  unsigned left_out[REASONS] = {0}, tried = each_kind(&all, c, job, left_out);
  kit_nccl_report_counters(self, all.between_hosts);
  close_ranks(&all);
  for (int i = 0; i < all.n; i++) ENSURE(!all.of[i].wrong[0], "%s", all.of[i].wrong);
  if (!tried) skip(&all.of[0], left_out);
}
