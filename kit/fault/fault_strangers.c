/* SPDX-License-Identifier: Apache-2.0
 * Clients that nobody asked for. */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/fault/fault_hand.h"
#include "kit/fault/fault_plan.h"

enum { MOST = 4000, TURN_US = 2000, FLOOD_PIECE = 65536 };

struct stranger {
  int fd; /* -1: none */
  bool in;
  bool spoke;
};

static struct stranger crowd[MOST];

static int dial(const struct kit_hand_order *o, struct kit_rng *rng) {
  int which = (int)kit_rng_below(rng, (uint32_t)o->nports);
  const struct sockaddr *addr = (const struct sockaddr *)&o->port[which].addr;
  int fd = socket(addr->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, addr, o->port[which].size) != 0 && errno != EINPROGRESS) {
    close(fd);
    fd = -1;
  }
  return fd;
}

static bool is_in(int fd) {
  struct sockaddr_storage peer;
  socklen_t size = sizeof peer;
  return getpeername(fd, (struct sockaddr *)&peer, &size) == 0;
}

/* What begins like something, and what does not. */
static size_t words(uint8_t *text, size_t room, struct kit_rng *rng) {
  static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  static const char tls[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc";
  size_t n = 1 + kit_rng_below(rng, (uint32_t)room - 1);
  switch (kit_rng_below(rng, 5)) {
  case 0: n = sizeof http - 1; memcpy(text, http, n); break;
  case 1: n = sizeof tls - 1; memcpy(text, tls, n); break;
  case 2: memset(text, 0, n); break;
  case 3: memset(text, 0xff, n); break;
  default:
    for (size_t i = 0; i < n; i++) text[i] = (uint8_t)kit_rng_next(rng);
  }
  return n;
}

static void leave(struct stranger *s, bool reset) {
  struct linger now = {.l_onoff = 1, .l_linger = 0};
  if (reset) setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(s->fd);
  *s = (struct stranger){.fd = -1};
}

/* A flood ends when the other side has thrown it out; everybody else speaks once. */
static void speak(struct stranger *s, enum kit_strangers kind, struct kit_rng *rng) {
  static uint8_t text[FLOOD_PIECE];
  if (kind == KIT_STRANGERS_SILENT || (s->spoke && kind != KIT_STRANGERS_FLOOD)) return;
  size_t n = words(text, 400, rng);
  if (kind == KIT_STRANGERS_FLOOD) n = sizeof text;
  if (send(s->fd, text, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) leave(s, false);
  else s->spoke = true;
}

static void one(struct stranger *s, const struct kit_hand_order *o, enum kit_strangers kind, struct kit_rng *rng,
                _Atomic int32_t *came) {
  if (s->fd < 0) s->fd = dial(o, rng);
  if (s->fd < 0) return;
  if (!s->in && is_in(s->fd)) {
    s->in = true;
    atomic_fetch_add(came, 1);
  }
  if (!s->in) return;
  if (kind == KIT_STRANGERS_RESET) {
    if (kit_rng_below(rng, 2)) speak(s, kind, rng);
    if (s->fd >= 0) leave(s, true);
  } else if (kind == KIT_STRANGERS_CROWD) { /* of each kind some */
    speak(s, (enum kit_strangers)((s - crowd) % KIT_STRANGERS_RESET), rng);
    if (s->fd >= 0 && kit_rng_below(rng, 200) == 0) leave(s, kit_rng_below(rng, 2));
  } else {
    speak(s, kind, rng);
  }
}

void kit_strangers_play(const struct kit_hand_order *o, _Atomic int32_t *came) {
  struct kit_rng rng = {o->seed};
  uint64_t end = rail_deadline_in_ms(o->last_ms);
  struct rlimit files;
  size_t n = o->count < MOST ? (size_t)o->count : MOST;
  if (o->nports == 0) return;
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  for (size_t i = 0; i < n; i++) crowd[i] = (struct stranger){.fd = -1};
  do {
    for (size_t i = 0; i < n; i++) one(&crowd[i], o, (enum kit_strangers)o->how, &rng, came);
  } while (!rail_deadline_passed(end) && !kit_hand_called(TURN_US));
  for (size_t i = 0; i < n; i++)
    if (crowd[i].fd >= 0) leave(&crowd[i], false);
}
