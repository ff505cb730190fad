/* SPDX-License-Identifier: Apache-2.0
 *
 * The doors (common/conn/door.h) of a listener, one per rail, and who came in with a
 * HELLO. Shared by a listener and by those of its connections whose lost streams
 * may come back here, which keep it after closeListen.
 *
 * What a stranger turns out to be is decided in one place (judge): a stream of
 * a new connection goes into a group (sk_group.h), a lost one that returns to
 * its connection (sk_rejoin.h).
 *
 * Locking. `lock` guards everything below it. Two threads meet here at most:
 * the one that calls accept and the one that brings streams back. Each call
 * does a bounded amount of work.
 */
#ifndef SK_RECEPTION_H
#define SK_RECEPTION_H

#include <pthread.h>

#include "common/conn/door.h"
#include "common/conn/replay.h"
#include "plugin/socket/sk_auth.h"
#include "plugin/socket/sk_device.h"
#include "plugin/socket/sk_stats.h"

struct sk_group;
struct sk_member;

static inline const struct sk_hello_wire *sk_hello_of(const struct rail_stranger *stranger) {
  return (const void *)stranger->message;
}

struct sk_reception {
  const struct sk_device *device;
  int traffic_class;
  struct sk_handle handle; /* as it was given out */

  pthread_mutex_t lock;
  unsigned int refs;
  bool closed; /* the listener is gone: nothing new, only what comes back */
  struct rail_doors doors;
  struct sk_group *groups; /* in the order of their first HELLO */
  struct sk_member *members;
  struct rail_replay seen;
};

/* RAIL_SOCKET_PORTS and RAIL_SOCKET_BIND: common/conn/ports.h. Once per process, under the plugin's lock. */
void sk_reception_load(void);

/* Opens the doors and makes the handle; one reference, the caller's. Logs why not. */
rail_result_t sk_reception_open(const struct sk_device *device, int traffic_class, struct sk_reception **out);
void sk_reception_unref(struct sk_reception *r); /* the last one closes everything */
/* The listener is closed: its half-open connections go. */
void sk_reception_close(struct sk_reception *r);

/* Looks once at whoever has news, within a bound of time. Under the lock. */
rail_result_t sk_reception_step(struct sk_reception *r);

/* One more of these for the device. */
void sk_reception_count(const struct sk_reception *r, enum sk_stats_device counter);
/* Says why, best effort, and hangs up. */
void sk_refuse(int *fd, enum sk_reason reason, unsigned int stream);
/* Welcomes one stream, mac included when its HELLO had one. Fails when the peer is gone. */
rail_result_t sk_welcome(const struct sk_reception *r, int fd, unsigned int stream, uint32_t features,
                         const uint8_t *hello_mac);

#endif
