/* SPDX-License-Identifier: Apache-2.0
 *
 * One connection of the service thread: what is read from it and what it
 * means, what is written to it. Only the service thread calls these.
 */
#ifndef RT_BOOT_CONN_H
#define RT_BOOT_CONN_H

#include "core/bootstrap/rt_boot.h"

enum rt_boot_conn_kind { RT_BOOT_CONN_STRANGER, RT_BOOT_CONN_RING, RT_BOOT_CONN_DATA };
enum { RT_TO_NEXT, RT_FROM_PREV }; /* places in rt_watch.ring */

struct rt_boot_conn {
  struct rt_boot_conn *next, **link; /* in conns, or next alone in finished */
  int fd;                            /* -1: finished */
  enum rt_boot_conn_kind kind;
  int place; /* ring: RT_TO_NEXT or RT_FROM_PREV */
  int peer;  /* -1: stranger */
  union rail_addr from;
  uint64_t since; /* stranger: arrival */

  /* what is being read */
  struct rt_boot_header head;
  size_t head_have, body_have;
  union {
    struct rt_boot_peer_hello hello;
    struct rt_boot_abort abort;
  } small;
  struct rt_message *msg; /* data: the body goes here */

  /* ring only */
  uint64_t heard;      /* last time that anything came */
  uint64_t silence_ms; /* 0 until the first heartbeat: how long it may be silent */
  bool departed;       /* said goodbye */
  unsigned char out[sizeof(struct rt_boot_abort) + 4 * sizeof(struct rt_boot_header)];
  size_t out_have, out_sent;
};

/* Takes fd over when it succeeds. NULL with errno. */
struct rt_boot_conn *rt_boot_conn_add(struct rt_bootstrap *b, int fd, enum rt_boot_conn_kind kind);
/* Closes; the memory lives until rt_boot_conn_free_finished, because an event of the same round may still point to it.
 */
void rt_boot_conn_finish(struct rt_bootstrap *b, struct rt_boot_conn *c);
void rt_boot_conn_free_finished(struct rt_bootstrap *b);
void rt_boot_conn_drop_stranger(struct rt_bootstrap *b, struct rt_boot_conn *c, const char *why);

/* Reads what is there and acts on it; may finish c. */
void rt_boot_conn_read(struct rt_bootstrap *b, struct rt_boot_conn *c);

/* Ring connections. NULL and departed ones are fine for queue and heartbeat. */
void rt_boot_conn_flush(struct rt_bootstrap *b, struct rt_boot_conn *c);
void rt_boot_conn_queue(struct rt_bootstrap *b, struct rt_boot_conn *c, enum rt_boot_type type, uint32_t tag,
                        const void *body, size_t size);
void rt_boot_conn_heartbeat(struct rt_bootstrap *b, struct rt_boot_conn *c);

/* rt_watch.c: a failure that was found or told of by `source` (NULL: neither); passes it on. Later ones, and any while
 * closing, are of no interest. */
void rt_watch_fail(struct rt_bootstrap *b, const struct rt_boot_conn *source, int origin, rail_result_t result,
                   const char *why);
/* Tells one neighbour of the failure that ended this communicator. */
void rt_watch_tell(struct rt_bootstrap *b, struct rt_boot_conn *c);
void rt_watch_peer_failed(struct rt_bootstrap *b, const struct rt_boot_conn *c, const char *fmt, ...) RAIL_PRINTF(3, 4);

#endif
