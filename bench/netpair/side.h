/* SPDX-License-Identifier: Apache-2.0
 *
 * netpair: two processes, one thread each, drive connections between them the
 * way NCCL's proxy thread does, and time it. A `side` is one of the processes;
 * a `lane` is one direction of one connection as this side sees it; a `wire`
 * is what carries it: a plugin's vtable, or plain TCP streams.
 */
#ifndef RAIL_BENCH_SIDE_H
#define RAIL_BENCH_SIDE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "common/compiler.h"
#include "common/result.h"
#include "rail/net.h"

#define MAX_LANES 64
#define MAX_WINDOW 64
#define PHASES 2 /* warm-up, and the one that counts */

struct options {
  const char *plugin; /* a path or name; NULL: plain TCP streams */
  int abi;            /* newest vtable version to take; 0: any */
  int dev;
  bool latency;       /* ping-pong over one connection each way; else one-way transfers */
  size_t size;
  unsigned int lanes, window;
  unsigned int sleep_us; /* what a pass without progress does: 0 sched_yield, else sleeps this long */
  double warmup_s, seconds;
  double patience_s; /* without any progress, until it counts as stuck */
};

enum verdict { VERDICT_OK, VERDICT_WRONG, VERDICT_FAILED, VERDICT_STUCK };

/* What a side measured in the phase that counts. */
struct outcome {
  uint64_t start, end; /* rail_now_ns; the same clock in both processes */
  uint64_t messages;
  double cpu_s;
  double half_us[4];   /* half round trip: least, median, 90th and 99th of a hundred */
  int version;         /* of the vtable */
  char wire[64];
};

/* A mapping that both processes and their parent see. */
struct shared {
  _Atomic int verdict; /* of the whole; the first that is not VERDICT_OK stays */
  char what[400];      /* the reason; written by whoever set the verdict */
  _Atomic int arrived[2];
  _Atomic int listening[2];
  char handles[2][MAX_LANES][RAIL_NET_HANDLE_SIZE]; /* of the lanes into a side */
  RAIL_ALIGNED(RAIL_CACHELINE) _Atomic int stopped[2]; /* phases in which a side's time is up … */
  uint64_t posted[2][MAX_LANES];                       /* … and what it had posted by then */
  _Atomic uint64_t last[PHASES];                       /* ping-pong: how many messages there are in all */
  struct outcome outcome[2];
};

struct lane {
  void *comm;
  void *mhandle;
  char *base;
  size_t stride;          /* from slot to slot: each has a buffer of its own */
  uint64_t posted, done;  /* messages since the connection began */
  uint64_t limit;         /* post no more than these */
  unsigned int head, next; /* slots: of the oldest request, and the next one to post */
  unsigned int index;
  void *requests[MAX_WINDOW];
};

struct side {
  unsigned int id; /* 0 sends, or sends first; 1 is the other */
  const struct options *o;
  struct shared *shared;
  const struct wire_ops *ops;
  void *wire;
  char *memory;
  size_t memory_size;
  unsigned int nout, nin;
  int meetings;
  struct lane out[MAX_LANES], in[MAX_LANES];
};

/* Results are those of the plugin interface. None of these waits. */
struct wire_ops {
  /* One step of connecting everything; RAIL_IN_PROGRESS: call again. */
  rail_result_t (*open)(struct side *s);
  rail_result_t (*send)(struct side *s, struct lane *lane, char *data, void **request);
  rail_result_t (*recv)(struct side *s, struct lane *lane, char *data, void **request);
  /* RAIL_OK with *done; *size is what a receive brought. */
  rail_result_t (*test)(struct side *s, struct lane *lane, void *request, int *done, int *size);
  void (*close)(struct side *s);
};
extern const struct wire_ops net_wire, tcp_wire;

/* ---- side.c ---- */

/* Runs one side from connecting to closing. What came of it is in `shared`. */
void side_run(struct side *s);
/* Records the verdict unless there is one already. Returns false, for callers to return. */
RAIL_COLD bool side_fail(struct side *s, enum verdict verdict, const char *fmt, ...) RAIL_PRINTF(3, 4);
bool side_stopped(const struct side *s); /* somebody failed */
/* Returns when the other side has come as far; false if somebody failed. */
bool side_meet(struct side *s);
/* False, with a verdict, when nothing has moved since `moved` for longer than patience allows, or somebody failed. */
bool side_patient(struct side *s, uint64_t moved);
void side_idle(const struct side *s); /* after a pass without progress */
double side_cpu_s(void);

/* ---- lane.c ---- */

/* Posts what the window and the limit allow, then tests the oldest request
 * for as long as it is done. *progress is set when anything moved. */
bool lane_pass_out(struct side *s, struct lane *lane, bool *progress);
bool lane_pass_in(struct side *s, struct lane *lane, bool *progress);
/* The parts of lane_pass_in, for ping-pong, which posts after it has answered. */
bool lane_post_in(struct side *s, struct lane *lane, bool *progress);
bool lane_test_in(struct side *s, struct lane *lane, bool *progress);

/* ---- transfer.c, pingpong.c ---- */

bool transfer_phase(struct side *s, unsigned int phase, double seconds, struct outcome *outcome);
bool pingpong_phase(struct side *s, unsigned int phase, double seconds, struct outcome *outcome);

#endif
