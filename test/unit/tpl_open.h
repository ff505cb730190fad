/* SPDX-License-Identifier: Apache-2.0
 * The template's communicators over a socket of the test's own, whose other end sends what the test wants. */
#ifndef TPL_OPEN_H
#define TPL_OPEN_H

#include <stdlib.h>

#include "plugin/template/tpl_comm.h"
#include "plugin/template/tpl_connect.h"

static const struct tpl_device tpl_open_device = {.name = "test"};

/* NULL: out of memory. `fd` is the comm's. */
static inline void *tpl_open_recv(int fd) {
  union rail_addr peer;
  void *comm = NULL;
  if (rail_addr_parse("127.0.0.1:5000", &peer) != RAIL_OK) return NULL;
  return tpl_recv_create(&tpl_open_device, &peer, fd, &comm) == RAIL_OK ? comm : NULL;
}

/* One whose connector has sent HELLO, and an acceptor's welcome is on its way through `peer`, the other end. */
static inline void *tpl_open_send(int fd, int peer) {
  static struct rail_key no_key = {.plugin = TPL_NAME, .param = ""};
  static const struct rail_protocol protocol = {.plugin = TPL_NAME, .tag = TPL_TAG, .version = TPL_VERSION,
                                                .key = &no_key};
  static const struct rail_connector_limits limits;
  struct tpl_attempt *a = calloc(1, sizeof *a);
  struct rail_hello hello = {.streams = 1};
  struct rail_session acceptor;
  uint8_t welcome[RAIL_ANSWER_MAX];
  void *comm = NULL;
  size_t done = 0;
  if (!a) return NULL;
  a->connector = (struct rail_connector){.protocol = &protocol, .limits = &limits, .device = tpl_open_device.name,
                                         .handshake = &a->handshake, .dial = {.fd = -1}};
  rail_handshake_init(&a->handshake);
  rail_handshake_begin(&a->handshake, &protocol, fd, true, &hello);
  rail_session_init(&acceptor, &protocol, false, &hello);
  bool good = rail_addr_parse("127.0.0.1:5000", &a->connector.dial.peer) == RAIL_OK &&
              rail_welcome_encode(&acceptor, NULL, welcome) == RAIL_OK &&
              rail_sock_send_some(peer, welcome, rail_answer_size(&protocol), &done) == RAIL_OK &&
              tpl_send_create(&tpl_open_device, a, &comm) == RAIL_OK;
  if (!good) free(a);
  return good ? comm : NULL;
}

#endif
