/* SPDX-License-Identifier: Apache-2.0
 * Names of results, and the class of an errno. */
#include "common/base/result.h"

#include <errno.h>

static const char *const result_names[] = {
  [RAIL_OK] = "success",
  [RAIL_CUDA_ERROR] = "CUDA error",
  [RAIL_SYSTEM_ERROR] = "system error",
  [RAIL_INTERNAL_ERROR] = "internal error",
  [RAIL_BAD_ARGUMENT] = "invalid argument",
  [RAIL_BAD_USAGE] = "invalid usage",
  [RAIL_REMOTE_ERROR] = "remote error",
  [RAIL_IN_PROGRESS] = "in progress",
};
_Static_assert(RAIL_COUNT_OF(result_names) == RAIL_IN_PROGRESS + 1, "a name for each result");

const char *rail_result_name(int result) {
  if (result < 0 || (size_t)result >= RAIL_COUNT_OF(result_names)) return "unknown result";
  return result_names[result];
}

rail_result_t rail_result_of_errno(int err) {
  switch (err) {
    case ECONNRESET:
    case ECONNREFUSED:
    case ECONNABORTED:
    case EPIPE:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case ENETRESET:
    case ENOTCONN:
    case ESHUTDOWN:
    case EPROTO:
      return RAIL_REMOTE_ERROR;
    default:
      return RAIL_SYSTEM_ERROR;
  }
}
