/* SPDX-License-Identifier: Apache-2.0
 * What the plugin libmemnet.so counts, and what a test may ask of it; the test finds `memnet` in it with dlsym. */
#ifndef MEMNET_H
#define MEMNET_H

#include <stdatomic.h>
#include <stddef.h>

struct memnet {
  /* Open now. */
  atomic_int contexts, listens, sends, recvs, registrations;
  atomic_int registrations_made;
  /* The first thing that no caller may do: memory outside of its registration, a registration of another comm. */
  char misuse[200];
  /* Messages from and into [watch, watch + watch_size). */
  char *watch;
  size_t watch_size;
  atomic_int watched_sends, watched_recvs;
  atomic_int messages;
  /* To be set by the test. */
  atomic_bool never_accept; /* accept is always in progress */
  atomic_bool hold;         /* no message moves any more */
};

#endif
