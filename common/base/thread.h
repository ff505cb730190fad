/* SPDX-License-Identifier: Apache-2.0
 * The one way in which a thread of ours is started; what the calling one may use. */
#ifndef RAIL_THREAD_H
#define RAIL_THREAD_H

#include <pthread.h>

/* Named (15 characters at most), with all signals blocked, because the handlers are the program's and expect
 * its threads. `thread` NULL: detached. 0, or an error number. */
int rail_thread_start(const char *name, void *(*run)(void *), void *arg, pthread_t *thread);

/* The calling thread's sleeps may end up to 10 ms late, so that the kernel joins its wake-ups with others. For threads
 * that look at limits of seconds some times a second. */
void rail_thread_coarse_timers(void);

/* Cores that the calling thread may use; 0: unknown. */
unsigned int rail_thread_cores(void);

#endif
