/* SPDX-License-Identifier: Apache-2.0 */
#include "test/device/emu.cuh"

#include "test/device/emu.h"
#include "test/device/fifo_pair.cuh"

void emu_fifo_pair(const struct fifo_pair *p, unsigned threads) {
  emu_launch(2, threads, [p] { fifo_pair_kernel(*p); });
}

/* Each thread learns of others in every way there is, and compares. */
static bool self_check_thread(void) {
  struct words { unsigned of[64]; };
  RD_SHARED(struct words, shared);
  const unsigned t = threadIdx.x, lane = t % 32, mask8 = 0xffu << (lane - lane % 8);
  bool good = true;
  for (unsigned round = 0; round < 20; round++) {
    shared.of[t] = 100 * round + 1000 * blockIdx.x + t;
    __syncthreads();
    const unsigned next = (t + 33) % 64;
    good = good && shared.of[next] == 100 * round + 1000 * blockIdx.x + next;
    __syncthreads();
    good = good && __shfl_sync(~0u, t + round, 5) == t - lane + 5 + round;
    good = good && __shfl_sync(mask8, (uint64_t)t << 40, lane - lane % 8 + 7) == (uint64_t)(t - t % 8 + 7) << 40;
    good = good && __ballot_sync(~0u, lane == round) == 1u << round;
    good = good && __ballot_sync(mask8, 1) == mask8;
    good = good && __any_sync(mask8, lane % 8 == 3) && !__any_sync(mask8, 0);
    good = good && __all_sync(~0u, 1) && !__all_sync(~0u, lane != round);
    good = good && __syncthreads_or(t == 63) && !__syncthreads_or(0);
  }
  return good;
}

unsigned emu_self_check(void) {
  static unsigned bad;
  __atomic_store_n(&bad, 0, __ATOMIC_RELAXED);
  emu_launch(2, 64, [] {
    if (!self_check_thread()) __atomic_fetch_add(&bad, 1, __ATOMIC_RELAXED);
  });
  return __atomic_load_n(&bad, __ATOMIC_RELAXED);
}
