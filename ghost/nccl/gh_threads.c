/* SPDX-License-Identifier: Apache-2.0
 * Threads of the system in the place of a kernel's blocks, and of what runs at the same time within one. */
#include <pthread.h>
#include <stdlib.h>

#include "ghost/nccl/gh_coll.h"

struct thread {
  bool (*call)(void *arg);
  void *arg;
  pthread_t id;
  bool started, good;
};

static void *thread_main(void *arg) {
  struct thread *t = arg;
  t->good = t->call(t->arg);
  return NULL;
}

bool gh_threads_run(struct gh_block *b, bool (*call)(void *arg), void *const *args, int n) {
  struct thread *threads = calloc((size_t)n, sizeof *threads);
  bool good = threads != NULL;
  for (int i = 0; good && i < n; i++) {
    threads[i] = (struct thread){.call = call, .arg = args[i]};
    if (i == n - 1) threads[i].good = call(args[i]);
    else threads[i].started = good = pthread_create(&threads[i].id, NULL, thread_main, &threads[i]) == 0;
  }
  if (!good) gh_block_fail(b, "no memory or threads for %d blocks or transfers", n);
  for (int i = 0; threads && i < n; i++) {
    if (threads[i].started) pthread_join(threads[i].id, NULL);
    good = good && threads[i].good;
  }
  free(threads);
  return good;
}
