/* SPDX-License-Identifier: Apache-2.0
 *
 * Connect attempts by number. connect is called again and again with the same
 * handle; between two calls the attempt is kept here, and the handle holds only
 * its number. A handle may have been changed on its way: numbers are looked up,
 * never followed, and a table gives none out twice (2^32 uses of a slot aside).
 * 0 is no number.
 *
 * Any thread; the table has a lock of its own. An attempt itself is used by one
 * thread at a time, the one that calls connect with it.
 */
#ifndef RAIL_ATTEMPTS_H
#define RAIL_ATTEMPTS_H

#include <pthread.h>
#include <stdint.h>

#include "common/base/result.h"

struct rail_attempt_slot {
  void *attempt; /* NULL: free */
  uint32_t generation;
};

struct rail_attempts {
  pthread_mutex_t lock;
  struct rail_attempt_slot *slots;
  uint32_t cap;
};

/* RAIL_SYSTEM_ERROR, not logged, when memory is out; so for add. */
rail_result_t rail_attempts_init(struct rail_attempts *table);
/* `attempt` is not NULL; *number names it from here on. */
rail_result_t rail_attempts_add(struct rail_attempts *table, void *attempt, uint64_t *number);
/* NULL: nothing of this number is under way here. */
void *rail_attempts_find(struct rail_attempts *table, uint64_t number);
/* Out of the table; the attempt is the caller's. Unknown numbers are no error. */
void rail_attempts_remove(struct rail_attempts *table, uint64_t number);
/* finalize: `drop` gets every attempt that is left, then the table goes. */
void rail_attempts_free(struct rail_attempts *table, void (*drop)(void *attempt));

#endif
