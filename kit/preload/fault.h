/* SPDX-License-Identifier: Apache-2.0
 * Inside librail-fault.so: what its interposed calls ask before they are made. */
#ifndef RAIL_KIT_PRELOAD_FAULT_H
#define RAIL_KIT_PRELOAD_FAULT_H

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/types.h>

#include "kit/preload/preload.h"

#define PUBLIC __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

/* Counts the call; true: it is its turn to fail. errno is touched only then. */
bool kit_fault_must_fail(int kind, const char *name, int error, const void *caller);
/* Is anything armed? Cheap, for calls that have to look further before they ask. */
bool kit_fault_armed(void);
/* Readiness of this descriptor comes as edges (EPOLLET), or does no more. Who waits for edges may take a transfer that
 * was cut short for the end of what there is (epoll(7)), so those of such descriptors are left whole. */
void kit_fault_edges(int fd, bool edges);
/* How many of n bytes this caller may move now: n when calls are not cut, or this one must not be. */
size_t kit_fault_cut(int fd, size_t n, int flags, const void *caller);
/* Is this call interrupted? Then errno says so. */
bool kit_fault_interrupts(const void *caller);
/* The size that buffers of a socket of this caller are held at, 0: they are free. */
int kit_fault_buffer(const void *caller);

/* Is this an address in the code under test? */
bool kit_fault_is_ours(const void *caller);

/* libc's dlsym, from this library. */
void *kit_fault_dlsym(void *handle, const char *name);
/* The plugin has looked up a function of libibverbs and found that: what it gets instead, or the same. */
void *kit_fault_verb(const char *name, void *found);
/* A struct ibv_context that it has opened: from now on what posts and polls there can fail. */
void kit_fault_posts(void *context);

/* The next definition of a function, looked up once. Two threads may both look; they find the same. */
#define NEXT(name)                                                                      \
  static _Atomic(void *) next_##name;                                                   \
  __typeof__(&name) real;                                                               \
  void *found = atomic_load_explicit(&next_##name, memory_order_relaxed);               \
  if (!found) atomic_store(&next_##name, found = kit_fault_dlsym(RTLD_NEXT, #name));              \
  memcpy(&real, &found, sizeof real)

/* Forwarders of one shape: count, fail with BAD and errno, or pass on. */
#define FORWARD(kind, error, bad, type, name, params, args)              \
  PUBLIC type name params {                                              \
    if (kit_fault_must_fail(kind, #name, error, CALLER)) return bad;     \
    NEXT(name);                                                          \
    return real args;                                                    \
  }
#define CALL(kind, error, name, params, args) FORWARD(kind, error, -1, int, name, params, args)

/* What code built with _FILE_OFFSET_BITS=64 calls instead of `of`, and does the same where off_t has 64 bits. */
_Static_assert(sizeof(off_t) == 8, "open64 and its kin are other calls here");
#define NAME_64(name, of) PUBLIC extern __typeof__(of) name __attribute__((alias(#of)))

#endif
