/* SPDX-License-Identifier: Apache-2.0
 * Threads without signals; cores. */
#include "common/base/thread.h"

#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>

#define COARSE_NS 10000000ul

int rail_thread_start(const char *name, void *(*run)(void *), void *arg, pthread_t *thread) {
  sigset_t all, before;
  pthread_attr_t attr;
  pthread_t id;
  int err = pthread_attr_init(&attr);
  if (err != 0) return err;
  if (!thread) pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited */
  err = pthread_create(&id, &attr, run, arg);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attr);
  if (err != 0 || !thread) return err;
  pthread_setname_np(id, name);
  *thread = id;
  return 0;
}

void rail_thread_coarse_timers(void) { (void)prctl(PR_SET_TIMERSLACK, COARSE_NS, 0, 0, 0); }

unsigned int rail_thread_cores(void) {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? (unsigned int)CPU_COUNT(&cores) : 0;
}
