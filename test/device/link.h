/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections in plain memory, for tests of kernels: shared memory between two
 * kernels, or two FIFOs with a proxy at each and a wire between them. One thread may
 * move steps over the wire while others run the kernels.
 */
#ifndef DEVICE_LINK_H
#define DEVICE_LINK_H

#include "core/host/rt_conn.h"

#ifdef __cplusplus
extern "C" {
#endif

struct link_half {
  struct rt_slot slot[RT_STEPS];
  char *buff[RT_NPROTO + 1];
  uint64_t tail, credit;
};

struct link {
  struct rt_conn send, recv;
  struct link_half at_send, at_recv; /* at_recv only with a proxy */
  uint64_t slot_size;                /* of all protocols */
  bool proxied;
  uint64_t moved;     /* steps that the proxies have moved */
  const char *broken; /* what a kernel did that a proxy could not live with */
};

/* Bytes of buffers that link_init wants, at a multiple of 128. */
size_t link_bytes(uint64_t slot_size, bool proxied);
void link_init(struct link *l, char *memory, uint64_t slot_size, bool proxied, uint64_t step);

/* Every LL line is as if last written 2^32 steps before the step that comes `ahead` rounds after `step`. */
void link_poison(struct link_half *h, uint64_t slot_size, uint64_t step, uint64_t ahead);

/* What the proxies and the wire do: one step, where sender and receiver allow it. */
bool link_move(struct link *l, enum rt_proto proto);

#ifdef __cplusplus
}
#endif

#endif
