/* SPDX-License-Identifier: Apache-2.0
 * For tests of the ib plugin without a device: the emulated one (test/harness/emu.h) is what it opens. */
#ifndef IB_EMU_H
#define IB_EMU_H

#include "plugin/ib/ib_param.h"
#include "test/harness/emu.h"
#include "test/harness/tap.h"

/* Call first in main. NULL: emu0 and emu1, one port each. */
__attribute__((unused)) static void ib_emu_use(const char *statements) {
  emu_use(statements);
  setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ib_params_load();
}

#endif
