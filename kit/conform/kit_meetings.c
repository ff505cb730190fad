/* SPDX-License-Identifier: Apache-2.0
 * Connections between the sides of a check. */
#include <string.h>

#include "kit/conform/kit_check.h"

bool kit_sends(const struct kit_side *side) { return kit_side_rank(side) == 0; }
bool kit_receives(const struct kit_side *side) { return kit_side_rank(side) == kit_side_count(side) - 1; }

void kit_join(struct kit_side *side, struct kit_net *n, struct kit_pair *p) {
  if (kit_side_count(side) == 1) {
    kit_pair_open(n, p);
    return;
  }
  memset(p, 0, sizeof *p);
  p->net = n;
  memset(p->handle, 0xa5, sizeof p->handle);
  if (kit_sends(side)) {
    kit_get(side, 1, p->handle, sizeof p->handle);
    p->send = kit_net_connect(n, p->handle);
    return;
  }
  p->listen = kit_net_listen(n, p->handle);
  kit_put(side, 0, p->handle, sizeof p->handle);
  p->recv = kit_net_accept(n, p->listen);
  int rc = n->vt->close_listen(p->listen);
  p->listen = NULL;
  ENSURE(rc == 0, "closeListen returned %d", rc);
}

void kit_part(struct kit_side *side, struct kit_pair *p) {
  (void)side;
  int send = p->send ? p->net->vt->close_send(p->send) : 0;
  int recv = p->recv ? p->net->vt->close_recv(p->recv) : 0;
  p->send = p->recv = NULL;
  ENSURE(send == 0, "closeSend returned %d", send);
  ENSURE(recv == 0, "closeRecv returned %d", recv);
}
