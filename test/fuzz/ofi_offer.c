/* SPDX-License-Identifier: Apache-2.0
 * TEST-SAN: asan
 *
 * The body of the ofi plugin's OFFER. Input: the bytes.
 *
 * Held: what is taken is in its bounds, names are text with an end, and encoding it again says the same.
 */
#include "plugin/ofi/ofi_wire.h"
#include "test/fuzz/lib/fuzz.h"

static void check_name(const char *name) {
  FUZZ_CHECK(name[0] && memchr(name, 0, OFI_NAME_SIZE));
  for (; *name; name++) FUZZ_CHECK(*name >= ' ' && *name <= '~');
}

void fuzz_one(const uint8_t *data, size_t size) {
  struct ofi_offer o, again;
  struct ofi_offer_wire wire;
  uint8_t *body = fuzz_guarded(size);
  if (size) memcpy(body, data, size);
  const char *why = ofi_offer_decode(body, size, &o);
  fuzz_guarded_free(body, size);
  if (why) {
    FUZZ_CHECK(why[0]);
    return;
  }
  FUZZ_CHECK(o.nnics >= 1 && o.nnics <= OFI_MAX_PATHS && o.max_inline <= OFI_MAX_INLINE && o.comm < OFI_MAX_COMMS);
  FUZZ_CHECK(o.eager_count <= OFI_MAX_EAGER);
  check_name(o.provider);
  check_name(o.domain);
  for (unsigned int i = 0; i < o.nnics; i++) FUZZ_CHECK(o.addrs[i].size >= 1 && o.addrs[i].size <= OFI_ADDR_SIZE);
  FUZZ_CHECK(ofi_offer_encode(&o, &wire) == size);
  FUZZ_CHECK(!ofi_offer_decode(&wire, size, &again));
  FUZZ_CHECK(o.process == again.process && o.token == again.token && o.comm == again.comm &&
             o.eager_count == again.eager_count);
  FUZZ_CHECK(strcmp(o.provider, again.provider) == 0 && strcmp(o.domain, again.domain) == 0);
  for (unsigned int i = 0; i < o.nnics; i++)
    FUZZ_CHECK(o.addrs[i].size == again.addrs[i].size &&
               memcmp(o.addrs[i].bytes, again.addrs[i].bytes, o.addrs[i].size) == 0);
}

void fuzz_make_seeds(void) {
  static const char *const names[] = {"one-nic", "two-nics", "three-nics", "four-nics"};
  for (unsigned int n = 1; n <= OFI_MAX_PATHS; n++) {
    struct ofi_offer o = {.process = 1, .token = 2, .comm = 3, .max_inline = 2048, .nnics = n,
                          .eager_count = n == 1 ? 0 : OFI_MAX_EAGER, .provider = "tcp;ofi_rxm", .domain = "eth0"};
    struct ofi_offer_wire wire;
    for (unsigned int i = 0; i < n; i++) {
      o.addrs[i].size = (uint16_t)(i == 3 ? OFI_ADDR_SIZE : 16);
      memset(o.addrs[i].bytes, (int)i + 1, o.addrs[i].size);
    }
    size_t size = ofi_offer_encode(&o, &wire);
    fuzz_seed(names[n - 1], &wire, size);
  }
}
