/* SPDX-License-Identifier: Apache-2.0
 *
 * A key from a file, and HMAC-SHA-256 with it: how two sides of a connection
 * show each other that both have the key. What a mac is of, and what is not
 * protected by it, is the protocol's business.
 *
 * HMAC is OpenSSL's libcrypto, opened when a key is wanted and never otherwise.
 */
#ifndef RAIL_HMAC_H
#define RAIL_HMAC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/result.h"

#define RAIL_MAC_SIZE 32
#define RAIL_KEY_MIN 16
#define RAIL_KEY_MAX 4096

/* One for each parameter that names a key file; static, with these two filled in by its owner:
 *   static struct rail_key key = {.plugin = "RailSocket", .param = "RAIL_SOCKET_AUTH_FILE"};
 * After loading it is read-only, and any thread may use it. */
struct rail_key {
  const char *plugin; /* for lines in the log */
  const char *param;
  /* The rest is filled by rail_key_load. */
  bool loaded, good, on;
  const void *(*sha256)(void);
  unsigned char *(*hmac)(const void *md, const void *key, int key_len, const unsigned char *data, size_t len,
                         unsigned char *mac, unsigned int *mac_len);
  int size;
  uint8_t bytes[RAIL_KEY_MAX + 1];
};

/* Reads the key from `path` and opens libcrypto; NULL: no key is wanted. The first call counts, later ones only
 * return what it found. Call under the plugin's lock. False, after one line that says why and ends in "no devices":
 * a key is wanted and not to be had, so there must be no connections at all.
 * A key file is a regular file that others (chmod o=) may not use, of 16 to 4096 bytes, a newline at its end aside. */
bool rail_key_load(struct rail_key *key, const char *path);

/* Is there a key? */
static inline bool rail_key_on(const struct rail_key *key) { return key->on; }

/* The mac of one message in one piece. It should begin with a label of its own for each kind of message, so that none
 * passes for another. RAIL_SYSTEM_ERROR, after one line, without key or when libcrypto refuses. */
rail_result_t rail_key_mac(const struct rail_key *key, const void *message, size_t size, uint8_t mac[RAIL_MAC_SIZE]);

#define RAIL_LABEL_SIZE 32
#define RAIL_MAC_INPUT_MAX 8192 /* label and parts together */
struct rail_mac_part {
  const void *data;
  size_t size;
};
/* The mac of a label, which keeps it from passing for one of another kind in whatever protocol the key is used for,
 * and of `n` parts, one after the other. Their sizes are the protocol's: fixed, or given by an earlier part. */
rail_result_t rail_key_mac_of(const struct rail_key *key, const char label[RAIL_LABEL_SIZE],
                              const struct rail_mac_part *parts, unsigned int n, uint8_t mac[RAIL_MAC_SIZE]);

#endif
