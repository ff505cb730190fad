/* SPDX-License-Identifier: Apache-2.0
 * The connection of two hosts: how it is made, what both must agree on, frames over it; what a launcher says of it. */
#include "kit/kit_link.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/sock.h"
#include "kit/kit_group_impl.h"
#include "rail/version.h"

#define PORT 27001      /* where no port is given */
#define HELLO_MS 1000   /* that a client has for its hello: others wait behind it */
#define RETRY_US 200000 /* while the other host does not listen yet */
#define SILENT_S 30     /* a host, or a network, that does not answer for so long is lost */
#define PROBE_S 5       /* between questions to a silent one */

struct kit_link {
  int fd;
  bool lost;
  struct kit_queue out;
  struct kit_frame in;
  size_t have; /* bytes of it */
};

/* First on the wire, both ways. Frames cross as they lie in memory, so all of it must agree. */
struct hello {
  char magic[8], version[24];
  uint32_t order, frame_kinds, job_size, frame_size;
};
static const struct hello mine = {{'R', 'A', 'I', 'L', '-', 'K', 'I', 'T'}, RAIL_VERSION, 0x01020304, KIT_FRAME_KINDS,
                                  sizeof(struct kit_job), sizeof(struct kit_frame)};

/* TCP alone would wait for hours, and without an end where nothing is to be sent. */
static void notice_silence(int fd) {
  int on = 1, probe_s = PROBE_S, probes = SILENT_S / PROBE_S - 1;
  unsigned int silent_ms = SILENT_S * 1000;
  (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &probe_s, sizeof probe_s);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &probe_s, sizeof probe_s);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof silent_ms);
}

/* *again: the connection broke, or nothing came over it; another try may do better. */
static struct kit_link *exchange_hello(int fd, uint64_t deadline, bool *again, char *why, size_t why_size) {
  struct hello theirs;
  *again = false;
  if (rail_sock_send_all(fd, &mine, sizeof mine, deadline, NULL) != RAIL_OK ||
      rail_sock_recv_all(fd, &theirs, sizeof theirs, deadline, NULL) != RAIL_OK) {
    snprintf(why, why_size, "the other end does not answer as rail-kit does: %s", strerror(errno));
    *again = true;
  } else if (memcmp(&theirs, &mine, sizeof mine) != 0) {
    if (memcmp(theirs.magic, mine.magic, sizeof mine.magic) != 0)
      snprintf(why, why_size, "the other end is not rail-kit");
    else
      snprintf(why, why_size, "the other end is rail-kit %.*s of another build, this one %s; both hosts need the same",
               (int)strnlen(theirs.version, sizeof theirs.version), theirs.version, mine.version);
  } else {
    struct kit_link *link = calloc(1, sizeof *link);
    if (link) {
      notice_silence(fd);
      link->fd = fd;
      return link;
    }
    snprintf(why, why_size, "out of memory");
  }
  close(fd);
  return NULL;
}

/* "[ADDR:]PORT" or "HOST[:PORT]". */
static bool parse(const char *where, bool listens, union rail_addr *addr, char *why, size_t why_size) {
  char text[300];
  bool number = *where && strspn(where, "0123456789") == strlen(where);
  if (number && listens) snprintf(text, sizeof text, "0.0.0.0:%s", where);
  else if (strchr(where, ':')) snprintf(text, sizeof text, "%s", where);
  else snprintf(text, sizeof text, "%s:%d", *where ? where : "0.0.0.0", PORT);
  if (rail_addr_parse(text, addr) == RAIL_OK) return true;
  snprintf(why, why_size, "'%s' is no address: HOST:PORT%s", where, listens ? " or PORT" : " or HOST");
  return false;
}

struct kit_link *kit_link_listen(const char *where, unsigned seconds, char *why, size_t why_size) {
  union rail_addr addr, peer;
  char text[RAIL_ADDR_TEXT];
  uint64_t deadline = seconds ? rail_deadline_in_ms(seconds * 1000ull) : 0;
  int listen_fd = -1, fd = -1;
  if (!parse(where, true, &addr, why, why_size)) return NULL;
  if (rail_sock_listen(&addr, 4, &listen_fd) != RAIL_OK) {
    snprintf(why, why_size, "cannot listen on %s: %s", rail_addr_text(&addr, text), strerror(errno));
    return NULL;
  }
  fprintf(stderr, "rail-kit: waiting on %s for the other host\n", rail_addr_text(&addr, text));
  struct kit_link *link = NULL;
  while (!link && rail_sock_accept_all(listen_fd, deadline, NULL, &fd, &peer) == RAIL_OK) {
    bool again;
    link = exchange_hello(fd, rail_deadline_in_ms(HELLO_MS), &again, why, why_size);
    if (!link) fprintf(stderr, "rail-kit: %s: %s\n", rail_addr_text(&peer, text), why);
  }
  if (!link) snprintf(why, why_size, "no rail-kit has come to %s within %u s", rail_addr_text(&addr, text), seconds);
  close(listen_fd);
  return link;
}

struct kit_link *kit_link_connect(const char *where, unsigned seconds, char *why, size_t why_size) {
  union rail_addr addr;
  uint64_t deadline = rail_deadline_in_ms((seconds ? seconds : 30) * 1000ull);
  int fd = -1;
  if (!parse(where, false, &addr, why, why_size)) return NULL;
  for (;; usleep(RETRY_US)) {
    bool again = true;
    struct kit_link *link = NULL;
    if (rail_sock_connect_all(&addr, NULL, deadline, NULL, &fd) == RAIL_OK)
      link = exchange_hello(fd, deadline, &again, why, why_size);
    else
      snprintf(why, why_size, "no rail-kit --listen answers at %s: %s", where, strerror(errno));
    if (link || !again || rail_deadline_passed(deadline)) return link;
  }
}

void kit_link_close(struct kit_link *link) {
  const struct kit_frame bye = {.kind = KIT_FRAME_BYE, .from = KIT_PARENT, .to = KIT_PARENT};
  if (!link) return;
  kit_link_send(link, &bye);
  for (int i = 0; i < 100 && !kit_link_flush(link); i++) usleep(10000);
  close(link->fd);
  kit_queue_free(&link->out);
  free(link);
}

int kit_link_fd(const struct kit_link *link) { return link->fd; }

bool kit_link_lost(const struct kit_link *link) { return link && link->lost; }

void kit_link_abandon(struct kit_link *link) { link->lost = true; }

static int receive(struct kit_link *link, struct kit_frame *f) {
  for (;;) {
    size_t want = link->have < KIT_FRAME_HEAD ? KIT_FRAME_HEAD : KIT_FRAME_HEAD + link->in.size;
    if (link->have == want && want >= KIT_FRAME_HEAD && link->have >= KIT_FRAME_HEAD) {
      memcpy(f, &link->in, want);
      link->have = 0;
      return 1;
    }
    ssize_t n = recv(link->fd, (char *)&link->in + link->have, want - link->have, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return link->lost ? -1 : 0;
    if (n <= 0) return -1;
    bool head_now = link->have < KIT_FRAME_HEAD && link->have + (size_t)n >= KIT_FRAME_HEAD;
    link->have += (size_t)n;
    if (head_now && (link->in.size > KIT_FRAME_ROOM || link->in.kind >= KIT_FRAME_KINDS)) return -1;
  }
}

void kit_link_send(struct kit_link *link, const struct kit_frame *f) {
  if (!link->lost && !kit_queue_add(&link->out, f)) link->lost = true;
  kit_link_flush(link);
}

bool kit_link_flush(struct kit_link *link) {
  struct kit_queue *q = &link->out;
  while (!link->lost && q->first < q->end) {
    ssize_t n = send(link->fd, q->data + q->first, q->end - q->first, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return false;
    if (n < 0) link->lost = true;
    else q->first += (size_t)n;
  }
  q->first = q->end = 0;
  return true;
}

int kit_link_receive(struct kit_link *link, struct kit_frame *f) {
  int got = receive(link, f);
  if (got < 0) link->lost = true;
  return got;
}

/* The value, and the name that has it. */
static const char *first_set(const char *const *names, const char **name) {
  for (; *names; names++) {
    if (!getenv(*names)) continue;
    if (name) *name = *names;
    return getenv(*names);
  }
  return NULL;
}

bool kit_link_launched(struct kit_launch *launch) {
  static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "RANK", NULL};
  static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE", NULL};
  const char *rank = first_set(ranks, &launch->name), *size = first_set(sizes, NULL);
  const char *host = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT");
  if (!rank || !size) return false;
  launch->rank = atoi(rank);
  launch->size = atoi(size);
  snprintf(launch->where, sizeof launch->where, "%s:%s", host ? host : "127.0.0.1", port ? port : "27001");
  return true;
}
