/* SPDX-License-Identifier: Apache-2.0
 * A whole HELLO of the ib plugin, field by field. */
#ifndef IB_HELLO_TEST_H
#define IB_HELLO_TEST_H

#include <string.h>

#include "plugin/ib/ib_wire.h"

struct ib_hello_bytes {
  struct rail_hello_wire head;
  uint8_t mac[RAIL_MAC_SIZE];
};
_Static_assert(sizeof(struct ib_hello_bytes) == 96, "no holes");

/* A handle as bytes, and the hints in it. False: *why says what is wrong. */
__attribute__((unused)) static bool ib_handle_decode(const void *bytes, struct rail_handle *handle,
                                                     struct ib_hints *hints, const char **why) {
  if (!rail_handle_decode(&ib_protocol, bytes, handle, why)) return false;
  ib_hints_decode(handle, hints);
  return true;
}

/* Without a key not signed; with one, it is. `comm_id`: NULL: random. */
__attribute__((unused)) static struct ib_hello_bytes ib_make_hello(const struct rail_handle *listener,
                                                                   const char *comm_id, struct rail_hello *hello) {
  struct ib_hello_bytes bytes;
  *hello = (struct rail_hello){.streams = 1};
  if (comm_id) memcpy(hello->comm_id, comm_id, strnlen(comm_id, sizeof hello->comm_id));
  else (void)rail_random_bytes(hello->comm_id, sizeof hello->comm_id);
  if (rail_hello_encode(&ib_protocol, listener, hello, &bytes) != RAIL_OK) memset(&bytes, 0, sizeof bytes);
  return bytes;
}

#endif
