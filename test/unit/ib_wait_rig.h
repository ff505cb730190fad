/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections of the ib plugin whose tests may wait (RAIL_IB_PROGRESS), and calls with which it waits: ppoll is the
 * test's, and counts, returns at once, or waits until an event comes, so that a lost wake-up shows. */
#ifndef IB_WAIT_RIG_H
#define IB_WAIT_RIG_H

#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_param.h"
#include "plugin/ib/ib_progress.h"
#include "test/unit/ib_handshake.h"

enum { PAIRS = 3, BYTES = 512, MANY_TESTS = 2000 };

/* ---- what the plugin calls ------------------------------------------------------------------ */

static enum { SYSTEM, AT_ONCE, UNTIL_AN_EVENT } wait_how;
static atomic_int waits, woken, lost; /* lost: no event came */
static long switches = -1; /* of this thread, as getrusage tells; -1: the system's */

int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask) {
  const struct timespec long_time = {.tv_sec = (time_t)kit_patience_ms(TIMEOUT_MS) / 1000};
  struct timespec t;
  ENSURE(timeout && !timeout->tv_sec && timeout->tv_nsec <= 200000, "a wait is bounded");
  t = *timeout;
  if (wait_how == AT_ONCE) t.tv_nsec = 0;
  if (wait_how == UNTIL_AN_EVENT) t = long_time;
  int found = (int)syscall(SYS_ppoll, fds, n, &t, mask, sizeof(long));
  atomic_fetch_add(&waits, 1);
  if (found > 0) atomic_fetch_add(&woken, 1);
  else if (wait_how == UNTIL_AN_EVENT) atomic_fetch_add(&lost, 1);
  return found;
}

int getrusage(__rusage_who_t who, struct rusage *usage) {
  int err = (int)syscall(SYS_getrusage, who, usage);
  if (!err && switches >= 0) usage->ru_nivcsw = switches;
  return err;
}

/* ---- connections ------------------------------------------------------------------------------ */

struct end {
  struct ib_comm *comm;
  void *mh, *request;
  char data[BYTES];
};
struct pair { struct end s, r; };

static struct hs h;
static struct pair pairs[PAIRS];
static int npairs;

static void open_end(struct end *e, void *comm) {
  memset(e, 0, sizeof *e);
  e->comm = comm;
  ENSURE_INT(ib_reg_mr(comm, e->data, sizeof e->data, RAIL_PTR_HOST, &e->mh), 0);
}

static void close_end(struct end *e) {
  ENSURE_INT(ib_dereg_mr(e->comm, e->mh), 0);
  if (e->comm->sender) ENSURE_INT(ib_close_send(e->comm), 0);
  else ENSURE_INT(ib_close_recv(e->comm), 0);
}

static void open_over(int dev, enum ib_progress_kind kind, int n) {
  char fresh[RAIL_NET_HANDLE_SIZE];
  hs_begin(&h);
  wait_how = SYSTEM;
  switches = -1;
  atomic_store(&waits, 0);
  atomic_store(&woken, 0);
  atomic_store(&lost, 0);
  for (unsigned int i = 0; i < ib_hca_count(); i++) atomic_store(&ib_hca_at(i)->reported_polled, false);
  ib_params.progress = kind;
  hs_listen(&h, dev);
  memcpy(fresh, h.handle, sizeof fresh);
  for (npairs = 0; npairs < n; npairs++) {
    memcpy(h.handle, fresh, sizeof fresh);
    h.connect = h.accept = RAIL_IN_PROGRESS;
    hs_run(&h, dev);
    ENSURE(h.connect == RAIL_OK && h.accept == RAIL_OK, "connect %d, accept %d: %s", h.connect, h.accept, hs_lines);
    open_end(&pairs[npairs].s, h.sent);
    open_end(&pairs[npairs].r, h.received);
  }
}

static void close_all(void) {
  while (npairs > 0) {
    npairs--;
    close_end(&pairs[npairs].r);
    close_end(&pairs[npairs].s);
  }
  h.connect = h.accept = RAIL_IN_PROGRESS; /* hs_end closes none of them */
  hs_end(&h);
}

static void begin_recv(struct end *r) {
  void *data = r->data;
  size_t size = sizeof r->data;
  int tag = 7;
  ENSURE_INT(ib_irecv(r->comm, 1, &data, &size, &tag, &r->mh, NULL, &r->request), 0);
  ENSURE(r->request, "no request");
}

/* The CTS arrives by itself. */
static void begin_send(struct end *s) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  for (s->request = NULL; !s->request;) {
    ENSURE_INT(ib_isend(s->comm, s->data, sizeof s->data, 7, s->mh, NULL, &s->request), 0);
    ENSURE(!rail_deadline_passed(deadline), "no CTS comes");
  }
}

/* One test; is it done? */
static bool test_once(struct end *e) {
  int done = 0, size = -1;
  ENSURE_INT(ib_test(e->request, &done, &size), 0);
  if (done) ENSURE_INT(size, BYTES);
  return done;
}

static void finish(struct end *e) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!test_once(e)) ENSURE(!rail_deadline_passed(deadline), "it is never done");
}

/* What the receive that is begun waits for. */
static void send_one(struct pair *p) {
  memset(p->s.data, 0x20 + (int)(p - pairs), BYTES);
  begin_send(&p->s);
  finish(&p->s);
  finish(&p->r);
  ENSURE(memcmp(p->s.data, p->r.data, BYTES) == 0, "other bytes arrived");
}

static uint64_t counted(const struct end *e, enum ib_stats_comm counter) {
  return rail_stats_get(&e->comm->stats[counter]);
}

/* Tests that find nothing until so many have waited; false: that many of them did not. */
static bool test_until_waits(struct end *e, int n) {
  for (int i = 0; i < MANY_TESTS && atomic_load(&waits) < n; i++) ENSURE(!test_once(e), "it is done");
  return atomic_load(&waits) >= n;
}

#endif
