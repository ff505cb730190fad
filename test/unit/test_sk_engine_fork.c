/* SPDX-License-Identifier: Apache-2.0
 * The threads of the epoll engine, and fork.
 * TEST-SAN: asan tsan */
#include <dirent.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include "plugin/socket/sk_engine.h"
#include "test/unit/sk_data.h"

static void begin(struct data *d) {
  data_begin(d, SK_RECEIVER, 1, 0);
  sk_params.engine = SK_ENGINE_EPOLL;
  data_open(d);
  ENSURE(d->comm->engine, "the engine did not take the connection: %s", log_lines);
}

static void end(struct data *d) {
  data_close(d);
  sk_engine_stop();
}

static _Atomic bool within;
static _Atomic unsigned int runs;

/* Much longer than what is outside of it: a fork that does not wait meets it. */
static enum sk_poll_result stay_within(void *arg, bool readable) {
  (void)arg, (void)readable;
  atomic_store(&within, true);
  atomic_fetch_add(&runs, 1);
  usleep(2000);
  atomic_store(&within, false);
  return SK_POLL_MORE;
}

static void wait_for_runs(unsigned int more) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  for (unsigned int from = atomic_load(&runs); atomic_load(&runs) - from < more; usleep(100))
    ENSURE(!rail_deadline_passed(deadline), "the engine's thread does not go on");
}

TEST(a_fork_waits_until_the_threads_have_left_the_connections) {
  struct sk_poll_ctx *ctx;
  struct data d;
  begin(&d);
  sk_engine_attach(&ctx, stay_within, &d, NULL, 0);
  ENSURE(ctx, "the engine did not take it");
  for (int i = 0; i < 20; i++) {
    int status;
    wait_for_runs(1);
    pid_t child = fork();
    if (child == 0) _exit(atomic_load(&within));
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned int)status);
  }
  wait_for_runs(2); /* the parent's threads go on */
  sk_engine_detach(ctx, NULL, 0);
  CHECK(!atomic_load(&within));
  end(&d);
}

static enum sk_poll_result nothing_to_do(void *arg, bool readable) {
  (void)arg, (void)readable;
  return SK_POLL_IDLE;
}

/* The state of each thread but this one, by /proc. */
static bool threads_sleep(void) {
  bool asleep = true;
  struct dirent *entry;
  DIR *tasks = opendir("/proc/self/task");
  ENSURE(tasks, "no /proc");
  while ((entry = readdir(tasks)) != NULL) {
    char path[300], state = 0;
    long id = atol(entry->d_name);
    snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
    FILE *f = id && id != getpid() ? fopen(path, "r") : NULL;
    if (!f) continue;
    if (fscanf(f, "%*d (%*[^)]) %c", &state) == 1) asleep &= state == 'S';
    fclose(f);
  }
  closedir(tasks);
  return asleep;
}
static void wait_until_threads_sleep(void) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  for (int i = 0; i < 3; usleep(1000)) { /* in a row */
    i = threads_sleep() ? i + 1 : 0;
    ENSURE(!rail_deadline_passed(deadline), "a thread does not sleep");
  }
}

/* The numbers of the threads' descriptors are those of other files in the child; a context of the parent's leaves them
 * alone. */
TEST(a_child_writes_into_no_other_file) {
  struct data d;
  struct sk_poll_ctx *ctx;
  int fds[16], status;
  begin(&d);
  sk_engine_attach(&ctx, nothing_to_do, &d, NULL, 0);
  CHECK(ctx != NULL);
  wait_until_threads_sleep(); /* then waking one is a write */
  pid_t child = fork();
  if (child == 0) {
    for (size_t i = 0; i < RAIL_COUNT_OF(fds); i++) fds[i] = eventfd(0, EFD_NONBLOCK);
    sk_engine_notify(ctx);
    for (size_t i = 0; i < RAIL_COUNT_OF(fds); i++)
      if (read(fds[i], &(uint64_t){0}, sizeof(uint64_t)) > 0) _exit(1);
    _exit(fds[0] < 0);
  }
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned int)status);
  sk_engine_detach(ctx, NULL, 0);
  end(&d);
}

TEST_MAIN(TEST_CASE(a_fork_waits_until_the_threads_have_left_the_connections),
          TEST_CASE(a_child_writes_into_no_other_file))
