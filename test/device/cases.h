/* SPDX-License-Identifier: Apache-2.0
 *
 * The cases of reduceCopy, for whatever runs the kernels: the CPU executor in
 * test/unit/test_device_reduce.c, a GPU in test/gpu/kernels.cu. Of each type and
 * operation: alignments × sizes, and along with them 1 to 3 sources, 1 or 2
 * destinations, in place or not, different grids. Each result must
 *   - have the very bits of the host's kernels (rt_reduce.h), for any bits as input;
 *   - agree with 64-bit integers, or within the type's rounding with double
 *     (long double for double), where the input is no larger than a few units;
 *   - leave every byte around it alone.
 */
#ifndef DEVICE_CASES_H
#define DEVICE_CASES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/host/rt_reduce_copy.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CASES_MEMORY (5 * 6144) /* bytes */

struct cases_machine {
  char *memory; /* CASES_MEMORY bytes that its kernels can reach, at a multiple of 128 */
  bool (*write)(char *to, const char *from, size_t n); /* into that memory */
  bool (*read)(char *to, const char *from, size_t n);  /* out of it */
  bool (*reduce_copy)(const struct rt_reduce_copy *w, unsigned blocks, unsigned threads);
};

/* Runs the cases of one type and operation, fewer of them if `few`. The number of cases; -1 after the first failure,
 * with a description in `why`. */
int cases_run(const struct cases_machine *m, int type, int op, bool few, char *why, size_t size);

#ifdef __cplusplus
}
#endif

#endif
