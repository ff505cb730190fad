/* SPDX-License-Identifier: Apache-2.0
 *
 * Results inside Railyard are enum rail_result (include/rail/net.h), whose
 * values are NCCL's. "Not ready yet" has its own value, RAIL_IN_PROGRESS, and
 * never travels through an error path.
 *
 * Rule: whoever first decides that something is an error logs it, once, with
 * peer, device, what was tried and what to do; everybody above passes it on.
 */
#ifndef RAIL_RESULT_H
#define RAIL_RESULT_H

#include "compiler.h"
#include "rail/net.h"

typedef enum rail_result rail_result_t;

/* "remote error" and so on; never NULL. */
const char *rail_result_name(int result);

/* The class of a failed socket call's errno: a peer that is gone
 * (ECONNRESET, EPIPE, ETIMEDOUT, ECONNREFUSED, EHOSTUNREACH, ENETUNREACH...)
 * is RAIL_REMOTE_ERROR, all else RAIL_SYSTEM_ERROR. */
rail_result_t rail_result_of_errno(int err);

/* Pass an error on: evaluates `call` once, returns its result unless it is RAIL_OK. */
#define RAIL_TRY(call)                                         \
  do {                                                         \
    rail_result_t rail_try_ = (call);                          \
    if (rail_unlikely(rail_try_ != RAIL_OK)) return rail_try_; \
  } while (0)

#endif
