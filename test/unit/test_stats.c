/* SPDX-License-Identifier: Apache-2.0
 * A page of counters: its life, its writer's bad days (no memory, fork, a full group), and a reader beside it. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/kit_ensure.h"
#include "kit/kit_stats.h"
#include "test/harness/tap.h"

enum { SENT, OUTSTANDING, PROGRESS, COMM_COUNTERS };
static const struct rail_stats_counter comm_counters[] = {
  {"sent_bytes", RAIL_STATS_COUNTER, "Bytes sent."},
  {"outstanding", RAIL_STATS_GAUGE, "Requests."},
  {"progress_time", RAIL_STATS_TIME, "Last progress."},
};
static const struct rail_stats_counter many_counters[] = {
  {"a", RAIL_STATS_COUNTER, "a"}, {"b", RAIL_STATS_COUNTER, "b"}, {"c", RAIL_STATS_COUNTER, "c"},
  {"d", RAIL_STATS_COUNTER, "d"}, {"e", RAIL_STATS_COUNTER, "e"}, {"f", RAIL_STATS_COUNTER, "f"},
  {"g", RAIL_STATS_COUNTER, "g"}, {"h", RAIL_STATS_COUNTER, "h"}, {"i", RAIL_STATS_COUNTER, "i"},
};
static const struct rail_stats_group groups[] = {
  {"comm", comm_counters, COMM_COUNTERS, 3},
  {"many", many_counters, RAIL_COUNT_OF(many_counters), 1000},
};
enum { COMM, MANY };

static struct rail_stats *open_page(const char *name) {
  struct rail_stats *s = rail_stats_open(name, groups, RAIL_COUNT_OF(groups));
  CHECK(s != NULL);
  return s;
}

static const char *file_of(pid_t pid, const char *name) {
  static char file[128];
  snprintf(file, sizeof file, RAIL_STATS_PREFIX "%d.%s", (int)pid, name);
  return file;
}

static bool exists(const char *file) {
  char path[256];
  snprintf(path, sizeof path, RAIL_STATS_DIR "/%s", file);
  return access(path, F_OK) == 0;
}

static struct kit_stats_view *look(const char *name) {
  char why[256] = "";
  struct kit_stats_view *v = kit_stats_read(RAIL_STATS_DIR, file_of(getpid(), name), why, sizeof why);
  CHECK_MSG(v != NULL, "%s: %s", name, why);
  return v;
}

TEST(page_life) {
  int free_before = dup(1);
  close(free_before);
  struct rail_stats *s = open_page("life");
  struct stat st;
  uint64_t before = rail_now_ns();
  char path[256];
  snprintf(path, sizeof path, RAIL_STATS_DIR "/%s", file_of(getpid(), "life"));
  CHECK(stat(path, &st) == 0);
  CHECK_INT(st.st_mode & 07777, 0600);
  uint64_t *r = rail_stats_take(s, COMM, "peer=%s,side=send", "[::1]:5");
  CHECK(r && (uintptr_t)r % RAIL_CACHELINE == 0 && r[SENT] == 0 && r[PROGRESS] == 0);
  uint64_t *other = rail_stats_take(s, COMM, "side=receive");
  CHECK((size_t)labs((long)((char *)other - (char *)r)) >= RAIL_CACHELINE);
  rail_stats_add(&r[SENT], 40);
  rail_stats_add(&r[SENT], 2);
  rail_stats_add_shared(&r[SENT], UINT64_MAX); /* less one */
  rail_stats_set(&r[OUTSTANDING], 7);
  rail_stats_set(&r[PROGRESS], before);

  struct kit_stats_view *v = look("life");
  CHECK_INT(v->pid, getpid());
  CHECK_INT(v->alive, RAIL_STATS_LIVE);
  CHECK_STR(v->name, "life");
  CHECK_STR(v->process, "test_stats");
  CHECK(v->opened_ns <= before && v->read_ns >= before);
  CHECK_INT(v->ngroups, 2);
  const struct kit_stats_view_group *g = &v->groups[COMM];
  CHECK_STR(g->name, "comm");
  CHECK_INT(g->ncounters, COMM_COUNTERS);
  CHECK_STR(g->counters[PROGRESS].name, "progress_time");
  CHECK_STR(g->counters[SENT].doc, "Bytes sent.");
  CHECK_INT(g->counters[OUTSTANDING].kind, RAIL_STATS_GAUGE);
  CHECK_INT(g->nrecords, 2);
  CHECK_STR(g->records[0].label, "peer=[::1]:5,side=send");
  CHECK_STR(g->records[1].label, "side=receive");
  CHECK_INT(g->records[0].values[SENT], 41);
  CHECK_INT(g->records[0].values[OUTSTANDING], 7);
  CHECK_INT(g->records[0].values[PROGRESS], before);
  CHECK_INT(g->records[1].values[SENT], 0);
  uint64_t life = g->records[0].life;
  kit_stats_view_free(v);

  rail_stats_drop(s, COMM, r);
  rail_stats_drop(s, COMM, NULL);
  v = look("life");
  CHECK_INT(v->groups[COMM].nrecords, 1);
  CHECK_INT(v->groups[COMM].records[0].index, 1);
  kit_stats_view_free(v);
  r = rail_stats_take(s, COMM, "again=1");
  CHECK_INT(r[SENT], 0); /* the place's values begin anew, and the life is another */
  v = look("life");
  CHECK_INT(v->groups[COMM].records[0].index, 0);
  CHECK(v->groups[COMM].records[0].life > life);
  CHECK_STR(v->groups[COMM].records[0].label, "again=1");
  kit_stats_view_free(v);
  rail_stats_drop(s, COMM, r);
  rail_stats_drop(s, COMM, other);
  rail_stats_close(s);
  CHECK(!exists(file_of(getpid(), "life")));
  int free_after = dup(1);
  close(free_after);
  CHECK_INT(free_after, free_before); /* the page's file is closed */
  rail_stats_close(NULL);
}

TEST(full_group_counts_on_in_private) {
  struct rail_stats *s = open_page("full");
  uint64_t *r[6];
  for (int i = 0; i < 6; i++) {
    r[i] = rail_stats_take(s, COMM, "n=%d", i);
    CHECK(r[i] && r[i][SENT] == 0 && (uintptr_t)r[i] % RAIL_CACHELINE == 0);
    rail_stats_add(&r[i][SENT], (uint64_t)i + 1);
  }
  for (int i = 0; i < 6; i++) CHECK_INT(r[i][SENT], i + 1);
  struct kit_stats_view *v = look("full");
  CHECK_INT(v->groups[COMM].nrecords, 3);
  CHECK_INT(v->groups[COMM].left_out, 3);
  kit_stats_view_free(v);
  rail_stats_drop(s, COMM, r[1]); /* makes room for one */
  r[1] = rail_stats_take(s, COMM, "n=late");
  v = look("full");
  CHECK_INT(v->groups[COMM].nrecords, 3);
  CHECK_STR(v->groups[COMM].records[1].label, "n=late");
  kit_stats_view_free(v);
  rail_stats_close(s); /* the records live on */
  CHECK(!exists(file_of(getpid(), "full")));
  for (int i = 0; i < 6; i++) {
    rail_stats_add(&r[i][SENT], 1);
    rail_stats_drop(s, COMM, r[i]);
  }
}

TEST(take_after_close_is_private) {
  struct rail_stats *s = open_page("closed");
  uint64_t *keeps = rail_stats_take(s, COMM, "a=1");
  rail_stats_close(s);
  uint64_t *r = rail_stats_take(s, COMM, "b=1");
  rail_stats_add(&r[SENT], 1);
  CHECK_INT(r[SENT], 1);
  rail_stats_drop(s, COMM, r);
  rail_stats_drop(s, COMM, keeps);
}

TEST(long_label_is_cut_after_a_pair) {
  struct rail_stats *s = open_page("label");
  char pad[150];
  memset(pad, 'x', sizeof pad - 1);
  pad[sizeof pad - 1] = 0;
  uint64_t *r = rail_stats_take(s, COMM, "a=%s,b=2,c=%s,d=4", pad, pad);
  uint64_t *one = rail_stats_take(s, COMM, "%s%s", pad, pad);
  struct kit_stats_view *v = look("label");
  CHECK_INT(strlen(v->groups[COMM].records[0].label), 2 + 149 + 4);
  CHECK_STR(v->groups[COMM].records[0].label + 2 + 149, ",b=2");
  CHECK_INT(strlen(v->groups[COMM].records[1].label), RAIL_STATS_LABEL - 1);
  kit_stats_view_free(v);
  rail_stats_drop(s, COMM, r);
  rail_stats_drop(s, COMM, one);
  rail_stats_close(s);
}

TEST(pages_of_one_name_have_a_file_each) {
  struct rail_stats *a = open_page("a name/.."), *b = open_page("a name/..");
  CHECK(exists(file_of(getpid(), "a_name___")) && exists(file_of(getpid(), "a_name___.2")));
  struct kit_stats_view *v = look("a_name___.2");
  CHECK_STR(v->name, "a name/..");
  kit_stats_view_free(v);
  rail_stats_close(a);
  CHECK(!exists(file_of(getpid(), "a_name___")) && exists(file_of(getpid(), "a_name___.2")));
  rail_stats_close(b);
  CHECK(!exists(file_of(getpid(), "a_name___.2")));
}

/* ---- other processes ---- */

/* Runs `child` in a forked process; its exit status. */
static int in_child(int (*child)(struct rail_stats *, uint64_t *), struct rail_stats *s, uint64_t *r, bool handlers) {
  fflush(NULL);
  pid_t pid = handlers ? fork() : (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
  if (pid == 0) _exit(child(s, r));
  int status = -1;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
}

static int child_counts_and_closes(struct rail_stats *s, uint64_t *r) {
  rail_stats_add(&r[SENT], 1000);
  if (r[SENT] != 1000) return 1; /* begins at 0 */
  uint64_t *more = rail_stats_take(s, MANY, "child=1");
  if (!more) return 2;
  rail_stats_add(&more[8], 5);
  struct rail_stats *own = rail_stats_open("life", groups, 2);
  if (!own || !exists(file_of(getpid(), "life"))) return 3;
  rail_stats_close(own);
  rail_stats_drop(s, COMM, r);
  rail_stats_drop(s, MANY, more);
  rail_stats_close(s);
  return 0;
}

/* Its copy of the page begins anew: a record that the parent took is no record there, and dropping makes it none. */
static int child_drops_the_parents(struct rail_stats *s, uint64_t *r) {
  const struct rail_stats_record_head *head = (struct rail_stats_record_head *)(void *)r - 1;
  rail_stats_drop(s, COMM, r);
  return head->life % 2 != 0;
}

static int child_only_closes(struct rail_stats *s, uint64_t *r) {
  (void)r;
  rail_stats_close(s);
  return 0;
}

TEST(fork_leaves_the_page_to_the_parent) {
  struct rail_stats *s = open_page("fork");
  uint64_t *r = rail_stats_take(s, COMM, "parent=1");
  rail_stats_add(&r[SENT], 7);
  CHECK_INT(in_child(child_counts_and_closes, s, r, true), 0);
  CHECK(exists(file_of(getpid(), "fork")));
  CHECK_INT(r[SENT], 7);
  CHECK_INT(in_child(child_drops_the_parents, s, r, true), 0);
  CHECK_INT(in_child(child_only_closes, s, r, false), 0); /* no handlers ran: the pid saves the file */
  CHECK(exists(file_of(getpid(), "fork")));
  struct kit_stats_view *v = look("fork");
  CHECK_INT(v->groups[COMM].nrecords, 1);
  CHECK_INT(v->groups[MANY].nrecords, 0);
  CHECK_INT(v->groups[COMM].records[0].values[SENT], 7);
  kit_stats_view_free(v);
  rail_stats_drop(s, COMM, r);
  rail_stats_close(s);
}

static int counts_in_private(void) {
  struct rail_stats *s = rail_stats_open("none", groups, 2);
  uint64_t *r = s ? rail_stats_take(s, COMM, "a=1") : NULL;
  if (!r || exists(file_of(getpid(), "none"))) return 1;
  rail_stats_add(&r[PROGRESS], 3);
  if (r[SENT] != 0 || r[PROGRESS] != 3 || (uintptr_t)r % RAIL_CACHELINE) return 2;
  rail_stats_drop(s, COMM, r);
  rail_stats_close(s);
  return 0;
}

static int child_without_file_size(struct rail_stats *s, uint64_t *r) {
  (void)s, (void)r;
  struct rlimit limit = {1000, 1000};
  return setrlimit(RLIMIT_FSIZE, &limit) != 0 ? 99 : counts_in_private();
}

static int child_without_fds(struct rail_stats *s, uint64_t *r) {
  (void)s, (void)r;
  struct rlimit limit = {0, 0};
  return setrlimit(RLIMIT_NOFILE, &limit) != 0 ? 99 : counts_in_private();
}

TEST(private_when_there_is_no_file) {
  CHECK_INT(in_child(child_without_file_size, NULL, NULL, true), 0);
  CHECK_INT(in_child(child_without_fds, NULL, NULL, true), 0);
}

/* The parameter is read once a process. */
TEST(private_when_switched_off) {
  const char *value = getenv("RAIL_STATS");
  if (value) {
    CHECK_INT(counts_in_private(), 0);
    return;
  }
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    char exe[4096];
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    if (n <= 0 || !freopen("/dev/null", "w", stdout)) _exit(98);
    exe[n] = 0;
    setenv("RAIL_STATS", "0", 1);
    execl(exe, exe, "private_when_switched_off", (char *)NULL);
    _exit(97);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  CHECK_INT(status, 0);
}

/* 0 fine, 77: not allowed to make such a file system here. */
static int child_on_a_small_disk(struct rail_stats *s, uint64_t *r) {
  (void)s, (void)r;
  if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return 77;
  if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) return 77;
  if (mount("tmpfs", RAIL_STATS_DIR, "tmpfs", 0, "size=64k") != 0) return 77;
  struct rail_stats *page = rail_stats_open("small", groups, 2);
  if (!page || !exists(file_of(getpid(), "small"))) return 1;
  for (int i = 0; i < 1000; i++) { /* 384 KB are wanted */
    uint64_t *record = rail_stats_take(page, MANY, "n=%d", i);
    if (!record) return 2;
    for (int k = 0; k < 9; k++) rail_stats_add(&record[k], 1);
  }
  char why[256];
  struct kit_stats_view *v = kit_stats_read(RAIL_STATS_DIR, file_of(getpid(), "small"), why, sizeof why);
  if (!v) return 3;
  if (v->groups[MANY].nrecords < 10 || v->groups[MANY].nrecords + v->groups[MANY].left_out != 1000) return 4;
  kit_stats_view_free(v);
  rail_stats_close(page);
  return exists(file_of(getpid(), "small")) ? 5 : 0;
}

TEST(full_file_system_is_no_crash) {
  int status = in_child(child_on_a_small_disk, NULL, NULL, true);
  if (status == 77) tap_skip_case("no mount namespace is allowed here");
  CHECK_INT(status, 0);
}

/* ---- the dead ---- */

static int child_dies_with_a_page(struct rail_stats *s, uint64_t *r) {
  (void)s, (void)r;
  struct rail_stats *own = rail_stats_open("orphan", groups, 2);
  rail_stats_take(own, COMM, "a=1");
  printf("%d\n", getpid());
  raise(SIGKILL);
  return 1;
}

TEST(next_page_removes_those_of_the_dead) {
  int fds[2], saved = dup(STDOUT_FILENO);
  char text[32] = "";
  CHECK(pipe(fds) == 0);
  fflush(stdout);
  dup2(fds[1], STDOUT_FILENO);
  int status = in_child(child_dies_with_a_page, NULL, NULL, true);
  dup2(saved, STDOUT_FILENO);
  close(saved);
  close(fds[1]);
  ssize_t n = read(fds[0], text, sizeof text - 1);
  close(fds[0]);
  CHECK_INT(status, 256 + SIGKILL);
  CHECK(n > 0);
  pid_t pid = (pid_t)atol(text);
  CHECK(pid > 0);
  struct rail_stats *s = open_page("next");
  CHECK(!exists(file_of(pid, "orphan"))); /* another test's page may have done it already: all the same */
  rail_stats_close(s);
}

/* No close, no drop: exit removes the file all the same, in the process that made it and not in its child. */
TEST(exit_without_close) {
  int fds[2];
  char seen[2] = "";
  CHECK(pipe(fds) == 0);
  fflush(NULL);
  pid_t pid = fork();
  if (pid == 0) {
    struct rail_stats *s = rail_stats_open("exit", groups, 2);
    uint64_t *record = s ? rail_stats_take(s, COMM, "a=1") : NULL;
    pid_t child = fork();
    if (child == 0) exit(0);
    waitpid(child, NULL, 0);
    char there = record && exists(file_of(getpid(), "exit")) ? 'y' : 'n';
    (void)!write(fds[1], &there, 1);
    exit(0);
  }
  close(fds[1]);
  ssize_t n = read(fds[0], seen, 1);
  close(fds[0]);
  waitpid(pid, NULL, 0);
  CHECK_INT(n, 1);
  CHECK_STR(seen, "y");
  CHECK(!exists(file_of(pid, "exit")));
}

TEST(start_time_tells_a_recycled_pid) {
  uint64_t ticks = 0;
  CHECK(rail_stats_process_start(getpid(), &ticks) && ticks > 0);
  CHECK_INT(rail_stats_alive(getpid(), ticks, rail_stats_pid_ns()), RAIL_STATS_LIVE);
  CHECK_INT(rail_stats_alive(getpid(), ticks - 1, rail_stats_pid_ns()), RAIL_STATS_DEAD);
  CHECK_INT(rail_stats_alive(getpid(), ticks, rail_stats_pid_ns() + 1), RAIL_STATS_ELSEWHERE);
  CHECK_INT(rail_stats_alive(0, ticks, rail_stats_pid_ns()), RAIL_STATS_DEAD);
  pid_t pid = fork();
  if (pid == 0) _exit(0);
  siginfo_t info;
  CHECK(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) == 0);
  CHECK(!rail_stats_process_start(pid, &ticks) && errno == ESRCH); /* a zombie */
  CHECK(waitpid(pid, NULL, 0) == pid);
  CHECK(!rail_stats_process_start(pid, &ticks) && errno == ESRCH);
}

/* Else a process that has no descriptor left would take the pages of all others for those of the dead. */
TEST(who_cannot_be_looked_at_is_not_dead) {
  struct rlimit limit;
  uint64_t ticks = 0;
  CHECK(rail_stats_process_start(getpid(), &ticks) && getrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max}) == 0);
  enum rail_stats_alive alive = rail_stats_alive(getpid(), ticks, rail_stats_pid_ns());
  bool started = rail_stats_process_start(getpid(), &ticks);
  int err = errno;
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  CHECK_INT(alive, RAIL_STATS_ELSEWHERE);
  CHECK(!started && err == EMFILE);
}

/* ---- a reader beside a busy writer ---- */

struct writer {
  struct rail_stats *stats;
  int stop;
};

/* Lives of a record: label and values all say the same number. Another counter flips all bits of its halves. */
static void *write_lives(void *arg) {
  struct writer *w = arg;
  uint64_t *flips = rail_stats_take(w->stats, MANY, "flip=1");
  for (uint64_t n = 1; flips && !__atomic_load_n(&w->stop, __ATOMIC_RELAXED); n++) {
    uint64_t *r = rail_stats_take(w->stats, MANY, "n=%" PRIu64, n);
    if (!r) break;
    for (int k = 0; k < 9; k++) rail_stats_set(&r[k], n);
    for (int k = 0; k < 9; k++) rail_stats_set(&flips[k], n % 2 ? 0xffffffff00000000u : 0xffffffffu);
    rail_stats_drop(w->stats, MANY, r);
  }
  rail_stats_drop(w->stats, MANY, flips);
  return NULL;
}

TEST(lives_and_halves_are_never_mixed) {
  struct writer w = {.stats = open_page("race")};
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, write_lives, &w) == 0);
  const char *bad = NULL;
  int kept = 0;
  uint64_t until = rail_deadline_in_ms(700);
  char why[256];
  while (!bad && !rail_deadline_passed(until)) {
    struct kit_stats_view *v = kit_stats_read(RAIL_STATS_DIR, file_of(getpid(), "race"), why, sizeof why);
    if (!v) bad = "no page";
    for (uint32_t i = 0; v && !bad && i < v->groups[MANY].nrecords; i++) {
      const struct kit_stats_view_record *r = &v->groups[MANY].records[i];
      uint64_t n = strtoull(r->label + 2, NULL, 10);
      for (int k = 0; k < 9; k++) {
        uint64_t x = r->values[k];
        if (r->label[0] == 'f' && x != 0 && x != 0xffffffffu && x != 0xffffffff00000000u) bad = "half a value";
        if (r->label[0] == 'n' && x != 0 && x != n) bad = "values of another life";
      }
      kept += r->label[0] == 'n';
    }
    kit_stats_view_free(v);
  }
  __atomic_store_n(&w.stop, 1, __ATOMIC_RELAXED);
  pthread_join(thread, NULL);
  rail_stats_close(w.stats);
  CHECK_MSG(!bad, "%s", bad);
  printf("# %d records read while they came and went\n", kept);
}

TEST_MAIN(TEST_CASE(page_life), TEST_CASE(full_group_counts_on_in_private), TEST_CASE(take_after_close_is_private),
          TEST_CASE(long_label_is_cut_after_a_pair), TEST_CASE(pages_of_one_name_have_a_file_each),
          TEST_CASE(fork_leaves_the_page_to_the_parent), TEST_CASE(private_when_there_is_no_file),
          TEST_CASE(private_when_switched_off), TEST_CASE(full_file_system_is_no_crash),
          TEST_CASE(next_page_removes_those_of_the_dead), TEST_CASE(exit_without_close),
          TEST_CASE(start_time_tells_a_recycled_pid), TEST_CASE(who_cannot_be_looked_at_is_not_dead),
          TEST_CASE(lives_and_halves_are_never_mixed))
