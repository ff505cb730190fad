/* SPDX-License-Identifier: Apache-2.0
 *
 * Authentication: with RAIL_IB_AUTH_FILE, HELLO and every message of the handshake carry an HMAC-SHA-256. HELLO's
 * covers itself and the handle that it answers; a message's covers itself, its sender's role, its number, HELLO's mac,
 * and the nonce in the acceptor's welcome, so that no message is valid in another handshake. Refusals carry none. What
 * this does and does not protect against: docs/protocol-ib.md.
 */
#ifndef IB_AUTH_H
#define IB_AUTH_H

#include "plugin/ib/ib_wire.h"

/* Reads the key, once; call under the plugin's lock. False, after one line: the key cannot be read, so there must be
 * no connections at all. */
bool ib_auth_load(void);
bool ib_auth_on(void);

/* Fills nonce and mac. `listener` is the handle as listen made it. */
rail_result_t ib_auth_sign_hello(const struct ib_handle *listener, struct ib_hello_wire *hello);
bool ib_auth_check_hello(const struct ib_handle *listener, const struct ib_hello_wire *hello);

/* What the macs of one handshake's messages have in common. */
struct ib_auth_session {
  uint8_t hello_mac[RAIL_MAC_SIZE];
  uint8_t nonce[IB_NONCE_SIZE]; /* of the welcome; zero before it */
};
/* Of message `number` (0..) of the connector or the acceptor: head and body, `size` bytes. */
rail_result_t ib_auth_mac(const struct ib_auth_session *session, bool connector, uint32_t number, const void *message,
                          size_t size, uint8_t mac[RAIL_MAC_SIZE]);

#endif
