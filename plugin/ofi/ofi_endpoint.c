/* SPDX-License-Identifier: Apache-2.0
 * Opening and closing endpoints, their comms and peers, and the watch thread's look at all of them. */
#include "plugin/ofi/ofi_endpoint.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "plugin/ofi/ofi_comm.h"

#define FRAMES_IN 256  /* receives for control messages of one NIC, if the provider has room for as many */
#define ALIGN 64       /* of these */
/* Over shm and tcp, which keep a message that finds none. Receives are used in turn: with fewer of them, and of what
 * libfabric has for each, more stays in the processor's caches. */
#define FEWER_FRAMES_IN 64
#define LONGEST_MS 64  /* between two polls of the watch thread's that find nothing */
#define CALLER_MS 8 /* between its looks at an endpoint whose caller polls; a caller at work does so far more often */
#define LAST_POLLS 64  /* before it is closed */
/* To enable an endpoint. libfabric's shm names it after the process id and a counter; where a killed process of this id
 * has left that name it fails with FI_EBUSY, and the next try takes the next one. In containers each start has the id
 * of the one before, and may have left several. tcp;ofi_rxm takes a port and listens later: FI_EADDRINUSE where
 * another process listens there meanwhile. */
#define ENABLE_TRIES 64
#define WANTED_POLLS 8 /* with these pauses: over a quarter of a second */

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list, and users and ctx of each */
/* One endpoint is opened at a time, without the lock above: a provider may take seconds. */
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static LIST_HEAD(, ofi_endpoint) endpoints = LIST_HEAD_INITIALIZER(endpoints);

/* ---- opening --------------------------------------------------------------------- */

/* `what` failed for this NIC. */
static rail_result_t open_failed(const struct ofi_nic *nic, const char *what, int err) {
  RAIL_WARN("RailOFI: opening %s of provider %s: %s: %s; check: fi_info -p '%s', and that its devices work",
            nic->name, nic->provider, what, ofi_fabric_strerror(err), nic->provider);
  return RAIL_SYSTEM_ERROR;
}

static rail_result_t open_endpoint(struct ofi_endpoint_nic *n) {
  struct fi_info *info = n->device_nic->info;
  struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_NONE};
  struct fi_av_attr av_attr = {.type = info->domain_attr->av_type};
  size_t size = OFI_ADDR_SIZE;
  int err;
  cq_attr.size = info->tx_attr->size + info->rx_attr->size;
  if ((err = ofi_fabric.fabric(info->fabric_attr, &n->fabric, NULL)))
    return open_failed(n->device_nic, "fi_fabric", err);
  if ((err = fi_domain(n->fabric, info, &n->domain, NULL))) return open_failed(n->device_nic, "fi_domain", err);
  if ((err = fi_cq_open(n->domain, &cq_attr, &n->cq, NULL))) return open_failed(n->device_nic, "fi_cq_open", err);
  if ((err = fi_av_open(n->domain, &av_attr, &n->av, NULL))) return open_failed(n->device_nic, "fi_av_open", err);
  for (int left = ENABLE_TRIES; left > 0; left--) {
    if ((err = fi_endpoint(n->domain, info, &n->ep, NULL))) return open_failed(n->device_nic, "fi_endpoint", err);
    if ((err = fi_ep_bind(n->ep, &n->cq->fid, FI_TRANSMIT | FI_RECV)) || (err = fi_ep_bind(n->ep, &n->av->fid, 0)))
      return open_failed(n->device_nic, "fi_ep_bind", err);
    err = fi_enable(n->ep);
    if ((err != -FI_EBUSY && err != -FI_EADDRINUSE) || left == 1) break;
    fi_close(&n->ep->fid);
    n->ep = NULL;
  }
  if (err) return open_failed(n->device_nic, "fi_enable", err);
  if ((err = fi_getname(&n->ep->fid, n->name.bytes, &size)) || size > OFI_ADDR_SIZE)
    return open_failed(n->device_nic, "fi_getname", err ? err : -FI_ETOOSMALL);
  n->name.size = (uint16_t)size;
  return RAIL_OK;
}

static rail_result_t post_receives(struct ofi_endpoint *endpoint, unsigned int index) {
  struct ofi_endpoint_nic *n = &endpoint->nics[index];
  size_t room = n->device_nic->caps.rx_size ? n->device_nic->caps.rx_size : FRAMES_IN;
  size_t most = n->device_nic->local || ofi_provider_is_tcp(n->device_nic->provider) ? FEWER_FRAMES_IN : FRAMES_IN;
  n->nreceives = (unsigned int)RAIL_MAX(RAIL_MIN(room / 2, most), 1);
  n->receives = calloc(n->nreceives, sizeof *n->receives);
  if (!n->receives || !ofi_memory_alloc(endpoint, n->nreceives * endpoint->frame_size, &n->frames_in)) {
    RAIL_WARN("RailOFI: opening %s: out of memory", n->device_nic->name);
    return RAIL_SYSTEM_ERROR;
  }
  for (unsigned int i = 0; i < n->nreceives; i++) {
    struct ofi_op *op = &n->receives[i];
    op->kind = OFI_OP_FRAME_IN;
    op->nic = n;
    op->data = (char *)n->frames_in.bytes + i * endpoint->frame_size;
    op->size = endpoint->frame_size;
    op->desc = n->frames_in.descs[index];
    int err = ofi_op_receive_frame(endpoint, op);
    if (err) return open_failed(n->device_nic, "fi_recv", err);
  }
  return RAIL_OK;
}

/* Users before what they use. In a forked child everything stays the parent's. */
static void destroy(struct ofi_endpoint *endpoint) {
  if (endpoint->process != getpid()) return;
  if (!endpoint->shut) ofi_shut_unlogged(endpoint, "it is not used any more");
  for (unsigned int i = 0; i < endpoint->nnics; i++) {
    struct ofi_endpoint_nic *n = &endpoint->nics[i];
    struct ofi_peer *peer;
    if (n->av) ofi_close_fid(&n->av->fid, "address vector", n->device_nic);
    if (n->cq) ofi_close_fid(&n->cq->fid, "completion queue", n->device_nic);
    if (n->domain) ofi_close_fid(&n->domain->fid, "domain", n->device_nic);
    if (n->fabric) ofi_close_fid(&n->fabric->fid, "fabric", n->device_nic);
    while ((peer = SLIST_FIRST(&n->peers))) {
      SLIST_REMOVE_HEAD(&n->peers, link);
      free(peer);
    }
    if (!endpoint->kept) free(n->receives);
  }
  free(endpoint->comms);
  free(endpoint);
}

/* What is injected has no completion, so no error of it comes. On one host nothing can lose it. tcp completes a small
 * message when its socket has it, and says nothing either of one that is lost with the connection behind that:
 * ofi_comm_check_stall finds both. */
static size_t max_inject(const struct ofi_nic *nic) {
  size_t max = nic->local ? OFI_MAX_INJECT : ofi_provider_is_tcp(nic->provider) ? OFI_MAX_INJECT_TCP : 0;
  return RAIL_MIN(nic->caps.inject_size, max);
}

static rail_result_t open_nics(struct ofi_endpoint *endpoint) {
  for (unsigned int i = 0; i < endpoint->device->nrails; i++) {
    struct ofi_endpoint_nic *n = &endpoint->nics[i];
    n->device_nic = endpoint->device->rails[i];
    n->next_key = 1;
    n->max_inject = max_inject(n->device_nic);
    SLIST_INIT(&n->peers);
    STAILQ_INIT(&n->waiting);
    STAILQ_INIT(&n->waiting_receives);
    STAILQ_INIT(&n->used_receives);
    endpoint->nnics++;
    RAIL_TRY(open_endpoint(n));
  }
  size_t size = RAIL_MAX(OFI_FRAME_MAX, OFI_FRAME_SIZE + (size_t)ofi_device_inline(endpoint->device));
  endpoint->frame_size = RAIL_ROUND_UP(size, ALIGN);
  for (unsigned int i = 0; i < endpoint->nnics; i++) RAIL_TRY(post_receives(endpoint, i));
  return RAIL_OK;
}

/* A new endpoint, not in the list yet; its context is its first user. */
static rail_result_t open_new(struct rail_net_ctx *ctx, const struct ofi_device *device,
                              const struct ofi_endpoint_ops *ops, struct ofi_endpoint **out) {
  struct ofi_endpoint *endpoint = calloc(1, sizeof *endpoint);
  if (!endpoint) {
    RAIL_WARN("RailOFI: opening %s: out of memory", device->name);
    return RAIL_SYSTEM_ERROR;
  }
  endpoint->ctx = ctx;
  endpoint->device = device;
  endpoint->ops = ops;
  endpoint->process = getpid();
  endpoint->users = 1; /* the context */
  TAILQ_INIT(&endpoint->control_now);
  TAILQ_INIT(&endpoint->control_later);
  rail_result_t result = open_nics(endpoint);
  if (result != RAIL_OK) {
    destroy(endpoint);
    return result;
  }
  *out = endpoint;
  return RAIL_OK;
}

/* The open endpoint, with one more user; NULL: there is none. */
static struct ofi_endpoint *find(const struct rail_net_ctx *ctx, const struct ofi_device *device) {
  struct ofi_endpoint *endpoint;
  pthread_mutex_lock(&list_lock);
  LIST_FOREACH(endpoint, &endpoints, link)
    if (endpoint->ctx == ctx && endpoint->device == device && !endpoint->shut && endpoint->process == getpid()) break;
  if (endpoint) endpoint->users++;
  pthread_mutex_unlock(&list_lock);
  return endpoint;
}

static void add_to_list(struct ofi_endpoint *endpoint) {
  pthread_mutex_lock(&list_lock);
  endpoint->users++;
  LIST_INSERT_HEAD(&endpoints, endpoint, link);
  pthread_mutex_unlock(&list_lock);
}

rail_result_t ofi_endpoint_get(struct rail_net_ctx *ctx, const struct ofi_device *device,
                               const struct ofi_endpoint_ops *ops, struct ofi_endpoint **out) {
  rail_result_t result = RAIL_OK;
  *out = find(ctx, device);
  if (*out) return RAIL_OK;
  pthread_mutex_lock(&open_lock);
  *out = find(ctx, device); /* another thread may have opened it meanwhile */
  if (!*out && (result = open_new(ctx, device, ops, out)) == RAIL_OK) add_to_list(*out);
  pthread_mutex_unlock(&open_lock);
  return result;
}

/* A message that ofi_rxm (1.17 and 2.6, over verbs) finds while it closes a connection makes it post a receive at what
 * it has just freed: what has arrived is read before. Not over shm: where the first message of a peer that this side
 * does not know is read after that peer has gone, it reads at NULL (1.17, smr_progress_connreq). */
static void read_the_last(struct ofi_endpoint *endpoint) {
  if (endpoint->process != getpid() || endpoint->nics[0].device_nic->local) return;
  ofi_endpoint_lock(endpoint);
  endpoint->ending = true;
  for (int i = 0; !endpoint->shut && i < LAST_POLLS; i++)
    if (!ofi_poll_background(endpoint)) break;
  ofi_endpoint_unlock(endpoint);
}

void ofi_endpoint_put(struct ofi_endpoint *endpoint) {
  pthread_mutex_lock(&list_lock);
  bool last = --endpoint->users == 0;
  if (last) LIST_REMOVE(endpoint, link);
  pthread_mutex_unlock(&list_lock);
  if (!last) return;
  read_the_last(endpoint);
  destroy(endpoint);
}

void ofi_endpoint_drop_ctx(const struct rail_net_ctx *ctx) {
  for (;;) {
    struct ofi_endpoint *endpoint;
    pthread_mutex_lock(&list_lock);
    LIST_FOREACH(endpoint, &endpoints, link)
      if (endpoint->ctx == ctx) break; // NOLINT(clang-analyzer-unix.Malloc): one that is freed has left the list
    if (endpoint) endpoint->ctx = NULL;
    pthread_mutex_unlock(&list_lock);
    if (!endpoint) return;
    ofi_endpoint_put(endpoint);
  }
}

/* ---- comms, peers ---------------------------------------------------------------- */

static bool grow(struct ofi_endpoint *endpoint) {
  uint32_t n = endpoint->ncomms ? 2 * endpoint->ncomms : 64;
  const size_t each = sizeof(void *);
  struct ofi_comm **comms = n <= OFI_MAX_COMMS ? realloc(endpoint->comms, n * each) : NULL;
  if (!comms) return false;
  memset(comms + endpoint->ncomms, 0, (n - endpoint->ncomms) * each);
  endpoint->comms = comms;
  endpoint->ncomms = n;
  return true;
}

/* Indices are taken in turn: a message that comes late for a comm that is closed finds none under its index. */
bool ofi_endpoint_add(struct ofi_endpoint *endpoint, struct ofi_comm *comm, uint32_t *index) {
  for (;;) {
    for (uint32_t tries = 0; tries < endpoint->ncomms; tries++) {
      uint32_t i = endpoint->next_comm++ % endpoint->ncomms;
      if (endpoint->comms[i]) continue;
      endpoint->comms[i] = comm;
      *index = i;
      return true;
    }
    endpoint->next_comm = endpoint->ncomms;
    if (!grow(endpoint)) return false;
  }
}

void ofi_endpoint_remove(struct ofi_endpoint *endpoint, uint32_t index) { endpoint->comms[index] = NULL; }

/* Removes the peer that has been without users for longest. */
static void remove_oldest(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *n) {
  struct ofi_peer *peer, *oldest = NULL;
  SLIST_FOREACH(peer, &n->peers, link)
    if (!peer->users && (!oldest || peer->idle_since < oldest->idle_since)) oldest = peer;
  SLIST_REMOVE(&n->peers, oldest, ofi_peer, link);
  n->nidle--;
  if (!endpoint->shut) (void)fi_av_remove(n->av, &oldest->addr, 1, 0);
  free(oldest);
}

/* What an address vector has room for may be little (shm: 256 peers). */
static int insert(struct ofi_endpoint *endpoint, struct ofi_endpoint_nic *n, struct ofi_peer *peer) {
  for (;;) {
    int inserted = fi_av_insert(n->av, peer->name.bytes, 1, &peer->addr, 0, NULL);
    if (inserted == 1) return 0;
    if (!n->nidle) return inserted < 0 ? inserted : -FI_EADDRNOTAVAIL;
    remove_oldest(endpoint, n);
  }
}

int ofi_endpoint_resolve(struct ofi_endpoint *endpoint, unsigned int nic, const struct ofi_address *name,
                         struct ofi_peer **out) {
  struct ofi_endpoint_nic *n = &endpoint->nics[nic];
  struct ofi_peer *peer;
  if (endpoint->shut) return -FI_ESHUTDOWN;
  SLIST_FOREACH(peer, &n->peers, link)
    if (peer->name.size == name->size && memcmp(peer->name.bytes, name->bytes, name->size) == 0) {
      n->nidle -= peer->users++ == 0;
      *out = peer;
      return 0;
    }
  peer = calloc(1, sizeof *peer);
  if (!peer) return -FI_ENOMEM;
  peer->name = *name;
  peer->users = 1;
  int err = insert(endpoint, n, peer);
  if (err) {
    free(peer);
    return err;
  }
  SLIST_INSERT_HEAD(&n->peers, peer, link);
  *out = peer;
  return 0;
}

void ofi_endpoint_release(struct ofi_endpoint *endpoint, unsigned int nic, struct ofi_peer *peer) {
  struct ofi_endpoint_nic *n = &endpoint->nics[nic];
  if (--peer->users) return;
  peer->idle_since = ++n->idle_count;
  n->nidle++;
  if (n->nidle > OFI_IDLE_PEERS) remove_oldest(endpoint, n);
}

/* ---- the watch thread's polls ------------------------------------------------------ */

static void before_fork(void) { pthread_mutex_lock(&list_lock); }
static void after_fork(void) { pthread_mutex_unlock(&list_lock); }
/* Fork does not wait for an endpoint that is opened; in the child the thread that opens it is gone. */
static void in_child(void) {
  open_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  after_fork();
}

void ofi_endpoint_handle_fork(void) {
  static bool handled;
  if (!handled) handled = pthread_atfork(before_fork, after_fork, in_child) == 0;
}

void ofi_endpoint_wake(struct ofi_endpoint *endpoint) {
  atomic_store_explicit(&endpoint->wanted, WANTED_POLLS, memory_order_relaxed);
  ofi_timer_set(OFI_FIRST_MS);
}

/* Polls if no caller has since the last look, or a peer may wait for a report that callers' polls leave for later.
 * Returns milliseconds until the next one; 0: there is nothing to come. */
static long poll_in_background(struct ofi_endpoint *endpoint) {
  long ms = CALLER_MS;
  if (!ofi_endpoint_try(endpoint)) return ms; /* a caller polls */
  uint32_t wanted = atomic_load_explicit(&endpoint->wanted, memory_order_relaxed);
  bool busy = endpoint->nops || endpoint->nrequests || endpoint->nunreported || wanted ||
              !TAILQ_EMPTY(&endpoint->control_now) || !TAILQ_EMPTY(&endpoint->control_later);
  if (endpoint->shut || !busy) {
    ms = 0;
  } else if (endpoint->polls != endpoint->polls_seen && !wanted) {
    endpoint->polls_seen = endpoint->polls;
    endpoint->pause_ms = 0;
  } else {
    if (wanted == WANTED_POLLS) endpoint->pause_ms = 0;
    if (wanted) atomic_compare_exchange_strong(&endpoint->wanted, &wanted, wanted - 1);
    long longer = RAIL_MAX(RAIL_MIN(2 * endpoint->pause_ms, LONGEST_MS), OFI_FIRST_MS);
    endpoint->pause_ms = ofi_poll_background(endpoint) ? OFI_FIRST_MS : longer;
    endpoint->polls_seen = endpoint->polls;
    ms = endpoint->pause_ms;
  }
  ofi_endpoint_unlock(endpoint);
  return ms;
}

bool ofi_endpoint_timer_fired(void *arg) {
  struct ofi_endpoint *endpoint;
  long next = 0;
  (void)arg;
  ofi_timer_read();
  pthread_mutex_lock(&list_lock);
  LIST_FOREACH(endpoint, &endpoints, link) {
    long ms = endpoint->process == getpid() ? poll_in_background(endpoint) : 0;
    if (ms && (!next || ms < next)) next = ms;
  }
  pthread_mutex_unlock(&list_lock);
  if (next) ofi_timer_set(next);
  return true;
}
