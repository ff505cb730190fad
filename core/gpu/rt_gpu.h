/* SPDX-License-Identifier: Apache-2.0
 *
 * What a communicator has of a GPU: a context, the kernel, events, and the host memory that the kernel reaches. All
 * FIFOs have their counters, and a set of slots, in host memory, whatever the transport (others: rt_export.h,
 * rt_gdr.h); each process registers its view of them with CUDA, and the device uses the same addresses as the host.
 * Made when the first call with device buffers needs it.
 */
#ifndef RT_GPU_H
#define RT_GPU_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/result.h"

struct ncclComm;
struct rt_connector;
struct rt_device_launch;
struct rt_plan;

/* Host memory that the device may reach: whole pages, which nothing else shares. */
#define RT_PAGE 4096u
struct rt_range {
  void *base; /* NULL: none */
  size_t size;
};
#define RT_MAX_RANGES 3 /* of a connector */

/* What the driver hands out of a device's memory in one piece. What is exported or registered has such pieces to
 * itself: CUDA IPC exports all that lies in one. */
#define RT_GPU_BLOCK ((size_t)2 << 20)

struct rt_launch_slab;
struct rt_module;

/* A launch's part of a slab, used again and again. */
struct rt_launch_memory {
  struct rt_launch_memory *next;
  char *base;
  size_t size;
  bool used;
};

struct rt_gpu {
  void *context; /* NULL: no call has had device buffers */
  int ordinal;
  bool open, comm_registered, ring_registered, lock_made;
  struct rt_module *module;
  int most_blocks; /* of RT_DEVICE_FEW_THREADS that run side by side; where ranks share the device, as below */
  int wide_blocks; /* of RT_DEVICE_THREADS */
  /* The end of the latest launch; the same inside a stream capture, and in which; for streams that join a launch. */
  void *last, *captured, *join;
  bool has_last;
  bool called_driver; /* to make something for the plan that is being built: rt_launch_lock.h */
  void *own_stream; /* of the runtime; NULL until one is made */
  uint64_t capture; /* 0: none */
  /* Guards slabs, memory; the beginning of a captured plan's launch; connectors' launches, planned. */
  pthread_mutex_t lock;
  struct rt_launch_slab *slabs;
  struct rt_launch_memory *memory;
  struct rt_plan *graphs; /* captured plans */
  bool lost;              /* the device reports errors: nothing there will end any more */
  bool stuck;             /* a kernel did not end in time: memory that it may still use is never freed */
};

/* All of these make the communicator's context current themselves. */

/* Loads the kernel, makes the rest; nothing if that was done. */
rail_result_t rt_gpu_open(struct ncclComm *comm);
/* Registers the connection's FIFO; nothing if that was done. */
rail_result_t rt_gpu_map(struct ncclComm *comm, struct rt_connector *c);
void rt_gpu_unmap(struct ncclComm *comm, struct rt_connector *c);
/* A launch with so many jobs, zeroed but for what is the same for all. */
rail_result_t rt_gpu_launch_get(struct ncclComm *comm, int njobs, struct rt_device_launch **launch);
void rt_gpu_launch_put(struct ncclComm *comm, struct rt_device_launch *launch);
/* Has the device reported an error? Then so does the communicator. */
bool rt_gpu_lost(struct ncclComm *comm);
/* After all kernels have ended. Accepts a zeroed struct. */
void rt_gpu_close(struct ncclComm *comm);

/* The device that is current in the calling thread; -1: none. */
int rt_gpu_current(void);
/* How many multiprocessors a device has; 0: the driver does not tell. */
uint32_t rt_gpu_multiprocessors(int device);

#endif
