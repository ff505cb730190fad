/* SPDX-License-Identifier: Apache-2.0
 * Launches of kernels and frees of device memory, among the ranks of one process. */
#include "core/gpu/rt_launch_lock.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "kit/kit_ensure.h"
#include "test/harness/program.h"

TEST(a_launch_and_a_kernel_keep_frees_away) {
  rt_launch_lock_launch_begin();
  CHECK(!rt_launch_lock_free_try_begin());
  rt_launch_lock_kernel_begin();
  rt_launch_lock_launch_end();
  CHECK(!rt_launch_lock_free_try_begin()); /* the kernel runs */
  rt_launch_lock_kernel_end();
  CHECK(rt_launch_lock_free_try_begin());
  CHECK(rt_launch_lock_free_try_begin()); /* two communicators at once */
  rt_launch_lock_free_end();
  rt_launch_lock_free_end();
}

#define ROUNDS 30000
static _Atomic int launching, freeing;

static void *launch_often(void *arg) {
  for (int i = 0; i < ROUNDS; i++) {
    rt_launch_lock_launch_begin();
    atomic_fetch_add(&launching, 1);
    sched_yield(); /* the others come in between */
    ENSURE_INT(atomic_load(&freeing), 0);
    atomic_fetch_sub(&launching, 1);
    rt_launch_lock_launch_end();
    sched_yield();
  }
  return arg;
}

static void *free_often(void *arg) {
  for (int done = 0; done < ROUNDS; sched_yield()) {
    if (!rt_launch_lock_free_try_begin()) continue;
    done++;
    atomic_fetch_add(&freeing, 1);
    sched_yield();
    ENSURE_INT(atomic_load(&launching), 0);
    atomic_fetch_sub(&freeing, 1);
    rt_launch_lock_free_end();
  }
  return arg;
}

TEST(never_both) {
  pthread_t threads[4];
  for (int i = 0; i < 4; i++)
    ENSURE_INT(pthread_create(&threads[i], NULL, i == 0 ? launch_often : free_often, NULL), 0);
  for (int i = 0; i < 4; i++) ENSURE_INT(pthread_join(threads[i], NULL), 0);
}

TEST_MAIN(TEST_CASE(a_launch_and_a_kernel_keep_frees_away), TEST_CASE(never_both))
