/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/rail-kit/json_file.h"

#include <errno.h>
#include <string.h>

#include "tools/rail-kit/commands.h"

FILE *rk_json_open(const char *path) {
  if (!path || strcmp(path, "-") == 0) return stdout;
  FILE *f = fopen(path, "we");
  if (!f) fprintf(stderr, RK_NAME ": --json %s: %s\n", path, strerror(errno));
  return f;
}

int rk_json_close(FILE *f, const char *path, int status) {
  if (f == stdout || fclose(f) == 0) return status;
  fprintf(stderr, RK_NAME ": --json %s: %s\n", path, strerror(errno));
  return TOOL_EXIT_FAILED;
}
