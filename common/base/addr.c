/* SPDX-License-Identifier: Apache-2.0
 * Addresses: text, wire form, comparison. */
#include "common/base/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *rail_addr_text(const union rail_addr *addr, char text[RAIL_ADDR_TEXT]) {
  char ip[INET6_ADDRSTRLEN];
  if (addr->sa.sa_family == AF_INET && inet_ntop(AF_INET, &addr->in.sin_addr, ip, sizeof ip)) {
    snprintf(text, RAIL_ADDR_TEXT, "%s:%u", ip, ntohs(addr->in.sin_port));
  } else if (addr->sa.sa_family == AF_INET6 && inet_ntop(AF_INET6, &addr->in6.sin6_addr, ip, sizeof ip)) {
    char scope[16] = "";
    if (addr->in6.sin6_scope_id) snprintf(scope, sizeof scope, "%%%u", addr->in6.sin6_scope_id);
    snprintf(text, RAIL_ADDR_TEXT, "[%s%s]:%u", ip, scope, ntohs(addr->in6.sin6_port));
  } else {
    snprintf(text, RAIL_ADDR_TEXT, "(no address, family %d)", addr->sa.sa_family);
  }
  return text;
}

socklen_t rail_addr_len(const union rail_addr *addr) {
  return addr->sa.sa_family == AF_INET6 ? sizeof addr->in6 : sizeof addr->in;
}

uint16_t rail_addr_port(const union rail_addr *addr) {
  return ntohs(addr->sa.sa_family == AF_INET6 ? addr->in6.sin6_port : addr->in.sin_port);
}

void rail_addr_set_port(union rail_addr *addr, uint16_t port) {
  if (addr->sa.sa_family == AF_INET6) addr->in6.sin6_port = htons(port);
  else addr->in.sin_port = htons(port);
}

bool rail_addr_same_host(const union rail_addr *a, const union rail_addr *b) {
  if (a->sa.sa_family != b->sa.sa_family) return false;
  if (a->sa.sa_family == AF_INET) return a->in.sin_addr.s_addr == b->in.sin_addr.s_addr;
  if (a->sa.sa_family != AF_INET6) return false;
  return memcmp(&a->in6.sin6_addr, &b->in6.sin6_addr, sizeof a->in6.sin6_addr) == 0 &&
         a->in6.sin6_scope_id == b->in6.sin6_scope_id;
}

/* Cuts "host:port" or "[host]:port" in two; both outputs are NUL-terminated. */
static bool split_host_port(const char *text, char *host, size_t cap, uint16_t *port) {
  const char *start = text, *end, *colon;
  if (*text == '[') {
    start = text + 1;
    end = strchr(start, ']');
    if (!end || end[1] != ':') return false;
    colon = end + 1;
  } else {
    colon = strrchr(text, ':');
    if (!colon || memchr(text, ':', (size_t)(colon - text))) return false; /* bare IPv6 has no clear port */
    end = colon;
  }
  size_t len = (size_t)(end - start);
  if (len == 0 || len >= cap) return false;
  memcpy(host, start, len);
  host[len] = 0;

  const char *digits = colon + 1;
  size_t ndigits = strlen(digits);
  if (ndigits == 0 || ndigits > 5 || strspn(digits, "0123456789") != ndigits) return false;
  unsigned long number = strtoul(digits, NULL, 10);
  if (number > UINT16_MAX) return false;
  *port = (uint16_t)number;
  return true;
}

/* The scope after '%': an interface name or its number. */
static bool parse_scope(const char *scope, uint32_t *id) {
  *id = if_nametoindex(scope);
  if (*id) return true;
  size_t n = strlen(scope);
  if (n == 0 || n > 9 || strspn(scope, "0123456789") != n) return false;
  *id = (uint32_t)strtoul(scope, NULL, 10);
  return true;
}

static bool parse_numeric(char *host, union rail_addr *addr) {
  memset(addr, 0, sizeof *addr);
  if (inet_pton(AF_INET, host, &addr->in.sin_addr) == 1) {
    addr->in.sin_family = AF_INET;
    return true;
  }
  char *scope = strchr(host, '%');
  if (scope) *scope = 0;
  bool good = inet_pton(AF_INET6, host, &addr->in6.sin6_addr) == 1;
  if (scope) {
    *scope = '%';
    good = good && parse_scope(scope + 1, &addr->in6.sin6_scope_id);
  }
  if (good) addr->in6.sin6_family = AF_INET6;
  return good;
}

rail_result_t rail_addr_parse(const char *text, union rail_addr *addr) {
  char host[256];
  uint16_t port;
  memset(addr, 0, sizeof *addr);
  if (!text || !split_host_port(text, host, sizeof host, &port)) {
    errno = EINVAL;
    return RAIL_BAD_ARGUMENT;
  }
  if (!parse_numeric(host, addr)) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    memset(addr, 0, sizeof *addr);
    if (strchr(host, '%') || getaddrinfo(host, NULL, &hints, &found) != 0 || !found) {
      errno = EADDRNOTAVAIL;
      return RAIL_BAD_ARGUMENT;
    }
    memcpy(addr, found->ai_addr, RAIL_MIN((size_t)found->ai_addrlen, sizeof *addr));
    freeaddrinfo(found);
  }
  rail_addr_set_port(addr, port);
  return RAIL_OK;
}

void rail_addr_pack(const union rail_addr *addr, struct rail_addr_wire *wire) {
  memset(wire, 0, sizeof *wire);
  if (addr->sa.sa_family == AF_INET6) {
    uint32_t scope = htonl(addr->in6.sin6_scope_id);
    wire->family = 6;
    memcpy(wire->port, &addr->in6.sin6_port, sizeof wire->port);
    memcpy(wire->scope, &scope, sizeof wire->scope);
    memcpy(wire->ip, &addr->in6.sin6_addr, 16);
  } else {
    wire->family = 4;
    memcpy(wire->port, &addr->in.sin_port, sizeof wire->port);
    memcpy(wire->ip, &addr->in.sin_addr, 4);
  }
}

bool rail_addr_unpack(const struct rail_addr_wire *wire, union rail_addr *addr) {
  static const uint8_t zeros[16];
  memset(addr, 0, sizeof *addr);
  if (wire->zero != 0) return false;
  if (wire->family == 4) {
    if (memcmp(wire->scope, zeros, sizeof wire->scope) != 0 || memcmp(wire->ip + 4, zeros, 12) != 0) return false;
    addr->in.sin_family = AF_INET;
    memcpy(&addr->in.sin_port, wire->port, sizeof wire->port);
    memcpy(&addr->in.sin_addr, wire->ip, 4);
    return true;
  }
  if (wire->family != 6) return false;
  uint32_t scope;
  memcpy(&scope, wire->scope, sizeof scope);
  addr->in6.sin6_family = AF_INET6;
  addr->in6.sin6_scope_id = ntohl(scope);
  memcpy(&addr->in6.sin6_port, wire->port, sizeof wire->port);
  memcpy(&addr->in6.sin6_addr, wire->ip, 16);
  return true;
}
