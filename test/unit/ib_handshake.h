/* SPDX-License-Identifier: Apache-2.0
 *
 * Both sides of a handshake in this process, over the emulated device: the
 * real devices, comms and watch thread, and peers made of bare sockets.
 *
 * Devices: emuA (two ports, 0 and 1), emuB (2), emuI (3, InfiniBand), and
 * what hs_fuse makes of the first three (4).
 */
#ifndef IB_HANDSHAKE_TEST_H
#define IB_HANDSHAKE_TEST_H

#include <sched.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_comm.h"
#include "plugin/ib/ib_connect.h"
#include "test/harness/program.h"
#include "test/unit/ib_emu.h"
#include "test/unit/ib_hello.h"

#define TIMEOUT_MS 10000
/* What nobody answers fails at once: by the virtual clock its retries take no time. */
#define HS_SCRIPT "device emuA ports=2 ece=1; device emuB ece=1; device emuI link=ib lid=7 ece=1; clock virtual"
enum { DEV_A1, DEV_A2, DEV_B, DEV_IB, DEV_FUSED };

/* ---- the log ------------------------------------------------------------- */

static char hs_lines[32768];
static pthread_mutex_t hs_log_lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((format(printf, 5, 6)))
static void hs_log(enum rail_log_level level, unsigned long flags, const char *file, int line, const char *fmt, ...) {
  va_list ap;
  (void)flags, (void)file, (void)line;
  if (level != RAIL_LOG_WARN && level != RAIL_LOG_INFO) return;
  pthread_mutex_lock(&hs_log_lock);
  size_t at = strlen(hs_lines);
  if (sizeof hs_lines - at < 2048) at = 0;
  va_start(ap, fmt);
  at += (size_t)vsnprintf(hs_lines + at, sizeof hs_lines - at - 2, fmt, ap);
  va_end(ap);
  strcpy(hs_lines + at, "\n");
  pthread_mutex_unlock(&hs_log_lock);
}

static bool hs_logged(const char *words) { return strstr(hs_lines, words) != NULL; }

/* ---- both sides ---------------------------------------------------------- */

struct hs {
  struct rail_net_ctx *ctx;
  void *listen;
  char handle[RAIL_NET_HANDLE_SIZE];
  struct rail_handle decoded;
  void *sent, *received;            /* comms */
  rail_result_t connect, accept;    /* RAIL_IN_PROGRESS until they ended */
  uint64_t longest_ns;              /* of a call */
  long qps, cqs, mrs;               /* there were, before */
};

static struct rail_net_init hs_init = {.traffic_class = -1};

__attribute__((unused)) static void hs_main(void) {
  ib_emu_use(HS_SCRIPT);
  if (!ib_handshake_load()) abort();
  ib_devices_load();
  ib_params.fuse_no_pci = 1; /* emulated devices have no PCI path */
  struct rail_net_vprops_v12 three = {.ndevs = 3, .devs = {DEV_A1, DEV_A2, DEV_B}};
  int fused;
  if (ib_device_count() != 4 || ib_device_fuse(&fused, &three) != RAIL_OK || fused != DEV_FUSED) {
    fprintf(stderr, "no devices to test with\n");
    exit(1);
  }
  rail_log_set_sink(hs_log);
}

static void hs_begin(struct hs *h) {
  memset(h, 0, sizeof *h);
  ib_params_load();
  ib_params.linger_ms = 0; /* closed receivers go at once */
  hs_lines[0] = 0;
  emu_do("reset");
  h->connect = h->accept = RAIL_IN_PROGRESS;
  h->qps = emu_live("qp");
  h->cqs = emu_live("cq");
  h->mrs = emu_live("mr");
  /* Its thread reads parameters: from here on only the handshake's change. */
  ENSURE_INT(rail_watch_begin(&ib_watch), RAIL_OK);
  ENSURE_INT(rail_net_ctx_new("RailIB", &hs_init, &h->ctx), RAIL_OK);
}

static void hs_listen(struct hs *h, int dev) {
  struct ib_hints hints;
  const char *why;
  ENSURE_INT(ib_listen(h->ctx, dev, h->handle, &h->listen), RAIL_OK);
  ENSURE(ib_handle_decode(h->handle, &h->decoded, &hints, &why), "%s", why);
}

static void hs_note_time(struct hs *h, uint64_t start) {
  uint64_t took = rail_now_ns() - start;
  if (took > h->longest_ns) h->longest_ns = took;
}

/* One call each; what has ended is not called again. */
static void hs_connect_once(struct hs *h, int dev) {
  char moved[RAIL_NET_HANDLE_SIZE + 8]; /* the bytes may be anywhere, at each call */
  char *at = moved + rail_now_ns() % 8;
  uint64_t start = rail_now_ns();
  if (h->connect != RAIL_IN_PROGRESS) return;
  memcpy(at, h->handle, sizeof h->handle);
  h->sent = NULL;
  rail_result_t result = ib_connect(h->ctx, dev, at, -1, &h->sent, NULL);
  hs_note_time(h, start);
  memcpy(h->handle, at, sizeof h->handle);
  if (result != RAIL_OK) ENSURE(!h->sent, "an error, and a comm");
  if (result != RAIL_OK || h->sent) h->connect = result;
}

static void hs_accept_once(struct hs *h) {
  uint64_t start = rail_now_ns();
  if (h->accept != RAIL_IN_PROGRESS || !h->listen) return;
  h->received = NULL;
  rail_result_t result = ib_accept(h->listen, &h->received, NULL);
  hs_note_time(h, start);
  if (result != RAIL_OK) ENSURE(!h->received, "an error, and a comm");
  if (result != RAIL_OK || h->received) h->accept = result;
}

/* Until both have ended, one way or the other. */
static void hs_run(struct hs *h, int connect_dev) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (h->connect == RAIL_IN_PROGRESS || (h->accept == RAIL_IN_PROGRESS && h->listen)) {
    hs_connect_once(h, connect_dev);
    hs_accept_once(h);
    ENSURE(!rail_deadline_passed(deadline), "connect %d, accept %d: %s", h->connect, h->accept, hs_lines);
    sched_yield();
  }
}

/* Until connect has ended; accept may have given that peer up, and wait for another. */
__attribute__((unused)) static void hs_run_connect(struct hs *h, int dev) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (h->connect == RAIL_IN_PROGRESS) {
    hs_connect_once(h, dev);
    hs_accept_once(h);
    ENSURE(!rail_deadline_passed(deadline), "connect does not end: %s", hs_lines);
    sched_yield();
  }
}

__attribute__((unused)) static void hs_pair(struct hs *h, int listen_dev, int connect_dev) {
  hs_listen(h, listen_dev);
  hs_run(h, connect_dev);
  ENSURE(h->connect == RAIL_OK && h->accept == RAIL_OK, "connect %d, accept %d: %s", h->connect, h->accept, hs_lines);
}

__attribute__((unused)) static struct rail_half_open *hs_half_open(const struct hs *h) {
  return &((struct rail_net_listen *)h->listen)->half_open;
}

/* What connect has under way; NULL: nothing. */
__attribute__((unused)) static struct rail_setup *hs_attempt(const struct hs *h) {
  struct rail_net_connect call;
  ENSURE_INT(rail_net_connect_enter(&call, &ib_protocol, h->ctx, (void *)(uintptr_t)h->handle), RAIL_OK);
  const struct rail_net_attempt *attempt = call.attempt;
  return attempt ? attempt->setup : NULL;
}

/* Of what is under way, too: connect's attempt, and the connections that accept sets up. */
__attribute__((unused)) static void hs_set_connect_ms(const struct hs *h, int64_t ms) {
  struct rail_setup *half_open, *attempt = hs_attempt(h);
  ib_params.connect_ms = ms;
  if (attempt) attempt->limits.connect_ms = ms;
  TAILQ_FOREACH(half_open, &hs_half_open(h)->list, link) half_open->limits.connect_ms = ms;
}

__attribute__((unused)) static void hs_close_listen(struct hs *h) {
  ENSURE_INT(ib_close_listen(h->listen), RAIL_OK);
  h->listen = NULL;
}

/* How long calls take is looked at in up to so many connections: a crowded machine stops a process for longer now and
 * then; a call that waits takes long in each. */
#define HS_TRIES 5

/* Everything that was made is gone afterwards. */
static void hs_end(struct hs *h) {
  if (h->connect == RAIL_OK) ENSURE_INT(ib_close_send(h->sent), RAIL_OK);
  if (h->accept == RAIL_OK) ENSURE_INT(ib_close_recv(h->received), RAIL_OK);
  rail_net_ctx_free(h->ctx, rail_net_setup_drop_attempt, rail_net_setup_close_listener);
  rail_watch_end(&ib_watch);
  ENSURE_INT(emu_live("qp"), h->qps);
  ENSURE_INT(emu_live("cq"), h->cqs);
  ENSURE_INT(emu_live("mr"), h->mrs);
}

/* ---- peers made of bare sockets ------------------------------------------ */

struct raw {
  struct rail_handshake handshake;
  struct ib_hello_bytes hello;
};

/* Dials the listener, says nothing. */
__attribute__((unused)) static int raw_dial(const struct hs *h) {
  int fd;
  ENSURE_INT(rail_sock_connect_all(&h->decoded.addrs[0], NULL, rail_deadline_in_ms(TIMEOUT_MS), NULL, &fd), RAIL_OK);
  return fd;
}

__attribute__((unused)) static void raw_write(int fd, const void *bytes, size_t size) {
  ENSURE_INT(rail_sock_send_all(fd, bytes, size, rail_deadline_in_ms(TIMEOUT_MS), NULL), RAIL_OK);
}

/* Sends r->hello, or whatever it was made; what is received is read as a connector with that `hello` reads it. */
__attribute__((unused)) static void raw_begin(struct raw *r, const struct hs *h, const struct rail_hello *hello) {
  int fd = raw_dial(h);
  raw_write(fd, &r->hello, sizeof r->hello);
  rail_handshake_init(&r->handshake);
  rail_handshake_begin(&r->handshake, &ib_protocol, fd, true, hello);
}

/* Sends a right HELLO; its messages are the caller's. */
__attribute__((unused)) static void raw_hello(struct raw *r, const struct hs *h) {
  struct rail_hello hello;
  r->hello = ib_make_hello(&h->decoded, rail_key_on(ib_protocol.key) ? NULL : "raw", &hello);
  raw_begin(r, h, &hello);
}

__attribute__((unused)) static struct ib_offer raw_offer(bool sender) {
  struct ib_offer o = {.sender = sender, .nrails = 1, .qps_per_rail = 1, .max_qps = IB_MAX_QPS, .verify = true,
                       .max_write_log2 = 30, .recv_depth = IB_RECV_DEPTH};
  o.rails[0] = (struct ib_offer_rail){.roce = true, .port = 1, .mtu = 5, .gid_type = IB_GID_ROCE_V2, .name = "raw0"};
  memcpy(o.rails[0].gid, "\0\0\0\0\0\0\0\0\0\0\xff\xff\x0a\x4d\x09\x09", 16);
  return o;
}

__attribute__((unused)) static void raw_send(struct raw *r, enum ib_message_type type, const void *body, size_t size) {
  ENSURE_INT(rail_handshake_send(&r->handshake, type, body, size), RAIL_OK);
  (void)rail_handshake_flush(&r->handshake);
}

__attribute__((unused)) static void raw_send_offer(struct raw *r, const struct ib_offer *offer) {
  struct ib_offer_wire wire;
  size_t size = ib_offer_encode(offer, &wire);
  raw_send(r, IB_MESSAGE_OFFER, &wire, size);
}

/* What the listener sends next, driven by accept; false: it closed the connection. */
__attribute__((unused)) static bool raw_recv(struct raw *r, struct hs *h, struct rail_message *message) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  enum rail_reason reason;
  const char *why;
  rail_result_t result;
  while ((result = rail_handshake_recv(&r->handshake, message, &reason, &why)) == RAIL_IN_PROGRESS) {
    hs_accept_once(h);
    ENSURE(!rail_deadline_passed(deadline), "nothing is sent: %s", hs_lines);
    sched_yield();
  }
  return result == RAIL_OK;
}

/* The refusal that a raw peer gets; RAIL_REASON_NONE: the connection was closed without one. */
__attribute__((unused)) static unsigned int raw_verdict(struct raw *r, struct hs *h) {
  struct rail_message message;
  while (raw_recv(r, h, &message))
    if (message.type == RAIL_MESSAGE_ANSWER && message.reason != RAIL_REASON_NONE) return message.reason;
  return RAIL_REASON_NONE;
}

__attribute__((unused)) static void raw_end(struct raw *r) { rail_handshake_close(&r->handshake); }

#endif
