/* SPDX-License-Identifier: Apache-2.0
 *
 * The controls of test/preload/failnth.c, for a program whose source says
 * TEST-PRELOAD: failnth. A sweep:
 *
 *   for (long n = 1;; n++) {
 *     failnth_arm(n, FAILNTH_ALL);
 *     int result = the_thing();
 *     failnth_disarm();
 *     if (!failnth_hit()) break;         // it got through: every call has had its turn
 *     CHECK(...the error is clean, nothing leaked...)
 *   }
 */
#ifndef RAIL_FAILNTH_H
#define RAIL_FAILNTH_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { FAILNTH_ALLOC = 1, FAILNTH_SYSCALL = 2, FAILNTH_ALL = 3 };

/* Object to function pointer: C has no cast for it, POSIX promises the bits. */
#define FAILNTH_FIND(pointer, name)                   \
  do {                                                \
    void *failnth_p_ = dlsym(RTLD_DEFAULT, name);     \
    memcpy(&(pointer), &failnth_p_, sizeof(pointer)); \
  } while (0)

/* False when the program was started without the preload library. */
static inline bool failnth_loaded(void) { return dlsym(RTLD_DEFAULT, "rail_failnth_arm") != NULL; }

static inline void failnth_arm(long n, int kinds) {
  void (*arm)(long, int);
  FAILNTH_FIND(arm, "rail_failnth_arm");
  if (arm) arm(n, kinds);
}

static inline void failnth_disarm(void) {
  void (*disarm)(void);
  FAILNTH_FIND(disarm, "rail_failnth_disarm");
  if (disarm) disarm();
}

/* Calls counted since the last arm. */
static inline long failnth_seen(void) {
  long (*seen)(void);
  FAILNTH_FIND(seen, "rail_failnth_seen");
  return seen ? seen() : -1;
}

/* Name of the call that was made to fail since the last arm, or NULL when n lay beyond the last call. */
static inline const char *failnth_hit(void) {
  const char *(*hit)(void);
  FAILNTH_FIND(hit, "rail_failnth_hit");
  return hit ? hit() : NULL;
}

#endif
