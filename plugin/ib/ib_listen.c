/* SPDX-License-Identifier: Apache-2.0
 *
 * The accepting side, the receiver. What ends accept with an error, as any peer would meet it: ports that do not fit, a
 * local device that fails, a peer that refused.
 */
#include <pthread.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "plugin/ib/ib_setup.h"

#define HINTS_NS 1000000000ull /* see give_hints: what is offered is checked again when the connection is made */

/* ---- steps that only this side has --------------------------------------- */

static rail_result_t step_hints(struct rail_setup *base) {
  struct ib_setup *s = ib_setup_of(base);
  s->nhints = s->theirs.nrails;
  for (unsigned int i = 0; i < s->nhints; i++) {
    s->hints[i] = (struct ib_gid){.type = s->theirs.rails[i].gid_type, .valid = true};
    memcpy(s->hints[i].raw, s->theirs.rails[i].gid, sizeof s->hints[i].raw);
  }
  return RAIL_OK;
}

static rail_result_t step_ready(struct rail_setup *s) {
  return rail_handshake_send(&s->handshake, IB_MESSAGE_READY, NULL, 0);
}

static const struct rail_setup_row table[] = {
  {"recv offer", ib_setup_recv_offer, "the peer's offer", false},
  {"hints", step_hints, NULL, false},
  {"query ports", ib_setup_query_ports, NULL, false},
  {"offer", ib_setup_offer, NULL, false},
  {"plan", ib_setup_plan, NULL, false},
  {"welcome", rail_setup_welcome, NULL, false},
  {"send offer", ib_setup_send_offer, NULL, false},
  {"comm", ib_setup_comm, NULL, false},
  {"completion queues", ib_setup_cqs, NULL, false},
  {"memory", ib_setup_memory, NULL, false},
  {"queue pairs", ib_setup_qps, NULL, false},
  {"to INIT", ib_setup_inits, NULL, false},
  {"receives", ib_setup_receives, "the driver to take flush queue pairs to RTS", false},
  {"send queue pairs", ib_setup_send_qps, NULL, false},
  {"recv queue pairs", ib_setup_recv_qps, "the peer's queue pairs", false},
  {"to RTR", ib_setup_rtrs, "the driver to take queue pairs to RTR (address resolution)", false},
  {"to RTS", ib_setup_rtss, "the driver to take queue pairs to RTS", false},
  {"start", ib_setup_start, NULL, false},
  {"ready", step_ready, NULL, false},
  {"test writes", ib_setup_test_writes, NULL, false},
  {"verified", ib_setup_verified, "the first writes over each queue pair", false},
  {"all sent", rail_setup_flushed, "the peer to read what was sent", false},
};

const struct rail_setup_ops ib_acceptor_ops = {.protocol = &ib_protocol, .rows = table, .nrows = RAIL_COUNT_OF(table),
                                               .refused = ib_setup_refused};

/* ---- what a handle tells ----------------------------------------------------- */

/* Thousands of listeners are opened at once: a port is queried once a second for all of them. */
void ib_listen_fill_handle(const void *device_arg, struct rail_handle *handle) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  static struct {
    uint64_t until;
    struct ib_hints hints;
  } known[IB_MAX_DEVICES];
  const struct ib_device *device = device_arg;
  int dev = ib_device_index(device);
  pthread_mutex_lock(&lock);
  if (rail_now_ns() >= known[dev].until) {
    ib_offer_hints(device, &known[dev].hints);
    known[dev].until = rail_now_ns() + HINTS_NS;
  }
  ib_hints_encode(&known[dev].hints, handle);
  pthread_mutex_unlock(&lock);
}

/* ---- listen, accept, closeListen -------------------------------------------------- */

rail_result_t ib_listen(void *ctx, int dev, void *handle, void **listen_comm) {
  const struct ib_device *device = ib_device_at(dev, "listen");
  if (!device) return RAIL_BAD_ARGUMENT;
  return rail_net_setup_listen(&ib_net_setup, ctx, device, device->name, handle, listen_comm);
}

rail_result_t ib_accept(void *listen_comm, void **recv_comm, struct rail_net_device_handle **dev_handle) {
  (void)dev_handle;
  return rail_net_setup_accept(&ib_net_setup, listen_comm, recv_comm);
}

rail_result_t ib_close_listen(void *listen_comm) { return rail_net_setup_close_listen(&ib_net_setup, listen_comm); }
