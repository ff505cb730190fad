/* SPDX-License-Identifier: Apache-2.0
 * Counts of this process: setups of plans under way, kernels launched and not over, communicators being freed. Called
 * by any thread that makes plans ready, launches, watches a launch or frees; one lock guards the counts. */
#include "core/gpu/rt_launch_lock.h"

#include <pthread.h>
#include <time.h>

#include "common/base/clock.h"

#define MAX_WAIT_MS 2000u /* the bound of the waits: longer than loading code takes, short for a hang */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of it */
static struct rt_launch_lock_setup *setups;
static int frees, kernels; /* kernels: launches, too */

static void sleep_briefly(void) { nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL); }

/* ---- setups ------------------------------------------------------------------------ */

void rt_launch_lock_setup_begin(struct rt_launch_lock_setup *s, uint64_t comm, uint64_t call) {
  s->comm = comm;
  s->call = call;
  pthread_mutex_lock(&lock);
  s->next = setups;
  setups = s;
  pthread_mutex_unlock(&lock);
}

void rt_launch_lock_setup_end(struct rt_launch_lock_setup *s) {
  pthread_mutex_lock(&lock);
  struct rt_launch_lock_setup **at = &setups;
  while (*at != s) at = &(*at)->next;
  *at = s->next;
  pthread_mutex_unlock(&lock);
}

static bool any_setup(uint64_t comm, uint64_t call) {
  pthread_mutex_lock(&lock);
  const struct rt_launch_lock_setup *s = setups;
  while (s && !(s->comm == comm && s->call <= call)) s = s->next;
  pthread_mutex_unlock(&lock);
  return s != NULL;
}

void rt_launch_lock_wait_for_setups(uint64_t comm, uint64_t call) {
  uint64_t until = rail_deadline_in_ms(MAX_WAIT_MS);
  while (any_setup(comm, call) && !rail_deadline_passed(until)) sleep_briefly();
}

/* ---- frees and kernels --------------------------------------------------------------- */

static void add(int *count, int change) {
  pthread_mutex_lock(&lock);
  *count += change;
  pthread_mutex_unlock(&lock);
}

/* No free may begin between the look and the count. */
void rt_launch_lock_launch_begin(void) {
  uint64_t until = rail_deadline_in_ms(MAX_WAIT_MS);
  pthread_mutex_lock(&lock);
  while (frees > 0 && !rail_deadline_passed(until)) {
    pthread_mutex_unlock(&lock);
    sleep_briefly();
    pthread_mutex_lock(&lock);
  }
  kernels++;
  pthread_mutex_unlock(&lock);
}

void rt_launch_lock_launch_end(void) { add(&kernels, -1); }
void rt_launch_lock_kernel_begin(void) { add(&kernels, 1); }
void rt_launch_lock_kernel_end(void) { add(&kernels, -1); }

bool rt_launch_lock_free_try_begin(void) {
  pthread_mutex_lock(&lock);
  bool may = kernels == 0;
  if (may) frees++;
  pthread_mutex_unlock(&lock);
  return may;
}

bool rt_launch_lock_free_begin(void) {
  uint64_t until = rail_deadline_in_ms(MAX_WAIT_MS);
  bool may = rt_launch_lock_free_try_begin();
  while (!may && !rail_deadline_passed(until)) {
    sleep_briefly();
    may = rt_launch_lock_free_try_begin();
  }
  return may;
}

void rt_launch_lock_free_end(void) { add(&frees, -1); }
