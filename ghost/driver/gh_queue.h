/* SPDX-License-Identifier: Apache-2.0
 * Streams of the driver as its own files see them: queues of items, under one lock. */
#ifndef GH_QUEUE_H
#define GH_QUEUE_H

#include "ghost/driver/gh_cuda.h"
#include "ghost/driver/gh_driver.h"
#include "ghost/driver/gh_kernel.h"

struct capture;

/* One record of an event: a wait is for the latest that there was when it was asked for. */
struct mark {
  int refs;
  bool done;
};

/* In a capture: how many nodes of each of its streams come before something. */
#define MAX_CAPTURED 256 /* NCCL takes a stream of its own for each collective */
struct before { int nodes[MAX_CAPTURED]; };

struct event {
  uint64_t alive;
  struct gh_context *context;
  struct mark *mark;      /* NULL: never recorded */
  struct capture *of;     /* the latest record was in a capture, with this before it; NULL: in none */
  uint64_t capture;       /* its number: it may be gone by now */
  struct before before;
};

/* A launch with copies of its name and arguments, or the bytes of a copy: items of the queue and of graphs share it. */
struct gh_blob {
  int refs; /* atomic */
  struct gh_launch launch;
};

enum item_kind { KERNEL, HOST, COPY, SET, RECORD, WAIT };

struct item {
  struct item *next;
  enum item_kind kind;
  struct gh_blob *blob;     /* KERNEL, COPY; NULL: what is copied stays where it is */
  void (*call)(void *);     /* HOST */
  void *argument;
  void *to;                 /* COPY, SET */
  const void *from;
  size_t size;
  unsigned char value;
  struct mark *mark;
  struct event *event;      /* RECORD, WAIT of a graph: as the event is at each launch, until which it must live */
};

/* Of one who waits; zeros at first. */
struct patience {
  uint64_t tick_end, ended, ticks; /* ticks: since `ended` items had ended, the latest that it has seen */
};
/* Waits for gh_queue_changed. False: for GHOST_PATIENCE no item of any stream has ended. */
bool gh_queue_wait_change(struct patience *p);

struct stream {
  struct stream *next;
  uint64_t alive, number; /* number: no other stream has or had it */
  struct gh_context *context; /* NULL: the legacy stream, which is every context's */
  pthread_t thread;
  struct item *first, **end;
  bool busy, quit, blocking;
  uint64_t given, done; /* items, ever */
  struct capture *capture;
  int index; /* in this capture */
  struct before before;
};

/* Retained by graphs; calls back when none is left. */
struct object {
  int refs;
  void (*destroy)(void *);
  void *arg;
};

/* What a graph, a capture or an exec retains. */
#define MAX_OBJECTS 64
struct objects {
  struct object *of[MAX_OBJECTS];
  int n;
};

/* What a program holds as nodes of a graph that is being captured: all that comes before something. */
struct node {
  struct node *next;
  struct before before;
};

struct capture {
  uint64_t id;
  struct node *nodes;
  const void *shown;    /* the node that the last query has given */
  struct before given;  /* items of each stream, ever */
  struct objects objects;
  int mode;
  bool invalid;
  int nstreams;         /* the first is the one that ends it */
  struct before kernel; /* the latest kernel: that one, too */
  struct item *first, **end;
};

/* The stream joins a capture. False: that has too many already. */
bool gh_queue_join(struct stream *s, struct capture *c);

/* The driver's one lock; `gh_queue_changed` is broadcast whenever anything changed. */
extern pthread_mutex_t gh_queue_lock;
extern pthread_cond_t gh_queue_changed;
extern uint64_t gh_queue_ended; /* items of all streams, ever */

/* How most calls begin and end: a context, the stream, the lock; an error holds no lock. leave returns its argument. */
int gh_queue_enter(const char *call, void *handle, struct stream **s);
int gh_queue_leave(int result);

/* With the lock held. NULL is the legacy stream, made when first used; what is no stream gives NULL. */
struct stream *gh_queue_stream(void *handle);
struct stream *gh_queue_all(void);
/* Before a stream that does not capture is given anything, a record and a wait among it: the legacy stream and those
 * that were not made non-blocking run in the order in which they are given work. */
void gh_queue_order_with_legacy(struct stream *s);
/* Takes a copy of the item: into the stream's queue, or its capture. 0 or an error. */
int gh_queue_add(struct stream *s, const struct item *item);
/* Always into the queue. */
void gh_queue_append(struct stream *s, const struct item *item);
/* A new mark, recorded at the end of the queue; releases the mark that was there. */
void gh_queue_record(struct stream *s, struct mark **mark);
void gh_queue_wait(struct stream *s, struct mark *mark); /* NULL: for nothing */
void gh_mark_unref(struct mark *m);
void gh_items_add(struct item ***end, const struct item *item); /* a copy */
void gh_items_free(struct item *list);
void gh_blob_ref(struct gh_blob *blob); /* of an item that is copied; may be NULL */
void gh_blob_unref(struct gh_blob *blob);

#endif
