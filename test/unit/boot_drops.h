/* SPDX-License-Identifier: Apache-2.0
 * Unauthenticated connections to ranks and to the rendezvous. */
#ifndef TEST_BOOT_DROPS_H
#define TEST_BOOT_DROPS_H

#include "common/base/sock.h"
#include "core/bootstrap/rt_boot_wire.h"
#include "test/unit/boot_ranks.h"

static int connect_to(const union rail_addr *addr) {
  int fd = -1;
  CHECK_OK(rail_sock_connect_all(addr, NULL, rail_deadline_in_ms(10000), NULL, &fd));
  return fd;
}

/* Silence, junk, and headers that are almost right. */
static void send_junk(const union rail_addr *addr, int *fds, int n) {
  for (int i = 0; i < n; i++) {
    unsigned char junk[200];
    fds[i] = connect_to(addr);
    CHECK_OK(rail_random_bytes(junk, sizeof junk));
    struct rt_boot_header almost = rt_boot_header_make(RT_BOOT_HELLO, 0, 0xfffffff0u);
    if (i % 4 == 1) CHECK_OK(rail_sock_send_all(fds[i], junk, sizeof junk, 0, NULL));
    if (i % 4 == 2) CHECK_OK(rail_sock_send_all(fds[i], &almost, sizeof almost, 0, NULL));
    if (i % 4 == 3) CHECK_OK(rail_sock_send_all(fds[i], &almost, 5, 0, NULL)); /* and then silence */
  }
}

#endif
