/* SPDX-License-Identifier: Apache-2.0
 * %h, %p, and names that are taken. */
#include "plugin/railtrace/tr_path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"

#define MAX_COPIES 1000

static void host_name(char *to, size_t size) {
  if (gethostname(to, size) != 0) snprintf(to, size, "unknown");
  to[size - 1] = 0;
}

/* False: it is too long. */
static bool expand(const char *pattern, char path[TR_PATH_MAX]) {
  size_t used = 0;
  for (const char *p = pattern; *p; p++) {
    char piece[256] = {*p, 0};
    if (p[0] == '%' && p[1] == 'h') host_name(piece, sizeof piece);
    if (p[0] == '%' && p[1] == 'p') snprintf(piece, sizeof piece, "%d", (int)getpid());
    if (p[0] == '%' && p[1] && strchr("hp%", p[1])) p++;
    size_t len = strlen(piece);
    if (used + len + sizeof ".1000" > TR_PATH_MAX) return false;
    memcpy(path + used, piece, len);
    used += len;
  }
  path[used] = 0;
  return used > 0;
}

int tr_path_create(const char *pattern, char path[TR_PATH_MAX]) {
  if (!expand(pattern, path)) {
    RAIL_WARN("RAIL_TRACE_FILE=%s: not a file's name, or one too long; nothing is recorded", pattern);
    path[0] = 0;
    return -1;
  }
  size_t len = strlen(path);
  int fd = -1;
  for (int copy = 1; fd < 0 && copy <= MAX_COPIES; copy++) {
    if (copy > 1) snprintf(path + len, TR_PATH_MAX - len, ".%d", copy);
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 && errno != EEXIST) break;
  }
  if (fd < 0) {
    RAIL_WARN("RAIL_TRACE_FILE: %s: %s; nothing is recorded", path, strerror(errno));
    path[0] = 0;
  }
  return fd;
}
