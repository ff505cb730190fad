/* SPDX-License-Identifier: Apache-2.0
 * Where a stream begins, and what it says first. */
#include "plugin/socket/sk_dial.h"

#include "plugin/socket/sk_sockopt.h"

void sk_leg_init(struct sk_leg *leg, const struct sk_device *path, const union rail_addr *peer, unsigned int stream,
                 int traffic_class, enum rail_dial_bind bind) {
  const struct rail_dial_args from = {.plugin = "RailSocket",
                                      .interface = path->name,
                                      .addr = &path->addr,
                                      .bind = bind,
                                      .traffic_class = traffic_class,
                                      .set_options = sk_sockopt_set,
                                      .stream = (int)stream};
  leg->path = path;
  leg->hello = (struct sk_hello_wire){0};
  rail_dial_init(&leg->dial, &from, peer);
}

rail_result_t sk_leg_step(struct sk_leg *leg) { return rail_dial_step(&leg->dial, &leg->hello, sizeof leg->hello); }

void sk_leg_close(struct sk_leg *leg) { rail_dial_close(&leg->dial); }
