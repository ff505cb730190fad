/* SPDX-License-Identifier: Apache-2.0
 *
 * The handshake without a data path: connect and accept end in the two
 * functions below, which keep what they were given. Both sides are in this
 * process, over three devices made up of 127.0.0.1 and 127.0.0.2: two
 * interfaces and one fused from them.
 */
#ifndef SK_HANDSHAKE_TEST_H
#define SK_HANDSHAKE_TEST_H

#include <arpa/inet.h>
#include <sched.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/conn/linger.h"
#include "plugin/socket/sk_comm.h"
#include "plugin/socket/sk_connect.h"
#include "plugin/socket/sk_param.h"
#include "test/harness/log_lines.h"
#include "test/harness/proc.h"
#include "test/harness/program.h"
#include "test/unit/sk_hello.h"

#define TIMEOUT_MS 10000
enum { DEV_A, DEV_B, DEV_BOTH, DEVS };

/* ---- devices, contexts, the data path's places -------------------------- */

static struct sk_device hs_dev[DEVS];

static void hs_devices(void) {
  for (int i = 0; i < DEV_BOTH; i++) {
    hs_dev[i] = (struct sk_device){.nrails = 1, .rails = {&hs_dev[i]}};
    snprintf(hs_dev[i].name, sizeof hs_dev[i].name, "lo%d", i);
    hs_dev[i].addr.in = (struct sockaddr_in){.sin_family = AF_INET};
    hs_dev[i].addr.in.sin_addr.s_addr = htonl(0x7f000001u + (uint32_t)i);
  }
  hs_dev[DEV_BOTH] = (struct sk_device){
    .name = "lo0+lo1", .addr = hs_dev[DEV_A].addr, .nrails = 2, .rails = {&hs_dev[DEV_A], &hs_dev[DEV_B]}};
}

const struct sk_device *sk_device_at(int dev, const char *call) {
  (void)call;
  return dev >= 0 && dev < DEVS ? &hs_dev[dev] : NULL;
}

static struct sk_comm_args hs_sent, hs_received;
static struct sk_tls *hs_tls; /* of a stream that came back; NULL: it is in clear */
static bool hs_refuse;        /* there is no memory for a comm */

static void hs_close(struct sk_comm_args *c) {
  for (unsigned int i = 0; i < c->nstreams; i++) rail_sock_close(&c->fds[i]);
  sk_reconnect_free(c->reconnect);
  sk_accepted_free(c->accepted);
  *c = (struct sk_comm_args){0};
}

static rail_result_t hs_create(struct sk_comm_args *kept, const struct sk_comm_args *args, void **comm) {
  *kept = *args;
  *comm = hs_refuse ? NULL : kept;
  if (hs_refuse) hs_close(kept);
  return hs_refuse ? RAIL_SYSTEM_ERROR : RAIL_OK;
}

rail_result_t sk_send_create(const struct sk_comm_args *args, void **send_comm) {
  return hs_create(&hs_sent, args, send_comm);
}
rail_result_t sk_recv_create(const struct sk_comm_args *args, void **recv_comm) {
  return hs_create(&hs_received, args, recv_comm);
}

/* ---- one connection ------------------------------------------------------ */

struct hs {
  struct rail_net_ctx *ctx;
  struct sk_listen *listen;
  char handle[RAIL_NET_HANDLE_SIZE];
  struct rail_handle decoded;
};

static void hs_begin(struct hs *h) {
  memset(h, 0, sizeof *h);
  ENSURE_INT(rail_net_ctx_new("RailSocket", &(struct rail_net_init){.traffic_class = -1}, &h->ctx), RAIL_OK);
  hs_devices();
  sk_params_load();
  rail_log_set_sink(log_capture);
  log_forget();
}

static void hs_listen(struct hs *h, int dev) {
  const char *why;
  ENSURE_INT(sk_listen(h->ctx, dev, h->handle, (void **)&h->listen), RAIL_OK);
  ENSURE(rail_handle_decode(&sk_protocol, h->handle, &h->decoded, &why), "%s", why);
}

static bool hs_connect_step(struct hs *h, int dev) {
  void *comm = NULL;
  rail_result_t result = sk_connect(h->ctx, dev, h->handle, -1, &comm, NULL);
  ENSURE(result == RAIL_OK, "connect returned %d: %s", result, log_lines);
  return comm != NULL;
}

static bool hs_accept_step(struct hs *h) {
  void *comm = NULL;
  ENSURE_INT(sk_accept(h->listen, &comm, NULL), RAIL_OK);
  return comm != NULL;
}

__attribute__((unused)) static void hs_pair(struct hs *h, int listen_dev, int connect_dev) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  bool connected = false, accepted = false;
  hs_listen(h, listen_dev);
  while (!connected || !accepted) {
    if (!connected) connected = hs_connect_step(h, connect_dev);
    if (!accepted) accepted = hs_accept_step(h);
    ENSURE(!rail_deadline_passed(deadline), "no connection: %s", log_lines);
    sched_yield();
  }
}

static void hs_close_listen(struct hs *h) {
  ENSURE_INT(sk_close_listen(h->listen), RAIL_OK);
  h->listen = NULL;
}

static void hs_end(struct hs *h) {
  hs_close(&hs_sent);
  hs_close(&hs_received);
  if (h->listen) hs_close_listen(h);
  rail_net_ctx_free(h->ctx, sk_connect_drop, sk_listener_close);
  rail_log_set_sink(NULL);
}

/* ---- bytes --------------------------------------------------------------- */

/* Reads exactly so many, or how many came before the end or the deadline. */
static size_t hs_read(int fd, void *data, size_t size) {
  size_t done = 0;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  while (!rail_deadline_passed(deadline)) {
    if (rail_sock_recv_some(fd, data, size, &done) != RAIL_IN_PROGRESS) break;
    sched_yield();
  }
  return done;
}

/* The answer to stream i, as the data path reads it. */
__attribute__((unused)) static unsigned int hs_answer(unsigned int i) {
  struct sk_answer_bytes answer;
  unsigned int version;
  ENSURE_INT(hs_read(hs_sent.fds[i], &answer, sizeof answer), sizeof answer);
  return sk_answer_decode(&hs_sent.sessions[i], &answer, hs_sent.features, &version);
}

__attribute__((unused)) static void hs_linked(int out, int in) {
  uint64_t sent = rail_now_ns(), got = 0;
  size_t done = 0;
  ENSURE_INT(rail_sock_send_some(out, &sent, sizeof sent, &done), RAIL_OK);
  ENSURE_INT(hs_read(in, &got, sizeof got), sizeof got);
  ENSURE(got == sent, "other bytes came out");
}

/* A connection to rail `i`, sending `hello` if not NULL. */
__attribute__((unused)) static int hs_client(const struct hs *h, unsigned int i, const struct sk_hello_bytes *hello) {
  int fd;
  size_t done = 0;
  ENSURE_INT(rail_sock_connect_all(&h->decoded.addrs[i], NULL, rail_deadline_in_ms(TIMEOUT_MS), NULL, &fd), RAIL_OK);
  if (hello) ENSURE_INT(rail_sock_send_some(fd, hello, sizeof *hello, &done), RAIL_OK);
  return fd;
}

enum { HS_DROPPED = 999 };

/* With which reason the listener answers, driven by `step`; closes fd. HS_DROPPED: closed without an answer. */
__attribute__((unused)) static unsigned int hs_reason(int fd, void (*step)(void *arg), void *arg) {
  struct sk_answer_bytes wire;
  struct rail_session any;
  unsigned int reason = HS_DROPPED, version;
  size_t done = 0;
  rail_result_t result;
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  rail_session_init(&any, &sk_protocol, true, &(struct rail_hello){.streams = 1});
  do {
    step(arg);
    result = rail_sock_recv_some(fd, &wire, sizeof wire, &done);
    ENSURE(!rail_deadline_passed(deadline), "no answer");
  } while (result == RAIL_IN_PROGRESS);
  if (result == RAIL_OK) reason = sk_answer_decode(&any, &wire, 0, &version);
  rail_sock_close(&fd);
  return reason;
}

__attribute__((unused)) static void hs_accept_none(void *h) {
  ENSURE(!hs_accept_step(h), "a client without a right HELLO was accepted");
}
__attribute__((unused)) static void hs_take_none(void *unused) {
  unsigned int stream;
  int fd;
  (void)unused;
  ENSURE_INT(sk_accepted_take(hs_received.accepted, &stream, &fd, &hs_tls), RAIL_IN_PROGRESS);
}

#endif
