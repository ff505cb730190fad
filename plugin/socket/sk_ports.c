/* SPDX-License-Identifier: Apache-2.0
 * Ports of a range are tried in an order that is random for the process, so
 * that the ranks of a machine do not queue up at the same ones. */
#include "plugin/socket/sk_ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/compiler.h"
#include "common/log.h"
#include "plugin/socket/sk_param.h"

static struct {
  bool loaded;
  bool bound; /* to an address of its own */
  union rail_addr bind;
  uint32_t first, count; /* count 0: the system chooses */
  /* The i-th to try is first + (start + i * step) % count; step and count have no common factor. */
  uint32_t start, step;
  _Atomic uint32_t next; /* i of the next listen */
} ports;

static bool parse_range(const char *text, uint32_t *first, uint32_t *count) {
  char *end;
  unsigned long lo = strtoul(text, &end, 10), hi = lo;
  if (end == text || *text == '-') return false;
  if (*end == '-') {
    const char *second = end + 1;
    hi = strtoul(second, &end, 10);
    if (end == second || *second == '-') return false;
  }
  if (*end || lo < 1 || hi > 65535 || lo > hi) return false;
  *first = (uint32_t)lo;
  *count = (uint32_t)(hi - lo + 1);
  return true;
}

static uint32_t common_factor(uint32_t a, uint32_t b) {
  while (b) {
    uint32_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

static void choose_order(void) {
  uint32_t random[2] = {0, 0};
  (void)rail_random_bytes(random, sizeof random); /* without: an order all the same */
  ports.start = random[0] % ports.count;
  ports.step = random[1] % ports.count;
  while (common_factor(ports.step, ports.count) != 1) ports.step++; /* count + 1 at the latest */
}

static bool parse_bind(const char *text, union rail_addr *addr) {
  *addr = (union rail_addr){0};
  if (inet_pton(AF_INET, text, &addr->in.sin_addr) == 1) addr->sa.sa_family = AF_INET;
  else if (inet_pton(AF_INET6, text, &addr->in6.sin6_addr) == 1) addr->sa.sa_family = AF_INET6;
  else return false;
  return true;
}

void sk_ports_load(void) {
  if (ports.loaded) return;
  ports.loaded = true;
  if (sk_params.ports && *sk_params.ports) {
    if (parse_range(sk_params.ports, &ports.first, &ports.count)) choose_order();
    else
      RAIL_WARN("RAIL_SOCKET_PORTS=%s is not a port range; allowed: first-last, within 1..65535. "
                "The system chooses the ports", sk_params.ports);
  }
  if (sk_params.bind && *sk_params.bind) {
    ports.bound = parse_bind(sk_params.bind, &ports.bind);
    if (!ports.bound)
      RAIL_WARN("RAIL_SOCKET_BIND=%s is not an address; allowed: a numeric IPv4 or IPv6 address, 0.0.0.0, ::. "
                "Listeners bind to the address of their interface", sk_params.bind);
  }
}

/* `addr` without port becomes a listening socket's. */
static rail_result_t listen_in_range(union rail_addr *addr, int backlog, int *fd) {
  uint32_t begin = atomic_load_explicit(&ports.next, memory_order_relaxed);
  for (uint32_t i = begin; i - begin < ports.count; i++) {
    uint64_t at = (ports.start + (uint64_t)(i % ports.count) * ports.step) % ports.count;
    rail_addr_set_port(addr, (uint16_t)(ports.first + at));
    rail_result_t result = rail_sock_listen(addr, backlog, fd);
    if (result == RAIL_OK) atomic_store_explicit(&ports.next, (i + 1) % ports.count, memory_order_relaxed);
    if (result == RAIL_OK || errno != EADDRINUSE) return result;
  }
  errno = EADDRINUSE;
  return RAIL_SYSTEM_ERROR;
}

static const char *advice(int err, char text[96]) {
  if (err == EMFILE || err == ENFILE) return "; raise the limit of open files (ulimit -n)";
  if (err == EADDRINUSE && ports.count) {
    snprintf(text, 96, "; all %u ports of RAIL_SOCKET_PORTS=%u-%u are taken", ports.count, ports.first,
             ports.first + ports.count - 1);
    return text;
  }
  if (err == EADDRINUSE) return "; no free port (net.ipv4.ip_local_port_range)";
  if (err == EADDRNOTAVAIL) return "; is that (RAIL_SOCKET_BIND) an address of this machine?";
  if (err == EACCES) return "; ports below net.ipv4.ip_unprivileged_port_start are the administrator's";
  return "";
}

rail_result_t sk_ports_listen(const struct sk_device *interface, int backlog, union rail_addr *addr, int *fd) {
  char text[RAIL_ADDR_TEXT], more[96];
  union rail_addr at = ports.bound ? ports.bind : interface->addr;
  *addr = interface->addr;
  *fd = -1;
  /* A socket bound to :: takes both; any other answers only to its own family. */
  if (at.sa.sa_family == AF_INET && addr->sa.sa_family != AF_INET) {
    RAIL_WARN("RailSocket: listen on %s: it has an IPv6 address, RAIL_SOCKET_BIND=%s is IPv4", interface->name,
              sk_params.bind);
    return RAIL_BAD_USAGE;
  }
  rail_addr_set_port(&at, 0);
  rail_result_t result = ports.count ? listen_in_range(&at, backlog, fd) : rail_sock_listen(&at, backlog, fd);
  if (result == RAIL_OK) {
    rail_addr_set_port(addr, rail_addr_port(&at));
    return RAIL_OK;
  }
  int err = errno;
  RAIL_WARN("RailSocket: listen on %s, address %s: %s%s", interface->name, rail_addr_text(&at, text), strerror(err),
            advice(err, more));
  return RAIL_SYSTEM_ERROR;
}
