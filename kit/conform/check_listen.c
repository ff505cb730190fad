/* SPDX-License-Identifier: Apache-2.0
 * Listening: a thousand at once, closed at any moment. Foreign clients: check_foreign.c. */
#include <string.h>

#include "common/base/clock.h"
#include "kit/conform/kit_check.h"
#include "kit/conform/kit_listener.h"

static void close_listen(struct kit_net *n, void *listen) {
  int rc = n->vt->close_listen(listen);
  ENSURE(rc == 0, "closeListen returned %s", kit_rc_text(rc));
}

/* ---- the handle ---- */

struct holes { struct kit_net net; uint8_t fill; int written; };

/* As many listens with memory of different contents as distinguish an unwritten byte from one that happens to have
 * the value: a handle has random bytes in it, and the check is made many times. */
static const uint8_t before[] = {0x5a, 0xc3, 0x99, 0xa5};
enum { LISTENS = sizeof before };

static bool is_hole(char handles[LISTENS][RAIL_NET_HANDLE_SIZE], size_t byte) {
  int i = 0;
  while (i < LISTENS && (uint8_t)handles[i][byte] == before[i]) i++;
  return i == LISTENS;
}

/* The bytes that listen does not write are whatever lay in NCCL's memory. They must mean nothing: not to the peer, and
 * not to a connect that keeps its state in them. */
static void connect_past_holes(void *arg) {
  struct holes *h = arg;
  _Alignas(16) char handles[LISTENS][RAIL_NET_HANDLE_SIZE];
  void *listens[LISTENS];
  struct kit_pair p = {.net = &h->net};
  for (int i = 0; i < LISTENS; i++) {
    memset(handles[i], before[i], sizeof handles[i]);
    listens[i] = kit_net_listen(&h->net, handles[i]);
  }
  p.listen = listens[LISTENS - 1];
  memcpy(p.handle, handles[LISTENS - 1], sizeof p.handle);
  h->written = 0;
  for (size_t i = 0; i < sizeof p.handle; i++) {
    if (is_hole(handles, i))
      p.handle[i] = (char)h->fill;
    else
      h->written++;
  }
  ENSURE(h->written > 0, "the peer has nothing to connect to");
  kit_pair_connect(&p);
  kit_pair_ping(&p, 100, h->fill);
  kit_pair_close(&p);
  for (int i = 0; i < LISTENS - 1; i++) close_listen(&h->net, listens[i]);
}

static void handle_is_written_whole(struct kit_process *self) {
  static const uint8_t fill[] = {0x00, 0xff, 0x3c, 0x01};
  static struct holes h;
  char why[512];
  kit_net_open(&h.net);
  for (size_t f = 0; f < sizeof fill; f++) {
    h.fill = fill[f];
    bool fine = kit_catch(connect_past_holes, &h, why, sizeof why);
    ENSURE(fine, "listen wrote %d of the handle's %d bytes, and with %#x in the others: %s", h.written,
           RAIL_NET_HANDLE_SIZE, h.fill, why);
  }
  kit_metric(self, "handle_bytes_written", h.written, "B");
  kit_net_close(&h.net);
}

static void handle_is_not_overrun(struct kit_process *self) {
  (void)self;
  struct { char handle[RAIL_NET_HANDLE_SIZE]; uint8_t behind[128]; } record; /* NCCL's, with what else is in it */
  struct kit_net n;
  kit_net_open(&n);
  for (int fill = 0; fill <= 0xff; fill += 0xff) {
    memset(&record, fill, sizeof record);
    close_listen(&n, kit_net_listen(&n, record.handle));
    ssize_t wrong = kit_bytes_check(record.behind, sizeof record.behind, (uint8_t)fill);
    ENSURE(wrong < 0, "listen writes byte %zd of the handle, which has %d", RAIL_NET_HANDLE_SIZE + wrong,
           RAIL_NET_HANDLE_SIZE);
  }
  kit_net_close(&n);
}

static void handles_differ(struct kit_process *self) {
  (void)self;
  enum { MANY = 20 };
  static char handle[MANY][RAIL_NET_HANDLE_SIZE];
  void *listen[MANY];
  struct kit_net n;
  kit_net_open(&n);
  for (int i = 0; i < MANY; i++) listen[i] = kit_net_listen(&n, handle[i]);
  for (int i = 0; i < MANY; i++)
    for (int k = 0; k < i; k++)
      ENSURE(memcmp(handle[i], handle[k], sizeof handle[0]) != 0,
             "listen gave the same handle twice, in calls %d and %d", k, i);
  for (int i = 0; i < MANY; i++) close_listen(&n, listen[i]);
  kit_net_close(&n);
}

/* ---- many ---- */

static void a_thousand_listens(struct kit_process *self) {
  enum { MAX_LISTENS = 1000 };
  static char handle[MAX_LISTENS][RAIL_NET_HANDLE_SIZE];
  static void *listen[MAX_LISTENS];
  struct kit_net n;
  kit_need_files(MAX_LISTENS);
  kit_net_open(&n);
  int count = kit_scaled(MAX_LISTENS), fds = kit_fd_count(), threads = kit_thread_count();
  for (int i = 0; i < count; i++) listen[i] = kit_net_listen(&n, handle[i]);
  kit_metric(self, "files_per_listen", (double)(kit_fd_count() - fds) / count, "");
  kit_metric(self, "threads_for_all", kit_thread_count() - threads, "");
  const int some[] = {count - 1, count / 2, 0};
  for (int i = 0; i < 3; i++) {
    struct kit_pair p = {.net = &n, .listen = listen[some[i]]};
    memcpy(p.handle, handle[some[i]], sizeof p.handle);
    kit_pair_connect(&p);
    kit_pair_ping(&p, 100, (uint64_t)i);
    p.listen = NULL;
    kit_pair_close(&p);
  }
  for (int i = 0; i < count; i++) close_listen(&n, listen[i]);
  kit_net_close(&n);
}

static void closed_listens_leave_nothing(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  kit_net_open(&n);
  for (int i = 0; i < 3; i++) close_listen(&n, kit_net_listen(&n, handle));
  int fds = kit_fd_count(), threads = kit_thread_count(), count = kit_scaled(300);
  for (int i = 0; i < count; i++) {
    void *listen = kit_net_listen(&n, handle), *comm;
    if (i % 2) kit_accept_step(&n, listen, &comm);
    close_listen(&n, listen);
  }
  int left = kit_files_after(fds);
  ENSURE(left <= fds, "%d listens, all closed, left %d files open", count, left - fds);
  left = kit_threads_after(threads);
  ENSURE(left <= threads, "%d listens, all closed, left %d threads", count, left - threads);
  kit_net_close(&n);
}

/* ---- closed early ---- */

static void closed_without_accept(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  char handle[RAIL_NET_HANDLE_SIZE];
  void *comm;
  kit_net_open(&n);
  for (int polls = 0; polls < 4; polls++) {
    void *listen = kit_net_listen(&n, handle);
    for (int i = 0; i < polls; i++)
      ENSURE(!kit_accept_step(&n, listen, &comm), "accept gave a connection, and nobody has connected");
    close_listen(&n, listen);
  }
  struct kit_pair p;
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 1000, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
}

static void close_of_null(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  kit_net_open(&n);
  close_listen(&n, NULL);
  kit_net_close(&n);
}

static void closed_with_a_half_connected_peer(struct kit_process *self) {
  (void)self;
  struct kit_net n;
  kit_net_open(&n);
  for (int steps = 1; steps <= 8; steps++) {
    char handle[RAIL_NET_HANDLE_SIZE];
    void *listen = kit_net_listen(&n, handle), *send = NULL, *recv = NULL;
    for (int i = 0; i < steps && !send; i++) kit_connect_step(&n, handle, &send);
    if (steps > 4) kit_accept_step(&n, listen, &recv);
    close_listen(&n, listen);
    /* The connecting side learns of it or is left waiting; it never hangs or breaks. */
    uint64_t deadline = rail_deadline_in_ms(200);
    int rc = 0;
    while (!send && rc == 0 && !rail_deadline_passed(deadline)) {
      struct rail_net_device_handle *dh = NULL;
      rc = n.vt->connect(n.ctx, n.dev, handle, &send, &dh);
      ENSURE(rc == 0 || !send, "connect failed with %s and left *sendComm at %p; NCCL closes that, twice",
             kit_rc_text(rc), send);
    }
    rc = n.vt->close_send(send);
    ENSURE(rc == 0, "closeSend(%p) returned %s", send, kit_rc_text(rc));
    rc = n.vt->close_recv(recv);
    ENSURE(rc == 0, "closeRecv(%p) returned %s", recv, kit_rc_text(rc));
  }
  struct kit_pair p;
  kit_pair_open(&n, &p);
  kit_pair_ping(&p, 1000, 1);
  kit_pair_close(&p);
  kit_net_close(&n);
}

const struct kit_check kit_checks_listen[] = {
  {"3.1", "listen.handle_is_written_whole", KIT_MUST, KIT_ONE,
   .what = "All bytes of the handle that connect reads were written by listen; what else lies there means nothing.",
   .source = "src/transport/net.cc:189-190, src/include/transport.h:67", .run = handle_is_written_whole},
  {"3.2", "listen.handle_is_not_overrun", KIT_MUST, KIT_ONE,
   .what = "listen writes no more than the 128 bytes of a handle: NCCL has it in the middle of a record.",
   .source = "src/include/transport.h:67, src/transport/net.cc:189-190", .run = handle_is_not_overrun},
  {"3.3", "listen.handles_differ", KIT_MUST, KIT_ONE,
   .what = "Each listen gives a handle of its own.", .source = "src/transport/net.cc:810", .run = handles_differ},
  {"3.4", "listen.a_thousand_listens", KIT_MUST, KIT_ONE, .limit_s = 60,
   .what = "A thousand listen comms are open at the same time, and each of them works.",
   .source = "src/transport.cc:75, 140-330, src/transport/net.cc:810", .run = a_thousand_listens},
  {"3.5", "listen.closed_listens_leave_nothing", KIT_SHOULD, KIT_ONE,
   .what = "Closed listen comms leave no thread and no open file.",
   .source = "src/transport/net.cc:1090", .run = closed_listens_leave_nothing},
  {"3.6", "listen.closed_without_accept", KIT_MUST, KIT_ONE,
   .what = "closeListen works before any connection was accepted, and accept before anybody connects gives NULL.",
   .source = "src/transport/net.cc:1048-1065, 1090", .run = closed_without_accept},
  {"3.7", "listen.closed_with_a_half_connected_peer", KIT_MUST, KIT_ONE,
   .what = "closeListen works while a peer is connecting; that peer gets an error or waits, and *sendComm stays NULL.",
   .source = "src/transport/net.cc:862-878, 890-892, 1090", .run = closed_with_a_half_connected_peer},
  {"3.8", "listen.close_of_null", KIT_SHOULD, KIT_ONE,
   .what = "closeListen(NULL) is accepted.", .source = "src/bootstrap.cc:1323-1327", .run = close_of_null},
  {0},
};
