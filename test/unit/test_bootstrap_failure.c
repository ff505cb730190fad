/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves: all ranks learn of a dead, stopped or aborting one, soon and with its name; a rank that leaves in
 * good order is not taken for dead; nothing is left behind.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "core/bootstrap/rt_bootstrap.h"
#include "test/unit/boot_ranks.h"

/* 33 messages of 8 MiB that nobody takes: the limit ends the communicator instead of the memory. */
static int flood_body(struct rank *r, struct rt_bootstrap *b) {
  if (r->rank == 1) {
    char c;
    WANT(recv_message(b, 0, 999, &c, 1) == RAIL_SYSTEM_ERROR);
    return 0;
  }
  size_t size = 8u << 20;
  char *buf = calloc(1, size);
  rail_result_t result = RAIL_OK;
  WANT(buf);
  for (int i = 0; i < 33 && result == RAIL_OK; i++) result = rt_bootstrap_send(b, 1, 5, buf, size);
  free(buf);
  char c;
  WANT(result != RAIL_OK || recv_message(b, 1, 1, &c, 1) != RAIL_OK); /* told by rank 1 at last */
  return 0;
}

TEST(unread_messages_are_bounded) {
  char id[RT_UNIQUE_ID_BYTES];
  CHECK_OK(rt_unique_id_create(id));
  ranks_init(2, id, flood_body);
  ranks_run(2);
  CHECK_INT(ranks[0].bad_line, 0);
  CHECK_INT(ranks[1].bad_line, 0);
  CHECK_INT(ranks[1].failures, 1);
  CHECK(strstr(ranks[1].why, "nobody receives"));
}

/* ---- death, silence, abort ---- */

static _Atomic int abort_flag, past; /* past: ranks that are past the barrier, which an abort would end */

static int wait_for_failure_body(struct rank *r, struct rt_bootstrap *b) {
  char c;
  if (boot_barrier(b) != RAIL_OK) return __LINE__;
  atomic_fetch_add(&past, 1);
  if (r->rank == 1) {
    uint64_t deadline = rail_deadline_in_ms(60000);
    while (atomic_load(&past) < r->nranks && !rail_deadline_passed(deadline)) usleep(1000);
    usleep(20000); /* the others wait for a message by now */
    rt_bootstrap_abort(b, RAIL_BAD_USAGE, "because the test says so");
    return 0;
  }
  rail_result_t result = recv_message(b, (r->rank + 1) % r->nranks, 42, &c, 1);
  WANT(result == RAIL_BAD_USAGE);
  WANT(rt_bootstrap_send(b, (r->rank + 2) % r->nranks, 42, &c, 1) == RAIL_BAD_USAGE);
  char why[512];
  WANT(rt_bootstrap_failure(b, why, sizeof why) == RAIL_BAD_USAGE);
  WANT(strstr(why, "rank 1 (") && strstr(why, "aborted: because the test says so"));
  return 0;
}

TEST(abort_spreads_to_all) {
  EACH_WORLD(n) {
    if (n < 2) continue;
    char id[RT_UNIQUE_ID_BYTES];
    CHECK_OK(rt_unique_id_create(id));
    ranks_init(n, id, wait_for_failure_body);
    atomic_store(&past, 0);
    ranks_run(n);
    for (int i = 0; i < n; i++) {
      CHECK_INT(ranks[i].open_result, RAIL_OK);
      CHECK_MSG(!ranks[i].bad_line, "rank %d of %d: line %d", i, n, ranks[i].bad_line);
      CHECK_INT(ranks[i].failures, i == 1 ? 0 : 1);
    }
  }
}

static int abort_flag_body(struct rank *r, struct rt_bootstrap *b) {
  char c;
  WANT(boot_barrier(b) == RAIL_OK);
  (void)r;
  return recv_message(b, 0, 4, &c, 1) == RAIL_REMOTE_ERROR ? 0 : __LINE__;
}

static void *flagged_main(void *arg) {
  struct rank *r = arg;
  struct rt_bootstrap_args args = args_of(r);
  args.abort_flag = &abort_flag;
  r->open_result = rt_bootstrap_open(r->id, &args, &r->boot);
  if (r->open_result == RAIL_OK) r->bad_line = abort_flag_body(r, r->boot);
  rt_bootstrap_close(r->boot);
  return NULL;
}

TEST(abort_flag_ends_waits) {
  char id[RT_UNIQUE_ID_BYTES];
  CHECK_OK(rt_unique_id_create(id));
  ranks_init(3, id, NULL);
  atomic_store(&abort_flag, 0);
  for (int i = 0; i < 3; i++) CHECK_INT(pthread_create(&ranks[i].thread, NULL, flagged_main, &ranks[i]), 0);
  usleep(300000);
  atomic_store(&abort_flag, 1);
  for (int i = 0; i < 3; i++) pthread_join(ranks[i].thread, NULL);
  for (int i = 0; i < 3; i++) CHECK_INT(ranks[i].bad_line, 0);
  /* and in the rendezvous */
  CHECK_OK(rt_unique_id_create(id));
  ranks_init(3, id, NULL);
  uint64_t start = rail_now_ns();
  for (int i = 0; i < 2; i++) CHECK_INT(pthread_create(&ranks[i].thread, NULL, flagged_main, &ranks[i]), 0);
  for (int i = 0; i < 2; i++) pthread_join(ranks[i].thread, NULL);
  for (int i = 0; i < 2; i++) CHECK_INT(ranks[i].open_result, RAIL_REMOTE_ERROR);
  CHECK(rail_now_ns() - start < 20000000000ull);
  atomic_store(&abort_flag, 0);
}

/* ---- ranks as processes, of which one is killed or stopped ---- */

/* In a process of its own: meets the others, says so on fd 3, waits for a message that never comes, and says when and
 * of what it was told. */
static void told_main_failure(void *arg, rail_result_t result, const char *why) {
  on_failure(arg, result, why);
  if (write(3, "F", 1) != 1) _exit(9);
}

static int hex_digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

/* argv: --rank RANK NRANKS VICTIM HEARTBEAT_TIMEOUT ID */
static int process_rank(char **argv) {
  struct rank r = {.rank = atoi(argv[2]), .nranks = atoi(argv[3]), .timeout_ms = 60000, .heartbeat_ms = 200,
                   .heartbeat_timeout_ms = (uint64_t)atoi(argv[5])};
  struct rt_bootstrap_args args = args_of(&r);
  char c = 0, name[32];
  for (size_t i = 0; i < RT_UNIQUE_ID_BYTES; i++)
    r.id[i] = (char)(hex_digit(argv[6][2 * i]) * 16 + hex_digit(argv[6][2 * i + 1]));
  args.on_failure = told_main_failure;
  if (rt_bootstrap_open(r.id, &args, &r.boot) != RAIL_OK) return 2;
  if (boot_barrier(r.boot) != RAIL_OK) return 3;
  if (write(3, "R", 1) != 1) return 4;
  if (recv_message(r.boot, (r.rank + 1) % r.nranks, 9, &c, 1) != RAIL_REMOTE_ERROR) return 5;
  uint64_t deadline = rail_deadline_in_ms(60000);
  while (atomic_load(&r.failures) == 0 && !rail_deadline_passed(deadline)) usleep(1000);
  rt_bootstrap_close(r.boot);
  snprintf(name, sizeof name, "rank %d (", atoi(argv[4]));
  if (r.failures != 1) return 6;
  if (strstr(r.why, name)) return 0;
  fprintf(stderr, "# rank %d was told: %s\n", r.rank, r.why);
  return 7;
}

static pid_t start_process(int rank, int n, int victim, uint64_t heartbeat_timeout_ms, const char *id, int fd) {
  static const char digits[] = "0123456789abcdef";
  char numbers[4][24], hex[2 * RT_UNIQUE_ID_BYTES + 1] = {0};
  snprintf(numbers[0], sizeof numbers[0], "%d", rank);
  snprintf(numbers[1], sizeof numbers[1], "%d", n);
  snprintf(numbers[2], sizeof numbers[2], "%d", victim);
  snprintf(numbers[3], sizeof numbers[3], "%d", (int)heartbeat_timeout_ms);
  for (size_t i = 0; i < RT_UNIQUE_ID_BYTES; i++) {
    hex[2 * i] = digits[(unsigned char)id[i] >> 4];
    hex[2 * i + 1] = digits[id[i] & 15];
  }
  pid_t pid = fork();
  if (pid != 0) return pid;
  if (dup2(fd, 3) != 3) _exit(10); /* fd is not 3: see one_dies */
  execl("/proc/self/exe", "rank", "--rank", numbers[0], numbers[1], numbers[2], numbers[3], hex, (char *)NULL);
  _exit(11);
}

/* Reads `count` bytes, all of which must be `what`, until the deadline; returns how many came. */
static int hear(int fd, int count, char what, uint64_t deadline) {
  int heard = 0;
  while (heard < count) {
    char byte;
    struct pollfd pfd = {.fd = fd, .events = POLLIN};
    if (poll(&pfd, 1, rail_deadline_left_ms(deadline)) <= 0 || read(fd, &byte, 1) != 1 || byte != what) break;
    heard++;
  }
  return heard;
}

/* All survivors must be told that it was the victim, within limit_ms of the signal. */
static void one_dies(int n, int victim, int sig, uint64_t heartbeat_timeout_ms, uint64_t limit_ms) {
  char id[RT_UNIQUE_ID_BYTES];
  pid_t pids[MAX_RANKS] = {0};
  int fds[2], status[MAX_RANKS];
  CHECK_INT(pipe2(fds, O_CLOEXEC), 0);
  if (fds[1] == 3) CHECK((fds[1] = fcntl(3, F_DUPFD_CLOEXEC, 10)) >= 10 && close(3) == 0);
  CHECK_OK(rt_unique_id_create(id));
  for (int i = 0; i < n; i++) pids[i] = start_process(i, n, victim, heartbeat_timeout_ms, id, fds[1]);
  close(fds[1]);
  int met = hear(fds[0], n, 'R', rail_deadline_in_ms(60000));
  if (pids[victim] > 0) kill(pids[victim], sig);
  int told = hear(fds[0], n - 1, 'F', rail_deadline_in_ms(limit_ms));
  close(fds[0]);
  for (int i = 0; i < n; i++) {
    if (pids[i] > 0 && (i == victim || met < n || told < n - 1)) kill(pids[i], SIGKILL);
    if (pids[i] <= 0 || waitpid(pids[i], &status[i], 0) != pids[i]) status[i] = -1;
  }
  CHECK_INT(met, n);
  CHECK_MSG(told == n - 1, "%d of %d told of the end of rank %d within %d ms", told, n - 1, victim, (int)limit_ms);
  for (int i = 0; i < n; i++)
    if (i != victim) CHECK_MSG(status[i] == 0, "rank %d of %d, victim %d: status %#x", i, n, victim, status[i]);
}

TEST(killed_rank) {
  for (int n = 2; n <= 8; n += n < 4 ? 1 : 4)
    for (int victim = 0; victim < n; victim += 1 + n / 4) one_dies(n, victim, SIGKILL, 60000, 2000);
}

TEST(stopped_rank) {
  one_dies(2, 1, SIGSTOP, 1000, 15000);
  one_dies(4, 0, SIGSTOP, 1000, 15000);
}

/* Two ranks stand still together, as in a virtual machine that is paused. The one that goes on first has heard nothing
 * of the other for longer than the timeout, and yet must wait for it anew. */
TEST(a_pause_of_all_is_no_silence) {
  char id[RT_UNIQUE_ID_BYTES];
  pid_t pids[2];
  int fds[2], status[2];
  CHECK_INT(pipe2(fds, O_CLOEXEC), 0);
  if (fds[1] == 3) CHECK((fds[1] = fcntl(3, F_DUPFD_CLOEXEC, 10)) >= 10 && close(3) == 0);
  CHECK_OK(rt_unique_id_create(id));
  for (int i = 0; i < 2; i++) pids[i] = start_process(i, 2, 1, 1500, id, fds[1]);
  close(fds[1]);
  int met = hear(fds[0], 2, 'R', rail_deadline_in_ms(60000));
  usleep(300000); /* heartbeats go both ways */
  for (int i = 0; i < 2; i++) kill(pids[i], SIGSTOP);
  usleep(2000000);
  kill(pids[0], SIGCONT);
  int told = hear(fds[0], 1, 'F', rail_deadline_in_ms(500));
  for (int i = 0; i < 2; i++) kill(pids[i], SIGKILL), waitpid(pids[i], &status[i], 0);
  close(fds[0]);
  CHECK_INT(met, 2);
  CHECK_MSG(told == 0, "the rank that went on first took the other one for dead");
}

/* A neighbour with a long heartbeat interval times out by its own interval. */
static int seldom_body(struct rank *r, struct rt_bootstrap *b) {
  WANT(boot_barrier(b) == RAIL_OK);
  usleep(1600000);
  WANT(r->failures == 0);
  return boot_barrier(b) == RAIL_OK ? 0 : __LINE__;
}

TEST(seldom_heartbeats_are_no_silence) {
  char id[RT_UNIQUE_ID_BYTES];
  CHECK_OK(rt_unique_id_create(id));
  ranks_init(2, id, seldom_body);
  ranks[0].heartbeat_ms = 100;
  ranks[0].heartbeat_timeout_ms = 400;
  ranks[1].heartbeat_ms = 1200;
  const char *bad = ranks_run(2);
  CHECK_MSG(!bad, "%s: %s", bad, ranks[0].why);
}

static uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ x >> 16;
}

/* ---- leaving ---- */

/* Ranks close at different times; nobody takes a goodbye for a death. */
static int leave_body(struct rank *r, struct rt_bootstrap *b) {
  if (boot_barrier(b) != RAIL_OK) return __LINE__;
  usleep((useconds_t)(mix((uint32_t)r->rank) % 30000));
  return 0;
}

TEST(goodbye_is_no_death) {
  for (int round = 0; round < 5; round++) EACH_WORLD(n) run_good(n, leave_body);
}

/* A message sent just before the goodbye arrives; after it, a recv does not wait in vain. */
static int last_word_body(struct rank *r, struct rt_bootstrap *b) {
  int value = 5;
  if (r->rank == 0) return rt_bootstrap_send(b, 1, 1, &value, sizeof value) == RAIL_OK ? 0 : __LINE__;
  usleep(100000);
  value = 0;
  WANT(recv_message(b, 0, 1, &value, sizeof value) == RAIL_OK && value == 5);
  WANT(recv_message(b, 0, 1, &value, sizeof value) == RAIL_REMOTE_ERROR);
  return 0;
}

TEST(last_word) {
  log_clear();
  run_good(2, last_word_body);
  CHECK(logged("which has closed the communicator"));
}

static int count_entries(const char *dir) {
  DIR *d = opendir(dir);
  int n = 0;
  if (!d) return -1;
  while (readdir(d)) n++;
  closedir(d);
  return n;
}

/* The rendezvous' threads end on their own, soon. */
static int entries_down_to(const char *dir, int want) {
  int n = count_entries(dir);
  for (int i = 0; i < 1000 && n > want; i++) {
    usleep(10000);
    n = count_entries(dir);
  }
  return n;
}

static int steady_entries(const char *dir) {
  int n = count_entries(dir);
  for (int same = 0; same < 30;) {
    usleep(10000);
    int now = count_entries(dir);
    same = now == n ? same + 1 : 0;
    n = now;
  }
  return n;
}

TEST(nothing_is_left_behind) {
  run_good(3, leave_body);
  int fds = steady_entries("/proc/self/fd"), threads = steady_entries("/proc/self/task");
  for (int i = 0; i < 200; i++) run_good(1 + i % 3, leave_body);
  CHECK_INT(entries_down_to("/proc/self/fd", fds), fds);
  CHECK_INT(entries_down_to("/proc/self/task", threads), threads);
}

static const struct tap_case cases[] = {
  TEST_CASE(unread_messages_are_bounded), TEST_CASE(abort_spreads_to_all), TEST_CASE(abort_flag_ends_waits),
  TEST_CASE(killed_rank), TEST_CASE(stopped_rank), TEST_CASE(a_pause_of_all_is_no_silence),
  TEST_CASE(seldom_heartbeats_are_no_silence), TEST_CASE(goodbye_is_no_death), TEST_CASE(last_word),
  TEST_CASE(nothing_is_left_behind),
};

int main(int argc, char **argv) {
  if (argc == 7 && strcmp(argv[1], "--rank") == 0) return process_rank(argv);
  unsetenv("NCCL_COMM_ID");
  rail_log_set_sink(capture);
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
