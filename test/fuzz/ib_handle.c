/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * The listen handle of the ib plugin, which travels through the user's own channels: 128 bytes.
 */
#include "plugin/ib/ib_wire.h"
#include "test/fuzz/lib/fuzz.h"

void fuzz_one(const uint8_t *data, size_t size) {
  uint8_t bytes[RAIL_NET_HANDLE_SIZE + 1], again[RAIL_NET_HANDLE_SIZE];
  struct fuzz_in in = {data, size};
  struct ib_handle handle;
  const char *why = "";
  char text[RAIL_ADDR_TEXT];
  fuzz_fill(&in, bytes + 1, RAIL_NET_HANDLE_SIZE); /* at an odd address */
  bool good = ib_handle_decode(bytes + 1, &handle, &why);
  FUZZ_CHECK(good == (why == NULL) && (good || why[0]));
  if (!good) return;
  FUZZ_CHECK((handle.flags & ~IB_HANDLE_AUTH) == 0 && handle.ngids <= IB_HANDLE_GIDS);
  FUZZ_CHECK(rail_addr_port(&handle.addr) != 0);
  rail_addr_text(&handle.addr, text);
  /* What is taken has one form only. */
  ib_handle_encode(&handle, again);
  FUZZ_CHECK(memcmp(again, bytes + 1, sizeof again) == 0);
  ib_handle_set_attempt(bytes + 1, ~handle.attempt);
  FUZZ_CHECK(ib_handle_decode(bytes + 1, &handle, &why));
}

static void seed(const char *name, const char *addr, unsigned int ngids, unsigned int flags) {
  struct ib_handle handle = {.flags = flags, .secret = "fifteen letters", .ngids = ngids};
  uint8_t bytes[RAIL_NET_HANDLE_SIZE];
  FUZZ_CHECK(rail_addr_parse(addr, &handle.addr) == RAIL_OK);
  for (unsigned int i = 0; i < ngids; i++) memset(handle.gids[i], (int)i + 1, sizeof handle.gids[i]);
  ib_handle_encode(&handle, bytes);
  fuzz_seed(name, bytes, sizeof bytes);
}

void fuzz_make_seeds(void) {
  seed("plain", "127.0.0.1:5000", 0, 0);
  seed("two-gids", "10.1.2.3:65535", 2, IB_HANDLE_AUTH);
  seed("four-gids", "[fe80::1%2]:5001", 4, 0);
}
