/* SPDX-License-Identifier: Apache-2.0
 * TEST-PRELOAD: rail-fault
 *
 * The preload library that every sweep leans on: it fails exactly the call it
 * was asked to, counts our calls and only ours, and says so in its file. A
 * library that failed nothing would make each sweep pass.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kit/preload/preload.h"
#include "test/harness/tap.h"

/* Seven calls, in this order; the number of the first that failed, or 0. errno_seen: how it failed. */
static int errno_seen;

static void *nothing(void *arg) { return arg; }

static int seven_calls(void) {
  int at = 0, fd = -1, sock = -1, rc;
  void *volatile heap = NULL, *volatile aligned = NULL;
  char *volatile copy = NULL;
  void *map = MAP_FAILED;
  pthread_t thread;

  errno = 0;
  at++; if (!(heap = malloc(40))) goto out;
  at++; if ((fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0) goto out;
  at++; if (!(copy = strdup("a name"))) goto out;
  at++; if ((sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0) goto out;
  at++; if ((map = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) == MAP_FAILED) goto out;
  at++; {
    void *p = NULL;
    if ((errno = posix_memalign(&p, 64, 64))) goto out;
    aligned = p;
  }
  at++; if ((rc = pthread_create(&thread, NULL, nothing, NULL))) { errno = rc; goto out; }
  pthread_join(thread, NULL);
  at = 0;
out:
  errno_seen = errno;
  free(heap);
  free(aligned);
  free(copy);
  if (map != MAP_FAILED) munmap(map, 4096);
  if (sock >= 0) close(sock);
  if (fd >= 0) close(fd);
  return at;
}

static const struct { const char *name; int kind, error; } expected[] = {
  {"malloc", KIT_FAIL_ALLOC, ENOMEM},
  {"open", KIT_FAIL_FILE, EMFILE},
  {"strdup", KIT_FAIL_ALLOC, ENOMEM},
  {"socket", KIT_FAIL_SOCKET, EMFILE},
  {"mmap", KIT_FAIL_MAP, ENOMEM},
  {"posix_memalign", KIT_FAIL_ALLOC, ENOMEM},
  {"pthread_create", KIT_FAIL_THREAD, EAGAIN},
};
enum { CALLS = sizeof expected / sizeof expected[0] };

TEST(loaded) { CHECK_MSG(kit_fail_loaded(), "not started with LD_PRELOAD=…/librail-fault.so"); }

TEST(each_call_fails_in_its_turn) {
  for (int n = 1; n <= CALLS; n++) {
    kit_fail_arm(n, KIT_FAIL_ALL);
    int at = seven_calls();
    kit_fail_disarm();
    CHECK_INT(at, n);
    CHECK_STR(kit_fail_hit(), expected[n - 1].name);
    CHECK_INT(errno_seen, expected[n - 1].error);
    CHECK_INT(kit_fail_seen(), n);
  }
}

TEST(past_the_last_call_nothing_fails) {
  kit_fail_arm(CALLS + 1, KIT_FAIL_ALL);
  int at = seven_calls();
  kit_fail_disarm();
  CHECK_INT(at, 0);
  CHECK(kit_fail_hit() == NULL);
  CHECK_INT(kit_fail_seen(), CALLS);
}

TEST(kinds_are_counted_apart) {
  for (int kind = KIT_FAIL_ALLOC; kind <= KIT_FAIL_VERBS; kind <<= 1) {
    int of_kind = 0;
    for (int i = 0; i < CALLS; i++) {
      if (expected[i].kind != kind) continue;
      kit_fail_arm(++of_kind, kind);
      int at = seven_calls();
      kit_fail_disarm();
      CHECK_INT(at, i + 1);
    }
    kit_fail_arm(0, kind);
    CHECK_INT(seven_calls(), 0);
    kit_fail_disarm();
    CHECK_INT(kit_fail_seen(), of_kind);
  }
}

TEST(calls_libc_makes_are_left_alone) {
  char *line = NULL;
  size_t size = 0;
  FILE *f = fopen("/proc/self/status", "r");
  CHECK(f);
  kit_fail_arm(1, KIT_FAIL_ALL);
  ssize_t got = getline(&line, &size, f); /* allocates and reads, inside libc */
  kit_fail_disarm();
  fclose(f);
  free(line);
  CHECK(got > 0);
  CHECK_INT(kit_fail_seen(), 0);
}

TEST(disarmed_counts_nothing) {
  kit_fail_arm(0, KIT_FAIL_ALL);
  kit_fail_disarm();
  CHECK_INT(seven_calls(), 0);
  CHECK_INT(kit_fail_seen(), 0);
}

static void *four_allocations(void *arg) {
  (void)arg;
  for (int i = 0; i < 4; i++) {
    void *volatile p = malloc(8);
    free(p);
  }
  return NULL;
}

TEST(threads_share_one_count) {
  pthread_t t[4];
  kit_fail_arm(0, KIT_FAIL_ALLOC);
  for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, four_allocations, NULL);
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
  kit_fail_disarm();
  CHECK_INT(kit_fail_seen(), 16);
}

/* ---- other names of calls: files of 64 bits, _FORTIFY_SOURCE, several messages ---- */

int __open_2(const char *path, int flags);
int __openat64_2(int dir, const char *path, int flags);
int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t size);
int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask, size_t size);
ssize_t __recvfrom_chk(int fd, void *p, size_t n, size_t size, int flags, struct sockaddr *from, socklen_t *len);

static char byte;
static struct iovec one_byte = {&byte, 1};
static struct mmsghdr messages[8];
static const struct timespec at_once;

/* Each with a socket, 0 or more: fine. */
static long by_open64(int fd) { return (void)fd, open64("/dev/null", O_RDONLY | O_CLOEXEC); }
static long by_openat64(int fd) { return (void)fd, openat64(AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC); }
static long by_open_2(int fd) { return (void)fd, __open_2("/dev/null", O_RDONLY | O_CLOEXEC); }
static long by_openat64_2(int fd) { return (void)fd, __openat64_2(AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC); }
static long by_fopen64(int fd) { return (void)fd, fopen64("/dev/null", "re") ? 0 : -1; }
static long by_ftruncate64(int fd) { return ftruncate64(fd, 0); }
static long by_mmap64(int fd) {
  return (void)fd, (long)mmap64(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
static long by_poll_chk(int fd) { return __poll_chk(&(struct pollfd){.fd = fd}, 1, 0, sizeof(struct pollfd)); }
static long by_ppoll(int fd) { return ppoll(&(struct pollfd){.fd = fd}, 1, &at_once, NULL); }
static long by_ppoll_chk(int fd) {
  return __ppoll_chk(&(struct pollfd){.fd = fd}, 1, &at_once, NULL, sizeof(struct pollfd));
}
static long by_epoll_pwait(int fd) {
  struct epoll_event event;
  int ep = epoll_create1(EPOLL_CLOEXEC);
  long r = epoll_pwait(ep, &event, 1, 0, NULL);
  close(ep);
  return (void)fd, r;
}
static long by_recvfrom_chk(int fd) { return __recvfrom_chk(fd, &byte, 1, 1, MSG_DONTWAIT, NULL, NULL); }
static long by_sendmmsg(int fd) { return sendmmsg(fd, messages, 8, MSG_NOSIGNAL); }
static long by_recvmmsg(int fd) { return recvmmsg(fd, messages, 8, MSG_DONTWAIT, NULL); }

static const struct { const char *name; long (*call)(int fd); int kind, error; bool interrupts; } others[] = {
    {"open64", by_open64, KIT_FAIL_FILE, EMFILE, false},
    {"openat64", by_openat64, KIT_FAIL_FILE, EMFILE, false},
    {"__open_2", by_open_2, KIT_FAIL_FILE, EMFILE, false},
    {"__openat64_2", by_openat64_2, KIT_FAIL_FILE, EMFILE, false},
    {"fopen64", by_fopen64, KIT_FAIL_FILE, EMFILE, false},
    {"ftruncate64", by_ftruncate64, KIT_FAIL_MAP, ENOSPC, false},
    {"mmap64", by_mmap64, KIT_FAIL_MAP, ENOMEM, false},
    {"__poll_chk", by_poll_chk, KIT_FAIL_POLL, ENOMEM, true},
    {"ppoll", by_ppoll, KIT_FAIL_POLL, ENOMEM, true},
    {"__ppoll_chk", by_ppoll_chk, KIT_FAIL_POLL, ENOMEM, true},
    {"epoll_pwait", by_epoll_pwait, 0, 0, true},
    {"__recvfrom_chk", by_recvfrom_chk, KIT_FAIL_IO, ECONNRESET, true},
    {"sendmmsg", by_sendmmsg, KIT_FAIL_IO, ECONNRESET, true},
    {"recvmmsg", by_recvmmsg, KIT_FAIL_IO, ECONNRESET, true},
};

TEST(other_names_fail_too) {
  for (int i = 0; i < 8; i++) messages[i].msg_hdr = (struct msghdr){.msg_iov = &one_byte, .msg_iovlen = 1};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    kit_fail_arm(1, others[i].kind);
    errno = 0;
    long r = others[i].kind ? others[i].call(fds[0]) : -1;
    int error = errno;
    kit_fail_disarm();
    CHECK_MSG(!others[i].kind || kit_fail_seen() == 1, "%s is not counted", others[i].name);
    CHECK_MSG(r == -1 && error == others[i].error, "%s: %ld, errno %d", others[i].name, r, error);
    kit_fail_shape(0, 0, 1, 1);
    r = others[i].interrupts ? others[i].call(fds[0]) : -1;
    error = errno;
    kit_fail_shape(0, 0, 0, 0);
    CHECK_MSG(!others[i].interrupts || (r == -1 && error == EINTR), "%s: %ld, errno %d", others[i].name, r, error);
    close(fds[0]);
    close(fds[1]);
  }
}

TEST(fewer_messages_are_moved) {
  int fds[2], moved = 0;
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  for (int i = 0; i < 8; i++) messages[i].msg_hdr = (struct msghdr){.msg_iov = &one_byte, .msg_iovlen = 1};
  kit_fail_shape(2, 0, 0, 1);
  for (int i = 0; i < 5; i++) {
    int n = sendmmsg(fds[0], messages, 8, 0);
    CHECK(n >= 1 && n <= 2);
    moved += n;
  }
  int got = recvmmsg(fds[1], messages, 8, MSG_DONTWAIT, NULL);
  CHECK(got >= 1 && got <= 2);
  kit_fail_shape(0, 0, 0, 0);
  CHECK(moved >= 5 && moved <= 10);
  close(fds[0]);
  close(fds[1]);
}

/* ---- less than asked for ---- */

TEST(transfers_are_cut) {
  char data[1000] = {0};
  int fds[2], cut = 0;
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  CHECK(write(fds[0], data, sizeof data) == (ssize_t)sizeof data);
  kit_fail_shape(100, 0, 0, 1);
  for (int i = 0; i < 5; i++) {
    struct iovec two[2] = {{data, 70}, {data + 70, 200}};
    struct msghdr m = {.msg_iov = two, .msg_iovlen = 2};
    ssize_t n = i % 2 ? recv(fds[1], data, 150, 0) : recvmsg(fds[1], &m, 0);
    CHECK(n >= 1 && n <= 100);
    cut++;
  }
  CHECK(recv(fds[1], data, 150, MSG_PEEK) == 150); /* where less is not allowed */
  kit_fail_shape(0, 0, 0, 0);
  CHECK(recv(fds[1], data, 150, 0) == 150);
  CHECK_INT(cut, 5);
  close(fds[0]);
  close(fds[1]);
}

TEST(buffers_are_held) {
  int size = 1 << 20, got = 0;
  socklen_t len = sizeof got;
  kit_fail_shape(0, 4096, 0, 1);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size) == 0);
  CHECK(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &got, &len) == 0);
  CHECK(got <= 2 * 4608); /* the kernel doubles, and has a least */
  CHECK(kit_fail_shaped() > 0);
  kit_fail_shape(0, 0, 0, 0);
  close(fd);
}

TEST(calls_are_interrupted) {
  char data[100];
  int fds[2], interrupted = 0;
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  memset(data, 1, sizeof data);
  kit_fail_shape(0, 0, 2, 1);
  for (int i = 0; i < 40; i++) {
    ssize_t n = send(fds[0], data, 1, 0);
    CHECK(n == 1 || errno == EINTR);
    CHECK(i > 0 || n < 0); /* the first of a place always */
    interrupted += n < 0;
  }
  CHECK(interrupted > 5 && interrupted < 35);
  kit_fail_shape(0, 0, 0, 0);
  CHECK_INT(recv(fds[1], data, sizeof data, MSG_DONTWAIT), 40 - interrupted);
  close(fds[0]);
  close(fds[1]);
}

#define TEN(x) x x x x x x x x x x

/* Of so many places some share a slot of the table that remembers them. */
TEST(each_place_is_interrupted_at_its_first_call) {
  int fds[2], interrupted = 0;
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  kit_fail_shape(0, 0, 1000000000, 1);
  TEN(TEN(interrupted += send(fds[0], "", 1, 0) < 0 && errno == EINTR;))
  TEN(TEN(interrupted += write(fds[0], "", 1) < 0 && errno == EINTR;))
  TEN(TEN(interrupted += recv(fds[0], NULL, 0, MSG_DONTWAIT) < 0 && errno == EINTR;))
  kit_fail_shape(0, 0, 0, 0);
  CHECK_INT(interrupted, 300);
  close(fds[0]);
  close(fds[1]);
}

/* A stream whose call failed stays broken, and sending says so by itself. */
TEST(what_failed_stays_broken) {
  char data[10] = {0};
  int fds[2];
  CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
  CHECK(send(fds[1], data, sizeof data, 0) == (ssize_t)sizeof data);
  kit_fail_arm(1, KIT_FAIL_IO);
  CHECK(recv(fds[0], data, sizeof data, 0) < 0);
  CHECK_INT(errno, ECONNRESET);
  kit_fail_disarm();
  CHECK(send(fds[0], data, sizeof data, MSG_NOSIGNAL) < 0);
  CHECK_INT(errno, EPIPE);
  close(fds[0]);
  close(fds[1]);
}

/* Runs this program again with the case below; the count file is what a sweep from outside reads. */
static void run_self(const char *nth, const char *kind, const char *in, int want_status, long want_seen,
                     long want_failed) {
  char path[] = "/tmp/failnth-XXXXXX";
  int fd = mkstemp(path), status = 0, pid = 0;
  long seen = -1, failed = -1;
  CHECK(fd >= 0);
  pid_t child = fork();
  if (child == 0) {
    setenv("RAIL_FAIL_NTH", nth, 1);
    setenv("RAIL_FAIL_KIND", kind, 1);
    setenv("RAIL_FAIL_COUNT_FILE", path, 1);
    if (in) setenv("RAIL_FAIL_IN", in, 1);
    setenv("RAIL_KIT_FAIL_TEST", "1", 1);
    if (!freopen("/dev/null", "w", stdout)) _exit(125);
    execl("/proc/self/exe", "test_failnth", "armed_by_environment", (char *)NULL);
    _exit(126);
  }
  waitpid(child, &status, 0);
  FILE *f = fdopen(fd, "r");
  int fields = f ? fscanf(f, "%d %ld %ld", &pid, &seen, &failed) : 0;
  if (f) fclose(f);
  unlink(path);
  CHECK_INT(fields, 3);
  CHECK_INT(pid, child);
  CHECK(WIFEXITED(status));
  CHECK_INT(WEXITSTATUS(status), want_status);
  CHECK_INT(seen, want_seen);
  CHECK_INT(failed, want_failed);
}

/* Armed without a count, one call fails, and the next one succeeds. */
TEST(one_call_fails) {
  kit_fail_arm(1, KIT_FAIL_ALLOC);
  void *volatile first = malloc(10), *volatile second = malloc(10);
  kit_fail_disarm();
  CHECK(first == NULL && second != NULL);
  free(second);
}

/* Alone it proves nothing; as the child of the next case its exit status is the number of the call that failed. */
TEST(armed_by_environment) {
  if (!getenv("RAIL_KIT_FAIL_TEST")) return;
  _exit(seven_calls());
}

TEST(environment_and_count_file) {
  run_self("0", "all", NULL, 0, CALLS, 0);
  run_self("4", "all", NULL, 4, 4, 1);
  run_self("2", "alloc", NULL, 3, 2, 1);
  run_self("1", "syscall", NULL, 2, 1, 1);
  run_self("9", "all", NULL, 0, CALLS, 0);
  run_self("4", "all", "librailyard.so,@program", 4, 4, 1);
  run_self("1", "all", "librailyard.so", 0, 0, 0); /* no call comes from that library */
}

/* A program that is started with a value which says nothing ends, and says which are allowed. */
static void refused(const char *name, const char *value, const char *said) {
  char text[600] = "";
  int fds[2], status = 0;
  CHECK(pipe2(fds, O_CLOEXEC) == 0);
  pid_t child = fork();
  if (child == 0) {
    setenv("RAIL_FAIL_NTH", "1", 1);
    setenv(name, value, 1);
    dup2(fds[1], STDERR_FILENO);
    execl("/bin/true", "true", (char *)NULL);
    _exit(126);
  }
  close(fds[1]);
  CHECK(read(fds[0], text, sizeof text - 1) >= 0);
  close(fds[0]);
  waitpid(child, &status, 0);
  CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 2, "%s=%s: status %#x: %s", name, value, (unsigned)status,
            text);
  CHECK_MSG(strstr(text, name) && strstr(text, said), "%s=%s: %s", name, value, text);
}

TEST(values_that_say_nothing_are_refused) {
  refused("RAIL_FAIL_KIND", "alocs", "alloc, syscall");
  refused("RAIL_FAIL_NTH", "third", "a number from 0");
  refused("RAIL_FAIL_NTH", "", "a number from 0");
  refused("RAIL_FAIL_COUNT", "0", "a number from 1");
  refused("RAIL_FAIL_IN", "a,b,c,d,e,f,g,h,i", "up to 8");
}

TEST_MAIN(TEST_CASE(loaded), TEST_CASE(each_call_fails_in_its_turn), TEST_CASE(past_the_last_call_nothing_fails),
          TEST_CASE(kinds_are_counted_apart), TEST_CASE(calls_libc_makes_are_left_alone),
          TEST_CASE(disarmed_counts_nothing), TEST_CASE(one_call_fails), TEST_CASE(threads_share_one_count),
          TEST_CASE(armed_by_environment),
          TEST_CASE(environment_and_count_file), TEST_CASE(transfers_are_cut), TEST_CASE(buffers_are_held),
          TEST_CASE(calls_are_interrupted),
          TEST_CASE(each_place_is_interrupted_at_its_first_call), TEST_CASE(other_names_fail_too),
          TEST_CASE(fewer_messages_are_moved), TEST_CASE(values_that_say_nothing_are_refused),
          TEST_CASE(what_failed_stays_broken))
