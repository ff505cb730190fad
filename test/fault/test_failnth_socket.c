/* SPDX-License-Identifier: Apache-2.0
 * TEST-PRELOAD: rail-fault
 * TEST-LIMIT: 240
 *
 * Proves: whichever allocation or system call of the socket plugin fails, from init to finalize, the calls of its
 * vtable end with success or an error, closing works with whatever was built, the data that arrived is right,
 * and no descriptor, thread or request is left.
 */
#include <dlfcn.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "kit/preload/preload.h"
#include "test/harness/program.h"
#include "test/harness/ranks.h"

#define MOST_CALLS 3000
#define BESIDE 8
#define MESSAGES 6

/* Everything a life builds; closed from whatever state it came to. */
struct life {
  const struct rail_net_v12 *vt;
  void *ctx, *listen, *send, *recv, *send_mh, *recv_mh;
  char handle[RAIL_NET_HANDLE_SIZE];
  uint64_t deadline;
};

static char out[MESSAGES][70000], in[MESSAGES][70000];
static char large[1 << 20]; /* more than goes ahead of its receive (RAIL_SOCKET_AHEAD) */

static void quiet(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...) {
  (void)level, (void)flags, (void)file, (void)line, (void)fmt;
}

static void check_time(const struct life *l, const char *doing) {
  ENSURE(!rail_deadline_passed(l->deadline), "no end while %s", doing);
}

/* The sender has its connection, the receiver lost it to the failure: then the sender's first message must tell. */
static int send_alone(struct life *l) {
  void *req = NULL;
  int rc = 0, done = 0, size = 0;
  for (check_time(l, "sending to nobody"); rc == 0; check_time(l, "sending to nobody")) {
    if (!req) rc = l->vt->isend(l->send, large, sizeof large, 7, NULL, NULL, &req);
    if (rc == 0 && req) rc = l->vt->test(req, &done, &size);
    ENSURE(!done, "a message to nobody was sent");
  }
  return rc;
}

static int connect_both(struct life *l) {
  uint64_t send_deadline = rail_deadline_in_ms(3000);
  while (!l->send || !l->recv) {
    if (l->send && rail_deadline_passed(send_deadline)) return send_alone(l);
    int rc = l->send ? 0 : l->vt->connect(l->ctx, 0, l->handle, &l->send, NULL);
    if (rc) {
      ENSURE(l->send == NULL, "connect failed with %d and left *send_comm set", rc);
      return rc;
    }
    rc = l->recv ? 0 : l->vt->accept(l->listen, &l->recv, NULL);
    if (rc) {
      ENSURE(l->recv == NULL, "accept failed with %d and left *recv_comm set", rc);
      return rc;
    }
    check_time(l, "connecting");
  }
  return 0;
}

static size_t size_of(int i) { return i % 3 == 0 ? 8 : i % 3 == 1 ? 0 : sizeof out[0]; }

static int transfer(struct life *l) {
  void *sreq[MESSAGES] = {0}, *rreq[MESSAGES] = {0};
  bool sdone[MESSAGES] = {0}, rdone[MESSAGES] = {0};
  for (int left = 2 * MESSAGES; left > 0;) {
    for (int i = 0; i < MESSAGES; i++) {
      int rc = 0, done = 0, sizes[1] = {-1}, tag = 7;
      void *data = in[i], *mh = l->recv_mh;
      size_t cap = sizeof in[i];
      if (!rreq[i] && !rdone[i] && (i == 0 || rreq[i - 1] || rdone[i - 1])) {
        rc = l->vt->irecv(l->recv, 1, &data, &cap, &tag, &mh, NULL, &rreq[i]);
        ENSURE(rc == 0 || rreq[i] == NULL, "irecv failed and gave a request");
      }
      if (rc == 0 && !sreq[i] && !sdone[i] && (i == 0 || sreq[i - 1] || sdone[i - 1])) {
        rc = l->vt->isend(l->send, out[i], size_of(i), 7, l->send_mh, NULL, &sreq[i]);
        ENSURE(rc == 0 || sreq[i] == NULL, "isend failed and gave a request");
      }
      if (rc == 0 && rreq[i]) {
        rc = l->vt->test(rreq[i], &done, sizes);
        if (rc == 0 && done) {
          ENSURE((size_t)sizes[0] == size_of(i), "message %d has %d bytes", i, sizes[0]);
          ENSURE(memcmp(in[i], out[i], size_of(i)) == 0, "message %d is wrong", i);
          rreq[i] = NULL, rdone[i] = true, left--;
        }
      }
      done = 0;
      if (rc == 0 && sreq[i]) {
        rc = l->vt->test(sreq[i], &done, sizes);
        if (rc == 0 && done) sreq[i] = NULL, sdone[i] = true, left--;
      }
      if (rc) return rc; /* requests are left outstanding: closing must cope */
    }
    check_time(l, "moving messages");
  }
  return 0;
}

static int live(struct life *l) {
  struct rail_net_config config = {.traffic_class = -1};
  struct rail_net_props_v12 props;
  int ndev = 0, rc = l->vt->init(&l->ctx, 1, &config, quiet, NULL);
  if (rc) return rc;
  if ((rc = l->vt->devices(&ndev))) return rc;
  if (ndev == 0) return RAIL_SYSTEM_ERROR; /* none found, because looking failed */
  if ((rc = l->vt->get_properties(0, &props))) return rc;
  if ((rc = l->vt->listen(l->ctx, 0, l->handle, &l->listen))) return rc;
  if ((rc = connect_both(l))) return rc;
  if ((rc = l->vt->reg_mr(l->send, out, sizeof out, RAIL_PTR_HOST, &l->send_mh))) return rc;
  if ((rc = l->vt->reg_mr(l->recv, in, sizeof in, RAIL_PTR_HOST, &l->recv_mh))) return rc;
  return transfer(l);
}

static void end(struct life *l) {
  if (l->send) ENSURE_INT(l->vt->dereg_mr(l->send, l->send_mh), 0);
  if (l->recv) ENSURE_INT(l->vt->dereg_mr(l->recv, l->recv_mh), 0);
  ENSURE_INT(l->vt->close_send(l->send), 0);
  ENSURE_INT(l->vt->close_recv(l->recv), 0);
  ENSURE_INT(l->vt->close_listen(l->listen), 0);
  ENSURE_INT(l->vt->finalize(l->ctx), 0);
}

struct report {
  bool hit;
  char name[32];
  int result;
};
struct sweep {
  long n;
  int kinds;
};

static void one(const struct rank *rank, void *arg) {
  const struct sweep *s = arg;
  struct report *report = rank->shared;
  void *dl = dlopen(ranks_plugin(), RTLD_NOW | RTLD_LOCAL);
  ENSURE(dl, "%s", dlerror());
  struct life l = {.vt = dlsym(dl, "ncclNetPlugin_v12"), .deadline = rail_deadline_in_ms(kit_patience_ms(15000))};
  ENSURE(l.vt, "%s", dlerror());
  for (int i = 0; i < MESSAGES; i++) memset(out[i], 'a' + i, sizeof out[i]);
  int fds = kit_fd_count(), threads = kit_thread_count();
  kit_fail_arm(s->n, s->kinds);
  report->result = live(&l);
  end(&l);
  kit_fail_disarm();
  if (kit_fail_hit()) {
    snprintf(report->name, sizeof report->name, "%s", kit_fail_hit());
    report->hit = true;
  }
  ENSURE_INT(kit_fd_count(), fds);
  ENSURE_INT(kit_threads_after(threads), threads);
  struct life again = {.vt = l.vt, .deadline = rail_deadline_in_ms(kit_patience_ms(15000))}; /* it works after that */
  memset(in, 0, sizeof in);
  int rc = live(&again);
  ENSURE(rc == 0, "the next life, without failures, ends with %d", rc);
  end(&again);
}

static void join(void *arg) { job_end(*(struct job **)arg, kit_patience_ms(20000), 0); }

static void sweep(int kinds) {
  if (!kit_fail_loaded()) tap_skip_case("librail-fault.so is not preloaded");
  if (!ranks_plugin()) tap_skip_case("libnccl-net-socket.so is not built");
  int bad = 0, beyond = 0, errors = 0;
  long n = 1;
  for (; n < MOST_CALLS && beyond < 3 && bad < 5; n += BESIDE) {
    struct sweep s[BESIDE];
    struct job *job[BESIDE];
    beyond = 0;
    for (int i = 0; i < BESIDE; i++) {
      s[i] = (struct sweep){n + i, kinds};
      job[i] =
          job_start("NCCL_DEBUG=NONE RAIL_SOCKET_HANDSHAKE_TIMEOUT=1 RAIL_SOCKET_CONNECT_TIMEOUT=2", 1, one, &s[i]);
    }
    for (int i = 0; i < BESIDE; i++) {
      char why[600];
      job_wait(job[i], 0, kit_patience_ms(20000), NULL);
      struct report report = *(struct report *)job_shared(job[i]);
      beyond += !report.hit;
      errors += report.hit && report.result != 0;
      if (kit_catch(join, &job[i], why, sizeof why)) continue;
      printf("# call %ld (%s): %s\n", n + i, report.hit ? report.name : "not reached", why);
      bad++;
    }
  }
  printf("# about %ld calls, %d of them fatal\n", n - beyond - 1, errors);
  ENSURE(bad == 0, "%d or more calls whose failure ends badly", bad);
  ENSURE(n > 8 && errors > 4, "only %ld calls and %d errors: nothing was swept", n, errors);
}

TEST(allocations) { sweep(KIT_FAIL_ALLOC); }
TEST(syscalls) { sweep(KIT_FAIL_SYSCALL); }

TEST_MAIN(TEST_CASE(allocations), TEST_CASE(syscalls))
