/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded into rail-coll: damages what one rank's ncclAllReduce of one count
 * produced, after it has finished, to see that the damage is found.
 *   CORRUPT_KIND=result|outside|input   flip a bit of the result, write the byte
 *                                       after its end, change an input
 *   CORRUPT_RANK, CORRUPT_COUNT         whose, and of how many elements
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rail/railyard.h"

static struct {
  ncclComm_t comm;
  const void *send;
  void *recv;
  size_t bytes;
} last;

static int number(const char *name) {
  const char *text = getenv(name);
  return text ? atoi(text) : -1;
}

/* dlsym gives an object pointer; POSIX promises that it holds the function's address. */
static void real(const char *name, void *function) {
  void *address = dlsym(RTLD_NEXT, name);
  memcpy(function, &address, sizeof address);
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  static ncclResult_t (*next)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t);
  int rank = -1;
  if (!next) real("ncclAllReduce", &next);
  if (ncclCommUserRank(comm, &rank) == ncclSuccess && rank == number("CORRUPT_RANK") &&
      count == (size_t)number("CORRUPT_COUNT") && datatype == ncclFloat32) {
    last.comm = comm;
    last.send = sendbuff;
    last.recv = recvbuff;
    last.bytes = count * sizeof(float);
  }
  return next(sendbuff, recvbuff, count, datatype, op, comm, stream);
}

ncclResult_t railCommWait(ncclComm_t comm) {
  static ncclResult_t (*next)(ncclComm_t);
  const char *kind = getenv("CORRUPT_KIND");
  if (!next) real("railCommWait", &next);
  ncclResult_t result = next(comm);
  if (!kind || last.comm != comm || !last.recv) return result;
  unsigned char *out = last.recv, *in = (unsigned char *)(uintptr_t)last.send;
  if (strcmp(kind, "result") == 0) out[last.bytes / 2] ^= 0x10;
  if (strcmp(kind, "outside") == 0) out[last.bytes] ^= 0x10;
  if (strcmp(kind, "input") == 0 && in != out) in[0] ^= 0x10;
  last.recv = NULL;
  return result;
}
