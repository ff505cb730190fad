/* SPDX-License-Identifier: Apache-2.0
 *
 * One process of a cell: a process with one thread that drives connections the
 * way NCCL's proxy thread does, and times it. A `conn` is one connection as
 * one of its two ends sees it; a `wire` is what carries it: a plugin's vtable,
 * or plain TCP streams. Shared by the files of this folder, only.
 */
#ifndef RAIL_KIT_BENCH_PROCESS_H
#define RAIL_KIT_BENCH_PROCESS_H

#include <string.h>

#include "common/base/compiler.h"
#include "common/base/result.h"
#include "kit/bench/bench_machine.h"
#include "kit/bench/kit_bench.h"
#include "kit/kit_call_trace.h"

/* ---- bench_memory.c: the buffers of a process, of this host or of a GPU. libcuda is opened on demand. ---- */

struct kit_bench_memory {
  char *base; /* page-aligned; of a GPU: its address there */
  size_t size;
  bool cuda;
};

/* Touched, so that no page is first met in the middle of a phase. False: `why` has the reason not. */
bool kit_bench_memory_make(struct kit_bench_memory *m, size_t size, bool cuda, char *why, size_t why_size);
void kit_bench_memory_free(struct kit_bench_memory *m);
/* Between such a buffer and plain memory. False: CUDA returned an error. */
bool kit_bench_memory_write(const struct kit_bench_memory *m, char *to, const void *from, size_t size);
bool kit_bench_memory_read(const struct kit_bench_memory *m, void *to, const char *from, size_t size);

/* Times in ns, room for all of them taken and touched before the timing begins. */
struct kit_bench_samples {
  uint64_t *ns;
  size_t n, room;
};

struct kit_bench_conn {
  RAIL_ALIGNED(RAIL_CACHELINE) void *comm;
  void *mhandle;
  char *base;
  size_t stride;            /* from slot to slot: each has a buffer of its own */
  uint64_t posted, done;    /* messages since the connection began */
  uint64_t limit;           /* post no more than these */
  uint64_t arrived_ns;      /* KIT_BENCH_JITTER: the last arrival; 0: none yet */
  void **requests;          /* one a slot */
  unsigned int head, next;  /* slots: of the oldest request, and the next one to post */
  int tag;                  /* of the next send: its place in its group */
  unsigned int slots;       /* a send's slot holds a message, a receive's a group */
  unsigned int index;       /* among the conns into the receiver: part of each message's mark */
  bool flushing;            /* the oldest receive is done, its flush is not */
  /* What the timing does not touch: */
  unsigned int peer;        /* the peer */
  unsigned int number;      /* among the conns of that edge */
  void *listen;
  uint64_t opened_ns;       /* when the connection was there */
  char handle[RAIL_NET_HANDLE_SIZE]; /* of the receiver; a connect in progress keeps state in it */
};

/* How much work a look at the clock may follow: small messages share one. */
#define KIT_BENCH_LOOK_MASK 31u
#define KIT_BENCH_SMALL ((size_t)64 << 10)

struct kit_bench_process {
  struct kit_process *kit;
  const struct kit_job *job;
  struct kit_bench_cell cell;
  const struct kit_bench_wire *wire;
  void *wire_state;
  int rank;
  unsigned int window;      /* messages on a conn: the cell's, up to whole groups */
  unsigned int nout, nin;
  struct kit_bench_conn *out, *in;
  void **requests;          /* all conns' */
  struct kit_bench_memory memory;
  bool marks;               /* each message carries its number, and it is looked at */
  uint64_t patience_ns;
  double warmup_s, seconds;
  bool check;
  uint64_t connects;
  double round_trip_s;      /* the last phase's mean */
  struct kit_bench_samples samples;
  struct kit_bench_counters counters;
  struct kit_call_slot *calls; /* which call this thread is in */
  int version;              /* of the vtable */
  char wire_name[64];
};

/* What a process reports to its parent, once: kit_send_record. */
struct kit_bench_record {
  uint32_t magic;
  int32_t verdict; /* enum kit_bench_verdict */
  char what[400];
  int32_t version;
  char wire[64];
  double seconds;
  uint64_t messages; /* that came in; connections made from here */
  struct kit_bench_usage used;
  uint64_t nsamples;
  double us[6];      /* of the samples: least, 50th, 90th, 99th, 99.9th of a hundred, greatest */
  double close_us;
  int32_t fds_left, threads_left;
};
#define KIT_BENCH_MAGIC 0x42454e43u

/* Results are those of the plugin interface. None of these waits. A conn's listen, connect and accept are made once
 * (again after close). What a call returns besides its result is in the conn. */
struct kit_bench_wire {
  rail_result_t (*start)(struct kit_bench_process *s);
  rail_result_t (*listen)(struct kit_bench_process *s, struct kit_bench_conn *conn);  /* conn->listen, conn->handle */
  rail_result_t (*connect)(struct kit_bench_process *s, struct kit_bench_conn *conn); /* conn->comm, or call again */
  rail_result_t (*accept)(struct kit_bench_process *s, struct kit_bench_conn *conn);
  rail_result_t (*reg)(struct kit_bench_process *s, struct kit_bench_conn *conn, size_t size);
  rail_result_t (*send)(struct kit_bench_process *s, struct kit_bench_conn *conn, char *data, int tag, void **request);
  /* A group of buffers, the conn's stride apart, with tags from 0. */
  rail_result_t (*recv)(struct kit_bench_process *s, struct kit_bench_conn *conn, char *data, void **request);
  /* RAIL_OK with *done; `sizes` is what a receive brought, NULL for a send. */
  rail_result_t (*test)(struct kit_bench_process *s, struct kit_bench_conn *conn, void *request, int *done, int *sizes);
  /* After a receive into memory of a GPU; *request NULL: nothing to wait for. */
  rail_result_t (*flush)(struct kit_bench_process *s, struct kit_bench_conn *conn, char *data, void **request);
  rail_result_t (*close)(struct kit_bench_process *s, struct kit_bench_conn *conn, bool sends);
  rail_result_t (*stop)(struct kit_bench_process *s);
};
extern const struct kit_bench_wire kit_bench_wire_net, kit_bench_wire_tcp;

/* ---- marks: the first and the last eight bytes of each message, so that a lost, doubled or torn one shows ---- */

/* Message `number` of connection `conn` of its receiver, both from 0. */
static inline uint64_t kit_bench_mark(unsigned int conn, uint64_t number) { return (uint64_t)conn << 48 | number; }

/* Below 8 bytes there is room for the lower bytes only; below 16 there is one mark. */
static inline void kit_bench_write_mark(char *data, size_t size, uint64_t mark) {
  if (size < sizeof mark) {
    memcpy(data, &mark, size);
    return;
  }
  memcpy(data, &mark, sizeof mark);
  if (size >= 2 * sizeof mark) memcpy(data + size - sizeof mark, &mark, sizeof mark);
}

/* What is wrong with the marks: the bits that differ; 0: nothing. */
static inline uint64_t kit_bench_wrong_mark(const char *data, size_t size, uint64_t mark) {
  uint64_t first = mark, last = mark;
  if (size < sizeof mark) {
    memcpy(&first, data, size);
    return first ^ mark;
  }
  memcpy(&first, data, sizeof first);
  if (size >= 2 * sizeof mark) memcpy(&last, data + size - sizeof last, sizeof last);
  return (first ^ mark) | (last ^ mark);
}

/* ---- bench_process.c ---- */

/* A cell on its way from the parent to the processes, as the job's arguments. */
void kit_bench_job_write(struct kit_job *job, const struct kit_bench_plan *plan, const struct kit_bench_cell *cell,
                         const struct kit_bench_column *column);

/* ---- bench_conn.c ---- */

struct kit_bench_record kit_bench_empty_record(const struct kit_bench_process *s);
/* Ends the process with a verdict. */
RAIL_COLD _Noreturn void kit_bench_fail(struct kit_bench_process *s, enum kit_bench_verdict verdict, const char *fmt,
                                        ...) RAIL_PRINTF(3, 4);
/* What a timed loop does with each look at the clock, so that a call that hangs is known to do so. */
static inline void kit_bench_note_time(struct kit_bench_process *s, uint64_t now) {
  atomic_store_explicit(&s->calls->since_ns, now, memory_order_relaxed);
}
/* Ends it when a call of the plugin failed. */
void kit_bench_require(struct kit_bench_process *s, rail_result_t result, const char *call);
/* A look at the clock. Ends the process when nothing has moved since `moved` for longer than patience allows. */
void kit_bench_check_stall(struct kit_bench_process *s, uint64_t now, uint64_t moved);
void kit_bench_idle(const struct kit_bench_process *s); /* after a pass without progress */

/* All conns, as the cell wants them; none is open. */
void kit_bench_make_conns(struct kit_bench_process *s);
/* Listens, and passes the handles on. */
void kit_bench_listen_all(struct kit_bench_process *s);
/* Connects and accepts until all conns are open; the processes that have to are at it, too. */
void kit_bench_connect_all(struct kit_bench_process *s);
void kit_bench_close_all(struct kit_bench_process *s);

/* Posts what the window and the limit allow, then tests the oldest request for as long as it is done. True when
 * anything moved. */
bool kit_bench_pass_out(struct kit_bench_process *s, struct kit_bench_conn *conn);
/* The parts of the latter, for ping-pong, which posts after it has answered. */
bool kit_bench_post_in(struct kit_bench_process *s, struct kit_bench_conn *conn);
bool kit_bench_test_in(struct kit_bench_process *s, struct kit_bench_conn *conn);
/* All conns once. */
bool kit_bench_pass(struct kit_bench_process *s);
bool kit_bench_all_done(const struct kit_bench_process *s); /* up to their limits */

/* ---- bench_phases.c ---- */

/* Each fills in what it measures. */
void kit_bench_transfer(struct kit_bench_process *s, double seconds, struct kit_bench_record *out);
void kit_bench_pingpong(struct kit_bench_process *s, double seconds, struct kit_bench_record *out);
void kit_bench_connects(struct kit_bench_process *s, double seconds, struct kit_bench_record *out);
/* Some messages on every conn, all bytes checked. */
void kit_bench_verify(struct kit_bench_process *s);

/* kit_bench_process.samples. */
bool kit_bench_samples_make(struct kit_bench_samples *samples);
void kit_bench_samples_free(struct kit_bench_samples *samples);
static inline void kit_bench_sample(struct kit_bench_samples *samples, uint64_t ns) {
  if (rail_likely(samples->n < samples->room)) samples->ns[samples->n++] = ns;
}

#endif
