/* SPDX-License-Identifier: Apache-2.0
 * The phases of a cell. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/clock.h"
#include "kit/bench/bench_process.h"
#include "kit/kit_mem.h"

#define ROOM (1u << 20) /* later ones of a phase are not recorded */

bool kit_bench_samples_make(struct kit_bench_samples *samples) {
  *samples = (struct kit_bench_samples){.ns = malloc(ROOM * sizeof *samples->ns), .room = ROOM};
  if (!samples->ns) return false;
  memset(samples->ns, 0xa5, ROOM * sizeof *samples->ns);
  return true;
}

void kit_bench_samples_free(struct kit_bench_samples *samples) {
  free(samples->ns);
  *samples = (struct kit_bench_samples){.ns = NULL};
}

static int compare(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* Sorts them. In us, each divided by `share` (2: half round trips). */
static void sum_up_samples(struct kit_bench_samples *samples, double share, struct kit_bench_record *out) {
  static const size_t rank[] = {0, 500, 900, 990, 999, 1000}; /* of a thousand */
  _Static_assert(RAIL_COUNT_OF(rank) == RAIL_COUNT_OF(out->us), "one place each");
  out->nsamples = samples->n;
  if (samples->n == 0) return;
  qsort(samples->ns, samples->n, sizeof *samples->ns, compare);
  for (size_t i = 0; i < RAIL_COUNT_OF(rank); i++) {
    size_t at = (samples->n - 1) * rank[i] / 1000;
    out->us[i] = (double)samples->ns[at] / 1e3 / share;
  }
}

/* One-way transfers over all conns. A phase begins and ends with nothing in flight, so that its bytes over its
 * time are exact whatever the size. */

enum stage { POSTING, STOPPING, DRAINING };

/* What one neighbour sends the other. */
struct posted {
  uint64_t out[KIT_BENCH_COMMS], in[KIT_BENCH_COMMS]; /* as the sender counts them */
};

struct phase {
  enum stage stage;
  uint64_t until, moved; /* when posting ends; when something last moved */
  bool received[KIT_MAX_PROCESSES];
};

static bool is_neighbour(const struct kit_bench_process *s, int rank) {
  return kit_bench_edge(&s->cell, s->rank, rank) || kit_bench_edge(&s->cell, rank, s->rank);
}

static void stop_posting(struct kit_bench_process *s, struct phase *p) {
  struct posted mine[KIT_MAX_PROCESSES] = {0};
  for (unsigned int i = 0; i < s->nout; i++)
    mine[s->out[i].peer].out[s->out[i].number] = s->out[i].limit = s->out[i].posted;
  for (unsigned int i = 0; i < s->nin; i++)
    mine[s->in[i].peer].in[s->in[i].number] = s->in[i].limit = s->in[i].posted;
  for (int r = 0; r < (int)s->cell.sides; r++)
    if (is_neighbour(s, r)) kit_send_bytes(s->kit, r, &mine[r], sizeof mine[r]);
  p->stage = STOPPING;
}

static void raise_limits(struct kit_bench_process *s, unsigned int rank, const struct posted *theirs) {
  for (unsigned int i = 0; i < s->nout; i++) {
    struct kit_bench_conn *conn = &s->out[i];
    if (conn->peer == rank) conn->limit = RAIL_MAX(conn->limit, theirs->in[conn->number]);
  }
  for (unsigned int i = 0; i < s->nin; i++) {
    struct kit_bench_conn *conn = &s->in[i];
    if (conn->peer == rank) conn->limit = RAIL_MAX(conn->limit, theirs->out[conn->number]);
  }
  /* A receive takes a whole group, so both ends go on to the end of one. */
  for (unsigned int i = 0; i < s->nout; i++)
    if (s->out[i].peer == rank) s->out[i].limit = RAIL_ROUND_UP(s->out[i].limit, s->cell.group);
  for (unsigned int i = 0; i < s->nin; i++)
    if (s->in[i].peer == rank) s->in[i].limit = RAIL_ROUND_UP(s->in[i].limit, s->cell.group);
}

static void receive_from_neighbours(struct kit_bench_process *s, struct phase *p) {
  struct posted theirs;
  bool all = true;
  for (int r = 0; r < (int)s->cell.sides; r++) {
    if (p->received[r] || !is_neighbour(s, r)) continue;
    if (kit_bytes_ready(s->kit, r, sizeof theirs)) {
      kit_recv_bytes(s->kit, r, &theirs, sizeof theirs);
      raise_limits(s, (unsigned int)r, &theirs);
      p->received[r] = true;
    }
    all = all && p->received[r];
  }
  if (all) p->stage = DRAINING;
}

static void look(struct kit_bench_process *s, struct phase *p, bool progress) {
  uint64_t now = rail_now_ns();
  if (progress) p->moved = now;
  if (p->stage == POSTING && now >= p->until) stop_posting(s, p);
  if (p->stage == STOPPING) receive_from_neighbours(s, p);
  kit_bench_check_stall(s, now, p->moved);
}

static uint64_t messages_in(const struct kit_bench_process *s) {
  uint64_t sum = 0;
  for (unsigned int i = 0; i < s->nin; i++) sum += s->in[i].done;
  return sum;
}

static void begin(struct kit_bench_process *s) {
  s->samples.n = 0;
  for (unsigned int i = 0; i < s->nout; i++) s->out[i].limit = UINT64_MAX;
  for (unsigned int i = 0; i < s->nin; i++) {
    s->in[i].limit = UINT64_MAX;
    s->in[i].arrived_ns = 0;
  }
  kit_barrier(s->kit);
}

void kit_bench_transfer(struct kit_bench_process *s, double seconds, struct kit_bench_record *out) {
  const unsigned int mask = s->cell.size < KIT_BENCH_SMALL ? KIT_BENCH_LOOK_MASK : 0;
  unsigned int passes = 0;
  bool moved = false; /* since the last look */
  begin(s);
  uint64_t before = messages_in(s), start = rail_now_ns();
  kit_bench_note_time(s, start);
  struct kit_bench_usage used = kit_bench_usage_now(&s->counters);
  struct phase p = {.until = start + (uint64_t)(seconds * 1e9), .moved = start};
  while (p.stage != DRAINING || !kit_bench_all_done(s)) {
    bool progress = kit_bench_pass(s);
    moved |= progress;
    if (!progress || (++passes & mask) == 0) {
      look(s, &p, moved);
      moved = false;
    }
    if (!progress) kit_bench_idle(s);
  }
  out->seconds = (double)(rail_now_ns() - start) / 1e9;
  out->used = kit_bench_usage_since(&s->counters, &used);
  out->messages = messages_in(s) - before;
  if (s->cell.kind == KIT_BENCH_JITTER) sum_up_samples(&s->samples, 1, out);
}

/* One message at a time to and fro, over one connection each way. Receives are posted ahead, as NCCL's proxy does;
 * the answer leaves before the next receive is posted. */

#define MAX_TRIPS (1u << 20)
#define BATCHES 4 /* at least, once it is known how long a round trip takes */

/* Until `n` messages have come in; sends are driven meanwhile. */
static void await(struct kit_bench_process *s, uint64_t n, uint64_t since) {
  kit_bench_note_time(s, since);
  for (unsigned int passes = 1;; passes++) {
    bool progress = kit_bench_test_in(s, &s->in[0]);
    if (s->in[0].done >= n) return;
    progress |= kit_bench_pass_out(s, &s->out[0]);
    if ((passes & 1023) == 0) kit_bench_check_stall(s, rail_now_ns(), since);
    if (!progress) kit_bench_idle(s);
  }
}

/* The message may wait for room: it leaves in await() then. */
static void send_next(struct kit_bench_process *s) {
  s->out[0].limit++;
  kit_bench_pass_out(s, &s->out[0]);
}

/* Every send done, so that the next batch or the close finds nothing in flight. */
static void drain(struct kit_bench_process *s) {
  uint64_t since = rail_now_ns();
  kit_bench_note_time(s, since);
  while (s->out[0].done < s->out[0].limit) {
    if (kit_bench_pass_out(s, &s->out[0])) continue;
    kit_bench_check_stall(s, rail_now_ns(), since);
    kit_bench_idle(s);
  }
}

static void begin_batch(struct kit_bench_process *s, uint64_t trips) {
  kit_bench_note_time(s, rail_now_ns());
  s->out[0].limit = s->out[0].done;
  s->in[0].limit = s->in[0].done + trips;
  kit_bench_post_in(s, &s->in[0]);
  kit_barrier(s->kit);
}

static void serve(struct kit_bench_process *s, uint64_t trips) {
  uint64_t had = s->in[0].done;
  begin_batch(s, trips);
  for (uint64_t i = 0; i < trips; i++) {
    uint64_t start = rail_now_ns();
    send_next(s);
    await(s, had + i + 1, start);
    uint64_t ns = rail_now_ns() - start;
    if (i > 0 || trips == 1) kit_bench_sample(&s->samples, ns); /* the first follows a pause */
    kit_bench_post_in(s, &s->in[0]);
  }
  drain(s);
}

static void answer(struct kit_bench_process *s, uint64_t trips) {
  uint64_t had = s->in[0].done;
  begin_batch(s, trips);
  for (uint64_t i = 0; i < trips; i++) {
    await(s, had + i + 1, rail_now_ns());
    send_next(s);
    kit_bench_post_in(s, &s->in[0]);
  }
  drain(s);
}

static uint64_t next_batch(const struct kit_bench_process *s, double seconds, double left) {
  if (left <= 0) return 0;
  if (s->round_trip_s <= 0) return 1;
  double trips = RAIL_MIN(left, seconds / BATCHES) / s->round_trip_s;
  return trips < 1 ? 1 : trips > MAX_TRIPS ? MAX_TRIPS : (uint64_t)trips;
}

/* Returns the seconds that the batches took. */
static double lead(struct kit_bench_process *s, double seconds) {
  double spent = 0;
  for (;;) {
    uint64_t trips = next_batch(s, seconds, seconds - spent);
    kit_send_bytes(s->kit, 1, &trips, sizeof trips);
    if (trips == 0) return spent;
    uint64_t start = rail_now_ns();
    serve(s, trips);
    double took = (double)(rail_now_ns() - start) / 1e9;
    /* Beginning and ending a batch takes longer than a round trip: one alone is no measure. */
    s->round_trip_s = trips < 16 ? took / (double)(4 * trips) : took / (double)trips;
    spent += took;
  }
}

static double follow(struct kit_bench_process *s) {
  double spent = 0;
  for (;;) {
    uint64_t trips;
    kit_recv_bytes(s->kit, 0, &trips, sizeof trips);
    if (trips == 0) return spent;
    uint64_t start = rail_now_ns();
    answer(s, trips);
    spent += (double)(rail_now_ns() - start) / 1e9;
  }
}

void kit_bench_pingpong(struct kit_bench_process *s, double seconds, struct kit_bench_record *out) {
  uint64_t before = s->in[0].done;
  s->samples.n = 0;
  struct kit_bench_usage used = kit_bench_usage_now(&s->counters);
  out->seconds = s->rank == 0 ? lead(s, seconds) : follow(s);
  out->used = kit_bench_usage_since(&s->counters, &used);
  out->messages = s->in[0].done - before;
  if (s->rank == 0) sum_up_samples(&s->samples, 2, out);
}

/* Connections made and closed again. A batch is all conns of the cell: the handles are passed first, then all
 * processes meet, and from there on until its last connection is there a process's time counts. So what carries the
 * handles is not in it. The first batch is not counted: it starts what a plugin starts once. */

#define SETTLE_MS 1000 /* closing may go on behind the caller's back for so long */

struct totals {
  double opening_s, closing_s;
  uint64_t connections, closed;
};

static void batch(struct kit_bench_process *s, struct totals *t) {
  kit_bench_listen_all(s);
  kit_barrier(s->kit);
  uint64_t start = rail_now_ns();
  kit_bench_connect_all(s);
  uint64_t open = rail_now_ns();
  for (unsigned int i = 0; i < s->nout; i++) kit_bench_sample(&s->samples, s->out[i].opened_ns - start);
  kit_barrier(s->kit); /* a connection is closed when both ends have it */
  uint64_t closing = rail_now_ns();
  kit_bench_close_all(s);
  t->closing_s += (double)(rail_now_ns() - closing) / 1e9;
  t->opening_s += (double)(open - start) / 1e9;
  t->connections += s->nout;
  t->closed += s->nout + s->nin;
}

/* The first process decides for all. */
static bool go_on(struct kit_bench_process *s, bool wanted) {
  uint8_t flag = wanted;
  if (s->rank != 0) {
    kit_recv_bytes(s->kit, 0, &flag, sizeof flag);
    return flag != 0;
  }
  for (int r = 1; r < (int)s->cell.sides; r++) kit_send_bytes(s->kit, r, &flag, sizeof flag);
  return wanted;
}

/* What there is more than there was before. */
static int left(int (*count)(void), int before) {
  uint64_t deadline = rail_deadline_in_ms(SETTLE_MS);
  while (count() > before && !rail_deadline_passed(deadline)) nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
  return RAIL_MAX(count() - before, 0);
}

void kit_bench_connects(struct kit_bench_process *s, double seconds, struct kit_bench_record *out) {
  struct totals t = {0};
  batch(s, &t);
  kit_barrier(s->kit);
  int fds = kit_fd_count(), threads = kit_thread_count();
  struct kit_bench_usage used = kit_bench_usage_now(&s->counters);
  uint64_t until = rail_now_ns() + (uint64_t)(seconds * 1e9), made = 0;
  uint64_t edges = 0;
  for (int a = 0; a < (int)s->cell.sides; a++)
    for (int b = 0; b < (int)s->cell.sides; b++) edges += kit_bench_edge(&s->cell, a, b);
  t = (struct totals){0};
  s->samples.n = 0;
  while (go_on(s, rail_now_ns() < until && (!s->connects || made < s->connects))) {
    batch(s, &t);
    made += edges * s->cell.comms;
  }
  out->used = kit_bench_usage_since(&s->counters, &used);
  out->seconds = t.opening_s;
  out->messages = t.connections;
  out->close_us = t.closed ? t.closing_s / (double)t.closed * 1e6 : 0;
  sum_up_samples(&s->samples, 1, out);
  kit_barrier(s->kit);
  out->fds_left = left(kit_fd_count, fds);
  out->threads_left = left(kit_thread_count, threads);
}

/* Before anything is timed: a window of messages on every conn, of which each byte is checked. What is timed later
 * is looked at by its ends only. */

#define MAX_BYTES ((uint64_t)64 << 20) /* of a conn, in whole groups of messages */

static uint64_t seed_of(const struct kit_bench_process *s, const struct kit_bench_conn *conn, bool out,
                        unsigned int i) {
  uint64_t from = out ? (uint64_t)s->rank : conn->peer, to = out ? conn->peer : (uint64_t)s->rank;
  return s->job->seed + (from << 56 | to << 48 | (uint64_t)conn->number << 32 | i) * 0x9e3779b97f4a7c15ull;
}

/* Memory of a GPU is reached through a copy. */
static char *workspace(struct kit_bench_process *s) {
  char *copy = s->memory.cuda ? malloc(s->cell.size + 1) : NULL;
  if (s->memory.cuda && !copy) kit_bench_fail(s, KIT_BENCH_ERROR, "no memory for %llu bytes",
                                              (unsigned long long)s->cell.size);
  return copy;
}

static void fill(struct kit_bench_process *s, const struct kit_bench_conn *conn, char *copy, unsigned int i) {
  char *data = conn->base + i * conn->stride;
  kit_pattern_fill(copy ? copy : data, s->cell.size, seed_of(s, conn, true, i));
  if (copy && !kit_bench_memory_write(&s->memory, data, copy, s->cell.size))
    kit_bench_fail(s, KIT_BENCH_ERROR, "CUDA cannot copy to the GPU");
}

static void check(struct kit_bench_process *s, const struct kit_bench_conn *conn, char *copy, unsigned int i) {
  const char *data = conn->base + i * conn->stride;
  if (copy && !kit_bench_memory_read(&s->memory, copy, data, s->cell.size))
    kit_bench_fail(s, KIT_BENCH_ERROR, "CUDA cannot copy from the GPU");
  ssize_t wrong = kit_pattern_check(copy ? copy : data, s->cell.size, seed_of(s, conn, false, i));
  if (wrong >= 0)
    kit_bench_fail(s, KIT_BENCH_WRONG, "message %u of connection %u with side %u, all bytes checked: byte %zd of %llu "
                   "is wrong", i, conn->number, conn->peer, wrong, (unsigned long long)s->cell.size);
}

static void exchange(struct kit_bench_process *s) {
  uint64_t moved = rail_now_ns();
  kit_bench_note_time(s, moved);
  while (!kit_bench_all_done(s)) {
    bool progress = kit_bench_pass(s);
    uint64_t now = rail_now_ns();
    if (progress) moved = now;
    else kit_bench_idle(s);
    kit_bench_check_stall(s, now, moved);
  }
}

void kit_bench_verify(struct kit_bench_process *s) {
  uint64_t fit = MAX_BYTES / (s->cell.size + 1) + 1;
  unsigned int n = (unsigned int)RAIL_MIN(fit, s->window);
  n = RAIL_ROUND_UP(n, s->cell.group);
  char *copy = workspace(s);
  bool marks = s->marks;
  s->marks = false; /* they would lie in the checked bytes */
  for (unsigned int i = 0; i < s->nout; i++) {
    s->out[i].limit = n;
    for (unsigned int m = 0; m < n; m++) fill(s, &s->out[i], copy, m);
  }
  for (unsigned int i = 0; i < s->nin; i++) s->in[i].limit = n;
  kit_barrier(s->kit);
  exchange(s);
  for (unsigned int i = 0; i < s->nin; i++)
    for (unsigned int m = 0; m < n; m++) check(s, &s->in[i], copy, m);
  s->marks = marks;
  free(copy);
}
