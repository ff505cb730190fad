/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's GPU: device, stream and memory, by the CUDA driver, which is opened when the first rank asks for a GPU.
 * Declarations of our own, so that no toolkit is needed. Results are the driver's; 0 is success.
 */
#ifndef RAIL_COLL_GPU_H
#define RAIL_COLL_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct rc_gpu {
  bool open;
  int device;
  void *context, *stream, *graph; /* graph: ready to be launched, or NULL */
  char bus_id[20], name[64];
};

/* device -1: rank modulo the number of devices. -1: reported on stderr, naming the rank. */
int rc_gpu_open(struct rc_gpu *g, int rank, int device);
/* Accepts one that is not open. */
void rc_gpu_close(struct rc_gpu *g);
/* Makes the device the calling thread's current one; NULL: none is. */
int rc_gpu_use(const struct rc_gpu *g);

/* All below: of the device that g is open on, in any thread. */
int rc_gpu_alloc(const struct rc_gpu *g, size_t size, bool managed, char **memory);
void rc_gpu_free(const struct rc_gpu *g, char *memory);
int rc_gpu_put(const struct rc_gpu *g, char *to, const void *from, size_t size);
int rc_gpu_get(const struct rc_gpu *g, void *to, const char *from, size_t size);
/* Until all that was put on the stream is over. */
int rc_gpu_wait(const struct rc_gpu *g);

/* What is put on the stream between the two becomes the graph; the one before is gone. */
int rc_gpu_capture_begin(struct rc_gpu *g);
int rc_gpu_capture_end(struct rc_gpu *g);
int rc_gpu_launch_graph(const struct rc_gpu *g);

/* "CUDA_ERROR_OUT_OF_MEMORY", or "an unknown error". */
const char *rc_gpu_error(int result);

#endif
