/* SPDX-License-Identifier: Apache-2.0
 *
 * Large reduceCopies at aligned addresses: whole turns of core/device/rd_bulk.cuh's loops, and what is left of one.
 * Each result must have the very bits of the host's kernels, and nothing behind it may be written. Small floats
 * also meet in the pairs of test/device/pairs.h.
 */
#ifndef DEVICE_BULK_H
#define DEVICE_BULK_H

#include "test/device/cases.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BULK_REGION (1u << 19) /* more than three turns of two blocks of RT_DEVICE_THREADS */
#define BULK_MEMORY (4 * BULK_REGION) /* bytes of the machine's memory */

/* Runs the cases of one type in blocks of so many threads, fewer of them if `few`. Their number; -1 after the first
 * failure, with a description in `why`. */
int bulk_run(const struct cases_machine *m, int type, unsigned threads, bool few, char *why, size_t size);

#ifdef __cplusplus
}
#endif

#endif
