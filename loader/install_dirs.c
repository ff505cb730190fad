/* SPDX-License-Identifier: Apache-2.0
 * The folders of libraries and data as seen from the running program's own folder. */
#include "loader/install_dirs.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef RAIL_LIB_FROM_BIN
#define RAIL_LIB_FROM_BIN "../lib"
#define RAIL_DATA_FROM_BIN "../share"
#endif

const char rail_lib_from_bin[] = RAIL_LIB_FROM_BIN;
const char rail_data_from_bin[] = RAIL_DATA_FROM_BIN;

bool rail_path_from_bin(char path[PATH_MAX], const char *file) {
  ssize_t len = readlink("/proc/self/exe", path, PATH_MAX - 1);
  if (len <= 0) return false;
  path[len] = 0;
  char *slash = strrchr(path, '/');
  if (!slash) return false;
  size_t room = (size_t)(path + PATH_MAX - (slash + 1));
  int written = snprintf(slash + 1, room, "%s", file);
  return written >= 0 && (size_t)written < room;
}
