/* SPDX-License-Identifier: Apache-2.0
 * Whether standard output was written, as an exit status. */
#include "tools/common/exit.h"

#include <stdio.h>

int tool_exit_printed(const char *prog) {
  if (fflush(stdout) == 0 && !ferror(stdout)) return TOOL_EXIT_OK;
  fprintf(stderr, "%s: writing to standard output failed\n", prog);
  return TOOL_EXIT_FAILED;
}
