/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * Addresses: the wire form, which is in handles and in every bootstrap
 * message, and the text form. Input: 24 bytes of wire form, then text.
 */
#include <netdb.h>
#include <stdlib.h>

#include "common/base/sock.h"
#include "test/fuzz/lib/fuzz.h"

/* No name is looked up from here: one beginning with 'h' has an address, the others have none. */
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
  struct {
    struct addrinfo info;
    union rail_addr addr;
  } *answer;
  (void)service, (void)hints;
  if (node[0] != 'h' || !(answer = calloc(1, sizeof *answer))) return EAI_NONAME;
  answer->addr.in.sin_family = AF_INET;
  answer->info.ai_addr = &answer->addr.sa;
  answer->info.ai_addrlen = sizeof answer->addr.in;
  *found = &answer->info;
  return 0;
}
void freeaddrinfo(struct addrinfo *found) { free(found); }

static void check_wire(const struct rail_addr_wire *wire) {
  union rail_addr addr, again;
  struct rail_addr_wire packed;
  char text[RAIL_ADDR_TEXT];
  if (!rail_addr_unpack(wire, &addr)) return;
  /* What unpack takes has one form only. */
  rail_addr_pack(&addr, &packed);
  FUZZ_CHECK(memcmp(&packed, wire, sizeof packed) == 0);
  FUZZ_CHECK(strlen(rail_addr_text(&addr, text)) < RAIL_ADDR_TEXT - 1);
  /* A scope of more than nine digits does not come back; no interface has such a number. */
  if (addr.sa.sa_family == AF_INET6 && addr.in6.sin6_scope_id > 999999999) return;
  FUZZ_CHECK(rail_addr_parse(text, &again) == RAIL_OK);
  rail_addr_pack(&again, &packed);
  FUZZ_CHECK(memcmp(&packed, wire, sizeof packed) == 0);
}

static void check_text(const char *text) {
  union rail_addr addr, again;
  char printed[RAIL_ADDR_TEXT];
  if (rail_addr_parse(text, &addr) != RAIL_OK) return;
  FUZZ_CHECK(addr.sa.sa_family == AF_INET || addr.sa.sa_family == AF_INET6);
  rail_addr_text(&addr, printed);
  FUZZ_CHECK(rail_addr_parse(printed, &again) == RAIL_OK);
  FUZZ_CHECK(rail_addr_port(&addr) == rail_addr_port(&again) && rail_addr_same_host(&addr, &again));
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct rail_addr_wire wire;
  struct fuzz_in in = {data, size};
  fuzz_fill(&in, &wire, sizeof wire);
  check_wire(&wire);
  char *text = fuzz_text(in.at, in.left);
  check_text(text);
  free(text);
}

static void seed(const char *name, const char *text) {
  struct fuzz_out out = {.size = 0};
  struct rail_addr_wire wire = {.family = 0};
  union rail_addr addr;
  if (rail_addr_parse(text, &addr) == RAIL_OK) rail_addr_pack(&addr, &wire);
  fuzz_put(&out, &wire, sizeof wire);
  fuzz_put(&out, text, strlen(text));
  fuzz_seed(name, out.bytes, out.size);
}

void fuzz_make_seeds(void) {
  seed("v4", "10.1.2.3:5000");
  seed("v6", "[2001:db8::17]:65535");
  seed("v6-scope", "[fe80::1%1]:1");
  seed("v6-scope-name", "[fe80::1%lo]:1");
  char longest[255 + 4];
  memset(longest, 'h', 255);
  memcpy(longest + 255, ":22", 4);
  seed("name-longest", longest);
  seed("name", "host.example:22");
  seed("no-port", "10.1.2.3");
  seed("port-high", "10.1.2.3:65536");
}
