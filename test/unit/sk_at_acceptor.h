/* SPDX-License-Identifier: Apache-2.0
 * A sender of two streams whose other end is a real acceptor. Definitions, for one test program. */
#ifndef SK_AT_ACCEPTOR_TEST_H
#define SK_AT_ACCEPTOR_TEST_H

#include "plugin/socket/sk_connect.h"
#include "test/unit/sk_data.h"

static uint8_t bytes[4][4096];

static void *isend(const struct data *d, uint32_t seq, size_t size, int tag) {
  return data_isend(d, bytes[seq % 4], seq, size, tag);
}

/* A sender whose two streams have said HELLO to an acceptor; before data_create. Its ends are the acceptor's. */
static struct sk_acceptor *data_begin_at_acceptor(struct data *d, uint32_t features) {
  struct sk_acceptor *acceptor;
  struct sk_dial dials[2];
  data_begin(d, SK_SENDER, 2, features);
  sk_params.streams = 2;
  data_device.addr = (union rail_addr){.in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
  ENSURE_INT(sk_acceptor_open(&data_device, -1, &acceptor), RAIL_OK);
  const struct rail_handle *handle = &acceptor->listener.handle;
  const struct sk_limits limits = {.eager_size = d->args.eager_size, .eager_count = d->args.eager_count,
                                   .eager_bytes = d->args.eager_bytes, .features = features};
  for (unsigned int i = 0; i < 2; i++) {
    const struct rail_hello hello = {.stream = i, .streams = 2};
    const struct sk_hello_bytes hello_bytes = sk_make_hello(handle, hello, limits, 0);
    uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
    size_t done = 0;
    data_end(d, i);
    rail_sock_close(&d->args.fds[i]);
    ENSURE_INT(rail_sock_connect_all(&handle->addrs[0], NULL, deadline, NULL, &d->args.fds[i]), RAIL_OK);
    ENSURE_INT(rail_sock_send_some(d->args.fds[i], &hello_bytes, sizeof hello_bytes, &done), RAIL_OK);
    sk_dial_init(&dials[i], &data_device, &handle->addrs[0], i, -1, RAIL_BIND_ADDR);
    dials[i].hello = hello;
  }
  d->args.reconnect = sk_reconnect_new(handle, &limits, dials, 2);
  return acceptor;
}

/* The acceptor reads until its one connection has all of its streams. */
static struct sk_half_open_comm *have_all(struct sk_acceptor *acceptor) {
  uint64_t deadline = rail_deadline_in_ms(kit_patience_ms(TIMEOUT_MS));
  struct sk_half_open_comm *p;
  while (!(p = TAILQ_FIRST(&acceptor->half_open)) || p->have < 2) {
    ENSURE_INT(sk_acceptor_poll(acceptor), RAIL_OK);
    ENSURE(!rail_deadline_passed(deadline), "the acceptor has not all HELLOs");
  }
  return p;
}

/* What accept does with a half-open comm that is complete: its sockets are the test's ends from here on. */
static struct sk_accepted_comm *accept_at(struct data *d, struct sk_acceptor *acceptor) {
  struct sk_half_open_comm *p = sk_acceptor_take(acceptor);
  ENSURE(p, "accept finds no connection: %s", log_lines);
  struct sk_accepted_comm *accepted = sk_accepted_new(acceptor, p);
  ENSURE(accepted, "no memory");
  for (unsigned int i = 0; i < 2; i++) {
    d->ends[i] = p->streams[i].fd;
    p->streams[i].fd = -1;
  }
  sk_half_open_free(p);
  return accepted;
}

#endif
