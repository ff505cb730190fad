/* SPDX-License-Identifier: Apache-2.0
 * Ghost's kernels with the structs, and the rules for channels and rings, of other NCCL releases than test_ghost's. */
#include "test/unit/ghost_world.h"

/* Four channels share a transfer, of which these are the first two: the second has part 1 of 4, or, where bits are
 * reversed, part 2. Two parts are all there is. */
static void send_by_part(struct world *w) {
  enum { PART = 1024 };
  for (int r = 0; r < w->n; r++) {
    _Alignas(16) char work[GH_P2P_SIZE];
    fill_p2p(w, r, false, work);
    work[GH_P2P_CHANNELS] = 4;
    work[GH_P2P_SEND_CHANNELS] = work[GH_P2P_RECV_CHANNELS] = 2;
    GH_FIELD(uint64_t, work, GH_P2P_SEND_BYTES) = 2 * PART * sizeof(float);
    GH_FIELD(uint64_t, work, GH_P2P_RECV_BYTES) = 2 * PART * sizeof(float);
    struct launch l = make_launch(w, r, 0, 0, work, GH_P2P_SIZE, 1);
    CUDA(run_launch(w, r, &l, &kernel_symbol));
  }
  check_p2p(w, w->layout->parts_reversed ? PART : 2 * PART);
}

/* Works in a ring, whose kernels say, where they do, up to where they have read it, and which works have ended. */
static void send_from_a_ring(struct world *w) {
  enum { RING = 4096, AT = RING - 16 };
  const struct gh_layout *layout = w->layout;
  uint32_t *consumed[MAX_RANKS];
  uint64_t *completed[MAX_RANKS];
  for (int r = 0; r < w->n; r++) {
    _Alignas(16) char work[GH_P2P_SIZE];
    char *ring = device_memory(&w->memory, RING);
    fill_p2p(w, r, false, work);
    work[GH_P2P_FLAGS] |= 1 << 6; /* profiled */
    struct launch l = make_launch(w, r, 0, 0, work, GH_P2P_SIZE, 1);
    memcpy(ring + AT, work, 16);
    memcpy(ring, work + 16, GH_P2P_SIZE - 16);
    GH_FIELD(uint8_t, l.bytes, GH_ARGS_STORAGE) = 1;
    GH_FIELD(uint32_t, l.bytes, GH_ARGS_MASK) = RING - 1;
    GH_FIELD(void *, l.bytes, GH_ARGS_BUFFER) = ring;
    for (size_t i = 0; i < CHANNELS; i++)
      GH_FIELD(uint32_t, l.bytes, GH_ARGS_SIZE + i * GH_BATCH_SIZE + GH_BATCH_OFFSET) = AT;
    consumed[r] = device_memory(&w->memory, sizeof *consumed[r] * GH_MAX_CHANNELS);
    completed[r] = device_memory(&w->memory, sizeof *completed[r] * GH_MAX_CHANNELS);
    if (layout->comm_consumed) GH_FIELD(void *, w->comm[r], layout->comm_consumed) = consumed[r];
    if (layout->profiler == GH_PROFILER_COUNTS) GH_FIELD(void *, w->comm[r], layout->comm_completed) = completed[r];
    CUDA(run_launch(w, r, &l, &kernel_symbol));
  }
  check_p2p(w, w->count);
  for (int r = 0; r < w->n; r++)
    for (int i = 0; i < CHANNELS; i++) {
      ENSURE_INT(consumed[r][i], layout->comm_consumed ? AT + GH_P2P_SIZE : 0);
      ENSURE_INT(completed[r][i], layout->profiler == GH_PROFILER_COUNTS ? 2 : 0); /* the first was send_by_part's */
    }
}

static void run_release(const struct rank *rank, void *arg) {
  struct world w;
  (void)rank;
  setenv("GHOSTNCCL_VERSION", arg, 1);
  world_open(&w, 3, 6000);
  for (int proto = 0; proto < GH_PROTOS; proto++) run_coll(&w, ALL_REDUCE, 1, proto, 0);
  world_close(&w);
  world_open(&w, 2, 5000);
  send_by_part(&w);
  send_from_a_ring(&w);
  world_close(&w);
}

TEST(each_in_a_process_of_its_own) {
  static char releases[][8] = {"22403", "22501", "22602", "22606", "22703", "22803"};
  for (size_t i = 0; i < sizeof releases / sizeof *releases; i++)
    job_run("", 1, kit_patience_ms(30000), run_release, releases[i]);
}

TEST_MAIN(TEST_CASE(each_in_a_process_of_its_own))
