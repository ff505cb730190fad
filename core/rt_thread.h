/* SPDX-License-Identifier: Apache-2.0
 * The one way in which the runtime starts a thread. */
#ifndef RT_THREAD_H
#define RT_THREAD_H

#include <pthread.h>

/* Named (15 characters at most), with all signals blocked, because the handlers are the program's and expect
 * its threads. `thread` NULL: detached. 0, or an error number. */
int rt_thread_start(const char *name, void *(*run)(void *), void *arg, pthread_t *thread);

#endif
