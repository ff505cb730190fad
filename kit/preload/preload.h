/* SPDX-License-Identifier: Apache-2.0
 *
 * The controls of librail-fault.so, which a program must have been started
 * with (LD_PRELOAD). It makes calls fail, or do less than they could, that
 * come from the code under test; everybody else's are left alone. A sweep:
 *
 *   for (long n = 1;; n++) {
 *     kit_fail_arm(n, KIT_FAIL_ALL);
 *     int result = the_thing();
 *     kit_fail_disarm();
 *     if (!kit_fail_hit()) break;        // it got through: every call has had its turn
 *     CHECK(...the error is clean, nothing leaked...)
 *   }
 *
 * All of it is per process and may be called from any thread.
 */
#ifndef RAIL_KIT_PRELOAD_H
#define RAIL_KIT_PRELOAD_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
  KIT_FAIL_ALLOC = 1,   /* malloc and its kin: ENOMEM */
  KIT_FAIL_MAP = 2,     /* mmap, shm_open, memfd_create, ftruncate */
  KIT_FAIL_SOCKET = 4,  /* socket, bind, listen, connect, accept, names and options */
  KIT_FAIL_IO = 8,      /* send, recv, read, write and their kin, on files and sockets */
  KIT_FAIL_POLL = 16,   /* epoll, poll, eventfd, pipe */
  KIT_FAIL_THREAD = 32, /* pthread_create, fork */
  KIT_FAIL_FILE = 64,   /* open, fopen, opendir, getifaddrs, getrandom */
  KIT_FAIL_VERBS = 128, /* ibv_...: lists, contexts, objects, what is asked of them */
  KIT_FAIL_POST = 256,  /* ibv_post_send, ibv_post_recv, and ibv_poll_cq that finds something */
  KIT_FAIL_ALL = 511,
  KIT_FAIL_SYSCALL = KIT_FAIL_ALL & ~KIT_FAIL_ALLOC,
};

/* Object to function pointer: C has no cast for it, POSIX promises the bits. */
#define KIT_FAIL_FIND(pointer, name)                   \
  do {                                                 \
    void *kit_fail_p_ = dlsym(RTLD_DEFAULT, name);     \
    memcpy(&(pointer), &kit_fail_p_, sizeof(pointer)); \
  } while (0)

/* False when the program was started without the library. */
static inline bool kit_fail_loaded(void) { return dlsym(RTLD_DEFAULT, "rail_fault_arm") != NULL; }

/* Counts calls of these kinds from 1, and makes call n fail; n = 0 only counts. */
static inline void kit_fail_arm(long n, int kinds) {
  void (*arm)(long, int);
  KIT_FAIL_FIND(arm, "rail_fault_arm");
  if (arm) arm(n, kinds);
}

/* Ends that; the count stays readable. */
static inline void kit_fail_disarm(void) {
  void (*disarm)(void);
  KIT_FAIL_FIND(disarm, "rail_fault_disarm");
  if (disarm) disarm();
}

/* Calls counted since the last arm. */
static inline long kit_fail_seen(void) {
  long (*seen)(void);
  KIT_FAIL_FIND(seen, "rail_fault_seen");
  return seen ? seen() : -1;
}

/* Name of the call that was made to fail since the last arm, or NULL when n lay beyond the last call. */
static inline const char *kit_fail_hit(void) {
  const char *(*hit)(void);
  KIT_FAIL_FIND(hit, "rail_fault_hit");
  return hit ? hit() : NULL;
}

/* From now on a stream socket's send or receive moves 1 ... `piece` bytes, at random (0: all), TCP sockets have
 * buffers of `buffer` bytes, whatever is set (0: theirs), and one call in `interrupt` that may say EINTR does, and
 * the first from each place (0: none). */
static inline void kit_fail_shape(size_t piece, int buffer, int interrupt, uint64_t seed) {
  void (*shape)(size_t, int, int, uint64_t);
  KIT_FAIL_FIND(shape, "rail_fault_shape");
  if (shape) shape(piece, buffer, interrupt, seed);
}

/* How many calls that changed. */
static inline long kit_fail_shaped(void) {
  long (*shaped)(void);
  KIT_FAIL_FIND(shaped, "rail_fault_shaped");
  return shaped ? shaped() : -1;
}

#endif
