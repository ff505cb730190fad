/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan tsan
 *
 * Proves: a file descriptor comes from one process to another by a key, also when its sender is dead by then; what
 * other processes send is neither taken for it nor kept open; no descriptor goes to a process it is not meant for.
 */
#include "core/gpu/rt_fd_receiver.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kit/kit_ensure.h"
#include "test/harness/program.h"

static const uint8_t key[RT_FD_KEY] = "the secret key!", other_key[RT_FD_KEY] = "another key....";

static struct rt_fd_receiver receiver;
static int fds;

static void begin(void) {
  fds = kit_fd_count();
  CHECK(rt_fd_receiver_open(&receiver));
}

static void end(void) {
  rt_fd_receiver_close(&receiver);
  CHECK_INT(kit_fd_count(), fds);
}

/* A file that says one word. */
static int file(const char *word) {
  int fd = memfd_create("message", MFD_CLOEXEC);
  CHECK(fd >= 0 && write(fd, word, 4) == 4);
  return fd;
}

static void is_file(int fd, const char *word) {
  char text[5] = "";
  CHECK(fd >= 0);
  CHECK_INT(pread(fd, text, 4, 0), 4);
  CHECK_STR(text, word);
  close(fd);
}

static bool leave(const uint8_t *k, const char *word) {
  char why[RT_WHY] = "";
  int fd = file(word);
  bool good = rt_fd_send(receiver.name, getpid(), k, fd, why);
  close(fd);
  return good;
}

TEST(each_key_has_its_own) {
  begin();
  CHECK_INT(rt_fd_receive(&receiver, getpid(), key), -1);
  CHECK(leave(key, "this") && leave(other_key, "that"));
  is_file(rt_fd_receive(&receiver, getpid(), other_key), "that");
  is_file(rt_fd_receive(&receiver, getpid(), key), "this");
  CHECK_INT(rt_fd_receive(&receiver, getpid(), key), -1);
  end();
}

TEST(many_wait_without_anybody_looking) {
  begin();
  for (int i = 0; i < 100; i++) {
    uint8_t k[RT_FD_KEY] = {(uint8_t)i};
    CHECK(leave(k, "many"));
  }
  for (int i = 99; i >= 50; i--) {
    uint8_t k[RT_FD_KEY] = {(uint8_t)i};
    is_file(rt_fd_receive(&receiver, getpid(), k), "many");
  }
  end(); /* with those that nobody asked for */
}

TEST(unclaimed_descriptors_end_with_the_receiver) {
  begin();
  CHECK(leave(key, "lost"));
  end();
}

/* In another process; its exit status. `arg` is for the function. */
static int elsewhere(int (*body)(void *), void *arg, pid_t *pid) {
  int status;
  *pid = fork();
  if (*pid == 0) _exit(body(arg));
  CHECK(*pid > 0 && waitpid(*pid, &status, 0) == *pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* rt_fd_send from a process whose parent has the receiver. */
static int send_to_parent(void *arg) {
  char why[RT_WHY] = "";
  (void)arg;
  return rt_fd_send(receiver.name, getppid(), key, file("dead"), why) ? 0 : 1;
}

TEST(its_sender_may_be_dead_when_it_is_taken) {
  pid_t pid;
  begin();
  CHECK_INT(elsewhere(send_to_parent, NULL, &pid), 0);
  is_file(rt_fd_receive(&receiver, pid, key), "dead");
  end();
}

TEST(the_key_from_another_process_is_none) {
  pid_t pid;
  begin();
  CHECK_INT(elsewhere(send_to_parent, NULL, &pid), 0);
  CHECK_INT(rt_fd_receive(&receiver, getpid(), key), -1);
  end();
}

/* ---- connections of other processes ---- */

static int connect_to(const uint8_t name[RT_FD_NAME]) {
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  int n = snprintf(&a.sun_path[1], sizeof a.sun_path - 1, "railyard-");
  for (int i = 0; i < RT_FD_NAME; i++) n += snprintf(&a.sun_path[1 + n], 3, "%02x", name[i]);
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (connect(fd, (const struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)))
    return -1;
  return fd;
}

/* Bytes of the key's beginning, and so many descriptors. */
static void throw_in(size_t bytes, int nfds) {
  char data[64] = "";
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(4 * sizeof(int))];
  } control = {.bytes = {0}};
  struct iovec iov = {data, bytes};
  struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
  int to = connect_to(receiver.name);
  CHECK(to >= 0);
  memcpy(data, key, sizeof key);
  if (nfds) {
    m.msg_control = &control;
    m.msg_controllen = CMSG_SPACE((size_t)nfds * sizeof(int));
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN((size_t)nfds * sizeof(int))};
    for (int i = 0; i < nfds; i++) memcpy(CMSG_DATA(c) + (size_t)i * sizeof(int), &to, sizeof to);
  }
  CHECK_INT(sendmsg(to, &m, 0), (ssize_t)bytes);
  close(to);
}

TEST(garbage_is_dropped) {
  begin();
  int open = kit_fd_count();
  throw_in(RT_FD_KEY, 0);
  throw_in(RT_FD_KEY - 1, 1);
  throw_in(RT_FD_KEY + 1, 1);
  throw_in(RT_FD_KEY, 2);
  throw_in(RT_FD_KEY, 4);
  close(connect_to(receiver.name));
  CHECK_INT(rt_fd_receive(&receiver, getpid(), key), -1);
  CHECK_INT(kit_fd_count(), open);
  CHECK(leave(key, "good"));
  is_file(rt_fd_receive(&receiver, getpid(), key), "good");
  end();
}

TEST(one_that_says_nothing_is_not_waited_for_long) {
  begin();
  int silent = connect_to(receiver.name);
  CHECK(silent >= 0);
  CHECK(leave(key, "next"));
  is_file(rt_fd_receive(&receiver, getpid(), key), "next");
  close(silent);
  end();
}

static int late, late_file;
static void send_late(int number) {
  (void)number;
  union {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(sizeof(int))];
  } control = {.bytes = {0}};
  struct iovec iov = {(void *)(uintptr_t)key, sizeof key};
  struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
  memcpy(CMSG_DATA(c), &late_file, sizeof late_file);
  if (sendmsg(late, &m, MSG_DONTWAIT) != (ssize_t)sizeof key) _exit(99);
}

/* It comes while the receiver waits for what a connection will say, which the handler says. */
TEST(a_signal_loses_nothing) {
  begin();
  late = connect_to(receiver.name);
  late_file = file("late");
  struct sigaction act = {.sa_handler = send_late}, before;
  const struct itimerval soon = {.it_value = {.tv_usec = 100000}};
  CHECK(late >= 0 && sigaction(SIGALRM, &act, &before) == 0 && setitimer(ITIMER_REAL, &soon, NULL) == 0);
  is_file(rt_fd_receive(&receiver, getpid(), key), "late");
  sigaction(SIGALRM, &before, NULL);
  close(late);
  close(late_file);
  end();
}

static int send_as_nobody(void *arg) {
  (void)arg;
  int fd = file("evil");
  if (setresuid(65534, 65534, 65534) != 0) return 2;
  char why[RT_WHY] = "";
  if (rt_fd_send(receiver.name, getppid(), key, fd, why) || !strstr(why, "another process")) return 1;
  int to = connect_to(receiver.name);
  return to < 0 || send(to, key, sizeof key, 0) != sizeof key; /* not even looked at */
}

TEST(another_user_is_refused) {
  pid_t pid;
  if (geteuid() != 0) tap_skip_case("only root can be somebody else");
  begin();
  CHECK_INT(elsewhere(send_as_nobody, NULL, &pid), 0);
  CHECK_INT(rt_fd_receive(&receiver, pid, key), -1);
  CHECK_INT(receiver.nunclaimed, 0);
  end();
}

/* ---- who is meant ---- */

TEST(it_is_sent_to_the_expected_process_only) {
  char why[RT_WHY] = "";
  begin();
  CHECK(!rt_fd_send(receiver.name, getpid() + 1, key, 0, why));
  CHECK(strstr(why, "another process"));
  CHECK_INT(rt_fd_receive(&receiver, getpid(), key), -1);
  end();
}

TEST(a_receiver_that_is_closed) {
  char why[RT_WHY] = "";
  begin();
  const struct rt_fd_receiver was = receiver;
  end();
  CHECK(!rt_fd_send(was.name, getpid(), key, 0, why));
  CHECK(strstr(why, "cannot be reached"));
  CHECK_INT(rt_fd_receive(&receiver, getpid(), key), -1);
  rt_fd_receiver_close(&receiver);
}

TEST(no_more_descriptors) {
  struct rlimit before, none;
  char why[RT_WHY] = "";
  begin();
  CHECK(leave(key, "last"));
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  none = before;
  int last = dup(0);
  none.rlim_cur = (rlim_t)last; /* all below are taken */
  close(last);
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  CHECK_INT(rt_fd_receive(&receiver, getpid(), key), -1);
  CHECK(!rt_fd_send(receiver.name, getpid(), key, 0, why));
  struct rt_fd_receiver second;
  CHECK(!rt_fd_receiver_open(&second));
  rt_fd_receiver_close(&second);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  is_file(rt_fd_receive(&receiver, getpid(), key), "last"); /* it waited */
  end();
}

TEST_MAIN(TEST_CASE(each_key_has_its_own), TEST_CASE(many_wait_without_anybody_looking),
          TEST_CASE(unclaimed_descriptors_end_with_the_receiver), TEST_CASE(its_sender_may_be_dead_when_it_is_taken),
          TEST_CASE(the_key_from_another_process_is_none), TEST_CASE(garbage_is_dropped),
          TEST_CASE(one_that_says_nothing_is_not_waited_for_long),
          TEST_CASE(a_signal_loses_nothing), TEST_CASE(another_user_is_refused),
          TEST_CASE(it_is_sent_to_the_expected_process_only), TEST_CASE(a_receiver_that_is_closed),
          TEST_CASE(no_more_descriptors))
