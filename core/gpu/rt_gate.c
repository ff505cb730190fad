/* SPDX-License-Identifier: Apache-2.0 */
#include "core/gpu/rt_gate.h"

#include <pthread.h>
#include <time.h>

#include "common/base/clock.h"

#define MOST_MS 2000u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of it */
static struct rt_gate_maker *makers;
static int closers, running;

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL); }

/* ---- those who make something -------------------------------------------------- */

void rt_gate_make(struct rt_gate_maker *m, uint64_t comm, uint64_t call) {
  m->comm = comm;
  m->call = call;
  pthread_mutex_lock(&lock);
  m->next = makers;
  makers = m;
  pthread_mutex_unlock(&lock);
}

void rt_gate_made(struct rt_gate_maker *m) {
  pthread_mutex_lock(&lock);
  struct rt_gate_maker **at = &makers;
  while (*at != m) at = &(*at)->next;
  *at = m->next;
  pthread_mutex_unlock(&lock);
}

static bool any_makes(uint64_t comm, uint64_t call) {
  pthread_mutex_lock(&lock);
  const struct rt_gate_maker *m = makers;
  while (m && !(m->comm == comm && m->call <= call)) m = m->next;
  pthread_mutex_unlock(&lock);
  return m != NULL;
}

void rt_gate_wait_for_makers(uint64_t comm, uint64_t call) {
  uint64_t until = rail_deadline_in_ms(MOST_MS);
  while (any_makes(comm, call) && !rail_deadline_passed(until)) nap();
}

/* ---- those who give something back, and kernels ----------------------------------- */

static void add(int *count, int change) {
  pthread_mutex_lock(&lock);
  *count += change;
  pthread_mutex_unlock(&lock);
}

static bool any_closes(void) {
  pthread_mutex_lock(&lock);
  bool found = closers > 0;
  pthread_mutex_unlock(&lock);
  return found;
}

void rt_gate_wait_for_closers(void) {
  uint64_t until = rail_deadline_in_ms(MOST_MS);
  while (any_closes() && !rail_deadline_passed(until)) nap();
}

void rt_gate_run(void) { add(&running, 1); }
void rt_gate_ran(void) { add(&running, -1); }

bool rt_gate_close(void) {
  pthread_mutex_lock(&lock);
  bool may = running == 0;
  if (may) closers++;
  pthread_mutex_unlock(&lock);
  return may;
}

void rt_gate_closed(void) { add(&closers, -1); }
