/* SPDX-License-Identifier: Apache-2.0
 * Proves: of a variable's values the environment's counts, then .nccl.conf's in the user's home, then /etc/nccl.conf's;
 * NCCL_CONF_FILE takes the place of the second. The user's entry and /etc are replaced by a folder of the test. */
#include "core/comm/rt_conf.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kit/kit_ensure.h"
#include "test/harness/log_lines.h"
#include "test/harness/tap.h"

static char dir[] = "/tmp/rail-conf-XXXXXX";
static char home[sizeof dir + 8], etc_file[sizeof dir + 16], home_file[sizeof dir + 24], other_file[sizeof dir + 16];
static bool has_user;

/* Seen by rt_conf.c instead of the C library's, and by nothing else here. */
int getpwuid_r(uid_t uid, struct passwd *entry, char *buffer, size_t size, struct passwd **result) {
  (void)uid, (void)buffer, (void)size;
  *entry = (struct passwd){.pw_dir = home};
  *result = has_user ? entry : NULL;
  return 0;
}

FILE *fopen(const char *path, const char *mode) {
  (void)mode;
  int fd = open(strcmp(path, "/etc/nccl.conf") == 0 ? etc_file : path, O_RDONLY | O_CLOEXEC);
  return fd < 0 ? NULL : fdopen(fd, "r");
}

static void put(const char *path, const char *text) {
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ENSURE(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), "cannot write %s", path);
  close(fd);
}

/* Files of a user at home, of the host and of neither; the environment is empty but for what its case sets. */
static void start(void) {
  strcpy(dir + sizeof dir - 7, "XXXXXX");
  ENSURE(mkdtemp(dir), "cannot make %s", dir);
  snprintf(home, sizeof home, "%s/home", dir);
  snprintf(home_file, sizeof home_file, "%s/.nccl.conf", home);
  snprintf(etc_file, sizeof etc_file, "%s/etc", dir);
  snprintf(other_file, sizeof other_file, "%s/other", dir);
  ENSURE(mkdir(home, 0700) == 0, "cannot make %s", home);
  put(home_file, "NCCL_A=home\nNCCL_B=home\n");
  put(etc_file, "NCCL_A=etc\nNCCL_B=etc\nNCCL_C=etc\n");
  put(other_file, "NCCL_B=other\n");
  has_user = true;
  setenv("HOME", dir, 1); /* NCCL asks the user's entry, not HOME */
  unsetenv("NCCL_A"), unsetenv("NCCL_B"), unsetenv("NCCL_C"), unsetenv("NCCL_CONF_FILE");
  log_forget();
  rail_log_set_sink(log_capture);
}

static void end(void) {
  rail_log_set_sink(NULL);
  (void)unlink(home_file), (void)unlink(etc_file), (void)unlink(other_file);
  (void)rmdir(home), (void)rmdir(dir);
}

/* What the three variables are after the files were read; "-" is none. */
static const char *load(void) {
  static char text[64];
  rt_conf_load();
  end();
  const char *a = getenv("NCCL_A"), *b = getenv("NCCL_B"), *c = getenv("NCCL_C");
  snprintf(text, sizeof text, "%s %s %s", a ? a : "-", b ? b : "-", c ? c : "-");
  return text;
}

TEST(environment_then_home_then_etc) {
  start();
  setenv("NCCL_A", "environment", 1);
  CHECK_STR(load(), "environment home etc");
  CHECK_INT(log_warnings_, 0);
}

TEST(empty_in_the_environment_is_set) {
  start();
  setenv("NCCL_A", "", 1);
  CHECK_STR(load(), " home etc");
}

TEST(conf_file_instead_of_home) {
  start();
  setenv("NCCL_CONF_FILE", other_file, 1);
  CHECK_STR(load(), "etc other etc");
}

TEST(an_empty_conf_file_is_none) {
  start();
  setenv("NCCL_CONF_FILE", "", 1);
  CHECK_STR(load(), "home home etc");
}

TEST(no_file_at_home) {
  start();
  (void)unlink(home_file);
  CHECK_STR(load(), "etc etc etc");
  CHECK_INT(log_warnings_, 0);
}

TEST(no_user) {
  start();
  has_user = false;
  CHECK_STR(load(), "etc etc etc");
  CHECK_INT(log_warnings_, 0);
}

TEST(no_etc) {
  start();
  (void)unlink(etc_file);
  CHECK_STR(load(), "home home -");
  CHECK_INT(log_warnings_, 0);
}

TEST(a_conf_file_that_is_not_there) {
  start();
  (void)unlink(other_file);
  setenv("NCCL_CONF_FILE", other_file, 1);
  CHECK_STR(load(), "etc etc etc"); /* and not home's */
  CHECK_MSG(log_said("NCCL_CONF_FILE="), "%s", log_warning);
}

TEST(a_wrong_line_at_home) {
  start();
  put(home_file, "NCCL_A\nNCCL_B=x=y # all of it\n");
  CHECK_STR(load(), "etc x=y # all of it etc");
  CHECK_MSG(log_said("/home/.nccl.conf:1: 'NCCL_A' is not NAME=value"), "%s", log_warning);
}

TEST_MAIN(TEST_CASE(environment_then_home_then_etc), TEST_CASE(empty_in_the_environment_is_set),
          TEST_CASE(conf_file_instead_of_home), TEST_CASE(an_empty_conf_file_is_none), TEST_CASE(no_file_at_home),
          TEST_CASE(no_user), TEST_CASE(no_etc), TEST_CASE(a_conf_file_that_is_not_there),
          TEST_CASE(a_wrong_line_at_home))
