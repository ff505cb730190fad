/* SPDX-License-Identifier: Apache-2.0
 *
 * A path of the ib plugin's connection drops packets while its ports are up, and no HCA says so for half a minute:
 * the connection goes on over the other rails after RAIL_IB_PATH_TIMEOUT. Slow, lossy and idle paths are not given up,
 * nor the last one. Every byte is checked. Time is virtual.
 *
 * TEST-LIMIT: 120
 * TEST-SAN: asan tsan */
#include "test/harness/ib_messages.h"
#include "test/harness/proc.h"

#define MS 1000000ull
#define SECOND (1000 * MS)
#define DETECT (200 * MS)
#define STEP (10 * MS)
/* Steps that a look is late, and what this process does meanwhile, which takes virtual time, too. The HCA would say so
 * after more than half a minute. */
#define LATE (5 * SECOND)

enum { AHEAD = 4 }; /* receives that no message has come for */

/* One more step of n messages in all, and later where nothing moves. */
static void step(long n) {
  run_step(n, n + AHEAD);
  ENSURE(!run_.send.error && !run_.recv.error, "error %d of the sender, %d of the receiver: %s", run_.send.error,
         run_.recv.error, run_.error);
}

static bool is_done(long n) { return run_.send.done == n && run_.recv.done == n; }

static void exchange(long n) {
  for (n += run_.send.posted; !is_done(n);) step(n);
}

static void open_rails(int rails) {
  setenv("NCCL_IB_TIMEOUT", "20", 1); /* 4.3 s, and 7 times more */
  setenv("NCCL_IB_RETRY_CNT", "7", 1);
  run_open(rails);
  emu_do("progress poll");
  exchange(100);
}

/* Messages one after the other, for so long. */
static void pass(uint64_t ns) {
  for (const uint64_t end = time_skipped_ns() + ns; time_skipped_ns() < end;) {
    exchange(1);
    if (time_thread_sleeps()) time_skip(STEP);
    else sched_yield();
  }
}

struct result { uint64_t took; int lost, returned; };

static void in_a_process(void (*fn)(struct pipes *, void *), void *arg, struct result *result) {
  struct proc p = proc_start(fn, arg);
  pipe_read(&p.io, result, sizeof *result);
  proc_join(&p);
}

static void close_and_tell(struct pipes *io, uint64_t took) {
  const struct result r = {took, atomic_load(&run_.lost), atomic_load(&run_.returned)};
  run_close();
  pipe_write(io, &r, sizeof r);
}

/* ---- a path that drops ------------------------------------------------------------------------ */

static void drops(struct pipes *io, void *statement) {
  open_rails(3);
  emu_do(statement);
  const uint64_t begin = time_skipped_ns();
  while (atomic_load(&run_.lost) < 2) exchange(1);
  const uint64_t took = time_skipped_ns() - begin;
  exchange(300);
  close_and_tell(io, took);
}

/* What arrives at a sender's port are acknowledgements, and CTS writes over the first one; at a receiver's, data. */
static void check_drops(const char *statement) {
  struct result r;
  char copy[64];
  snprintf(copy, sizeof copy, "%s", statement);
  in_a_process(drops, copy, &r);
  printf("# %s: lost after %.3f s\n", statement, (double)r.took / 1e9);
  CHECK_INT(r.lost, 2); /* one of each side */
  CHECK_MSG(r.took <= DETECT + LATE, "%.3f s", (double)r.took / 1e9);
}

TEST(a_path_that_drops_data) { check_drops("port emu4 1 one_way=1"); }
TEST(a_path_that_drops_acknowledgements) { check_drops("port emu2 1 one_way=1"); }
TEST(a_path_that_drops_clear_to_send) { check_drops("port emu0 1 one_way=1"); }

/* ---- paths that are not lost --------------------------------------------------------------------- */

/* An answer takes longer than the first of the steps. */
static void has_latency(struct pipes *io, void *arg) {
  (void)arg;
  open_rails(3);
  emu_do("port emu4 1 latency=120000");
  pass(20 * SECOND);
  close_and_tell(io, 0);
}

TEST(a_path_with_latency) {
  struct result r;
  in_a_process(has_latency, NULL, &r);
  CHECK_INT(r.lost, 0);
}

/* The HCA's retry would come after 4.3 s; the write of zero bytes makes the peer's HCA ask for what it has missed. */
static void loses_packets(struct pipes *io, void *arg) {
  (void)arg;
  open_rails(3);
  const uint64_t begin = time_skipped_ns();
  for (int i = 0; i < 20; i++) {
    emu_do("drop op=imm");
    exchange(2);
  }
  close_and_tell(io, time_skipped_ns() - begin);
}

TEST(a_packet_is_lost_now_and_then) {
  struct result r;
  in_a_process(loses_packets, NULL, &r);
  printf("# %.3f s for each of 20 packets\n", (double)r.took / 20e9);
  CHECK_INT(r.lost, 0);
  CHECK_MSG(r.took < 20 * 2 * SECOND, "%.3f s", (double)r.took / 1e9);
}

/* Receives are posted, and nobody sends: what is asked is answered, and not asked again. */
static void is_idle(struct pipes *io, void *arg) {
  (void)arg;
  setenv("RAIL_IB_DEADLINE", "0", 1); /* whose probe is another one */
  open_rails(3);
  const long n = run_.send.done;
  for (const uint64_t end = time_skipped_ns() + 5 * SECOND; time_skipped_ns() < end;) step(n);
  const long posted = emu_calls("post_send");
  for (const uint64_t end = time_skipped_ns() + 60 * SECOND; time_skipped_ns() < end;) step(n);
  ENSURE_INT(emu_calls("post_send"), posted);
  exchange(100);
  close_and_tell(io, 0);
}

TEST(an_idle_connection) {
  struct result r;
  in_a_process(is_idle, NULL, &r);
  CHECK_INT(r.lost, 0);
}

/* ---- no witness --------------------------------------------------------------------------------------- */

/* Nothing of the peer's answers: its host may be what is gone, and the HCA goes on trying. */
static void all_drop(struct pipes *io, void *arg) {
  (void)arg;
  open_rails(2);
  emu_do("port emu2 1 one_way=1; port emu3 1 one_way=1");
  const long n = run_.send.posted + 1;
  for (const uint64_t end = time_skipped_ns() + 3 * SECOND; time_skipped_ns() < end;) step(n);
  ENSURE(!is_done(n), "message %ld has arrived, and nothing can", n);
  emu_do("port emu2 1 one_way=0; port emu3 1 one_way=0");
  while (!is_done(n)) step(n);
  exchange(100);
  close_and_tell(io, 0);
}

TEST(all_paths_drop_for_a_while) {
  struct result r;
  in_a_process(all_drop, NULL, &r);
  CHECK_INT(r.lost, 0);
}

static void is_not_asked(struct pipes *io, void *arg) {
  (void)arg;
  setenv("RAIL_IB_PATH_TIMEOUT", "0", 1);
  open_rails(2);
  emu_do("port emu3 1 one_way=1");
  const long n = run_.send.posted + 4;
  for (const uint64_t end = time_skipped_ns() + 10 * SECOND; time_skipped_ns() < end;) step(n);
  ENSURE_INT(atomic_load(&run_.lost), 0);
  emu_do("port emu3 1 one_way=0");
  while (!is_done(n)) step(n);
  close_and_tell(io, 0);
}

TEST(without_detection_the_hca_decides) {
  struct result r;
  in_a_process(is_not_asked, NULL, &r);
  CHECK_INT(r.lost, 0);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(a_path_that_drops_data),
                                          TEST_CASE(a_path_that_drops_acknowledgements),
                                          TEST_CASE(a_path_that_drops_clear_to_send),
                                          TEST_CASE(a_path_with_latency),
                                          TEST_CASE(a_packet_is_lost_now_and_then),
                                          TEST_CASE(an_idle_connection),
                                          TEST_CASE(all_paths_drop_for_a_while),
                                          TEST_CASE(without_detection_the_hca_decides)};
  unsetenv("RAIL_IB_PATH_TIMEOUT"); /* the default; test/run.py has another for other tests */
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
