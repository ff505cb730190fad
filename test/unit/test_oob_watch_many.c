/* SPDX-License-Identifier: Apache-2.0
 * What many connections of a watch cost its thread, in steps along its lists. */
#include <sys/queue.h>

#include "common/conn/oob.h"

/* The watch is compiled here with lists that count the steps along them: how many connections it looks at. */
static _Atomic uint64_t steps;
static bool step(void) { return ++steps; }
#undef LIST_FOREACH
#define LIST_FOREACH(var, head, field) for ((var) = LIST_FIRST(head); (var) && step(); (var) = (var)->field.le_next)
#undef LIST_NEXT
#define LIST_NEXT(var, field) ((void)step(), (var)->field.le_next)
#undef TAILQ_FIRST
#define TAILQ_FIRST(head) ((void)step(), (head)->tqh_first)
#undef TAILQ_NEXT
#define TAILQ_NEXT(var, field) ((void)step(), (var)->field.tqe_next)
#undef TAILQ_PREV
#define TAILQ_PREV(var, headname, field) ((void)step(), *(((struct headname *)((var)->field.tqe_prev))->tqh_last))
#include "common/conn/watch.c"

#include "test/unit/oob_watch_rig.h"

enum { MANY = 400, STEPS = 4 }; /* STEPS: along its lists, for each connection or each turn of the thread */
static struct comm many[MANY];

static void add_many(void) {
  for (int i = 0; i < MANY; i++) add(&watch, &many[i], false, 7);
}

static bool all_destroyed(void) {
  int n = 0;
  for (int i = 0; i < MANY; i++) n += atomic_load(&many[i].destroyed);
  return n == MANY;
}

static void close_peers(void) {
  for (int i = 0; i < MANY; i++) rail_sock_close(&many[i].peer);
}

/* Each that lingers costs some steps, however many others do. */
static void linger_and_end(uint64_t ms, bool tell) {
  add_many();
  uint64_t before = atomic_load(&steps);
  for (int i = 0; i < MANY; i++) CHECK(rail_watch_linger(&watch, &many[i].handle, ms, false, destroy));
  for (int i = MANY - 1; tell && i >= 0; i--) send_frame(&many[i], RAIL_OOB_DRAINED, 0);
  UNTIL(all_destroyed());
  uint64_t took = atomic_load(&steps) - before;
  CHECK_MSG(took <= STEPS * 2 * MANY, "%" PRIu64 " steps to end %d that linger", took, MANY);
  close_peers();
}

TEST(many_linger) {
  CHECK_OK(rail_watch_begin(&watch));
  linger_and_end(600000, true);
  linger_and_end(1, false);
  rail_watch_end(&watch);
}

/* A later one may end earlier. */
TEST(each_lingers_its_time) {
  static struct comm longer, shorter;
  CHECK_OK(rail_watch_begin(&watch));
  add(&watch, &longer, false, 7);
  add(&watch, &shorter, false, 7);
  CHECK(rail_watch_linger(&watch, &longer.handle, 600000, false, destroy));
  poll(NULL, 0, 50); /* most likely the thread sleeps then, until that one has lingered */
  CHECK(rail_watch_linger(&watch, &shorter.handle, 1, false, destroy));
  UNTIL(atomic_load(&shorter.destroyed) == 1);
  CHECK_INT(atomic_load(&longer.destroyed), 0);
  send_frame(&longer, RAIL_OOB_DRAINED, 0);
  UNTIL(atomic_load(&longer.destroyed) == 1);
  rail_watch_end(&watch);
  rail_sock_close(&longer.peer);
  rail_sock_close(&shorter.peer);
}

/* The thread looks again and again at the one that waits for its last completions, and at no other. */
TEST(one_of_many_is_drained) {
  CHECK_OK(rail_watch_begin(&watch));
  add_many();
  add(&watch, &comm, true, 7);
  atomic_store(&comm.outstanding, 1);
  send_frame(&comm, RAIL_OOB_GOODBYE, 0);
  UNTIL(atomic_load(&comm.events) & RAIL_OOB_PEER_CLOSED);
  uint64_t first = atomic_load(&asked), before = atomic_load(&steps);
  UNTIL(atomic_load(&asked) >= first + 5);
  uint64_t took = atomic_load(&steps) - before, turns = atomic_load(&asked) - first;
  CHECK_MSG(took <= STEPS * (turns + 1), "%" PRIu64 " steps in %" PRIu64 " turns", took, turns);
  atomic_store(&comm.outstanding, 0);
  CHECK_INT(next_frame(&comm), RAIL_OOB_DRAINED);
  end(&watch, &comm);
  for (int i = 0; i < MANY; i++) end(&watch, &many[i]);
  rail_watch_end(&watch);
}

/* Without a limit the thread has no ticks: it sleeps until it is woken. */
TEST(frames_that_come_later_wake_the_thread) {
  begin_one(true);
  poll(NULL, 0, 50); /* most likely it sleeps then */
  atomic_store(&comm.later, true);
  CHECK(rail_watch_send_frames(&comm.handle));
  int looks = atomic_load(&comm.looks);
  UNTIL(atomic_load(&comm.looks) >= looks + 5);
  atomic_store(&comm.later, false);
  end_one();
}

int main(int argc, char **argv) {
  static const struct tap_case cases[] = {TEST_CASE(many_linger), TEST_CASE(each_lingers_its_time),
                                          TEST_CASE(one_of_many_is_drained),
                                          TEST_CASE(frames_that_come_later_wake_the_thread)};
  rail_log_set_sink(log_capture);
  return tap_main(argc, argv, cases, RAIL_COUNT_OF(cases));
}
