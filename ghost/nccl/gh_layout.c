/* SPDX-License-Identifier: Apache-2.0
 * The table of NCCL's releases. test/e2e/test_kit_nccl.py runs those that a machine has. */
#include "ghost/nccl/gh_layout.h"

#include <stdio.h>

/* struct ncclKernelComm; until 2.26 it has what kernels have consumed before the rest. */
#define COMM(abort) \
  .comm_abort = (abort), .comm_channels = (abort) + 8, .comm_started = (abort) + 24, .comm_completed = (abort) + 32
#define COMM_WITHOUT_PROFILER .comm_consumed = 40, .comm_abort = 56, .comm_channels = 64
/* struct ncclDevChannel; since 2.29 its ring has the inverse of its ranks, too. */
#define CHANNEL(index) .channel_index = (index), .channel_up = (index) + 12, .channel_down = (index) + 16
/* struct ncclDevWorkColl; 2.30 aligns its parts. */
#define COLL_96 \
  .coll_size = 96, .coll_recv = 8, .coll_send = 16, .coll_counts = 56, .coll_grains = 80, .coll_argument = 88
#define COLL_128 \
  .coll_size = 128, .coll_recv = 24, .coll_send = 32, .coll_counts = 80, .coll_grains = 104, .coll_argument = 112
/* Rows: send and receive; all-gather by four algorithms, broadcast, since 2.29 batched broadcasts, each by protocol. */
#define ROWS(collectives) .rows_before_all_reduce = 1 + (collectives) * GH_PROTOS

static const struct gh_layout layouts[] = {
    {.oldest = 22403, .newest = 22403, .max_channels = 32, .parts_reversed = true, COMM_WITHOUT_PROFILER,
     .profiler = GH_PROFILER_NONE, .channels = 80, .channel_size = 368, CHANNEL(24), COLL_96, ROWS(4 + 1)},
    {.oldest = 22501, .newest = 22501, .max_channels = 64, .parts_reversed = true, COMM_WITHOUT_PROFILER,
     .profiler = GH_PROFILER_NONE, .channels = 80, .channel_size = 352, CHANNEL(24), COLL_96, ROWS(4 + 1)},
    {.oldest = 22602, .newest = 22606, .max_channels = 64, .parts_reversed = true, .comm_consumed = 40, COMM(56),
     .profiler = GH_PROFILER_COUNTS, .channels = 96, .channel_size = 368, .channel_counter = 352, CHANNEL(24), COLL_96,
     ROWS(4 + 1)},
    {.oldest = 22703, .newest = 22707, .max_channels = 64, .parts_reversed = true, COMM(48),
     .profiler = GH_PROFILER_EVENTS, .channels = 96, .channel_size = 368, .channel_counter = 352, CHANNEL(24), COLL_96,
     ROWS(4 + 1)},
    {.oldest = 22803, .newest = 22809, .max_channels = 64, COMM(48), .profiler = GH_PROFILER_EVENTS, .channels = 96,
     .channel_size = 368, .channel_counter = 352, CHANNEL(24), COLL_96, ROWS(4 + 1)},
    {.oldest = 22902, .newest = 22907, .max_channels = 64, COMM(48), .profiler = GH_PROFILER_EVENTS, .channels = 96,
     .channel_size = 368, .channel_counter = 360, CHANNEL(32), COLL_96, ROWS(4 + 1 + 1)},
    {.oldest = 23003, .newest = 23007, .max_channels = 64, COMM(48), .profiler = GH_PROFILER_EVENTS, .channels = 96,
     .channel_size = 368, .channel_counter = 360, CHANNEL(32), COLL_128, ROWS(4 + 1 + 1)},
};

const struct gh_layout *gh_layout_of(int version) {
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
    if (layouts[i].oldest <= version && version <= layouts[i].newest) return &layouts[i];
  return NULL;
}

const char *gh_layout_versions(void) {
  static char text[32 * sizeof layouts / sizeof *layouts];
  size_t used = 0;
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    int from = layouts[i].oldest, to = layouts[i].newest;
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%d.%d.%d", i ? ", " : "", from / 10000,
                             from / 100 % 100, from % 100);
    if (to > from)
      used += (size_t)snprintf(text + used, sizeof text - used, " to %d.%d.%d", to / 10000, to / 100 % 100, to % 100);
  }
  return text;
}
