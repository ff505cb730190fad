/* SPDX-License-Identifier: Apache-2.0
 *
 * Ghost is a GPU without a GPU: the CUDA driver over plain memory. Memory of a device is memory of the host; streams
 * are threads with a queue; kernels are known by their names and run by host code (gh_kernel.h); captured streams
 * become lists that are queued again. It is strict where a real driver may let pass what goes wrong elsewhere:
 *   - a call without a current context, or on a handle that is not alive, is refused;
 *   - a kernel that would touch memory which is neither the device's nor registered ends with an error
 *     that all later calls return, as CUDA's do;
 *   - what is forbidden while a stream captures, is;
 *   - mapped memory is for the devices that were given access, and for none before that;
 *   - kernels of a graph must be ordered, since here they are one communicator's;
 *   - calls that may synchronize with the context in a real driver do so here, see gh_wait.c; if the context's work
 *     does not end, the process does, with a line that names the call;
 *   - kernels begin when all their blocks find room on the device beside those that run;
 *   - host functions run one at a time, and may not make calls; neither may destructors of user objects.
 *
 * From the environment:
 *   GHOST_FAIL="cuLaunchKernel:2 kernel:3"   the 2nd call of a name fails; the 3rd kernel does
 *   GHOST_DEVICES=2                          number of devices, 1 unless told
 *   GHOST_ATTRIBUTES=75:9,124:0              what cuDeviceGetAttribute says, where that shall be otherwise
 *   GHOST_VERSION=11080                      of CUDA; 13000 unless told
 *   GHOST_PEERS=none|nvlink                  devices do not reach each other; do so over NVLink; unless told, PCIe
 *   GHOST_MAPPING=waits                      registering and allocating memory waits for what runs, too
 *   GHOST_MAPPED=zeros                       what cuMemCreate's memory holds, as NVIDIA's driver has it; else garbage
 *   GHOST_PATIENCE=20                        seconds without an end of any work until a call that waits for what runs
 *                                            in the context, or a kernel that waits for room, is taken for a deadlock
 */
#ifndef GH_DRIVER_H
#define GH_DRIVER_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ghost/driver/gh_cuda.h"

/* cuda.h's results. */
enum {
  OK = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  PEER_ACCESS_UNSUPPORTED = 217,
  FILE_NOT_FOUND = 301,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_READY = 600,
  NOT_PERMITTED = 800,
  ILLEGAL_ADDRESS = 700,
  LAUNCH_FAILED = 719,
  PEER_ACCESS_ALREADY_ENABLED = 704,
  ALREADY_REGISTERED = 712,
  NOT_REGISTERED = 713,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_UNJOINED = 904,
  CAPTURE_ISOLATION = 905,
  CAPTURE_IMPLICIT = 906,
  CAPTURED_EVENT = 907,
  UNORDERED = 9001, /* none of cuda.h's: two kernels of a graph that may run side by side */
};

enum { MODE_GLOBAL = 0, MODE_RELAXED = 2 };

/* Every call begins with one of these: counts it, makes it fail if that was asked for, and checks what it needs. */
int gh_enter(const char *call);         /* the driver is initialised, no kernel has failed */
int gh_enter_context(const char *call); /* and a context is current */
int gh_enter_unsafe(const char *call);  /* and no capture forbids the call to this thread */
int gh_enter_ending(const char *call);  /* for what gives something back, which a failed kernel does not hinder */
/* The n-th event of a name: does the environment want it to fail? */
bool gh_should_fail(const char *name);

/* The context that is current in this thread. */
struct gh_context { int device; };
struct gh_context *gh_context(void);
/* NULL: it is no function. */
const char *gh_function_name(const void *function, const struct gh_context **context);
int gh_capture_mode(void);

/* May a kernel of the context touch all of [p, p+size)? It may if that is its own memory, managed, registered, or that
 * of a context to which it has peer access. NULL: may any? */
bool gh_reachable(const void *p, size_t size, const struct gh_context *context);
/* Does [p, p+size) begin in memory that the driver knows, and end outside of it? */
bool gh_exceeds_allocation(const void *p, size_t size);
/* Is it a device's memory, rather than registered memory of the host? */
bool gh_on_device(const void *p);
int gh_devices(void);
int gh_attribute(int attribute);
/* How many blocks of so many threads a device has room for. */
unsigned gh_max_resident_blocks(unsigned threads);
bool gh_is_context(const void *context);

/* Memory opened from another process' IPC handle; like cuMemAlloc's, but not owned. */
bool gh_add_imported(void *base, size_t size); /* false: out of memory */
bool gh_remove_imported(const void *base);
/* Adds mapped memory of `device` that the devices in the bit mask `access` may use; if the range is already there, only
 * replaces its mask. False: out of memory. */
bool gh_add_mapped(void *base, size_t size, int device, unsigned access, bool rdma);
void gh_remove_mapped(const void *base);

/* gh_wait.c. For calls that may synchronize with the context: waits until all its earlier work is over. */
void gh_wait_for(const char *call, const struct gh_context *context);
/* For calls that may do so by CUDA's documentation, and do not in known drivers: waits with GHOST_MAPPING=waits. */
void gh_may_wait_for(const char *call, const struct gh_context *context);
void gh_wait_for_all(const char *call);
/* For calls on the legacy stream: waits for it, and for blocking streams. */
void gh_wait_for_legacy(const char *call);
/* Prints the line and ends the process. */
__attribute__((noreturn, format(printf, 1, 2))) void gh_deadlock(const char *format, ...);
/* calloc of the driver's own; out of memory ends the process with a line. */
void *gh_need(size_t size);
/* While a host function runs in this thread, it may make no calls. */
void gh_enter_callback(void);
void gh_leave_callback(void);
bool gh_in_callback(void);

/* gh_peer.c: may a kernel of the one context touch memory of the other? */
bool gh_has_peer_access(const struct gh_context *from, const struct gh_context *to);
bool gh_can_access_peers(void); /* do devices reach each other? */
/* May an allocation of that size be exported? Such ones lie where other processes find them from the start. */
bool gh_is_exportable(size_t size);
void *gh_allocate_exportable(size_t size); /* NULL: out of memory */
void gh_free_exportable(void *base);
/* From now on every call returns it. */
void gh_set_sticky_error(int result);
bool gh_has_sticky_error(void);

/* Does a capture under way forbid this call? Then that capture is invalid from now on. */
bool gh_invalidate_captures(void);

/* How often a call was made; how many are alive of what calls make and unmake: "registered", "allocated", "host memory"
 * (cuMemHostAlloc's), "modules", "events", "streams", "graphs", "objects", "opened" (memory of other processes),
 * "handles" and "mapped" (memory), "reserved" (addresses); "freed while open": how often that was done to others. For
 * tests. */
GH_API long ghost_calls(const char *name);
GH_API long ghost_live(const char *what);
void gh_count_live(const char *what, int change);

#endif
