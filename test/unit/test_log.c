/* SPDX-License-Identifier: Apache-2.0
 * Logging: where lines go, which pass, what they look like. NCCL_DEBUG is read
 * once a process, so each level has a child process of its own. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/log.h"
#include "test/harness/tap.h"

static struct {
  int calls, level, line;
  unsigned long subsys;
  char text[8192];
} seen;

__attribute__((format(printf, 5, 6))) static void sink(enum rail_log_level level, unsigned long flags,
                                                       const char *file, int line, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(seen.text, sizeof seen.text, fmt, ap);
  va_end(ap);
  seen.calls++;
  seen.level = (int)level;
  seen.subsys = flags;
  seen.line = file ? line : 0;
  errno = ENOSPC; /* a sink may spoil errno */
}

TEST(sink_gets_the_line) {
  memset(&seen, 0, sizeof seen);
  rail_log_set_prefix("room");
  rail_log_set_sink(sink);
  errno = EBADF;
  RAIL_WARN("%s %d %%", "value", 7);
  CHECK_INT(errno, EBADF);
  CHECK_INT(seen.calls, 1);
  CHECK_INT(seen.level, RAIL_LOG_WARN);
  CHECK_STR(seen.text, "room : value 7 %");
  CHECK(seen.line > 0);
  RAIL_INFO(RAIL_SUB_NET, "info"); /* the sink filters, not we */
  CHECK_INT(seen.calls, 2);
  CHECK_INT((int64_t)seen.subsys, RAIL_SUB_NET);
  rail_log_set_prefix("NET/Rail"); /* a name is said once */
  RAIL_WARN("Rail: 1");
  CHECK_STR(seen.text, "NET/Rail : 1");
  RAIL_WARN("Railway: 2");
  CHECK_STR(seen.text, "NET/Rail : Railway: 2");
  RAIL_WARN("Rail");
  CHECK_STR(seen.text, "NET/Rail : Rail");
  rail_log_set_prefix(NULL);
  errno = EBADF;
  RAIL_WARN("bare: %s", strerror(errno));
  CHECK_STR(seen.text, "bare: Bad file descriptor");
  rail_log_set_sink(NULL);
}

TEST(long_line_is_cut_visibly) {
  char *text = malloc(10000);
  memset(text, 'x', 9999);
  text[9999] = 0;
  memset(&seen, 0, sizeof seen);
  rail_log_set_sink(sink);
  RAIL_WARN("%s", text);
  rail_log_set_sink(NULL);
  free(text);
  size_t len = strlen(seen.text);
  CHECK(len > 1000 && len < 9999);
  CHECK_STR(seen.text + len - 4, "x...");
}

/* Runs `body` in a child with NCCL_DEBUG=`debug` (NULL: unset); its stderr comes back. */
static void child_stderr(const char *debug, void (*body)(void), char *out, size_t cap, pid_t *child) {
  int fds[2];
  CHECK_OK(pipe(fds));
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(fds[1], STDERR_FILENO);
    close(fds[0]);
    close(fds[1]);
    if (debug) setenv("NCCL_DEBUG", debug, 1);
    else unsetenv("NCCL_DEBUG");
    body();
    _exit(0);
  }
  close(fds[1]);
  size_t used = 0;
  ssize_t n;
  while ((n = read(fds[0], out + used, cap - 1 - used)) > 0) used += (size_t)n;
  out[used] = 0;
  close(fds[0]);
  int status;
  CHECK_INT(waitpid(pid, &status, 0), pid);
  CHECK_INT(status, 0);
  *child = pid;
}

static void one_of_each(void) {
  rail_log_set_prefix("lab");
  RAIL_WARN("w");
  RAIL_INFO(RAIL_SUB_INIT, "i");
  RAIL_TRACE(RAIL_SUB_INIT, "t");
}

TEST(stderr_line_format) {
  char out[4096], host[64], want[256];
  pid_t pid;
  child_stderr("warn", one_of_each, out, sizeof out, &pid);
  gethostname(host, sizeof host);
  host[strcspn(host, ".")] = 0;
  snprintf(want, sizeof want, "%s:%d:%d [lab] WARN w\n", host, (int)pid, (int)pid);
  CHECK_STR(out, want);
}

static void two_files(void) {
  char path[300];
  rail_log_set_file("log_%h_%p_%%_%q%"); /* in a folder of its own */
  RAIL_WARN("one");
  RAIL_WARN("two");
  snprintf(path, sizeof path, "log_%s_%d_%%_%%q%%", getenv("SHORT_HOST"), (int)getpid());
  FILE *f = fopen(path, "r");
  char line[2][300];
  bool both = f && fgets(line[0], sizeof line[0], f) && fgets(line[1], sizeof line[1], f) && !fgets(path, 2, f);
  if (!both || !strstr(line[0], " WARN one\n") || !strstr(line[1], " WARN two\n")) dprintf(2, "wrong file\n");
}
static void no_file(void) {
  rail_log_set_file("/nonexistent/%p");
  RAIL_WARN("one");
}
TEST(lines_go_to_a_file) {
  char out[4096], host[64], folder[] = "/tmp/test_log.XXXXXX", command[64];
  int home = open(".", O_RDONLY | O_DIRECTORY);
  pid_t pid;
  gethostname(host, sizeof host);
  host[strcspn(host, ".")] = 0;
  setenv("SHORT_HOST", host, 1);
  CHECK(mkdtemp(folder) && chdir(folder) == 0);
  child_stderr(NULL, two_files, out, sizeof out, &pid);
  CHECK(fchdir(home) == 0);
  close(home);
  CHECK_STR(out, "");
  snprintf(command, sizeof command, "rm -r %s", folder);
  CHECK_OK(system(command));
  child_stderr(NULL, no_file, out, sizeof out, &pid);
  CHECK(strstr(out, "NCCL_DEBUG_FILE=/nonexistent/%p: /nonexistent/") && strstr(out, " WARN one\n"));
}

static void on_alarm(int signal) { (void)signal; }

/* A full pipe, so that the line waits, and a signal meanwhile. */
static void line_into_a_full_pipe(void) {
  static char block[4096];
  struct sigaction action = {.sa_handler = on_alarm}; /* without SA_RESTART */
  struct itimerval soon = {.it_value.tv_usec = 20000, .it_interval.tv_usec = 20000};
  int flags = fcntl(STDERR_FILENO, F_GETFL);
  memset(block, '.', sizeof block);
  fcntl(STDERR_FILENO, F_SETFL, flags | O_NONBLOCK);
  while (write(STDERR_FILENO, block, sizeof block) > 0) continue;
  fcntl(STDERR_FILENO, F_SETFL, flags);
  sigaction(SIGALRM, &action, NULL);
  setitimer(ITIMER_REAL, &soon, NULL);
  RAIL_WARN("the line");
  setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_sec = 0}, NULL);
}

TEST(a_signal_does_not_end_a_line) {
  static char out[1 << 18];
  size_t used = 0;
  ssize_t n;
  int fds[2], status;
  CHECK_OK(pipe(fds));
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    dup2(fds[1], STDERR_FILENO);
    close(fds[0]);
    close(fds[1]);
    line_into_a_full_pipe();
    _exit(0);
  }
  close(fds[1]);
  usleep(200000); /* some signals come while the pipe is full */
  while (used < sizeof out - 1 && (n = read(fds[0], out + used, sizeof out - 1 - used)) > 0) used += (size_t)n;
  out[used] = 0;
  close(fds[0]);
  CHECK_INT(waitpid(pid, &status, 0), pid);
  CHECK_INT(status, 0);
  CHECK(used > 4096 && strstr(out + used - RAIL_MIN(used, 256u), " WARN the line\n"));
}

static int lines_of(const char *debug) {
  char out[4096];
  pid_t pid;
  int lines = 0;
  child_stderr(debug, one_of_each, out, sizeof out, &pid);
  for (const char *c = out; *c; c++) lines += *c == '\n';
  return lines;
}

TEST(levels) {
  CHECK_INT(lines_of(NULL), 1);
  CHECK_INT(lines_of("nonsense"), 1);
  CHECK_INT(lines_of("NONE"), 0);
  CHECK_INT(lines_of("VERSION"), 0);
  CHECK_INT(lines_of("INFO"), 2);
  CHECK_INT(lines_of("trace"), 3);
}

static void *many(void *arg) {
  for (int i = 0; i < 100; i++) RAIL_WARN("thread %d says %s", *(int *)arg, "the same long sentence again");
  return NULL;
}

static void four_threads(void) {
  pthread_t t[4];
  int id[4];
  for (int i = 0; i < 4; i++) {
    id[i] = i;
    pthread_create(&t[i], NULL, many, &id[i]);
  }
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}

TEST(lines_of_threads_stay_whole) {
  static char out[1 << 17];
  pid_t pid;
  int count = 0;
  child_stderr("WARN", four_threads, out, sizeof out, &pid);
  for (char *line = strtok(out, "\n"); line; line = strtok(NULL, "\n"), count++) {
    const char *tail = strstr(line, "WARN thread ");
    CHECK_MSG(tail != NULL, "torn line: %s", line);
    CHECK_STR(tail + 13, " says the same long sentence again");
  }
  CHECK_INT(count, 400);
}

TEST_MAIN(TEST_CASE(sink_gets_the_line), TEST_CASE(long_line_is_cut_visibly), TEST_CASE(stderr_line_format),
          TEST_CASE(lines_go_to_a_file),
          TEST_CASE(a_signal_does_not_end_a_line),
          TEST_CASE(levels), TEST_CASE(lines_of_threads_stay_whole))
