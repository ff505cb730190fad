/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * The listen handle, which travels through the user's own channels: 128 bytes.
 */
#include "plugin/socket/sk_wire.h"
#include "test/fuzz/lib/fuzz.h"

void fuzz_one(const uint8_t *data, size_t size) {
  uint8_t bytes[RAIL_HANDLE_SIZE + 1], again[RAIL_HANDLE_SIZE];
  struct fuzz_in in = {data, size};
  struct rail_handle handle;
  const char *why = "";
  char text[RAIL_ADDR_TEXT];
  fuzz_fill(&in, bytes + 1, RAIL_HANDLE_SIZE); /* at an odd address */
  bool good = rail_handle_decode(&sk_protocol, bytes + 1, &handle, &why);
  FUZZ_CHECK(good == (why == NULL) && (good || why[0]));
  if (!good) return;
  FUZZ_CHECK(sk_handle_streams(&handle) >= 1 && sk_handle_streams(&handle) <= SK_MAX_STREAMS);
  FUZZ_CHECK(handle.naddrs >= 1 && handle.naddrs <= SK_MAX_RAILS);
  for (unsigned int i = 0; i < handle.naddrs; i++) {
    FUZZ_CHECK(rail_addr_port(&handle.addrs[i]) != 0);
    rail_addr_text(&handle.addrs[i], text);
  }
  /* What is taken has one form only. */
  rail_handle_encode(&sk_protocol, &handle, again);
  FUZZ_CHECK(memcmp(again, bytes + 1, sizeof again) == 0);
  rail_handle_set_attempt(bytes + 1, ~handle.attempt);
  FUZZ_CHECK(rail_handle_decode(&sk_protocol, bytes + 1, &handle, &why));
}

static void seed(const char *name, unsigned int naddrs, unsigned int streams, bool auth) {
  static const char *const addrs[SK_MAX_RAILS] = {"127.0.0.1:5000", "[fe80::1%2]:5001", "10.1.2.3:65535", "[::1]:1"};
  struct rail_handle handle = {.naddrs = naddrs, .param = (uint8_t)streams, .auth = auth, .secret = "fifteen letters"};
  uint8_t bytes[RAIL_HANDLE_SIZE];
  for (unsigned int i = 0; i < naddrs; i++) FUZZ_CHECK(rail_addr_parse(addrs[i], &handle.addrs[i]) == RAIL_OK);
  rail_handle_encode(&sk_protocol, &handle, bytes);
  fuzz_seed(name, bytes, sizeof bytes);
}

void fuzz_make_seeds(void) {
  seed("one-rail", 1, 1, false);
  seed("two-rails", 2, 16, true);
  seed("four-rails", 4, 4, false);
}
