/* SPDX-License-Identifier: Apache-2.0
 * Ports to give as a range. */
#ifndef FREE_PORTS_TEST_H
#define FREE_PORTS_TEST_H

#include <unistd.h>

#include "common/base/sock.h"
#include "kit/kit_ensure.h"

/* The first of `count` ports of which none is in use; chosen where the system does not choose by itself. */
static unsigned int free_range(unsigned int count) {
  unsigned int base = 10000 + (unsigned int)getpid() * 37 % 15000;
  for (int tries = 0; tries < 200; tries++, base += count + 1) {
    unsigned int good = 0;
    while (good < count) {
      union rail_addr addr = {.in = {.sin_family = AF_INET, .sin_addr.s_addr = INADDR_ANY}};
      int fd;
      rail_addr_set_port(&addr, (uint16_t)(base + good));
      if (rail_sock_listen(&addr, 1, &fd) != RAIL_OK) break;
      rail_sock_close(&fd);
      good++;
    }
    if (good == count) return base;
  }
  kit_failed(__FILE__, __LINE__, "no %u free ports in a row", count);
}

#endif
