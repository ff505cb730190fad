/* SPDX-License-Identifier: Apache-2.0
 *
 * A port of the ib plugin's connection is down for an hour, flaps for an hour, or is up and drops packets for an
 * hour, while messages go on over the other one: it is used again when that is over, as soon as docs/protocol-ib.md
 * (The return) says. Every byte is checked. Time is virtual: hours take less than a second.
 *
 * TEST-LIMIT: 240
 * TEST-SAN: asan tsan */
#include "test/harness/ib_messages.h"
#include "test/harness/proc.h"

#define SECOND 1000000000ull
#define HOUR (3600 * SECOND)
/* From a port's coming up to the first use by both sides: nothing waits for a time. Generous for steps that the watch
 * thread makes only when it has the core; what passes meanwhile is virtual, too. */
#define AT_ONCE (2 * SECOND)
#define LONGEST_DELAY (30 * SECOND)
#define STEP (SECOND / 4)
#define TRY (5 * SECOND) /* that long a try may take: its first write is sent 7 times, once in a step of the clock */

/* ---- messages, while time passes ------------------------------------------------------------------ */

enum { AHEAD = 4 }; /* receives that no message has come for */

/* And each side makes a call that finds nothing: as in any program, failover goes on then. */
static void exchange(long n) {
  bool all = false;
  for (n += run_.send.posted; !all;) {
    all = run_.send.done == n && run_.recv.done == n;
    run_step(n, n + AHEAD);
    ENSURE(!run_.send.error && !run_.recv.error, "error %d of the sender, %d of the receiver: %s", run_.send.error,
           run_.recv.error, run_.error);
  }
}

/* So much later, a message for each step of the clock. */
static void pass(uint64_t ns, uint64_t step) {
  for (const uint64_t end = time_skipped_ns() + ns; time_skipped_ns() < end;) {
    exchange(1);
    if (time_thread_sleeps()) time_skip(step);
    else sched_yield();
  }
}

/* Until all that was lost is used again; fails when that takes longer than `most`. Returns how long it took. */
static uint64_t await_return(uint64_t most) {
  const uint64_t begin = time_skipped_ns();
  while (atomic_load(&run_.returned) < atomic_load(&run_.lost)) {
    ENSURE(time_skipped_ns() - begin <= most, "after %.1f s %d of %d lost queue pairs are in use again",
           (double)(time_skipped_ns() - begin) / 1e9, atomic_load(&run_.returned), atomic_load(&run_.lost));
    pass(1, RUN_SKIP_NS);
  }
  return time_skipped_ns() - begin;
}

static void await_losses(int lost) {
  while (atomic_load(&run_.lost) < lost) pass(1, RUN_SKIP_NS);
  ENSURE_INT(atomic_load(&run_.lost), lost);
}

/* ---- cases, each in a process of its own ------------------------------------------------------------ */

struct result { uint64_t longest; int lost, returned, tries; };

static void in_a_process(void (*fn)(struct pipes *, void *), struct result *result) {
  struct proc p = proc_start(fn, NULL);
  pipe_read(&p.io, result, sizeof *result);
  proc_join(&p);
}

static void open_two_rails(void) {
  setenv("NCCL_IB_TIMEOUT", "14", 1); /* 67 ms */
  setenv("NCCL_IB_RETRY_CNT", "6", 1);
  run_open(2);
  emu_do("progress poll");
  exchange(100);
}

static void close_and_tell(struct pipes *io, struct result r) {
  r.lost = atomic_load(&run_.lost);
  r.returned = atomic_load(&run_.returned);
  run_close();
  pipe_write(io, &r, sizeof r);
}

static void down_for_an_hour(struct pipes *io, void *arg) {
  (void)arg;
  open_two_rails();
  emu_do("port emu1 1 state=down");
  await_losses(2);
  pass(HOUR, 10 * SECOND);
  ENSURE_INT(atomic_load(&run_.returned), 0);
  emu_do("port emu1 1 state=active");
  const struct result r = {.longest = await_return(AT_ONCE)};
  exchange(100);
  close_and_tell(io, r);
}

TEST(a_port_that_was_down_for_an_hour) {
  struct result r;
  in_a_process(down_for_an_hour, &r);
  printf("# %d lost, %d in use again, %.3f s after the port came up\n", r.lost, r.returned, (double)r.longest / 1e9);
  CHECK_INT(r.lost, 2);
  CHECK_INT(r.returned, 2);
}

/* Up for less than the ten seconds after which the first delay is the first again, and for more. */
static void flaps_for_an_hour(struct pipes *io, void *arg) {
  (void)arg;
  struct result r = {.longest = 0};
  open_two_rails();
  for (const uint64_t end = time_skipped_ns() + HOUR; time_skipped_ns() < end; r.tries++) {
    emu_do(r.tries % 2 ? "port emu1 1 state=down" : "port emu2 1 state=down"); /* of the sender, of the receiver */
    await_losses(2 + 2 * r.tries);
    pass(3 * SECOND, SECOND);
    emu_do(r.tries % 2 ? "port emu1 1 state=active" : "port emu2 1 state=active");
    uint64_t took = await_return(AT_ONCE);
    if (took > r.longest) r.longest = took;
    pass(r.tries % 3 ? 4 * SECOND : 14 * SECOND, SECOND);
  }
  exchange(100);
  close_and_tell(io, r);
}

TEST(a_port_that_flaps_for_an_hour) {
  struct result r;
  in_a_process(flaps_for_an_hour, &r);
  printf("# down %d times, in use again at most %.3f s after it came up\n", r.tries, (double)r.longest / 1e9);
  CHECK_INT(r.lost, 2 * r.tries);
  CHECK_INT(r.returned, r.lost);
  CHECK_MSG(r.tries > 300, "%d", r.tries);
}

/* The n-th try comes 1, 2, 4 ... 30 s after the end of the one before. */
static void check_delay(int n, uint64_t ns) {
  const uint64_t least = n > 6 ? LONGEST_DELAY : SECOND << (n - 2);
  ENSURE(ns + STEP >= least && ns <= least + TRY, "%.1f s from try %d to the next, %.1f s is the delay",
         (double)ns / 1e9, n - 1, (double)least / 1e9);
}

/* Both sides try together: one sends NEW, and the other answers at once. So a queue pair that is made long after the
 * latest begins a try. */
static void drops_for_an_hour(struct pipes *io, void *arg) {
  (void)arg;
  struct result r = {.longest = 0};
  setenv("RAIL_IB_FLUSH", "never", 1); /* whose queue pair returns, too */
  open_two_rails();
  emu_do("port emu1 1 one_way=1");
  await_losses(2);
  const uint64_t begin = time_skipped_ns();
  uint64_t latest = begin;
  for (long made = emu_calls("create_qp"); time_skipped_ns() - begin < HOUR;) {
    pass(1, STEP);
    if (emu_calls("create_qp") == made) continue;
    made = emu_calls("create_qp");
    const uint64_t since = time_skipped_ns() - latest;
    latest = time_skipped_ns();
    if (since < SECOND - STEP) continue;
    r.tries++;
    check_delay(r.tries + 1, since); /* the first one was right behind the loss */
  }
  ENSURE_INT(atomic_load(&run_.returned), 0);
  emu_do("port emu1 1 one_way=0");
  r.longest = await_return(LONGEST_DELAY + TRY);
  exchange(100);
  close_and_tell(io, r);
}

TEST(a_path_that_drops_for_an_hour) {
  struct result r;
  in_a_process(drops_for_an_hour, &r);
  printf("# %d tries, in use again %.3f s after it was well\n", r.tries, (double)r.longest / 1e9);
  CHECK_INT(r.lost, 2);
  CHECK_INT(r.returned, 2);
  CHECK_MSG(r.tries > 100 && r.tries < 130, "%d tries", r.tries);
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(a_port_that_was_down_for_an_hour),
                                          TEST_CASE(a_port_that_flaps_for_an_hour),
                                          TEST_CASE(a_path_that_drops_for_an_hour)};
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
