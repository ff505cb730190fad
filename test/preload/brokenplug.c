/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin with a planted defect: forwards to the plugin RAIL_BROKEN_REAL
 * and, at one place, does what RAIL_BROKEN names. test/contract/test_planted.py
 * requires that the contract programs notice each of them, and that they pass
 * with none ("none"). Only the v12 vtable is altered; older ones are the real
 * plugin's own.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rail/net.h"

#define DEFECTS(X)                                                                                                   \
  X(none) X(connect_dirty) X(no_request) X(full_is_error) X(no_done) X(test_in_order) X(early_done)                  \
  X(size_truncated) X(send_size_zero) X(corrupt_byte) X(one_byte_more) X(group_swapped)                              \
  X(group_shifted) X(messages_swapped) X(optional_followed) X(oversize_silent) X(oversize_remote) X(bytewise_copy)   \
  X(arrays_kept)

enum defect {
#define X(name) D_##name,
  DEFECTS(X)
#undef X
};

struct rail_net_v6 ncclNetPlugin_v6;
struct rail_net_v7 ncclNetPlugin_v7;
struct rail_net_v8 ncclNetPlugin_v8;
struct rail_net_v9 ncclNetPlugin_v9;
struct rail_net_v10 ncclNetPlugin_v10;
struct rail_net_v11 ncclNetPlugin_v11;
struct rail_net_v12 ncclNetPlugin_v12;

static const struct rail_net_v12 *real;
static enum defect defect;

/* ---- requests, wrapped so that test knows what it is about ---- */

enum { MAX_REQUESTS = 8192 };

struct wrapped {
  void *req, *comm;
  bool used, send;
  int n;
  uint8_t *data[8], *shadow;
  void **array; /* the caller's, which is no longer valid */
  size_t size[8];
  unsigned long order;  /* of posting */
  struct wrapped *next; /* free list */
};

static struct wrapped table[MAX_REQUESTS], *spare;
static int touched;
static unsigned long posted;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct wrapped *wrap(void *req, void *comm, bool send) {
  pthread_mutex_lock(&lock);
  struct wrapped *w = spare;
  if (w) spare = w->next;
  else if (touched < MAX_REQUESTS) w = &table[touched++];
  else abort();
  *w = (struct wrapped){.req = req, .comm = comm, .send = send, .used = true, .order = ++posted};
  pthread_mutex_unlock(&lock);
  return w;
}

static void unwrap(struct wrapped *w) {
  pthread_mutex_lock(&lock);
  free(w->shadow);
  w->shadow = NULL;
  w->used = false;
  w->next = spare;
  spare = w;
  pthread_mutex_unlock(&lock);
}

/* Is another request of the same comm pending that was posted earlier? */
static bool has_older(const struct wrapped *w) {
  for (int i = 0; i < touched; i++)
    if (table[i].used && table[i].comm == w->comm && table[i].order < w->order) return true;
  return false;
}

static void forget_comm(void *comm) {
  for (int i = 0; i < touched; i++)
    if (table[i].used && table[i].comm == comm) unwrap(&table[i]);
}

/* ---- the altered calls ---- */

static int b_connect(void *ctx, int dev, void *handle, void **comm, struct rail_net_device_handle **dh) {
  static unsigned long sink;
  int rc = real->connect(ctx, dev, handle, comm, dh);
  if (rc && defect == D_connect_dirty) *comm = &sink;
  return rc;
}

static int b_isend(void *comm, void *data, size_t size, int tag, void *mh, void *ph, void **request) {
  void *req = NULL;
  if (defect == D_size_truncated && size > 65536) size &= 0xffff;
  int rc = real->isend(comm, data, size, tag, mh, ph, &req);
  if (rc == 0 && !req && defect == D_full_is_error) return RAIL_INTERNAL_ERROR;
  if (rc || !req) {
    if (defect != D_no_request) *request = NULL;
    return rc;
  }
  struct wrapped *w = wrap(req, comm, true);
  w->data[0] = data;
  w->size[0] = size;
  *request = w;
  return 0;
}

static int b_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhs, void **phs, void **request) {
  void *req = NULL, *shadow = NULL, *volatile preset = *request;
  bool copies = n == 1 && (defect == D_bytewise_copy || defect == D_arrays_kept);
  if (defect == D_optional_followed && preset == RAIL_NET_OPTIONAL_RECV) *(volatile char *)preset = 1;
  if (copies && !(shadow = malloc(sizes[0] + 1))) abort();
  void *one[8];
  size_t rooms[8];
  for (int i = 0; i < n; i++) one[i] = data[i], rooms[i] = sizes[i];
  if (shadow) one[0] = shadow;
  if (defect == D_group_swapped && n > 2) { /* the buffers of two tags */
    void *t = one[0];
    one[0] = one[1];
    one[1] = t;
  }
  int rc = real->irecv(comm, n, one, rooms, tags, mhs, phs, &req);
  if (rc == 0 && !req && defect == D_full_is_error) rc = RAIL_INTERNAL_ERROR;
  if (rc || !req) {
    free(shadow);
    if (defect != D_no_request) *request = NULL;
    return rc;
  }
  struct wrapped *w = wrap(req, comm, false);
  w->n = n;
  w->shadow = shadow;
  w->array = data;
  for (int i = 0; i < n; i++) w->data[i] = data[i], w->size[i] = sizes[i];
  *request = w;
  return 0;
}

static void spoil(struct wrapped *w, int *sizes) {
  static unsigned long count;
  static struct wrapped last;
  if (w->shadow && defect == D_arrays_kept) memcpy(w->array[0], w->shadow, (size_t)sizes[0]);
  else if (w->shadow) { /* as a careless copy loop would, last byte first */
    for (int i = sizes[0] - 1; i >= 0; i--) {
      ((volatile uint8_t *)w->data[0])[i] = w->shadow[i];
      if (i % 512 == 0) sched_yield();
    }
  }
  if (w->send) {
    if (defect == D_send_size_zero) sizes[0] = 0;
    return;
  }
  if (defect == D_corrupt_byte && ++count % 50 == 0 && sizes[0] > 0) w->data[0][sizes[0] - 1] ^= 1;
  if (defect == D_one_byte_more && (size_t)sizes[0] < w->size[0]) w->data[0][sizes[0]] ^= 1;
  if (defect == D_group_shifted && w->n > 1) {
    int t = sizes[0];
    sizes[0] = sizes[w->n - 1];
    sizes[w->n - 1] = t;
  }
  if (defect == D_messages_swapped && ++count % 64 == 33 && w->n == 1 && last.size[0] == w->size[0] &&
      last.comm == w->comm) {
    for (size_t i = 0; i < w->size[0] && i < 8; i++) { /* the previous message's head, here */
      uint8_t t = w->data[0][i];
      w->data[0][i] = last.data[0][i];
      last.data[0][i] = t;
    }
  }
  last = *w;
}

static int b_test(void *request, int *done, int *sizes) {
  struct wrapped *w = request;
  int mine = 0, got[8] = {0};
  if (defect == D_test_in_order && has_older(w)) {
    *done = 0;
    return 0;
  }
  int rc = real->test(w->req, &mine, got);
  if (rc) {
    if (defect == D_oversize_silent && rc == RAIL_BAD_USAGE) {
      *done = 1;
      if (sizes) sizes[0] = (int)w->size[0];
      return 0;
    }
    if (defect == D_oversize_remote && rc == RAIL_BAD_USAGE) return RAIL_REMOTE_ERROR;
    return rc;
  }
  if (!mine && defect == D_early_done && w->send) { /* the real request is left to the next ones' tests */
    *done = 1;
    if (sizes) sizes[0] = (int)w->size[0];
    unwrap(w);
    return 0;
  }
  if (mine || defect != D_no_done) *done = mine;
  if (!mine) return 0;
  spoil(w, got);
  for (int i = 0; sizes && i < (w->send ? 1 : w->n); i++) sizes[i] = got[i];
  unwrap(w);
  return 0;
}

static int b_irecv_consumed(void *comm, int n, void *request) {
  struct wrapped *w = request;
  return real->irecv_consumed ? real->irecv_consumed(comm, n, w->req) : 0;
}

static int closing(int (*close_fn)(void *), void *comm) {
  int rc = close_fn(comm);
  if (comm) forget_comm(comm);
  return rc;
}

static int b_close_send(void *comm) { return closing(real->close_send, comm); }
static int b_close_recv(void *comm) { return closing(real->close_recv, comm); }

static void copy_table(void *dl, const char *symbol, void *to, size_t size) {
  void *from = dlsym(dl, symbol);
  if (from) memcpy(to, from, size);
}

__attribute__((constructor)) static void set_up(void) {
  static const char *const names[] = {
#define X(name) #name,
      DEFECTS(X)
#undef X
  };
  const char *path = getenv("RAIL_BROKEN_REAL"), *word = getenv("RAIL_BROKEN");
  void *dl = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  bool known = false;
  for (size_t i = 0; word && i < sizeof names / sizeof names[0]; i++) {
    if (strcmp(word, names[i]) != 0) continue;
    defect = (enum defect)i;
    known = true;
  }
  real = dl ? dlsym(dl, "ncclNetPlugin_v12") : NULL;
  if (!real || !known) {
    fprintf(stderr, "brokenplug: RAIL_BROKEN_REAL=%s RAIL_BROKEN=%s: %s\n", path ? path : "", word ? word : "",
            known ? "not a plugin" : "no such defect");
    return;
  }
  copy_table(dl, "ncclNetPlugin_v6", &ncclNetPlugin_v6, sizeof ncclNetPlugin_v6);
  copy_table(dl, "ncclNetPlugin_v7", &ncclNetPlugin_v7, sizeof ncclNetPlugin_v7);
  copy_table(dl, "ncclNetPlugin_v8", &ncclNetPlugin_v8, sizeof ncclNetPlugin_v8);
  copy_table(dl, "ncclNetPlugin_v9", &ncclNetPlugin_v9, sizeof ncclNetPlugin_v9);
  copy_table(dl, "ncclNetPlugin_v10", &ncclNetPlugin_v10, sizeof ncclNetPlugin_v10);
  copy_table(dl, "ncclNetPlugin_v11", &ncclNetPlugin_v11, sizeof ncclNetPlugin_v11);
  struct rail_net_v12 *v = &ncclNetPlugin_v12;
  *v = *real;
  v->connect = b_connect;
  v->isend = b_isend;
  v->irecv = b_irecv;
  v->test = b_test;
  v->irecv_consumed = b_irecv_consumed;
  v->close_send = b_close_send;
  v->close_recv = b_close_recv;
}
