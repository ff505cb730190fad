/* SPDX-License-Identifier: Apache-2.0
 *
 * The accepting side of the handshake. Any number of connections may be half
 * open behind one listener; each call looks once at those that have news, so
 * a stranger that says nothing or nonsense costs a place in a table and, at
 * the end, one line in the log. Streams are sorted into groups by the
 * connector's comm id; the first complete group is the peer of this call.
 */
#include <errno.h>
#include <netinet/ip.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "plugin/socket/sk_close.h"
#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_listen.h"
#include "plugin/socket/sk_param.h"

#define MAX_STRANGERS 1024
#define MAX_GROUPS 4096
#define ACCEPTS_AT_ONCE 32
#define LINE_EVERY_MS 1000

/* ---- strangers -------------------------------------------------------- */

/* One line, at most one a second. */
static void log_dropped(struct sk_listen *l, const union rail_addr *peer, const char *why) {
  char from[RAIL_ADDR_TEXT], others[48] = "";
  uint64_t now = rail_now_ns();
  if (now < l->next_line) {
    l->unlogged++;
    return;
  }
  if (l->unlogged) snprintf(others, sizeof others, " (and %u others since the last line)", l->unlogged);
  RAIL_WARN("RailSocket: accept on %s: dropped a connection from %s: %s; still listening%s", l->device->name,
            rail_addr_text(peer, from), why, others);
  l->next_line = now + LINE_EVERY_MS * 1000000ull;
  l->unlogged = 0;
}

/* Best effort: a fresh socket takes 24 bytes, and reading first what came
 * keeps the close from resetting the connection before they are seen. */
static void refuse(int *fd, enum sk_reason reason, unsigned int stream) {
  struct sk_answer_wire answer;
  uint8_t scratch[512];
  size_t done = 0, n;
  sk_answer_encode(reason, stream, 0, &answer);
  (void)rail_sock_send_some(*fd, &answer, sizeof answer, &done);
  shutdown(*fd, SHUT_WR);
  (void)rail_sock_recvv(*fd, &(struct iovec){.iov_base = scratch, .iov_len = sizeof scratch}, 1, &n);
  rail_sock_close(fd);
}

/* Takes a stranger out of the table, keeping the order of age. The socket is the caller's. */
static void remove_stranger(struct sk_listen *l, uint32_t i) {
  memmove(&l->strangers[i], &l->strangers[i + 1], (l->nstrangers - i - 1) * sizeof l->strangers[0]);
  memmove(&l->polls[i + 1], &l->polls[i + 2], (l->nstrangers - i - 1) * sizeof l->polls[0]);
  l->nstrangers--;
}

static void drop_stranger(struct sk_listen *l, uint32_t i, enum sk_reason reason, const char *why) {
  log_dropped(l, &l->strangers[i].peer, why);
  if (reason == SK_REASON_NONE || reason == SK_REASON_GARBAGE) rail_sock_close(&l->polls[i + 1].fd);
  else refuse(&l->polls[i + 1].fd, reason, le16toh(l->strangers[i].hello.stream));
  remove_stranger(l, i);
}

static bool grow(struct sk_listen *l) {
  uint32_t cap = RAIL_MIN(2 * l->cap, MAX_STRANGERS);
  struct pollfd *polls = realloc(l->polls, (cap + 1) * sizeof *polls);
  if (polls) l->polls = polls;
  struct sk_stranger *strangers = polls ? realloc(l->strangers, cap * sizeof *strangers) : NULL;
  if (!strangers) return false;
  l->strangers = strangers;
  l->cap = cap;
  return true;
}

/* Full: the oldest that has said nothing goes, else the oldest. */
static void make_room(struct sk_listen *l) {
  uint32_t victim = 0;
  for (uint32_t i = 0; i < l->nstrangers; i++) {
    if (l->strangers[i].have) continue;
    victim = i;
    break;
  }
  drop_stranger(l, victim, SK_REASON_NONE, "too many half-open connections, and this one was silent longest");
}

static rail_result_t take_new(struct sk_listen *l) {
  for (int n = 0; n < ACCEPTS_AT_ONCE; n++) {
    union rail_addr peer;
    int fd;
    rail_result_t result = rail_sock_accept(l->fd, &fd, &peer);
    if (result == RAIL_IN_PROGRESS) break;
    if (result != RAIL_OK) {
      /* Out of descriptors: those behind the listener wait; it may pass. */
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
        if (!l->accept_failed)
          RAIL_WARN("RailSocket: accept on %s: %s; raise the limit of open files (ulimit -n); trying again",
                    l->device->name, strerror(errno));
        l->accept_failed = true;
        break;
      }
      RAIL_WARN("RailSocket: accept on %s: %s", l->device->name, strerror(errno));
      return result;
    }
    l->accept_failed = false;
    if (l->nstrangers == l->cap && (l->cap == MAX_STRANGERS || !grow(l))) make_room(l);
    l->strangers[l->nstrangers] = (struct sk_stranger){
      .peer = peer, .deadline = rail_deadline_in_ms((uint64_t)sk_params.handshake_ms)};
    /* Most real peers have said HELLO before we look: no poll needed to find out. */
    l->polls[l->nstrangers + 1] = (struct pollfd){.fd = fd, .events = POLLIN, .revents = POLLIN};
    l->nstrangers++;
  }
  return RAIL_OK;
}

/* ---- groups ----------------------------------------------------------- */

static void free_group(struct sk_group **at) {
  struct sk_group *g = *at;
  *at = g->next;
  for (unsigned int i = 0; i < g->streams; i++) rail_sock_close(&g->fds[i]);
  free(g);
}

static struct sk_group *group_of(struct sk_listen *l, const struct sk_hello *hello, const union rail_addr *peer) {
  struct sk_group **at = &l->groups;
  unsigned int n = 0;
  for (; *at; at = &(*at)->next, n++)
    if (memcmp((*at)->comm_id, hello->comm_id, sizeof hello->comm_id) == 0) return *at;
  struct sk_group *g = n < MAX_GROUPS ? calloc(1, sizeof *g) : NULL;
  if (!g) return NULL;
  memcpy(g->comm_id, hello->comm_id, sizeof g->comm_id);
  g->peer = *peer;
  g->deadline = rail_deadline_in_ms((uint64_t)sk_params.handshake_ms);
  g->eager_size = hello->eager_size;
  g->eager_count = hello->eager_count;
  g->eager_bytes = hello->eager_bytes;
  g->features = hello->features & SK_FEATURE_FAILOVER;
  g->streams = hello->streams;
  for (unsigned int i = 0; i < g->streams; i++) g->fds[i] = -1;
  *at = g;
  return g;
}

/* A whole HELLO is here: into its group, or out. */
static void judge(struct sk_listen *l, uint32_t i) {
  struct sk_stranger *s = &l->strangers[i];
  struct sk_hello hello;
  char why[96];
  enum sk_reason reason = sk_hello_decode(&s->hello, &l->handle, &hello);
  if (reason == SK_REASON_NONE) {
    struct sk_group *g = group_of(l, &hello, &s->peer);
    if (!g) reason = SK_REASON_BUSY;
    else if (g->streams != hello.streams) reason = SK_REASON_STREAMS;
    else if (g->fds[hello.stream] >= 0) reason = SK_REASON_DUPLICATE;
    else if (g->eager_size != hello.eager_size || g->eager_count != hello.eager_count ||
             g->eager_bytes != hello.eager_bytes)
      reason = SK_REASON_EAGER;
    if (reason == SK_REASON_NONE) {
      g->fds[hello.stream] = l->polls[i + 1].fd;
      g->have++;
      RAIL_TRACE(RAIL_SUB_NET, "RailSocket: accept %p: stream %u, %u of %u", (void *)l, hello.stream, g->have,
                 g->streams);
      remove_stranger(l, i);
      return;
    }
  }
  if (reason == SK_REASON_VERSION)
    snprintf(why, sizeof why, "%s (%u, ours %d)", sk_reason_text(reason), hello.version, SK_WIRE_VERSION);
  else snprintf(why, sizeof why, "%s", sk_reason_text(reason));
  drop_stranger(l, i, reason, why);
}

/* True when the stranger left the table. */
static bool hear(struct sk_listen *l, uint32_t i) {
  struct sk_stranger *s = &l->strangers[i];
  rail_result_t result = rail_sock_recv_some(l->polls[i + 1].fd, &s->hello, sizeof s->hello, &s->have);
  if (result == RAIL_OK) {
    judge(l, i);
    return true;
  }
  if (!sk_hello_plausible(&s->hello, s->have)) {
    drop_stranger(l, i, SK_REASON_GARBAGE, sk_reason_text(SK_REASON_GARBAGE));
    return true;
  }
  /* Another version's HELLO may be shorter than ours, and its sender waits for an answer. */
  if (s->have >= 8 && le16toh(s->hello.version) != SK_WIRE_VERSION) {
    char why[96];
    snprintf(why, sizeof why, "%s (%u, ours %d)", sk_reason_text(SK_REASON_VERSION), le16toh(s->hello.version),
             SK_WIRE_VERSION);
    drop_stranger(l, i, SK_REASON_VERSION, why);
    return true;
  }
  if (result != RAIL_IN_PROGRESS) {
    drop_stranger(l, i, SK_REASON_NONE, "it closed the connection before a whole hello");
    return true;
  }
  return false;
}

/* After the reading, so that what had arrived in time counts. */
static void expire(struct sk_listen *l) {
  uint64_t now = rail_now_ns();
  while (l->nstrangers && now >= l->strangers[0].deadline)
    drop_stranger(l, 0, SK_REASON_NONE, l->strangers[0].have ? "it said only part of a hello within the time limit"
                                                             : "it said nothing within the time limit");
  for (struct sk_group **at = &l->groups; *at;) {
    struct sk_group *g = *at;
    if (g->have == g->streams || now < g->deadline) {
      at = &g->next;
      continue;
    }
    log_dropped(l, &g->peer, "not all of its streams arrived within the time limit");
    for (unsigned int i = 0; i < g->streams; i++)
      if (g->fds[i] >= 0) refuse(&g->fds[i], SK_REASON_TIMEOUT, i);
    free_group(at);
  }
}

/* ---- the call --------------------------------------------------------- */

static void set_traffic_class(const struct sk_listen *l, int fd) {
  int tos = l->ctx->traffic_class & 0xff;
  if (l->ctx->traffic_class < 0) return;
  if (l->addr.sa.sa_family == AF_INET) (void)setsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof tos);
  else (void)setsockopt(fd, IPPROTO_IPV6, IPV6_TCLASS, &tos, sizeof tos);
}

/* Welcomes the group's streams; false if the peer is gone already. */
static bool welcome(struct sk_listen *l, struct sk_group *g) {
  struct sk_answer_wire answer;
  for (unsigned int i = 0; i < g->streams; i++) {
    size_t done = 0;
    sk_answer_encode(SK_REASON_NONE, i, g->features, &answer);
    if (rail_sock_send_some(g->fds[i], &answer, sizeof answer, &done) != RAIL_OK) return false;
    set_traffic_class(l, g->fds[i]);
  }
  return true;
}

static rail_result_t hand_out(struct sk_listen *l, void **recv_comm) {
  for (struct sk_group **at = &l->groups; *at;) {
    struct sk_group *g = *at;
    if (g->have < g->streams) {
      at = &g->next;
      continue;
    }
    if (!welcome(l, g)) {
      log_dropped(l, &g->peer, "it went away before it was accepted");
      free_group(at);
      continue;
    }
    struct sk_comm_args args = {.side = SK_RECEIVER,
                                .dev = l->dev,
                                .device = l->device,
                                .ctx = l->ctx,
                                .nstreams = g->streams,
                                .eager_size = g->eager_size,
                                .eager_count = g->eager_count,
                                .eager_bytes = g->eager_bytes,
                                .features = g->features};
    memcpy(args.comm_id, g->comm_id, sizeof args.comm_id);
    for (unsigned int i = 0; i < g->streams; i++) {
      args.paths[i] = l->device;
      args.peers[i] = g->peer;
      args.fds[i] = g->fds[i]; /* the comm's from here on */
      g->fds[i] = -1;
    }
    free_group(at);
    return sk_recv_create(&args, recv_comm);
  }
  return RAIL_OK;
}

rail_result_t sk_accept(void *listen_comm, void **recv_comm) {
  struct sk_listen *l = listen_comm;
  if (!recv_comm || !l || l->magic != SK_LISTEN_MAGIC) {
    RAIL_WARN("RailSocket: accept: listenComm %p, recvComm %p; allowed: an open listener, and not NULL", listen_comm,
              (void *)recv_comm);
    return RAIL_BAD_ARGUMENT;
  }
  *recv_comm = NULL;
  sk_close_reap();
  if (poll(l->polls, l->nstrangers + 1, 0) < 0 && errno != EINTR) {
    RAIL_WARN("RailSocket: accept on %s: poll: %s", l->device->name, strerror(errno));
    return RAIL_SYSTEM_ERROR;
  }
  if (l->polls[0].revents) RAIL_TRY(take_new(l));
  for (uint32_t i = 0; i < l->nstrangers;)
    if (!l->polls[i + 1].revents || !hear(l, i)) i++;
  expire(l);
  return hand_out(l, recv_comm);
}
