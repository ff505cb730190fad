/* SPDX-License-Identifier: Apache-2.0
 * A process of a replay while it runs. */
#ifndef RAIL_KIT_REPLAY_RUN_H
#define RAIL_KIT_REPLAY_RUN_H

#include "kit/kit_net.h"
#include "kit/kit_process.h"
#include "kit/trace/replay_plan.h"

#define REPLAY_QUANTILES 3 /* p50, p99, max */

/* What a process reports to its parent at the end. */
struct replay_result {
  uint64_t messages, bytes, checked;            /* done; contents compared */
  uint64_t wrong_sizes, wrong_bytes, failures;  /* differences */
  uint64_t undone;     /* not done, though they were in the recording */
  uint64_t overtaken;  /* done before one that was done earlier in the recording */
  uint64_t left_out;   /* messages and buffers without a counterpart, or of comms without one */
  uint64_t unknown;    /* messages whose contents no one can know */
  uint64_t errors, dropped, flushes; /* of the recording: calls that are not made again */
  uint64_t recorded_ns, replayed_ns; /* first post to last done */
  uint64_t recorded[2][REPLAY_QUANTILES], replayed[2][REPLAY_QUANTILES]; /* post to done; sends, receives */
};

/* A registered piece of memory. */
struct replay_memory {
  uint8_t *data;
  uint64_t size;
  void *mhandle;
  const struct replay_end *end; /* registered with its comm */
};

/* A post and what became of it. */
struct replay_live {
  uint32_t call;       /* index in the comm's calls */
  void *request;
  uint64_t posted_ns;
  int sizes[RAIL_TRACE_GROUP];
  struct replay_memory loose[KIT_MAX_GROUP]; /* memory of buffers that lay in none that is known */
  uint8_t *data[KIT_MAX_GROUP];
};

struct replay_end {
  struct replay_comm *plan;
  size_t next;           /* call to make */
  void *comm;
  bool dead, over;       /* it had an error; all calls are made */
  bool has_handle;
  uint8_t handle[RAIL_NET_HANDLE_SIZE];
  struct replay_live *live; /* outstanding */
  size_t nlive, cap;
  uint8_t *done;         /* for each call: is its request done? */
};

struct replay {
  struct kit_process *self;
  struct replay_plan plan;
  struct kit_net net;
  struct replay_end *ends; /* as the comms of the own file */
  struct replay_memory *memory;
  struct kit_trace_map memory_by_id;
  size_t nmemory, memory_cap;
  uint8_t *text;         /* what messages contain: a stretch of this, chosen by connection and number */
  bool relaxed; /* posts do not wait for sends any more: the recorded plugin completed them earlier */
  bool check, timed, own_devices; /* own: the recorded ones */
  uint64_t start_ns, first_ns, last_ns, reported;
  struct kit_trace_list recorded[2], replayed[2];
  struct replay_result result;
};

/* Reports a difference; the first ones in full. */
void replay_differs(struct replay *r, uint64_t *counter, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* replay_data.c */
bool replay_text_make(struct replay *r);
struct replay_memory *replay_memory_of(struct replay *r, uint64_t id);
bool replay_memory_add(struct replay *r, struct replay_end *end, const struct replay_call *call);
void replay_memory_drop(struct replay *r, struct replay_memory *m);
/* Where a buffer lies; makes and registers one where the recording has no memory for it. NULL: no memory. */
uint8_t *replay_buffer(struct replay *r, struct replay_end *end, const struct rail_trace_buf *buf,
                       struct replay_memory *loose, void **mhandle);
void replay_fill(struct replay *r, const struct replay_end *end, const struct replay_msg *m, uint8_t *data);
/* Before a receive: so that what was there before cannot pass for what should come. */
void replay_scrub(struct replay *r, uint8_t *data, uint64_t size);
void replay_check(struct replay *r, const struct replay_end *end, const struct replay_live *live);

#endif
