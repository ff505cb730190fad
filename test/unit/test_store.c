/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves: values of the file store appear whole and under any key, waits end, foreign files and foreign
 * directories are refused, and nothing is left.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "core/launcher/rt_store.h"
#include "kit/kit_ensure.h"
#include "test/harness/tap.h"

static char base[64];

static void make_base(void) {
  strcpy(base, "/tmp/rail-test-store-XXXXXX");
  CHECK(mkdtemp(base));
}

static int entries(const char *dir) {
  DIR *d = opendir(dir);
  int n = 0;
  if (!d) return -1;
  for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
  closedir(d);
  return n;
}

static struct rt_store *open_in_base(const char *name, bool personal) {
  char path[128];
  struct rt_store *s;
  snprintf(path, sizeof path, "%s/%s", base, name);
  CHECK_OK(rt_store_open(path, personal, &s));
  return s;
}

TEST(set_and_get) {
  char out[RT_STORE_MAX_VALUE];
  size_t size;
  make_base();
  struct rt_store *s = open_in_base("a", true);
  static const char *const keys[] = {"plain", ".", "..", "../escape", "a/b", ".new-0", "spaces and %", "\xc3\xa9",
                                     "0123456789012345678901234567890123456789012345678901234567890123"};
  int n = (int)(sizeof keys / sizeof *keys);
  for (int i = 0; i < n; i++) CHECK_OK(rt_store_set(s, keys[i], keys[i], strlen(keys[i])));
  for (int i = 0; i < n; i++) {
    size = sizeof out;
    CHECK_OK(rt_store_try_get(s, keys[i], out, &size));
    CHECK_INT(size, strlen(keys[i]));
    CHECK(memcmp(out, keys[i], size) == 0);
  }
  CHECK_INT(entries(rt_store_path(s)), n); /* no key left the directory, nothing lies aside */
  CHECK_INT(entries(base), 1);
  CHECK_OK(rt_store_set(s, "plain", "", 0)); /* replaced */
  size = sizeof out;
  CHECK_OK(rt_store_try_get(s, "plain", out, &size));
  CHECK_INT(size, 0);
  for (int i = 0; i < n; i++) rt_store_remove(s, keys[i]);
  rt_store_remove(s, "never was");
  size = sizeof out;
  CHECK_INT(rt_store_try_get(s, "plain", out, &size), RAIL_IN_PROGRESS);
  rt_store_remove_dir(s);
  CHECK_INT(entries(base), 0);
  rt_store_close(s);
  rt_store_close(NULL);
  rmdir(base);
}

TEST(limits) {
  static char big[RT_STORE_MAX_VALUE + 1], out[RT_STORE_MAX_VALUE + 1];
  size_t size;
  make_base();
  struct rt_store *s = open_in_base("a", true);
  CHECK_INT(rt_store_set(s, "", "x", 1), RAIL_BAD_ARGUMENT);
  CHECK_INT(rt_store_set(s, "01234567890123456789012345678901234567890123456789012345678901234", "x", 1),
            RAIL_BAD_ARGUMENT);
  CHECK_INT(rt_store_set(s, "big", big, sizeof big), RAIL_BAD_ARGUMENT);
  CHECK_OK(rt_store_set(s, "big", big, RT_STORE_MAX_VALUE));
  size = RT_STORE_MAX_VALUE - 1;
  CHECK_INT(rt_store_try_get(s, "big", out, &size), RAIL_SYSTEM_ERROR);
  size = sizeof out;
  CHECK_OK(rt_store_try_get(s, "big", out, &size));
  rt_store_remove(s, "big");
  rt_store_remove_dir(s);
  rt_store_close(s);
  rmdir(base);
}

/* Files that are no values: empty, cut short, longer than they say, another kind, a link out of the directory. */
/* No room for the value: an error, and nothing of it is left. */
TEST(a_value_that_cannot_be_written) {
  char value[600] = "x";
  struct rlimit limit, small;
  make_base();
  struct rt_store *s = open_in_base("a", true);
  CHECK_INT(getrlimit(RLIMIT_FSIZE, &limit), 0);
  small = limit;
  small.rlim_cur = 100;
  signal(SIGXFSZ, SIG_IGN);
  CHECK_INT(setrlimit(RLIMIT_FSIZE, &small), 0);
  rail_result_t result = rt_store_set(s, "key", value, sizeof value);
  CHECK_INT(setrlimit(RLIMIT_FSIZE, &limit), 0);
  CHECK_INT(result, RAIL_SYSTEM_ERROR);
  CHECK_INT(entries(rt_store_path(s)), 0);
  rt_store_remove_dir(s);
  rt_store_close(s);
  rmdir(base);
}

TEST(foreign_files) {
  char path[200], out[64];
  size_t size;
  make_base();
  struct rt_store *s = open_in_base("a", true);
  static const struct { const char *name; uint32_t words[3]; size_t size; } files[] = {
    {"empty", {0}, 0},
    {"text", {0x21212121, 0, 0}, 12},
    {"cut", {0x4f545352, 100, 0}, 12},
    {"long", {0x4f545352, 1, 0}, 12},
    {"huge", {0x4f545352, 0xffffffff, 0}, 12},
  };
  int fds = kit_fd_count();
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    snprintf(path, sizeof path, "%s/%s", rt_store_path(s), files[i].name);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0);
    CHECK_INT(write(fd, files[i].words, files[i].size), files[i].size);
    close(fd);
    size = sizeof out;
    CHECK_MSG(rt_store_try_get(s, files[i].name, out, &size) == RAIL_SYSTEM_ERROR, "%s was taken", files[i].name);
    CHECK_INT(unlink(path), 0);
  }
  CHECK_INT(kit_fd_count(), fds);
  snprintf(path, sizeof path, "%s/link", rt_store_path(s));
  CHECK_INT(symlink("/etc/passwd", path), 0);
  size = sizeof out;
  CHECK_INT(rt_store_try_get(s, "link", out, &size), RAIL_SYSTEM_ERROR);
  CHECK_OK(rt_store_set(s, "link", "mine", 4)); /* replaces the link, does not follow it */
  size = sizeof out;
  CHECK_OK(rt_store_try_get(s, "link", out, &size));
  rt_store_remove(s, "link");
  rt_store_remove_dir(s);
  rt_store_close(s);
  rmdir(base);
}

TEST(personal_directories) {
  char path[128], link[128];
  struct rt_store *s;
  make_base();
  snprintf(path, sizeof path, "%s/open", base);
  snprintf(link, sizeof link, "%s/link", base);
  CHECK_INT(mkdir(path, 0700), 0);
  CHECK_INT(chmod(path, 0755), 0);
  CHECK_INT(rt_store_open(path, true, &s), RAIL_SYSTEM_ERROR);
  CHECK(!s);
  CHECK_OK(rt_store_open(path, false, &s)); /* a directory of the user's choice may be open */
  rt_store_close(s);
  CHECK_INT(chmod(path, 0700), 0);
  CHECK_INT(symlink(path, link), 0);
  CHECK_INT(rt_store_open(link, true, &s), RAIL_SYSTEM_ERROR);
  CHECK_OK(rt_store_open(path, true, &s));
  rt_store_close(s);
  if (geteuid() == 0) { /* somebody else's */
    CHECK_INT(chown(path, 65534, 65534), 0);
    CHECK_INT(rt_store_open(path, true, &s), RAIL_SYSTEM_ERROR);
  }
  snprintf(link, sizeof link, "%s/none/below", base);
  CHECK_INT(rt_store_open(link, false, &s), RAIL_SYSTEM_ERROR); /* parents are not made */
  snprintf(link, sizeof link, "%s/link", base);
  unlink(link);
  rmdir(path);
  CHECK_INT(rmdir(base), 0);
}

static void *set_late(void *arg) {
  usleep(100000);
  if (rt_store_set(arg, "late", "here", 4) != RAIL_OK) abort();
  return NULL;
}

TEST(waiting) {
  char out[16];
  size_t size = sizeof out;
  pthread_t t;
  make_base();
  struct rt_store *s = open_in_base("a", true);
  CHECK_INT(pthread_create(&t, NULL, set_late, s), 0);
  rail_result_t result = rt_store_get(s, "late", out, &size, rail_deadline_in_ms(20000), NULL);
  pthread_join(t, NULL);
  CHECK_OK(result);
  CHECK_INT(size, 4);
  size = sizeof out;
  CHECK_INT(rt_store_get(s, "never", out, &size, rail_deadline_in_ms(50), NULL), RAIL_REMOTE_ERROR);
  CHECK_INT(errno, ETIMEDOUT);
  _Atomic int abort_flag = 1;
  CHECK_INT(rt_store_get(s, "never", out, &size, 0, &abort_flag), RAIL_REMOTE_ERROR);
  CHECK_INT(errno, ECANCELED);
  rt_store_remove(s, "late");
  rt_store_remove_dir(s);
  rt_store_close(s);
  rmdir(base);
}

struct writer { struct rt_store *s; _Atomic int stop; };

static void *write_often(void *arg) {
  struct writer *w = arg;
  unsigned char value[RT_STORE_MAX_VALUE];
  for (int i = 0; !atomic_load(&w->stop); i++) {
    memset(value, i, sizeof value);
    if (rt_store_set(w->s, "key", value, 1 + (size_t)(i * 37 % RT_STORE_MAX_VALUE)) != RAIL_OK) abort();
  }
  return NULL;
}

/* A reader sees old or new, never a part: all bytes of a value are equal. */
TEST(values_are_whole) {
  unsigned char out[RT_STORE_MAX_VALUE];
  pthread_t t;
  bool whole = true;
  make_base();
  struct writer w = {.s = open_in_base("a", true)};
  CHECK_OK(rt_store_set(w.s, "key", "x", 1));
  CHECK_INT(pthread_create(&t, NULL, write_often, &w), 0);
  for (int i = 0; i < 2000 && whole; i++) {
    size_t size = sizeof out;
    whole = rt_store_try_get(w.s, "key", out, &size) == RAIL_OK && size > 0;
    for (size_t k = 1; k < size && whole; k++) whole = out[k] == out[0];
  }
  atomic_store(&w.stop, 1);
  pthread_join(t, NULL);
  CHECK(whole);
  rt_store_remove(w.s, "key");
  CHECK_INT(entries(rt_store_path(w.s)), 0);
  rt_store_remove_dir(w.s);
  rt_store_close(w.s);
  rmdir(base);
}

TEST_MAIN(TEST_CASE(set_and_get), TEST_CASE(limits), TEST_CASE(a_value_that_cannot_be_written),
          TEST_CASE(foreign_files), TEST_CASE(personal_directories),
          TEST_CASE(waiting), TEST_CASE(values_are_whole))
