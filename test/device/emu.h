/* SPDX-License-Identifier: Apache-2.0
 * The device sources on the CPU executor, for tests in C. */
#ifndef DEVICE_EMU_H
#define DEVICE_EMU_H

#include "core/host/rt_device.h"
#include "core/host/rt_reduce_copy.h"
#include "test/device/fifo_pair.h"

#ifdef __cplusplus
extern "C" {
#endif

bool emu_reduce_copy(const struct rt_reduce_copy *w, unsigned blocks, unsigned threads);
/* All jobs of the launch; returns when they have ended. Threads of a block: any number, for LL128 a multiple of 8. */
void emu_collective(struct rt_device_launch *launch, unsigned threads);
/* Two blocks; returns when both have ended. */
void emu_fifo_pair(const struct fifo_pair *p, unsigned threads);
/* What the executor itself has to do right: the number of threads, of 2 blocks of 64, that saw a wrong value. */
unsigned emu_self_check(void);

#ifdef __cplusplus
}
#endif

#endif
