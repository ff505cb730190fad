/* SPDX-License-Identifier: Apache-2.0
 * Two ends of TLS in one process: a key file, and an encrypted socket pair. Definitions, for one test program. */
#ifndef SK_TLS_TEST_H
#define SK_TLS_TEST_H

#include <errno.h>
#include <sys/socket.h>

#include "common/base/clock.h"
#include "plugin/socket/sk_param.h"
#include "plugin/socket/sk_tls.h"
#include "plugin/socket/sk_wire.h"
#include "test/unit/key_file.h"

static const uint8_t tls_secret[SK_TLS_SECRET] = "the same on both sides, 32 bytes";

/* The system's configuration asks for what the plugin must not have. */
static void write_openssl_conf(const char *path) {
  static const char text[] = "openssl_conf = a\n[a]\nssl_conf = b\n[b]\nsystem_default = c\n"
                             "[c]\nOptions = AllowNoDHEKEX,SessionTicket,Compression,ClientRenegotiation\n"
                             "MinProtocol = TLSv1.2\nCiphersuites = TLS_AES_256_GCM_SHA384\n";
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ENSURE(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1, "cannot write %s", path);
  close(fd);
}

/* Once per process: a key, and libssl. False: this build, or this machine, has none. */
static bool tls_prepare(void) {
  static bool done;
  char conf[sizeof key_dir + 8];
  if (done) return true;
  make_key_dir();
  snprintf(conf, sizeof conf, "%s/cnf", key_dir);
  write_openssl_conf(conf);
  setenv("OPENSSL_CONF", conf, 1);
  setenv("RAIL_SOCKET_AUTH_FILE", key_path, 1);
  setenv("RAIL_SOCKET_TLS", "psk", 1);
  sk_params_load();
  bool loaded = sk_protocol_load() && sk_tls_load();
  unlink(conf);
  remove_key_dir();
  done = loaded;
  return loaded;
}

/* A connector and an acceptor: each at its socket, whose other ends are the wire. */
struct tls_pair {
  struct sk_tls *side[2];
  int fds[2], wire[2];
  uint64_t carried[2]; /* bytes, by who sent them */
};
enum { TLS_CONNECTOR, TLS_ACCEPTOR };

__attribute__((unused)) static void tls_open(struct tls_pair *p, const uint8_t *acceptors_secret) {
  *p = (struct tls_pair){.carried = {0}};
  ENSURE(tls_prepare(), "no TLS");
  for (int i = 0; i < 2; i++) {
    int fds[2], small = 64 * 1024;
    ENSURE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0, "no socket pair");
    for (int k = 0; k < 2; k++) (void)setsockopt(fds[k], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    p->fds[i] = fds[0];
    p->wire[i] = fds[1];
    p->side[i] = sk_tls_new(i == TLS_CONNECTOR);
    ENSURE(p->side[i], "no memory");
    ENSURE_INT(sk_tls_begin(p->side[i], fds[0], i == TLS_CONNECTOR ? tls_secret : acceptors_secret), RAIL_OK);
  }
}

static void tls_close_wire(struct tls_pair *p) {
  for (int i = 0; i < 2; i++) rail_sock_close(&p->wire[i]);
}

__attribute__((unused)) static void tls_end(struct tls_pair *p) {
  for (int i = 0; i < 2; i++) sk_tls_free(p->side[i]);
  for (int i = 0; i < 2; i++) rail_sock_close(&p->fds[i]);
  tls_close_wire(p);
}

/* Up to `most` bytes from one side to the other, as they are; how many. 0: nothing there, or no room. */
__attribute__((unused)) static size_t tls_carry(struct tls_pair *p, int from, size_t most) {
  uint8_t bytes[16 * 1024];
  ssize_t n = recv(p->wire[from], bytes, RAIL_MIN(most, sizeof bytes), MSG_PEEK | MSG_DONTWAIT);
  if (n <= 0) return 0;
  n = send(p->wire[!from], bytes, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n <= 0) return 0;
  ENSURE(recv(p->wire[from], bytes, (size_t)n, MSG_DONTWAIT) == n, "the wire has lost bytes");
  p->carried[from] += (uint64_t)n;
  return (size_t)n;
}

/* One step of both handshakes over a wire that carries `most` bytes at a time. True: both are over, well or not. */
__attribute__((unused)) static bool tls_step(struct tls_pair *p, size_t most, rail_result_t results[2]) {
  for (int i = 0; i < 2; i++) {
    results[i] = sk_tls_handshake(p->side[i]);
    (void)tls_carry(p, i, most);
  }
  return results[0] != RAIL_IN_PROGRESS && results[1] != RAIL_IN_PROGRESS;
}

__attribute__((unused)) static void tls_shake(struct tls_pair *p, size_t most) {
  uint64_t deadline = rail_deadline_in_ms(10000);
  rail_result_t results[2];
  while (!tls_step(p, most, results)) ENSURE(!rail_deadline_passed(deadline), "the handshake does not end");
  for (int i = 0; i < 2; i++)
    ENSURE(results[i] == RAIL_OK, "side %d: %d, %s", i, results[i], sk_tls_error(p->side[i]));
}

#endif
