/* SPDX-License-Identifier: Apache-2.0
 * The kernel of collectives, which the library has as an image (core/gpu/rt_image.S). */
#include "core/device/rd_block.cuh"

extern "C" __global__ void __launch_bounds__(RT_DEVICE_THREADS) rd_collective(struct rt_device_launch *launch) {
  rd_collective_block(launch);
}
