/* SPDX-License-Identifier: Apache-2.0 */
#include "test/device/emu.cuh"

#include "core/device/rd_reduce.cuh"
#include "test/device/emu.h"

bool emu_reduce_copy(const struct rt_reduce_copy *w, unsigned blocks, unsigned threads) {
  if (!rd_work_is_valid(w)) return false;
  emu_launch(blocks, threads, [w] { rd_reduce_copy_block(*w); });
  return true;
}
