/* SPDX-License-Identifier: Apache-2.0
 * What the process has, and its clock. */
#include <time.h>

#include "emu/emu.h"

struct emu_state emu = {.lock = PTHREAD_MUTEX_INITIALIZER, .acked = PTHREAD_COND_INITIALIZER, .ring_bytes = 256 << 10,
                        .run = TAILQ_HEAD_INITIALIZER(emu.run), .next_timer = UINT64_MAX,
                        .next_held = UINT64_MAX};

static uint64_t real_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t emu_now(void) { return real_now() + (uint64_t)emu.clock_skip; }
