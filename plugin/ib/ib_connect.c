/* SPDX-License-Identifier: Apache-2.0
 * The connecting side, the sender. */
#include "plugin/ib/ib_setup.h"

static rail_result_t step_ready(struct rail_setup *s) {
  struct rail_message message;
  RAIL_TRY(rail_setup_recv(s, IB_MESSAGE_READY, &message));
  if (message.size == 0) return RAIL_OK;
  return rail_setup_fail(s, RAIL_REASON_MESSAGE, RAIL_REMOTE_ERROR, "its READY has %zu bytes too many", message.size);
}

static const struct rail_setup_row table[] = {
  {"query ports", ib_setup_query_ports, NULL, false},
  {"offer", ib_setup_offer, NULL, false},
  {"dial", rail_setup_dial, "a TCP connection", false},
  {"send offer", ib_setup_send_offer, NULL, false},
  {"recv answer", rail_setup_answer, "the peer's answer (it comes when its side calls accept)", true},
  {"recv offer", ib_setup_recv_offer, "the peer's offer", false},
  {"plan", ib_setup_plan, NULL, false},
  {"comm", ib_setup_comm, NULL, false},
  {"completion queues", ib_setup_cqs, NULL, false},
  {"memory", ib_setup_memory, NULL, false},
  {"queue pairs", ib_setup_qps, NULL, false},
  {"to INIT", ib_setup_inits, NULL, false},
  {"recv queue pairs", ib_setup_recv_qps, "the peer's queue pairs", false},
  {"to RTR", ib_setup_rtrs, "the driver to take queue pairs to RTR (address resolution)", false},
  {"to RTS", ib_setup_rtss, "the driver to take queue pairs to RTS", false},
  {"start", ib_setup_start, NULL, false},
  {"send queue pairs", ib_setup_send_qps, NULL, false},
  {"recv ready", step_ready, "the peer's queue pairs to be ready", false},
  {"test writes", ib_setup_test_writes, NULL, false},
  {"verified", ib_setup_verified, "the first writes over each queue pair", false},
};

const struct rail_setup_ops ib_connector_ops = {.protocol = &ib_protocol, .rows = table, .nrows = RAIL_COUNT_OF(table),
                                                .refused = ib_setup_refused};

rail_result_t ib_connect(void *ctx, int dev, void *handle, int traffic_class, void **send_comm,
                         struct rail_net_device_handle **dev_handle) {
  const struct ib_device *device = ib_device_at(dev, "connect");
  (void)dev_handle;
  if (!device) return RAIL_BAD_ARGUMENT;
  return rail_net_setup_connect(&ib_net_setup, ctx, device, device->name, handle, traffic_class, send_comm);
}
