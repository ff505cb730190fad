/* SPDX-License-Identifier: Apache-2.0
 *
 * The file that railtrace writes and rail-kit reads: every call of one process
 * on its network plugin. docs/trace.md has the bytes.
 *
 * A file is a header and a list of chunks, each with a checksum. A chunk of
 * calls belongs to one thread and holds whole records; all chunks of a thread
 * one behind the other are that thread's calls in order. Numbers in records
 * are varints (7 bits a byte, least first), times are differences, and objects
 * are small numbers counted up from 1, so that a send takes about 12 bytes.
 *
 * A call's name, in findings and in print, is THREAD.NUMBER, both from 1.
 * Numbers are those of recorded and dropped calls alike.
 */
#ifndef RAIL_TRACE_FILE_H
#define RAIL_TRACE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "rail/net.h"

#define RAIL_TRACE_VERSION 1
#define RAIL_TRACE_GROUP 32        /* buffers of one irecv at most */
#define RAIL_TRACE_TEXT 256        /* of a string, with its NUL */
#define RAIL_TRACE_MAX_RECORD 4096 /* bytes of one encoded event */
#define RAIL_TRACE_MAX_CHUNK (4u << 20)

/* What a record is of. The numbers are in files: append only. */
enum rail_trace_kind {
  RAIL_TRACE_NONE,
  RAIL_TRACE_INIT,         /* made: context; value: comm id; tag: traffic class; dev: version of the caller's vtable */
  RAIL_TRACE_FINALIZE,     /* ctx */
  RAIL_TRACE_DEVICES,      /* value: how many */
  RAIL_TRACE_PROPERTIES,   /* dev, props */
  RAIL_TRACE_MAKE_VDEVICE, /* dev: the new one; bufs[i].tag: fused of these */
  RAIL_TRACE_SET_ATTR,     /* ctx, attr */
  RAIL_TRACE_LISTEN,       /* ctx, dev, made: comm, handle */
  RAIL_TRACE_CONNECT,      /* ctx, dev, tag: traffic class, made: comm, tries, handle as it was before the first try */
  RAIL_TRACE_ACCEPT,       /* comm: listening one, made: comm, tries */
  RAIL_TRACE_CLOSE_SEND,   /* comm */
  RAIL_TRACE_CLOSE_RECV,   /* comm */
  RAIL_TRACE_CLOSE_LISTEN, /* comm */
  RAIL_TRACE_REG_MR,       /* comm, made: memory, address, size, dev: type */
  RAIL_TRACE_REG_DMABUF,   /* the same; value: offset */
  RAIL_TRACE_DEREG_MR,     /* comm, mr */
  RAIL_TRACE_ISEND,        /* comm, made: request, tries, one buffer */
  RAIL_TRACE_IRECV,        /* comm, made: request, tries, value: 1 if completion is optional, buffers */
  RAIL_TRACE_IFLUSH,       /* comm, made: request, tries, buffers */
  RAIL_TRACE_TEST,         /* comm, request, value: done, tries; done: bufs[i].size arrived */
  RAIL_TRACE_CONSUMED,     /* comm, request, value: how many */
  RAIL_TRACE_FINDING,      /* comm, request, value: rule, dev: 0 caller 1 plugin, two numbers: address and size */
  RAIL_TRACE_DROPPED,      /* value: calls of this thread that are missing here */
  RAIL_TRACE_GET_DEVICE_MR, /* comm, mr */
  RAIL_TRACE_KINDS
};

struct rail_trace_buf {
  uint64_t mr;   /* 0: none that is known; then `at` is an address */
  uint64_t at;   /* offset in the registered memory */
  uint64_t size;
  int64_t tag;
};

/* One record, taken apart. Of the fields only those mean something that its kind has. */
struct rail_trace_event {
  enum rail_trace_kind kind;
  int result;          /* of the call; the plugin's own number, even one that is no result */
  uint64_t ns;         /* when it began, after the header's clock base */
  uint64_t duration;   /* ns */
  uint32_t thread;     /* from 1; the reader's */
  uint64_t number;     /* in its thread, from 1; the reader's */
  uint64_t ctx, comm, made, mr, request;
  uint64_t tries;      /* of the same call before this one, that led to nothing yet */
  uint64_t waited;     /* ns since the first of these */
  uint64_t value, address, size;
  int64_t dev, tag;
  unsigned int n;
  struct rail_trace_buf bufs[RAIL_TRACE_GROUP];
  uint8_t handle[RAIL_NET_HANDLE_SIZE];
  struct rail_net_props_v12 props; /* name and pci_path point at the texts below, pci_path may be NULL */
  char name[RAIL_TRACE_TEXT], path[RAIL_TRACE_TEXT];
  struct rail_net_attr attr;
};

const char *rail_trace_kind_name(unsigned int kind); /* "isend"; "?" if there is none */

/* ---- writing ----------------------------------------------------------- */

struct rail_trace_header {
  uint64_t clock_ns;    /* CLOCK_MONOTONIC where the events' times begin */
  uint64_t realtime_ns; /* CLOCK_REALTIME at that moment */
  uint32_t pid;
  uint32_t caller_version, plugin_version; /* of the vtables: called, and wrapped */
  char host[RAIL_TRACE_TEXT], program[RAIL_TRACE_TEXT];
  char plugin_path[RAIL_TRACE_TEXT], plugin_name[RAIL_TRACE_TEXT];
};

enum rail_trace_chunk_kind {
  RAIL_TRACE_CHUNK_CALLS = 1,  /* records of one thread */
  RAIL_TRACE_CHUNK_THREAD = 2, /* thread id, name; before the thread's first calls */
  RAIL_TRACE_CHUNK_END = 3,    /* how it ended, see rail_trace_end */
};

#define RAIL_TRACE_RULES 64 /* findings are counted per rule */

struct rail_trace_end {
  bool limited;      /* the file had reached its limit */
  uint64_t recorded; /* records */
  uint64_t dropped;
  uint64_t findings[RAIL_TRACE_RULES];
};

#define RAIL_TRACE_HEADER_MAX (64 + 4 * (2 + RAIL_TRACE_TEXT))
#define RAIL_TRACE_CHUNK_HEADER 20

/* Encoders into memory; they return the bytes used. None allocates, fails or blocks. */
size_t rail_trace_put_header(uint8_t out[RAIL_TRACE_HEADER_MAX], const struct rail_trace_header *header);
/* The payload may lie in two pieces, as in a ring. */
void rail_trace_put_chunk(uint8_t out[RAIL_TRACE_CHUNK_HEADER], enum rail_trace_chunk_kind kind, uint32_t thread,
                          const void *first, size_t nfirst, const void *second, size_t nsecond);
size_t rail_trace_put_thread(uint8_t out[64], uint64_t tid, const char *name);
size_t rail_trace_put_end(uint8_t out[1024], const struct rail_trace_end *end);
/* `before` is the time of this thread's last record, 0 for the first; the caller keeps it and passes it again. */
size_t rail_trace_put_event(uint8_t out[RAIL_TRACE_MAX_RECORD], const struct rail_trace_event *event, uint64_t *before);

/* ---- reading ----------------------------------------------------------- */

struct rail_trace_thread {
  uint64_t tid;
  char name[32];
};

struct rail_trace; /* a file in memory */

/* Reads a file, or bytes that stay the caller's. Everything but the records is checked here. False: `why` has the
 * reason and the offset. A file that stops in the middle of a chunk is read up to there: rail_trace_cut tells. */
bool rail_trace_open(const char *path, struct rail_trace **trace, char *why, size_t why_size);
bool rail_trace_open_bytes(const uint8_t *bytes, size_t size, struct rail_trace **trace, char *why, size_t why_size);
void rail_trace_close(struct rail_trace *trace); /* NULL is fine */

const struct rail_trace_header *rail_trace_header(const struct rail_trace *trace);
size_t rail_trace_threads(const struct rail_trace *trace);
const struct rail_trace_thread *rail_trace_thread(const struct rail_trace *trace, uint32_t thread); /* from 1 */
/* NULL: the process did not come to write it (killed, or still running). */
const struct rail_trace_end *rail_trace_end(const struct rail_trace *trace);
const char *rail_trace_cut(const struct rail_trace *trace); /* NULL, or where and how the file breaks off */

/* All events by time, those of one thread in their order. 1: there is one; 0: that was all; -1: a record is broken,
 * `why` names the offset. */
int rail_trace_next(struct rail_trace *trace, struct rail_trace_event *event, char *why, size_t why_size);
void rail_trace_rewind(struct rail_trace *trace);

#endif
