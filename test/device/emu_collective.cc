/* SPDX-License-Identifier: Apache-2.0 */
#include "test/device/emu.cuh"

#include "core/device/rd_block.cuh"
#include "test/device/emu.h"

void emu_collective(struct rt_device_launch *launch, unsigned threads) {
  emu_launch((unsigned)launch->nblocks, threads, [launch] { rd_collective_block(launch); });
}
