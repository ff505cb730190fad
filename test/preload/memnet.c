/* SPDX-License-Identifier: Apache-2.0
 *
 * A plugin between threads of one process, and a strict one: it copies a message late (in the sender's third test), so
 * that what the sender writes too early into its buffer shows; it takes only memory inside of a registration with the
 * same comm; it keeps its state in the handle between calls of connect; and it counts what is open. A message
 * that is larger than its receive fills that and is an error on both sides. MEMNET_NAME is its name, MEMNET_FUSED=1
 * gives it a fused device from the start, MEMNET_FUSED=only two of these and no others, MEMNET_FUSED=none no device
 * after the first look. MEMNET_REG_US is how long a registration takes, but for memory that has one already.
 */
#include "test/preload/memnet.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rail/net.h"

#define OUTSTANDING 32
#define TESTS_UNTIL_COPY 3
#define MAX_DEVICES 8

struct memnet memnet;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all that follows */
static struct listener *listeners;
static struct registration *registrations;

struct request {
  bool used, moved, failed, is_send;
  struct side *side;
  char *data;
  size_t size, got;
  int tests;
  unsigned long number; /* of the side's requests */
};

/* One end of a connection; it lives until both ends are closed. */
struct side {
  struct side *other;
  bool is_send, closed;
  unsigned long posted, moved;
  struct request requests[OUTSTANDING];
};

#define WAITING 64

struct listener {
  struct listener *next; /* of all that are open */
  struct side *waiting[WAITING];
  int nwaiting;
};

struct registration {
  struct registration *next; /* of all that are open */
  const void *comm;
  const char *data;
  size_t size;
};

struct handle {
  struct listener *listener;
  int calls;
};

__attribute__((format(printf, 1, 2))) static void misuse(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  if (!memnet.misuse[0]) vsnprintf(memnet.misuse, sizeof memnet.misuse, fmt, ap);
  va_end(ap);
}

/* ---- devices ---- */

static struct rail_net_vprops_v12 devices_[MAX_DEVICES] = {{1, {0}}, {1, {1}}, {1, {2}}, {1, {3}}};
static int ndevices = 4;
static bool vanishing; /* no device after the first look */
static char names[MAX_DEVICES][16] = {"mem0", "mem1", "mem2", "mem10"};

static int add_device(const struct rail_net_vprops_v12 *members, int *dev) {
  if (ndevices == MAX_DEVICES) return RAIL_BAD_ARGUMENT;
  devices_[ndevices] = *members;
  snprintf(names[ndevices], sizeof names[0], "fused%d", ndevices);
  *dev = ndevices++;
  return RAIL_OK;
}

static int init(void **ctx, uint64_t id, struct rail_net_config *config, rail_logger_fn log, rail_profiler_fn prof) {
  (void)id, (void)config, (void)log, (void)prof;
  atomic_fetch_add(&memnet.contexts, 1);
  *ctx = &memnet;
  return RAIL_OK;
}

static int finalize(void *ctx) {
  (void)ctx;
  atomic_fetch_sub(&memnet.contexts, 1);
  return RAIL_OK;
}

static int devices(int *ndev) {
  static atomic_bool looked;
  *ndev = vanishing && atomic_exchange(&looked, true) ? 0 : ndevices;
  return RAIL_OK;
}

static int properties(int dev, struct rail_net_props_v12 *p) {
  *p = (struct rail_net_props_v12){.name = names[dev],
                                   .guid = (uint64_t)dev,
                                   .ptr_support = RAIL_PTR_HOST,
                                   .speed = 1000,
                                   .port = 1,
                                   .max_comms = 1000,
                                   .max_recvs = 1,
                                   .max_p2p_bytes = RAIL_NET_MAX_BYTES,
                                   .vprops = devices_[dev]};
  return RAIL_OK;
}

static int make_vdevice(int *dev, struct rail_net_vprops_v12 *props) { return add_device(props, dev); }

/* ---- connections ---- */

static int do_listen(void *ctx, int dev, void *handle, void **comm) {
  (void)ctx, (void)dev;
  struct listener *l = calloc(1, sizeof *l);
  memset(handle, 0, RAIL_NET_HANDLE_SIZE);
  *(struct handle *)handle = (struct handle){.listener = l};
  atomic_fetch_add(&memnet.listens, 1);
  pthread_mutex_lock(&lock);
  l->next = listeners;
  listeners = l;
  pthread_mutex_unlock(&lock);
  *comm = l;
  return RAIL_OK;
}

/* The lock is held. */
static bool queue(struct listener *l, struct side *receiver) {
  const struct listener *open = listeners;
  while (open && open != l) open = open->next;
  if (!open || l->nwaiting == WAITING) return false;
  l->waiting[l->nwaiting++] = receiver;
  return true;
}

static int do_connect(void *ctx, int dev, void *handle, void **comm, struct rail_net_device_handle **dh) {
  (void)ctx, (void)dev, (void)dh;
  struct handle *h = handle;
  *comm = NULL;
  if (h->calls++ < 3) return RAIL_OK;
  struct side *s = calloc(2, sizeof *s);
  s[0].is_send = true;
  s[0].other = &s[1];
  s[1].other = &s[0];
  pthread_mutex_lock(&lock);
  bool queued = queue(h->listener, &s[1]);
  pthread_mutex_unlock(&lock);
  if (!queued) { /* of another process, or closed: no connection will come */
    free(s);
    return RAIL_OK;
  }
  atomic_fetch_add(&memnet.sends, 1);
  *comm = s;
  return RAIL_OK;
}

static int do_accept(void *listen_comm, void **comm, struct rail_net_device_handle **dh) {
  (void)dh;
  struct listener *l = listen_comm;
  *comm = NULL;
  if (atomic_load(&memnet.never_accept)) return RAIL_OK;
  pthread_mutex_lock(&lock);
  if (l->nwaiting > 0) *comm = l->waiting[--l->nwaiting];
  pthread_mutex_unlock(&lock);
  if (*comm) atomic_fetch_add(&memnet.recvs, 1);
  return RAIL_OK;
}

/* The lock is held. */
static void end(struct side *s) {
  s->closed = true;
  if (s->other->closed) free(s->is_send ? s : s->other);
}

static int close_side(void *comm) {
  struct side *s = comm;
  if (!s) return RAIL_OK;
  atomic_fetch_sub(s->is_send ? &memnet.sends : &memnet.recvs, 1);
  pthread_mutex_lock(&lock);
  end(s);
  pthread_mutex_unlock(&lock);
  return RAIL_OK;
}

static int close_listen(void *comm) {
  struct listener *l = comm, **at = &listeners;
  atomic_fetch_sub(&memnet.listens, 1);
  pthread_mutex_lock(&lock);
  while (*at != l) at = &(*at)->next;
  *at = l->next;
  while (l->nwaiting > 0) end(l->waiting[--l->nwaiting]);
  pthread_mutex_unlock(&lock);
  free(l);
  return RAIL_OK;
}

/* ---- memory ---- */

static int reg(void *comm, void *data, size_t size, int type, void **mhandle) {
  (void)type;
  const char *cost = getenv("MEMNET_REG_US");
  bool known = false;
  struct registration *r = malloc(sizeof *r);
  pthread_mutex_lock(&lock);
  for (const struct registration *i = registrations; i; i = i->next)
    known |= i->data <= (char *)data && (char *)data + size <= i->data + i->size;
  *r = (struct registration){registrations, comm, data, size};
  registrations = r;
  pthread_mutex_unlock(&lock);
  if (cost && !known) usleep((unsigned)atoi(cost));
  atomic_fetch_add(&memnet.registrations, 1);
  atomic_fetch_add(&memnet.registrations_made, 1);
  *mhandle = r;
  return RAIL_OK;
}

static int dereg(void *comm, void *mhandle) {
  struct registration *r = mhandle, **at = &registrations;
  if (r->comm != comm) misuse("a registration is given back to another comm");
  pthread_mutex_lock(&lock);
  while (*at != r) at = &(*at)->next;
  *at = r->next;
  pthread_mutex_unlock(&lock);
  atomic_fetch_sub(&memnet.registrations, 1);
  free(r);
  return RAIL_OK;
}

/* ---- messages ---- */

static int start(struct side *s, char *data, size_t size, const struct registration *r, void **request) {
  *request = NULL;
  if (!r || r->comm != s)
    misuse("%zu bytes go with a registration of another comm", size);
  else if (data < r->data || data + size > r->data + r->size)
    misuse("%zu bytes at %p lie outside of their registration, %zu at %p", size, (void *)data, r->size,
           (const void *)r->data);
  pthread_mutex_lock(&lock);
  struct request *q = &s->requests[s->posted % OUTSTANDING];
  if (!q->used) {
    *q = (struct request){.used = true, .side = s, .data = data, .size = size, .number = s->posted++};
    *request = q;
  }
  pthread_mutex_unlock(&lock);
  if (!*request || !memnet.watch || data < memnet.watch || data >= memnet.watch + memnet.watch_size) return RAIL_OK;
  atomic_fetch_add(s->is_send ? &memnet.watched_sends : &memnet.watched_recvs, 1);
  return RAIL_OK;
}

static int do_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void *phandle, void **request) {
  (void)tag, (void)phandle;
  return start(comm, data, size, mhandle, request);
}

static int do_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **phandles,
                    void **request) {
  (void)n, (void)tags, (void)phandles;
  return start(comm, data[0], sizes[0], mhandles[0], request);
}

static int iflush(void *comm, int n, void **data, int *sizes, void **mhandles, void **request) {
  (void)comm, (void)n, (void)data, (void)sizes, (void)mhandles;
  *request = NULL;
  return RAIL_OK;
}

/* The sender's oldest message to the receiver's oldest request; the lock is held. */
static void move(struct request *from) {
  struct side *receiver = from->side->other;
  struct request *to = &receiver->requests[from->number % OUTSTANDING];
  if (from->number != from->side->moved || !to->used || to->number != from->number || receiver->closed) return;
  to->got = from->size < to->size ? from->size : to->size;
  memcpy(to->data, from->data, to->got);
  from->failed = to->failed = from->size > to->size;
  from->moved = to->moved = true;
  from->side->moved++;
  atomic_fetch_add(&memnet.messages, 1);
}

static int do_test(void *request, int *done, int *sizes) {
  struct request *q = request;
  pthread_mutex_lock(&lock);
  if (q->side->is_send && !q->moved && ++q->tests >= TESTS_UNTIL_COPY && !atomic_load(&memnet.hold)) move(q);
  *done = q->moved;
  if (sizes && q->moved) *sizes = (int)q->got;
  bool failed = q->failed;
  if (q->moved) q->used = false;
  pthread_mutex_unlock(&lock);
  return failed ? RAIL_REMOTE_ERROR : RAIL_OK;
}

struct rail_net_v12 ncclNetPlugin_v12 = {
    .name = "Mem",
    .init = init,
    .devices = devices,
    .get_properties = properties,
    .listen = do_listen,
    .connect = do_connect,
    .accept = do_accept,
    .reg_mr = reg,
    .dereg_mr = dereg,
    .isend = do_isend,
    .irecv = do_irecv,
    .iflush = iflush,
    .test = do_test,
    .close_send = close_side,
    .close_recv = close_side,
    .close_listen = close_listen,
    .make_vdevice = make_vdevice,
    .finalize = finalize,
};

__attribute__((constructor)) static void start_up(void) {
  int dev;
  const char *name = getenv("MEMNET_NAME"), *fused = getenv("MEMNET_FUSED");
  if (name) ncclNetPlugin_v12.name = name;
  if (!fused) return;
  if (*fused == '1') add_device(&(struct rail_net_vprops_v12){2, {0, 2}}, &dev);
  vanishing = strcmp(fused, "none") == 0;
  if (strcmp(fused, "only") != 0) return;
  devices_[0] = (struct rail_net_vprops_v12){2, {0, 1}};
  devices_[1] = (struct rail_net_vprops_v12){2, {2, 3}};
  ndevices = 2;
}
