/* SPDX-License-Identifier: Apache-2.0
 * Ports of a range are tried in an order that is random for the process, so
 * that the ranks of a machine do not queue up at the same ones. */
#include "common/conn/ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

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

static void choose_order(struct rail_ports *ports) {
  uint32_t random[2] = {0, 0};
  (void)rail_random_bytes(random, sizeof random); /* without: an order all the same */
  ports->start = random[0] % ports->count;
  ports->step = random[1] % ports->count;
  while (common_factor(ports->step, ports->count) != 1) ports->step++; /* count + 1 at the latest */
}

static bool parse_bind(const char *text, union rail_addr *addr) {
  *addr = (union rail_addr){0};
  if (inet_pton(AF_INET, text, &addr->in.sin_addr) == 1) addr->sa.sa_family = AF_INET;
  else if (inet_pton(AF_INET6, text, &addr->in6.sin6_addr) == 1) addr->sa.sa_family = AF_INET6;
  else return false;
  return true;
}

void rail_ports_load(struct rail_ports *ports, const char *range, const char *bind) {
  if (ports->loaded) return;
  ports->loaded = true;
  if (range && *range) {
    if (parse_range(range, &ports->first, &ports->count)) choose_order(ports);
    else
      RAIL_WARN("%s=%s is not a port range; allowed: first-last, within 1..65535. The system chooses the ports",
                ports->range_param, range);
  }
  if (bind && *bind) {
    ports->bind_text = bind;
    ports->bound = parse_bind(bind, &ports->bind);
    if (!ports->bound)
      RAIL_WARN("%s=%s is not an address; allowed: a numeric IPv4 or IPv6 address, 0.0.0.0, ::. "
                "Listeners bind to the address of their interface", ports->bind_param, bind);
  }
}

/* `addr` without port becomes a listening socket's. */
static rail_result_t listen_in_range(struct rail_ports *ports, union rail_addr *addr, int backlog, int *fd) {
  uint32_t begin = atomic_load_explicit(&ports->next, memory_order_relaxed);
  for (uint32_t i = begin; i - begin < ports->count; i++) {
    uint64_t at = (ports->start + (uint64_t)(i % ports->count) * ports->step) % ports->count;
    rail_addr_set_port(addr, (uint16_t)(ports->first + at));
    rail_result_t result = rail_sock_listen(addr, backlog, fd);
    if (result == RAIL_OK) atomic_store_explicit(&ports->next, (i + 1) % ports->count, memory_order_relaxed);
    if (result == RAIL_OK || errno != EADDRINUSE) return result;
  }
  errno = EADDRINUSE;
  return RAIL_SYSTEM_ERROR;
}

static const char *advice(const struct rail_ports *ports, int err, char text[128]) {
  if (err == EMFILE || err == ENFILE) return "; raise the limit of open files (ulimit -n)";
  if (err == EADDRINUSE && ports->count) {
    snprintf(text, 128, "; all %u ports of %s=%u-%u are taken", ports->count, ports->range_param, ports->first,
             ports->first + ports->count - 1);
    return text;
  }
  if (err == EADDRINUSE) return "; no free port (net.ipv4.ip_local_port_range)";
  if (err == EADDRNOTAVAIL) {
    snprintf(text, 128, "; is that (%s) an address of this machine?", ports->bind_param);
    return text;
  }
  if (err == EACCES) return "; ports below net.ipv4.ip_unprivileged_port_start are the administrator's";
  return "";
}

rail_result_t rail_ports_listen(struct rail_ports *ports, const char *name, const union rail_addr *of, int backlog,
                                union rail_addr *addr, int *fd) {
  char text[RAIL_ADDR_TEXT], more[128];
  union rail_addr at = ports->bound ? ports->bind : *of;
  *addr = *of;
  *fd = -1;
  /* A socket bound to :: takes both; any other answers only to its own family. */
  if (at.sa.sa_family == AF_INET && addr->sa.sa_family != AF_INET) {
    RAIL_WARN("%s: listen on %s: it has an IPv6 address, %s=%s is IPv4", ports->plugin, name, ports->bind_param,
              ports->bind_text);
    return RAIL_BAD_USAGE;
  }
  rail_addr_set_port(&at, 0);
  rail_result_t result = ports->count ? listen_in_range(ports, &at, backlog, fd) : rail_sock_listen(&at, backlog, fd);
  if (result == RAIL_OK) {
    rail_addr_set_port(addr, rail_addr_port(&at));
    return RAIL_OK;
  }
  int err = errno;
  RAIL_WARN("%s: listen on %s, address %s: %s%s", ports->plugin, name, rail_addr_text(&at, text), strerror(err),
            advice(ports, err, more));
  return RAIL_SYSTEM_ERROR;
}
