/* SPDX-License-Identifier: Apache-2.0
 *
 * libfakegpu.so: the CUDA driver over plain memory, so that all of the host's side of device plans can be tested
 * where there is no GPU. Streams are threads with a queue; kernels run on the CPU executor
 * (test/device/emu.cuh); captured streams become lists that are queued again. It is strict where a real driver
 * may let pass what goes wrong elsewhere, or later:
 *   - a call without a current context, or on a handle that is not alive, is refused;
 *   - a kernel that would touch memory which is neither the device's nor registered ends with an error
 *     that all later calls return, as CUDA's do;
 *   - what is forbidden while a stream captures, is;
 *   - mapped memory is for the devices that were allowed to use it, and for nobody before that;
 *   - kernels of a graph must be ordered, since here they are one communicator's;
 *   - calls that a real driver may have wait for what runs in the context do wait for it, see wait.c; if that does not
 *     end, neither would they, so the process does, with a line that names the call;
 *   - kernels begin when all their blocks find room on the device beside those that run;
 *   - host functions run one at a time, and may not make calls; neither may destructors of user objects.
 *
 * From the environment:
 *   FAKEGPU_FAIL="cuLaunchKernel:2 kernel:3"   the 2nd call of a name fails; the 3rd kernel does
 *   FAKEGPU_DEVICES=2                          number of devices, 1 unless told
 *   FAKEGPU_ATTRIBUTES=75:9,124:0              what cuDeviceGetAttribute says, where that shall be otherwise
 *   FAKEGPU_VERSION=11080                      of CUDA; 12080 unless told
 *   FAKEGPU_PEERS=none|nvlink                  devices do not reach each other; do so over NVLink; unless told, PCIe
 *   FAKEGPU_MAPPING=waits                      registering and allocating memory waits for what runs, too
 *   FAKEGPU_PATIENCE=20                        seconds until something that waits is taken for a deadlock
 */
#ifndef FAKEGPU_FAKE_H
#define FAKEGPU_FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_DEVICES 8
#define API __attribute__((visibility("default")))

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
int fake_enter(const char *call);         /* the driver is initialised, no kernel has failed */
int fake_enter_context(const char *call); /* and a context is current */
int fake_enter_unsafe(const char *call);  /* and no capture forbids the call to this thread */
int fake_enter_ending(const char *call);  /* for what gives something back, which a failed kernel does not hinder */
/* The n-th event of a name: does the environment want it to fail? */
bool fake_wanted(const char *name);

/* The context that is current in this thread. */
struct context { int device; };
struct context *fake_context(void);
struct context *fake_function_context(const void *function); /* NULL: it is no function */
int fake_capture_mode(void);

/* May a kernel of the context touch all of [p, p+size)? It may if that is its own memory, managed, registered, or that
 * of a context to which it has peer access. NULL: may any? */
bool fake_reachable(const void *p, size_t size, const struct context *context);
/* Is it a device's memory, rather than registered memory of the host? */
bool fake_on_device(const void *p);
int fake_devices(void);
int fake_attribute(int attribute);
/* How many blocks of so many threads a device has room for. */
unsigned fake_room(unsigned threads);
bool fake_is_context(const void *context);

/* Memory of other processes, for what cuMemAlloc's is. */
void fake_add_memory(void *base, size_t size);
bool fake_remove_memory(const void *base);
/* Mapped memory: of a device, for those whose bits are set. */
void fake_add_mapped(void *base, size_t size, int device, unsigned access, bool rdma); /* or it is there: access */
void fake_remove_mapped(const void *base);
/* What cuMemAlloc has given out at this address; 0: nothing. */
size_t fake_allocated(const void *base);

/* wait.c. Waits until all is over that the context was given before; for calls that may do so. */
void fake_wait_for(const char *call, const struct context *context);
/* For calls that may by what CUDA promises, and do not by all that is known of drivers: where the environment says. */
void fake_may_wait_for(const char *call, const struct context *context);
void fake_wait_for_all(const char *call);
/* As the calls do that work on the legacy stream: for it, and for streams that are not non-blocking. */
void fake_wait_for_legacy(const char *call);
/* Says that, and ends the process. */
__attribute__((noreturn, format(printf, 1, 2))) void fake_deadlock(const char *format, ...);
/* While a host function runs in this thread, it may make no calls. */
void fake_enter_callback(void);
void fake_leave_callback(void);
bool fake_in_callback(void);

/* peer.c: may a kernel of the one context touch memory of the other? */
bool fake_reaches(const struct context *from, const struct context *to);
bool fake_may_reach(void); /* do devices reach each other? */
/* The memory is going to be freed: if it was exported, that ends here. */
void fake_unexport(void *base, size_t size);
/* From now on every call returns it. */
void fake_break(int result);
bool fake_broken(void);

/* The number of captures under way that forbid others' unsafe calls, which invalidates them. */
bool fake_capture_forbids(void);

/* Runs a launch; 0 or an error. `argument` is the kernel's one argument. */
int fake_run_kernel(void *argument, unsigned blocks, unsigned threads, const struct context *context);
/* Is it an argument that it may be given? At the launch, before it runs. */
int fake_check_kernel(void *argument, unsigned blocks);

/* How often a call was made; how many are left of what calls make and unmake: "registered", "allocated", "modules",
 * "events", "streams", "graphs", "objects", "opened" (memory of other processes), "handles" and "mapped" (memory),
 * "reserved" (addresses); "freed while open": how often that was done to others. For tests. */
API long fakegpu_calls(const char *name);
API long fakegpu_left(const char *what);
void fake_left(const char *what, int change);

#endif
