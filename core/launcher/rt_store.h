/* SPDX-License-Identifier: Apache-2.0
 *
 * A file store: keys and small values in a directory that the ranks share,
 * for exchanging an address before any is known. A value appears whole (written to a temporary
 * file, then renamed); a wait polls, at growing intervals.
 */
#ifndef RT_STORE_H
#define RT_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/result.h"

/* Between two reads of what another rank will write: soon for ranks of one host that start together, and doubled, so
 * that thousands do not load a file server. */
#define RT_STORE_POLL_FIRST_MS 1
#define RT_STORE_POLL_MAX_MS 50

#define RT_STORE_MAX_VALUE 4096
#define RT_STORE_MAX_KEY 64 /* characters */

struct rt_store;

/* Opens the directory and makes it (not its parents) if it is absent. A `personal` one, in a directory where all users
 * may write, must belong to this user, be closed to others and not be a link. Errors are logged. */
rail_result_t rt_store_open(const char *dir, bool personal, struct rt_store **out);
/* Removes no values. NULL is fine. */
void rt_store_close(struct rt_store *s);
const char *rt_store_path(const struct rt_store *s);

/* Replaces an earlier value. */
rail_result_t rt_store_set(struct rt_store *s, const char *key, const void *data, size_t size);
/* *size is the room on entry, the value's size on return. Absent: RAIL_IN_PROGRESS. */
rail_result_t rt_store_try_get(struct rt_store *s, const char *key, void *data, size_t *size);
/* Waits. At the deadline RAIL_REMOTE_ERROR with errno ETIMEDOUT, at the abort flag with ECANCELED; these two are not
 * logged, since the caller knows who should have written. */
rail_result_t rt_store_get(struct rt_store *s, const char *key, void *data, size_t *size, uint64_t deadline,
                           const _Atomic int *abort_flag);
void rt_store_remove(struct rt_store *s, const char *key); /* absent is fine */
/* Removes the directory if it is empty. */
void rt_store_remove_dir(struct rt_store *s);

#endif
