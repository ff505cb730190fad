/* SPDX-License-Identifier: Apache-2.0
 *
 * rail-coll: collectives over the runtime, timed and checked, in nccl-tests'
 * options and table. The files, in the order of a run:
 *   main.c options.c        what was asked for
 *   run.c                   this process' ranks: communicators, threads, watchdog
 *   memory.c gpu.c          their buffers; GPUs, by the CUDA driver
 *   bench.c                 one size: check, then time, out of place and in place
 *   collectives.c           what each collective moves and calls
 *   types.c verify.c        inputs and expected results; share no code with the runtime
 *   report.c json.c         rank 0's output
 */
#ifndef RAIL_COLL_H
#define RAIL_COLL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "rail/railyard.h"
#include "tools/common/fork.h"
#include "tools/rail-coll/gpu.h"

#define RC_NAME "rail-coll"
#define RC_MAX_RANKS 1024
#define RC_MAX_KINDS 16 /* of --memory */
#define RC_OP_MULSUM 5 /* sum of each rank's input times its own scalar; beside ncclSum ... ncclAvg */
#define RC_OP_COUNT 6

/* ---- options (options.c) ---- */

enum rc_average { RC_TIME_RANK0, RC_TIME_AVG, RC_TIME_MIN, RC_TIME_MAX };
enum rc_data { RC_DATA_EXACT, RC_DATA_RANDOM };
enum rc_memory { RC_MEMORY_HOST, RC_MEMORY_DEVICE, RC_MEMORY_MANAGED };

struct rc_collective;

struct rc_options {
  const struct rc_collective *collective;
  uint64_t min_bytes, max_bytes, step_bytes; /* step_bytes 0: multiply by step_factor */
  uint64_t step_factor;
  int iters, warmup, checks, aggregate;
  bool types[ncclNumTypes];
  bool ops[RC_OP_COUNT];
  int root; /* -1: each in turn */
  int local_ranks; /* to fork; 0: not given */
  int threads, comms_per_thread;
  enum rc_average average;
  enum rc_data data;
  bool blocking, registered, out_of_place, in_place;
  enum rc_memory memory[RC_MAX_KINDS]; /* rank r's buffers: kind r modulo nmemory */
  int nmemory;
  int device;    /* -1: rank modulo the number of devices */
  int graphs;    /* launches of one graph that has all iterations; 0: no graph */
  int timeout_s; /* 0: none */
  uint64_t seed, offset;
  const char *plugin; /* the only one that may be used; NULL: as NCCL_NET_PLUGIN says */
  const char *json; /* NULL: none; "-": standard output, and the table goes to standard error */
};

/* 0: go on. Else the process ends: 1 help or parameters were printed, -1 a bad argument was named on stderr. */
int rc_options_parse(int argc, char **argv, struct rc_options *o);

/* ---- --plugin (plugin.c) ---- */

/* 0: it loads, initialises and has a device. -1 after one line on stderr. Call it while this process has one thread. */
int rc_plugin_check(const char *name);

/* ---- types (types.c): element formats, written apart from the runtime's ---- */

struct rc_type {
  const char *name;
  size_t size;
  bool is_float, is_signed;
  int digits;     /* floats: bits of the significand, the hidden one included */
  double tiniest; /* floats: least positive value */
};

const struct rc_type *rc_type(int type);
const char *rc_op_name(int op);
int rc_type_find(const char *name, size_t len); /* -1: none */
int rc_op_find(const char *name, size_t len);

/* A float of `type` at `at` (any alignment). Encoding rounds to nearest even; exact for values of the type. */
double rc_decode(int type, const void *at);
void rc_encode(int type, double value, void *at);

/* ---- inputs and expected results (verify.c) ---- */

/* One run that is checked. Inputs are a pure function of (seed, rank, index, type, op). */
struct rc_case {
  int type, op; /* op -1: data is only moved; then inputs are arbitrary bits */
  int root;
  int nranks;
  enum rc_data data;
  uint64_t seed;
};

/* Writes rank's inputs [first, first + count). */
void rc_fill(const struct rc_case *c, int rank, size_t first, void *to, size_t count);
/* How many of the elements differ from rank's inputs [first, first + count), bit for bit. */
size_t rc_check_copy(const struct rc_case *c, int rank, size_t first, const void *got, size_t count);
/* How many differ from the reduction over all ranks of inputs [first, first + count), beyond the error bound. */
size_t rc_check_reduced(const struct rc_case *c, size_t first, const void *got, size_t count);
/* The scalar with which mulsum multiplies rank's input. */
void rc_mulsum_scalar(int type, int rank, void *to);
/* Fills with the pattern that marks memory that must not have been written, and counts bytes that no longer have it. */
void rc_poison(void *at, size_t bytes);
size_t rc_check_poison(const void *at, size_t bytes);

/* ---- collectives (collectives.c) ---- */

/* What one rank gives and gets; counts in elements. */
struct rc_shape {
  size_t count;          /* the call's argument */
  size_t send, recv;     /* elements read and written by this rank; may be 0 */
  size_t in_send, in_recv; /* in place: where they begin in the one buffer */
};

struct rc_call {
  const void *send;
  void *recv;
  size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root, rank, nranks;
  ncclComm_t comm;
  void *stream; /* CUDA's; NULL: the buffers are the host's */
};

struct rc_collective {
  const char *name, *what;
  bool has_root, reduces, in_place;
  /* total: elements of the size under test */
  void (*shape)(const struct rc_case *c, int rank, size_t total, struct rc_shape *s);
  ncclResult_t (*issue)(const struct rc_call *call);
  /* For what only moves: received block b (of recv / blocks elements) is *from's input at *first. */
  int (*blocks)(const struct rc_case *c);
  void (*source)(const struct rc_case *c, int rank, int block, size_t count, int *from, size_t *first);
  bool scaled;         /* the size is nranks times the call's count */
  int (*steps)(int n); /* busbw = algbw * steps(n) / n */
};

const struct rc_collective *rc_collective_find(const char *name);
const struct rc_collective *rc_collective_at(size_t i); /* NULL past the end */
double rc_bus_factor(const struct rc_collective *collective, int nranks);

/* ---- a process' ranks (run.c) ---- */

/* A buffer with guards of poison before and after. `base` is what was allocated on the host. */
struct rc_buffer {
  char *base, *data;
  char *gpu_base, *user; /* what was allocated for a GPU, or NULL; what calls get in place of data */
  size_t bytes;          /* of data */
  void *handle;          /* of the registration */
  bool from_library;     /* base is ncclMemAlloc's */
};

struct rc_rank {
  int rank;
  _Atomic(ncclComm_t) comm; /* who takes it out (exchange with NULL) destroys or aborts it */
  ncclComm_t c;             /* the same, for use */
  /* For rc_exchange, whose buffers are the host's: c, or where that is for GPUs a split of it. */
  _Atomic(ncclComm_t) split;
  ncclComm_t on_host;
  enum rc_memory memory;
  struct rc_gpu gpu;        /* not open: the buffers are the host's */
  struct rc_buffer send, recv;
  char *mine, *all; /* rc_exchange: RC_RECORD_MAX bytes to send, nranks times as many to receive */
  ncclRedOp_t op;   /* of the cases that run */
};

#define RC_RECORD_MAX 512
#define RC_GUARD 4096u

struct rc_process;

/* One thread and its ranks. */
struct rc_worker {
  struct rc_process *process;
  struct rc_rank *ranks;
  int n;
  bool prints; /* holds rank 0 */
  int status;
  uint64_t bad_elements; /* of its own ranks: a finding stands even if exchanging it failed */
};

struct rc_report;

struct rc_process {
  const struct rc_options *o;
  int first, nranks; /* first rank here; of the job */
  int nlocal;
  struct rc_rank *ranks;
  struct rc_worker *workers;
  struct rc_report *report; /* of rank 0; else NULL */
  _Atomic uint64_t last_progress_ns;
  _Atomic bool ended, failed, plugin_unused;
  const char *_Atomic doing; /* for the watchdog's line */
};

struct rc_place { /* where a process stands in the job */
  int process, nprocesses;
  int local_processes;
  const char *source;
};

/* Runs this process' part. share_id distributes rank 0's id to all processes; 0 when it has. Exit status. */
int rc_run(const struct rc_options *o, const struct rc_place *place, int (*share_id)(void *arg, ncclUniqueId *id),
           void *arg);
/* Reports which call failed, on which rank, with the library's reason, and marks the process as failed. */
int rc_failed(struct rc_worker *w, const struct rc_rank *r, const char *what, ncclResult_t result);
/* The same for a call of the CUDA driver; for what has only an errno. Both return -1. */
int rc_gpu_failed(struct rc_worker *w, const struct rc_rank *r, const char *what, int result);
int rc_report_error(const char *what, int err);
/* Waits for all that the worker's ranks have enqueued. 0 or -1, reported on stderr. */
int rc_wait(struct rc_worker *w, const char *what);
/* Every rank gives `size` bytes (mine + i * size for the worker's i-th rank) and gets all of them, in order of rank.
 * Also the barrier. Valid until the next one. NULL: failed, reported. */
const char *rc_exchange(struct rc_worker *w, const void *mine, size_t size);

/* ---- memory (memory.c) ---- */

extern const char *const rc_memory_names[];
enum rc_memory rc_memory_of(const struct rc_options *o, int rank);
bool rc_uses_gpus(const struct rc_options *o); /* all ranks do, or none */
/* -1: this machine has not enough, reported. */
int rc_memory_check(const struct rc_process *p, const struct rc_place *place);
/* Buffers, and room for rc_exchange. 0 or -1, reported on stderr. */
int rc_buffers_open(struct rc_worker *w);
void rc_buffers_close(struct rc_process *p);
/* The first `used` bytes and the guards around them, from `data` to where calls find them, and back. 0 or -1, reported
 * on stderr. */
int rc_buffer_push(struct rc_worker *w, const struct rc_rank *r, const struct rc_buffer *b, size_t used);
int rc_buffer_pull(struct rc_worker *w, const struct rc_rank *r, const struct rc_buffer *b, size_t used);

/* ---- one worker's benchmark (bench.c) ---- */
int rc_bench(struct rc_worker *w);

/* ---- output (report.c, json.c) ---- */

struct rc_side {
  bool ran, supported, checked;
  double us, algbw, busbw; /* GB/s, 1e9 bytes */
  uint64_t wrong, outside; /* elements; bytes written where none may be */
};

struct rc_row {
  size_t bytes, count;
  const char *type, *op;
  int root;
  struct rc_side out, in;
};

/* What every rank reports of itself. */
struct rc_rank_info {
  uint32_t magic;
  int32_t rank, pid, device, memory;
  char host[64], transports[64], plugin[256], bus_id[20], gpu[64];
};

struct rc_report {
  const struct rc_options *o;
  FILE *table;
  int nranks;
  const char *launch;
  struct rc_rank_info *ranks;
  struct rc_row *rows;
  size_t nrows, cap;
  double started, busbw_sum;
  size_t busbw_n;
  uint64_t wrong, outside;
};

void rc_report_head(struct rc_report *r);
int rc_report_row(struct rc_report *r, const struct rc_row *row); /* -1: no memory */
void rc_report_tail(struct rc_report *r);
/* -1: the file could not be written, reported. */
int rc_json_write(const struct rc_report *r);

#endif
