/* SPDX-License-Identifier: Apache-2.0
 *
 * Do both sides have the same key? With RAIL_SOCKET_AUTH_FILE each HELLO
 * carries an HMAC-SHA-256 of itself and of the handle it answers to, and each
 * welcome one of itself and of that HELLO. What this does and does not protect
 * against: docs/protocol-socket.md, section 2.
 */
#ifndef SK_AUTH_H
#define SK_AUTH_H

#include "plugin/socket/sk_wire.h"

/* common/conn/hmac.h: rail_key_load, with RAIL_SOCKET_AUTH_FILE; once per process, under the plugin's lock.
 * False, after one line: authentication is wanted and not to be had, so there must be no connections at all. */
bool sk_auth_load(void);
bool sk_auth_on(void);

/* Fills nonce and mac. `listener` is the handle as listen made it. */
rail_result_t sk_auth_sign_hello(const struct sk_handle *listener, struct sk_hello_wire *hello);
bool sk_auth_check_hello(const struct sk_handle *listener, const struct sk_hello_wire *hello);
/* The mac of a welcome to the HELLO with `hello_mac`: to send, or to compare with. */
rail_result_t sk_auth_sign_answer(const uint8_t *hello_mac, struct sk_answer_wire *answer);

#endif
