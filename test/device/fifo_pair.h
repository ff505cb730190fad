/* SPDX-License-Identifier: Apache-2.0
 *
 * A producer block and a consumer block over one FIFO: the kernel that tests of
 * the protocols launch, on the CPU executor or a GPU. Step s carries
 * fifo_pair_bytes(s) bytes, the next ones of src, to the same place in dst.
 */
#ifndef DEVICE_FIFO_PAIR_H
#define DEVICE_FIFO_PAIR_H

#include <stdint.h>

#include "core/host/rt_conn.h"
#include "core/host/rt_types.h"

#define FIFO_PRODUCER 1u /* block 0 */
#define FIFO_CONSUMER 2u /* block 1 */
#define FIFO_LL128 RD_LL128

struct fifo_pair {
  int proto;      /* RT_SIMPLE, RT_LL, FIFO_LL128 */
  unsigned roles; /* which of the blocks do something */
  char *buff;
  uint64_t slot_size;
  struct rt_slot *slot;
  uint64_t *tail, *credit;
  uint32_t *abort;
  const char *src;
  char *dst;
  uint64_t first, steps; /* steps [first, first + steps) */
  uint64_t most;         /* bytes of a step */
  uint32_t *gave_up;     /* a word for each block: 1 aborted, 2 a step of a wrong size came */
};

RT_HD uint64_t fifo_pair_bytes(const struct fifo_pair *p, uint64_t step) { return step * 37 % (p->most + 1); }

#endif
