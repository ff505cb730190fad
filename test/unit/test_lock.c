/* SPDX-License-Identifier: Apache-2.0
 * common/base/lock.h: threads that try and threads that wait exclude each other, and nobody waits for ever. */
#include <sched.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/lock.h"
#include "common/base/thread.h"
#include "test/harness/tap.h"

#define ROUNDS 20000
#define TRYING 2
#define WAITING 3

static struct rail_lock lock;
static long inside, total;

static void count_one(void) {
  inside++;
  total += inside == 1;
  inside--;
  rail_lock_release(&lock);
}

static void *by_trying(void *arg) {
  for (int n = 0; n < ROUNDS;) {
    if (rail_lock_try(&lock)) {
      count_one();
      n++;
    } else {
      sched_yield();
    }
  }
  return arg;
}

static void *by_waiting(void *arg) {
  for (int n = 0; n < ROUNDS; n++) {
    rail_lock_wait(&lock);
    count_one();
  }
  return arg;
}

TEST(a_lock_that_is_taken_is_not_given) {
  CHECK(rail_lock_try(&lock));
  CHECK(!rail_lock_try(&lock));
  rail_lock_release(&lock);
  rail_lock_wait(&lock);
  CHECK(!rail_lock_try(&lock));
  rail_lock_release(&lock);
}

TEST(threads_exclude_each_other) {
  pthread_t threads[TRYING + WAITING];
  total = 0;
  for (int i = 0; i < TRYING + WAITING; i++)
    CHECK_INT(rail_thread_start("lock", i < TRYING ? by_trying : by_waiting, NULL, &threads[i]), 0);
  for (int i = 0; i < TRYING + WAITING; i++) CHECK_INT(pthread_join(threads[i], NULL), 0);
  CHECK_INT(total, (TRYING + WAITING) * ROUNDS);
  CHECK(rail_lock_try(&lock));
  rail_lock_release(&lock);
}

/* Every one of them sleeps in the kernel when it is released. */
TEST(all_that_wait_are_woken) {
  pthread_t threads[WAITING];
  total = 0;
  CHECK(rail_lock_try(&lock));
  for (int i = 0; i < WAITING; i++) CHECK_INT(rail_thread_start("lock", by_waiting, NULL, &threads[i]), 0);
  usleep(20000);
  CHECK_INT(total, 0);
  rail_lock_release(&lock);
  for (int i = 0; i < WAITING; i++) CHECK_INT(pthread_join(threads[i], NULL), 0);
  CHECK_INT(total, WAITING * ROUNDS);
}

TEST_MAIN(TEST_CASE(a_lock_that_is_taken_is_not_given), TEST_CASE(threads_exclude_each_other),
          TEST_CASE(all_that_wait_are_woken))
