/* SPDX-License-Identifier: Apache-2.0
 * Where io_uring is forbidden, as containers do by seccomp, the engine that was asked for is another one: said once, at
 * level INFO, and everything works.
 * TEST-LIMIT: 60 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "test/harness/program.h"

static atomic_int said, warned, by_epoll;

__attribute__((format(printf, 5, 6))) static void listen_to_it(enum rail_log_level level, unsigned long flags,
                                                               const char *file, int line, const char *fmt, ...) {
  char text[512];
  va_list ap;
  (void)flags, (void)file, (void)line;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (level == RAIL_LOG_WARN) atomic_fetch_add(&warned, 1);
  if (strstr(text, "io_uring is not to be had")) atomic_fetch_add(&said, level == RAIL_LOG_INFO);
  if (strstr(text, "engine epoll with")) atomic_fetch_add(&by_epoll, 1);
}

static bool forbid_io_uring(void) {
  struct sock_filter code[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(forbidden) {
  if (!forbid_io_uring()) tap_skip_case("no seccomp filters here");
  CHECK(syscall(SYS_io_uring_setup, 1, NULL) < 0 && errno == EPERM);
  setenv("RAIL_SOCKET_ENGINE", "uring", 1);
  struct kit_net n;
  struct kit_pair p[3];
  struct rail_net_config config = {.traffic_class = -1};
  void *ctx = NULL;
  kit_net_open(&n);
  CHECK_OK(n.vt->init(&ctx, 1, &config, listen_to_it, NULL)); /* the latest logger is the process's */
  for (int i = 0; i < 3; i++) {
    kit_pair_open(&n, &p[i]);
    kit_pair_ping(&p[i], 8, 1);
    kit_pair_ping(&p[i], 3000000, 2);
  }
  for (int i = 0; i < 3; i++) kit_pair_close(&p[i]);
  CHECK_OK(n.vt->finalize(ctx));
  kit_net_close(&n);
  CHECK_INT(said, 1);
  CHECK_INT(by_epoll, 1);
  CHECK_INT(warned, 0);
}

TEST_MAIN(TEST_CASE(forbidden))
