/* SPDX-License-Identifier: Apache-2.0
 *
 * Every collective on buffers of the device, compared with the same collective on
 * buffers of the host, whose results other tests compare with scalar code.
 */
#ifndef FAKEGPU_CHECK_H
#define FAKEGPU_CHECK_H

#include <stdlib.h>

#include "test/device/gpu/calls.h"

/* Bits are compared: the host must reduce in the order in which kernels do, step by step. */
__attribute__((constructor)) static void gpu_rings(void) {
  setenv("RAIL_SMALL_MAX", "0", 0);
  setenv("RAIL_PAT_MAX_NET", "0", 0);
  setenv("RAIL_EXCHANGE_MAX", "0", 0); /* of more than two ranks the host's alone */
}

/* Several threads launch: their numbers are not one's own. */
static bool gpu_launches_are_shared;

/* The call on the host, then on the device, with equal input; both leave bytes that they do not own. */
__attribute__((unused)) static void gpu_check(const struct gpu_call *c, struct gpu_buffers *b, ncclComm_t comm,
                                              void *stream, unsigned seed) {
  int rank, n;
  OK(ncclCommUserRank(comm, &rank));
  OK(ncclCommCount(comm, &n));
  size_t bytes = c->count * gpu_type_size(c->type) * (size_t)n;
  ENSURE(bytes <= b->size, "%zu bytes are too many", bytes);
  gpu_fill(b->host_send, bytes, c->type, seed + (unsigned)rank);
  memset(b->host_recv, 0x11, b->size);
  gpu_put(b->send, b->host_send, bytes);
  gpu_put(b->recv, b->host_recv, b->size);
  if (!b->on_host) OK(ncclCommSplit(comm, 0, rank, &b->on_host, NULL));
  OK(gpu_make(c, b->host_send, b->host_recv, b->on_host, NULL));
  OK(railCommWait(b->on_host));
  long launches = gpu.calls ? gpu.calls("cuLaunchKernel") : 0;
  OK(gpu_make(c, b->send, b->recv, comm, stream));
  GPU(gpu.cuStreamSynchronize(stream));
  if (gpu.calls) launches = gpu.calls("cuLaunchKernel") - launches;
  ENSURE(!gpu.calls || launches == 1 || gpu_launches_are_shared, "%ld launches for one call", launches);
  gpu_get(b->got, b->recv, b->size);
  size_t i = 0;
  if (memcmp(b->got, b->host_recv, b->size) != 0)
    while (b->got[i] == b->host_recv[i]) i++;
  else
    i = b->size; /* not byte by byte: under the thread sanitizer that was a third of the time */
  ENSURE(i == b->size,
         "%s of %zu elements of type %d, op %d, root %d, rank %d of %d: byte %zu is %d on the device, %d on the host",
         gpu_call_names[c->coll], c->count, (int)c->type, (int)c->op, c->root, rank, n, i, b->got[i], b->host_recv[i]);
}

#endif
