/* SPDX-License-Identifier: Apache-2.0
 *
 * Life of a bootstrap: unique ids, open (rendezvous, ring, bootstrap thread),
 * split, shrink, abort, close.
 */
#include "core/bootstrap/rt_bootstrap.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/ifaddr.h"
#include "common/base/log.h"
#include "core/bootstrap/rt_boot.h"
#include "core/bootstrap/rt_rendezvous.h"
#include "core/comm/rt_error.h"
#include "core/comm/rt_param.h"

#define UNUSED_MS 600000ull /* a rendezvous that no rank joins ends after this long (or the bootstrap timeout) */
#define END_MS 2000         /* to end a rendezvous that no rank needs: it runs in this process or answers at once */
#define SHRINK_TAG 0x80000000u /* in the tags of a shrink's messages; those of splits are numbers without it */

_Static_assert(RT_UNIQUE_ID_BYTES >= sizeof(struct rt_boot_id), "the id holds all");

/* ---- unique ids ---- */

static void id_pack(char id[RT_UNIQUE_ID_BYTES], const struct rt_boot_id *in) {
  memset(id, 0, RT_UNIQUE_ID_BYTES);
  memcpy(id, in, sizeof *in);
}

/* RAIL_BAD_USAGE, with *out and *root filled in, when only the version is wrong. */
static rail_result_t id_unpack(const char id[RT_UNIQUE_ID_BYTES], struct rt_boot_id *out, union rail_addr *root) {
  memcpy(out, id, sizeof *out);
  bool zeros = true;
  for (size_t i = sizeof *out; i < RT_UNIQUE_ID_BYTES; i++) zeros &= id[i] == 0;
  bool ours = out->magic == RT_BOOT_MAGIC && rail_addr_unpack(&out->addr, root);
  if (ours && out->version == RT_BOOT_VERSION && out->well_known <= 1 && zeros) return RAIL_OK;
  if (ours && out->version != RT_BOOT_VERSION) return RAIL_BAD_USAGE;
  rt_error(RAIL_BAD_ARGUMENT,
           "bootstrap: this is not a unique id of Railyard (bootstrap version %d); was it made by another library, "
           "or not copied to this rank?",
           RT_BOOT_VERSION);
  return RAIL_BAD_ARGUMENT;
}

/* This process's address for others to connect to. */
static rail_result_t own_address(const union rail_addr *hint, union rail_addr *addr) {
  struct rail_interface *all, chosen;
  const struct rt_params *p = rt_params();
  int n = rail_interfaces_list(&all);
  if (n < 0) {
    rt_error(RAIL_SYSTEM_ERROR, "bootstrap: cannot list the network interfaces: %m");
    return RAIL_SYSTEM_ERROR;
  }
  int family = rail_family_from_text(p->socket_family);
  int found = rail_interfaces_choose(all, n, p->socket_ifname, family, hint, &chosen, 1);
  free(all);
  if (found < 1) {
    rt_error(RAIL_SYSTEM_ERROR,
             "bootstrap: none of %d interface addresses fits NCCL_SOCKET_IFNAME=%s NCCL_SOCKET_FAMILY=%s", n,
             p->socket_ifname ? p->socket_ifname : "(unset)", p->socket_family ? p->socket_family : "(unset)");
    return RAIL_SYSTEM_ERROR;
  }
  *addr = chosen.addr;
  rail_addr_set_port(addr, 0);
  return RAIL_OK;
}

/* For a well-known address: this secret only distinguishes jobs that share an address by accident. */
static void derive_secret(uint64_t cookie, const struct rail_addr_wire *addr, uint8_t secret[RT_SECRET_BYTES]) {
  uint64_t hash[2] = {RAIL_HASH_BASIS, 0x84222325cbf29ce4ull};
  unsigned char in[sizeof cookie + sizeof addr->port];
  memcpy(in, &cookie, sizeof cookie);
  memcpy(in + sizeof cookie, addr->port, sizeof addr->port); /* not the ip: ranks may resolve a name differently */
  for (int half = 0; half < 2; half++) hash[half] = rail_hash(hash[half], in, sizeof in);
  memcpy(secret, hash, RT_SECRET_BYTES);
}

rail_result_t rt_unique_id_from_address(const char *host_port, uint64_t cookie, char id[RT_UNIQUE_ID_BYTES]) {
  struct rt_boot_id out = {.magic = RT_BOOT_MAGIC, .version = RT_BOOT_VERSION, .well_known = 1};
  union rail_addr addr;
  if (rail_addr_parse(host_port, &addr) != RAIL_OK || rail_addr_port(&addr) == 0) {
    rt_error(RAIL_BAD_ARGUMENT,
             "bootstrap: \"%s\" is no address for a rendezvous; host:port or [ipv6]:port is wanted, with a host that "
             "resolves and a port that is not 0",
             host_port ? host_port : "");
    return RAIL_BAD_ARGUMENT;
  }
  rail_addr_pack(&addr, &out.addr);
  derive_secret(cookie, &out.addr, out.secret);
  id_pack(id, &out);
  return RAIL_OK;
}

rail_result_t rt_unique_id_create(char id[RT_UNIQUE_ID_BYTES]) {
  const struct rt_params *p = rt_params();
  if (p->comm_id) return rt_unique_id_from_address(p->comm_id, 0, id);

  struct rt_boot_id out = {.magic = RT_BOOT_MAGIC, .version = RT_BOOT_VERSION};
  union rail_addr addr;
  char text[RAIL_ADDR_TEXT];
  RAIL_TRY(own_address(NULL, &addr));
  RAIL_TRY(rail_random_bytes(out.secret, sizeof out.secret));
  uint64_t unused_ms = RAIL_MAX(UNUSED_MS, (uint64_t)p->bootstrap_timeout_ms);
  if (rt_rendezvous_start(&addr, out.secret, unused_ms) != RAIL_OK) {
    rt_error(RAIL_SYSTEM_ERROR, "bootstrap: cannot open a rendezvous at %s: %m", rail_addr_text(&addr, text));
    return RAIL_SYSTEM_ERROR;
  }
  rail_addr_pack(&addr, &out.addr);
  id_pack(id, &out);
  RAIL_INFO(RAIL_SUB_BOOTSTRAP | RAIL_SUB_INIT, "bootstrap: rendezvous at %s", rail_addr_text(&addr, text));
  return RAIL_OK;
}

/* ---- the object ---- */

void rt_bootstrap_close(struct rt_bootstrap *b) {
  if (!b) return;
  rt_boot_thread_stop(b);
  rail_sock_close(&b->listen_fd);
  for (int i = 0; b->tx && i < b->nranks; i++) {
    rail_sock_close(&b->tx[i].fd);
    pthread_mutex_destroy(&b->tx[i].lock);
  }
  rt_boot_messages_free(b);
  pthread_cond_destroy(&b->cond);
  pthread_mutex_destroy(&b->lock);
  free(b->tx);
  free(b->addrs);
  free(b->data_closed);
  free(b);
}

static rail_result_t boot_new(const struct rt_bootstrap_args *args, struct rt_bootstrap **out) {
  if (args->nranks < 1 || args->nranks > RT_BOOT_MAX_RANKS || args->rank < 0 || args->rank >= args->nranks) {
    rt_error(RAIL_BAD_ARGUMENT, "bootstrap: rank %d of %d: a rank is 0 to nranks - 1, and nranks 1 to %d", args->rank,
             args->nranks, RT_BOOT_MAX_RANKS);
    return RAIL_BAD_ARGUMENT;
  }
  size_t n = (size_t)args->nranks;
  struct rt_bootstrap *b = calloc(1, sizeof *b);
  if (!b) goto no_memory;
  b->args = *args;
  b->rank = args->rank;
  b->nranks = args->nranks;
  b->listen_fd = b->event_fd = b->thread.epoll_fd = -1;
  b->origin = -1;
  rt_boot_pending_init(b);
  for (size_t i = 0; i < RT_BOOT_BUCKETS; i++) STAILQ_INIT(&b->unexpected[i]);
  pthread_mutex_init(&b->lock, NULL);
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&b->cond, &attr);
  pthread_condattr_destroy(&attr);
  b->addrs = calloc(n, sizeof *b->addrs);
  b->data_closed = calloc(n, 1);
  b->tx = calloc(n, sizeof *b->tx);
  for (size_t i = 0; b->tx && i < n; i++) {
    pthread_mutex_init(&b->tx[i].lock, NULL);
    b->tx[i].fd = -1;
  }
  *out = b;
  if (b->addrs && b->data_closed && b->tx) return RAIL_OK;
  rt_bootstrap_close(b);
no_memory:
  *out = NULL;
  rt_error(RAIL_SYSTEM_ERROR, "bootstrap: rank %d: no memory for %d ranks", args->rank, args->nranks);
  return RAIL_SYSTEM_ERROR;
}

static rail_result_t boot_listen(struct rt_bootstrap *b, const union rail_addr *hint, union rail_addr *own) {
  char text[RAIL_ADDR_TEXT];
  if (b->nranks == 1) { /* no rank will connect */
    *own = (union rail_addr){.in = {.sin_family = AF_INET}};
    return RAIL_OK;
  }
  RAIL_TRY(own_address(hint, own));
  if (rail_sock_listen(own, RAIL_MAX(128, b->nranks), &b->listen_fd) == RAIL_OK) return RAIL_OK;
  rt_error(RAIL_SYSTEM_ERROR, "bootstrap: rank %d cannot listen on %s: %m", b->rank, rail_addr_text(own, text));
  return RAIL_SYSTEM_ERROR;
}

/* All addresses and the secret are known: connects the ring and starts the bootstrap thread. */
static rail_result_t connect_ring(struct rt_bootstrap *b) {
  if (b->nranks == 1) return RAIL_OK;
  int n = b->nranks, next = (b->rank + 1) % n, prev = (b->rank + n - 1) % n, fd = -1;
  struct rt_boot_limits limits = {.deadline = rail_deadline_in_ms(b->args.timeout_ms)};
  RAIL_TRY(rt_boot_connect(b, next, RT_BOOT_LINK_RING, &limits, &fd));
  RAIL_TRY(rt_boot_thread_start(b, fd));

  rail_result_t result = RAIL_OK;
  pthread_mutex_lock(&b->lock);
  while (!b->prev_connected && result == RAIL_OK) result = rt_boot_wait(b, &limits);
  if (b->prev_connected) result = RAIL_OK;
  int err = errno;
  pthread_mutex_unlock(&b->lock);
  if (result != RAIL_OK && atomic_load(&b->failed) == 0 && err == ETIMEDOUT)
    rt_error(result,
             "bootstrap: rank %d: rank %d (%s) was at the rendezvous but did not connect within %" PRIu64
             " ms; is there a firewall in between?",
             b->rank, prev, rt_bootstrap_peer_text(b, prev), b->args.timeout_ms);
  return result;
}

/* Ends a half-opened bootstrap, and reports that to the ranks that it is connected to. */
static void abort_open(struct rt_bootstrap *b, rail_result_t result) {
  rt_bootstrap_abort(b, result, "it could not open the communicator");
  rt_bootstrap_close(b);
}

/* ---- open ---- */

/* For rank 0 with a well-known address. The name may resolve to an address that this host does not have (behind NAT) or
 * to a loopback one (Debian's 127.0.1.1); then the rendezvous listens on any address of the host. */
static rail_result_t open_rendezvous(const struct rt_boot_id *id, union rail_addr root,
                                     const struct rt_bootstrap_args *args) {
  char text[RAIL_ADDR_TEXT];
  uint64_t deadline = rail_deadline_in_ms(args->timeout_ms);
  struct rt_boot_limits limits = {.deadline = deadline, .abort_flag = args->abort_flag};
  bool logged = false;
  bool any_address = root.sa.sa_family == AF_INET && (ntohl(root.in.sin_addr.s_addr) & 0xffffff00u) == 0x7f000100u;
  for (;;) {
    union rail_addr at = root;
    if (any_address && at.sa.sa_family == AF_INET)
      at.in.sin_addr.s_addr = htonl(INADDR_ANY);
    else if (any_address)
      at.in6.sin6_addr = in6addr_any;
    if (rt_rendezvous_start(&at, id->secret, args->timeout_ms) == RAIL_OK) return RAIL_OK;
    if (errno == EADDRNOTAVAIL && !any_address) {
      any_address = true;
      continue;
    }
    /* In use: most likely by the rendezvous of this job's previous communicator, which is about to end. */
    bool stop = rail_deadline_passed(deadline) || (limits.abort_flag && atomic_load(limits.abort_flag));
    if (errno != EADDRINUSE || stop) {
      rt_error(RAIL_SYSTEM_ERROR,
               "bootstrap: rank 0 cannot listen on the rendezvous address %s: %m; choose another port",
               rail_addr_text(&root, text));
      return RAIL_SYSTEM_ERROR;
    }
    if (!logged) RAIL_INFO(RAIL_SUB_INIT, "bootstrap: %s is in use, waiting for it", rail_addr_text(&root, text));
    logged = true;
    poll(NULL, 0, RT_BOOT_RETRY_MS);
  }
}

/* Ends the rendezvous thread that rt_unique_id_create started and that no other rank will join. */
static void end_rendezvous(struct rt_rendezvous_rank *me, uint64_t timeout_ms) {
  if (me->well_known) return;
  me->timeout_ms = RAIL_MIN(timeout_ms, (uint64_t)END_MS);
  rt_rendezvous_end(me);
}

/* The rendezvous is of another version than this rank: that ends it for the ranks that wait there, too. */
static void refuse_version(const struct rt_boot_id *id, struct rt_rendezvous_rank *me) {
  me->secret = id->secret;
  me->own.in.sin_family = AF_INET;
  me->timeout_ms = RAIL_MIN(me->timeout_ms, (uint64_t)END_MS);
  rt_rendezvous_end(me);
  rt_error(RAIL_BAD_USAGE,
           "bootstrap: rank %d: the unique id is of version %d of the bootstrap protocol, this rank speaks version %d; "
           "install one version of librailyard on all ranks",
           me->rank, id->version, RT_BOOT_VERSION);
}

rail_result_t rt_bootstrap_open(const char id[RT_UNIQUE_ID_BYTES], const struct rt_bootstrap_args *args,
                                struct rt_bootstrap **out) {
  struct rt_boot_id parsed;
  struct rt_bootstrap *b;
  struct rt_rendezvous_rank me = {
      .rank = args->rank, .nranks = args->nranks, .timeout_ms = args->timeout_ms, .abort_flag = args->abort_flag};
  *out = NULL;
  rail_result_t result = id_unpack(id, &parsed, &me.root);
  if (result == RAIL_BAD_USAGE) refuse_version(&parsed, &me);
  RAIL_TRY(result);
  RAIL_TRY(boot_new(args, &b));
  me.secret = parsed.secret;
  me.well_known = parsed.well_known;
  result = boot_listen(b, me.well_known ? &me.root : NULL, &me.own);
  if (result != RAIL_OK) goto failed;
  if (b->nranks == 1) {
    end_rendezvous(&me, args->timeout_ms);
  } else {
    if (me.well_known && b->rank == 0) result = open_rendezvous(&parsed, me.root, args);
    if (result == RAIL_OK) result = rt_rendezvous_join(&me, b->addrs, b->secret);
    if (result == RAIL_OK) result = connect_ring(b);
    if (result != RAIL_OK) goto failed;
  }
  *out = b;
  return RAIL_OK;

failed:
  abort_open(b, result);
  return result;
}

void rt_unique_id_drop(const char id[RT_UNIQUE_ID_BYTES]) {
  struct rt_boot_id parsed;
  struct rt_rendezvous_rank me = {.rank = 0, .nranks = 1, .own.in.sin_family = AF_INET};
  if (id_unpack(id, &parsed, &me.root) != RAIL_OK) return;
  me.secret = parsed.secret;
  me.well_known = parsed.well_known;
  end_rendezvous(&me, END_MS);
}

bool rt_unique_id_waits(const char id[RT_UNIQUE_ID_BYTES]) {
  struct rt_boot_id parsed;
  union rail_addr root;
  return id_unpack(id, &parsed, &root) == RAIL_OK && rt_rendezvous_runs(parsed.secret);
}

void rt_unique_id_cancel(const char id[RT_UNIQUE_ID_BYTES], const char *why) {
  struct rt_boot_id parsed;
  union rail_addr root;
  if (id_unpack(id, &parsed, &root) == RAIL_OK) rt_rendezvous_cancel(parsed.secret, why);
}

/* ---- split, shrink ---- */

/* A new group among a parent's ranks: their ranks there, and how they exchange messages there. */
struct split {
  struct rt_bootstrap *parent;
  const int *ranks;
  uint32_t tag;
  bool ignore_failure;
};

/* New rank 0 collects the addresses and sends the table to the others: the secret, then nranks addresses. */
static rail_result_t exchange_addresses(struct rt_bootstrap *b, const struct split *split, const union rail_addr *own,
                                        unsigned char *table, size_t size) {
  struct rt_bootstrap *parent = split->parent;
  const int *ranks = split->ranks;
  struct rt_boot_limits limits = {.deadline = rail_deadline_in_ms(b->args.timeout_ms),
                                  .abort_flag = b->args.abort_flag,
                                  .ignore_failure = split->ignore_failure};
  struct rail_addr_wire wire;
  rail_addr_pack(own, &wire);
  if (b->rank != 0) {
    RAIL_TRY(rt_boot_send(parent, RT_BOOT_SPLIT, ranks[0], split->tag, &wire, sizeof wire, &limits));
    RAIL_TRY(rt_boot_recv(parent, RT_BOOT_SPLIT, ranks[0], split->tag, table, size, &limits));
  } else {
    RAIL_TRY(rail_random_bytes(table, RT_SECRET_BYTES));
    memcpy(table + RT_SECRET_BYTES, &wire, sizeof wire);
    for (int i = 1; i < b->nranks; i++)
      RAIL_TRY(rt_boot_recv(parent, RT_BOOT_SPLIT, ranks[i], split->tag,
                            table + RT_SECRET_BYTES + (size_t)i * sizeof wire, sizeof wire, &limits));
    for (int i = 1; i < b->nranks; i++)
      RAIL_TRY(rt_boot_send(parent, RT_BOOT_SPLIT, ranks[i], split->tag, table, size, &limits));
  }
  memcpy(b->secret, table, RT_SECRET_BYTES);
  for (int i = 0; i < b->nranks; i++) {
    memcpy(&wire, table + RT_SECRET_BYTES + (size_t)i * sizeof wire, sizeof wire);
    if (!rail_addr_unpack(&wire, &b->addrs[i])) {
      rt_error(RAIL_REMOTE_ERROR, "bootstrap: rank %d: no valid address for rank %d in the new communicator's table",
               b->rank, i);
      return RAIL_REMOTE_ERROR;
    }
  }
  return RAIL_OK;
}

static rail_result_t open_split(const struct split *split, const struct rt_bootstrap_args *args,
                                struct rt_bootstrap **out) {
  struct rt_bootstrap *parent = split->parent, *b;
  const int *ranks = split->ranks;
  union rail_addr own;
  unsigned char *table = NULL;
  *out = NULL;
  RAIL_TRY(boot_new(args, &b));
  rail_result_t result = RAIL_OK;
  for (int i = 0; i < b->nranks; i++)
    if (ranks[i] < 0 || ranks[i] >= parent->nranks) result = RAIL_BAD_ARGUMENT;
  if (result != RAIL_OK || ranks[b->rank] != parent->rank) {
    rt_error(RAIL_BAD_ARGUMENT,
             "bootstrap: rank %d of a new communicator of %d is not rank %d of its parent, or a rank is out of range",
             b->rank, b->nranks, parent->rank);
    result = RAIL_BAD_ARGUMENT;
    goto failed;
  }
  if (b->nranks > 1) {
    size_t size = RT_SECRET_BYTES + (size_t)b->nranks * sizeof(struct rail_addr_wire);
    table = calloc(1, size);
    result = table ? boot_listen(b, &parent->addrs[parent->rank], &own) : RAIL_SYSTEM_ERROR;
    if (result == RAIL_OK) result = exchange_addresses(b, split, &own, table, size);
    if (result == RAIL_OK) result = connect_ring(b);
    if (result != RAIL_OK) goto failed;
  }
  free(table);
  *out = b;
  return RAIL_OK;

failed:
  free(table);
  abort_open(b, result);
  return result;
}

rail_result_t rt_bootstrap_split(struct rt_bootstrap *parent, const int *ranks, uint32_t serial,
                                 const struct rt_bootstrap_args *args, struct rt_bootstrap **out) {
  struct split split = {.parent = parent, .ranks = ranks, .tag = serial & ~SHRINK_TAG};
  return open_split(&split, args, out);
}

/* Excluded ranks do not take part in numbering shrinks, so the tag is computed from the ranks that do. */
rail_result_t rt_bootstrap_shrink(struct rt_bootstrap *parent, const int *ranks, const struct rt_bootstrap_args *args,
                                  struct rt_bootstrap **out) {
  uint32_t hash = 2166136261u;
  for (int i = 0; i < args->nranks; i++) hash = (hash ^ (uint32_t)ranks[i]) * 16777619u;
  struct split split = {.parent = parent, .ranks = ranks, .tag = hash | SHRINK_TAG, .ignore_failure = true};
  return open_split(&split, args, out);
}

/* ---- abort ---- */

void rt_bootstrap_abort(struct rt_bootstrap *b, rail_result_t result, const char *why) {
  if (!b) return;
  pthread_mutex_lock(&b->lock);
  if (atomic_load(&b->failed) == 0 && !b->closing) {
    if (b->nranks > 1 && b->thread_started)
      snprintf(b->why, sizeof b->why, "rank %d (%s) aborted: %.300s", b->rank, rt_bootstrap_peer_text(b, b->rank),
               why ? why : rail_result_name((int)result));
    else
      snprintf(b->why, sizeof b->why, "rank %d aborted: %.300s", b->rank, why ? why : "");
    b->origin = b->rank;
    b->aborted_here = true;
    if (result <= RAIL_OK || result >= RAIL_IN_PROGRESS) result = RAIL_REMOTE_ERROR;
    atomic_store_explicit(&b->failed, (int)result, memory_order_release);
    pthread_cond_broadcast(&b->cond);
  }
  pthread_mutex_unlock(&b->lock);
  rt_boot_thread_wake(b);
}

rail_result_t rt_bootstrap_failure(struct rt_bootstrap *b, char *why, size_t cap) {
  pthread_mutex_lock(&b->lock);
  rail_result_t result = (rail_result_t)atomic_load(&b->failed);
  if (cap) snprintf(why, cap, "%s", b->why);
  pthread_mutex_unlock(&b->lock);
  return result;
}
