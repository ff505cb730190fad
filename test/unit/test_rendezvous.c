/* SPDX-License-Identifier: Apache-2.0
 *
 * Proves: ranks find each other, unauthenticated connections do not keep them from it, and every rank's error names the
 * rank that is missing, wrong, or of another version.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/bootstrap/rt_bootstrap.h"
#include "test/unit/boot_drops.h"

/* ---- who may come, who must ---- */

static int meet_body(struct rank *r, struct rt_bootstrap *b) {
  (void)r;
  return boot_barrier(b) == RAIL_OK ? 0 : __LINE__;
}

/* A rendezvous of our own, so that its secret and address are known. */
static void make_root(struct rt_boot_id *parts, char id[RT_UNIQUE_ID_BYTES], union rail_addr *addr) {
  CHECK_OK(rt_unique_id_create(id));
  memcpy(parts, id, sizeof *parts);
  CHECK(rail_addr_unpack(&parts->addr, addr));
}

static void send_hello(int fd, const struct rt_boot_id *parts, uint32_t rank, uint32_t nranks, uint16_t version) {
  struct { struct rt_boot_header head; struct rt_boot_hello hello; } out;
  union rail_addr me = {.in = {.sin_family = AF_INET, .sin_port = htons(9)}};
  memset(&out, 0, sizeof out);
  out.head = rt_boot_header_make(RT_BOOT_HELLO, 0, sizeof out.hello);
  out.head.version = version;
  memcpy(out.hello.secret, parts->secret, RT_SECRET_BYTES);
  out.hello.rank = rank;
  out.hello.nranks = nranks;
  out.hello.timeout_ms = 60000;
  rail_addr_pack(&me, &out.hello.addr);
  CHECK_OK(rail_sock_send_all(fd, &out, sizeof out, rail_deadline_in_ms(10000), NULL));
}

/* Reads a refusal; "" when the connection just ends. */
static const char *read_refusal(int fd) {
  static char text[RT_BOOT_MAX_TEXT + 1];
  struct rt_boot_header head;
  text[0] = 0;
  if (rail_sock_recv_all(fd, &head, sizeof head, rail_deadline_in_ms(20000), NULL) != RAIL_OK) return text;
  if (head.type != RT_BOOT_REFUSED || head.length > RT_BOOT_MAX_TEXT) return "(not a refusal)";
  if (rail_sock_recv_all(fd, text, head.length, rail_deadline_in_ms(20000), NULL) != RAIL_OK) return "(cut short)";
  text[head.length] = 0;
  return text;
}

TEST(unauthenticated_at_the_rendezvous) {
  enum { N = 200 };
  int fds[N];
  char id[RT_UNIQUE_ID_BYTES];
  struct rt_boot_id parts;
  union rail_addr addr;
  log_clear();
  make_root(&parts, id, &addr);
  send_junk(&addr, fds, N);

  struct rt_boot_id wrong = parts;
  wrong.secret[15] ^= 1;
  int fd = connect_to(&addr);
  send_hello(fd, &wrong, 0, 2, RT_BOOT_VERSION);
  CHECK_STR(read_refusal(fd), ""); /* one who does not know the secret is not told anything */
  rail_sock_close(&fd);

  fd = connect_to(&addr);
  send_hello(fd, &wrong, 0, 2, RT_BOOT_VERSION + 1); /* of another job: no matter to the ranks of this one */
  CHECK(strstr(read_refusal(fd), "version"));
  rail_sock_close(&fd);

  uint64_t start = rail_now_ns();
  ranks_init(4, id, meet_body);
  const char *bad = ranks_run(4);
  CHECK_MSG(!bad, "%s", bad);
  CHECK(rail_now_ns() - start < 8000000000ull); /* less than a silent connection may take */
  CHECK(logged("accept on the rendezvous: dropped a connection from"));
  for (int i = 0; i < N; i++) rail_sock_close(&fds[i]);
}

TEST(missing_rank) {
  char id[RT_UNIQUE_ID_BYTES];
  log_clear();
  CHECK_OK(rt_unique_id_create(id));
  ranks_init(4, id, NULL);
  for (int i = 0; i < 4; i++) ranks[i].timeout_ms = 1000;
  uint64_t start = rail_now_ns();
  for (int i = 0; i < 4; i++)
    if (i != 2) rank_start(i);
  for (int i = 0; i < 4; i++)
    if (i != 2) pthread_join(ranks[i].thread, NULL);
  CHECK(rail_now_ns() - start < 20000000000ull);
  for (int i = 0; i < 4; i++)
    if (i != 2) CHECK_INT(ranks[i].open_result, RAIL_REMOTE_ERROR);
  CHECK(logged("rendezvous at "));
  CHECK(logged("3 of 4 ranks arrived; missing: 2"));
  CHECK(logged("rank 0 of 4: rendezvous at")); /* the ranks that came report it as well */
  CHECK(logged("rank 3 of 4: rendezvous at"));
}

/* The ranks' own timeouts differ: the shortest one counts, and the other ranks get its error. */
TEST(the_shortest_timeout_counts) {
  char id[RT_UNIQUE_ID_BYTES];
  log_clear();
  CHECK_OK(rt_unique_id_create(id));
  ranks_init(3, id, NULL);
  ranks[1].timeout_ms = 300;
  uint64_t start = rail_now_ns();
  rank_start(0);
  usleep(100000); /* the patient one is there first */
  rank_start(1);
  for (int i = 0; i < 2; i++) pthread_join(ranks[i].thread, NULL);
  CHECK(rail_now_ns() - start < 20000000000ull);
  CHECK(logged("2 of 3 ranks arrived; missing: 2"));
  CHECK(logged("rank 0 of 3: rendezvous at"));
}

/* Of too many silent connections the oldest goes, so that a rank that has just connected has time to say who it is. */
TEST(the_oldest_silent_connection_goes) {
  enum { N = 512 + 3 };
  static int fds[N];
  char id[RT_UNIQUE_ID_BYTES];
  struct rt_boot_id parts;
  union rail_addr addr;
  struct rlimit limit;
  CHECK_INT(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 3 * N) tap_skip_case("%d file descriptors are too few", (int)limit.rlim_cur);
  make_root(&parts, id, &addr);
  for (int i = 0; i < N; i++) {
    fds[i] = connect_to(&addr);
    if (i < 3) usleep(5000); /* the first are the oldest beyond doubt */
  }
  struct pollfd closed = {.fd = fds[2], .events = POLLIN};
  CHECK_MSG(poll(&closed, 1, 20000) == 1, "the oldest are not dropped");
  for (int i = N - 50; i < N; i++) {
    struct pollfd open = {.fd = fds[i], .events = POLLIN};
    CHECK_MSG(poll(&open, 1, 0) == 0, "connection %d of %d is dropped", i, N);
  }
  for (int i = 0; i < N; i++) rail_sock_close(&fds[i]);
}

/* More ranks than there are places for silent connections have said hello before the rendezvous runs. */
TEST(ranks_that_have_said_hello_need_no_place) {
  enum { N = 512 + 20 };
  static int fds[N];
  char id[RT_UNIQUE_ID_BYTES];
  struct rt_boot_id parts;
  union rail_addr addr;
  int ends[2], status;
  CHECK(pipe(ends) == 0);
  pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    make_root(&parts, id, &addr);
    bool written = write(ends[1], id, sizeof id) == (ssize_t)sizeof id;
    close(ends[1]);
    if (!written) _exit(1);
    for (;;) pause();
  }
  CHECK(child > 0 && read(ends[0], id, sizeof id) == (ssize_t)sizeof id);
  memcpy(&parts, id, sizeof parts);
  CHECK(rail_addr_unpack(&parts.addr, &addr));
  CHECK(kill(child, SIGSTOP) == 0 && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
  for (int i = 0; i < N; i++) {
    /* A reset instead of a close: later cases read the system's table of connections, which those in TIME_WAIT fill. */
    const struct linger reset = {.l_onoff = 1};
    fds[i] = connect_to(&addr);
    CHECK(setsockopt(fds[i], SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
    send_hello(fds[i], &parts, (uint32_t)i, N, RT_BOOT_VERSION);
  }
  CHECK(kill(child, SIGCONT) == 0);
  for (int i = 0; i < N; i++) {
    struct rt_boot_header head;
    CHECK_OK(rail_sock_recv_all(fds[i], &head, sizeof head, rail_deadline_in_ms(20000), NULL));
    CHECK_MSG(head.type == RT_BOOT_TABLE, "rank %d gets message %d", i, head.type);
    rail_sock_close(&fds[i]);
  }
  CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
  for (int i = 0; i < 2; i++) close(ends[i]);
}

TEST(wrong_nranks_and_duplicates) {
  char id[RT_UNIQUE_ID_BYTES];
  struct rt_boot_id parts;
  union rail_addr addr;
  log_clear();
  make_root(&parts, id, &addr);
  int first = connect_to(&addr);
  send_hello(first, &parts, 1, 3, RT_BOOT_VERSION);
  /* Accepted in order, so the first one decides. */
  struct { uint32_t rank, nranks; const char *why; } bad[] = {
    {0, 4, "rank 0 says there are 4 ranks, the first to arrive said 3"},
    {1, 3, "rank 1 is here already"},
    {3, 3, "rank 3 of 3 is not a valid hello"},
    {0, 0, "not a valid hello"},
    {0, 5000, "not a valid hello"},
  };
  struct pollfd pfd = {.fd = first, .events = POLLIN};
  poll(&pfd, 1, 200);
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int fd = connect_to(&addr);
    send_hello(fd, &parts, bad[i].rank, bad[i].nranks, RT_BOOT_VERSION);
    const char *why = read_refusal(fd);
    CHECK_MSG(strstr(why, bad[i].why), "case %zu: \"%s\"", i, why);
    rail_sock_close(&fd);
  }
  /* A rank that leaves takes the rendezvous with it, at once. */
  int second = connect_to(&addr);
  send_hello(second, &parts, 2, 3, RT_BOOT_VERSION);
  poll(&pfd, 1, 200);
  rail_sock_close(&first);
  CHECK(strstr(read_refusal(second), "rank 1"));
  rail_sock_close(&second);
}

/* ---- versions ---- */

/* Until so many ranks are connected: one that is started and comes when the rendezvous has ended waits for another. */
static void wait_until_connected(const union rail_addr *addr, int count) {
  uint64_t deadline = rail_deadline_in_ms(20000);
  for (int n = 0; n < count;) {
    char line[256];
    unsigned int port, state;
    FILE *tcp = fopen("/proc/net/tcp", "re");
    CHECK(tcp && !rail_deadline_passed(deadline));
    for (n = 0; fgets(line, sizeof line, tcp);)
      n += sscanf(line, "%*d: %*x:%x %*x:%*x %x", &port, &state) == 2 && port == ntohs(addr->in.sin_port) &&
           state == TCP_ESTABLISHED;
    fclose(tcp);
    usleep(1000);
  }
}

/* One rank of another version: every rank fails at once with an error that names both versions. */
TEST(a_rank_of_another_version_ends_the_rendezvous) {
  enum { OTHER = RT_BOOT_VERSION + 5 };
  char id[RT_UNIQUE_ID_BYTES], words[2][80];
  struct rt_boot_id parts;
  union rail_addr addr;
  log_clear();
  make_root(&parts, id, &addr);
  ranks_init(3, id, NULL);
  uint64_t start = rail_now_ns();
  for (int i = 0; i < 2; i++) rank_start(i);
  wait_until_connected(&addr, 2);
  usleep(50000);
  int fd = connect_to(&addr);
  send_hello(fd, &parts, 2, 3, OTHER);
  snprintf(words[0], sizeof words[0], "speaks version %d of the bootstrap protocol", OTHER);
  snprintf(words[1], sizeof words[1], "rendezvous version %d; install", RT_BOOT_VERSION);
  const char *why = read_refusal(fd);
  CHECK_MSG(strstr(why, words[0]) && strstr(why, words[1]), "\"%s\"", why);
  rail_sock_close(&fd);
  for (int i = 0; i < 2; i++) pthread_join(ranks[i].thread, NULL);
  CHECK(rail_now_ns() - start < 10000000000ull);
  for (int i = 0; i < 2; i++) {
    char line[200];
    CHECK_INT(ranks[i].open_result, RAIL_REMOTE_ERROR);
    snprintf(line, sizeof line, "rank %d of 3: rendezvous at %s: a rank at", i, rail_addr_text(&addr, words[0]));
    CHECK(logged(line));
  }
}

/* A unique id of another version, which another library made: refused with both versions, and the rendezvous hears of
 * it, by a hello in this rank's version. */
TEST(an_id_of_another_version_is_refused_and_its_maker_told) {
  union rail_addr at = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}}, from;
  struct rt_boot_id parts = {.magic = RT_BOOT_MAGIC, .version = RT_BOOT_VERSION + 1};
  struct { struct rt_boot_header head; struct rt_boot_hello hello; } in;
  char id[RT_UNIQUE_ID_BYTES] = {0}, words[80];
  int listener, fd = -1;
  CHECK_OK(rail_sock_listen(&at, 1, &listener));
  rail_addr_pack(&at, &parts.addr);
  memset(parts.secret, 0x11, sizeof parts.secret);
  memcpy(id, &parts, sizeof parts);
  log_clear();
  ranks_init(2, id, NULL);
  rank_start(1);
  uint64_t deadline = rail_deadline_in_ms(10000);
  while (rail_sock_accept(listener, &fd, &from) != RAIL_OK && !rail_deadline_passed(deadline)) usleep(1000);
  CHECK_OK(rail_sock_recv_all(fd, &in, sizeof in, deadline, NULL));
  rail_sock_close(&fd);
  rail_sock_close(&listener);
  pthread_join(ranks[1].thread, NULL);
  CHECK_INT(in.head.version, RT_BOOT_VERSION);
  CHECK_INT(in.head.type, RT_BOOT_HELLO);
  CHECK(memcmp(in.hello.secret, parts.secret, sizeof parts.secret) == 0);
  CHECK_INT(ranks[1].open_result, RAIL_BAD_USAGE);
  snprintf(words, sizeof words, "version %d of the bootstrap protocol, this rank speaks version %d",
           RT_BOOT_VERSION + 1, RT_BOOT_VERSION);
  CHECK(logged(words));
}

TEST(bad_ids) {
  char id[RT_UNIQUE_ID_BYTES];
  struct rt_bootstrap *b;
  struct rank r = {.rank = 0, .nranks = 2, .timeout_ms = 500};
  struct rt_bootstrap_args args = args_of(&r);
  memset(id, 0, sizeof id);
  CHECK_INT(rt_bootstrap_open(id, &args, &b), RAIL_BAD_ARGUMENT);
  CHECK(!b);
  memset(id, 0x5a, sizeof id);
  CHECK_INT(rt_bootstrap_open(id, &args, &b), RAIL_BAD_ARGUMENT);
  CHECK_INT(rt_unique_id_from_address("nonsense", 0, id), RAIL_BAD_ARGUMENT);
  CHECK_INT(rt_unique_id_from_address("127.0.0.1:0", 0, id), RAIL_BAD_ARGUMENT);
  CHECK_OK(rt_unique_id_create(id));
  args.rank = 2;
  CHECK_INT(rt_bootstrap_open(id, &args, &b), RAIL_BAD_ARGUMENT);
  args.rank = 0;
  args.nranks = 4097;
  CHECK_INT(rt_bootstrap_open(id, &args, &b), RAIL_BAD_ARGUMENT);
  CHECK(!b);
}

static int free_port(void) {
  union rail_addr addr = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  int fd;
  CHECK_OK(rail_sock_listen(&addr, 1, &fd));
  rail_sock_close(&fd);
  return rail_addr_port(&addr);
}

/* Rank 0 comes last: the others retry the connect until then. Twice in a row at one address. */
TEST(well_known_address) {
  char text[64], id[RT_UNIQUE_ID_BYTES];
  snprintf(text, sizeof text, "127.0.0.1:%d", free_port());
  for (int round = 0; round < 4; round++) {
    CHECK_OK(rt_unique_id_from_address(text, (uint64_t)round, id));
    ranks_init(4, id, meet_body);
    for (int i = 3; i >= 0; i--) {
      rank_start(i);
      if (i == 1) usleep(100000);
    }
    for (int i = 0; i < 4; i++) pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < 4; i++) CHECK_INT((int)ranks[i].open_result + ranks[i].bad_line, 0);
  }
}

static atomic_int limits_named;

__attribute__((format(printf, 5, 6))) static void hear_limit(enum rail_log_level level, unsigned long flags,
                                                             const char *file, int line, const char *fmt, ...) {
  char text[1200];
  va_list ap;
  (void)flags, (void)file, (void)line;
  va_start(ap, fmt);
  vsnprintf(text, sizeof text, fmt, ap);
  va_end(ap);
  if (level == RAIL_LOG_INFO && strstr(text, "1 ranks wants 769 descriptors, the limit is 300 ")) limits_named++;
}

/* In a process of its own: a hard limit does not come back. Said once. */
TEST(a_limit_of_descriptors_that_is_too_low_is_named) {
  int status;
  pid_t child = fork();
  if (child == 0) {
    const struct rlimit low = {.rlim_cur = 200, .rlim_max = 300};
    char id[RT_UNIQUE_ID_BYTES];
    struct rt_boot_id parts;
    union rail_addr addr;
    if (setrlimit(RLIMIT_NOFILE, &low) != 0) _exit(2);
    rail_log_set_sink(hear_limit);
    for (int i = 0; i < 2; i++) {
      make_root(&parts, id, &addr);
      int fd = connect_to(&addr);
      send_hello(fd, &parts, 0, 1, RT_BOOT_VERSION);
      (void)read_refusal(fd); /* the table */
      rail_sock_close(&fd);
    }
    _exit(limits_named != 1);
  }
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned int)status);
}

static const struct tap_case cases[] = {
  TEST_CASE(ranks_that_have_said_hello_need_no_place), /* it forks: before there are other threads */
  TEST_CASE(a_limit_of_descriptors_that_is_too_low_is_named), /* the same */
  TEST_CASE(unauthenticated_at_the_rendezvous), TEST_CASE(missing_rank), TEST_CASE(the_shortest_timeout_counts),
  TEST_CASE(the_oldest_silent_connection_goes), TEST_CASE(wrong_nranks_and_duplicates),
  TEST_CASE(a_rank_of_another_version_ends_the_rendezvous),
  TEST_CASE(an_id_of_another_version_is_refused_and_its_maker_told), TEST_CASE(bad_ids),
  TEST_CASE(well_known_address),
};

int main(int argc, char **argv) {
  unsetenv("NCCL_COMM_ID");
  rail_log_set_sink(capture);
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
