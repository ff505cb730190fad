/* SPDX-License-Identifier: Apache-2.0
 *
 * One rank of a test whose buffers are on the device or on the host: a sum that shows who is missing; and what the
 * runtime has said about it.
 */
#ifndef FAKEGPU_SIDE_H
#define FAKEGPU_SIDE_H

#include <stdio.h>

#include "test/device/gpu/calls.h"

#define MANY 40000 /* more than the 8 slots of 64K hold */
#define SMALL "NCCL_BUFFSIZE=64K NCCL_LL_BUFFSIZE=64K "

struct side {
  ncclComm_t comm;
  void *stream;
  int rank, n;
  int32_t *device, *host;
};

__attribute__((unused)) static void side_open(struct side *s, ncclComm_t comm) {
  *s = (struct side){.comm = comm, .stream = gpu_stream()};
  OK(ncclCommUserRank(comm, &s->rank));
  OK(ncclCommCount(comm, &s->n));
  s->device = gpu_alloc(MANY * sizeof *s->device);
  s->host = malloc(MANY * sizeof *s->host);
  ENSURE(s->host, "out of memory");
}

__attribute__((unused)) static void side_free(const struct side *s) {
  GPU(gpu.cuStreamDestroy_v2(s->stream));
  gpu_free(s->device);
  free(s->host);
}

/* Each rank's summand has a digit of its own, so that one which is missing, or came twice, shows. */
__attribute__((unused)) static void sum(struct side *s, int count) {
  int32_t digits = 0;
  for (int r = 0; r < s->n; r++) digits += 1 << 4 * r;
  for (int i = 0; i < count; i++) s->host[i] = (i % 7 + 1) << 4 * s->rank;
  gpu_put(s->device, s->host, (size_t)count * sizeof *s->host);
  OK(ncclAllReduce(s->device, s->device, (size_t)count, ncclInt32, ncclSum, s->comm, s->stream));
  OK(railCommWait(s->comm));
  GPU(gpu.cuStreamSynchronize(s->stream));
  gpu_get(s->host, s->device, (size_t)count * sizeof *s->host);
  for (int i = 0; i < count; i++)
    ENSURE(s->host[i] == digits * (i % 7 + 1), "rank %d: element %d is %x", s->rank, i, (unsigned)s->host[i]);
}

__attribute__((unused)) static void is_transport(const struct side *s, const char *expected) {
  const char *t = railCommTransports(s->comm);
  ENSURE(strcmp(t, expected) == 0, "rank %d has %s, expected %s", s->rank, t, expected);
}

/* ---- what is logged ---- */

__attribute__((unused)) static int catch_stderr(int *kept) {
  int fd = memfd_create("stderr", 0);
  *kept = dup(2);
  ENSURE(fd >= 0 && *kept >= 0 && dup2(fd, 2) == 2, "stderr cannot be caught");
  return fd;
}

/* What was logged since then. */
__attribute__((unused)) static void release_stderr(int fd, int kept, char text[64 * 1024]) {
  dup2(kept, 2);
  close(kept);
  ENSURE(pread(fd, text, 64 * 1024 - 1, 0) > 0, "nothing was logged");
  close(fd);
}

#endif
