/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * The listen handle of the ib plugin, which travels through the user's own channels: 128 bytes.
 */
#include "test/fuzz/lib/fuzz.h"
#include "test/unit/ib_hello.h"

void fuzz_one(const uint8_t *data, size_t size) {
  uint8_t bytes[RAIL_HANDLE_SIZE + 1], again[RAIL_HANDLE_SIZE];
  struct fuzz_in in = {data, size};
  struct rail_handle handle;
  struct ib_hints hints;
  const char *why = "";
  char text[RAIL_ADDR_TEXT];
  fuzz_fill(&in, bytes + 1, RAIL_HANDLE_SIZE); /* at an odd address */
  bool good = ib_handle_decode(bytes + 1, &handle, &hints, &why);
  FUZZ_CHECK(good == (why == NULL) && (good || why[0]));
  if (!good) return;
  FUZZ_CHECK(handle.naddrs == 1 && hints.n <= IB_HANDLE_GIDS);
  FUZZ_CHECK(rail_addr_port(&handle.addrs[0]) != 0);
  rail_addr_text(&handle.addrs[0], text);
  /* What is taken has one form only. */
  rail_handle_encode(&ib_protocol, &handle, again);
  FUZZ_CHECK(memcmp(again, bytes + 1, sizeof again) == 0);
  rail_handle_set_attempt(bytes + 1, ~handle.attempt);
  FUZZ_CHECK(ib_handle_decode(bytes + 1, &handle, &hints, &why));
}

static void seed(const char *name, const char *addr, unsigned int ngids, bool auth) {
  struct rail_handle handle = {.auth = auth, .secret = "fifteen letters", .naddrs = 1};
  struct ib_hints hints = {.n = ngids};
  uint8_t bytes[RAIL_HANDLE_SIZE];
  FUZZ_CHECK(rail_addr_parse(addr, &handle.addrs[0]) == RAIL_OK);
  for (unsigned int i = 0; i < ngids; i++) memset(hints.gids[i], (int)i + 1, sizeof hints.gids[i]);
  ib_hints_encode(&hints, &handle);
  rail_handle_encode(&ib_protocol, &handle, bytes);
  fuzz_seed(name, bytes, sizeof bytes);
}

void fuzz_make_seeds(void) {
  seed("plain", "127.0.0.1:5000", 0, false);
  seed("two-gids", "10.1.2.3:65535", 2, true);
  seed("four-gids", "[fe80::1%2]:5001", 4, false);
}
