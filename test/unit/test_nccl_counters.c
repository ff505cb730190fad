/* SPDX-License-Identifier: Apache-2.0
 * What plugins count of a case under NCCL: added up over pages and over two processes, and looked at again where it
 * comes late. Time is that of the naps alone. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/obs/stats.h"
#include "kit/kit_process.h"
#include "kit/nccl/nccl_counters.h"
#include "test/harness/tap.h"

static const struct rail_stats_counter of_both[] = {{"sent_bytes", RAIL_STATS_COUNTER, ""},
                                                    {"received_bytes", RAIL_STATS_COUNTER, ""}};
static const struct rail_stats_counter of_one[] = {{"bytes", RAIL_STATS_COUNTER, ""}};
static const struct rail_stats_counter of_none[] = {{"messages", RAIL_STATS_COUNTER, ""}};

/* Connections of plugins, whichever way each counts, and nothing else. */
TEST(bytes_that_plugins_count) {
  struct rail_stats *page[4];
  uint64_t *record[7], bytes = 1;
  CHECK(!kit_nccl_received(&bytes));
  page[0] = rail_stats_open("None", &(struct rail_stats_group){"comm", of_none, 1, 2}, 1);
  record[0] = rail_stats_take(page[0], 0, "side=receive,peer=a");
  rail_stats_set(record[0], 1 << 20);
  CHECK(!kit_nccl_received(&bytes));
  page[1] = rail_stats_open("Both", &(struct rail_stats_group){"comm", of_both, 2, 2}, 1);
  record[1] = rail_stats_take(page[1], 0, "side=receive,peer=a");
  record[2] = rail_stats_take(page[1], 0, "side=send,peer=a");
  rail_stats_set(&record[2][0], 1 << 21);
  rail_stats_set(&record[1][1], 300);
  CHECK(kit_nccl_received(&bytes));
  CHECK_INT(bytes, 300);
  static const struct rail_stats_group groups[] = {{"comm", of_one, 1, 2}, {"rail", of_one, 1, 1}};
  page[2] = rail_stats_open("One", groups, 2);
  record[3] = rail_stats_take(page[2], 0, "side=receive,peer=a");
  record[4] = rail_stats_take(page[2], 0, "side=send,peer=a");
  record[5] = rail_stats_take(page[2], 1, "side=receive,peer=a");
  for (int i = 3; i < 6; i++) rail_stats_set(record[i], 40);
  CHECK(kit_nccl_received(&bytes));
  CHECK_INT(bytes, 340);
  page[3] = rail_stats_open("Full", &(struct rail_stats_group){"comm", of_one, 1, 0}, 1);
  record[6] = rail_stats_take(page[3], 0, "side=receive,peer=a"); /* unseen: the sum would be too small */
  CHECK(!kit_nccl_received(&bytes));
  static const int in[] = {0, 1, 1, 2, 2, 2, 3};
  for (int i = 0; i < 7; i++) rail_stats_drop(page[in[i]], in[i] == 2 && i == 5, record[i]);
  for (int i = 0; i < 4; i++) rail_stats_close(page[i]);
  CHECK(!kit_nccl_received(&bytes));
}

/* ---- two processes; what the kit takes of theirs stands here ---- */

struct kit_process { int rank, other; };

int kit_process_rank(const struct kit_process *self) { return self->rank; }
int kit_process_count(const struct kit_process *self) { return (void)self, 2; }

void kit_send_bytes(struct kit_process *self, int to, const void *data, size_t size) {
  ENSURE_INT(to, 1 - self->rank);
  ENSURE(send(self->other, data, size, MSG_NOSIGNAL) == (ssize_t)size, "send: %s", strerror(errno));
}

void kit_recv_bytes(struct kit_process *self, int from, void *data, size_t size) {
  ENSURE_INT(from, 1 - self->rank);
  ENSURE(recv(self->other, data, size, MSG_WAITALL) == (ssize_t)size, "recv: %s", strerror(errno));
}

static double received, needed; /* the figures; -1: none */

void kit_metric(struct kit_process *self, const char *name, double value, const char *unit) {
  ENSURE_INT(self->rank, 0);
  ENSURE(strcmp(unit, "B") == 0, "%s in %s", name, unit);
  *(strcmp(name, KIT_NCCL_RECEIVED) == 0 ? &received : &needed) = value;
}

struct side {
  uint64_t at_first, later; /* bytes that the plugin has counted */
  int naps;                 /* after which it is `later`; 0: never */
  bool silent;              /* it has no counters */
};

static const struct side *side; /* of this process */
static uint64_t *counter;
static int naps;
static uint64_t slept_ns;

int usleep(useconds_t us) {
  slept_ns += us * 1000ull;
  if (++naps == side->naps) rail_stats_set(counter, side->later);
  return 0;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
  if (clock != CLOCK_MONOTONIC) return (int)syscall(SYS_clock_gettime, clock, t);
  *t = (struct timespec){.tv_sec = 1000 + (time_t)(slept_ns / 1000000000), .tv_nsec = (long)(slept_ns % 1000000000)};
  return 0;
}

static void report(struct kit_process *self, const struct side *mine, uint64_t between_hosts) {
  struct rail_stats *page =
      rail_stats_open("One", &(struct rail_stats_group){"comm", mine->silent ? of_none : of_one, 1, 1}, 1);
  side = mine;
  counter = rail_stats_take(page, 0, "side=receive,peer=a");
  rail_stats_set(counter, mine->at_first);
  naps = 0;
  slept_ns = 0;
  received = needed = -1;
  kit_nccl_report_counters(self, between_hosts);
  rail_stats_drop(page, 0, counter);
  rail_stats_close(page);
}

/* The naps of each are returned: both have looked as often. */
static int report_both(const struct side *first, const struct side *second, uint64_t between_hosts) {
  int ends[2], naps_there, status;
  ENSURE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair: %s", strerror(errno));
  const pid_t child = fork();
  ENSURE(child >= 0, "fork: %s", strerror(errno));
  struct kit_process self = {.rank = child == 0, .other = ends[child == 0]};
  close(ends[child != 0]);
  report(&self, child ? first : second, between_hosts);
  if (child == 0) {
    kit_send_bytes(&self, 0, &naps, sizeof naps);
    _exit(0);
  }
  kit_recv_bytes(&self, 1, &naps_there, sizeof naps_there);
  close(self.other);
  ENSURE(waitpid(child, &status, 0) == child && status == 0, "the second process ended with %#x", (unsigned)status);
  CHECK_INT(naps_there, naps);
  return naps;
}

/* The second process' plugin, then the first's, has its completions only after the kernel has its data. */
TEST(what_is_counted_late_is_counted) {
  const struct side early = {.at_first = 200}, late = {.at_first = 100, .later = 300, .naps = 3};
  const struct side later = {.at_first = 0, .later = 200, .naps = 7};
  CHECK_INT(report_both(&early, &early, 400), 0);
  CHECK_INT(received, 400);
  CHECK_INT(needed, 400);
  CHECK_INT(report_both(&early, &late, 500), 3);
  CHECK_INT(received, 500);
  CHECK_INT(needed, 500);
  CHECK_INT(report_both(&later, &late, 500), 7);
  CHECK_INT(received, 500);
}

/* So data that went beside the plugin are a finding, and no hang. */
TEST(what_is_never_counted_is_reported) {
  const struct side early = {.at_first = 200}, less = {.at_first = 299};
  CHECK(report_both(&early, &less, 500) > 0);
  CHECK_INT(received, 499);
  CHECK_INT(needed, 500);
  CHECK_MSG(slept_ns >= 1000000000 && slept_ns < 10000000000, "%" PRIu64 " ns", slept_ns);
}

/* One plugin that says nothing leaves nothing to compare, and nothing to wait for. */
TEST(without_counters_nothing_is_reported) {
  const struct side early = {.at_first = 200}, silent = {.silent = true};
  CHECK_INT(report_both(&early, &silent, 500), 0);
  CHECK(received < 0 && needed < 0);
  CHECK_INT(report_both(&silent, &early, 500), 0);
  CHECK(received < 0 && needed < 0);
}

TEST_MAIN(TEST_CASE(bytes_that_plugins_count), TEST_CASE(what_is_counted_late_is_counted),
          TEST_CASE(what_is_never_counted_is_reported), TEST_CASE(without_counters_nothing_is_reported))
