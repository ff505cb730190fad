/* SPDX-License-Identifier: Apache-2.0
 *
 * The first error of a comm: recorded once, logged once. Every later
 * call returns it. Any thread.
 *
 *   rail_result_t my_comm_fail(struct my_comm *comm, rail_result_t result, ...) {
 *     if (rail_first_error_set(&comm->error, result)) RAIL_WARN(...); // this caller's is the first: it logs and counts
 *     return rail_first_error(&comm->error);
 *   }
 *   // isend, irecv, test: RAIL_TRY(rail_first_error(&comm->error));
 */
#ifndef RAIL_FIRST_ERROR_H
#define RAIL_FIRST_ERROR_H

#include <stdatomic.h>
#include <stdbool.h>

#include "common/base/result.h"

/* All zero: none. */
struct rail_first_error {
  _Atomic int result;
};

static inline rail_result_t rail_first_error(const struct rail_first_error *error) {
  return (rail_result_t)atomic_load_explicit(&error->result, memory_order_relaxed);
}

/* True for the one caller whose error it is. `result` is not RAIL_OK. */
static inline bool rail_first_error_set(struct rail_first_error *error, rail_result_t result) {
  int none = RAIL_OK;
  return atomic_compare_exchange_strong_explicit(&error->result, &none, (int)result, memory_order_relaxed,
                                                 memory_order_relaxed);
}

#endif
