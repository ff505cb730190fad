/* SPDX-License-Identifier: Apache-2.0
 * Connect attempts by number. */
#include "common/conn/attempts.h"

#include <malloc.h>

#include "kit/kit_ensure.h"
#include "test/harness/program.h"

static int dropped;
static void drop(void *attempt) { dropped += *(int *)attempt; }

TEST(found_until_removed) {
  struct rail_attempts t;
  enum { N = 200 }; /* the table grows twice */
  static int things[N];
  uint64_t numbers[N];
  CHECK_OK(rail_attempts_init(&t));
  for (int i = 0; i < N; i++) {
    CHECK_OK(rail_attempts_add(&t, &things[i], &numbers[i]));
    CHECK(numbers[i] != 0);
  }
  for (int i = 0; i < N; i++) CHECK(rail_attempts_find(&t, numbers[i]) == &things[i]);
  for (int i = 0; i < N; i += 2) rail_attempts_remove(&t, numbers[i]);
  for (int i = 0; i < N; i++) CHECK(rail_attempts_find(&t, numbers[i]) == (i % 2 ? &things[i] : NULL));
  for (int i = 0; i < N; i++) things[i] = 1;
  dropped = 0;
  rail_attempts_free(&t, drop);
  CHECK_INT(dropped, N / 2);
}

/* New places are free, whatever lay in their memory. */
TEST(places_in_used_memory) {
  mallopt(M_PERTURB, 0x5a); /* malloc fills what it gives */
  struct rail_attempts t;
  static int things[65];
  uint64_t number;
  CHECK_OK(rail_attempts_init(&t));
  for (uint32_t i = 0; i < 65; i++) { /* the table grows once */
    CHECK_OK(rail_attempts_add(&t, &things[i], &number));
    CHECK_INT((uint32_t)number, i + 1);
    CHECK_INT(number >> 32, 1);
  }
  rail_attempts_free(&t, drop);
  mallopt(M_PERTURB, 0);
}

TEST(numbers_that_are_not_under_way) {
  struct rail_attempts t;
  int thing = 1, other = 2;
  uint64_t first, second;
  CHECK_OK(rail_attempts_init(&t));
  CHECK(!rail_attempts_find(&t, 0) && !rail_attempts_find(&t, 1));
  rail_attempts_remove(&t, 1);
  CHECK_OK(rail_attempts_add(&t, &thing, &first));
  rail_attempts_remove(&t, first);
  CHECK_OK(rail_attempts_add(&t, &other, &second)); /* the same place, another number */
  CHECK_INT((uint32_t)second, (uint32_t)first);
  CHECK(second != first && !rail_attempts_find(&t, first));
  rail_attempts_remove(&t, first);
  CHECK(rail_attempts_find(&t, second) == &other);
  for (int bit = 0; bit < 64; bit++) CHECK(!rail_attempts_find(&t, second ^ 1ull << bit));
  CHECK(!rail_attempts_find(&t, 0) && !rail_attempts_find(&t, ~0ull) && !rail_attempts_find(&t, second & ~0u));
  dropped = 0;
  rail_attempts_free(&t, drop);
  CHECK_INT(dropped, 2);
}

static struct rail_attempts shared;

static void come_and_go(void *arg) {
  uint64_t numbers[8];
  for (int round = 0; round < kit_scaled(2000); round++) {
    for (int i = 0; i < 8; i++) ENSURE_INT(rail_attempts_add(&shared, arg, &numbers[i]), RAIL_OK);
    for (int i = 0; i < 8; i++) {
      ENSURE(rail_attempts_find(&shared, numbers[i]) == arg, "somebody else's");
      rail_attempts_remove(&shared, numbers[i]);
    }
  }
}

TEST(many_threads) {
  int threads[4] = {0};
  CHECK_OK(rail_attempts_init(&shared));
  kit_run_threads(4, come_and_go, threads, sizeof threads[0]);
  dropped = 0;
  rail_attempts_free(&shared, drop);
  CHECK_INT(dropped, 0);
}

TEST_MAIN(TEST_CASE(found_until_removed), TEST_CASE(places_in_used_memory),
          TEST_CASE(numbers_that_are_not_under_way), TEST_CASE(many_threads))
