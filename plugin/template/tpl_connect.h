/* SPDX-License-Identifier: Apache-2.0
 * A connect that is under way. It is the context's until HELLO is written, then the send comm's until the acceptor's
 * welcome is there: NCCL may send before the peer has called accept. */
#ifndef TPL_CONNECT_H
#define TPL_CONNECT_H

#include "common/conn/connector.h"

struct tpl_attempt {
  struct rail_connector connector;
  struct rail_handshake handshake;
};

static inline void tpl_attempt_close(struct tpl_attempt *attempt) {
  rail_connector_close(&attempt->connector);
  rail_handshake_close(&attempt->handshake);
}

#endif
