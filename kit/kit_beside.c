/* SPDX-License-Identifier: Apache-2.0 */
#include "kit/kit_beside.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool kit_beside(char path[PATH_MAX], const char *file) {
  ssize_t len = readlink("/proc/self/exe", path, PATH_MAX - 1);
  if (len <= 0) return false;
  path[len] = 0;
  char *slash = strrchr(path, '/');
  if (!slash) return false;
  size_t room = (size_t)(path + PATH_MAX - (slash + 1));
  int written = snprintf(slash + 1, room, "%s", file);
  return written >= 0 && (size_t)written < room;
}
