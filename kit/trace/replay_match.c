/* SPDX-License-Identifier: Apache-2.0
 * Which ends belong together, which message goes where, and what is in it. */
#include <stdlib.h>
#include <string.h>

#include "common/base/compiler.h"
#include "kit/trace/replay_plan.h"

#define LOOK_AHEAD 1024 /* slots among which a message's is looked for */

struct end {
  int file;
  uint32_t comm;
  const struct replay_comm *c;
};

static int by_handle(const void *a, const void *b) {
  const struct end *x = a, *y = b;
  int r = memcmp(x->c->handle, y->c->handle, sizeof x->c->handle);
  if (r) return r;
  return (x->c->order_ns > y->c->order_ns) - (x->c->order_ns < y->c->order_ns);
}

static size_t ends_of(struct replay_plan *p, enum rail_trace_kind made_by, struct end *ends) {
  size_t n = 0;
  for (int f = 0; f < p->nfiles; f++)
    for (size_t i = 0; i < p->files[f].ncomms; i++)
      if (p->files[f].comms[i].made_by == made_by)
        ends[n++] = (struct end){f, (uint32_t)i, &p->files[f].comms[i]};
  qsort(ends, n, sizeof *ends, by_handle);
  return n;
}

/* The k-th connect to a handle belongs to the k-th accept of it. */
static bool pair_ends(struct replay_plan *p) {
  size_t all = 0;
  for (int f = 0; f < p->nfiles; f++) all += p->files[f].ncomms;
  struct end *sends = calloc(all + 1, sizeof *sends), *recvs = calloc(all + 1, sizeof *recvs);
  bool ok = sends && recvs;
  size_t ns = ok ? ends_of(p, RAIL_TRACE_CONNECT, sends) : 0, nr = ok ? ends_of(p, RAIL_TRACE_ACCEPT, recvs) : 0;
  for (size_t s = 0, r = 0; s < ns && r < nr;) {
    int order = memcmp(sends[s].c->handle, recvs[r].c->handle, sizeof sends[s].c->handle);
    if (order == 0) { /* sorted in the same way: the k-th meets the k-th */
      struct replay_comm *a = &p->files[sends[s].file].comms[sends[s].comm];
      struct replay_comm *b = &p->files[recvs[r].file].comms[recvs[r].comm];
      a->peer_file = recvs[r].file;
      a->peer = recvs[r].comm;
      b->peer_file = sends[s].file;
      b->peer = sends[s].comm;
    }
    s += order <= 0;
    r += order >= 0;
  }
  free(sends);
  free(recvs);
  return ok;
}

/* A message goes to the first free buffer of its tag in the first receive that has any free; a receive of one buffer
 * takes what comes. Should the tags of the first not have it, the message is for a later one. */
static void match_messages(struct replay_comm *send, struct replay_comm *recv) {
  size_t first = 0; /* first slot that is free */
  for (size_t m = 0; m < send->nmsgs; m++) {
    while (first < recv->nslots && recv->slots[first].msg != REPLAY_NONE) first++;
    for (size_t i = first; i < recv->nslots && i < first + LOOK_AHEAD; i++) {
      struct replay_slot *s = &recv->slots[i];
      if (s->msg != REPLAY_NONE || s->tag != send->msgs[m].tag) continue;
      s->msg = (uint32_t)m;
      send->msgs[m].matched = true;
      break;
    }
  }
}

bool replay_match(struct replay_plan *p) {
  struct replay_file *own = &p->files[p->own];
  if (!pair_ends(p)) return false;
  for (size_t i = 0; i < own->ncomms; i++) {
    struct replay_comm *c = &own->comms[i];
    if (c->peer_file < 0) continue;
    struct replay_comm *peer = &p->files[c->peer_file].comms[c->peer];
    bool sends = c->made_by == RAIL_TRACE_CONNECT;
    if (!sends && peer->paired) continue; /* both ends in this file: done from the sender's side */
    c->paired = true;
    match_messages(sends ? c : peer, sends ? peer : c);
  }
  for (size_t i = 0; i < own->ncomms; i++) {
    const struct replay_comm *c = &own->comms[i];
    for (size_t m = 0; m < c->nmsgs; m++) {
      p->unmatched += !c->msgs[m].matched;
      p->unknown += c->msgs[m].text == REPLAY_NONE;
    }
    for (size_t s = 0; s < c->nslots; s++) p->unmatched += c->slots[s].msg == REPLAY_NONE;
  }
  return true;
}
