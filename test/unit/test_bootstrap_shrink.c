/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves: a send that a failure interrupts does not cost the survivors their connection. Three ranks, processes: rank 0
 * is in the middle of a send to rank 1, which is stopped, when rank 2 dies. Once rank 1 goes on the two make a
 * communicator of their own. Of a message that was given up half way nothing can follow.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "core/bootstrap/rt_boot.h"
#include "test/unit/boot_ranks.h"

#define NRANKS 3
#define TOO_LONG_MS 60000
/* More than sockets buffer (a sender's 4 MiB); a survivor must take the rest within 2 s, on a slow machine too. */
#define LARGE (8u << 20)

/* What the processes tell each other. */
struct shared {
  _Atomic int id_made, open, go, told;
  char id[RT_UNIQUE_ID_BYTES];
};
static struct shared *shared;

static bool comes(const _Atomic int *word, int value) {
  uint64_t deadline = rail_deadline_in_ms(TOO_LONG_MS);
  while (atomic_load(word) < value && !rail_deadline_passed(deadline)) usleep(1000);
  return atomic_load(word) >= value;
}

static bool fails(struct rt_bootstrap *b) {
  uint64_t deadline = rail_deadline_in_ms(TOO_LONG_MS);
  char why[256];
  while (rt_bootstrap_failure(b, why, sizeof why) == RAIL_OK && !rail_deadline_passed(deadline)) usleep(1000);
  return rt_bootstrap_failure(b, why, sizeof why) != RAIL_OK;
}

static int shrink(struct rank *r, struct rt_bootstrap *parent) {
  static const int survivors[] = {0, 1};
  struct rt_bootstrap_args args = args_of(r);
  struct rt_bootstrap *child;
  args.nranks = 2;
  WANT(rt_bootstrap_shrink(parent, survivors, &args, &child) == RAIL_OK);
  WANT(boot_barrier(child) == RAIL_OK);
  rt_bootstrap_close(child);
  return 0;
}

/* `first` bytes reach rank 1 before it is stopped, `second` are on their way. */
static int survive(int rank, size_t first, size_t second) {
  struct rank r = {.rank = rank, .nranks = NRANKS, .timeout_ms = 60000, .heartbeat_ms = 200,
                   .heartbeat_timeout_ms = TOO_LONG_MS};
  struct rt_bootstrap_args args = args_of(&r);
  char *data = calloc(1, first + second);
  if (rank == 0) { /* not before the fork: it starts a thread */
    WANT(rt_unique_id_create(shared->id) == RAIL_OK);
    atomic_store(&shared->id_made, 1);
  }
  WANT(comes(&shared->id_made, 1));
  WANT(data && rt_bootstrap_open(shared->id, &args, &r.boot) == RAIL_OK);
  if (first && rank == 0) WANT(rt_bootstrap_send(r.boot, 1, 1, data, first) == RAIL_OK);
  if (first && rank == 1) WANT(recv_message(r.boot, 0, 1, data, first) == RAIL_OK);
  atomic_fetch_add(&shared->open, 1);
  if (rank == 2) pause();
  if (rank == 0) {
    WANT(comes(&shared->go, 1));
    rt_bootstrap_send(r.boot, 1, 2, data, second); /* fails, or has ended before that: both are right */
  }
  WANT(fails(r.boot));
  atomic_fetch_add(&shared->told, 1);
  WANT(shrink(&r, r.boot) == 0);
  rt_bootstrap_close(r.boot);
  free(data);
  return 0;
}

/* ---- a send that is given up ---- */

static void *abort_soon(void *b) {
  usleep(100000);
  rt_bootstrap_abort(b, RAIL_REMOTE_ERROR, "the test says so");
  return NULL;
}

/* Rank 1 is stopped while rank 0 sends, and stays so. Half a message is out: nothing can follow it, not even on another
 * connection, where it would overtake. */
static int give_up(int rank) {
  struct rank r = {.rank = rank, .nranks = 2, .timeout_ms = 60000, .heartbeat_ms = 200,
                   .heartbeat_timeout_ms = TOO_LONG_MS};
  struct rt_bootstrap_args args = args_of(&r);
  struct rt_boot_limits limits = {.deadline = rail_deadline_in_ms(20000), .ignore_failure = true};
  char *data = calloc(1, LARGE);
  pthread_t aborter;
  if (rank == 0) {
    WANT(rt_unique_id_create(shared->id) == RAIL_OK);
    atomic_store(&shared->id_made, 1);
  }
  WANT(comes(&shared->id_made, 1));
  WANT(data && rt_bootstrap_open(shared->id, &args, &r.boot) == RAIL_OK);
  if (rank == 0) WANT(rt_bootstrap_send(r.boot, 1, 1, data, 16) == RAIL_OK);
  if (rank == 1) WANT(recv_message(r.boot, 0, 1, data, 16) == RAIL_OK);
  atomic_fetch_add(&shared->open, 1);
  if (rank == 1) pause();
  WANT(comes(&shared->go, 1));
  WANT(pthread_create(&aborter, NULL, abort_soon, r.boot) == 0);
  WANT(rt_bootstrap_send(r.boot, 1, 2, data, LARGE) != RAIL_OK);
  pthread_join(aborter, NULL);
  WANT(rt_boot_send(r.boot, RT_BOOT_SPLIT, 1, 3, data, 16, &limits) == RAIL_REMOTE_ERROR);
  rt_bootstrap_close(r.boot);
  free(data);
  return 0;
}

static bool exited_well(pid_t pid, int rank) {
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return false;
  if (WEXITSTATUS(status)) printf("# rank %d: line %d, modulo 256\n", rank, WEXITSTATUS(status));
  return WEXITSTATUS(status) == 0;
}

static void interrupted(size_t first, size_t second) {
  pid_t pids[NRANKS];
  int status;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  fflush(stdout);
  for (int i = 0; i < NRANKS; i++) {
    pids[i] = fork();
    if (pids[i] == 0) _exit(survive(i, first, second));
    CHECK(pids[i] > 0);
  }
  bool open = comes(&shared->open, NRANKS);
  kill(pids[1], SIGSTOP);
  waitpid(pids[1], &status, WUNTRACED);
  atomic_store(&shared->go, 1);
  usleep(100000); /* it sends, and must wait */
  kill(pids[2], SIGKILL);
  usleep(200000); /* it knows; it still waits for the rest of a message that is half sent */
  kill(pids[1], SIGCONT);
  bool told = comes(&shared->told, 2);
  bool well0 = exited_well(pids[0], 0), well1 = exited_well(pids[1], 1);
  waitpid(pids[2], &status, 0);
  munmap(shared, sizeof *shared);
  CHECK(open && told);
  CHECK(well0 && well1);
}

TEST(while_it_connects) { interrupted(0, 16); }
TEST(in_the_middle_of_a_message) { interrupted(16, LARGE); }

TEST(nothing_follows_half_a_message) {
  pid_t pids[2];
  int status;
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(shared != MAP_FAILED);
  fflush(stdout);
  for (int i = 0; i < 2; i++) {
    pids[i] = fork();
    if (pids[i] == 0) _exit(give_up(i));
    CHECK(pids[i] > 0);
  }
  bool open = comes(&shared->open, 2);
  kill(pids[1], SIGSTOP);
  waitpid(pids[1], &status, WUNTRACED);
  atomic_store(&shared->go, 1);
  bool well = exited_well(pids[0], 0);
  kill(pids[1], SIGKILL);
  waitpid(pids[1], &status, 0);
  munmap(shared, sizeof *shared);
  CHECK(open && well);
}

static const struct tap_case cases[] = {TEST_CASE(while_it_connects), TEST_CASE(in_the_middle_of_a_message),
                                        TEST_CASE(nothing_follows_half_a_message)};

int main(int argc, char **argv) {
  unsetenv("NCCL_COMM_ID");
  rail_log_set_sink(capture);
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
