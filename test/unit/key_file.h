/* SPDX-License-Identifier: Apache-2.0
 * A key file in a directory of its own. Definitions, for one test program. */
#ifndef KEY_FILE_TEST_H
#define KEY_FILE_TEST_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kit/kit_ensure.h"

static const char key_text[] = "0123456789abcdef0123456789abcdef\n";
static char key_dir[] = "/tmp/rail-auth-XXXXXX", key_path[sizeof key_dir + 8];

static void write_key(const void *bytes, size_t size, mode_t mode) {
  unlink(key_path);
  int fd = open(key_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ENSURE(fd >= 0 && write(fd, bytes, size) == (ssize_t)size && fchmod(fd, mode) == 0, "cannot write %s", key_path);
  close(fd);
}

/* With a good key in it. */
static void make_key_dir(void) {
  strcpy(key_dir + sizeof key_dir - 7, "XXXXXX");
  ENSURE(mkdtemp(key_dir), "cannot make %s", key_dir);
  snprintf(key_path, sizeof key_path, "%s/key", key_dir);
  write_key(key_text, sizeof key_text - 1, 0600);
}

static void remove_key_dir(void) {
  unlink(key_path);
  rmdir(key_dir);
}

#endif
