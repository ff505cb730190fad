/* SPDX-License-Identifier: Apache-2.0
 * Reads the files of rt_conf.h, line by line, into the environment. rt_param.c calls it before it reads the variables.
 */
#include "core/comm/rt_conf.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"

/* One file; a line that is wrong is left out, and the others count. */
static void read_line(const char *path, unsigned number, char *line) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
  char *end = line + strlen(line);
  while (end > line && isspace((unsigned char)end[-1])) *--end = 0;
  while (isspace((unsigned char)*line)) line++;
  if (!*line || *line == '#') return;
  size_t n = strspn(line, letters);
  if (n == 0 || line[n] != '=') {
    RAIL_WARN("%s:%u: '%.60s' is not NAME=value and is left out", path, number, line);
    return;
  }
  line[n] = 0;
  setenv(line, line + n + 1, 0);
}

static bool read_file(const char *path) {
  FILE *f = fopen(path, "re");
  char *line = NULL;
  size_t size = 0;
  if (!f) return false;
  for (unsigned number = 1; getline(&line, &size, f) >= 0; number++) read_line(path, number, line);
  if (ferror(f)) RAIL_WARN("%s: %s; what follows is left out", path, strerror(errno));
  free(line);
  fclose(f);
  return true;
}

static void read_home(void) {
  struct passwd entry, *user = NULL;
  char buffer[4096], path[PATH_MAX];
  if (getpwuid_r(getuid(), &entry, buffer, sizeof buffer, &user) != 0 || !user) return;
  int n = snprintf(path, sizeof path, "%s/.nccl.conf", user->pw_dir);
  if (n > 0 && (size_t)n < sizeof path) (void)read_file(path);
}

void rt_conf_load(void) {
  const char *file = getenv("NCCL_CONF_FILE");
  if (!file || !*file) read_home();
  else if (!read_file(file)) RAIL_WARN("NCCL_CONF_FILE=%s: %s", file, strerror(errno));
  (void)read_file("/etc/nccl.conf");
  rail_log_reload(); /* NCCL_DEBUG may be among them */
}
